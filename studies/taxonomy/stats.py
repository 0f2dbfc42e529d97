"""What run.py's runs say: means over seeds, differences paired by seed, and which measures go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from nearkin.metrics import holm
from studies.paired_seeds import PairedTest, paired_t

Cells = dict[str, dict[int, dict[str, Any]]]
"""Cell to seed to its line."""


def cells_of(lines: Sequence[Mapping[str, Any]], task: str) -> Cells:
    """The finished cells of a task; of lines of one cell and seed the last counts.

    What the curves end with is added to the values: a model is chosen by its accuracy, here it has trained to the end.
    Not for softmax, whose curves are of distances in its own, Euclidean space.
    """
    found: Cells = {}
    for line in lines:
        if line["task"] == task:
            ends = {
                f"{key.replace('_', ' ')}, last step": row[key]
                for row in line.get("curves", ())
                for key in ("MC_proxies", "MC_prototypes")
                if key in row and line["cell"] != "softmax"
            }
            found.setdefault(line["cell"], {})[line["seed"]] = {**line, "values": {**line["values"], **ends}}
    return found


def seed_values(runs: Mapping[int, Mapping[str, Any]], measure: str) -> np.ndarray:
    """The values (m,) of a measure, by seed; those of a run that lacks it, or has none, are left out."""
    values = np.array([runs[seed]["values"].get(measure, np.nan) for seed in sorted(runs)], dtype=np.float64)
    return values[np.isfinite(values)]


def family(
    cells: Cells, contrasts: Iterable[tuple[str, str]], measures: Sequence[str]
) -> dict[tuple[str, str], dict[str, PairedTest]]:
    """Contrast to measure to its test, all corrected together (Holm); what is not finished is left out.

    Args:
        cells: the finished cells.
        contrasts: pairs of cells, the first minus the second.
        measures: what they are compared in.
    """
    found: list[tuple[tuple[str, str], str, PairedTest]] = []
    for first, second in contrasts:
        for measure in measures:
            if {first, second} <= cells.keys():
                test = paired_t(*(_by_seed(cells[name], measure) for name in (first, second)))
                if test is not None:
                    found.append(((first, second), measure, test))
    corrected = holm([test.p for *_, test in found]) if found else []
    told: dict[tuple[str, str], dict[str, PairedTest]] = {}
    for (contrast, measure, test), p in zip(found, corrected, strict=True):
        told.setdefault(contrast, {})[measure] = PairedTest(test.seeds, test.mean, test.low, test.high, test.p, p)
    return told


def _by_seed(runs: Mapping[int, Mapping[str, Any]], measure: str) -> dict[int, float]:
    found = {seed: line["values"].get(measure) for seed, line in runs.items()}
    return {seed: float(value) for seed, value in found.items() if value is not None and np.isfinite(value)}


def rank_correlation(runs: Sequence[Mapping[str, Any]], first: str, second: str) -> tuple[float, float]:
    """Spearman's coefficient of two measures over runs, and its p; NaN where one of them is constant."""
    both = [[run["values"].get(name, np.nan) for name in (first, second)] for run in runs]
    pairs = np.array(both, dtype=np.float64).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 3 or (np.ptp(pairs, axis=0) == 0).any():
        return float("nan"), float("nan")
    result = stats.spearmanr(pairs[:, 0], pairs[:, 1])
    return float(result.statistic), float(result.pvalue)
