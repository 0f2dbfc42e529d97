"""Re-ranking: order the results of a search anew by the neighbours of the neighbours.

k-reciprocal re-ranking works on sparse matrices. Definition: docs/methods/re-ranking.md#k-reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.checks import check_whole, is_real
from nearkin.errors import DataError
from nearkin.registry import Registry
from nearkin.search.order import all_distances, candidate_distances
from nearkin.search.scorers import Cosine, InnerProduct, Scorer
from nearkin.spaces import Euclidean, EuclideanOrder, LipschitzBall, Sphere
from nearkin.spaces.space import widen

Search = Callable[[Tensor, Tensor, int, Tensor | None], tuple[Tensor, Tensor]]

_ROWS = 2**12  # neighbourhoods expanded at once
_PAIR_ENTRIES = 2**22  # of a table or a list in work: 32 MB in double precision
_ROUNDING = -1e-6
_DENSE = 8


def _union(queries: Tensor, gallery: Tensor, banned: Tensor) -> tuple[Tensor, np.ndarray, Tensor]:
    """All items (N, d), the item (q,) that each query is, and the item (N,) that each must not count, -1 for none.

    A query that may not find its own copy in the gallery is that gallery item; it does not count twice.
    """
    inside = banned >= 0
    if gallery is not queries and len(gallery):
        for rows in torch.arange(len(queries), device=queries.device).split(_ROWS):
            # A gallery kept in half precision holds rounded copies.
            inside[rows] &= (queries[rows].to(gallery.dtype) == gallery[banned[rows].clamp(min=0)]).all(dim=1)
    node = torch.where(inside, banned, len(gallery) + (~inside).cumsum(0) - 1)
    hidden = torch.full((len(gallery),), -1, device=gallery.device)
    if inside.all():
        return gallery, node.cpu().numpy(), hidden
    return torch.cat([gallery, queries[~inside]]), node.cpu().numpy(), torch.cat([hidden, banned[~inside]])


def _neighbours(
    search: Search,
    queries: Tensor,
    gallery: Tensor,
    items: Tensor,
    hidden: Tensor,
    k: int,
    k1: int,
    banned: Tensor,
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest gallery items of queries (q, k), and each item followed by its k1 nearest others (N, 1 + k1)."""
    itself = torch.arange(len(items), device=items.device)
    hides = bool((hidden >= 0).any())
    width = min(k1, len(items) - 1 - hides)
    among_themselves = items is gallery and gallery is queries and bool((banned == itself).all())
    _, near = search(items, items, max(k if among_themselves else 1, width + hides), itself.cpu())
    first = near[:, :k] if among_themselves else search(queries, gallery, k, banned.cpu())[1]
    if hides:
        near = near.gather(1, (near == hidden.unsqueeze(1)).int().argsort(dim=1, stable=True))
    return first.cpu().numpy(), torch.cat([itself.unsqueeze(1), near[:, :width]], dim=1).cpu().numpy()


