"""How the claims of Kim's thesis read the ledgers: lines of JSON, and comparisons with their 95 % intervals.

Differences between models are paired: by seed (Student's t), by class or by test episode. Shares are by Wilson's
interval, differences of two shares by Newcombe's. What is computed and not sampled has no interval: its ends are the
figure itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from studies.claims.claim import Claim, Compared
from studies.paired_seeds import mean_interval, paired_t
from studies.places import located

NORMAL = 1.959963984540054


def ledger(name: str) -> list[dict[str, Any]]:
    """The lines of a study's ledger, which nobody may change."""
    path = located(f"studies/{name}/ledger.jsonl")
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read(path: Path, written: int) -> list[dict[str, Any]]:
    """Read once until it is written anew."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def once_run(claim: Claim, name: str, parts: Mapping[str, int]) -> Claim:
    """The claim if its study is finished; else it says so.

    Args:
        claim: with evidence.
        name: of the study.
        parts: to how many lines of each the evidence needs.
    """
    there = [line["part"] for line in ledger(name)] if located(f"studies/{name}/ledger.jsonl").exists() else []
    if all(there.count(part) >= count for part, count in parts.items()):
        return claim
    return replace(claim, evidence=None, why_not=f"Not run yet: `{claim.command}`, some minutes.")


def kept(name: str) -> Any:
    """What a study's `result.json` holds."""
    return json.loads(located(f"studies/{name}/result.json").read_text(encoding="utf-8"))


def array(path: str, key: str) -> np.ndarray:
    """One array of an .npz file, in float64."""
    with np.load(located(path)) as found:
        return found[key].astype(np.float64)


def by_seed(
    what: str, first: Mapping[Any, float], second: Mapping[Any, float], *, scale: float = 1.0, **expected: Any
) -> Compared:
    """The first minus the second, seed to value, paired."""
    test = paired_t(first, second)
    if test is None:
        raise ValueError(f"{what!r} needs two seeds that both have: finish the study")
    return Compared(what, scale * test.mean, scale * test.low, scale * test.high, **expected)


def mean_of(what: str, values: Sequence[float], *, scale: float = 1.0, **expected: Any) -> Compared:
    """The mean of independent values, by Student's t."""
    value, low, high = mean_interval(scale * np.asarray(values, dtype=np.float64))
    return Compared(what, value, low, high, **expected)


def unpaired(what: str, first: Any, second: Any, *, scale: float = 1.0, **expected: Any) -> Compared:
    """The mean of the first minus that of the second, values (m,) and (n,) of different things, by Welch's t."""
    first, second = (scale * np.asarray(values, dtype=np.float64) for values in (first, second))
    if np.ptp(first) == np.ptp(second) == 0:
        return exact(what, float(first.mean() - second.mean()), **expected)
    ends = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return Compared(what, float(first.mean() - second.mean()), float(ends.low), float(ends.high), **expected)


def episodes(what: str, differences: np.ndarray, *, scale: float = 100.0, **expected: Any) -> Compared:
    """The mean of paired differences (n,) of many test episodes."""
    mean, half = differences.mean(), NORMAL * differences.std(ddof=1) / np.sqrt(len(differences))
    return Compared(what, *(float(scale * value) for value in (mean, mean - half, mean + half)), **expected)


def exact(what: str, value: float, **expected: Any) -> Compared:
    """What is computed and not sampled."""
    return Compared(what, value, value, value, **expected)


def share(what: str, hits: int, of: int, *, scale: float = 100.0, **expected: Any) -> Compared:
    """A share of independent cases."""
    low, high = wilson(hits, of)
    return Compared(what, scale * hits / of, scale * low, scale * high, **expected)


def share_difference(
    what: str, first: tuple[int, int], second: tuple[int, int], *, scale: float = 100.0, **expected: Any
) -> Compared:
    """The first share minus the second, each as hits and cases."""
    (p, p_low, p_high), (q, q_low, q_high) = ((hits / of, *wilson(hits, of)) for hits, of in (first, second))
    low = p - q - np.hypot(p - p_low, q_high - q)
    high = p - q + np.hypot(p_high - p, q - q_low)
    return Compared(what, *(float(scale * value) for value in (p - q, low, high)), **expected)


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Ends of the interval of a share."""
    ends = stats.binomtest(int(hits), int(of)).proportion_ci(0.95, method="wilson")
    return float(ends.low), float(ends.high)


def pearson(what: str, first: Sequence[float], second: Sequence[float], **expected: Any) -> Compared:
    """Pearson's correlation of points, by Fisher's transformation."""
    found = stats.pearsonr(first, second)
    ends = found.confidence_interval(0.95)
    return Compared(what, float(found.statistic), float(ends.low), float(ends.high), **expected)


def told(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """Mean and half of its interval, as tables show them."""
    value, low, _ = mean_interval(scale * np.asarray(values, dtype=np.float64))
    return f"{value:.{digits}f}" if np.isnan(low) else f"{value:.{digits}f} ± {value - low:.{digits}f}"
