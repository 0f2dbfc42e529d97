"""What run.py's runs say of the claims: paired differences, corrected together, and a verdict of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from nearkin.metrics import class_bootstrap, holm
from studies.paired_seeds import PairedTest, paired_differences, paired_t
from studies.unified.measures import unpack
from studies.unified.parts import RATE_SEED

MARGIN = 0.01
"""A point of accuracy or recall: what "as good" may be below."""
LEVEL = 0.05
HOLDS, FAILS, OPEN = "holds here", "does not hold here", "not shown"
Place = tuple[str, int]
"""Case and seed."""
Cells = dict[str, dict[Place, dict[str, Any]]]
"""Cell to its runs."""
Side = tuple[str, str]
"""Cell and measure."""


@dataclass(frozen=True)
class Claim:
    """A statement about two sides.

    Args:
        words: what is claimed.
        part: where it is looked at.
        first: cell and measure of the side that the claim is about.
        second: what it is compared with.
        kind: whether the first is said to be as good (not more than `MARGIN` below), higher, or lower.
    """

    words: str
    part: str
    first: Side
    second: Side
    kind: Literal["as good", "higher", "lower"]


@dataclass(frozen=True)
class Finding:
    """What the runs say of a claim.

    Attributes:
        claim: the claim.
        test: the difference paired by seed, or where there are cases that of their means over seeds; NaN for all but
            the mean where there is a single pair.
        p: of the claim: against the margin for "as good", one-sided and doubled, two-sided otherwise; NaN likewise.
        corrected: the same after Holm's correction over its family, of which single pairs are no part.
        items: 95 % interval of the difference over test items, with the seeds as they are; None where none is kept.
        verdict: in words.
    """

    claim: Claim
    test: PairedTest
    p: float
    corrected: float
    items: tuple[float, float] | None
    verdict: str


def cells_of(lines: Sequence[Mapping[str, Any]], part: str, tuned: bool = False) -> Cells:
    """The finished cells of a part; of lines of one cell, case and seed the last counts.

    Args:
        lines: of the ledger.
        part: whose.
        tuned: the models that chose the learning rates instead, a cell for each rate.
    """
    found: Cells = {}
    for line in lines:
        if line["part"] == part and is_tuning(line) == tuned:
            name = f"{line['cell']}, {line['rate']:g}" if tuned else line["cell"]
            found.setdefault(name, {})[line["case"], line["seed"]] = dict(line)
    return found


def is_tuning(line: Mapping[str, Any]) -> bool:
    """Whether a line is of a model that helped to choose a learning rate."""
    return line["seed"] == RATE_SEED


def run_values(cells: Cells, side: Side) -> dict[Place, float]:
    """Case and seed to value, of the runs that have the measure."""
    runs = cells.get(side[0], {})
    return {place: float(line["values"][side[1]]) for place, line in runs.items() if side[1] in line["values"]}


def seed_means(cells: Cells, side: Side, case: str | None = None) -> np.ndarray:
    """A value (m,) of each seed, the mean over the part's cases; of seeds that lack a case none.

    Args:
        cells: of a part.
        side: cell and measure.
        case: only this one; None: all.
    """
    values = run_values(cells, side)
    cases = {case} if case is not None else {place[0] for runs in cells.values() for place in runs}
    seeds = sorted({place[1] for place in values})
    rows = [[values[name, seed] for name in cases if (name, seed) in values] for seed in seeds]
    return np.array([np.mean(row) for row in rows if len(row) == len(cases)], dtype=np.float64)


def findings(lines: Sequence[Mapping[str, Any]], claims: Sequence[Claim]) -> list[Finding]:
    """What the runs say of claims that belong together; those that nothing is finished for are left out."""
    tested = []
    for claim in claims:
        cells = cells_of(lines, claim.part)
        gaps = unit_differences(run_values(cells, claim.first), run_values(cells, claim.second))
        test = of_differences(gaps)
        if test is not None:
            tested.append((claim, test, _p(claim, test, gaps), item_interval(cells, claim)))
    known = [p for *_, p, _ in tested if not np.isnan(p)]
    corrected = iter(holm(known) if known else [])
    found = []
    for claim, test, p, items in tested:
        after = p if np.isnan(p) else float(next(corrected))
        found.append(Finding(claim, test, p, after, items, verdict(claim, test, after, items)))
    return found


def unit_differences(first: Mapping[Place, float], second: Mapping[Place, float]) -> np.ndarray:
    """First minus second (m,) of every seed, or where there are cases of every case, the mean over its seeds.

    Seeds of one case share its test items and most of what makes it hard, so that they are no pairs of their own.
    """
    shared = sorted(first.keys() & second.keys())
    if not any(case for case, _ in shared):
        return paired_differences(first, second)
    gaps: dict[str, list[float]] = {}
    for place in shared:
        gaps.setdefault(place[0], []).append(first[place] - second[place])
    return np.array([np.mean(values) for values in gaps.values()])


def of_differences(gaps: np.ndarray) -> PairedTest | None:
    """The test of differences (m,); of a single one there is only the mean, of none nothing."""
    if len(gaps) < 2:
        return PairedTest(1, float(gaps[0]), np.nan, np.nan, np.nan) if len(gaps) else None
    return paired_t(dict(enumerate(gaps)), dict.fromkeys(range(len(gaps)), 0.0))


def _p(claim: Claim, test: PairedTest, gaps: np.ndarray) -> float:
    if claim.kind != "as good" or len(gaps) < 2:
        return test.p
    if np.ptp(gaps) == 0:
        return 0.0 if gaps[0] > -MARGIN else 1.0
    # Doubled, so that it is below 0.05 where the two-sided 95 % interval lies above the margin.
    return min(1.0, 2 * float(stats.ttest_1samp(gaps, -MARGIN, alternative="greater").pvalue))


def verdict(claim: Claim, test: PairedTest, corrected: float, items: tuple[float, float] | None) -> str:
    """Holds, does not hold, or not shown; either of the first two only where the interval over test items agrees."""
    low, high = (test.mean, test.mean) if items is None else items
    if np.isnan(corrected):
        return OPEN
    if claim.kind == "as good":
        if corrected < LEVEL and low > -MARGIN:
            return HOLDS
        return FAILS if max(test.high, high) < -MARGIN else OPEN
    if corrected >= LEVEL or not (low > 0 if test.mean > 0 else high < 0):
        return OPEN
    return HOLDS if (test.mean > 0) == (claim.kind == "higher") else FAILS


def item_interval(cells: Cells, claim: Claim) -> tuple[float, float] | None:
    """95 % interval of the difference over what was tested: images, classes of images, speakers, or episodes.

    The differences of an item are averaged over the seeds, so this is about these models and other items. Of episodes
    only each seed's interval is kept: the mean of the ends, which is never narrower than that of averaged episodes.
    """
    shared = sorted(run_values(cells, claim.first).keys() & run_values(cells, claim.second).keys())
    sides = [[(cells[cell][place], measure) for place in shared] for cell, measure in (claim.first, claim.second)]
    if not shared:
        return None
    if all(measure in line.get("resampled", {}) for side in sides for line, measure in side):
        drawn = [np.mean([line["resampled"][measure] for line, measure in side], axis=0) for side in sides]
        low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975])
        return float(low), float(high)
    if all(measure in line.get("right", {}) for side in sides for line, measure in side):
        return _over_images(shared, sides, by_class=claim.part == "cub")
    told = f"{claim.first[1]} - {claim.second[1].rpartition(', ')[2]}"
    if claim.first[0] == claim.second[0] and all(told in line.get("episodes", {}) for line, _ in sides[0]):
        _, low, high = np.mean([line["episodes"][told] for line, _ in sides[0]], axis=0)
        return float(low), float(high)
    return None


def _over_images(
    shared: Sequence[Place], sides: list[list[tuple[dict[str, Any], str]]], by_class: bool
) -> tuple[float, float]:
    gaps: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, list[int]] = {}
    for (case, _), first, second in zip(shared, *sides, strict=True):
        sizes[case] = first[0]["sizes"]
        hits = [unpack(line["right"][measure], sum(sizes[case])).astype(float) for line, measure in (first, second)]
        gaps.setdefault(case, []).append(hits[0] - hits[1])
    means = {case: np.mean(rows, axis=0) for case, rows in gaps.items()}
    if by_class:
        ((case, values),) = means.items()
        return class_bootstrap(values, np.repeat(np.arange(len(sizes[case])), sizes[case]))
    # Every case counts the same, as in the mean over cases and seeds.
    centre = float(np.mean([values.mean() for values in means.values()]))
    errors = [values.var(ddof=1) / len(values) for values in means.values()]
    half = 1.96 * float(np.sqrt(np.sum(errors))) / len(errors)
    return centre - half, centre + half
