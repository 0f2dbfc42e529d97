"""Models beside one another: a bar with its interval for each, a dot for every run, one panel a measure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import INK, MUTED, SERIES, WIDTH, drawing, percent_axis, to_png
from nearkin.report._lines import fit_text, legend_height, plain_numbers
from nearkin.report.comparison import Column
from nearkin.report.formatting import LOWER, level_text, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
            raise DataError(f"The interval of '{self.name}' in {measure} ends below its beginning: give low first.")
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
        PNG bytes, or none when there is no value.
    """
    asked = [Column(column) if isinstance(column, str) else column for column in columns]
    kept = [column for column in asked if any(math.isfinite(bar.value(column.metric)[0]) for bar in bars)]
    shown = [bar for bar in bars if any(math.isfinite(bar.value(column.metric)[0]) for column in kept)]
    if not shown:
        return b""
    rows = _Rows(shown)
    across = _ACROSS.get(len(kept), 3)
    down = -(-len(kept) // across)
    marks = _marks(shown, kept, level)
    with drawing(
        WIDTH, down * (_RIM + _ROW * rows.height) + legend_height([mark.get_label() for mark in marks])
    ) as figure:
        grid = figure.subplots(down, across, sharey=True, squeeze=False)
        for place, (axes, column) in enumerate(zip(grid.flat, kept, strict=False)):
            _draw_panel(axes, rows, column)
            axes.locator_params(axis="x", nbins=6 - across)
            room = (WIDTH - _NAMES) / across - _NUMBER
            title = fit_text(column.metric, room, _TITLE_SIZE, "bold")
            axes.set_title(f"{title} {LOWER if column.lower_is_better else HIGHER}", fontsize=_TITLE_SIZE)
            if place % across == 0:
                rows.write_names(axes)
        for axes in grid.flat[len(kept) :]:
            axes.remove()
        _legend(figure, marks)
        return to_png(figure)


class _Rows:
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
        labels = [fit_text(name, _NAMES, _NAME_SIZE, weight) for _, name, weight in names]
        axes.set_yticks([top for top, *_ in names], labels, color=INK, fontsize=_NAME_SIZE)
        for tick, (_, _, weight) in zip(axes.get_yticklabels(), names, strict=True):
            tick.set_fontweight(weight)


def _draw_panel(axes: Axes, rows: _Rows, column: Column) -> None:
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
        axes.annotate(
            value_text(value, column.percent),
            (1, top),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=_NUMBER_SIZE,
        )
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
        percent_axis(axes, "x")


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
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    measures = [column.metric for column in columns]
    marks: list[Any] = [Patch(facecolor=MUTED, label="mean")]
    if any(math.isfinite(bar.value(measure)[1]) for bar in bars for measure in measures):
        marks.append(Line2D([], [], color=INK, linewidth=1.6, label=level_text(level)))
    if any(len(bar.dots(measure)) for bar in bars for measure in measures):
        marks.append(Line2D([], [], markeredgecolor=INK, label="single runs", **_DOT))
    return marks


def _legend(figure: Figure, marks: Sequence[Any]) -> None:
    options: Any = {"loc": "outside upper left", "fontsize": 9, "handlelength": 1.6, "borderpad": 0.2}
    figure.legend(handles=list(marks), ncols=len(marks), columnspacing=1.6, **options)
