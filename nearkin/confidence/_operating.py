"""Operating points: what every threshold on a score accepts, on the items given and on resampled ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.metrics.columns import flag_column, number_column

_COUNTS_AT_ONCE = 2**20


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """The thresholds that tell items apart, strictest first; point j accepts the scores of the cells 0 to j.

    A cell is one distinct score, or several neighbouring ones after `around`.

    Attributes:
        highest: the highest score of each cell, float64 (u,), descending.
        lowest: the lowest score of each cell, float64 (u,), descending.
        right: how many correct items each point accepts, int64 (u,); the last is all of them.
        wrong: how many wrong items each point accepts, int64 (u,); the last is all of them.
        given: the float type in which the scores were given.
    """

    highest: np.ndarray
    lowest: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    given: np.dtype

    @classmethod
    def of(cls, scores: np.ndarray, correct: np.ndarray) -> tuple[OperatingPoints, np.ndarray]:
        """The points of finite scores (n,) and bools (n,), and the cell (n,) int64 of every item."""
        narrow = scores.dtype.kind == "f" and scores.dtype.itemsize < 8
        given = scores.dtype if narrow else np.dtype(np.float64)
        scores = scores.astype(np.float64)
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        last = np.append(ranked[1:] != ranked[:-1], True)
        right = np.cumsum(correct[order])[last]
        accepted = np.flatnonzero(last) + 1
        cells = np.empty(len(scores), np.int64)
        cells[order] = np.cumsum(last) - last
        return cls(ranked[last], ranked[last], right, accepted - right, given), cells

    def around(self, place: int, limit: int) -> tuple[OperatingPoints, np.ndarray]:
        """At most about `limit` of the points, the one at `place` among them, and the new cell (u,) of each old one.

        The distance between kept points grows with their distance from `place`: what is near it stays told apart, and
        what is far is resolved to a fixed share of how far it is.
        """
        points = len(self.right)
        if points <= limit:
            return self, np.arange(points)
        steps = np.unique(np.geomspace(1, points, limit // 2).astype(np.int64))
        kept = np.unique(np.concatenate([place - steps, [place], place + steps, [points - 1]]))
        kept = kept[(kept >= 0) & (kept < points)]
        highest = self.highest[np.concatenate([[0], kept[:-1] + 1])]
        thinned = OperatingPoints(highest, self.lowest[kept], self.right[kept], self.wrong[kept], self.given)
        return thinned, np.searchsorted(kept, np.arange(points))

    def value(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Thresholds (m,) that accept the cells up to `last`, when no item lies in the cells after `first` up to it.

        Each is halfway between the lowest score accepted and the highest one refused; where nothing is refused it is
        the lowest score itself. It is a number of the type the scores were given in, so that comparing in that type
        accepts the same items.
        """
        accepted = self.lowest[first]
        refused = self.highest[np.minimum(last + 1, len(self.highest) - 1)]
        middle = (accepted / 2 + refused / 2).astype(self.given).astype(np.float64)
        # Between two neighbouring floats there is no other, and halving may round onto the refused one.
        sound = (last + 1 < len(self.highest)) & (refused < middle) & (middle <= accepted)
        return np.where(sound, middle, accepted)


def resampled(
    cells: np.ndarray, correct: np.ndarray, groups: np.ndarray, resamples: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of resampled counts: how many correct and how many wrong items (r, u) each of u points accepts.

    Each resample draws as many groups as there are, with replacement, and then the items inside; a single group is
    drawn once. An item of a group that was drawn c times counts Poisson(c) times, which is drawing c times as many
    items as the group has, but for their exact number. Sums of Poisson numbers are Poisson numbers: only cells are
    drawn, and no item is touched again.

    Args:
        cells: the cell of each item, int64 (n,), all of 0 to u - 1.
        correct: bools (n,).
        groups: group codes int64 (n,), all of 0 to g - 1.
        resamples: how many to draw.
        seed: of the draws.
    """
    from scipy.sparse import csr_array

    points, total = int(cells.max()) + 1, int(groups.max()) + 1
    ones = np.ones(len(cells))
    table = csr_array((ones, (cells + points * ~correct, groups)), shape=(2 * points, total))  # equal places are summed
    rng = np.random.default_rng(seed)
    block = max(1, _COUNTS_AT_ONCE // max(2 * points, total))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = rng.integers(total, size=(size, total)) + total * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * total).reshape(size, total)
        counts = rng.poisson((table @ times.T.astype(np.float64)).T).reshape(size, 2, points)
        yield tuple(np.cumsum(counts, axis=2).transpose(1, 0, 2))


def scored_items(scores: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n,) of any number type and bools (n,), checked."""
    given = number_column(scores, "scores")
    truth = flag_column(correct, "correct", len(given))
    if truth.all() or not truth.any():
        all_of, missing = ("correct", "wrong") if truth.all() else ("wrong", "correct")
        raise DataError(
            f"All {len(given):,} items are {all_of}, and a threshold is chosen between correct and wrong ones: "
            f"add items that are {missing}."
        )
    return given, truth
