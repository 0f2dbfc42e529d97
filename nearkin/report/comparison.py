"""Comparison of runs and recipes: their values, the best, and the differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nearkin.report import canvas
from nearkin.report.canvas import BLUE, INK, MUTED, VERMILION, WIDTH
from nearkin.report.values import MISSING, change_text, interval_text, p_text, shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_NOTHING = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class ComparisonRow:
    """One run.

    Args:
        run: its name.
        recipe: the recipe it came from.
        values: metric -> (value, low, high); NaN bounds mean no interval.
    """

    run: str
    recipe: str
    values: Mapping[str, tuple[float, float, float]]

    def value(self, metric: str) -> tuple[float, float, float]:
        """Value and interval of a metric, NaN where the run does not have it."""
        return self.values.get(metric, _NOTHING)


@dataclass(frozen=True)
class Column:
    """A metric to compare by.

    Args:
        metric: key in the rows' values.
        percent: whether it is a share of 1, shown in percent.
        lower_is_better: the direction.
    """

    metric: str
    percent: bool = True
    lower_is_better: bool = False


@dataclass(frozen=True)
class PairedDifference:
    """How far a run is from the one it is compared with, over the classes both were measured on.

    Args:
        mean: mean of the differences of the classes.
        low: lower end of its interval.
        high: upper end of its interval.
        p_value: how often chance alone makes a difference as large; NaN means that it was not tested.
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan

    def lines(self, percent: bool) -> list[str]:
        """The difference, its interval and its p-value as lines of text; what is not known is left out."""
        unit = " points" if percent else ""
        text = [change_text(self.mean, 0.0, percent) + unit]
        ends = [change_text(end, 0.0, percent) for end in (self.low, self.high)]
        if MISSING not in ends:
            text.append(" to ".join(ends))
        if math.isfinite(self.p_value):
            text.append(p_statement(self.p_value))
        return text


@dataclass(frozen=True)
class Contrast:
    """The differences of runs to one of them, in one metric.

    Args:
        metric: in what they are compared.
        reference: place of the run the others are compared with.
        heading: how a table calls that run.
        differences: place of a run to its difference; a run without one could not be compared.
    """

    metric: str
    reference: int
    heading: str
    differences: Mapping[int, PairedDifference]

    def cell(self, place: int, percent: bool) -> list[str]:
        """What the table says of a run, as lines of text."""
        if place == self.reference:
            return ["reference"]
        difference = self.differences.get(place)
        return [MISSING] if difference is None else difference.lines(percent)


def p_statement(p_value: float) -> str:
    """A p-value as text: `p = 0.034`, or `p < 0.001`."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_text(p_value)}"


def all_columns(rows: Sequence[ComparisonRow]) -> list[Column]:
    """A column for every metric any row has, in order of appearance."""
    return [Column(metric) for metric in dict.fromkeys(metric for row in rows for metric in row.values)]


def best_rows(rows: Sequence[ComparisonRow], column: Column) -> set[int]:
    """Places of the rows with the best value; nothing is best among fewer than two."""
    values = {place: row.value(column.metric)[0] for place, row in enumerate(rows)}
    finite = {place: value for place, value in values.items() if math.isfinite(value)}
    if len(finite) < 2:
        return set()
    best = min(finite.values()) if column.lower_is_better else max(finite.values())
    return {place for place, value in finite.items() if value == best}


def draw_comparison(rows: Sequence[ComparisonRow], column: Column | str) -> bytes:
    """Draw a dot with its interval for every run, the best on top.

    Args:
        rows: the runs.
        column: the metric, or just its name for a share of which more is better.

    Returns:
        PNG bytes, or none when no run has the metric.
    """
    column = Column(column) if isinstance(column, str) else column
    best = best_rows(rows, column)
    kept = [place for place, row in enumerate(rows) if math.isfinite(row.value(column.metric)[0])]
    if not kept:
        return b""
    kept.sort(key=lambda place: rows[place].value(column.metric)[0], reverse=not column.lower_is_better)
    with canvas.drawing(WIDTH, 90 + 34 * len(kept)) as figure:
        axes = figure.add_subplot()
        for height, place in enumerate(kept):
            given = rows[place].value(column.metric)
            colour, marker = (BLUE, "D") if place in best else (MUTED, "o")
            _draw_interval(axes, given, height, colour, marker, 8)
            canvas.note(axes, value_text(given[0], column.percent), (given[0], height), (0, 7), ha="center", **_NUMBER)
        canvas.name_rows(axes, [shorten(rows[place].run, 32) for place in kept], 10, (0.5, 0.75))
        axes.set_title(f"{shorten(column.metric, 40)} ({'lower' if column.lower_is_better else 'higher'} is better)")
        axes.margins(x=0.08)
        if column.percent:
            canvas.percent_axis(axes, "x")
        return canvas.to_png(figure)


def _draw_interval(
    axes: Axes, given: tuple[float, float, float], height: float, colour: str, marker: str, size: float
) -> Line2D:
    """A mark at a value and a line from low to high, where these are finite."""
    value, low, high = given
    if math.isfinite(low) and math.isfinite(high):
        axes.plot([low, high], [height, height], color=colour, linewidth=2.4, solid_capstyle="round")
    return axes.plot(value, height, marker, linestyle="none", color=colour, markersize=size)[0]


_NUMBER: Any = {"fontsize": 8, "color": INK}
SEPARATE, CONCATENATED = "separate", "concatenated"
MODEL_KINDS = (SEPARATE, CONCATENATED)
_KIND_STYLES = {SEPARATE: (BLUE, "o", "one model"), CONCATENATED: (VERMILION, "s", "models of all folds, concatenated")}
_KINDS_APART = 0.17


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
    differences: Mapping[str, PairedDifference] = field(default_factory=dict)
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
    drawn = [row for row in rows if any(math.isfinite(row.value(kind, "MAP@R")[0]) for kind in MODEL_KINDS)]
    if not drawn:
        return b""
    both = any(math.isfinite(row.value(CONCATENATED, "MAP@R")[0]) for row in drawn)
    with canvas.drawing(WIDTH, 150 + (44 if both else 30) * len(drawn)) as figure:
        axes = figure.add_subplot()
        labels = {kind: label for kind, (_, _, label) in _KIND_STYLES.items()}
        for place, row in enumerate(drawn):
            for kind, (colour, marker, _) in _KIND_STYLES.items():
                value, low, high = row.value(kind, "MAP@R")
                if not math.isfinite(value):
                    continue
                height = place + (0.0 if not both else _KINDS_APART if kind == CONCATENATED else -_KINDS_APART)
                dot = _draw_interval(axes, (value, low, high), height, colour, marker, 7)
                dot.set_label(labels.pop(kind, "_"))
                # Behind the interval: above the dots, rows close to each other would overwrite one another.
                end = high if math.isfinite(high) else value
                canvas.note(axes, value_text(value, True), (end, height), (8, 0), va="center", **_NUMBER)
        if math.isfinite(untrained):
            axes.axvline(untrained, color=MUTED, linewidth=1.4, linestyle="--", label="untrained features", zorder=1)
        canvas.name_rows(axes, [shorten(row.name, 40) for row in drawn], 10, (0.4, 0.65))
        axes.set(title=title, xlabel="MAP@R with 95 % intervals")
        axes.margins(x=0.08)
        canvas.percent_axis(axes, "x")
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
        return canvas.to_png(figure)
