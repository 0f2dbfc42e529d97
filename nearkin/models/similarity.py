"""A learned similarity of two embeddings: its network, its class prototypes, its space, and what its loss teaches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import DataError, ModelError, suggestion
from nearkin.search.scorers import slices
from nearkin.search.workers import Queue, run_workers
from nearkin.spaces import Space

Symmetric = Literal["max", "mean"]

_SYMMETRIC = ("max", "mean")
_HELD_ENTRIES = 2**24  # hidden values of pairs that are held at once where the layers cannot be taken apart
_BLOCK_ENTRIES = {"cpu": 2**19}  # hidden values of a block of pairs, near a core's cache; elsewhere as many as are held
_BLOCK_ITEMS = 64
_SIDE_ENTRIES = 2**22  # of the sides that a table holds
_WIDE_ENTRIES = 2**18  # of sides in double precision, before they are rounded


class PairSimilarity(nn.Module):
    """`S(a, b) = v . dropout(LeakyReLU(W [a; b] + w)) + c`: how likely two embeddings are of one class, as a logit.

    `a` is a prototype or an enrolled item and `b` the query. The first layer is a sum, `W [a; b] = Wa a + Wb b`, so
    what an embedding adds is computed once for all its pairs. And LeakyReLU of a sum is a line plus a maximum,
    `s x + y + (1 - s) max(x, -y)`, so without dropout a pair costs one maximum and one product for each hidden unit.

    Reference: *Learning semantic similarities for prototypical classifiers* (submitted to ICLR 2021), section 3.

    Args:
        dimension: size of an embedding.
        hidden: units of the hidden layer.
        slope: of LeakyReLU below zero, from 0 to 1.
        dropout: share of the hidden units that a training step leaves out.
        symmetric: "max" or "mean" of `S(a, b)` and `S(b, a)`; None: the first as it is.
    """

    def __init__(
        self,
        dimension: int,
        hidden: int = 512,
        slope: float = 0.1,
        dropout: float = 0.25,
        symmetric: Symmetric | None = None,
    ) -> None:
        super().__init__()
        if symmetric is not None and symmetric not in _SYMMETRIC:
            raise ModelError(f"A similarity cannot be symmetric by '{symmetric}'.{suggestion(symmetric, _SYMMETRIC)}")
        if not 0.0 <= slope <= 1.0 or not 0.0 <= dropout < 1.0:
            raise ModelError(
                f"A similarity takes a slope from 0 to 1 and a dropout from 0 to below 1, not {slope:g} and "
                f"{dropout:g}."
            )
        self.dimension = dimension
        self.hidden = hidden
        self.slope = slope
        self.symmetric = symmetric
        self.first = nn.Linear(2 * dimension, hidden)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(hidden, 1)

    def to_dict(self) -> dict[str, Any]:
        """The arguments, so that `PairSimilarity(dimension, **similarity.to_dict())` builds it again."""
        shape: dict[str, Any] = {"hidden": self.hidden, "slope": self.slope}
        return shape | {"dropout": self.dropout.p, "symmetric": self.symmetric}

    def forward(self, enrolled: Tensor, queries: Tensor) -> Tensor:
        """Similarities (...) of pairs: enrolled (..., d) with queries (..., d), one to one."""

        def one_way(left: Tensor, right: Tensor) -> Tensor:
            hidden = functional.leaky_relu(self.first(torch.cat([left, right], dim=-1)), self.slope)
            return self.second(self.dropout(hidden)).squeeze(-1)

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

    def taken_apart(self, dtype: torch.dtype = torch.float32) -> SimilaritySides:
        """What each side adds, for many pairs of few embeddings; a copy of the weights as they are, without dropout.

        Args:
            dtype: of the computation.
        """
        return SimilaritySides(self, dtype)

    def _held_table(self, queries: Tensor, enrolled: Tensor, dropout: float) -> Tensor:
        """The table with the hidden values of all pairs of some queries held at a time."""
        weight, bias = self.first.weight.to(queries.dtype), self.first.bias.to(queries.dtype)
        of_enrolled, of_queries = weight[:, : self.dimension], weight[:, self.dimension :]

        def one_way(left: Tensor, right: Tensor) -> Tensor:  # (..., q, h) and (..., n, h)
            hidden = functional.leaky_relu(left.unsqueeze(-2) + right.unsqueeze(-3), self.slope)
            kept = functional.dropout(hidden, dropout) if dropout else hidden
            outer, constant = self.second.weight.to(hidden.dtype), self.second.bias.to(hidden.dtype)
            return functional.linear(kept, outer, constant).squeeze(-1)

        step = max(1, _HELD_ENTRIES // max(1, math.prod(enrolled.shape[:-1]) * self.hidden))
        strips = []
        for some in queries.split(step, dim=-2):
            scores = one_way(some @ of_queries.T, enrolled @ of_enrolled.T + bias)
            if self.symmetric is not None:
                scores = self._both(scores, one_way(some @ of_enrolled.T + bias, enrolled @ of_queries.T))
            strips.append(scores)
        return torch.cat(strips, dim=-2) if len(strips) != 1 else strips[0]

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
        sides = SimilaritySides(self, queries.dtype, queries.dtype if lone else torch.float64)
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


class SimilaritySides:
    """A similarity as a sum of what each side adds: sides are computed once, and a pair costs little more.

    A side has `width` columns: the hidden values, those of enrolled items negative, and last the side's own number;
    twice that where the similarity is symmetric, once for each of its roles. With `x` of the query and `y` of the item,
    `S = (1 - s) v . max(x, y)` plus both numbers.

    Args:
        similarity: whose weights to copy.
        dtype: of all that is computed.
        wide: of the product that gives the sides, before they are rounded.
    """

    def __init__(
        self, similarity: PairSimilarity, dtype: torch.dtype = torch.float32, wide: torch.dtype = torch.float64
    ) -> None:
        outer = similarity.second.weight.detach().double()[0]
        bias, constant = similarity.first.bias.detach().double(), similarity.second.bias.detach().double()
        of_enrolled, of_queries = similarity.first.weight.detach().double().split(similarity.dimension, dim=1)
        self._symmetric = similarity.symmetric
        self._dtype, self._wide = dtype, wide
        self._half = len(outer) + 1
        self._bend = ((1 - similarity.slope) * outer).to(dtype)
        line = similarity.slope * outer
        enrolled = torch.cat([-of_enrolled, (outer @ of_enrolled)[None]]), torch.cat([-bias, outer @ bias + constant])
        queries = torch.cat([of_queries, (line @ of_queries)[None]]), torch.zeros_like(enrolled[1])
        ways = {"enrolled": [enrolled], "queries": [queries]}
        if self._symmetric is not None:
            ways = {"enrolled": [enrolled, queries], "queries": [queries, enrolled]}
        self._layers = {
            side: (torch.cat([one for one, _ in layers]).T.to(wide), torch.cat([one for _, one in layers]).to(wide))
            for side, layers in ways.items()
        }

    @property
    def width(self) -> int:
        """Columns of a side."""
        return (1 if self._symmetric is None else 2) * self._half

    def of_enrolled(self, points: Tensor) -> Tensor:
        """Sides (..., width) of enrolled items (..., d)."""
        return self._side(points, *self._layers["enrolled"])

    def of_queries(self, points: Tensor) -> Tensor:
        """Sides (..., width) of queries (..., d)."""
        return self._side(points, *self._layers["queries"])

    @torch.no_grad()
    def scores(self, queries: Tensor, enrolled: Tensor, out: Tensor | None = None) -> Tensor:
        """Similarities (..., q, n) of the sides of queries (..., q, width) and of enrolled items (..., n, width).

        Every thread of torch takes blocks of pairs, whose hidden values stay in its core's cache.
        """
        lead = torch.broadcast_shapes(queries.shape[:-2], enrolled.shape[:-2])
        rows, items = queries.shape[-2], enrolled.shape[-2]
        if out is None:
            out = torch.empty(*lead, rows, items, dtype=self._dtype, device=queries.device)
        batch = math.prod(lead)
        left = queries.expand(*lead, -1, -1).reshape(batch, rows, self.width)
        right = enrolled.expand(*lead, -1, -1).reshape(batch, items, self.width)
        flat = out if len(lead) == 1 else out.view(batch, rows, items) if lead else out.unsqueeze(0)
        entries = _BLOCK_ENTRIES.get(queries.device.type, _HELD_ENTRIES)
        blocks = list(_blocks(len(left), rows, items, max(1, entries // self._half)))
        queue = Queue(blocks)

        def work(_: int) -> None:
            room: Tensor | None = None
            for some, strip, part in queue:
                x, y = left[some, strip].unsqueeze(2), right[some, part].unsqueeze(1)
                shape = (len(x), x.shape[1], y.shape[2], self._half - 1)
                if room is None or math.prod(shape) > len(room):
                    room = torch.empty(math.prod(shape), dtype=self._dtype, device=x.device)
                flat[some, strip, part] = self._both_ways(x, y, room[: math.prod(shape)].view(shape))

        if len(blocks) > 1:
            run_workers(work, queries.device)
        else:
            work(0)
        return out

    def sizes(self, sides: Tensor) -> Tensor:
        """Upper bounds (...) of the terms that a side (..., width) adds to any score, for what rounding may do."""
        ways = sides.unflatten(-1, (-1, self._half))
        bend = self._bend.abs().to(sides.device)
        return (ways[..., :-1].abs() @ bend + ways[..., -1].abs()).amax(dim=-1)

    @torch.no_grad()
    def _side(self, points: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
        # Rounded once: in what all pairs of a point share, rounding would add up over the hidden units.
        flat = points.reshape(-1, points.shape[-1])
        matrix, offset = matrix.to(points.device), offset.to(points.device)
        sides = torch.empty(len(flat), self.width, dtype=self._dtype, device=points.device)
        for some in slices(len(flat), max(1, _WIDE_ENTRIES // self.width)):
            sides[some] = torch.addmm(offset, flat[some].to(self._wide), matrix)
        return sides.view(*points.shape[:-1], self.width)

    def _both_ways(self, x: Tensor, y: Tensor, room: Tensor) -> Tensor:
        """Similarities (b, q, n) of sides (b, q, 1, width) and (b, 1, n, width); the room (b, q, n, h) is filled."""
        there = self._one_way(x[..., : self._half], y[..., : self._half], room)
        if self._symmetric is None:
            return there
        back = self._one_way(x[..., self._half :], y[..., self._half :], room)
        return torch.maximum(there, back) if self._symmetric == "max" else there.add_(back).div_(2)

    def _one_way(self, x: Tensor, y: Tensor, room: Tensor) -> Tensor:
        torch.maximum(x[..., :-1], y[..., :-1], out=room)
        bent = torch.mv(room.view(-1, room.shape[-1]), self._bend.to(x.device))
        return bent.view(room.shape[:-1]).add_(x[..., -1] + y[..., -1])


def _blocks(batch: int, rows: int, items: int, pairs: int) -> Iterator[tuple[slice, slice, slice]]:
    """Blocks of about so many pairs: which of the tables, rows and columns."""
    wide = min(items, _BLOCK_ITEMS)
    tall = min(rows, max(1, pairs // max(1, wide)))
    wide = min(items, max(wide, pairs // max(1, tall)))
    whole = tall == rows and wide == items
    for some in slices(batch, max(1, pairs // max(1, tall * wide)) if whole else 1):
        for part in slices(items, max(1, wide)):
            for strip in slices(rows, max(1, tall)):
                yield some, strip, part


class PrototypeBank(nn.Module):
    """A point for each class, moved towards the class's mean in every batch it appears in, never by a gradient.

    `C <- momentum C + (1 - momentum) mean` of the batch's embeddings of the class; classes that are not in the batch
    stay where they are. The points are saved with the model.

    Reference: *Learning semantic similarities for prototypical classifiers* (submitted to ICLR 2021), section 3.1.

    Args:
        classes: how many.
        dimension: size of an embedding.
    """

    points: Tensor

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        self.register_buffer("points", torch.randn(classes, dimension))

    def __len__(self) -> int:
        return len(self.points)

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
        return self.network.table(points, self.prototypes.points.to(points.dtype), at_rest=at_rest)


@dataclass(eq=False, repr=False)
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

    base: Space
    network: PairSimilarity

    def __repr__(self) -> str:
        return f"LearnedSpace({self.base!r}, similarity {id(self.network):x})"

    def project(self, f: Tensor) -> Tensor:
        """Raw embeddings (..., d) to points of the base space (..., d)."""
        return self.base.project(f)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative similarities (..., n, m) of queries (..., n, d) to enrolled points (..., m, d)."""
        if x.dtype in (torch.float16, torch.bfloat16) or y.dtype in (torch.float16, torch.bfloat16):
            x, y = x.float(), y.float()
        # The network's weights learn by its loss alone, and a graph would hold every pair.
        with torch.set_grad_enabled(torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
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
