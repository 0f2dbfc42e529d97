"""The same or not: distances of pairs of the gallery's items, thresholds for a false accept rate, and a probability."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit

from nearkin.errors import DataError
from nearkin.gallery.store import GalleryStore, Sample
from nearkin.search.scorers import Factorised
from nearkin.spaces import Space

MOST_IMPOSTORS = 1_000_000
"""Pairs of two classes that are compared at the most."""

_MOST_GENUINE = 200_000
_BLOCK = 2**22
"""Numbers of the vectors of the pairs that are compared together."""

_FEW_GENUINE = 2_000
"""With fewer pairs of one class in the sample, mates of some of its items are fetched."""

_MATES = (500, 8)
"""Of how many classes, and how many items of each at the most."""


@dataclass(frozen=True, eq=False)
class PairDistances:
    """Distances of pairs.

    Attributes:
        genuine: of pairs of one class, float32 (g,).
        weights: what each of these counts (g,); together a class counts as many times as it has items in the sample,
            however many more pairs a large class has.
        impostors: of pairs of two classes, float32 (i,), all alike.
        least: what no distance is below; minus infinity for minus a similarity.
    """

    genuine: np.ndarray
    weights: np.ndarray
    impostors: np.ndarray
    least: float = 0.0


PairRows = tuple[np.ndarray, np.ndarray]
"""Indices (p,) and (p,) of the two items of each pair."""


def compare_pairs(store: GalleryStore, space: Space, sample: Sample, sizes: np.ndarray, seed: int) -> PairDistances:
    """Distances of pairs among the items of a sample (n,), no pair twice, no item more often than another of its class.

    In a large gallery of small classes a sample holds few pairs of one class: then more items of some classes are
    fetched for these.

    Args:
        store: the gallery.
        space: how vectors are compared.
        sample: items of it, all with a label.
        sizes: how many items each class has, by code.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    impostors = _distances(space, sample.vectors, impostor_pairs(sample.codes, MOST_IMPOSTORS, rng))
    vectors, codes = sample.vectors, sample.codes
    pairs, weights = genuine_pairs(codes, _MOST_GENUINE, rng)
    if len(weights) < _FEW_GENUINE and len(codes) < sizes.sum():
        # If an item is removed meanwhile, the pairs of the sample will do.
        with suppress(DataError):
            vectors, codes = _with_mates(store, sample, sizes, rng)
        pairs, weights = genuine_pairs(codes, _MOST_GENUINE, rng)
    least = -np.inf if isinstance(space, Factorised) else 0.0
    return PairDistances(_distances(space, vectors, pairs), weights, impostors, least)


