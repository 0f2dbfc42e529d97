"""F1 class by class: which classes a classifier finds, and where classifiers differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import BLACK, FAINT, INK, WIDTH, drawing, percent_axis, to_png
from nearkin.report._lines import fit_text, legend_height, legend_labels
from nearkin.report.formatting import shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ONE_COLUMN = 32  # classes that are named below one another
_NAMED = 100  # classes that are named at all
_ROW, _FRAME = 17, 62  # heights in CSS pixels: of a class, and of what is around them
_NAME_WIDTH = 165
_CURVE = 400  # height of the picture of more classes
_ENDS = 3  # of more classes, so many are named at either end
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
            raise DataError(f"The classes of '{name}' are not those of '{next(iter(table))}': give F1 of the same.")
    ranked = sorted(first, key=lambda one: (-first[one], one))
    lines = {name: np.array([values[one] for one in ranked]) for name, values in table.items()}
    labels = legend_labels(lines, {name: float(line.mean()) for name, line in lines.items()}, "macro F1")
    columns = 1 if len(ranked) <= _ONE_COLUMN else 2
    rows = -(-len(ranked) // columns)
    height = _FRAME + _ROW * rows if len(ranked) <= _NAMED else _CURVE
    with drawing(WIDTH, height + legend_height(labels)) as figure:
        if len(ranked) <= _NAMED:
            for place, axes in enumerate(figure.subplots(1, columns, squeeze=False).flat):
                part = slice(place * rows, (place + 1) * rows)
                _draw_named(axes, ranked[part], {name: line[part] for name, line in lines.items()}, rows)
        else:
            _draw_curve(figure.subplots(), ranked, lines)
        _legend(figure, labels)
        return to_png(figure)


def _draw_named(axes: Axes, names: Sequence[str], lines: Mapping[str, np.ndarray], rows: int) -> None:
    """A row for each class, the best on top; a thin line joins what classifiers say of it."""
    heights = np.arange(len(names))
    values = np.stack(list(lines.values()))
    axes.hlines(heights, values.min(axis=0), values.max(axis=0), color=FAINT, linewidth=1.2, zorder=2)
    for place, line in enumerate(lines.values()):
        axes.plot(line, heights, **_look(place))
    axes.set_yticks(heights, [fit_text(name, _NAME_WIDTH, 8) for name in names], color=INK, fontsize=8)
    axes.set_ylim(rows - 0.4, -0.6)  # the last column may be shorter: rows stay level
    axes.set_xlim(-0.03, 1.03)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("F1")
    percent_axis(axes, "x")


def _draw_curve(axes: Axes, names: Sequence[str], lines: Mapping[str, np.ndarray]) -> None:
    """A column for each class, the best on the left; the ends are named where falling dots leave room."""
    places = np.arange(len(names))
    for place, line in enumerate(lines.values()):
        axes.plot(places, line, **{**_look(place), "markersize": 3.4 if place == 0 else 3.8})
    axes.set_xticks([])
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.01 * len(names), 1.01 * len(names))
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("F1")
    axes.set_xlabel(f"{len(names):,} classes, sorted")
    percent_axis(axes, "y")
    first = next(iter(lines.values()))
    best = [_told(names[place], first[place]) for place in range(_ENDS)]
    worst = [_told(names[place], first[place]) for place in range(len(names) - _ENDS, len(names))]
    corners: list[tuple[str, list[str], tuple[float, float], str, str]] = [
        ("highest", best, (0.985, 0.97), "right", "top"),
        ("lowest", worst, (0.015, 0.03), "left", "bottom"),
    ]
    for title, told, at, side, edge in corners:
        box: Any = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        text = "\n".join([f"{title}:", *told])
        axes.annotate(text, at, xycoords="axes fraction", ha=side, va=edge, fontsize=8, bbox=box, zorder=6)


def _told(name: str, value: float) -> str:
    return f"{shorten(name, 36)}  {value_text(value, percent=True)}"


def _look(place: int) -> dict[str, Any]:
    """The first classifier in black on top, the others in greys and shapes of their own."""
    return {
        "linestyle": "none",
        "color": BLACK if place == 0 else _GREYS[(place - 1) % len(_GREYS)],
        "marker": _MARKERS[(place - 1) % len(_MARKERS)] if place else "o",
        "markersize": _FIRST if place == 0 else _OTHERS,
        "markeredgewidth": 0,
        "zorder": 5 if place == 0 else 3,
    }


def _legend(figure: Figure, labels: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], label=label, **_look(place)) for place, label in enumerate(labels)]
    options: Any = {"loc": "outside upper left", "fontsize": 9, "handlelength": 1.2, "borderpad": 0.2}
    figure.legend(handles=marks, ncols=min(3, len(marks)), columnspacing=1.6, **options)
