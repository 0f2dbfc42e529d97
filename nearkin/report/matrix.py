"""Heat maps of matrices: distances between classes by rank, and every domain against every other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report.canvas import FAINT, INK, MUTED, WIDTH, drawing, place_axes, to_png
from nearkin.report.dendrogram import group_colours, key_height, write_key
from nearkin.report.lines import fit_text, plain_numbers, text_width
from nearkin.report.values import value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    strips = _STRIP + _STRIP_GAP
    told, beside = _names_beside(names, len(ranked))
    side = _side(len(ranked), beside)
    height = _RANK_HEAD + strips + side + _BAR_ROOM + key_height(colours, notes)
    with drawing(WIDTH, height) as figure:
        figure.set_layout_engine("none")
        top = _RANK_HEAD + strips
        for place, (title, ranks) in enumerate(ranked.items()):
            left = _MARGIN + beside + strips + place * (side + strips + _GAP)
            figure.text(
                (left - strips) / WIDTH, 1 - _RANK_HEAD / 2 / height, fit_text(title, side + strips, 10, "bold"),
                va="center", fontsize=10, fontweight="bold",
            )  # fmt: skip
            axes = place_axes(figure, left, top, side, side, frameon=False, xticks=[], yticks=[])
            _draw_ranks(axes, ranks, kinds, side)
            _draw_strips(figure, left, top, side, height, kinds, colours)
            if told and not place:
                _write_names(figure, told, left - strips - 4, top, side, height)
        bar = (_MARGIN + beside + strips, top + side + 12, _BAR_WIDTH, _BAR)
        _draw_bar(place_axes(figure, *bar, frameon=False, yticks=[]))
        write_key(figure, colours, notes, height)
        return to_png(figure)


def _names_beside(names: Sequence[str], panels: int) -> tuple[list[str], float]:
    """The names to write and the CSS pixels they take; none where a row would be too low for one."""
    if _side(panels, 0.0) / len(names) < _NAMED_ROW:
        return [], 0.0
    told = [fit_text(name, _NAME_WIDTH, _TEXT) for name in names]
    beside = max(text_width(name, _TEXT) for name in told) + 8
    return (told, beside) if _side(panels, beside) / len(names) >= _NAMED_ROW else ([], 0.0)


def _side(panels: int, beside: float) -> float:
    """How wide and high a heat map is, of so many with names that take `beside` CSS pixels."""
    room = WIDTH - 2 * _MARGIN - beside - panels * (_STRIP + _STRIP_GAP) - (panels - 1) * _GAP
    return min(_WIDEST, room / panels)


def _ranks(title: str, matrix: Any, classes: int) -> np.ndarray:
    """Shares (C, C) of the pairs that are nearer, from 0 to 1, ties in the middle of theirs; the diagonal is NaN."""
    from scipy.stats import rankdata

    values = plain_numbers(matrix, f"distances of '{title}'")
    if values.shape != (classes, classes) or not np.isfinite(values).all():
        raise DataError(
            f"The distances of '{title}' must be finite and of shape ({classes}, {classes}), but got shape "
            f"{values.shape} or other values."
        )
    if not np.allclose(values, values.T, rtol=1e-5, atol=1e-8 * max(1.0, float(np.abs(values).max()))):
        raise DataError(f"The distances of '{title}' are not symmetric: give a symmetric matrix.")
    upper = np.triu_indices(classes, 1)
    shares = (rankdata(values[upper]) - 1) / max(len(upper[0]) - 1, 1)
    ranks = np.full(values.shape, np.nan)
    ranks[upper] = shares
    ranks[upper[1], upper[0]] = shares
    return ranks


def _draw_ranks(axes: Axes, ranks: np.ndarray, kinds: Sequence[str], side: float) -> None:
    axes.imshow(ranks, cmap=_RANK_COLOURS, vmin=0, vmax=1, aspect="auto")
    axes.grid(False)
    # Without a frame the empty diagonal would look like corners bitten off.
    axes.set_frame_on(True)
    for spine in axes.spines.values():
        spine.set(visible=True, color=MUTED, linewidth=0.8)
    spans = _spans(kinds)
    for first, _, _ in spans[1:] if side / len(spans) >= _NARROWEST else []:
        axes.axhline(first - 0.5, color="white", linewidth=0.8)
        axes.axvline(first - 0.5, color="white", linewidth=0.8)


def _draw_strips(
    figure: Figure,
    left: float,
    top: float,
    side: float,
    height: float,
    kinds: Sequence[str],
    colours: Mapping[str, str],
) -> None:
    """The colours of the groups along the left and the upper edge."""
    from matplotlib.patches import Rectangle

    each = side / len(kinds)
    for first, count, kind in _spans(kinds):
        if kind in colours:
            start, long = first * each, count * each
            for x, y, wide, tall in (
                (left - _STRIP - _STRIP_GAP, top + start, _STRIP, long),
                (left + start, top - _STRIP - _STRIP_GAP, long, _STRIP),
            ):
                corner = (x / WIDTH, 1 - (y + tall) / height)
                figure.add_artist(Rectangle(corner, wide / WIDTH, tall / height, color=colours[kind], linewidth=0))


def _spans(kinds: Sequence[str]) -> list[tuple[int, int, str]]:
    """First place, length and group of each run of classes of one group."""
    spans, first = [], 0
    for kind, run in groupby(kinds):
        count = len(list(run))
        spans.append((first, count, kind))
        first += count
    return spans


def _write_names(figure: Figure, names: Sequence[str], right: float, top: float, side: float, height: float) -> None:
    for place, name in enumerate(names):
        middle = top + (place + 0.5) * side / len(names)
        figure.text(right / WIDTH, 1 - middle / height, name, ha="right", va="center", fontsize=_TEXT, color=MUTED)


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
    with drawing(WIDTH, height) as figure:
        axes = place_axes(figure, _NAMES, _DOMAIN_HEAD, wide * len(columns), _TALL * len(rows))
        axes.imshow(shares, cmap=_SHARE_COLOURS, vmin=0, vmax=1, aspect="auto")
        axes.grid(False)
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns)), [fit_text(name, wide - 6, _SIZE) for name in columns], fontsize=_SIZE)
        axes.set_yticks(range(len(rows)), [fit_text(name, _NAMES - 30, _SIZE) for name in rows], fontsize=_SIZE)
        axes.tick_params(length=0, pad=5)
        for spine in axes.spines.values():
            spine.set(visible=True, color=FAINT)
        for (row, column), share in np.ndenumerate(shares):
            told = "–" if not np.isfinite(share) else value_text(float(share), True)
            colour = MUTED if not np.isfinite(share) else "white" if share >= _DARK else INK
            axes.text(column, row, told, ha="center", va="center", fontsize=_SIZE + 1, color=colour)
        figure.text(
            _NAMES / WIDTH, 1 - 14 / height, f"{metric}, by the domain that is searched", fontsize=10, va="center",
            fontweight="bold",
        )  # fmt: skip
        figure.text(12 / WIDTH, 1 - (_DOMAIN_HEAD - 12) / height, "items of", fontsize=_SIZE, va="center", color=MUTED)
        return to_png(figure)
