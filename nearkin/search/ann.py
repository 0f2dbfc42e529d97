"""Approximate nearest neighbours by faiss, for galleries too large for brute force; faiss is imported when used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError, require, suggestion
from nearkin.search.exact import exact
from nearkin.search.order import EuclideanForm, ProductForm, UnitForm, candidate_distances
from nearkin.search.rerank import Reranker, as_reranker
from nearkin.search.scorers import Cosine, InnerProduct, Scorer, as_exclude, as_pair, as_scorer, as_vectors, check_k
from nearkin.spaces import Euclidean, EuclideanOrder, LipschitzBall, Sphere

_FEWEST, _MOST = 39, 256  # points a centroid
_DEFAULT_BITS = 8
_UNITS = {"": 1, "k": 1024, "M": 1024**2}
_CELLS = re.compile(r"^IVF(\d+)([kM]?)")
_GRID = re.compile(r"^IMI\d+x(\d+)")
_COMPRESSED = re.compile(r"[PSR]Q|PCA|LSH|ITQ|RaBitQ")
"""Of an index that holds less than the vectors, so that its own order is an estimate."""
_CODES = re.compile(r"(?:(?<![A-Z])PQ|RQ|LSQ)\d+(?:x(\d+))?")


def centroids(factory: str) -> int:
    """The size of the largest codebook of a factory string; 0 if it learns none."""
    return max(map(_centroids, factory.split(",")))


def check_size(factory: str, size: int) -> None:
    """Refuse a gallery too small to train this factory string, and propose a string that suits it."""
    needed = _FEWEST * centroids(factory)
    if size < needed:
        raise DataError(
            f"'{factory}' needs at least {needed} items to train on, {_FEWEST} for each of {needed // _FEWEST} "
            f"centroids, and the gallery has {size}: use '{smaller(factory, size)}'."
        )


def smaller(factory: str, size: int) -> str:
    """The string nearest to `factory` that a gallery of `size` points can train."""
    kept: list[str] = []
    for part in factory.split(","):
        if _FEWEST * _centroids(part) <= size:
            kept.append(part)
        elif _CELLS.match(part):
            fitting = 2 ** ((size // _FEWEST).bit_length() - 1) if size >= 4 * _FEWEST else 0
            kept.extend([_CELLS.sub(f"IVF{fitting}", part)] if fitting else [])
        elif part.startswith("HNSW"):
            kept.append(part.partition("_")[0])
        elif not part.startswith(("OPQ", "IMI")):
            kept.append("Flat" if any(map(_CELLS.match, kept)) else "SQ8")
    last_is_cells = bool(kept and _CELLS.match(kept[-1]))
    return ",".join([*kept, "Flat"] if last_is_cells or not kept else kept)


def _centroids(part: str) -> int:
    """The size of the codebook that one part of a string learns."""
    if cells := _CELLS.match(part):
        return int(cells[1]) * _UNITS[cells[2]]
    if grid := _GRID.match(part):
        return 2 ** int(grid[1])
    if part.startswith("OPQ"):
        return 2**_DEFAULT_BITS
    codes = _CODES.search(part)
    return 2 ** int(codes[1] or _DEFAULT_BITS) if codes else 0


def build(kit: Any, factory: str, dimensions: int, by_product: bool, seed: int) -> Any:
    """An empty, seeded index of this factory string, by inner product or by squared Euclidean distance."""
    metric = kit.METRIC_INNER_PRODUCT if by_product else kit.METRIC_L2
    try:
        index = kit.index_factory(dimensions, factory, metric)
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"faiss cannot build '{factory}' for vectors of {dimensions} dimensions: {reason(error)}"
        ) from error
    inner = _inner(kit, index)
    if hasattr(inner, "hnsw"):
        inner.hnsw.rng = kit.RandomGenerator(seed)
        inner = kit.downcast_index(inner.storage)
    if hasattr(inner, "do_polysemous_training"):
        # Annealing for a filter that is off by default takes most of the training time.
        inner.do_polysemous_training = False
    for learner in (inner, getattr(inner, "pq", inner)):
        if hasattr(learner, "cp"):
            learner.cp.seed = seed  # of the k-means of cells and codes
    return index


def reason(error: Exception) -> str:
    """The sentence in a faiss error, without the place in its source."""
    return str(error).strip().splitlines()[0].rpartition(": ")[2].rstrip(".") + "."


def _inner(kit: Any, index: Any) -> Any:
    """The index that searches, inside transforms and refinements."""
    for attribute in ("index", "base_index"):
        if hasattr(index, attribute):
            return _inner(kit, kit.downcast_index(getattr(index, attribute)))
    return index


def knobs_of(kit: Any, index: Any) -> dict[str, int]:
    """The search parameters that this index has, each with its largest value; 0 stands for the size of the gallery."""
    inner = _inner(kit, index)
    if isinstance(inner, kit.IndexIVF):
        return {"nprobe": inner.nlist}
    return {"efSearch": 0} if isinstance(inner, kit.IndexHNSW) else {}


@contextmanager
def reproducible(kit: Any) -> Iterator[None]:
    """One thread for versions of faiss whose HNSW graph depends on which thread comes first; restored afterwards.

    faiss and torch share one OpenMP setting, so a count left behind would slow down torch.
    """
    if tuple(int(part) for part in kit.__version__.split(".")[:2]) >= (1, 15):
        yield
        return
    threads = kit.omp_get_max_threads()
    kit.omp_set_num_threads(1)
    try:
        yield
    finally:
        kit.omp_set_num_threads(threads)


_ROWS = 2**14


class Coordinates:
    """How points enter faiss: by squared Euclidean distance, or by inner product for scorers that are one.

    Euclidean coordinates have the gallery's mean for origin, and all are scaled by a power of two: single precision
    then tells points far from zero apart, and squares neither overflow nor vanish.

    Args:
        gallery: points (n, d) to be searched.
        space: a space or scorer.

    Raises:
        DataError: faiss has no metric that orders as this space does.
    """

    def __init__(self, gallery: Tensor, space: Scorer) -> None:
        self.by_product = isinstance(space, Cosine | InnerProduct)
        unweighted = isinstance(space, EuclideanOrder) and space.as_euclidean(gallery[:1])[1] is None
        if not (self.by_product or unweighted):
            raise DataError(
                f"faiss cannot search {_name(space)}: it knows the sphere, Euclidean space, the Lipschitz ball, cosine "
                "and inner product; use nearkin.search.exact instead."
            )
        self._space = space
        self._form: UnitForm | ProductForm | EuclideanForm = UnitForm()
        if isinstance(space, EuclideanOrder):
            self._form = EuclideanForm(gallery, gallery, space)
        elif isinstance(space, InnerProduct):
            self._form = ProductForm(gallery, gallery)

    def enter(self, points: Tensor) -> np.ndarray:
        """Coordinates (n, d) in float32 of points (n, d)."""
        width = points.shape[1]
        parts = [self._form.sides(block)[0][:, :width].cpu().numpy() for block in points.split(_ROWS)]
        return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def rounding(self, coordinates: np.ndarray) -> np.ndarray:
        """By how much (q,) faiss's numbers for these queries (q, d) can be off."""
        lengths = np.linalg.norm(coordinates, axis=1) + self._form.longest
        return (coordinates.shape[1] + 8) * np.finfo(np.float32).eps * lengths**2

    def distances(self, scores: np.ndarray) -> np.ndarray:
        """Distances of the space from faiss's squared distances or products, of any shape."""
        if isinstance(self._space, InnerProduct):
            return -scores / self._form.scale**2
        if isinstance(self._space, Cosine):
            return 1 - scores
        lengths = np.sqrt(np.maximum(scores, 0)) / self._form.scale
        if isinstance(self._space, Sphere) and self._space.metric == "angle":
            return 2 * np.arcsin(np.minimum(lengths / 2, 1))
        if isinstance(self._space, Sphere | Euclidean | LipschitzBall):
            return lengths
        raise DataError(f"The distances of {_name(self._space)} need the vectors: keep exact_distances=True.")


