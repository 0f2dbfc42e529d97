"""A learned similarity of two-dimensional embeddings: whose prototype is most similar where, and how one class is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import INK, WIDTH, drawing, to_png
from nearkin.report._plane import HUES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 450
_WASH = 0.28  # how strongly a region has its class's colour
_LEVELS = (-20, -10, -5, 0, 5, 10, 20)


@dataclass(frozen=True, eq=False)
class LearnedPlane:
    """What is drawn.

    Args:
        points: (n, 2) embeddings.
        labels: (n,) the class of each, as its place among the classes.
        prototypes: (C, 2).
        scores: similarities (h, w, C) of the places of a grid to the prototypes, the first row lowest.
        extent: (left, right, bottom, top) of the grid.
        classes: (C,) names.
        chosen: the class whose similarities the second panel shows.
    """

    points: np.ndarray
    labels: np.ndarray
    prototypes: np.ndarray
    scores: np.ndarray
    extent: tuple[float, float, float, float]
    classes: Sequence[str]
    chosen: int = 0


def draw_learned_plane(plane: LearnedPlane) -> bytes:
    """Draw the regions in which each class is chosen, and beside them the similarity to one prototype, as PNG bytes."""
    if len(plane.classes) > len(HUES) or plane.scores.shape[-1] != len(plane.classes):
        raise DataError(
            f"A plane shows up to {len(HUES)} classes with a score for each, not {len(plane.classes)} classes with "
            f"{plane.scores.shape[-1]}."
        )
    with drawing(WIDTH, _HEIGHT) as figure:
        regions, levels = figure.subplots(1, 2, sharex=True, sharey=True)
        _draw_regions(regions, plane)
        _draw_levels(levels, plane)
        handles = [regions.scatter([], [], s=24, color=HUES[code]) for code in range(len(plane.classes))]
        handles.append(regions.scatter([], [], s=70, marker="*", color="white", edgecolors=INK))
        names = [*map(str, plane.classes), "prototype"]
        figure.legend(
            handles, names, loc="outside lower center", ncols=6, fontsize=9, columnspacing=1.2, handletextpad=0.2
        )
        return to_png(figure)


def _draw_regions(axes: Axes, plane: LearnedPlane) -> None:
    chosen = plane.scores.argmax(axis=-1)
    colours = np.array([[int(hue[i : i + 2], 16) / 255 for i in (1, 3, 5)] for hue in HUES])
    wash = 1 - _WASH * (1 - colours[chosen])
    axes.imshow(wash, origin="lower", extent=plane.extent, aspect="auto", interpolation="nearest")
    for code in range(len(plane.classes)):
        mine = plane.labels == code
        axes.scatter(plane.points[mine, 0], plane.points[mine, 1], s=5, color=HUES[code], linewidths=0)
        x, y = plane.prototypes[code]
        axes.scatter(x, y, s=90, marker="*", color=HUES[code], edgecolors=INK, linewidths=1)
    _finish(axes, plane, "Most similar prototype")


def _draw_levels(axes: Axes, plane: LearnedPlane) -> None:
    values = plane.scores[..., plane.chosen]
    left, right, bottom, top = plane.extent
    rows, columns = values.shape
    x = left + (np.arange(columns) + 0.5) / columns * (right - left)
    y = bottom + (np.arange(rows) + 0.5) / rows * (top - bottom)
    hues = [HUES[label] for label in plane.labels]
    axes.scatter(plane.points[:, 0], plane.points[:, 1], s=4, color=hues, linewidths=0, alpha=0.5)
    levels = [level for level in _LEVELS if values.min() < level < values.max()]
    if levels:
        styles = ["--" if level < 0 else "-" for level in levels]
        widths = [2.0 if level == 0 else 1.0 for level in levels]
        lines = axes.contour(x, y, values, levels=levels, colors=INK, linestyles=styles, linewidths=widths)
        axes.clabel(lines, fontsize=8, fmt="%d")
    own_x, own_y = plane.prototypes[plane.chosen]
    axes.scatter(own_x, own_y, s=110, marker="*", color=HUES[plane.chosen], edgecolors=INK, linewidths=1)
    _finish(axes, plane, f"S to the prototype of {plane.classes[plane.chosen]}")


def _finish(axes: Axes, plane: LearnedPlane, title: str) -> None:
    axes.set_title(title)
    axes.set_xlim(*plane.extent[:2])
    axes.set_ylim(*plane.extent[2:])
    axes.grid(False)
