"""What unified.py's runs say of the claims: differences paired by seed, corrected together, and a verdict of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from paired_seeds import PairedTest, paired_differences, paired_t
from scipy import stats
from unified_measures import unpack
from unified_parts import RATE_SEED

from nearkin.metrics import class_bootstrap, holm

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
        test: the difference paired by seed, and by case where there are some.
        p: of the claim: one-sided against the margin for "as good", two-sided otherwise.
        corrected: the same after Holm's correction over its family.
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
    """A value (m,) of each seed, the mean over its cases; of seeds that lack a case none.

    Args:
        cells: of a part.
        side: cell and measure.
        case: only this one; None: all.
    """
    values = run_values(cells, side)
    cases = {case} if case is not None else {place[0] for place in values}
    seeds = sorted({place[1] for place in values})
    rows = [[values[name, seed] for name in cases if (name, seed) in values] for seed in seeds]
    return np.array([np.mean(row) for row in rows if len(row) == len(cases)], dtype=np.float64)


def findings(lines: Sequence[Mapping[str, Any]], claims: Sequence[Claim]) -> list[Finding]:
    """What the runs say of claims that belong together; those that nothing is finished for are left out."""
    tested = []
    for claim in claims:
        cells = cells_of(lines, claim.part)
        both = run_values(cells, claim.first), run_values(cells, claim.second)
        test = paired_t(*both)
        if test is not None:
            tested.append((claim, test, _p(claim, test, paired_differences(*both)), item_interval(cells, claim)))
    corrected = holm([p for *_, p, _ in tested]) if tested else []
    return [
        Finding(claim, test, p, after, items, verdict(claim, test, after))
        for (claim, test, p, items), after in zip(tested, corrected, strict=True)
    ]


def _p(claim: Claim, test: PairedTest, differences: np.ndarray) -> float:
    if claim.kind != "as good":
        return test.p
    if np.ptp(differences) == 0:
        return 0.0 if differences[0] > -MARGIN else 1.0
    return float(stats.ttest_1samp(differences, -MARGIN, alternative="greater").pvalue)


def verdict(claim: Claim, test: PairedTest, corrected: float) -> str:
    """Holds, does not hold, or not shown, by the corrected p and the direction."""
    if claim.kind == "as good":
        return HOLDS if corrected < LEVEL else FAILS if test.high < 0 else OPEN
    if corrected >= LEVEL:
        return OPEN
    return HOLDS if (test.mean > 0) == (claim.kind == "higher") else FAILS


def item_interval(cells: Cells, claim: Claim) -> tuple[float, float] | None:
    """95 % interval of the difference over what was tested: images, classes of images, or speakers.

    The differences of an item are averaged over the seeds, so this is about these models and other items.
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