def _farthest(items: Tensor, space: Scorer) -> np.ndarray:
    """The distance (N,) from each item to the one farthest from it."""
    step = max(1, _PAIR_ENTRIES // len(items))
    every = torch.arange(len(items), device=items.device).split(step)
    if not isinstance(space, EuclideanOrder):
        wide = widen(items)
        return torch.cat([space.distance(wide[rows], wide).amax(dim=1) for rows in every]).double().cpu().numpy()
    # Weights vanish at the rim of a ball: single precision would lose them.
    flat, weights = space.as_euclidean(items.double() if space.as_euclidean(items[:1])[1] is not None else widen(items))
    flat = flat - flat.mean(dim=0)
    flat = flat / flat.abs().amax().clamp(min=torch.finfo(flat.dtype).tiny)
    squares = flat.square().sum(dim=1)
    found = []
    for rows in every:
        table = torch.addmm(squares[rows].unsqueeze(1) + squares, flat[rows], flat.T, alpha=-2)
        place = (table if weights is None else table / weights).argmax(dim=1, keepdim=True)
        found.append(candidate_distances(space, items[rows], items, place)[:, 0])
    return torch.cat(found).cpu().numpy()


def _encode(items: Tensor, chains: np.ndarray, farthest: np.ndarray, space: Scorer) -> sparse.csr_array:
    """Codes (N, N): `exp(-relative distance)` on the expanded neighbourhood of each item, each row summing to one."""
    mutual = _mutual(chains)
    half = _mutual(chains[:, : 1 + round((chains.shape[1] - 1) / 2)])
    sizes = np.diff(half.indptr)
    parts = []
    for start in range(0, len(items), _ROWS):
        own = mutual[start : start + _ROWS]
        overlap = ((own @ half) * own).tocsr()  # half is symmetric: [i, j] is |R(i, k1) and R(j, k1/2)|
        overlap.data = (3 * overlap.data > 2 * sizes[overlap.indices]).astype(np.int32)
        overlap.eliminate_zeros()
        star = (own + overlap @ half).tocsr()
        star.sort_indices()
        lengths = np.diff(star.indptr)
        row = np.repeat(np.arange(len(lengths)), lengths)
        distances = _pair_distances(space, items[start : start + _ROWS], items, row, star.indices)
        values = np.exp(-_relative(distances, farthest[start + row]))
        values /= np.repeat(np.add.reduceat(values, star.indptr[:-1]), lengths)
        parts.append(sparse.csr_array((values, star.indices, star.indptr), shape=star.shape))
    return sparse.vstack(parts, format="csr")


def _adjacency(chains: np.ndarray) -> sparse.csr_array:
    """A matrix (N, N) with ones in row i at the items of chain i (N, m)."""
    count, length = chains.shape
    ones, starts = np.ones(chains.size, dtype=np.int32), np.arange(0, chains.size + 1, length)
    return sparse.csr_array((ones, np.sort(chains, axis=1).ravel(), starts), shape=(count, count))


def _mutual(chains: np.ndarray) -> sparse.csr_array:
    """Ones (N, N) where each of two items is in the other's chain."""
    forward = _adjacency(chains)
    return (forward * forward.T.tocsr()).tocsr()


def _blocks(codes: sparse.csr_array, by_feature: sparse.csc_array) -> Iterator[slice]:
    """Queries in blocks whose tables and lists of common features stay within bounds."""
    meetings = np.diff(by_feature.indptr)[codes.indices]
    total = np.concatenate([[0], np.cumsum(meetings, dtype=np.int64)])[codes.indptr]
    most = max(1, _PAIR_ENTRIES // by_feature.shape[0])
    start = 0
    while start < codes.shape[0]:
        stop = int(np.searchsorted(total, total[start] + _PAIR_ENTRIES, side="right")) - 1
        stop = min(max(stop, start + 1), start + most, codes.shape[0])
        yield slice(start, stop)
        start = stop


def _shared(codes: sparse.csr_array, by_feature: sparse.csc_array) -> np.ndarray:
    """`sum_j min(code_ij, code_gj)` (b, n) of codes (b, N) with those of the gallery (n, N)."""
    size = by_feature.shape[0]
    begins = by_feature.indptr[codes.indices].astype(np.int64)
    counts = by_feature.indptr[codes.indices + 1] - begins
    row = np.repeat(np.arange(codes.shape[0]), np.diff(codes.indptr))
    # For every entry of the codes, the run of gallery items that have its feature.
    runs = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    smaller = np.minimum(np.repeat(codes.data, counts), by_feature.data[runs])
    cells = np.repeat(row * size, counts) + by_feature.indices[runs]
    return np.bincount(cells, smaller, minlength=codes.shape[0] * size).reshape(-1, size)


def _candidates(shared: np.ndarray, first: np.ndarray, banned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of all that can be among the k first: items with something in common, and the k nearest.

    Any other item is outranked by each of the k nearest, which have at most its Jaccard distance, 1.
    """
    row, column = np.nonzero(shared)
    nearest = np.repeat(np.arange(len(shared)), first.shape[1])
    new = shared[nearest, first.ravel()] == 0
    row, column = np.concatenate([row, nearest[new]]), np.concatenate([column, first.ravel()[new]])
    allowed = column != banned[row]
    return row[allowed], column[allowed]


def _pair_distances(space: Scorer, x: Tensor, points: Tensor, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Distances (p,) of the pairs (x[row], points[column])."""
    if _DENSE * len(row) >= len(x) * len(points):  # most pairs: a table of all is faster than gathering them
        return all_distances(space, x, points).cpu().numpy()[row, column]
    rows, columns = (torch.from_numpy(part.astype(np.int64)).to(x.device) for part in (row, column))
    step = max(1, _PAIR_ENTRIES // x.shape[1])
    parts = [
        candidate_distances(space, x[some], points, near.unsqueeze(1))[:, 0]
        for some, near in zip(rows.split(step), columns.split(step), strict=True)
    ]
    return torch.cat(parts).cpu().numpy()


def _relative(distances: np.ndarray, farthest: np.ndarray) -> np.ndarray:
    """`d^2 / max d^2` (p,) in double precision; 0 where all items are one."""
    if distances.min(initial=0) < _ROUNDING:
        raise DataError(
            "k-reciprocal re-ranking needs distances that are not negative: search the sphere or by cosine."
        )
    ratio = np.maximum(distances, 0) / np.where(farthest > 0, farthest, 1)
    return np.minimum(ratio, 1) ** 2


_ENTRIES = 2**22  # of gathered neighbours: 32 MB in double precision


class Reranker(Protocol):
    """Orders the results of a search anew."""

    def rank(
        self, search: Search, queries: Tensor, gallery: Tensor, k: int, *, exclude: Tensor | None, space: Scorer
    ) -> tuple[Tensor, Tensor]:
        """The k first gallery items of every query after re-ranking: (distances, indices), each (q, k).

        Args:
            search: the engine's search: `search(queries, gallery, k, exclude) -> (distances, indices)`.
            queries: points (q, d).
            gallery: points (n, d); the same tensor as the queries when they are searched among themselves.
            k: how many.
            exclude: the gallery index (q,) that a query must not find, -1 for none.
            space: whose distance orders.
        """
        ...


rerankers: Registry[Callable[..., Reranker]] = Registry("re-ranker")


def make_reranker(name: str, **parameters: Any) -> Reranker:
    """Build a re-ranker: `make_reranker("k-reciprocal", k1=30)`."""
    rerankers.check(name, parameters, DataError)
    return rerankers.get(name)(**parameters)


def as_reranker(given: Any) -> Reranker | None:
    """A re-ranker from itself or its name; None is none."""
    if isinstance(given, str):
        return make_reranker(given)
    if given is not None and (isinstance(given, type) or not hasattr(given, "rank")):
        names = ", ".join(rerankers.names())
        raise DataError(f"`rerank` must be a re-ranker such as KReciprocal(), or one of the names {names}.")
    return given


@rerankers.register("average-query-expansion")
@dataclass(frozen=True)
class AverageQueryExpansion:
    """Search again with the mean of the query and its nearest neighbours.

    `q' = mean of q (weight 1) and its neighbours x_i (weight max(cos(q, x_i), 0)^alpha)`, in the sense of the space;
    returned distances are those from q'. One more search; memory of one block of neighbours.

    Reference: Chum et al. 2007; alpha-weights: Radenović et al. 2018.
    Use when: the first neighbours are mostly right; if they are wrong, the new query drifts away with them.

    Args:
        neighbours: how many to average with; clipped to what the gallery has.
        alpha: 0 weighs all alike; larger values trust nearer neighbours more (3 is usual). Needs a space with cosines:
            sphere, Euclidean space, Lipschitz ball, cosine or inner product.
    """

    name: ClassVar[str] = "average-query-expansion"
    neighbours: int = 5
    alpha: float = 0.0

    def __post_init__(self) -> None:
        check_whole(self.neighbours, "neighbours", 1)
        if not (is_real(self.alpha) and 0 <= self.alpha < float("inf")):
            raise DataError(f"The alpha of query expansion must be a number from 0 on, not {self.alpha!r}.")

    @torch.no_grad()
    def rank(
        self, search: Search, queries: Tensor, gallery: Tensor, k: int, *, exclude: Tensor | None, space: Scorer
    ) -> tuple[Tensor, Tensor]:
        """As `Reranker.rank`."""
        average = self._average(space)
        if not len(queries):
            return search(queries, gallery, k, exclude)
        available = len(gallery) - int(exclude is not None and bool((exclude >= 0).any()))
        _, near = search(queries, gallery, min(self.neighbours, available), exclude)
        step = max(1, _ENTRIES // ((near.shape[1] + 1) * queries.shape[1]))
        blocks = zip(queries.split(step), near.to(gallery.device).split(step), strict=True)
        widest = torch.promote_types(torch.promote_types(queries.dtype, gallery.dtype), torch.float32)
        # In double precision: a rounded mean would move the new query by more than near neighbours differ.
        expanded = [average(torch.cat([x.unsqueeze(1).double(), gallery[some].double()], dim=1)) for x, some in blocks]
        return search(torch.cat(expanded).to(widest), gallery, k, exclude)

    def _average(self, space: Scorer) -> Callable[[Tensor], Tensor]:
        """How a query and its neighbours (q, 1 + m, d) become one point (q, d) of this space."""
        if isinstance(space, Sphere | Cosine):
            return lambda points: normalize((self._weights(points) * normalize(points, dim=2)).sum(dim=1), dim=1)
        if isinstance(space, Euclidean | LipschitzBall | InnerProduct):
            return lambda points: (self._weights(points) * points).sum(dim=1) / self._weights(points).sum(dim=1)
        name = getattr(space, "name", type(space).__name__)
        mean = getattr(space, "mean", None)
        if mean is None:
            raise DataError(f"Query expansion needs a space with a mean, and '{name}' has none.")
        if self.alpha > 0:
            raise DataError(f"Cosines mean nothing in the space '{name}': expand its queries with alpha=0.")
        return mean

    def _weights(self, points: Tensor) -> Tensor:
        """Weights (q, 1 + m, 1) of a query and its neighbours (q, 1 + m, d)."""
        if self.alpha == 0:
            return points.new_ones(*points.shape[:2], 1)
        directions = normalize(points, dim=2)
        cosines = (directions * directions[:, :1]).sum(dim=2, keepdim=True).clamp(0, 1)
        cosines[:, 0] = 1  # also where the query is zero and has no direction
        return cosines**self.alpha


@rerankers.register("k-reciprocal")
@dataclass(frozen=True)
class KReciprocal:
    """Order by how far two items share their mutual neighbours, mixed with the original distance.

    `d* = (1 - weight) d_J + weight d^2 / max d^2`, where d_J is the Jaccard distance of the items' k-reciprocal
    neighbourhoods, and the maximum is over all items for this query. Distances are from 0 to 1; equal ones go by the
    original distance, then by the lower index. Needs distances that are not negative.

    Sparse throughout: memory grows as (q + n) k1 k2, never as their square. Time: one search of queries and gallery
    among themselves, and one matrix product of the same size for the maxima.

    Reference: Zhong et al. 2017.
    Use when: classes have several items in the gallery, at least about k1/2; it costs a search of the whole gallery.

    Args:
        k1: how many neighbours make a neighbourhood; clipped to what there is.
        k2: over how many nearest items, the item itself among them, neighbourhoods are averaged; 1 for none.
        weight: of the original distance; 0 leaves only neighbourhoods, 1 only the distance.
    """

    name: ClassVar[str] = "k-reciprocal"
    k1: int = 20
    k2: int = 6
    weight: float = 0.3

    def __post_init__(self) -> None:
        check_whole(self.k1, "k1", 1)
        check_whole(self.k2, "k2", 1)
        if self.k1 < self.k2:
            raise DataError(f"k-reciprocal re-ranking needs k1 >= k2, not k1={self.k1} and k2={self.k2}.")
        if not (is_real(self.weight) and 0 <= self.weight <= 1):
            raise DataError(f"The weight of the original distance must be from 0 to 1, not {self.weight!r}.")

    @torch.no_grad()
    def rank(
        self, search: Search, queries: Tensor, gallery: Tensor, k: int, *, exclude: Tensor | None, space: Scorer
    ) -> tuple[Tensor, Tensor]:
        """As `Reranker.rank`."""
        if not len(queries):
            return search(queries, gallery, k, exclude)
        banned = torch.full((len(queries),), -1) if exclude is None else exclude.long()
        banned = banned.to(queries.device)
        items, node, hidden = _union(queries, gallery, banned)
        first, chains = _neighbours(search, queries, gallery, items, hidden, k, self.k1, banned)
        farthest = _farthest(items, space)
        codes = _encode(items, chains, farthest, space)
        if self.k2 > 1:
            codes = (_adjacency(chains[:, : self.k2]) @ codes) / min(self.k2, chains.shape[1])
        of_queries, by_feature = codes[node].tocsr(), codes[: len(gallery)].tocsc()
        farthest = farthest[node]
        distances = np.empty((len(queries), k), dtype=np.float32)
        indices = np.empty((len(queries), k), dtype=np.int64)
        for rows in _blocks(of_queries, by_feature):
            shared = _shared(of_queries[rows], by_feature)  # (b, n), most of it zero
            row, column = _candidates(shared, first[rows], banned[rows].cpu().numpy())
            original = _pair_distances(space, queries[rows], gallery, row, column)
            common = shared[row, column]
            jaccard = np.maximum(1 - common / (2 - common), 0)
            final = ((1 - self.weight) * jaccard + self.weight * _relative(original, farthest[rows][row])).astype(
                np.float32
            )
            order = np.lexsort((column, original, final, row))
            start = np.searchsorted(row[order], np.arange(len(shared)))
            best = order[start[:, None] + np.arange(k)]
            distances[rows], indices[rows] = final[best], column[best]
        return torch.from_numpy(distances).to(queries.device), torch.from_numpy(indices).to(queries.device)
