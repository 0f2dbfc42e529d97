"""What the ledgers of ned/run.py, ned_losses/run.py and robustness/run.py say of the claims in `confidence.py`.

Differences are in points, NED minus what it is compared with unless said; intervals resample the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from nearkin.audits.calibration import OURS
from studies.claims.claim import Compared, Evidence, Table
from studies.ned import run as ned
from studies.ned.page import NAMES, VOTES
from studies.ned_losses import run as ned_losses
from studies.robustness import run as robustness
from studies.robustness.cub import ATTACKS, EPSILONS, SMALL

Cell = Mapping[str, Any]
Interval = tuple[float, float, float]
"""A value and the ends of its 95 % interval."""
ANCHORED = "cub200"
PAPERS = "normalized-softmax"
"""The loss of the paper's main models."""
LARGE_KS = ("10", "20", "50", "100", "200")
RISING_KS = ("5", *LARGE_KS)
RIVALS = ("1NN", *VOTES)


def sets(part: str, data: Sequence[str] = tuple(NAMES)) -> dict[str, Cell]:
    """Name of a data set to its cell of ned/run.py, clean or corrupted."""
    ledger = ned.read_ledger()
    return {NAMES[one]: ledger[one, part] for one in data}


def finished(loss: str) -> bool:
    """Whether ned_losses/run.py has finished a loss."""
    return loss in ned_losses.read_ledger()


def losses(*names: str) -> dict[str, Cell]:
    """What is shown of a loss to its cell of ned_losses/run.py."""
    ledger = ned_losses.read_ledger()
    return {f"CUB-200-2011, {name}": ledger[name] for name in names}


def birds() -> dict[str, Cell]:
    """Both models of CUB-200-2011: that of the paper's loss, and ProxyAnchor's."""
    (anchored,) = sets("clean", [ANCHORED]).values()
    return {**losses(PAPERS), "CUB-200-2011, proxy-anchor": anchored}


def against(
    cells: Mapping[str, Cell],
    rivals: Sequence[str],
    metric: str,
    *,
    above: float | None = None,
    below: float | None = None,
) -> Evidence:
    """NED minus each rival on each data set."""
    found = [
        _points(f"NED minus {rival}, {metric}, {name}", apart(cell, rival, metric), above, below)
        for name, cell in cells.items()
        for rival in rivals
    ]
    return Evidence(found, means_table(cells))


def apart(cell: Cell, rival: str, metric: str) -> Interval:
    """NED minus a rival; the ledgers have the rival minus NED."""
    value, low, high = cell["minus NED"][rival][metric]
    return -value, -high, -low


def _points(what: str, interval: Interval, above: float | None, below: float | None) -> Compared:
    value, low, high = (100 * number for number in interval)
    return Compared(what, value, low, high, above=above, below=below)


def means_table(cells: Mapping[str, Cell]) -> Table:
    """Accuracy and ECE of every estimator, in percent, each with its interval."""
    rows = []
    for name, cell in cells.items():
        for estimator in (*RIVALS, OURS):
            shown = (cell["means"][estimator][metric] for metric in ("accuracy", "ECE"))
            rows.append([name, estimator, *(_percent(triple) for triple in shown)])
    return Table(["data", "estimator", "accuracy (%)", "ECE (%)"], rows)


def _percent(triple: Sequence[float]) -> str:
    value, low, high = (100 * number for number in triple)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def difference(first: Interval, second: Interval) -> Interval:
    """First minus second of two figures whose draws were not kept together.

    The half widths add up, so this is never narrower than the interval of the paired difference, however they vary
    together.
    """
    return first[0] - second[0], first[1] - second[2], first[2] - second[1]


def gain_grows() -> Evidence:
    """NED gains more over 1NN on corrupted queries than on clean ones."""
    found = []
    for (name, clean), shifted in zip(sets("clean").items(), sets("corrupted").values(), strict=True):
        gains = [apart(cell, "1NN", "accuracy") for cell in (shifted, clean)]
        found.append(_points(f"gain over 1NN, corrupted minus clean, {name}", difference(*gains), 0, None))
    return Evidence(found, means_table(sets("corrupted")))


def under_attack(
    rivals: Sequence[str], metric: str, *, above: float | None = None, below: float | None = None
) -> Evidence:
    """NED minus each rival under each attack on birds, from the interval of each.

    The table also has the epsilon that the paper does not, which decides nothing.
    """
    (line,) = (line for line in robustness.read_ledger() if line["part"] == "cub")
    found, rows = [], []
    for eps, name in product((*SMALL, *EPSILONS), ATTACKS):
        attack = f"{name} {eps:g}"
        values = line["attacked"][attack]
        for rival in rivals if eps in EPSILONS else ():
            gap = difference(values[OURS][metric], values[rival][metric])
            found.append(_points(f"NED minus {rival}, {metric}, {attack}", gap, above, below))
        rows.append([attack, *(_percent(values[each][metric]) for each in (*RIVALS, OURS))])
    return Evidence(found, Table([f"{metric} (%)", *RIVALS, OURS], rows))


