"""Approximate nearest neighbours by faiss, for galleries too large to be compared in full.

faiss proposes candidates; their distances are computed again from the vectors, so quantisation costs recall but never
shows in a distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError, require, suggestion
from nearkin.search.ann.coordinates import Coordinates
from nearkin.search.ann.factory import check_size, compresses, training_size
from nearkin.search.ann.faiss_index import build, knobs_of, reason, reproducible
from nearkin.search.candidates import candidate_distances
from nearkin.search.exact import exact
from nearkin.search.rerank import Reranker, as_reranker
from nearkin.search.scorers import InnerProduct, Scorer, as_scorer
from nearkin.search.vectors import as_exclude, as_pair, as_vectors, check_k
from nearkin.spaces import Euclidean, Sphere

_ROWS = 2**14  # queries in work at once
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
            fitted[:] = [
                (points, FaissIndex(factory, space, seed=seed, search_parameters=search_parameters).fit(points))
            ]
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
        _check_parameters(self.factory, self.search_parameters or {}, [*self._knobs, "candidates"])
        if not index.is_trained:
            self._train(index, coordinates, points)
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

    def _train(self, index: Any, coordinates: Coordinates, points: Tensor) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        sample = torch.randperm(len(points), generator=generator)[: training_size(self.factory, len(points))]
        try:
            index.train(coordinates.enter(points[sample.to(points.device)]))
        except RuntimeError as error:
            raise DataError(f"faiss cannot train '{self.factory}' on {len(points)} items: {reason(error)}") from error

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
        wide = given.get("candidates", 4 * k + 16 if compresses(self.factory) else k + k // 4 + 16)
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


def _check_parameters(factory: str, given: Mapping[str, int], known: list[str]) -> None:
    for name, value in given.items():
        if name not in known:
            raise DataError(f"'{factory}' has no search parameter '{name}'.{suggestion(name, known)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"The search parameter {name} must be a whole number from 1 on, not {value!r}.")


def _available(size: int, hidden: np.ndarray | None) -> int:
    """How many of `size` items every query can find."""
    return max(0, size - int(hidden is not None and bool((hidden >= 0).any())))
