"""Attack strips: a query, what was added to it, what it became, and its neighbours before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.report._canvas import FAINT, INK, MUTED, WIDTH, drawing, to_png
from nearkin.report._lines import fit_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

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
        PNG bytes, or none when there are no strips.
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
        axes = figure.add_axes((left / WIDTH, 1 - (top + side) / height, side / WIDTH, side / height))
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
