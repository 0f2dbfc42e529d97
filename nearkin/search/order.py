"""The order of a gallery for every query: float32 scores, the larger the nearer, and float64 distances.

Where the scorer allows it, scores are one matrix product in float32: of unit vectors on the sphere, of the vectors
themselves for inner products, and `[x, -|x|^2/2, 1] . [y, 1, -|y|^2/2] = -|x - y|^2 / 2` for spaces ordered by
Euclidean distances; factorised scorers combine two sides. What float32 cannot tell apart, distances in float64 do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.search.scan import PARALLEL, UNDERFLOW, round_noise
from nearkin.search.scorers import CERTAINTY, ROUNDING, Cosine, Factorised, Factors, InnerProduct, Scorer, slices
from nearkin.spaces import EuclideanOrder, Sphere

_CHUNK_ENTRIES = 2**19
_GATHERED_ENTRIES = 2**18  # in float64, and a scorer makes several copies: about 10 MB for each worker
_TABLE_ENTRIES = 2**20  # distances in double precision that a worker holds
_DENSE = 4
_SAMPLED = 1000
_CONCENTRATED = 0.9  # length of the mean direction


class Order:
    """Scores and true distances between queries and a gallery.

    Args:
        queries: (q, d).
        gallery: (n, d), may be the queries themselves.
        scorer: what tells distances.
    """

    def __init__(self, queries: Tensor, gallery: Tensor, scorer: Scorer) -> None:
        self.queries = queries
        self.gallery = gallery
        self.scorer = scorer
        self.width = queries.shape[1]
        self._dtype = torch.promote_types(torch.promote_types(queries.dtype, gallery.dtype), torch.float32)
        self.by_product = True
        self._form: Any = None
        self._factors: Factors | None = None
        self._noise = 0.0
        if isinstance(scorer, Sphere | Cosine) and _is_own_distance(scorer):
            self._form = _directions(queries, gallery, scorer)
            self._noise = PARALLEL if isinstance(scorer, Sphere) else PARALLEL**2
        elif isinstance(scorer, InnerProduct) and _is_own_distance(scorer):
            self._form = ProductForm(queries, gallery)
        elif isinstance(scorer, Factorised) and _is_own_distance(scorer):
            self._factors = Factors(gallery, scorer)
        elif isinstance(scorer, EuclideanOrder) and _is_own_distance(scorer):
            self._form = EuclideanForm(queries, gallery, scorer)
        else:
            self.by_product = False
        if self.by_product:
            self.width = self.width + self._form.more_columns if self._factors is None else self._factors.width

    @property
    def factorised(self) -> bool:
        """Whether scores combine two sides that differ, each pair at the cost of a whole side."""
        return self._factors is not None

    @property
    def symmetric(self) -> bool:
        """Whether one product serves both directions of a pair."""
        return self._form is not None and self.queries is self.gallery

    @property
    def one_side(self) -> bool:
        """Whether `left` and `right` of the same points are the same."""
        return self.symmetric and self._form.more_columns == 0

    def left(self, rows: Tensor | slice) -> Tensor:
        """The queries (b, width) as the left side of the product."""
        points = self.queries[rows]
        if self._factors is not None:
            return self._factors.left(points)
        return self._form.sides(points)[0] if self.by_product else points.to(self._dtype)

    def right(self, rows: Tensor | slice) -> Tensor:
        """Gallery items (m, width) as the right side of the product."""
        if self._factors is not None:
            return self._factors.right(rows)
        points = self.gallery[rows]
        return self._form.sides(points)[1] if self.by_product else points.to(self._dtype)

    def scores(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Scores (b, m) into `out`."""
        if self._factors is not None:
            return self._factors.scores(left, right, out)
        if self.by_product:
            return torch.mm(left, right.T, out=out)
        distances = self.scorer.distance(left, right)
        if not isinstance(distances, Tensor) or distances.shape != out.shape:
            given = f"the shape {tuple(distances.shape)}" if isinstance(distances, Tensor) else type(distances).__name__
            raise DataError(
                f"The distance of {type(self.scorer).__name__} must give a tensor of the shape {tuple(out.shape)} for "
                f"{len(left)} and {len(right)} vectors, not {given}."
            )
        if not all(extreme.isfinite() for extreme in out.copy_(distances).neg_().aminmax()):
            raise DataError(
                f"The distance of {type(self.scorer).__name__} must give finite numbers, but some are NaN or infinite: "
                "replace them, by a large number where vectors are far apart."
            )
        return out

    def tolerance(self, rows: Tensor) -> Tensor:
        """By how much (b,) the scores of a query may be off through rounding; none where the scorer computes them."""
        if not self.by_product:
            return torch.zeros(len(rows), device=self.queries.device)
        if self._factors is not None:
            return self._factors.tolerance(self.queries[rows])
        return self._form.tolerance(self.queries[rows])

    def doubt(self, rows: np.ndarray) -> np.ndarray:
        """By how much (b,) rounding may move the scores of two items apart, for queries (b,): twice the tolerance."""
        return 2 * self.tolerance(torch.from_numpy(rows).to(self.queries.device)).cpu().numpy()

    def distances(self, rows: Tensor, near: Tensor) -> Tensor:
        """True distances (b, c), float64, of queries (b,) to chosen gallery items (b, c)."""
        factors, size = self._factors, len(self.gallery)
        distances = torch.empty(near.shape, dtype=torch.float64, device=near.device)
        dense = _DENSE * near.shape[1] >= size > 1
        width = self.queries.shape[1] if factors is None else factors.width
        entries = _TABLE_ENTRIES if dense and factors is not None else _GATHERED_ENTRIES
        for some in slices(len(rows), max(1, entries // max(1, size if dense else near.shape[1] * width))):
            x = self.queries[rows[some]]
            x = x.double() if factors is None else factors.exact.of_queries(x)
            if dense:  # most of the gallery: no need to gather it for every query
                table = distances.new_empty(len(x), size)
                for part in slices(size, max(1, _GATHERED_ENTRIES // width)):
                    table[:, part] = self._pairs(x, self.gallery[part])
                found = table.gather(1, near[some])
            else:
                found = self._pairs(x.unsqueeze(1), self.gallery[near[some]])[:, 0]
            if factors is not None:
                found = factors.without_noise(found, x)
            # vectors of one direction are one point, whatever their lengths
            distances[some] = torch.where(found < self._noise, 0.0, found) if self._noise else found
        return distances

    def _pairs(self, x: Tensor, points: Tensor) -> Tensor:
        """Distances in float64 of what `distances` has made of queries, to items as they are."""
        if self._factors is None:
            return self.scorer.distance(x, points.double())
        return -self._factors.exact.scores(x, self._factors.exact.of_enrolled(points))


class UnitForm:
    """Directions: the product of unit vectors is their cosine."""

    more_columns = 0
    scale, longest = 1.0, 1.0

    def sides(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides (n, width) of the product, float32, of points (n, d)."""
        unit = Sphere().as_euclidean(points.double())[0].float()
        return unit, unit

    def tolerance(self, queries: Tensor) -> Tensor:
        """By how much (b,) rounding may move the scores of queries (b, d)."""
        rounding = (CERTAINTY * math.sqrt(queries.shape[1]) + 2) * ROUNDING
        return torch.full((len(queries),), rounding, device=queries.device)


class _UnitOrZeroForm(UnitForm):
    """Directions and zero vectors, which are at a right angle to every direction and at none to each other."""

    more_columns = 1

    def sides(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides (n, width) of the product, float32, of points (n, d)."""
        unit, _ = super().sides(points)
        marked = torch.cat([unit, (unit == 0).all(dim=1, keepdim=True).float()], dim=1)
        return marked, marked


class ProductForm:
    """Inner products, scaled by powers of two so that they neither overflow nor vanish."""

    more_columns = 0

    def __init__(self, queries: Tensor, gallery: Tensor) -> None:
        self.scale = _power_of_two(max(_largest(queries), _largest(gallery)))
        chunks = gallery.split(_chunk_rows(gallery))
        self.longest = max(float((part.double() * self.scale).norm(dim=1).amax()) for part in chunks)

    def sides(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides (n, width) of the product, float32, of points (n, d)."""
        scaled = (points.double() * self.scale).float()
        return scaled, scaled

    def tolerance(self, queries: Tensor) -> Tensor:
        """By how much (b,) rounding may move the scores of queries (b, d)."""
        length = (queries.double() * self.scale).norm(dim=1).float()
        root = math.sqrt(queries.shape[1])
        return CERTAINTY * root * ROUNDING * (self.longest * length + UNDERFLOW * root)


class EuclideanForm:
    """Negative halves of squared Euclidean distances, over the weights of both points where the space has weights."""

    more_columns = 2

    def __init__(self, queries: Tensor, gallery: Tensor, space: EuclideanOrder) -> None:
        self._space = space
        self._origin, spread = self._round_centre(gallery)
        reach = spread
        for part in queries.split(_chunk_rows(queries)):
            reach = max(reach, float((space.as_euclidean(part.double())[0] - self._origin).abs().amax()))
        self.scale = _power_of_two(reach)
        self.longest, self._lightest = 0.0, math.inf
        for points, weights in map(self._placed, gallery.split(_chunk_rows(gallery))):
            self.longest = max(self.longest, float(points.norm(dim=1).amax()))
            self._lightest = min(self._lightest, 1.0 if weights is None else float(weights.amin()))

    def sides(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides (n, width) of the product, float32, of points (n, d)."""
        placed, weights = self._placed(points)
        half = placed.square().sum(dim=1, keepdim=True) / 2
        left = torch.cat([placed, -half, torch.ones_like(half)], dim=1)
        right = torch.cat([placed, torch.ones_like(half), -half], dim=1)
        if weights is not None:
            left, right = left / weights.unsqueeze(1), right / weights.unsqueeze(1)
        return left.float(), right.float()

    def tolerance(self, queries: Tensor) -> Tensor:
        """By how much (b,) rounding may move the scores of queries (b, d)."""
        placed, weights = self._placed(queries)
        root = math.sqrt(queries.shape[1] + 2)
        largest = (placed.norm(dim=1) + self.longest).square() / 2 + UNDERFLOW * root
        if weights is not None:
            largest = largest / weights / self._lightest
        return (CERTAINTY * root * ROUNDING * largest).float()

    def _placed(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        flat, weights = self._space.as_euclidean(points.double())
        return (flat - self._origin) * self.scale, weights

    def _round_centre(self, gallery: Tensor) -> tuple[Tensor, float]:
        """A round point (d,) near the mean, subtracting which does not spoil exact ties, and the largest difference.

        Far from the origin, a product of vectors loses the digits in which the points differ. The grid is as coarse as
        the points are spread, so data around the origin stay as they are and whole numbers stay whole.
        """
        chunks = gallery.split(_chunk_rows(gallery))
        sums = torch.stack([self._space.as_euclidean(part.double())[0].sum(dim=0) for part in chunks])
        mean = sums.sum(dim=0) / len(gallery)
        spread = max(float((self._space.as_euclidean(part.double())[0] - mean).abs().amax()) for part in chunks)
        grid = 1 / _power_of_two(spread)
        centre = (mean / grid).round() * grid
        return centre, spread + float((mean - centre).abs().amax())


def _is_own_distance(scorer: Scorer) -> bool:
    """Whether the scorer's distance is the one its known order belongs to: a subclass may have put another in place."""
    kinds = type(scorer).__mro__
    known = next((kind for kind in kinds if kind in (Sphere, Cosine, InnerProduct)), None)
    order = known or next(kind for kind in kinds if vars(kind).keys() & {"as_euclidean", "sides"})
    distance = next(kind for kind in kinds if "distance" in vars(kind))
    return kinds.index(order) <= kinds.index(distance)


def _directions(queries: Tensor, gallery: Tensor, scorer: Sphere | Cosine) -> UnitForm | EuclideanForm:
    """Cosines; or, where all directions are much the same, distances between them, which lose fewer digits."""
    sets = [queries] if queries is gallery else [queries, gallery]
    chunks = [part for points in sets for part in points.split(_chunk_rows(points))]
    if any(bool((torch.linalg.vector_norm(part, torch.inf, dim=1) == 0).any()) for part in chunks):
        # A zero vector is at chord 1 and at a right angle to all directions, and its cosine is 0.
        if isinstance(scorer, Sphere):
            return _UnitOrZeroForm() if scorer.metric == "angle" else EuclideanForm(queries, gallery, scorer)
        return UnitForm()
    sample = gallery[:: max(1, len(gallery) // _SAMPLED)].double()
    mean = Sphere().as_euclidean(sample)[0].mean(dim=0)
    return EuclideanForm(queries, gallery, Sphere()) if float(mean.norm()) > _CONCENTRATED else UnitForm()


def _chunk_rows(points: Tensor) -> int:
    return max(1, _CHUNK_ENTRIES // points.shape[1])


def _largest(points: Tensor) -> float:
    return max((float(part.abs().amax()) for part in points.split(_chunk_rows(points))), default=0.0)


def _power_of_two(size: float) -> float:
    """A factor that brings values up to `size` into [-1, 1] without changing a digit."""
    return 2.0 ** -math.frexp(size)[1] if size > 0 else 1.0


_ENTRIES = 2**22  # of gathered vectors: 32 MB in double precision
_PLAIN_ROWS = 64


def candidate_distances(space: Scorer, queries: Tensor, gallery: Tensor, candidates: Tensor) -> Tensor:
    """Distances (q, m), float64, of queries (q, d) to the gallery items (n, d) numbered by `candidates` (q, m).

    What differs by rounding only is equal. A space compares each query with its own candidates; a scorer of the user's
    own knows only tables of distances, and gets small ones; they count in single precision, as in every search.
    """
    distances = torch.empty(candidates.shape, dtype=torch.float64, device=queries.device)
    if not candidates.numel():
        return distances
    batched = _is_batched(space)
    step = max(1, _ENTRIES // (candidates.shape[1] * queries.shape[1])) if batched else _PLAIN_ROWS
    for rows in torch.arange(len(queries), device=queries.device).split(step):
        x, near = queries[rows].double(), candidates[rows]
        if batched:
            distances[rows] = round_noise(space.distance(x.unsqueeze(1), gallery[near].double())[:, 0])
        else:
            items, place = near.unique(return_inverse=True)
            distances[rows] = space.distance(x, gallery[items].double()).gather(1, place).float().double()
    return distances


def all_distances(space: Scorer, queries: Tensor, gallery: Tensor) -> Tensor:
    """Distances (q, n), float64, of queries (q, d) to a whole gallery (n, d); what differs by rounding is equal."""
    step = max(1, _ENTRIES // max(len(queries), queries.shape[1]))
    parts = [space.distance(queries.double(), part.double()) for part in gallery.split(step)]
    distances = torch.cat(parts, dim=1)
    return round_noise(distances) if _is_batched(space) else distances.float().double()


def _is_batched(space: Scorer) -> bool:
    """Whether it takes leading batch dimensions, as every space does; then it is ours, and exact in float64."""
    return hasattr(space, "project") or isinstance(space, Cosine | InnerProduct)
