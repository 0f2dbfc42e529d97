"""Classes among local features: the hull of the prototypes that are active in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkin.errors import DataError
from nearkin.metrics.hulls import convex_hull
from nearkin.report._canvas import FAINT, INK, WIDTH, drawing, to_png
from nearkin.report._lines import fit_text
from nearkin.report._plane import HUES
from nearkin.report.local_features import LocalView, dots, frame, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAP, _PANEL = 430, 158  # heights in CSS pixels
_SHAPE = 1.75  # width of the large map over its height
_COLUMNS = 5
_MOST_POINTS = 1500  # local features of a class
_RING, _WIDER = 90.0, 70.0  # areas in square points: of the first class's ring, and what each further one adds


def draw_class_hulls(view: LocalView, active: np.ndarray, classes: Sequence[str]) -> bytes:
    """Draw the hulls of all classes together, with the pooled images; below, each class with its local features.

    Only the first ten classes are drawn.

    Args:
        view: local features and prototypes.
        active: (C, m) which prototypes are active in each class.
        classes: (C,) names.

    Returns:
        PNG bytes.
    """
    active = np.asarray(active, dtype=bool)
    if active.shape != (len(classes), len(view.prototypes)) or view.labels.max() >= len(classes):
        raise DataError(
            f"{len(classes)} classes and {len(view.prototypes)} prototypes need a table of as many rows and columns "
            f"that has every label, but its shape is {active.shape}."
        )
    shown = range(min(len(classes), len(HUES)))
    rows = -(-len(shown) // _COLUMNS)
    with drawing(WIDTH, _MAP + _PANEL * rows) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=[_MAP, _PANEL * rows], squeeze=False).flat
        _draw_together(above.subplots(), view, active, shown)
        grid = below.subplots(rows, _COLUMNS, squeeze=False)
        for axes, place in zip(grid.flat, shown, strict=False):
            _draw_class(axes, view, active[place], place)
            axes.set_title(fit_text(classes[place], WIDTH // _COLUMNS - 16, 9, "bold"), fontsize=9, color=HUES[place])
        for axes in grid.flat[len(shown) :]:
            axes.remove()
        return to_png(figure)


def _draw_together(axes: Axes, view: LocalView, active: np.ndarray, shown: Sequence[int]) -> None:
    dots(axes, thinned(view.points.reshape(-1, 2)), 2, color=FAINT, alpha=0.6, zorder=1)
    for place in shown:
        corners = _draw_hull(axes, view.prototypes[active[place]], HUES[place], tint=0.05)
        if len(corners) < 3:
            # No area to see, and classes may share the place: each has a ring of its own width.
            dots(axes, corners, _RING + _WIDER * place, color="none", edgecolors=HUES[place], linewidths=1.5, zorder=3)
        mine = view.labels == place
        dots(axes, view.gap[mine], 16, color=HUES[place], edgecolors="white", linewidths=0.4, zorder=5)
    anywhere = active[list(shown)].any(axis=0)
    dots(axes, view.prototypes[anywhere], 22, color="white", marker="s", edgecolors=INK, linewidths=0.9, zorder=4)
    axes.set_title("Class hulls, their active prototypes (boxes) and pooled images (dots)")
    frame(axes, view.points, view.prototypes, shape=_SHAPE)


def _draw_class(axes: Axes, view: LocalView, active: np.ndarray, place: int) -> None:
    mine = view.labels == place
    dots(axes, view.prototypes, 5, color=FAINT, marker="s", zorder=1)
    points = thinned(view.points[mine].reshape(-1, 2), _MOST_POINTS)
    dots(axes, points, 2.5, color=HUES[place], alpha=0.4, zorder=2)
    corners = _draw_hull(axes, view.prototypes[active], HUES[place], tint=0.12)
    if len(corners) < 3:
        dots(axes, corners, _RING, color="none", edgecolors=HUES[place], linewidths=1.5, zorder=3)
    dots(axes, view.prototypes[active], 14, color=HUES[place], marker="s", edgecolors=INK, linewidths=0.7, zorder=4)
    dots(axes, view.gap[mine], 5, color=INK, zorder=5)
    frame(axes, view.points, view.prototypes)


def _draw_hull(axes: Axes, points: np.ndarray, colour: str, tint: float) -> np.ndarray:
    """The outline and a tint of a hull; of one line, the line; of a point, nothing. Returns the corners (h, 2)."""
    corners = convex_hull(points)
    axes.fill(*corners.T, facecolor=colour, alpha=tint, linewidth=0, zorder=2)
    closed = np.concatenate([corners, corners[:1]])
    axes.plot(*closed.T, color=colour, linewidth=1.5, zorder=3)
    return corners
