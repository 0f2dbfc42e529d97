"""Robustness: accuracy by size of perturbation, attacked queries, and corrupted queries by severity."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report.canvas import FAINT, INK, MUTED, WIDTH, drawing, percent_axis, place_axes, to_png
from nearkin.report.lines import (
    curve_points,
    draw_panels,
    fit_text,
    has_values,
    legend_above,
    legend_height,
    legend_labels,
    line_style,
    panels_height,
    plain_numbers,
    plain_parts,
    value_line,
)
from nearkin.report.values import LOWER, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from PIL import Image


_HEIGHT = 300


def draw_robustness(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    label: str,
    *,
    marks: Mapping[str, float] | None = None,
    steps: bool = False,
) -> bytes:
    """Draw accuracies against sizes of perturbations.

    Args:
        curves: name to sizes (m,) and shares of 1 (m,).
        label: what the sizes are.
        marks: name to a size at which something is worth a line.
        steps: whether curves are known everywhere, and fall where they fall.

    Returns:
        PNG bytes, or empty bytes when there is no point.
    """
    points = {name: curve_points(name, curve, "sizes", "accuracies") for name, curve in curves.items()}
    if not any(len(x) for x, _ in points.values()):
        return b""
    labels = legend_labels(list(points))
    with drawing(WIDTH, _HEIGHT + legend_height(labels)) as figure:
        axes = figure.subplots()
        for place, (x, y) in enumerate(points.values()):
            style = {**line_style(place), "zorder": 3, **({"drawstyle": "steps-post", "marker": ""} if steps else {})}
            axes.plot(x, y, **style)
        for name, size in (marks or {}).items():
            axes.axvline(size, color=FAINT, linewidth=1, zorder=1)
            axes.annotate(name, (size, 0.01), xycoords=("data", "axes fraction"), rotation=90, fontsize=8, color=MUTED,
                          xytext=(3, 3), textcoords="offset points", va="bottom")  # fmt: skip
        axes.set_ylim(-0.02, 1.03)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy")
        percent_axis(axes, "y")
        legend_above(figure, labels)
        return to_png(figure)


# In CSS pixels.
_HEAD, _FOOT = 46, 34
_GAP, _APART, _EDGE = 6, 20, 3
_TEXT = 7.5  # points
_RIGHT, _WRONG = "#00805c", "#c8232c"


@dataclass(frozen=True)
class AttackStrip:
    """One attacked query.

    Args:
        clean: as it was (H, W, C) or (H, W), in [0, 1].
        attacked: as it became, of the same shape.
        label: its class.
        taken: what it is taken for once it was attacked.
        before: its neighbours' pictures, classes, and whether these are its own, nearest first.
        after: the same once it was attacked.
    """

    clean: np.ndarray
    attacked: np.ndarray
    label: str
    taken: str
    before: Sequence[tuple[Image.Image, str, bool]]
    after: Sequence[tuple[Image.Image, str, bool]]


def draw_attacks(strips: Sequence[AttackStrip]) -> bytes:
    """Draw one row a query; perturbations are stretched to the whole range of grey, and the factor is told.

    Returns:
        PNG bytes, or empty bytes when there are no strips.
    """
    if not strips:
        return b""
    columns = 3 + max(len(strip.before) for strip in strips) + max(len(strip.after) for strip in strips)
    side = (WIDTH - 2 * (_APART + _EDGE) - (columns - 1) * _GAP) / columns
    row = side + _FOOT
    height = _HEAD + row * len(strips)
    with drawing(WIDTH, round(height)) as figure:
        figure.set_layout_engine("none")
        lefts = _lefts(side, len(strips[0].before), len(strips[0].after))
        titles = {0: "query", 1: "added", 2: "attacked", 3: "neighbours before", 3 + len(strips[0].before): "after"}
        for place, title in titles.items():
            at = lefts[min(place, len(lefts) - 1)]
            figure.text(at / WIDTH, 1 - _HEAD / 2 / height, title, va="center", fontsize=9, fontweight="bold")
        for place, strip in enumerate(strips):
            _draw_strip(figure, strip, lefts, _HEAD + place * row, side, height)
        return to_png(figure)


def _lefts(side: float, before: int, after: int) -> list[float]:
    """Where each picture of a row begins."""
    found, left = [], float(_EDGE)
    for place in range(3 + before + after):
        left += _APART if place in (3, 3 + before) else 0
        found.append(left)
        left += side + _GAP
    return found


def _draw_strip(figure: Figure, strip: AttackStrip, lefts: list[float], top: float, side: float, height: float) -> None:
    change = strip.attacked - strip.clean
    largest = float(np.abs(change).max())
    shown = 0.5 + (0.5 * change / largest if largest > 0 else change)
    pictures = [
        (strip.clean, strip.label, INK),
        (shown, f"up to {largest:.3g}", MUTED),
        (strip.attacked, f"→ {strip.taken}", INK if strip.taken == strip.label else _WRONG),
        *((np.asarray(image), name, _RIGHT if own else _WRONG) for image, name, own in (*strip.before, *strip.after)),
    ]
    for place, (left, (pixels, words, colour)) in enumerate(zip(lefts, pictures, strict=False)):
        axes = place_axes(figure, left, top, side, side)
        grey = pixels.ndim == 2 or pixels.shape[-1] == 1
        whole: dict[str, Any] = {"vmin": 0, "vmax": 1} if pixels.dtype.kind == "f" else {}
        axes.imshow(pixels.squeeze(), cmap="gray" if grey else None, aspect="equal", interpolation="nearest", **whole)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_color(colour if place > 2 else FAINT)
            spine.set_linewidth(2.0 if place > 2 else 0.8)
        mark = "" if place < 3 else ("✓ " if colour == _RIGHT else "✗ ")
        told = fit_text(mark + words, side + _GAP, _TEXT)
        at = 1 - (top + side + 4) / height
        figure.text(left / WIDTH, at, told, va="top", fontsize=_TEXT, color=colour)


_ACROSS = 3  # heat maps side by side
_CELL, _MEAN_GAP = 23, 0.25  # height of a cell in CSS pixels; the mean stands apart by this share of one
_NAMES, _RIM = 130, 132  # CSS pixels beside the cells, and above and below them
_FONT_SHARE = 0.18  # points of type for a CSS pixel of a cell's width: five digits fit
_NAME_SIZE = 9  # points
_TITLE_SIZE, _TITLE_WIDTHS = 10, {1: 560, 2: 280, 3: 150}  # points; CSS pixels by the number of columns
_NARROWEST = 0.01  # a scale is no shorter: values below this look alike
_DEPTHS = ("#e3eff7", "#56b4e9", "#0072b2", "#062a4d")  # from pale to dark in one hue, never white: that is a blank


def draw_corruption(
    names: Sequence[str],
    severities: Sequence[int],
    values: Mapping[str, np.ndarray],
    *,
    clean: Mapping[str, float] | None = None,
    lower_is_better: Collection[str] = (),
) -> bytes:
    """Draw one heat map a measure, a row for each corruption and their mean below; the darker, the worse.

    Every map has a scale of its own, from 0 to its largest value: on one to 100 %, errors and low accuracies would use
    few of the colours.

    Args:
        names: (n,) corruptions.
        severities: (s,) severities.
        values: measure to its shares of 1 (n, s), as "accuracy" or "ECE"; NaN cells stay blank and do not count in
            the mean.
        clean: measure to its value on clean queries, told in the title.
        lower_is_better: the measures of which less is better, marked so; of all others more is.

    Returns:
        PNG bytes, or empty bytes when there is no value.
    """
    from matplotlib.ticker import MaxNLocator

    tables = {title: _table(title, table, len(names), len(severities)) for title, table in values.items()}
    if not any(np.isfinite(table).any() for table in tables.values()):
        return b""
    columns = min(len(tables), _ACROSS)
    rows = -(-len(tables) // columns)
    size = float(np.clip(_FONT_SHARE * (WIDTH - _NAMES) / (columns * len(severities)), 4, 8.5))
    with drawing(WIDTH, rows * (_RIM + _CELL * (len(names) + 1 + _MEAN_GAP))) as figure:
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for axes, (title, table) in zip(grid.flat, tables.items(), strict=False):
            lower = title in lower_is_better
            colours = _draw_cells(axes, table, _DEPTHS if lower else _DEPTHS[::-1])
            _write_cells(axes, table, colours, size)
            _frame(axes, names, severities)
            name = fit_text(title, _TITLE_WIDTHS[columns], _TITLE_SIZE, "bold")
            _write_title(axes, f"{name} {LOWER}" if lower else name, (clean or {}).get(title))
            bar = figure.colorbar(colours, ax=axes, location="bottom", aspect=64 / columns, pad=0.02)
            bar.outline.set_visible(False)
            bar.locator = MaxNLocator(3 if columns > 2 else 4)
            bar.ax.tick_params(labelsize=8)
            percent_axis(bar.ax, "x")
        for axes in grid.flat[len(tables) :]:
            axes.remove()
        return to_png(figure)


def draw_shift(severities: Sequence[int], lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Draw accuracy above the expected calibration error as severity grows, one line an estimator.

    Args:
        severities: (s,) severities; 0, clean, stands before them and need not be named.
        lines: estimator to its accuracy (s + 1,) and its ECE (s + 1,), clean first; NaN is left out.

    Returns:
        PNG bytes, or empty bytes when there is no value.
    """
    levels = ["clean", *(f"{severity:g}" for severity in plain_numbers(severities, "severities") if severity)]
    pairs = {name: plain_parts(name, pair, "accuracy", "ECE") for name, pair in lines.items()}
    accuracy, ece = (
        {name: value_line(name, pair[which], len(levels), "severity and one for clean") for name, pair in pairs.items()}
        for which in (0, 1)
    )
    if not has_values(accuracy, ece):
        return b""
    at = np.arange(len(levels))
    with drawing(WIDTH, panels_height(list(lines))) as figure:
        axes = draw_panels(figure, at, list(lines), accuracy, ece)[-1]
        axes.set_xticks(at, levels)
        axes.set_xlim(-0.2, len(levels) - 0.8)
        axes.set_xlabel("severity of the corruption")
        return to_png(figure)