def _name(space: Any) -> str:
    return f"the space '{space.name}'" if hasattr(space, "name") else f"an object of type {type(space).__name__}"


_ADDED = 2**18  # gallery items copied at once
_SPHERE = Sphere()


@torch.no_grad()
def faiss(
    queries: Any,
    gallery: Any | None = None,
    k: int = 10,
    *,
    factory: str = "HNSW32",
    space: Any = _SPHERE,
    exclude: Any | None = None,
    rerank: Reranker | str | None = None,
    seed: int = 0,
    search_parameters: Mapping[str, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """About the k nearest gallery items of every query: (distances, indices), each (q, k), nearest first.

    Distances are true, equal ones go by the lower index; only some neighbours may be missed. To search one gallery many
    times, keep a `FaissIndex`.

    Args:
        queries: points of the space (q, d), array or tensor.
        gallery: points (n, d); None searches the queries among themselves, each never finding itself.
        k: how many neighbours.
        factory: a faiss factory string, such as "Flat", "HNSW32", "IVF256,Flat", "OPQ16,IVF256,PQ16" or "SQ8".
        space: sphere, Euclidean space, Lipschitz ball, `Cosine` or `InnerProduct`, or the name of one.
        exclude: the gallery index (q,) that a query must not find, -1 for none.
        rerank: orders the results anew, such as `KReciprocal()`.
        seed: of the training sample, of k-means and of the graph's levels.
        search_parameters: see `FaissIndex`.
    """
    x, y = as_pair(queries, gallery)
    points = x if y is None else y
    hidden = as_exclude(exclude, len(x), len(points), leave_one_out=y is None)
    check_k(k, _available(len(points), hidden))
    space, reranker = as_scorer(space), as_reranker(rerank)
    fitted: list[tuple[Tensor, FaissIndex]] = []

    def search(x: Tensor, points: Tensor, k: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
        if not (fitted and fitted[-1][0] is points):  # a re-ranker searches more than once, mostly the same gallery
            index = FaissIndex(factory, space, seed=seed, search_parameters=search_parameters)
            fitted[:] = [(points, index.fit(points))]
        return fitted[-1][1].search(x, k, exclude=exclude)

    skip = None if hidden is None else torch.from_numpy(hidden)
    if reranker is None:
        return search(x, points, k, skip)
    return reranker.rank(search, x, points, k, exclude=skip, space=space)


class FaissIndex:
    """A gallery in a faiss index, to be searched many times.

    Training uses a seeded random sample, between 39 and 256 items for each centroid. Results repeat with the same seed:
    from version 1.15 on faiss builds the same HNSW graph on any number of threads, and older versions are held to one
    thread while they build it. (OPQ and PCA come from LAPACK, whose last digits may change with the number of threads.)

    `search_parameters` trade speed for recall:

    - `nprobe`: how many IVF cells to visit; a sixteenth of them, at least 8 (faiss itself visits 1).
    - `efSearch`: how many nodes HNSW keeps in view; twice the candidates, at least 64 (faiss itself 16).
    - `candidates`: how many items faiss proposes for each query, to be put in order by true distance; `k + k/4 + 16`,
      and `4k + 16` if the index compresses vectors.

    Where faiss comes back with fewer than k items, these queries are searched again, four times wider each time, and in
    the end compared with the whole gallery.

    Args:
        factory: a faiss factory string.
        space: as in `faiss`.
        seed: of the training sample, of k-means and of the graph's levels.
        search_parameters: any of those above.
        exact_distances: keep the gallery (4 or 8 bytes a number) and compute distances from it. False saves this memory
            and returns faiss's own distances, which quantised indexes only estimate.
    """

    def __init__(
        self,
        factory: str = "HNSW32",
        space: Any = _SPHERE,
        *,
        seed: int = 0,
        search_parameters: Mapping[str, int] | None = None,
        exact_distances: bool = True,
    ) -> None:
        self.factory = factory
        self.space = space
        self.seed = seed
        self.search_parameters = search_parameters
        self.exact_distances = exact_distances

    @torch.no_grad()
    def fit(self, gallery: Any) -> FaissIndex:
        """Train on and add the gallery (n, d)."""
        kit = require("faiss", "faiss")
        points = as_vectors(gallery, "gallery", halves=True)
        if not len(points):
            raise DataError("The gallery is empty: give at least one item to search.")
        check_size(self.factory, len(points))
        scorer: Scorer = as_scorer(self.space)
        coordinates = Coordinates(points, scorer)
        index = build(kit, self.factory, points.shape[1], coordinates.by_product, self.seed)
        self._knobs = knobs_of(kit, index)
        for name, value in (self.search_parameters or {}).items():
            known = [*self._knobs, "candidates"]
            if name not in known:
                raise DataError(f"'{self.factory}' has no search parameter '{name}'.{suggestion(name, known)}")
            check_whole(value, name, 1)
        if not index.is_trained:
            # All points, or as many as the codebooks can use.
            generator, most = (
                torch.Generator().manual_seed(self.seed),
                _MOST * (centroids(self.factory) or 2**_DEFAULT_BITS),
            )
            sample = torch.randperm(len(points), generator=generator)[:most]
            try:
                index.train(coordinates.enter(points[sample.to(points.device)]))
            except RuntimeError as error:
                message = f"faiss cannot train '{self.factory}' on {len(points)} items: {reason(error)}"
                raise DataError(message) from error
        with reproducible(kit):
            for block in points.split(_ADDED):
                index.add(coordinates.enter(block))
        self.index_, self.coordinates_, self.size_, self.dimensions_ = index, coordinates, *points.shape
        self.gallery_ = points if self.exact_distances else None
        self._scorer, self._kit = scorer, kit
        return self

    @torch.no_grad()
    def search(self, queries: Any, k: int = 10, *, exclude: Any | None = None) -> tuple[Tensor, Tensor]:
        """About the k nearest items of queries (q, d): (distances, indices), each (q, k), nearest first.

        Args:
            queries: points of the space (q, d).
            k: how many neighbours.
            exclude: the gallery index (q,) that a query must not find, -1 for none.
        """
        if not hasattr(self, "index_"):
            raise DataError("This index is empty: call fit(gallery) before search.")
        x = as_vectors(queries, "queries", halves=True)
        if x.shape[1] != self.dimensions_:
            raise DataError(
                f"The queries have {x.shape[1]} dimensions, the gallery {self.dimensions_}: they must agree."
            )
        hidden = as_exclude(exclude, len(x), self.size_, leave_one_out=False)
        check_k(k, _available(self.size_, hidden))
        banned = np.full(len(x), -1) if hidden is None else hidden
        distances = torch.empty(len(x), k, device=x.device)
        indices = torch.empty(len(x), k, dtype=torch.long, device=x.device)
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            distances[rows], indices[rows] = self._search_block(x[rows], k, banned[rows])
        return distances, indices

    def _search_block(self, x: Tensor, k: int, banned: np.ndarray) -> tuple[Tensor, Tensor]:
        """Neighbours of a block: candidates by faiss, order by true distance, what faiss cannot settle in full."""
        entered = self.coordinates_.enter(x)
        scores, found = self._propose(entered, k, banned)
        usable = (found >= 0) & (found != banned[:, None])
        unsettled = usable.sum(axis=1) < k
        if self.factory == "Flat" and found.shape[1] < self.size_:
            # Exhaustive and lossless but for rounding: an item left out may tie with the last place.
            spread = np.abs(scores[:, -1] - scores[:, k])
            unsettled |= spread <= 2 * self.coordinates_.rounding(entered)
        near = torch.from_numpy(np.where(usable, found, self.size_)).to(x.device)
        near, place = near.sort(dim=1)  # ascending, so that the stable sort below leaves equal distances by index
        if self.gallery_ is not None:
            true = candidate_distances(self._scorer, x, self.gallery_.to(x.device), near.clamp(max=self.size_ - 1))
        else:
            true = torch.from_numpy(self.coordinates_.distances(scores)).to(x.device).gather(1, place)
        distances, order = true.masked_fill(near == self.size_, torch.inf).sort(dim=1, stable=True)
        distances, indices = distances[:, :k].float(), near.gather(1, order[:, :k])
        rows = unsettled.nonzero()[0]
        if len(rows):
            distances[rows], indices[rows] = self._exhaustive(x[rows], k, banned[rows])
        return distances, indices

    def _propose(self, entered: np.ndarray, k: int, banned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores and candidates (q, m) of queries (q, d), -1 where faiss has none; short lists are searched wider."""
        given = self.search_parameters or {}
        wide = given.get("candidates", 4 * k + 16 if _COMPRESSED.search(self.factory) else k + k // 4 + 16)
        wide = min(self.size_, max(wide, k + 1))
        knobs = {"efSearch": max(64, 2 * wide), "nprobe": max(8, self._knobs.get("nprobe", 0) // 16), **given}
        scores = np.empty((len(entered), wide), dtype=np.float32)
        found = np.empty((len(entered), wide), dtype=np.int64)
        rows, effort = np.arange(len(entered)), 1
        while len(rows):
            for knob, most in self._knobs.items():
                value = min(most or self.size_, effort * knobs[knob])
                self._kit.ParameterSpace().set_index_parameter(self.index_, knob, value)
            scores[rows], found[rows] = self.index_.search(entered[rows], wide)
            enough = ((found[rows] >= 0) & (found[rows] != banned[rows, None])).sum(axis=1) >= k
            if all(effort * knobs[knob] >= (most or self.size_) for knob, most in self._knobs.items()):
                break
            rows, effort = rows[~enough], 4 * effort
        return scores, found

    def _exhaustive(self, x: Tensor, k: int, banned: np.ndarray) -> tuple[Tensor, Tensor]:
        """Neighbours (q, k) of queries (q, d) among all items, or their decoded forms if the gallery was not kept."""
        if self.gallery_ is not None:
            return exact(x, self.gallery_.to(x.device), k, space=self._scorer, exclude=banned)
        if "nprobe" in self._knobs:
            self._kit.extract_index_ivf(self.index_).make_direct_map()
        decoded = torch.as_tensor(self.index_.reconstruct_n(0, self.size_)).to(x.device)  # a tensor after torch_utils
        entered = torch.from_numpy(self.coordinates_.enter(x)).to(x.device)
        by_product = self.coordinates_.by_product
        space: Scorer = InnerProduct() if by_product else Euclidean()
        distances, indices = exact(entered, decoded, k, space=space, exclude=banned)
        scores = (-distances if by_product else distances.square()).cpu().numpy()
        return torch.from_numpy(self.coordinates_.distances(scores)).float().to(x.device), indices


def _available(size: int, hidden: np.ndarray | None) -> int:
    """How many of `size` items every query can find."""
    return max(0, size - int(hidden is not None and bool((hidden >= 0).any())))
