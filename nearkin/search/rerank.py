"""Re-ranking: a second look at the results of a search, by the neighbours of the neighbours.

A re-ranker is given the engine's own search as a function, so it works with every engine. Definitions:
docs/methods/re-ranking.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.errors import DataError
from nearkin.registry import Registry
from nearkin.search.reciprocal import Search, reciprocal_ranking
from nearkin.search.scorers import Cosine, InnerProduct, Scorer
from nearkin.spaces import Euclidean, LipschitzBall, Sphere

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
        _check_count("neighbours", self.neighbours)
        if not (_is_number(self.alpha) and 0 <= self.alpha < float("inf")):
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
        _check_count("k1", self.k1)
        _check_count("k2", self.k2)
        if self.k1 < self.k2:
            raise DataError(f"k-reciprocal re-ranking needs k1 >= k2, not k1={self.k1} and k2={self.k2}.")
        if not (_is_number(self.weight) and 0 <= self.weight <= 1):
            raise DataError(f"The weight of the original distance must be from 0 to 1, not {self.weight!r}.")

    @torch.no_grad()
    def rank(
        self, search: Search, queries: Tensor, gallery: Tensor, k: int, *, exclude: Tensor | None, space: Scorer
    ) -> tuple[Tensor, Tensor]:
        """As `Reranker.rank`."""
        if not len(queries):
            return search(queries, gallery, k, exclude)
        return reciprocal_ranking(
            search, queries, gallery, k, exclude=exclude, space=space, k1=self.k1, k2=self.k2, weight=self.weight
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"The parameter {name} of a re-ranker must be a whole number from 1 on, not {value!r}.")
