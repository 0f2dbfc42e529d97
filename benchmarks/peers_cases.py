"""What a measured comparison is: contenders that take turns on the same inputs, and whether their answers agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bars import in_turns

OURS = "nearkin"


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        theme: the group it is in.
        what: what is computed, and of how much.
        contenders: who computes it, by name, `OURS` first; each gives its answer.
        same: whether the answers of ours and of another are the same thing; None where both draw at random.
        repeats: calls in a turn, so that a turn is much longer than a tick of the clock.
        note: what a reader must know, such as that ours calls the other.
        large: left out of quick runs.
    """

    theme: str
    what: str
    contenders: Mapping[str, Callable[[], Any]]
    same: Callable[[Any, Any], bool] | None
    repeats: int = 1
    note: str = ""
    large: bool = False


def measure(case: Case, rounds: int) -> list[dict[str, Any]]:
    """A line for each contender, with its time as a multiple of ours: the median and the range over rounds."""
    answers = {name: run() for name, run in case.contenders.items()}
    for name, answer in answers.items():
        if case.same is not None and not case.same(answers[OURS], answer):
            raise SystemExit(f"{case.what}: {OURS} says {answers[OURS]} and {name} says {answer}")
    runs = {name: _repeated(run, case.repeats) for name, run in case.contenders.items()}
    times = in_turns(runs, rounds, warm=1)
    lines = []
    for name, seconds in times.items():
        ratios = [theirs / ours for theirs, ours in zip(seconds, times[OURS], strict=True)]
        lines.append(
            {
                "theme": case.theme,
                "what": case.what,
                "contender": name,
                "milliseconds": _digits(1000 * median(seconds) / case.repeats),
                "ratio": _digits(median(ratios)),
                "low": _digits(min(ratios)),
                "high": _digits(max(ratios)),
                "checked": case.same is not None,
                "note": case.note if name == OURS else "",
            }
        )
    return lines


def _repeated(run: Callable[[], Any], times: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(times):
            run()

    return repeated


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