def genuine_pairs(codes: np.ndarray, most: int, rng: np.random.Generator) -> tuple[PairRows, np.ndarray]:
    """At most about `most` pairs of one class among items of classes (n,), and what each counts (p,).

    The items of each class stand on a ring in random order, and each is paired with the next ones.
    """
    n = len(codes)
    order = np.lexsort((rng.random(n), codes))
    _, starts, sizes = np.unique(codes[order], return_index=True, return_counts=True)
    start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    place = np.arange(n) - start
    left, right = [], []
    for step in range(1, min(int(size.max(initial=0)) // 2, max(1, most // max(1, n))) + 1):
        # Half-way round the ring two items see each other, and count once.
        chosen = np.flatnonzero((2 * step < size) | ((2 * step == size) & (place < step)))
        left.append(order[chosen])
        right.append(order[start[chosen] + (place[chosen] + step) % size[chosen]])
    pairs = _joined(left, right)
    _, group, counts = np.unique(codes[pairs[0]], return_inverse=True, return_counts=True)
    members = np.bincount(codes[order], minlength=1)[codes[pairs[0]]] if n else np.empty(0)
    return pairs, members / counts[group] if len(group) else np.empty(0)


def impostor_pairs(codes: np.ndarray, most: int, rng: np.random.Generator) -> PairRows:
    """At most `most` pairs of two classes among items of classes (n,): all of them if they are no more.

    All items stand on a ring in random order, and each is paired with the next ones of another class.
    """
    n = len(codes)
    order = rng.permutation(n)
    ring = codes[order]
    left, right, count = [], [], 0
    for step in range(1, n // 2 + 1):
        ends = n // 2 if 2 * step == n else n
        other = np.roll(ring, -step)
        chosen = np.flatnonzero(ring[:ends] != other[:ends])[: most - count]
        left.append(order[chosen])
        right.append(order[(chosen + step) % n])
        count += len(chosen)
        if count >= most:
            break
    return _joined(left, right)


def _joined(left: list[np.ndarray], right: list[np.ndarray]) -> PairRows:
    none = np.empty(0, np.int64)
    return np.concatenate([none, *left]), np.concatenate([none, *right])


def _with_mates(
    store: GalleryStore, sample: Sample, sizes: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (m, d) and classes (m,) of a few items of some of the classes in a sample."""
    most, each = _MATES
    names, classes = store.classes(), np.unique(sample.codes)
    classes = classes[sizes[classes] > 1]
    chosen = np.sort(rng.permutation(classes)[:most])
    ids: list[str] = []
    codes: list[int] = []
    for code in chosen.tolist():
        members = store.ids_where(label=names[code])
        kept = [members[place] for place in rng.permutation(len(members))[:each]]
        ids += kept
        codes += [code] * len(kept)
    return store.vectors(ids), np.array(codes, np.int32)


@torch.no_grad()
def _distances(space: Space, vectors: np.ndarray, pairs: PairRows) -> np.ndarray:
    """Distances float32 (p,) between vectors (n, d) of pairs, a block of pairs at a time."""
    points = torch.from_numpy(np.ascontiguousarray(vectors))
    if isinstance(space, Factorised):
        # What each side adds is computed once; the first of a pair is the query.
        apart = space.sides()
        queries, enrolled, width = apart.of_queries(points), apart.of_enrolled(points), apart.width
    else:
        queries, enrolled, width = points, points, points.shape[1]
    rows = max(1, _BLOCK // max(1, width))
    found = [np.empty(0, np.float32)]
    for start in range(0, len(pairs[0]), rows):
        left, right = (torch.from_numpy(side[start : start + rows]) for side in pairs)
        # One pair as a batch of 1 x 1 matrices.
        a, b = queries[left, None], enrolled[right, None]
        distances = -apart.scores(a, b) if isinstance(space, Factorised) else space.distance(a, b).float()
        found.append(distances.flatten().numpy())
    return np.concatenate(found)


LEAST_PAIRS = 30
"""Pairs of each kind without which nothing is learned."""

_RESOLVED = 3
"""Accepted impostors by which a rate is told from zero: the rule of three."""

_STEPS = 160
"""About how many thresholds are kept."""

_USUAL = np.array([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])[:, None] * np.array([1, 2, 5])


@dataclass(frozen=True)
class Ruling:
    """Whether two are of one class.

    Attributes:
        same: whether they are no farther apart than the threshold; None without one.
        probability: that they are, if the share `prior` of all pairs is; None if that was not learned.
        threshold: the largest distance that counts as the same; None if the rate cannot be promised.
        true_accept_rate: the share of genuine pairs of the gallery that this threshold accepts; None with it.
        reason: why something is None; empty if nothing is.
        needed: the probability at the threshold: with `same`, no less than this; None without a threshold.
    """

    same: bool | None
    probability: float | None
    threshold: float | None
    true_accept_rate: float | None = None
    reason: str = ""
    needed: float | None = None


@dataclass(frozen=True)
class PairRule:
    """What distances mean.

    Attributes:
        genuine: how many pairs of one class were compared.
        impostors: how many of two classes.
        thresholds: distances, ascending.
        accepted: how many impostor pairs are no farther apart than each threshold.
        true_accepts: the share of genuine pairs that are no farther apart.
        slope: of the log-odds over the distance, not positive; None if nothing was learned.
        offset: log-odds at distance 0; None with the slope.
        reason: why nothing was learned; empty if something was.
    """

    genuine: int = 0
    impostors: int = 0
    thresholds: tuple[float, ...] = ()
    accepted: tuple[int, ...] = ()
    true_accepts: tuple[float, ...] = ()
    slope: float | None = None
    offset: float | None = None
    reason: str = ""

    def judge(self, distance: float, rate: float, prior: float = 0.5) -> Ruling:
        """Judge a pair by its distance, so that the share `rate` of impostor pairs is accepted at the most.

        Args:
            distance: between the two.
            rate: the false accept rate.
            prior: the share of pairs that are of one class.
        """
        if self.slope is None or self.offset is None:
            return Ruling(None, None, None, reason=self.reason)
        probability = self._probability(distance, prior)
        # How many of the impostors may be accepted: the quotient decides, the product may round to either side.
        allowed = math.floor(rate * self.impostors)
        allowed += int((allowed + 1) / self.impostors <= rate) - int(allowed / self.impostors > rate)
        place = int(np.searchsorted(self.accepted, allowed, side="right")) - 1
        if allowed < _RESOLVED or place < 0:
            return Ruling(None, probability, None, reason=self._unresolved(rate, allowed))
        threshold = self.thresholds[place]
        needed = self._probability(threshold, prior)
        return Ruling(distance <= threshold, probability, threshold, self.true_accepts[place], needed=needed)

    def _probability(self, distance: float, prior: float) -> float:
        """That a pair so far apart is of one class, if the share `prior` of all pairs is."""
        assert self.slope is not None
        assert self.offset is not None
        # No surer than so many pairs can make anyone.
        most = math.log(min(self.genuine, self.impostors) + 1)
        odds = min(max(self.offset + self.slope * distance, -most), most)
        return float(expit(odds + math.log(prior) - math.log1p(-prior)))

    def _unresolved(self, rate: float, allowed: int) -> str:
        if allowed >= _RESOLVED:
            return (
                f"Too many items of different classes are equal for a false accept rate of {rate:g}: look for copies "
                "with different labels."
            )
        more = ", or add items" if self.impostors < MOST_IMPOSTORS else ""
        return (
            f"A false accept rate of {rate:g} cannot be promised from {self.impostors:,} pairs of different classes: "
            f"ask for {_shown_above(_RESOLVED / self.impostors)} or more{more}."
        )


def fit_pair_rule(pairs: PairDistances) -> PairRule:
    """Learn from distances of pairs: a table of thresholds, and the log-odds as a line over the distance."""
    genuine, impostors = len(pairs.genuine), len(pairs.impostors)
    if min(genuine, impostors) < LEAST_PAIRS:
        reason = (
            f"Verification needs {LEAST_PAIRS} pairs of one class and as many of different classes, but the gallery "
            f"has {genuine:,} and {impostors:,}: add more items to more classes."
        )
        return PairRule(genuine, impostors, reason=reason)
    thresholds, accepted = _thresholds(np.sort(pairs.impostors), pairs.least)
    order = np.argsort(pairs.genuine, kind="stable")
    shares = np.concatenate([[0.0], np.cumsum(pairs.weights[order]) / pairs.weights.sum()])
    reached = shares[np.searchsorted(pairs.genuine[order], thresholds, side="right")]
    accepts = tuple(float(f"{min(share, 1.0):.5g}") for share in reached.tolist())
    return PairRule(genuine, impostors, tuple(thresholds.tolist()), tuple(accepted.tolist()), accepts, *_line(pairs))


def _thresholds(impostors: np.ndarray, least: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Distances (m,), and how many of the sorted impostors (i,) each accepts (m,): dense where few are.

    Between two of them the lower one serves, which accepts a few percent fewer than it might and never more.
    """
    n = len(impostors)
    steps = np.geomspace(min(_RESOLVED, n), n, _STEPS)
    ranks = np.unique(np.floor(np.concatenate([steps, _USUAL.ravel() * n]) + 1e-9).astype(np.int64))
    values = np.unique(impostors[ranks[(ranks >= 1) & (ranks <= n)] - 1])
    values = np.union1d(impostors[:1], values)
    if values[0] > least:
        # Where even the nearest impostors are many and equal, only what is nearer still is accepted.
        values = np.concatenate([np.nextafter(values[:1], np.float32(least)), values])
    return values, np.searchsorted(impostors, values, side="right")


def _line(pairs: PairDistances) -> tuple[float, float]:
    """Slope and offset of the log-odds that make balanced pairs likeliest.

    The targets are those of Platt 1999, a little inside 0 and 1, so that pairs which a distance separates entirely
    have a finite slope. Fitted to half of the classes of CUB-200, CIFAR-100 and Omniglot and judged on the other half,
    the line was as likely as an isotonic curve with 10,000 items and likelier with fewer.
    """
    distances = np.concatenate([pairs.genuine, pairs.impostors]).astype(np.float64)
    genuine, impostors = len(pairs.genuine), len(pairs.impostors)
    centre, scale = float(distances.mean()), float(distances.std()) or 1.0
    places = (distances - centre) / scale
    targets = np.repeat([(genuine + 1) / (genuine + 2), 1 / (impostors + 2)], [genuine, impostors])
    weights = np.concatenate([pairs.weights / pairs.weights.sum() / 2, np.full(impostors, 0.5 / impostors)])

    def loss(line: np.ndarray) -> tuple[float, np.ndarray]:
        odds = line[0] * places + line[1]
        excess = weights * (expit(odds) - targets)
        value = float(weights @ (np.logaddexp(0, odds) - targets * odds))
        return value, np.array([excess @ places, excess.sum()])

    found = minimize(loss, np.array([-1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(None, 0.0), (None, None)]).x
    slope = float(found[0]) / scale
    return slope, float(found[1]) - slope * centre


def _shown_above(rate: float) -> str:
    """A rate in two digits, rounded up so that it can be asked for as it is shown."""
    size = 10.0 ** (1 - math.floor(math.log10(rate)))
    return f"{math.ceil(round(rate * size, 6)) / size:.2g}"
