"""What pooling sees: local features and prototypes in the plane, single images pooled, and the hulls of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from nearkin.errors import DataError
from nearkin.metrics.local_features import convex_hull
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, FAINT, HUES, INK, MUTED, ORANGE, SKY, VERMILION, WIDTH
from nearkin.report.values import check_shape, plain_numbers, shaped, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


MOST_STRIPS = 8
MOST_PATCHES = 5  # of a strip
_NEIGHBOURS = 7  # prototypes that a cell's colour must differ from
_RASTER = 600  # pixels a side of the coloured cells
_MOST_POINTS = 12_000  # more would only darken the picture
_PLANE_POINTS = 4096  # that the plane is fitted to
_MAP, _STRIP = 540, 80  # heights in CSS pixels
_SHAPE = 1.4  # width of the map over its height
_NUMBER: Any = {"fontweight": "bold", "color": INK, "ha": "center", "va": "center"}


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
        plane = canvas.Plane(thinned(flat, _PLANE_POINTS))
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
        raise DataError(f"There are {len(view.prototypes)} prototypes but none has index {unknown[0]}.")
    colours = cell_colours(view.prototypes, list(strips))
    rows = -(-len(strips) // 2)
    with canvas.drawing(WIDTH, _MAP + _STRIP * rows) as figure:
        heights = [_MAP, *([_STRIP * rows] if rows else [])]
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        axes = parts[0].subplots()
        _draw_cells(axes, view, colours)
        x, y = view.prototypes.T
        axes.scatter(x, y, s=34, color=list(colours), marker="s", edgecolors=INK, linewidths=0.9, zorder=4)
        for number, place in enumerate(strips):
            box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colours[place], "linewidth": 2}
            canvas.note(axes, str(number + 1), (x[place], y[place]), zorder=6, bbox=box, fontsize=9, **_NUMBER)
        axes.set_title(f"{len(view.prototypes)} prototypes, covering radius {value_text(view.radius, False)}")
        if rows:
            cells = parts[1].subfigures(rows, 2, squeeze=False)
            for number, (place, images) in enumerate(strips.items()):
                _draw_strip(cells[number // 2, number % 2], number + 1, images, colours[place])
        return canvas.to_png(figure)


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
    canvas.frame_axes(axes, FAINT)


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


def _draw_strip(part: SubFigure, number: int, images: Sequence[Image.Image], colour: str) -> None:
    """The number of a prototype, and the parts of images nearest to it."""
    row = part.subplots(1, 1 + MOST_PATCHES, width_ratios=[0.4, *[1] * MOST_PATCHES])
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": colour, "linewidth": 2}
    row[0].text(0.5, 0.5, str(number), bbox=box, fontsize=10, **_NUMBER)
    for axes in row:
        axes.set_axis_off()
    for axes, image in zip(row[1:], images, strict=False):
        axes.set_axis_on()
        axes.imshow(np.asarray(image.convert("RGB")), interpolation="lanczos")
        axes.set(xticks=[], yticks=[])
        canvas.frame_axes(axes, colour, 2)


def _checked(
    features: np.ndarray, prototypes: np.ndarray, nearest: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The parts of a view as plain arrays; raises DataError unless they are finite and fit together."""
    features = np.asarray(features)
    if features.dtype.kind != "f":  # the many features of a network are not copied
        features = plain_numbers(features, "local features")
    check_shape(features, "local features", "B", "n", "d")
    if not features.size:
        raise DataError("There are no local features to draw.")
    prototypes = shaped(prototypes, "prototypes", "m", features.shape[2])
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


MOST_IMAGES = 4
_POOLED_PANEL, _LEGEND = 262, 34  # heights in CSS pixels
_THUMB, _PLOT = 110, 240  # widths in CSS pixels
_POOLED_MARGIN = 0.06  # around all features, as a share of their extent: a circle that is larger is cut
_LARGEST = 160.0  # area of the mark of a prototype with all the mass, in square points


