"""Verification trials: who is enrolled, who asks, and how far other classes might lead.

A trial is an ordered pair: a similarity that was learned may tell `S(enrolled, query)` from `S(query, enrolled)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from nearkin.errors import DataError
from nearkin.metrics.pairs import drawn_pairs

_BINS = 2048
"""Bins of scores with equally many trials, for each kind."""
_BLOCK = 2**22
"""Weights of pairs of classes, or counts of bins, that are held at once."""


@dataclass(frozen=True, eq=False)
class Trials:
    """Ordered pairs of items.

    Attributes:
        enrolled: places (t,) of the enrolled items; in the gallery where there is one.
        queries: places (t,) of the queries.
        same: whether both are of one class, boolean (t,).
        total: how many genuine and how many impostor pairs there are to draw from.
    """

    enrolled: np.ndarray = field(repr=False)
    queries: np.ndarray = field(repr=False)
    same: np.ndarray = field(repr=False)
    total: tuple[int, int]

    @property
    def notes(self) -> list[str]:
        """What a reader must know: which pairs are a sample."""
        counts = (int(self.same.sum()), int((~self.same).sum()))
        kinds = zip(("genuine", "impostor"), counts, self.total, strict=True)
        return [f"{held:,} of {all_:,} {kind} pairs were drawn at random." for kind, held, all_ in kinds if held < all_]


def draw_trials(codes: np.ndarray, gallery_codes: np.ndarray | None = None, *, most: int, seed: int = 0) -> Trials:
    """At most so many genuine and so many impostor pairs, each kind drawn without replacement, and their order.

    Without a gallery each unordered pair appears once at the most, and a coin says which of the two is enrolled. With
    one, the item of the gallery is.

    Args:
        codes: class numbers (n,) of the items, or of the queries where there is a gallery.
        gallery_codes: class numbers (m,) of the gallery by the same code book.
        most: how many trials of each kind.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    kinds = drawn_pairs(codes, gallery_codes, most, rng)
    if not all(len(rows) for rows, _ in kinds):
        raise DataError("Verification needs pairs of one class and pairs of two: give two classes, one with two items.")
    queries, enrolled = (np.concatenate([kind[side] for kind in kinds]) for side in (0, 1))
    same = np.arange(len(queries)) < len(kinds[0][0])
    if gallery_codes is None:
        swapped = rng.random(len(queries)) < 0.5
        queries, enrolled = np.where(swapped, enrolled, queries), np.where(swapped, queries, enrolled)
    return Trials(enrolled, queries, same, _totals(codes, gallery_codes))


def resampled_equal_errors(
    scores: Mapping[str, np.ndarray],
    same: np.ndarray,
    classes: tuple[np.ndarray, np.ndarray],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The EER of each score in resamples of the classes (resamples,), the same for all scores; NaN where it has none.

    Each resample draws, with replacement, as many classes as there are. A genuine trial counts as often as its class
    was drawn, an impostor trial as often as the product for its two. Scores are counted in some thousand bins.

    Args:
        scores: name to scores (t,), the higher the more alike.
        same: whether each trial is genuine (t,).
        classes: class numbers (t,) of both sides.
        resamples: how many.
        seed: of the draws.
    """
    low, high = np.minimum(*classes), np.maximum(*classes)
    count = int(high.max()) + 1
    pairs, pair = np.unique(low * count + high, return_inverse=True)
    first, second = np.divmod(pairs, count)
    present = np.unique(np.concatenate([first, second]))
    tables = {name: _tables(values, same, pair, len(pairs)) for name, values in scores.items()}
    rng = np.random.default_rng(seed)
    found: dict[str, list[np.ndarray]] = {name: [] for name in scores}
    step = max(1, _BLOCK // max(len(pairs), 2 * _BINS) // 16)
    for start in range(0, resamples, step):
        drawn = np.zeros((count, min(step, resamples - start)))
        for column in drawn.T:
            column[present] = np.bincount(rng.integers(len(present), size=len(present)), minlength=len(present))
        weights = np.where((first == second)[:, None], drawn[first], drawn[first] * drawn[second])
        for name, (genuine, impostors) in tables.items():
            found[name].append(_equal_errors(genuine @ weights, impostors @ weights))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _totals(codes: np.ndarray, gallery_codes: np.ndarray | None) -> tuple[int, int]:
    sizes = np.bincount(codes).astype(np.int64)
    if gallery_codes is None:
        genuine, every = int((sizes * (sizes - 1) // 2).sum()), len(codes) * (len(codes) - 1) // 2
    else:
        known = np.bincount(gallery_codes, minlength=len(sizes))[: len(sizes)]
        genuine, every = int((sizes * known).sum()), len(codes) * len(gallery_codes)
    return genuine, every - genuine


def _tables(scores: np.ndarray, same: np.ndarray, pair: np.ndarray, pairs: int) -> tuple[sparse.csr_array, ...]:
    """How many genuine, and impostor, trials of each pair of classes lie in each bin, (bins, pairs), highest first."""
    shares = np.linspace(0, 1, _BINS + 1)[1:-1]
    edges = np.unique(np.concatenate([np.quantile(scores[kind], shares, method="lower") for kind in (same, ~same)]))
    # A bin reaches from above one edge up to the next, so that equal scores are accepted together.
    place = len(edges) - np.searchsorted(edges, scores, side="left")
    shape = (len(edges) + 1, pairs)
    return tuple(
        sparse.coo_array((np.ones(int(kind.sum())), (place[kind], pair[kind])), shape=shape).tocsr()
        for kind in (same, ~same)
    )


def _equal_errors(genuine: np.ndarray, impostors: np.ndarray) -> np.ndarray:
    """EERs (r,) of counts (bins, r), the highest scores first: between two thresholds errors are interpolated."""
    nothing = np.zeros((1, genuine.shape[1]))
    with np.errstate(invalid="ignore"):
        accepted, false = (
            np.concatenate([nothing, kind.cumsum(axis=0)]) / kind.sum(axis=0) for kind in (genuine, impostors)
        )
    excess = 1.0 - accepted - false
    after = np.maximum((excess <= 1e-12).argmax(axis=0), 1)
    columns = np.arange(genuine.shape[1])
    before, here = excess[after - 1, columns], excess[after, columns]
    share = before / (before - here)
    low = false[after - 1, columns]
    return low + share * (false[after, columns] - low)
