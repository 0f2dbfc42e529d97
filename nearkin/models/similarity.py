"""A learned similarity of two embeddings: its network, its class prototypes, its space, and what its loss teaches."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import DataError, ModelError, suggestion
from nearkin.models.similarity_sides import (
    HELD_ENTRIES,
    ConcatenatedSides,
    DifferenceSides,
    FusedSides,
    LayeredSides,
    PairScore,
    SimilaritySides,
    fused,
)
from nearkin.search.scorers import Sides, slices
from nearkin.spaces import Space

Symmetric = Literal["max", "mean"]
Form = Literal["concatenation", "difference"]

_SYMMETRIC = ("max", "mean")
_FORMS = ("concatenation", "difference")
_MOST_LAYERS = 8
_SIDE_ENTRIES = 2**22  # of the sides that a table holds


class PairSimilarity(nn.Module):
    """How likely two embeddings are of one class, as a logit: `a` is a prototype or an enrolled item, `b` the query.

    concatenation: `S(a, b) = v . dropout(LeakyReLU(W [a; b] + w)) + c`, the paper's. The first layer is a sum,
    `W [a; b] = Wa a + Wb b`, so what an embedding adds is computed once for all its pairs. And LeakyReLU of a sum is a
    line plus a maximum, `s x + y + (1 - s) max(x, -y)`, so without dropout a pair costs one maximum and one product for
    each hidden unit.

    difference: `S(a, b) = v . dropout(|g(a) - g(b)|) + u . dropout(g(a) * g(b)) + c`, with one layer `g` for both, the
    same in either order. It starts as a similarity does: v below zero, u above.

    Reference: *Learning semantic similarities for prototypical classifiers* (submitted to ICLR 2021), section 3.

    Args:
        dimension: size of an embedding.
        hidden: units of a hidden layer.
        slope: of LeakyReLU below zero, from 0 to 1.
        dropout: share of the hidden units that a training step leaves out.
        symmetric: "max" or "mean" of `S(a, b)` and `S(b, a)`; None: the first as it is.
        form: "concatenation" or "difference".
        depth: hidden layers. Further ones of a concatenation take each pair, which is slow; those of a difference take
            each embedding, and cost pairs nothing.
    """

    def __init__(
        self,
        dimension: int,
        hidden: int = 512,
        slope: float = 0.1,
        dropout: float = 0.25,
        symmetric: Symmetric | None = None,
        form: Form = "concatenation",
        depth: int = 1,
    ) -> None:
        super().__init__()
        check_similarity_options(form, symmetric, depth)
        if not 0.0 <= slope <= 1.0 or not 0.0 <= dropout < 1.0:
            raise ModelError(
                f"A similarity takes a slope from 0 to 1 and a dropout from 0 to below 1, not {slope:g} and "
                f"{dropout:g}."
            )
        self.dimension = dimension
        self.hidden = hidden
        self.slope = slope
        self.symmetric = symmetric
        self.form = form
        self.depth = depth
        different = form == "difference"
        self.first = nn.Linear(dimension if different else 2 * dimension, hidden)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(2 * hidden if different else hidden, 1)
        self.deeper = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 1))
        if different:
            with torch.no_grad():
                self.second.weight.abs_()[:, :hidden].neg_()

    def to_dict(self) -> dict[str, Any]:
        """The arguments, so that `PairSimilarity(dimension, **similarity.to_dict())` builds it again."""
        shape: dict[str, Any] = {"hidden": self.hidden, "slope": self.slope}
        shape |= {"dropout": self.dropout.p, "symmetric": self.symmetric}
        # Fingerprints of models that were saved before there was a choice are without it.
        later = {"form": (self.form, "concatenation"), "depth": (self.depth, 1)}
        return shape | {name: value for name, (value, usual) in later.items() if value != usual}

    def layers(self, dtype: torch.dtype) -> tuple[list[nn.Module], nn.Linear]:
        """Copies in a precision of what `g` does before its last linear layer, and of that; of a difference alone."""
        layers: list[nn.Module] = []
        for layer in (self.first, *self.deeper):
            assert isinstance(layer, nn.Linear)
            twin = copy.deepcopy(layer).requires_grad_(False).to(dtype)
            layers += [twin, nn.LeakyReLU(self.slope)]
        return layers[:-2], twin

    def forward(self, enrolled: Tensor, queries: Tensor) -> Tensor:
        """Similarities (...) of pairs: enrolled (..., d) with queries (..., d), one to one."""
        if self.form == "difference":
            return self._of_values(self._values(enrolled), self._values(queries), self.dropout.p)

        def one_way(left: Tensor, right: Tensor) -> Tensor:
            return self._of_hidden(self.first(torch.cat([left, right], dim=-1)), self.dropout.p)

        scores = one_way(enrolled, queries)
        return scores if self.symmetric is None else self._both(scores, one_way(queries, enrolled))

    def table(self, queries: Tensor, enrolled: Tensor, *, at_rest: bool = False) -> Tensor:
        """Similarities (..., q, n) of queries (..., q, d) to enrolled items (..., n, d), each with each.

        Where nothing is learned, dropped out or differentiated, no pair is held in memory.

        Args:
            queries: what is asked about.
            enrolled: what it is compared with.
            at_rest: drop nothing out, even in training mode.
        """
        drops = self.training and not at_rest and self.dropout.p > 0
        learning = torch.is_grad_enabled() and (
            queries.requires_grad or enrolled.requires_grad or self.first.weight.requires_grad
        )
        if learning or drops:
            return self._held_table(queries, enrolled, self.dropout.p if drops else 0.0)
        return self._table_of_sides(queries, enrolled)

    def taken_apart(self, dtype: torch.dtype = torch.float32, wide: torch.dtype = torch.float64) -> SimilaritySides:
        """What each side adds, for many pairs of few embeddings; a copy of the weights as they are, without dropout.

        Args:
            dtype: of the computation.
            wide: of the product that gives the sides, before they are rounded.
        """
        if self.form == "difference":
            return DifferenceSides(self, dtype, wide)
        return (ConcatenatedSides if self.depth == 1 else LayeredSides)(self, dtype, wide)

    def _held_table(self, queries: Tensor, enrolled: Tensor, dropout: float) -> Tensor:
        """The table with the hidden values of all pairs of some queries held at a time."""
        different = self.form == "difference"
        step = max(1, HELD_ENTRIES // max(1, math.prod(enrolled.shape[:-1]) * self.hidden * (2 if different else 1)))
        strips = []
        if different:
            items = self._values(enrolled).unsqueeze(-3)
            for some in self._values(queries).split(step, dim=-2):
                strips.append(self._of_values(items, some.unsqueeze(-2), dropout))
            return torch.cat(strips, dim=-2) if len(strips) != 1 else strips[0]
        weight, bias = self.first.weight.to(queries.dtype), self.first.bias.to(queries.dtype)
        of_enrolled, of_queries = weight[:, : self.dimension], weight[:, self.dimension :]

        def one_way(left: Tensor, right: Tensor) -> Tensor:  # (..., q, h) and (..., n, h)
            return self._of_hidden(left.unsqueeze(-2) + right.unsqueeze(-3), dropout)

        for some in queries.split(step, dim=-2):
            scores = one_way(some @ of_queries.T, enrolled @ of_enrolled.T + bias)
            if self.symmetric is not None:
                scores = self._both(scores, one_way(some @ of_enrolled.T + bias, enrolled @ of_queries.T))
            strips.append(scores)
        return torch.cat(strips, dim=-2) if len(strips) != 1 else strips[0]

    def _of_hidden(self, hidden: Tensor, dropout: float) -> Tensor:
        """Similarities (...) of what the first layer of a concatenation gives (..., h)."""
        values = hidden
        for layer in (*self.deeper, self.second):
            values = _linear(layer, self._kept(functional.leaky_relu(values, self.slope), dropout))
        return values.squeeze(-1)

    def _values(self, points: Tensor) -> Tensor:
        """g (..., h) of points (..., d)."""
        values = _linear(self.first, points)
        for layer in self.deeper:
            values = _linear(layer, functional.leaky_relu(values, self.slope))
        return values

    def _of_values(self, x: Tensor, y: Tensor, dropout: float) -> Tensor:
        """Similarities (...) of pairs by their g, (..., h) each."""
        apart, together = self.second.weight.to(x.dtype).split(self.hidden, dim=1)
        scores = functional.linear(self._kept((x - y).abs(), dropout), apart, self.second.bias.to(x.dtype))
        return (scores + functional.linear(self._kept(x * y, dropout), together)).squeeze(-1)

    def _kept(self, hidden: Tensor, dropout: float) -> Tensor:
        return functional.dropout(hidden, dropout) if dropout and self.training else hidden

    @torch.no_grad()
    def _table_of_sides(self, queries: Tensor, enrolled: Tensor) -> Tensor:
        """The table by sides, of which some are held at a time."""
        shape = torch.broadcast_shapes(queries.shape[:-2], enrolled.shape[:-2])
        shape = (*shape, queries.shape[-2], enrolled.shape[-2])
        if math.prod(enrolled.shape[:-2]) == 1:  # the same items for all: one large table
            x, y = queries.reshape(1, -1, self.dimension), enrolled.reshape(1, -1, self.dimension)
        else:
            batch = math.prod(shape[:-2])
            x = queries.expand(*shape[:-2], -1, -1).reshape(batch, shape[-2], self.dimension)
            y = enrolled.expand(*shape[:-2], -1, -1).reshape(batch, shape[-1], self.dimension)
        batch, rows, items = len(x), x.shape[1], y.shape[1]
        # Where sides are hardly shared between pairs they are most of the work, and nothing adds up their rounding.
        lone = rows * items <= rows + items
        sides = self.taken_apart(queries.dtype, queries.dtype if lone else torch.float64)
        table = torch.empty(batch, rows, items, dtype=queries.dtype, device=queries.device)
        most = max(1, _SIDE_ENTRIES // sides.width)
        for some in slices(batch, max(1, most // max(1, rows + items))):
            for strip in slices(rows, most):
                left = sides.of_queries(x[some, strip])
                for part in slices(items, most):
                    sides.scores(left, sides.of_enrolled(y[some, part]), table[some, strip, part])
        return table.view(shape)

    def _both(self, there: Tensor, back: Tensor) -> Tensor:
        return torch.maximum(there, back) if self.symmetric == "max" else (there + back) / 2


def _linear(layer: nn.Module, values: Tensor) -> Tensor:
    """What a linear layer gives (..., o) of values (..., i), in their precision."""
    assert isinstance(layer, nn.Linear)
    return functional.linear(values, layer.weight.to(values.dtype), layer.bias.to(values.dtype))


def check_similarity_options(form: str, symmetric: str | None, depth: int) -> None:
    """Refuse a form, a symmetry or a depth that there is not."""
    if form not in _FORMS:
        raise ModelError(f"A similarity has no form '{form}'.{suggestion(form, _FORMS)}")
    if symmetric is not None and symmetric not in _SYMMETRIC:
        raise ModelError(f"A similarity cannot be symmetric by '{symmetric}'.{suggestion(symmetric, _SYMMETRIC)}")
    if symmetric is not None and form == "difference":
        raise ModelError("A similarity of the form 'difference' is symmetric already: set symmetric to null.")
    if not 1 <= depth <= _MOST_LAYERS:
        raise ModelError(f"A similarity has a depth of 1 to {_MOST_LAYERS} hidden layers, not {depth}.")


class PrototypeBank(nn.Module):
    """A point for each class, moved towards the class's mean in every batch it appears in, never by a gradient.

    `C <- momentum C + (1 - momentum) mean` of the batch's embeddings of the class; classes that are not in the batch
    stay where they are. The points are saved with the model. What items are compared with is `placed`.

    Reference: *Learning semantic similarities for prototypical classifiers* (submitted to ICLR 2021), section 3.1.

    Args:
        classes: how many.
        dimension: size of an embedding.
        space: where the embeddings are; None: prototypes are the moving averages as they are.
    """

    points: Tensor

    def __init__(self, classes: int, dimension: int, space: Space | None = None) -> None:
        super().__init__()
        self.register_buffer("points", torch.randn(classes, dimension))
        self.space = space

    def __len__(self) -> int:
        return len(self.points)

    def placed(self) -> Tensor:
        """The prototypes (C, d) as the space has its means: on the sphere they are on it, as those of few shots are."""
        return self.points if self.space is None else self.space.mean(self.points.unsqueeze(-2))

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Tensor, momentum: float = 0.9) -> None:
        """Update with a batch.

        Args:
            embeddings: (B, d).
            labels: (B,) int64 in 0 ... classes - 1.
            momentum: share of the old point that is kept.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.points.shape[1]:
            raise DataError(
                f"The prototypes have {self.points.shape[1]} dimensions and were given embeddings of shape "
                f"{tuple(embeddings.shape)}: give those of the model they belong to."
            )
        sums = torch.zeros_like(self.points).index_add_(0, labels, embeddings.to(self.points.dtype))
        counts = torch.bincount(labels, minlength=len(self.points)).to(sums)
        seen = counts > 0
        means = sums[seen] / counts[seen, None]
        self.points[seen] = momentum * self.points[seen] + (1.0 - momentum) * means