def draw_pooled(
    view: LocalView, images: Sequence[int], names: Sequence[str], thumbs: Sequence[Image.Image | None]
) -> bytes:
    """Draw up to four images: local features, their prototypes by mass, GAP, PCC, and around GAP the covering radius.

    The radius is that over the local features of the image itself.

    Args:
        view: local features and prototypes.
        images: which of the view's images to draw.
        names: the heading of each.
        thumbs: the picture of each, or None where there is nothing to look at.

    Returns:
        PNG bytes, or none when there are no images.
    """
    if not len(images) == len(names) == len(thumbs):
        raise DataError(f"{len(images)} images need a name and a picture each, not {len(names)} and {len(thumbs)}.")
    if unknown := [image for image in images if not 0 <= image < len(view.points)]:
        raise DataError(f"There are {len(view.points)} images but none has index {unknown[0]}.")
    shown = list(zip(images, names, thumbs, strict=True))[:MOST_IMAGES]
    if not shown:
        return b""
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    with canvas.drawing(columns * WIDTH // 2, _POOLED_PANEL * rows + _LEGEND) as figure:
        legend, body = figure.subfigures(2, 1, height_ratios=[_LEGEND, _POOLED_PANEL * rows], squeeze=False).flat
        parts = body.subfigures(rows, columns, squeeze=False)
        for part, (image, name, thumb) in zip(parts.flat, shown, strict=False):
            heading = canvas.fit_text(name, WIDTH // 2 - 24, 10, "bold")
            part.suptitle(heading, x=0.015, ha="left", fontsize=10, fontweight="bold")
            words = [
                f"|PCC − GAP| {value_text(float(view.errors[image]), False)}",
                f"radius {value_text(float(view.radii[image]), False)}",
            ]
            if thumb is None:
                axes = part.subplots()
                axes.set_anchor("W")
                axes.set_xlabel(", ".join(words), fontsize=8, loc="left")
            else:
                beside, axes = part.subplots(1, 2, width_ratios=[_THUMB, _PLOT])
                beside.set_axis_off()
                beside.set_anchor("N")
                beside.imshow(np.asarray(thumb.convert("RGB")), interpolation="lanczos")
                at: Any = {"transform": beside.transAxes, "va": "top", "linespacing": 1.5}
                beside.text(0, -0.06, "\n".join(words), fontsize=8, color=MUTED, **at)
            _draw_image(axes, view, image)
        _write_legend(legend)
        return canvas.to_png(figure)


def _draw_image(axes: Axes, view: LocalView, image: int) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle

    points, nearest = view.points[image], view.nearest[image]
    prototypes, mass = view.prototypes, np.bincount(nearest, minlength=len(view.prototypes)) / len(nearest)
    dots(axes, thinned(view.points.reshape(-1, 2), 6000), 1, color=FAINT, alpha=0.5, zorder=1)
    ways = np.stack([points, prototypes[nearest]], axis=1)
    axes.add_collection(LineCollection(list(ways), colors=SKY, linewidths=0.5, alpha=0.7, zorder=2), autolim=False)
    dots(axes, points, 6, color=BLUE, zorder=3)
    used = mass > 0
    look: Any = {"color": ORANGE, "marker": "s", "alpha": 0.75, "edgecolors": INK, "linewidths": 0.7}
    dots(axes, prototypes[used], _LARGEST * mass[used], zorder=4, **look)
    gap, pcc = view.gap[image], view.pcc[image]
    ring: Any = {"fill": False, "edgecolor": VERMILION, "linewidth": 1.1, "linestyle": "--"}
    axes.add_patch(Circle(tuple(gap), view.radii[image], zorder=5, **ring))
    dots(axes, gap[None], 90, color=VERMILION, marker="*", edgecolors="white", linewidths=0.7, zorder=7)
    dots(axes, pcc[None], 34, color="white", marker="D", edgecolors=VERMILION, linewidths=1.5, zorder=6)
    frame(axes, view.points, prototypes, room=_POOLED_MARGIN)


def _write_legend(figure: Figure | SubFigure) -> None:
    shown: Any = {"linestyle": ""}
    handles = [
        canvas.mark("local features", marker="o", markersize=3.5, color=BLUE, **shown),
        canvas.mark(
            "prototypes, by mass",
            marker="s",
            markersize=7,
            color=ORANGE,
            markeredgecolor=INK,
            markeredgewidth=0.7,
            **shown,
        ),
        canvas.mark("GAP", marker="*", markersize=10, color=VERMILION, markeredgecolor="white", **shown),
        canvas.mark(
            "PCC", marker="D", markersize=6, color="white", markeredgecolor=VERMILION, markeredgewidth=1.5, **shown
        ),
        canvas.mark("covering radius", linestyle="--", color=VERMILION, linewidth=1.1),
    ]
    canvas.draw_legend(figure, handles, 5, "center left", handlelength=1.4, handletextpad=0.4, columnspacing=1.1)


_HULL_MAP, _HULL_PANEL = 430, 158  # heights in CSS pixels
_HULL_SHAPE = 1.75  # width of the large map over its height
_COLUMNS = 5
_HULL_MOST_POINTS = 1500  # local features of a class
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
    with canvas.drawing(WIDTH, _HULL_MAP + _HULL_PANEL * rows) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=[_HULL_MAP, _HULL_PANEL * rows], squeeze=False).flat
        _draw_together(above.subplots(), view, active, shown)
        for axes, place in zip(canvas.panel_grid(below, len(shown), _COLUMNS), shown, strict=True):
            _draw_class(axes, view, active[place], place)
            axes.set_title(
                canvas.fit_text(classes[place], WIDTH // _COLUMNS - 16, 9, "bold"), fontsize=9, color=HUES[place]
            )
        return canvas.to_png(figure)


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
    frame(axes, view.points, view.prototypes, shape=_HULL_SHAPE)


def _draw_class(axes: Axes, view: LocalView, active: np.ndarray, place: int) -> None:
    mine = view.labels == place
    dots(axes, view.prototypes, 5, color=FAINT, marker="s", zorder=1)
    points = thinned(view.points[mine].reshape(-1, 2), _HULL_MOST_POINTS)
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