def resampled(cell: Cell, statistic: Callable[[np.ndarray], Any]) -> Interval:
    """A statistic of the classes' weights (r, C), as they are and over resamples of the classes.

    Resamples are moved back by their mean excess, which only matters for what is not a mean, such as a spread.
    """
    classes = len(cell["asked by class"])
    times = np.random.default_rng(0).multinomial(classes, np.full(classes, 1 / classes), size=ned.RESAMPLES)
    value, drawn = float(statistic(np.ones((1, classes)))[0]), np.asarray(statistic(times.astype(np.float64)))
    low, high = np.quantile(drawn - drawn.mean() + value, (0.025, 0.975))
    return value, float(low), float(high)


def share(cell: Cell, sums: Sequence[float], weights: np.ndarray) -> np.ndarray:
    """Sums over classes (C,) as a share of the queries (r,), by weights of the classes (r, C)."""
    return (
        weights @ np.asarray(sums, dtype=np.float64) / (weights @ np.asarray(cell["asked by class"], dtype=np.float64))
    )


def votes_over_one() -> Evidence:
    """Votes of several neighbours name more queries right than the nearest one, for every loss that is finished."""
    found = []
    for name, cell in losses(*ned_losses.read_ledger()).items():
        hits = cell["hits by class"]
        for vote in VOTES:
            gap = resampled(cell, lambda w, c=cell, h=hits, v=vote: share(c, h[v], w) - share(c, h["1NN"], w))
            found.append(_points(f"{vote} minus 1NN, accuracy, {name}", gap, 0, None))
    return Evidence(found, means_table(losses(*ned_losses.read_ledger())))


def overconfident() -> Evidence:
    """The votes' mean confidence is above their accuracy."""
    ((name, cell),) = losses(PAPERS).items()
    rows, found = [], []
    for estimator in (*VOTES, OURS):
        confidence, hits = cell["confidence by class"][estimator], cell["hits by class"][estimator]
        gap = resampled(cell, lambda w, s=confidence, h=hits: share(cell, s, w) - share(cell, h, w))
        rows.append([estimator, _percent(gap)])
        if estimator in VOTES:
            found.append(_points(f"mean confidence minus accuracy of {estimator}, {name}", gap, 0, None))
    return Evidence(found, Table(["estimator", "mean confidence minus accuracy (points)"], rows))


def bins_calibrated() -> Evidence:
    """NED's worst bin is nearer to the diagonal than the worst of each vote."""
    ((name, cell),) = losses(PAPERS).items()
    found = []
    for vote in VOTES:
        value, low, high = cell["worst bin minus NED"][vote]
        found.append(_points(f"worst bin of NED minus that of {vote}, {name}", (-value, -high, -low), None, 0))
    return Evidence(found)


def at_k(cell: Cell, estimator: str, k: str) -> Callable[[np.ndarray], np.ndarray]:
    """Accuracy (r,) with k neighbours, by weights of the classes (r, C)."""
    return lambda weights: share(cell, cell["hits by class and k"][estimator][k], weights)


def over_ks(
    pairs: Sequence[tuple[tuple[str, str], tuple[str, str]]], *, above: float | None = None, below: float | None = None
) -> Evidence:
    """Accuracy of the first of each pair minus that of the second, each an estimator and its k."""
    ((_, cell),) = losses(PAPERS).items()
    found = []
    for first, second in pairs:
        one, other = at_k(cell, *first), at_k(cell, *second)
        what = f"{first[0]} with k = {first[1]} minus {second[0]} with k = {second[1]}, accuracy"
        gap = resampled(cell, lambda w, a=one, b=other: a(w) - b(w))
        found.append(_points(what, gap, above, below))
    return Evidence(found, k_table(cell))


def flatter() -> Evidence:
    """NED's accuracy varies less over k than that of each vote."""
    ((_, cell),) = losses(PAPERS).items()

    def spread(estimator: str, weights: np.ndarray) -> np.ndarray:
        return np.ptp([at_k(cell, estimator, k)(weights) for k in LARGE_KS], axis=0)

    found = []
    for vote in VOTES:
        gap = resampled(cell, lambda w, v=vote: spread(OURS, w) - spread(v, w))
        what = f"spread of accuracy over k from {LARGE_KS[0]} to {LARGE_KS[-1]}, NED minus {vote}"
        found.append(_points(what, gap, None, 0))
    return Evidence(found, k_table(cell))


def k_table(cell: Cell) -> Table:
    """Accuracy at every k, in percent."""
    by_k, asked = cell["hits by class and k"], sum(cell["asked by class"])
    ks = list(by_k[OURS])
    rows = [[name, *(f"{100 * sum(by_k[name][k]) / asked:.1f}" for k in ks)] for name in (*VOTES, OURS)]
    return Table(["accuracy (%), k =", *ks], rows)
