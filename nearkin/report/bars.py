"""Bars and dots side by side: models by measure, the difference of two runs class by class, and F1 class by class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLACK, BLUE, FAINT, INK, MUTED, SERIES, VERMILION, WIDTH
from nearkin.report.comparison import Column
from nearkin.report.lines import legend_height, legend_labels
from nearkin.report.values import LOWER, change_text, level_text, plain_numbers, shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HIGHER = "↑"  # beside the name of a measure of which more is better
_HATCHES = ("", "////", "||||", "xxxx", "\\\\\\\\", "----", "++++", "....")
_ACROSS = {1: 1, 2: 2, 3: 3, 4: 2}  # panels side by side, by how many there are; of more, three
_ROW, _RIM = 18, 62  # heights in CSS pixels: of a bar, and of what is around the bars of a panel
_NAMES, _NUMBER = 178, 52  # widths in CSS pixels: of the bars' names, and of the numbers beside a panel
_NAME_SIZE, _TITLE_SIZE, _NUMBER_SIZE = 8.5, 10, 7.5  # points
_GAP = 0.35  # of a row: what a dashed line has around it
_THICK = 0.72  # of a row
_ABOVE, _BELOW = 0.16, 0.17  # of a row: intervals lie above the middle of a bar and dots below, so that both are seen
_NEAR = 0.65  # of the highest value: bars that all reach beyond begin later than at 0
_LEGEND: Any = {"handlelength": 1.6, "borderpad": 0.2}
_DOT: Any = {"marker": "o", "linestyle": "", "markersize": 3.0, "markerfacecolor": "white", "markeredgewidth": 0.8}


@dataclass(frozen=True)
class Bar:
    """What a model reached, trained in one way.

    Args:
        model: its name; bars of one model share a colour.
        option: how it was trained; bars of one option share a hatching. May be empty.
        values: measure to (value, low, high); NaN bounds mean no interval.
        runs: measure to the values of single runs (m,), drawn as dots.
        part: what the bar belongs to; a dashed line separates parts, whose names head them.
        label: what is written beside it, instead of model and option.
    """

    model: str
    option: str = ""
    values: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    runs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    part: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        """The label, else model and option."""
        if self.label:
            return self.label
        return f"{self.model}, {self.option}" if self.option else self.model

    def value(self, measure: str) -> tuple[float, float, float]:
        """Value and interval of a measure, NaN where there is none."""
        given = plain_numbers(self.values.get(measure, (math.nan,) * 3), f"values of '{self.name}'")
        if given.shape != (3,):
            raise DataError(
                f"The {measure} of '{self.name}' must be three numbers (value, low, high), but has shape {given.shape}."
            )
        value, low, high = given.tolist()
        if low > high:
            raise DataError(
                f"The interval of '{self.name}' in {measure} ends below its start: give the lower end first."
            )
        return (value, low, high) if math.isfinite(value) else (math.nan,) * 3

    def dots(self, measure: str) -> np.ndarray:
        """Finite values (m,) of single runs."""
        given = plain_numbers(self.runs.get(measure, ()), f"runs of '{self.name}'").ravel()
        return given[np.isfinite(given)]


def draw_bars(bars: Sequence[Bar], columns: Sequence[Column | str], *, level: float = 0.95) -> bytes:
    """Draw one panel a measure and in it one bar a model, with its interval, its number, and a dot for each run.

    Arrows in the titles tell whether more or less is better. Where all bars are long, they begin later than at 0, and
    the axis says so. Reference: Kim 2023, article IV, figures 3 to 8.

    Args:
        bars: in the order they are drawn in, from the top; those of a part come together. One without any value is
            left out.
        columns: the measures, or just the name of a share of which more is better. One without any value is left out.
        level: of the intervals, for the legend.

    Returns:
        PNG bytes, or empty bytes when there is no value.
    """
    asked = [Column(column) if isinstance(column, str) else column for column in columns]
    kept = [column for column in asked if any(math.isfinite(bar.value(column.metric)[0]) for bar in bars)]
    shown = [bar for bar in bars if any(math.isfinite(bar.value(column.metric)[0]) for column in kept)]
    if not shown:
        return b""
    rows = _BarRows(shown)
    across = _ACROSS.get(len(kept), 3)
    marks = _marks(shown, kept, level)
    legend = legend_height([one.get_label() for one in marks])
    with canvas.drawing(WIDTH, -(-len(kept) // across) * (_RIM + _ROW * rows.height) + legend) as figure:
        for place, (axes, column) in enumerate(
            zip(canvas.panel_grid(figure, len(kept), across, sharey=True), kept, strict=True)
        ):
            _draw_panel(axes, rows, column)
            axes.locator_params(axis="x", nbins=6 - across)
            title = canvas.fit_text(column.metric, (WIDTH - _NAMES) / across - _NUMBER, _TITLE_SIZE, "bold")
            axes.set_title(f"{title} {LOWER if column.lower_is_better else HIGHER}", fontsize=_TITLE_SIZE)
            if place % across == 0:
                rows.write_names(axes)
        canvas.draw_legend(figure, marks, len(marks), columnspacing=1.6, **_LEGEND)
        return canvas.to_png(figure)


class _BarRows:
    """Where the bars lie, from the top: those of a part below its name, a dashed line between parts."""

    def __init__(self, bars: Sequence[Bar]) -> None:
        models = list(dict.fromkeys(bar.model for bar in bars))
        options = list(dict.fromkeys(bar.option for bar in bars if bar.option))
        self.bars: list[tuple[float, Bar, dict[str, Any]]] = []
        self.heads: list[tuple[float, str]] = []
        self.lines: list[float] = []
        top = 0.0
        for part in dict.fromkeys(bar.part for bar in bars):
            if self.bars:
                self.lines.append(top + _GAP / 2 - 0.5)
                top += _GAP
            if part:
                self.heads.append((top, part))
                top += 1
            for bar in bars:
                if bar.part == part:
                    colour = SERIES[models.index(bar.model) % len(SERIES)]
                    hatch = _HATCHES[options.index(bar.option) % len(_HATCHES)] if bar.option else ""
                    self.bars.append((top, bar, {"color": colour, "hatch": hatch}))
                    top += 1
        self.height = top

    def write_names(self, axes: Axes) -> None:
        """Names on the left of a panel, those of parts in bold."""
        names = [(top, bar.name, "normal") for top, bar, _ in self.bars]
        names += [(top, part, "bold") for top, part in self.heads]
        axes.tick_params(axis="y", labelleft=True)
        labels = [canvas.fit_text(name, _NAMES, _NAME_SIZE, weight) for _, name, weight in names]
        axes.set_yticks([top for top, *_ in names], labels, color=INK, fontsize=_NAME_SIZE)
        for tick, (_, _, weight) in zip(axes.get_yticklabels(), names, strict=True):
            tick.set_fontweight(weight)


def _draw_panel(axes: Axes, rows: _BarRows, column: Column) -> None:
    """The bars of one measure, each with its number on the right."""
    start, end = _limits([bar for _, bar, _ in rows.bars], column.metric)
    for top, bar, look in rows.bars:
        value, low, high = bar.value(column.metric)
        if math.isfinite(value):
            left = max(start, 0.0) if value >= 0 else 0.0
            axes.barh(top, value - left, left=left, height=_THICK, linewidth=0, edgecolor="white", **look)
        if math.isfinite(low) and math.isfinite(high):
            axes.plot([low, high], [top - _ABOVE] * 2, color=INK, linewidth=1.6, solid_capstyle="butt", zorder=4)
        dots = bar.dots(column.metric)
        axes.plot(dots, np.full(len(dots), top + _BELOW), markeredgecolor=INK, zorder=5, **_DOT)
        number = value_text(value, column.percent)
        canvas.note(axes, number, (1, top), (3, 0), ("axes fraction", "data"), va="center", fontsize=_NUMBER_SIZE)
    for height in rows.lines:
        axes.axhline(height, color=MUTED, linewidth=1.1, linestyle=(0, (5, 3)), zorder=3)
    axes.set_xlim(start, end)
    axes.set_ylim(rows.height - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    if start > 0:
        axes.set_xlabel("the axis does not begin at 0", fontsize=8)
    if start < 0:
        axes.axvline(0, color=INK, linewidth=0.9)
    if column.percent:
        canvas.percent_axis(axes, "x")


def _limits(bars: Sequence[Bar], measure: str) -> tuple[float, float]:
    """Where a panel begins and ends: at 0 at the latest, unless that would leave little to see of what differs."""
    seen = np.concatenate([[*bar.value(measure), *bar.dots(measure)] for bar in bars])
    seen = seen[np.isfinite(seen)]
    low, high = float(seen.min()), float(seen.max())
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.01
    if low > _NEAR * high:
        return max(0.0, low - 3 * room), high + room
    return (low - room if low < 0 else 0.0), (high + room if high > 0 else room)


def _marks(bars: Sequence[Bar], columns: Sequence[Column], level: float) -> list[Any]:
    """What the legend explains: a bar, and where there are some, intervals and dots."""
    from matplotlib.patches import Patch

    cells = [(bar, column.metric) for bar in bars for column in columns]
    marks: list[Any] = [Patch(facecolor=MUTED, label="mean")]
    if any(math.isfinite(bar.value(measure)[1]) for bar, measure in cells):
        marks.append(canvas.mark(level_text(level), color=INK, linewidth=1.6))
    if any(len(bar.dots(measure)) for bar, measure in cells):
        marks.append(canvas.mark("single runs", markeredgecolor=INK, **_DOT))
    return marks


_MOST_NAMED_BARS = 40  # more classes than this cannot be told by name
_ENDS = 3  # of more classes, so many are named at either end
_BACKGROUND: Any = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}


def draw_class_differences(
    differences: Mapping[str, float], ahead: str, behind: str, metric: str, *, percent: bool = True
) -> bytes:
    """Draw the differences of all classes, sorted, with their mean.

    Up to forty classes are bars with names; more are one falling line of bars with the ends named.

    Args:
        differences: class to the value of one run minus that of the other.
        ahead: the one run.
        behind: the other.
        metric: what is compared.
        percent: whether the values are shares of 1, shown in percent.

    Returns:
        PNG bytes, or none when no difference is finite.
    """
    finite = {str(name): float(value) for name, value in differences.items() if math.isfinite(value)}
    if not finite:
        return b""
    ranked = sorted(finite.items(), key=lambda pair: -pair[1])
    few = len(ranked) <= _MOST_NAMED_BARS
    mean = sum(finite.values()) / len(finite)
    label = f"difference in {shorten(metric, 24)}" + (", percentage points" if percent else "")
    dashed = f"dashed: mean {change_text(mean, 0.0, percent)}"
    line: Any = {"color": MUTED, "linewidth": 1.4, "linestyle": "--"}
    with canvas.drawing(WIDTH, 130 + 22 * len(ranked) if few else 420) as figure:
        axes = figure.add_subplot()
        if few:
            _draw_few(axes, ranked, percent)
            axes.axvline(mean, **line, zorder=1.5)
            axes.set_xlabel(f"{label} ({dashed})")
        else:
            _draw_many(axes, ranked, percent)
            axes.axhline(mean, **line)
            axes.set(ylabel=label, xlabel=f"{len(ranked):,} classes, sorted ({dashed})")
        if percent:
            axis = axes.xaxis if few else axes.yaxis
            axis.set_major_formatter(lambda share, _: f"{100 * share:.4g}".replace("-", "−"))
        wins, losses = sum(value > 0 for value in finite.values()), sum(value < 0 for value in finite.values())
        lead = f"{shorten(ahead, 24)} ahead in {wins}, {shorten(behind, 24)} in {losses}"
        axes.set_title(f"{lead} of {len(ranked)} classes")
        return canvas.to_png(figure)


def _draw_few(axes: Axes, ranked: list[tuple[str, float]], percent: bool) -> None:
    """A bar a class, named, the largest lead on top."""
    values = [value for _, value in ranked]
    axes.barh(range(len(values)), values, color=[BLUE if value >= 0 else VERMILION for value in values], height=0.7)
    canvas.name_rows(axes, [shorten(name, 28) for name, _ in ranked], 9)
    axes.axvline(0, color=INK, linewidth=1)
    axes.margins(x=0.14)
    for height, value in enumerate(values):
        side, shift = ("left", 4) if value >= 0 else ("right", -4)
        look: Any = {"ha": side, "va": "center", "fontsize": 8, "bbox": _BACKGROUND}
        canvas.note(axes, change_text(value, 0.0, percent), (value, height), (shift, 0), **look)


def _draw_many(axes: Axes, ranked: list[tuple[str, float]], percent: bool) -> None:
    """Bars side by side, the first and last few named in the corner that sorting leaves free."""
    values = [value for _, value in ranked]
    # One outline each for leads and lags: thousands of single bars take seconds to draw.
    axes.stairs([max(value, 0.0) for value in values], fill=True, color=BLUE)
    axes.stairs([min(value, 0.0) for value in values], fill=True, color=VERMILION)
    axes.axhline(0, color=INK, linewidth=1)
    axes.set(xticks=[], xlim=(0, len(ranked)))
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.08)
    told = [f"{shorten(name, 28)}  {change_text(value, 0.0, percent)}" for name, value in ranked]
    words = ["highest:", *told[:_ENDS], "lowest:", *told[-_ENDS:]]
    above = values[0] >= -values[-1]  # falling bars leave the upper right corner free, or the lower left one
    _write_corner(axes, words, (0.98, 0.97) if above else (0.02, 0.03))


def _write_corner(axes: Axes, lines: Sequence[str], at: tuple[float, float], **box: float) -> None:
    """Lines in the upper right or the lower left corner, where falling values leave room."""
    ends: Any = {"ha": "right", "va": "top"} if at[0] > 0.5 else {"ha": "left", "va": "bottom"}
    canvas.note(
        axes, "\n".join(lines), at, of="axes fraction", fontsize=8, zorder=6, bbox={**_BACKGROUND, **box}, **ends
    )


_ONE_COLUMN = 32  # classes that are named below one another
_MOST_NAMED_ROWS = 100  # classes that are named at all
_F1_ROW, _F1_FRAME = 17, 62  # heights in CSS pixels: of a class, and of what is around them
_NAME_WIDTH = 165
_CURVE = 400  # height of the picture of more classes
_FIRST, _OTHERS = 5.0, 6.6  # diameters in points: what lies below shows around what lies on it
_GREYS = ("#8a939e", "#b4bbc4", "#5c6670")
_MARKERS = ("o", "s", "^", "D")

Scores = Mapping[str, Mapping[str, float]]


def draw_f1(scores: Scores) -> bytes:
    """Draw the F1 of each class as dots, the classes sorted by the first classifier's: it in black, others in grey.

    Up to a hundred classes are named; of more, the best and the worst.

    Args:
        scores: classifier to class to F1 in [0, 1]; all of the same classes.

    Returns:
        PNG bytes, or none when there is no class.
    """
    table = {name: {str(one): float(value) for one, value in values.items()} for name, values in scores.items()}
    if not table or not any(table.values()):
        return b""
    first = next(iter(table.values()))
    for name, values in table.items():
        if values.keys() != first.keys():
            raise DataError(f"'{name}' and '{next(iter(table))}' have different classes: give F1 of the same classes.")
    ranked = sorted(first, key=lambda one: (-first[one], one))
    lines = {name: np.array([values[one] for one in ranked]) for name, values in table.items()}
    labels = legend_labels(lines, {name: float(line.mean()) for name, line in lines.items()}, "macro F1")
    columns = 1 if len(ranked) <= _ONE_COLUMN else 2
    rows = -(-len(ranked) // columns)
    height = _F1_FRAME + _F1_ROW * rows if len(ranked) <= _MOST_NAMED_ROWS else _CURVE
    with canvas.drawing(WIDTH, height + legend_height(labels)) as figure:
        if len(ranked) <= _MOST_NAMED_ROWS:
            for place, axes in enumerate(canvas.panel_grid(figure, columns, columns)):
                part = slice(place * rows, (place + 1) * rows)
                _draw_named(axes, ranked[part], [line[part] for line in lines.values()], rows)
        else:
            _draw_curve(figure.subplots(), ranked, list(lines.values()))
        marks = [canvas.mark(label, **_classifier_look(place)) for place, label in enumerate(labels)]
        canvas.draw_legend(figure, marks, min(3, len(marks)), columnspacing=1.6, **{**_LEGEND, "handlelength": 1.2})
        return canvas.to_png(figure)


def _draw_named(axes: Axes, names: Sequence[str], lines: Sequence[np.ndarray], rows: int) -> None:
    """A row for each class, the best on top; a thin line joins what classifiers say of it."""
    heights = np.arange(len(names))
    axes.hlines(heights, np.min(lines, axis=0), np.max(lines, axis=0), color=FAINT, linewidth=1.2, zorder=2)
    for place, line in enumerate(lines):
        axes.plot(line, heights, **_classifier_look(place))
    canvas.name_rows(axes, [canvas.fit_text(name, _NAME_WIDTH, 8) for name in names], 8)
    axes.grid(axis="y", visible=True)
    axes.set(
        xlim=(-0.03, 1.03), ylim=(rows - 0.4, -0.6), xlabel="F1"
    )  # the last column may be shorter: rows stay level
    canvas.percent_axis(axes, "x")


def _draw_curve(axes: Axes, names: Sequence[str], lines: Sequence[np.ndarray]) -> None:
    """A column for each class, the best on the left; the ends are named where falling dots leave room."""
    for place, line in enumerate(lines):
        axes.plot(line, **{**_classifier_look(place), "markersize": 3.4 if place == 0 else 3.8})
    axes.set(xticks=[], xlim=(-0.01 * len(names), 1.01 * len(names)), ylim=(-0.03, 1.03))
    axes.set(ylabel="F1", xlabel=f"{len(names):,} classes, sorted")
    axes.grid(axis="x", visible=False)
    canvas.percent_axis(axes, "y")
    told = [
        f"{shorten(name, 36)}  {value_text(value, percent=True)}" for name, value in zip(names, lines[0], strict=True)
    ]
    _write_corner(axes, ["highest:", *told[:_ENDS]], (0.985, 0.97), pad=1.5)
    _write_corner(axes, ["lowest:", *told[-_ENDS:]], (0.015, 0.03), pad=1.5)


def _classifier_look(place: int) -> dict[str, Any]:
    """The first classifier in black on top, the others in greys and shapes of their own."""
    return {
        "linestyle": "none",
        "color": BLACK if place == 0 else _GREYS[(place - 1) % len(_GREYS)],
        "marker": _MARKERS[(place - 1) % len(_MARKERS)] if place else "o",
        "markersize": _FIRST if place == 0 else _OTHERS,
        "markeredgewidth": 0,
        "zorder": 5 if place == 0 else 3,
    }
