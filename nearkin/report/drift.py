"""Drift: the discrepancy against chance, and the most novel items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.report.canvas import BLUE, FAINT, GRID, INK, MUTED, VERMILION, WIDTH, drawing, place_axes, to_png
from nearkin.report.grid import NeighbourRow
from nearkin.report.values import clean, p_text, shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL import Image

_BINS = 40
_LETTERS = 17
_CELL = 118  # CSS pixels of a picture with its words
_WORDS, _HEAD = 40, 34

_PLURALS = {"distance": "distances", "similarity": "similarities"}
_SCORES = {"distance": "novelty", "similarity": "similarity"}


def draw_null(null: np.ndarray, observed: float, p_value: float, two_sided: bool = False) -> bytes:
    """Draw the discrepancies of random divisions, and that of the given one.

    Args:
        null: (P,) of random divisions of all items into two sets.
        observed: of the two sets as they are.
        p_value: how often chance gives at least as much.
        two_sided: whether values that are low count as well; the legend says so.

    Returns:
        PNG bytes, or none when there is nothing finite to draw.
    """
    values = np.asarray(null, dtype=np.float64).ravel()
    values = values[np.isfinite(values)]
    if not len(values) or not np.isfinite(observed):
        return b""
    low, high = float(values.min()), float(values.max())
    edges = np.linspace(low, high if high > low else low + 1e-12, _BINS + 1)
    with drawing(WIDTH, 360) as figure:
        axes = figure.add_subplot()
        counts, _ = np.histogram(values, bins=edges)
        axes.stairs(counts, edges, fill=True, facecolor=BLUE, edgecolor=BLUE, alpha=0.28)
        axes.stairs(counts, edges, color=BLUE, linewidth=1.4, label=f"{len(values):,} divisions at random")
        told = f"these two sets, p = {p_text(p_value)}{' (two-sided)' if two_sided else ''}"
        axes.axvline(observed, color=VERMILION, linewidth=2.0, linestyle="--", label=told)
        span = max(high, observed) - min(low, observed) or 1e-12
        axes.set_xlim(min(low, observed) - 0.04 * span, max(high, observed) + 0.04 * span)
        axes.set_ylim(0, 1.12 * counts.max())
        axes.set_xlabel("squared discrepancy between the sets (MMD²)")
        axes.set_ylabel("divisions")
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.8)
        return to_png(figure)


def draw_novel(
    rows: Sequence[NeighbourRow], scores: Sequence[tuple[float, float]], compared: str = "distance"
) -> bytes:
    """Draw the most novel items, each with its nearest reference items.

    Args:
        rows: a new item and its nearest reference items, nearest first, each with its distance or similarity; whether
            these are hits plays no part.
        scores: of each new item its novelty, or its highest similarity, and the p-value of that.
        compared: what the numbers are: "distance" or "similarity".

    Returns:
        PNG bytes, or empty bytes when there are no rows.
    """
    if not rows:
        return b""
    from matplotlib.lines import Line2D

    columns = max(1, *(len(row.neighbours) for row in rows))
    width, height = (columns + 1) * _CELL + 40, len(rows) * (_CELL + _WORDS) + _HEAD
    with drawing(width, height) as figure:
        figure.set_layout_engine("none")
        for place, (row, (score, p_value)) in enumerate(zip(rows, scores, strict=True)):
            top = _HEAD + place * (_CELL + _WORDS)
            axes = place_axes(figure, _left(0), top, _CELL - 14, _CELL - 14)
            told = f"{_SCORES[compared]} {value_text(score, percent=False)}, p {p_text(p_value)}"
            _show(axes, row.query.image, row.query.label, told, VERMILION, bold=True)
            for column, (thumb, distance, _) in enumerate(row.neighbours):
                axes = place_axes(figure, _left(column + 1), top, _CELL - 14, _CELL - 14)
                _show(axes, thumb.image, thumb.label, value_text(distance, percent=False), FAINT)
        near = f"nearest in the reference, with their {_PLURALS[compared]}"
        for left, text in ((_left(0), "new"), (_left(1), near)):
            figure.text(
                left / width, 1 - 10 / height, text, va="top", ha="left", fontsize=10, fontweight="bold", color=INK
            )
        for place in range(1, len(rows)):
            y = 1 - (_HEAD + place * (_CELL + _WORDS) - 8) / height
            figure.add_artist(Line2D([0.01, 0.99], [y, y], color=GRID, linewidth=1.0))
        return to_png(figure)


def _left(column: int) -> float:
    """Where a column begins, in CSS pixels."""
    return 8 + column * _CELL + (20 if column else 0)


def _show(axes: Axes, image: Image.Image, label: str, told: str, colour: str, bold: bool = False) -> None:
    """A picture of any mode and shape, framed, with two lines of words below it."""
    if image.has_transparency_data:
        from PIL import Image as images

        image = images.alpha_composite(images.new("RGBA", image.size, "white"), image.convert("RGBA"))
    axes.imshow(np.asarray(image.convert("RGB")), interpolation="antialiased")
    axes.set(xticks=[], yticks=[], facecolor="#eef1f4")
    axes.grid(False)
    longest = max(image.size) / 2
    middle = ((image.width - 1) / 2, (image.height - 1) / 2)
    axes.set_xlim(middle[0] - longest, middle[0] + longest)
    axes.set_ylim(middle[1] + longest, middle[1] - longest)
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=1.6 if bold else 0.8)
    words: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "left", "va": "top"}
    weight = "bold" if bold else "normal"
    axes.annotate(shorten(label, _LETTERS), (0, 0), xytext=(0, -3), fontsize=7.5, color=INK, weight=weight, **words)
    axes.annotate(clean(told), (0, 0), xytext=(0, -14), fontsize=6.5, color=MUTED, **words)