@dataclass(frozen=True, eq=False)
class SimilarityParts:
    """Parts of a model that a loss is given.

    Attributes:
        network: the similarity of two embeddings.
        prototypes: what stands for each class.
        dense: the output layer of a standard classifier; None: there is none.
    """

    network: PairSimilarity
    prototypes: PrototypeBank
    dense: nn.Linear | None

    def class_scores(self, points: Tensor, by: Literal["sim", "dol"] = "sim", *, at_rest: bool = False) -> Tensor:
        """Scores (B, C) of embeddings (B, d): similarities to the prototypes, or what the dense layer gives.

        Args:
            points: points of the space.
            by: "sim" or "dol".
            at_rest: drop nothing out, even in training mode.
        """
        if by == "dol" and self.dense is not None:
            return self.dense(points)
        return self.network.table(points, self.prototypes.placed().to(points.dtype), at_rest=at_rest)


@dataclass(eq=False, repr=False)
class LearnedSpace:
    """Points of another space, compared by a learned similarity: the distance is `-S(y, x)`, x the query.

    It is no distance in the mathematical sense: it may be negative, differ between the two orders of a pair, and a
    point need not be nearest to itself. Lower is nearer, and that is all that a search needs. Nothing is dropped out.

    Args:
        base: where the points live: what projects embeddings, and what their mean is.
        network: what compares them, as it is at the moment of each call.
        by: the score of a pair: "sim" is S; "cosine+sim" and "raw-sum" have the cosine with it.
    """

    name: ClassVar[str] = "learned"
    similarity: ClassVar[bool] = True

    base: Space
    network: PairSimilarity
    by: PairScore = "sim"

    def __repr__(self) -> str:
        return f"LearnedSpace({self.base!r}, similarity {id(self.network):x}, {self.by})"

    def project(self, f: Tensor) -> Tensor:
        """Raw embeddings (..., d) to points of the base space (..., d)."""
        return self.base.project(f)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative similarities (..., n, m) of queries (..., n, d) to enrolled points (..., m, d)."""
        if x.dtype in (torch.float16, torch.bfloat16) or y.dtype in (torch.float16, torch.bfloat16):
            x, y = x.float(), y.float()
        # The network's weights learn by its loss alone, and a graph would hold every pair.
        with torch.set_grad_enabled(torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
            similarities = self.network.table(x, y, at_rest=True)
            if self.by == "sim":
                return -similarities
            cosines = functional.normalize(x, dim=-1) @ functional.normalize(y, dim=-1).mT
            return -fused(similarities, cosines, self.by)

    def mean(self, xs: Tensor) -> Tensor:
        """The mean (..., d) of points (..., n, d) of the base space."""
        return self.base.mean(xs)

    def sides(self, dtype: torch.dtype = torch.float32) -> Sides:
        """What each side of a pair adds, for searches: see `nearkin.search.scorers.Factorised`."""
        apart = self.network.taken_apart(dtype)
        return apart if self.by == "sim" else FusedSides(apart, self.by, self.network.dimension, dtype)

    def to_dict(self) -> dict[str, Any]:
        """The name and the base; the network is part of the model, with which alone the space can be built again."""
        told = {"name": self.name, "base": self.base.to_dict()}
        return told if self.by == "sim" else told | {"by": self.by}
