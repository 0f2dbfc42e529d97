"""Heat maps: distances between classes by rank, every domain against every other, and corruptions by severity."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import FAINT, INK, MUTED, WIDTH
from nearkin.report.dendrogram import group_colours, key_height, write_key
from nearkin.report.values import LOWER, plain_numbers, shaped, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable


# In CSS pixels, except for type, which is in points.
_MARGIN, _GAP, _RANK_HEAD = 12, 14, 30
_STRIP, _STRIP_GAP = 7, 2
_BAR, _BAR_ROOM = 9, 48
_BAR_WIDTH = 270
_WIDEST = 480
_NAME_WIDTH, _NAMED_ROW, _TEXT = 130, 10, 7
_NARROWEST = 6
"""Of a group on average, for lines between them."""
_RANK_COLOURS = "viridis"


def draw_class_distances(
    matrices: Mapping[str, Any], names: Sequence[str], groups: Mapping[str, str] | None = None
) -> bytes:
    """Draw distances between the same classes, one heat map a matrix, by rank: dark pairs are the nearest of a matrix.

    Classes stay in the order given, which should be that of a tree. Strips and white lines mark the groups.

    Args:
        matrices: title to distances (C, C), symmetric; one to three of them.
        names: (C,) of the classes, written where there is room for them.
        groups: class to group; classes without one are left unmarked.

    Returns:
        PNG bytes, or empty bytes where there is no matrix or fewer than two classes.
    """
    if not matrices or len(names) < 2:
        return b""
    if len(matrices) > 3:
        raise DataError(f"At most 3 heat maps fit side by side, not {len(matrices)}: draw the others separately.")
    ranked = {title: _ranks(title, matrix, len(names)) for title, matrix in matrices.items()}
    kinds = [(groups or {}).get(name, "") for name in names]
    colours = group_colours({name: kind for name, kind in zip(names, kinds, strict=True) if kind})
    more = len(set(kinds) - {""}) - len(colours)
    notes = [f"{more:,} more groups have no colour."] if more else []
    strips, spans = _STRIP + _STRIP_GAP, _spans(kinds)
    told, beside = _names_beside(names, len(ranked))
    side = _side(len(ranked), beside)
    height = _RANK_HEAD + strips + side + _BAR_ROOM + key_height(colours, notes)
    with canvas.drawing(WIDTH, height) as figure:
        sheet, top = canvas.Sheet(figure), _RANK_HEAD + strips
        for place, (title, ranks) in enumerate(ranked.items()):
            left = _MARGIN + beside + strips + place * (side + strips + _GAP)
            words = canvas.fit_text(title, side + strips, 10, "bold")
            sheet.write(left - strips, _RANK_HEAD / 2, words, 10, fontweight="bold")
            axes = sheet.axes(left, top, side, side, xticks=[], yticks=[])
            axes.imshow(ranks, cmap=_RANK_COLOURS, vmin=0, vmax=1, aspect="auto")
            canvas.frame_axes(axes, MUTED)  # without a frame the empty diagonal would look like corners bitten off
            for first, count, kind in spans:
                if first and side / len(spans) >= _NARROWEST:
                    axes.axhline(first - 0.5, color="white", linewidth=0.8)
                    axes.axvline(first - 0.5, color="white", linewidth=0.8)
                if kind in colours:
                    start, long = first * side / len(kinds), count * side / len(kinds)
                    sheet.box(left - strips, top + start, _STRIP, long, colours[kind])
                    sheet.box(left + start, top - strips, long, _STRIP, colours[kind])
            for row, name in enumerate(told if not place else ()):
                middle = top + (row + 0.5) * side / len(told)
                sheet.write(left - strips - 4, middle, name, _TEXT, ha="right", color=MUTED)
        _draw_bar(sheet.axes(_MARGIN + beside + strips, top + side + 12, _BAR_WIDTH, _BAR, frameon=False, yticks=[]))
        write_key(sheet, colours, notes)
        return canvas.to_png(figure)


def _names_beside(names: Sequence[str], panels: int) -> tuple[list[str], float]:
    """The names to write and the CSS pixels they take; none where a row would be too low for one."""
    if _side(panels, 0.0) / len(names) < _NAMED_ROW:
        return [], 0.0
    told = [canvas.fit_text(name, _NAME_WIDTH, _TEXT) for name in names]
    beside = max(canvas.text_width(name, _TEXT) for name in told) + 8
    return (told, beside) if _side(panels, beside) / len(names) >= _NAMED_ROW else ([], 0.0)


def _side(panels: int, beside: float) -> float:
    """How wide and high a heat map is, of so many with names that take `beside` CSS pixels."""
    room = WIDTH - 2 * _MARGIN - beside - panels * (_STRIP + _STRIP_GAP) - (panels - 1) * _GAP
    return min(_WIDEST, room / panels)


def _ranks(title: str, matrix: Any, classes: int) -> np.ndarray:
    """Shares (C, C) of the pairs that are nearer, from 0 to 1, ties in the middle of theirs; the diagonal is NaN."""
    from scipy.stats import rankdata

    values = shaped(matrix, f"distances of '{title}'", classes, classes)
    if not np.allclose(values, values.T, rtol=1e-5, atol=1e-8 * max(1.0, float(np.abs(values).max()))):
        raise DataError(f"The distances of '{title}' are not symmetric: give a symmetric matrix.")
    upper = np.triu_indices(classes, 1)
    shares = (rankdata(values[upper]) - 1) / max(len(upper[0]) - 1, 1)
    ranks = np.full(values.shape, np.nan)
    ranks[upper] = shares
    ranks[upper[1], upper[0]] = shares
    return ranks


def _spans(kinds: Sequence[str]) -> list[tuple[int, int, str]]:
    """First place, length and group of each run of classes of one group."""
    spans, first = [], 0
    for kind, run in groupby(kinds):
        count = len(list(run))
        spans.append((first, count, kind))
        first += count
    return spans


def _draw_bar(axes: Axes) -> None:
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=_RANK_COLOURS, aspect="auto", extent=(0, 1, 0, 1))
    axes.grid(False)
    axes.set_xticks([0, 0.5, 1], ["nearest pair", "rank of the distance", "farthest pair"], fontsize=8)
    axes.tick_params(length=2, pad=2)
    first, _, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


_SHARE_COLOURS = "Blues"
_CELL, _TALL = 125, 46  # CSS pixels: the widest a cell is, and its height
_DOMAIN_HEAD, _FOOT, _NAMES = 60, 14, 190
_DARK = 0.6  # from this share on numbers are written in white
_SIZE = 9


def draw_domain_matrix(matrix: Any, rows: Sequence[str], columns: Sequence[str], metric: str) -> bytes:
    """Draw shares of each query domain (rows) in each gallery domain (columns) as colours with numbers.

    The colours run from 0 to 100 %, so that pictures of several models can be laid side by side.

    Args:
        matrix: shares (R, C) in [0, 1]; NaN leaves the cell empty.
        rows: names of the query domains (R,).
        columns: names of the gallery domains (C,).
        metric: what the shares are.

    Returns:
        PNG bytes, or empty bytes when there is no value.
    """
    shares = plain_numbers(matrix, f"shares of {metric}")
    if shares.shape != (len(rows), len(columns)):
        raise DataError(
            f"There are {len(rows)} x {len(columns)} domains, but the shares have the shape {shares.shape}: give one "
            "for each pair."
        )
    known = shares[np.isfinite(shares)]
    if not len(known):
        return b""
    if known.min() < 0 or known.max() > 1:
        raise DataError(f"Shares lie in [0, 1], but {metric} runs from {known.min():g} to {known.max():g}.")
    wide = min(_CELL, (WIDTH - _NAMES - 20) / len(columns))
    height = _DOMAIN_HEAD + _TALL * len(rows) + _FOOT
    with canvas.drawing(WIDTH, height) as figure:
        sheet = canvas.Sheet(figure)
        axes = sheet.axes(_NAMES, _DOMAIN_HEAD, wide * len(columns), _TALL * len(rows))
        axes.imshow(shares, cmap=_SHARE_COLOURS, vmin=0, vmax=1, aspect="auto")
        canvas.frame_axes(axes, FAINT)
        axes.xaxis.tick_top()
        axes.set_xticks(
            range(len(columns)), [canvas.fit_text(name, wide - 6, _SIZE) for name in columns], fontsize=_SIZE
        )
        axes.set_yticks(range(len(rows)), [canvas.fit_text(name, _NAMES - 30, _SIZE) for name in rows], fontsize=_SIZE)
        axes.tick_params(length=0, pad=5)
        for (row, column), share in np.ndenumerate(shares):
            colour = MUTED if not np.isfinite(share) else "white" if share >= _DARK else INK
            told = value_text(float(share), True)
            axes.text(column, row, told, ha="center", va="center", fontsize=_SIZE + 1, color=colour)
        sheet.write(_NAMES, 14, f"{metric}, by the domain that is searched", 10, fontweight="bold")
        sheet.write(12, _DOMAIN_HEAD - 12, "items of", _SIZE, color=MUTED)
        return canvas.to_png(figure)


_ACROSS = 3  # heat maps side by side
_CELL_ROW, _MEAN_GAP = 23, 0.25  # height of a cell in CSS pixels; the mean stands apart by this share of one
_CORRUPTION, _RIM = 130, 132  # CSS pixels beside the cells, and above and below them
_FONT_SHARE = 0.18  # points of type for a CSS pixel of a cell's width: five digits fit
_NAME_SIZE = 9  # points
_TITLE_WIDTHS = {1: 560, 2: 280, 3: 150}  # CSS pixels by the number of columns
_SHORTEST = 0.01  # a scale is no shorter: values below this look alike
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
    size = float(np.clip(_FONT_SHARE * (WIDTH - _CORRUPTION) / (columns * len(severities)), 4, 8.5))
    with canvas.drawing(WIDTH, rows * (_RIM + _CELL_ROW * (len(names) + 1 + _MEAN_GAP))) as figure:
        grid = canvas.panel_grid(figure, len(tables), columns, sharey=True)
        for axes, (title, table) in zip(grid, tables.items(), strict=True):
            lower = title in lower_is_better
            colours = _draw_cells(axes, table, _DEPTHS if lower else _DEPTHS[::-1], size)
            _frame(axes, names, severities)
            name = canvas.fit_text(title, _TITLE_WIDTHS[columns], 10, "bold")
            told = f"clean {value_text(float(clean[title]), True)}" if clean and title in clean else ""
            canvas.heading(axes, f"{name} {LOWER}" if lower else name, told)
            bar = figure.colorbar(colours, ax=axes, location="bottom", aspect=64 / columns, pad=0.02)
            bar.outline.set_visible(False)
            bar.locator = MaxNLocator(3 if columns > 2 else 4)
            bar.ax.tick_params(labelsize=8)
            canvas.percent_axis(bar.ax, "x")
        return canvas.to_png(figure)


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


def _draw_cells(axes: Axes, table: np.ndarray, depths: Sequence[str], size: float) -> ScalarMappable:
    """Fill the cells (n + 1, s) with colours from that of 0 to that of the largest, which are returned, and percents.

    Words are dark on light and light on dark.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    finite = table[np.isfinite(table)]
    scale = Normalize(0.0, max(float(finite.max(initial=0.0)), _SHORTEST) if len(finite) else 1.0)
    shown = ScalarMappable(scale, LinearSegmentedColormap.from_list("depths", depths))
    tops = [*range(len(table) - 1), len(table) - 1 + _MEAN_GAP]
    for part, down in ((table[:-1], np.arange(len(table))), (table[-1:], tops[-1] + np.arange(2))):
        look: Any = {"cmap": shown.cmap, "norm": scale, "edgecolors": "white", "linewidth": 0.8}
        axes.pcolormesh(np.arange(table.shape[1] + 1), down, np.ma.masked_invalid(part), **look)
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            told, colour = value_text(value, True).removesuffix(" %"), _ink(np.array(shown.to_rgba(value)[:3]))
            axes.text(column + 0.5, tops[row] + 0.5, told, ha="center", va="center", fontsize=size, color=colour)
    return shown


def _frame(axes: Axes, names: Sequence[str], severities: Sequence[int]) -> None:
    """Corruptions down the left, the mean last, severities below."""
    mean = len(names) + _MEAN_GAP
    told = [*(canvas.fit_text(name, _CORRUPTION, _NAME_SIZE) for name in names), "mean"]
    axes.set_yticks([*(np.arange(len(names)) + 0.5), mean + 0.5], told)
    levels = plain_numbers(severities, "severities")
    axes.set_xticks(np.arange(len(levels)) + 0.5, [f"{level:g}" for level in levels])
    axes.set(xlim=(0, len(levels)), ylim=(mean + 1, 0))
    axes.set_xlabel("severity", fontsize=9)
    axes.tick_params(length=0, labelsize=_NAME_SIZE)
    canvas.frame_axes(axes)


def _ink(fill: np.ndarray) -> str:
    """Black or white, whichever stands out more: on any colour a contrast of 4.5 or better (WCAG 2, luminance)."""
    linear = np.where(fill <= 0.04045, fill / 12.92, ((fill + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return "black" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "white"
