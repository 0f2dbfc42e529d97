"""Local features in the plane, coloured by the cell of their prototype, with what the prototypes look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from nearkin.errors import DataError
from nearkin.report._canvas import INK, WIDTH, drawing, to_png
from nearkin.report._lines import plain_numbers
from nearkin.report._plane import HUES, Plane
from nearkin.report.formatting import value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

MOST_STRIPS = 8
MOST_PATCHES = 5  # of a strip
_NEIGHBOURS = 7  # prototypes that a cell's colour must differ from
_RASTER = 600  # pixels a side of the coloured cells
_MOST_POINTS = 12_000  # more would only darken the picture
_PLANE_POINTS = 4096  # that the plane is fitted to
_MAP, _STRIP = 540, 80  # heights in CSS pixels
_SHAPE = 1.4  # width of the map over its height


@dataclass(frozen=True, eq=False)
class LocalView:
    """Local features of B images and their prototypes in the plane; made by `LocalView.of`.

    Args:
        points: (B, n, 2) local features.
        prototypes: (m, 2).
        nearest: (B, n) the prototype of each local feature.
        labels: (B,) class of each image, as its place among the classes.
        gap: (B, 2) mean of the local features.
        pcc: (B, 2) mean of their prototypes.
        errors: (B,) distance of the two, in all dimensions.
        radii: (B,) covering radius of the prototypes over the local features of each image, in all dimensions.
        dimensions: how many there are.
    """

    points: np.ndarray
    prototypes: np.ndarray
    nearest: np.ndarray
    labels: np.ndarray
    gap: np.ndarray
    pcc: np.ndarray
    errors: np.ndarray
    radii: np.ndarray
    dimensions: int

    @property
    def radius(self) -> float:
        """The covering radius of the prototypes over all local features."""
        return float(self.radii.max())

    @classmethod
    def of(cls, features: np.ndarray, prototypes: np.ndarray, nearest: np.ndarray, labels: np.ndarray) -> LocalView:
        """Two dimensions are kept as they are; of more, the plane of largest variance of the local features.

        Args:
            features: (B, n, d), B > 0.
            prototypes: (m, d).
            nearest: (B, n) the prototype of each local feature.
            labels: (B,) class of each image, as its place among the classes.
        """
        features, prototypes, nearest, labels = _checked(features, prototypes, nearest, labels)
        flat = features.reshape(-1, features.shape[2])
        plane = Plane(thinned(flat, _PLANE_POINTS))
        gap = features.mean(axis=1, dtype=np.float64)
        pcc = np.stack([prototypes[places].mean(axis=0, dtype=np.float64) for places in nearest])
        ways = (x - prototypes[places] for x, places in zip(features, nearest, strict=True))
        return cls(
            plane(features),
            plane(prototypes),
            nearest,
            labels,
            plane(gap),
            plane(pcc),
            np.linalg.norm(gap - pcc, axis=1),
            np.array([np.linalg.norm(way, axis=1).max() for way in ways]),
            features.shape[2],
        )


def draw_prototypes(view: LocalView, patches: Mapping[int, Sequence[Image.Image]] | None = None) -> bytes:
    """Draw local features coloured by the cell of their prototype, and what some prototypes look like.

    In two dimensions the cells are tinted; of more, a plane shows no cells, only the points in them.

    Args:
        view: local features and prototypes.
        patches: parts of images nearest to some prototypes, by the prototype's place: up to eight prototypes with up
            to five parts each, shown below with a number that the prototype has too.

    Returns:
        PNG bytes.
    """
    strips = dict(list((patches or {}).items())[:MOST_STRIPS])
    if unknown := [place for place in strips if not 0 <= place < len(view.prototypes)]:
        raise DataError(f"There are {len(view.prototypes)} prototypes and none has the place {unknown[0]}.")
    colours = cell_colours(view.prototypes, list(strips))
    rows = -(-len(strips) // 2)
    with drawing(WIDTH, _MAP + _STRIP * rows) as figure:
        heights = [_MAP, *([_STRIP * rows] if rows else [])]
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        axes = parts[0].subplots()
        _draw_cells(axes, view, colours)
        _mark_prototypes(axes, view, colours, list(strips))
        axes.set_title(f"{len(view.prototypes)} prototypes, covering radius {value_text(view.radius, False)}")
        if rows:
            cells = parts[1].subfigures(rows, 2, squeeze=False)
            for number, (place, images) in enumerate(strips.items()):
                _draw_strip(cells[number // 2, number % 2], number + 1, images, colours[place])
        return to_png(figure)


def cell_colours(prototypes: np.ndarray, first: Sequence[int] = ()) -> list[str]:
    """A colour for each prototype (m, 2), other than those of its neighbours as far as the hues suffice.

    Args:
        prototypes: (m, 2).
        first: places of those that should have colours of their own.
    """
    chosen = np.full(len(prototypes), -1)
    distances = np.linalg.norm(prototypes[:, None] - prototypes[None], axis=2)
    for place in dict.fromkeys([*first, *range(len(prototypes))]):
        near = chosen[np.argsort(distances[place], kind="stable")[: _NEIGHBOURS + 1]]
        used = np.bincount(chosen[chosen >= 0], minlength=len(HUES)).astype(float)
        used[near[near >= 0]] += len(prototypes)
        chosen[place] = int(used.argmin())
    return [HUES[place] for place in chosen]


def thinned(rows: np.ndarray, most: int = _MOST_POINTS) -> np.ndarray:
    """At most `most` rows of an array, shuffled: none lies always on top, and no position of a map is preferred."""
    return rows[np.random.default_rng(0).permutation(len(rows))[:most]]


def dots(axes: Axes, points: np.ndarray, size: float | np.ndarray, **look: Any) -> None:
    """Marks at points (k, 2) of a size in square points, without rims unless asked for."""
    axes.scatter(points[:, 0], points[:, 1], s=size, **{"linewidths": 0, **look})


def frame(axes: Axes, *parts: np.ndarray, shape: float = 1.0, room: float = 0.04) -> None:
    """Show all of parts (…, 2) on equal axes without ticks.

    Args:
        axes: where.
        parts: what must be seen.
        shape: width of the axes over their height.
        room: left free on every side, as a share of the whole.
    """
    everything = np.concatenate([part.reshape(-1, 2) for part in parts])
    low, high = everything.min(axis=0), everything.max(axis=0)
    height = max(high[1] - low[1], (high[0] - low[0]) / shape) or 1.0
    half = (0.5 + room) * height * np.array([shape, 1.0])
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(True)
    axes.grid(False)


def _draw_cells(axes: Axes, view: LocalView, colours: Sequence[str]) -> None:
    from matplotlib.colors import to_rgba_array

    palette = to_rgba_array(list(colours))
    flat, nearest = view.points.reshape(-1, 2), view.nearest.ravel()
    kept = thinned(np.arange(len(flat)))
    size = float(np.clip(20_000 / len(kept), 3, 16))
    dots(axes, flat[kept], size, color=palette[nearest[kept]], alpha=0.6, zorder=2)
    frame(axes, flat, view.prototypes, shape=_SHAPE)
    if view.dimensions > 2:
        return
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    x, y = np.meshgrid(np.linspace(left, right, _RASTER), np.linspace(bottom, top, _RASTER))
    places = np.stack([x.ravel(), y.ravel()], axis=1)
    squares = (view.prototypes**2).sum(axis=1) - 2 * places @ view.prototypes.T
    tints = palette[squares.argmin(axis=1)].reshape(_RASTER, _RASTER, 4)
    axes.imshow(tints, extent=(left, right, bottom, top), origin="lower", alpha=0.16, zorder=1)


def _mark_prototypes(axes: Axes, view: LocalView, colours: Sequence[str], numbered: Sequence[int]) -> None:
    """Prototypes as boxes; those with a strip are larger and carry its number."""
    x, y = view.prototypes.T
    axes.scatter(x, y, s=34, color=list(colours), marker="s", edgecolors=INK, linewidths=0.9, zorder=4)
    for number, place in enumerate(numbered):
        axes.annotate(
            str(number + 1),
            (x[place], y[place]),
            fontsize=9,
            fontweight="bold",
            color=INK,
            ha="center",
            va="center",
            zorder=6,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colours[place], "linewidth": 2},
        )


def _draw_strip(part: SubFigure, number: int, images: Sequence[Image.Image], colour: str) -> None:
    """The number of a prototype, and the parts of images nearest to it."""
    row = part.subplots(1, 1 + MOST_PATCHES, width_ratios=[0.4, *[1] * MOST_PATCHES])
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": colour, "linewidth": 2}
    row[0].text(0.5, 0.5, str(number), fontsize=10, fontweight="bold", ha="center", va="center", bbox=box)
    for axes in row:
        axes.set_axis_off()
    for axes, image in zip(row[1:], images, strict=False):
        axes.set_axis_on()
        axes.imshow(np.asarray(image.convert("RGB")), interpolation="lanczos")
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
        axes.spines[:].set(visible=True, color=colour, linewidth=2)


def _checked(
    features: np.ndarray, prototypes: np.ndarray, nearest: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The parts of a view as plain arrays; raises DataError unless they are finite and fit together."""
    features = np.asarray(features)
    if features.dtype.kind != "f":  # the many features of a network are not copied
        features = plain_numbers(features, "local features")
    if features.ndim != 3 or not features.size or not np.isfinite(features).all():
        raise DataError(f"Local features must be finite and of shape (B, n, d), but got shape {features.shape}.")
    prototypes = plain_numbers(prototypes, "prototypes")
    fits = prototypes.ndim == 2 and len(prototypes) and prototypes.shape[1] == features.shape[2]
    if not fits or not np.isfinite(prototypes).all():
        raise DataError(
            f"The prototypes must be finite and of shape (m, {features.shape[2]}), but got shape {prototypes.shape}."
        )
    nearest, labels = np.asarray(nearest), np.asarray(labels)
    if nearest.shape != features.shape[:2] or not np.isin(nearest, np.arange(len(prototypes))).all():
        raise DataError(
            f"Each of {features.shape[:2]} local features needs the place of one of {len(prototypes)} prototypes, but "
            f"got shape {nearest.shape} or other values."
        )
    if labels.shape != features.shape[:1] or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise DataError(
            f"{len(features)} images need as many labels, each the place of a class, but got shape {labels.shape} or "
            "other values."
        )
    return features, prototypes, nearest, labels