def _table(title: str, values: np.ndarray, names: int, severities: int) -> np.ndarray:
    """Values (n, s) with the mean of each severity below, (n + 1, s)."""
    table = plain_numbers(values, f"values of '{title}'")
    if table.shape != (names, severities):
        raise DataError(
            f"The values of '{title}' must have shape ({names}, {severities}), a row for each corruption and a column "
            f"for each severity, but got {table.shape}."
        )
    finite = np.isfinite(table)
    counts = finite.sum(axis=0)
    means = np.where(finite, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    return np.vstack([np.where(finite, table, np.nan), np.where(counts > 0, means, np.nan)])


def _draw_cells(axes: Axes, table: np.ndarray, depths: Sequence[str]) -> ScalarMappable:
    """Fill the cells (n + 1, s) with colours from that of 0 to that of the largest. Returns what tells them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    finite = table[np.isfinite(table)]
    scale = Normalize(0.0, max(float(finite.max(initial=0.0)), _NARROWEST) if len(finite) else 1.0)
    colours = LinearSegmentedColormap.from_list("depths", depths)
    across = np.arange(table.shape[1] + 1)
    for part, down in ((table[:-1], np.arange(len(table))), (table[-1:], _mean_top(table) + np.arange(2))):
        axes.pcolormesh(
            across,
            down,
            np.ma.masked_invalid(part),
            cmap=colours,
            norm=scale,
            edgecolors="white",
            linewidth=0.8,
        )
    return ScalarMappable(scale, colours)


def _write_cells(axes: Axes, table: np.ndarray, colours: ScalarMappable, size: float) -> None:
    """The percent of every cell, dark on light and light on dark."""
    middles = [*(np.arange(len(table) - 1) + 0.5), _mean_top(table) + 0.5]
    for middle, row in zip(middles, table, strict=True):
        for place, value in enumerate(row):
            if np.isfinite(value):
                axes.text(
                    place + 0.5,
                    middle,
                    value_text(value, True).removesuffix(" %"),
                    ha="center",
                    va="center",
                    fontsize=size,
                    color=_ink(np.array(colours.to_rgba(value)[:3])),
                )


def _write_title(axes: Axes, title: str, clean: float | None) -> None:
    """The measure and, on a line of its own, its clean value."""
    axes.set_title(title, fontsize=_TITLE_SIZE, pad=6 if clean is None else 18)
    if clean is not None:
        words = f"clean {value_text(float(clean), True)}"
        axes.annotate(
            words, (0, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", fontsize=_NAME_SIZE
        )


def _frame(axes: Axes, names: Sequence[str], severities: Sequence[int]) -> None:
    """Corruptions down the left, the mean last, severities below."""
    mean = len(names) + _MEAN_GAP
    axes.set_yticks(
        [*(np.arange(len(names)) + 0.5), mean + 0.5], [*(fit_text(name, _NAMES, _NAME_SIZE) for name in names), "mean"]
    )
    axes.set_ylim(mean + 1, 0)
    axes.set_xticks(
        np.arange(len(severities)) + 0.5, [f"{severity:g}" for severity in plain_numbers(severities, "severities")]
    )
    axes.set_xlim(0, len(severities))
    axes.set_xlabel("severity", fontsize=9)
    axes.tick_params(length=0, labelsize=_NAME_SIZE)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _mean_top(table: np.ndarray) -> float:
    return len(table) - 1 + _MEAN_GAP


def _ink(fill: np.ndarray) -> str:
    """Black or white, whichever stands out more: on any colour a contrast of 4.5 or better (WCAG 2, luminance)."""
    linear = np.where(fill <= 0.04045, fill / 12.92, ((fill + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return "black" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "white"
