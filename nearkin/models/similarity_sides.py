"""A learned similarity taken apart: what each side of a pair adds is computed once, and pairs combine two sides.

Formulas: docs/methods/learned-similarity.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.search.scorers import slices
from nearkin.search.workers import Queue, run_workers

if TYPE_CHECKING:
    from nearkin.models.similarity import PairSimilarity

PairScore = Literal["sim", "cosine", "cosine+sim", "raw-sum"]
"""How a pair is scored: by S, by the cosine, by the mean of both as shares, or by their plain sum (the paper's)."""

Affine = tuple[Tensor, Tensor]
"""Matrix (d, width) and offset (width,)."""

HELD_ENTRIES = 2**24
"""Hidden values of pairs that are held at once where the layers cannot be taken apart."""

_BLOCK_ENTRIES = {"cpu": 2**19}  # hidden values of a block of pairs, near a core's cache; elsewhere as many as are held
_BLOCK_ITEMS = 64
_WIDE_ENTRIES = 2**18  # of sides in double precision, before they are rounded


def fused(similarities: Tensor, cosines: Tensor, by: PairScore) -> Tensor:
    """Scores (...) of pairs from their similarities S (...) and cosines (...)."""
    if by == "cosine+sim":
        return (similarities.sigmoid() + (1 + cosines) / 2) / 2
    return {"sim": similarities, "cosine": cosines, "raw-sum": similarities + cosines}[by]


class SimilaritySides(ABC):
    """A similarity by sides (..., width), computed once an item; see `nearkin.search.scorers.Sides`.

    Args:
        hidden: values of a pair that are looked at together.
        width: columns of a side.
        dtype: of all that is computed.
        wide: of the product that gives the sides, before they are rounded.
    """

    def __init__(self, hidden: int, width: int, dtype: torch.dtype, wide: torch.dtype) -> None:
        self.width = width
        self._hidden = hidden
        self._dtype, self._wide = dtype, wide

    @abstractmethod
    def of_enrolled(self, points: Tensor) -> Tensor:
        """Sides (..., width) of enrolled items (..., d)."""

    @abstractmethod
    def of_queries(self, points: Tensor) -> Tensor:
        """Sides (..., width) of queries (..., d)."""

    @abstractmethod
    def sizes(self, sides: Tensor) -> Tensor:
        """Upper bounds (...) of the terms that a side (..., width) adds to any score, for what rounding may do."""

    @abstractmethod
    def _pairs(self, x: Tensor, y: Tensor, room: Tensor) -> Tensor:
        """Similarities (b, q, n) of sides (b, q, width) and (b, n, width); the room (b, q, n, h) is overwritten."""

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
        entries = _BLOCK_ENTRIES.get(queries.device.type, HELD_ENTRIES)
        blocks = list(_blocks(len(left), rows, items, max(1, entries // (self._hidden + 1))))
        queue = Queue(blocks)

        def work(_: int) -> None:
            room: Tensor | None = None
            for some, strip, part in queue:
                x, y = left[some, strip], right[some, part]
                shape = (len(x), x.shape[1], y.shape[1], self._hidden)
                if room is None or math.prod(shape) > len(room):
                    room = torch.empty(math.prod(shape), dtype=self._dtype, device=x.device)
                flat[some, strip, part] = self._pairs(x, y, room[: math.prod(shape)].view(shape))

        if len(blocks) > 1:
            run_workers(work, queries.device)
        else:
            work(0)
        return out

    @torch.no_grad()
    def _through(self, points: Tensor, layer: Affine, before: nn.Module | None = None) -> Tensor:
        """Sides (..., width) of points (..., d), by layers before, in the wide precision, and an affine one."""
        # Rounded once: in what all pairs of a point share, rounding would add up over the hidden units.
        flat = points.reshape(-1, points.shape[-1])
        matrix, offset = (part.to(points.device) for part in layer)
        sides = torch.empty(len(flat), self.width, dtype=self._dtype, device=points.device)
        for some in slices(len(flat), max(1, _WIDE_ENTRIES // self.width)):
            wide = flat[some].to(self._wide)
            sides[some] = torch.addmm(offset, wide if before is None else before(wide), matrix)
        return sides.view(*points.shape[:-1], self.width)


class ConcatenatedSides(SimilaritySides):
    """Of `S(a, b) = v . LeakyReLU(W [a; b] + w) + c`: a pair costs one maximum and one product for each hidden unit.

    A side has the hidden values, those of enrolled items negative, and last a number of its own; twice that where the
    similarity is symmetric, once for each of its roles. With `x` of the query and `y` of the item,
    `S = (1 - s) v . max(x, y)` plus both numbers.

    Args:
        similarity: whose weights to copy.
        dtype: as in `SimilaritySides`.
        wide: as in `SimilaritySides`.
    """

    def __init__(self, similarity: PairSimilarity, dtype: torch.dtype, wide: torch.dtype) -> None:
        outer = similarity.second.weight.detach().double()[0]
        bias, constant = similarity.first.bias.detach().double(), similarity.second.bias.detach().double()
        of_enrolled, of_queries = similarity.first.weight.detach().double().split(similarity.dimension, dim=1)
        self._symmetric = similarity.symmetric
        self._half = len(outer) + 1
        super().__init__(len(outer), (1 if self._symmetric is None else 2) * self._half, dtype, wide)
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

    def of_enrolled(self, points: Tensor) -> Tensor:
        """Sides (..., width) of enrolled items (..., d)."""
        return self._through(points, self._layers["enrolled"])

    def of_queries(self, points: Tensor) -> Tensor:
        """Sides (..., width) of queries (..., d)."""
        return self._through(points, self._layers["queries"])

    def sizes(self, sides: Tensor) -> Tensor:
        """As `SimilaritySides.sizes`."""
        ways = sides.unflatten(-1, (-1, self._half))
        bend = self._bend.abs().to(sides.device)
        return (ways[..., :-1].abs() @ bend + ways[..., -1].abs()).amax(dim=-1)

    def _pairs(self, x: Tensor, y: Tensor, room: Tensor) -> Tensor:
        bend = self._bend.to(x.device)
        there = _sum_of_maxima(x[..., : self._half], y[..., : self._half], bend, room)
        if self._symmetric is None:
            return there
        back = _sum_of_maxima(x[..., self._half :], y[..., self._half :], bend, room)
        return torch.maximum(there, back) if self._symmetric == "max" else there.add_(back).div_(2)


class DifferenceSides(SimilaritySides):
    """Of `S(a, b) = v . |g(a) - g(b)| + u . (g(a) * g(b)) + c`: a pair costs a maximum and two products a hidden unit.

    A side has g of its point, and last a number of its own: as `|x - y| = 2 max(x, y) - x - y`, it is
    `c / 2 - v . g`. The second term is a matrix product.

    Args:
        similarity: whose weights to copy.
        dtype: as in `SimilaritySides`.
        wide: as in `SimilaritySides`.
    """

    def __init__(self, similarity: PairSimilarity, dtype: torch.dtype, wide: torch.dtype) -> None:
        outer = similarity.second.weight.detach().double()[0]
        apart, together = outer.split(similarity.hidden)
        half = similarity.second.bias.detach().double() / 2
        before, last = similarity.layers(wide)
        super().__init__(similarity.hidden, similarity.hidden + 1, dtype, wide)
        weight, bias = last.weight.detach().double(), last.bias.detach().double()
        own = -(apart @ weight), half - apart @ bias
        self._layer = torch.cat([weight, own[0][None]]).T.to(wide), torch.cat([bias, own[1]]).to(wide)
        self._before = nn.Sequential(*before) if before else None
        self._apart, self._together = (2 * apart).to(dtype), together.to(dtype)

    def of_enrolled(self, points: Tensor) -> Tensor:
        """Sides (..., width) of points (..., d), the same for both roles."""
        return self._through(points, self._layer, self._before)

    of_queries = of_enrolled

    def sizes(self, sides: Tensor) -> Tensor:
        """As `SimilaritySides.sizes`; a product of two is at most the mean of their squares."""
        values, together = sides[..., :-1], self._together.abs().to(sides.device) / 2
        return values.abs() @ self._apart.abs().to(sides.device) + values.square() @ together + sides[..., -1].abs()

    def _pairs(self, x: Tensor, y: Tensor, room: Tensor) -> Tensor:
        scores = _sum_of_maxima(x, y, self._apart.to(x.device), room)
        return scores.add_((x[..., :-1] * self._together.to(x.device)) @ y[..., :-1].mT)


class LayeredSides(SimilaritySides):
    """Of a network on `[a; b]` with several hidden layers: the first is a sum of sides, the others take each pair.

    Args:
        similarity: whose weights to copy.
        dtype: as in `SimilaritySides`.
        wide: as in `SimilaritySides`.
    """

    def __init__(self, similarity: PairSimilarity, dtype: torch.dtype, wide: torch.dtype) -> None:
        self._symmetric = similarity.symmetric
        ways = 1 if self._symmetric is None else 2
        super().__init__(similarity.hidden, ways * similarity.hidden, dtype, wide)
        weight, bias = similarity.first.weight.detach().to(wide), similarity.first.bias.detach().to(wide)
        of_enrolled, of_queries = weight.T.split(similarity.dimension)
        enrolled, queries = (of_enrolled, bias), (of_queries, torch.zeros_like(bias))
        both = [enrolled, queries], [queries, enrolled]
        self._layers: list[Affine] = [
            (torch.cat([one for one, _ in side[:ways]], dim=-1), torch.cat([one for _, one in side[:ways]]))
            for side in both
        ]
        self._slope = similarity.slope
        later = [*similarity.deeper, similarity.second]
        self._later = [(layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)) for layer in later]

    def of_enrolled(self, points: Tensor) -> Tensor:
        """Sides (..., width) of enrolled items (..., d)."""
        return self._through(points, self._layers[0])

    def of_queries(self, points: Tensor) -> Tensor:
        """Sides (..., width) of queries (..., d)."""
        return self._through(points, self._layers[1])

    def sizes(self, sides: Tensor) -> Tensor:
        """As `SimilaritySides.sizes`, of all layers together: no layer makes a value larger than its weights do."""
        values = sides.abs().unflatten(-1, (-1, self._hidden))
        for weight, bias in self._later:
            values = values @ weight.abs().T.to(sides.device) + bias.abs().to(sides.device)
        return len(self._later) * values[..., 0].amax(dim=-1)

    def _pairs(self, x: Tensor, y: Tensor, room: Tensor) -> Tensor:
        there = self._one_way(x[..., : self._hidden], y[..., : self._hidden], room)
        if self._symmetric is None:
            return there
        back = self._one_way(x[..., self._hidden :], y[..., self._hidden :], room)
        return torch.maximum(there, back) if self._symmetric == "max" else there.add_(back).div_(2)

    def _one_way(self, x: Tensor, y: Tensor, room: Tensor) -> Tensor:
        values = torch.add(x.unsqueeze(2), y.unsqueeze(1), out=room)
        for weight, bias in self._later:
            values = functional.linear(
                functional.leaky_relu_(values, self._slope), weight.to(x.device), bias.to(x.device)
            )
        return values.squeeze(-1)


class FusedSides:
    """A similarity and the cosine as one score, by the sides of the first with the directions beside them.

    Args:
        sides: of the similarity.
        by: how both make a score.
        dimension: of an embedding.
        dtype: of all that is computed.
    """

    def __init__(self, sides: SimilaritySides, by: PairScore, dimension: int, dtype: torch.dtype) -> None:
        self.width = sides.width + dimension
        self._sides, self._by, self._dtype = sides, by, dtype

    def of_enrolled(self, points: Tensor) -> Tensor:
        """Sides (..., width) of enrolled items (..., d)."""
        return self._beside(self._sides.of_enrolled(points), points)

    def of_queries(self, points: Tensor) -> Tensor:
        """Sides (..., width) of queries (..., d)."""
        return self._beside(self._sides.of_queries(points), points)

    @torch.no_grad()
    def scores(self, queries: Tensor, enrolled: Tensor, out: Tensor | None = None) -> Tensor:
        """Scores (..., q, n) of sides (..., q, width) and (..., n, width)."""
        own = self._sides.width
        similarities = self._sides.scores(queries[..., :own], enrolled[..., :own])
        scores = fused(similarities, queries[..., own:] @ enrolled[..., own:].mT, self._by)
        return scores if out is None else out.copy_(scores)

    def sizes(self, sides: Tensor) -> Tensor:
        """As `SimilaritySides.sizes`; the sigmoid is nowhere steeper than 1/4."""
        of_similarity = self._sides.sizes(sides[..., : self._sides.width])
        return 1 + (of_similarity / 8 if self._by == "cosine+sim" else of_similarity)

    def _beside(self, sides: Tensor, points: Tensor) -> Tensor:
        return torch.cat([sides, functional.normalize(points.double(), dim=-1).to(self._dtype)], dim=-1)


def _sum_of_maxima(x: Tensor, y: Tensor, weights: Tensor, room: Tensor) -> Tensor:
    """`weights . max(x, y)` plus both numbers (b, q, n), of sides (b, q, h + 1), (b, n, h + 1); room (b, q, n, h)."""
    torch.maximum(x[..., :-1].unsqueeze(2), y[..., :-1].unsqueeze(1), out=room)
    bent = torch.mv(room.view(-1, room.shape[-1]), weights)
    return bent.view(room.shape[:-1]).add_(x[..., -1].unsqueeze(2) + y[..., -1].unsqueeze(1))


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
