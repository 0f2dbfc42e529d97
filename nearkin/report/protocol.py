"""Recipes compared under one protocol: what a line of the table holds, and the picture of all lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nearkin.report._canvas import BLUE, INK, MUTED, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report.comparison import Difference
from nearkin.report.formatting import MISSING, interval_text, shorten, value_text

SEPARATE, CONCATENATED = "separate", "concatenated"
KINDS = (SEPARATE, CONCATENATED)
_NOTHING = (math.nan, math.nan, math.nan)
_STYLES = {SEPARATE: (BLUE, "o", "one model"), CONCATENATED: (VERMILION, "s", "models of all folds, concatenated")}
_APART = 0.17


@dataclass(frozen=True)
class BenchmarkRow:
    """One recipe of a benchmark.

    Args:
        name: what it is called.
        values: kind to metric to (mean, low, high); kinds are "separate" and "concatenated".
        spread: kind to the standard deviation of MAP@R over the seeds; NaN for a single seed.
        validation: mean MAP@R on the classes that chose the weights.
        against: what it is compared with, if anything.
        differences: kind to the difference of MAP@R to that.
        finished: models that are trained and measured.
        planned: models there shall be.
        seconds: time the finished models took.
        ranges: kind to the least and the greatest NMI of its measurements; absent for a single one.
    """

    name: str
    values: Mapping[str, Mapping[str, tuple[float, float, float]]]
    spread: Mapping[str, float] = field(default_factory=dict)
    validation: float = math.nan
    against: str = ""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    finished: int = 0
    planned: int = 0
    seconds: float = 0.0
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def value(self, kind: str, metric: str) -> tuple[float, float, float]:
        """Mean and interval, NaN where there are none."""
        return self.values.get(kind, {}).get(metric, _NOTHING)

    def texts(self, kind: str, metric: str) -> list[str]:
        """A mean in percent and, in a line of its own, its interval where there is one."""
        value, low, high = self.value(kind, metric)
        interval = interval_text(low, high, True)
        return [value_text(value, True), *([interval] if interval != MISSING else [])]


def draw_benchmark(rows: Sequence[BenchmarkRow], title: str, *, untrained: float = math.nan) -> bytes:
    """Draw the MAP@R of every recipe with its intervals, of single models and of all folds together.

    Args:
        rows: the recipes, from top to bottom.
        title: what was measured how.
        untrained: MAP@R without training, drawn as a line; NaN draws none.

    Returns:
        PNG bytes, or none when nothing is finished.
    """
    drawn = [row for row in rows if any(math.isfinite(row.value(kind, "MAP@R")[0]) for kind in KINDS)]
    if not drawn:
        return b""
    both = any(math.isfinite(row.value(CONCATENATED, "MAP@R")[0]) for row in drawn)
    with drawing(WIDTH, 150 + (44 if both else 30) * len(drawn)) as figure:
        axes = figure.add_subplot()
        labelled: set[str] = set()
        for height, row in enumerate(drawn):
            for kind in KINDS:
                value, low, high = row.value(kind, "MAP@R")
                if not math.isfinite(value):
                    continue
                colour, marker, label = _STYLES[kind]
                at = height + (0.0 if not both else _APART if kind == CONCATENATED else -_APART)
                if math.isfinite(low) and math.isfinite(high):
                    axes.plot([low, high], [at, at], color=colour, linewidth=2.4, solid_capstyle="round")
                name = label if kind not in labelled else None
                axes.plot(value, at, marker, linestyle="none", color=colour, markersize=7, label=name)
                labelled.add(kind)
                axes.annotate(
                    value_text(value, True),
                    # Behind the interval: above the dots, rows close to each other would overwrite one another.
                    (high if math.isfinite(high) else value, at),
                    xytext=(8, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color=INK,
                )
        if math.isfinite(untrained):
            axes.axvline(untrained, color=MUTED, linewidth=1.4, linestyle="--", label="untrained features", zorder=1)
        axes.set_yticks(range(len(drawn)), [shorten(row.name, 40) for row in drawn], color=INK)
        axes.set_ylim(len(drawn) - 0.4, -0.65)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        axes.set_xlabel("MAP@R with 95 % intervals")
        axes.margins(x=0.08)
        percent_axis(axes, "x")
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
        return to_png(figure)
