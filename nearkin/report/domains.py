"""Every domain against every other: a heat map of shares with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import FAINT, INK, MUTED, WIDTH, drawing, to_png
from nearkin.report._lines import fit_text, plain_numbers
from nearkin.report.formatting import value_text

_HEAT = "Blues"
_CELL, _TALL = 125, 46  # CSS pixels: the widest a cell is, and its height
_HEAD, _FOOT, _NAMES = 60, 14, 190
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
        PNG bytes, or none when there is no value.
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
    height = _HEAD + _TALL * len(rows) + _FOOT
    with drawing(WIDTH, height) as figure:
        figure.set_layout_engine("none")
        box = (_NAMES / WIDTH, _FOOT / height, wide * len(columns) / WIDTH, _TALL * len(rows) / height)
        axes = figure.add_axes(box)
        axes.imshow(shares, cmap=_HEAT, vmin=0, vmax=1, aspect="auto")
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
        figure.text(12 / WIDTH, 1 - (_HEAD - 12) / height, "items of", fontsize=_SIZE, va="center", color=MUTED)
        return to_png(figure)
