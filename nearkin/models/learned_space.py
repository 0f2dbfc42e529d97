"""A learned similarity as a space, so that whatever compares embeddings can compare them by it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.models.similarity import PairSimilarity, SimilaritySides
from nearkin.spaces import Space


class LearnedSpace:
    """Points of another space, compared by a learned similarity: the distance is `-S(y, x)`, x the query.

    It is no distance in the mathematical sense: it may be negative, differ between the two orders of a pair, and a
    point need not be nearest to itself. Lower is nearer, and that is all that a search needs. Nothing is dropped out.

    Args:
        base: where the points live: what projects embeddings, and what their mean is.
        network: what compares them, as it is at the moment of each call.
    """

    name: ClassVar[str] = "learned"
    similarity: ClassVar[bool] = True

    def __init__(self, base: Space, network: PairSimilarity) -> None:
        self.base = base
        self.network = network

    def __repr__(self) -> str:
        return f"LearnedSpace({self.base!r}, similarity {id(self.network):x})"

    def project(self, f: Tensor) -> Tensor:
        """Raw embeddings (..., d) to points of the base space (..., d)."""
        return self.base.project(f)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative similarities (..., n, m) of queries (..., n, d) to enrolled points (..., m, d)."""
        if x.dtype in (torch.float16, torch.bfloat16) or y.dtype in (torch.float16, torch.bfloat16):
            x, y = x.float(), y.float()
        if x.requires_grad or y.requires_grad:
            return -self.network.table(x, y, at_rest=True)
        with torch.no_grad():  # the network's weights learn by its loss, and a graph would hold every pair
            return -self.network.table(x, y, at_rest=True)

    def mean(self, xs: Tensor) -> Tensor:
        """The mean (..., d) of points (..., n, d) of the base space."""
        return self.base.mean(xs)

    def sides(self, dtype: torch.dtype = torch.float32) -> SimilaritySides:
        """What each side of a pair adds, for searches: see `nearkin.search.scorers.Factorised`."""
        return self.network.taken_apart(dtype)

    def to_dict(self) -> dict[str, Any]:
        """The name and the base; the network is part of the model, with which alone the space can be built again."""
        return {"name": self.name, "base": self.base.to_dict()}
