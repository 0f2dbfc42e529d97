"""What a classifier says at every point of a plane or a globe: class probabilities or learned similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, GREEN, HUES, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, WIDTH
from nearkin.report.values import plain_numbers, shaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_EVERY = 30  # degrees between the lines of a graticule
_FINE = 181  # points of such a line
_BEHIND = -1e-9


class Globe:
    """What of the sphere is seen from one side, and where.

    Args:
        view: (3,) from where it is seen; only the direction counts.
    """

    def __init__(self, view: Sequence[float] | np.ndarray) -> None:
        towards = plain_numbers(view, "view of a globe")
        length = np.linalg.norm(towards)
        if towards.shape != (3,) or not 0 < length < np.inf:
            raise DataError(
                f"The direction a globe is seen from must be three numbers, not all 0, but got {towards.tolist()}."
            )
        self.towards = towards / length
        above_pole = abs(self.towards[2]) > 1 - 1e-9
        right = np.cross((0.0, 1.0, 0.0) if above_pole else (0.0, 0.0, 1.0), self.towards)
        self.right = right / np.linalg.norm(right)
        self.up = np.cross(self.towards, self.right)

    def project(self, points: np.ndarray) -> np.ndarray:
        """Places (m, 2) within the unit disc of points (m, 3) of the sphere, seen or not."""
        return points @ np.stack([self.right, self.up], axis=1)

    def visible(self, points: np.ndarray) -> np.ndarray:
        """Which (m,) of points (m, 3) are on the side that is seen."""
        return points @ self.towards >= _BEHIND

    def points(self, size: int) -> np.ndarray:
        """Points (size, size, 3) of the sphere below the pixels of a square around the disc, the lowest row first.

        Beside the disc they are those of its rim, so that the rim has no gaps.
        """
        line = (np.arange(size) + 0.5) / size * 2 - 1
        x, y = np.meshgrid(line, line)
        radius = np.maximum(np.hypot(x, y), 1.0)
        x, y = x / radius, y / radius
        depth = np.sqrt(np.maximum(1 - x**2 - y**2, 0.0))
        return x[..., None] * self.right + y[..., None] * self.up + depth[..., None] * self.towards

    def graticule(self) -> list[np.ndarray]:
        """Parallels and meridians that are seen, as lines (n, 2); what is behind is NaN."""
        around, upright = np.radians(np.linspace(0, 360, 2 * _FINE - 1)), np.radians(np.linspace(-90, 90, _FINE))
        lines = [_on_sphere(around, np.full_like(around, np.radians(at))) for at in range(-90 + _EVERY, 90, _EVERY)]
        lines += [_on_sphere(np.full_like(upright, np.radians(at)), upright) for at in range(0, 360, _EVERY)]
        return [np.where(self.visible(line)[:, None], self.project(line), np.nan) for line in lines]


def _on_sphere(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Points (n, 3)."""
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)


_COLOURS = (VERMILION, GREEN, BLUE, ORANGE, PURPLE, SKY)
_MAP = "inferno"
_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
_TITLE_ROOM, _KEY_ROOM = 46, 92  # CSS pixels above a row of panels, and below all of them
_WIDEST = 420  # of a panel, in CSS pixels
_ARROW = 0.26  # half frames
_MOST_COLUMNS = 4
_POINTS = ("representatives", "highest", "lowest")


@dataclass(frozen=True, eq=False)
class ProbabilityPanel:
    """What one panel shows.

    Args:
        title: heading.
        values: probabilities in the plane (h, w), the first row lowest; on a globe (views, n, n), at `globe_points`.
        representatives: (C, 2) or (C, 3) a point for each class, first that of the class in question.
        highest: (m, 2) or (m, 3) where the probability is largest.
        lowest: likewise, where it is smallest.
        half: in the plane, the frame reaches from -half to half either way.
        note: a line below the heading.
    """

    title: str
    values: np.ndarray
    representatives: np.ndarray
    highest: np.ndarray
    lowest: np.ndarray
    half: float = 1.0
    note: str = ""


def draw_planes(panels: Sequence[ProbabilityPanel], classes: Sequence[str], columns: int = 3) -> bytes:
    """Draw probabilities over the plane, each panel in a square frame around the origin, row by row.

    A highest or lowest point on the frame's edge is the tip of an arrow that begins at its ring: beyond it, the
    probability goes on rising or falling.

    Args:
        panels: what to show.
        classes: (C,) names, first that of the class in question.
        columns: panels in a row, at most four.

    Returns:
        PNG bytes, or none without panels.
    """
    shown = [_checked(panel, classes, 2) for panel in panels]
    if not shown:
        return b""
    columns = _columns(columns, len(shown))
    side = min(WIDTH // columns - 32, _WIDEST)  # a little lower than wide: the layout then knows how high titles reach
    with canvas.drawing(WIDTH, -(-len(shown) // columns) * (side + _TITLE_ROOM) + _KEY_ROOM) as figure:
        for axes, panel in zip(canvas.panel_grid(figure, len(shown), columns), shown, strict=True):
            _draw_plane(axes, panel, classes)
            _write_title(axes, panel, side)
        _draw_key(figure, classes)
        return canvas.to_png(figure)


def draw_globes(
    panels: Sequence[ProbabilityPanel], classes: Sequence[str], views: Sequence[Sequence[float]], names: Sequence[str]
) -> bytes:
    """Draw probabilities over the sphere as globes seen from afar: a column a panel, a row a view.

    Args:
        panels: what to show, at most four.
        classes: (C,) names, first that of the class in question.
        views: from where (V, 3) the globes are seen.
        names: (V,) how these views are called.

    Returns:
        PNG bytes, or none without panels.
    """
    globes = [Globe(view) for view in views]
    if len(names) != len(globes):
        raise DataError(f"{len(globes)} views need as many names, but got {len(names)}.")
    shown = [_checked(panel, classes, 3, len(globes)) for panel in panels]
    if not shown or not globes:
        return b""
    columns = _columns(len(shown), len(shown))
    side = min(WIDTH // columns - 24, _WIDEST)
    with canvas.drawing(WIDTH, len(globes) * side + _TITLE_ROOM + _KEY_ROOM) as figure:
        grid = figure.subplots(len(globes), columns, squeeze=False)
        for row, (globe, name) in enumerate(zip(globes, names, strict=True)):
            for axes, panel in zip(grid[row], shown, strict=True):
                _draw_globe(axes, panel, globe, panel.values[row], classes)
            grid[row, 0].set_ylabel(name, fontsize=9)
        for axes, panel in zip(grid[0], shown, strict=True):
            _write_title(axes, panel, side)
        _draw_key(figure, classes)
        return canvas.to_png(figure)


def globe_points(view: Sequence[float], size: int) -> np.ndarray:
    """Points (size, size, 3) of the sphere at which `draw_globes` wants the values of the view (3,)."""
    return Globe(view).points(size)


def _draw_plane(axes: Axes, panel: ProbabilityPanel, classes: Sequence[str]) -> None:
    from matplotlib.patheffects import withStroke

    half = panel.half
    arrow: Any = {"arrowstyle": "->", "color": "white", "linewidth": 1.5, "shrinkA": 8, "shrinkB": 1}
    arrow["path_effects"] = [withStroke(linewidth=3.2, foreground=INK)]
    extent = (-half, half, -half, half)
    axes.imshow(panel.values, cmap=_MAP, vmin=0, vmax=1, extent=extent, origin="lower", interpolation="bilinear")
    _draw_contours(axes, panel.values, half)
    for points, look in ((panel.highest, _HIGHEST), (panel.lowest, _LOWEST)):
        inwards = -_ARROW * half * np.sign(points) * (np.abs(points) > 0.999 * half)
        _draw_rings(axes, points + inwards, look)
        for point, way in zip(points, inwards, strict=True):
            if way.any():  # from the ring to the edge, light within dark
                axes.annotate("", tuple(point), tuple(point + way), arrowprops=arrow, zorder=5)
    _draw_boxes(axes, panel.representatives, classes)
    ticks = [-half, 0.0, half]
    axes.set(xlim=(-half, half), ylim=(-half, half), xticks=ticks, yticks=ticks, aspect="equal")
    axes.tick_params(labelsize=8, length=2, pad=2)
    canvas.frame_axes(axes)


def _draw_globe(axes: Axes, panel: ProbabilityPanel, globe: Globe, values: np.ndarray, classes: Sequence[str]) -> None:
    from matplotlib.patches import Circle

    image = axes.imshow(values, cmap=_MAP, vmin=0, vmax=1, extent=(-1, 1, -1, 1), origin="lower")
    disc = Circle((0, 0), 1, transform=axes.transData)
    image.set_clip_path(disc)
    _draw_contours(axes, values, 1.0).set_clip_path(disc)
    for line in globe.graticule():
        axes.plot(*line.T, color="white", alpha=0.28, linewidth=0.5, zorder=2)
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=INK, linewidth=0.8, zorder=3))
    for points, look in ((panel.highest, _HIGHEST), (panel.lowest, _LOWEST)):
        _draw_rings(axes, globe.project(points)[globe.visible(points)], look)
    seen = globe.visible(panel.representatives)
    _draw_boxes(axes, globe.project(panel.representatives), classes, seen)
    axes.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), xticks=[], yticks=[], aspect="equal")
    canvas.frame_axes(axes)


def _draw_contours(axes: Axes, values: np.ndarray, half: float) -> Any:
    """Lines of equal probability, drawn dark where the map is bright."""
    height, width = values.shape
    x, y = ((np.arange(count) + 0.5) / count * 2 * half - half for count in (width, height))
    colours = ["white" if level < 0.6 else INK for level in _LEVELS]
    return axes.contour(x, y, values, levels=_LEVELS, colors=colours, linewidths=0.7, alpha=0.75, zorder=2)


_HIGHEST: dict[str, Any] = {"marker": "o", "s": 170}
_LOWEST: dict[str, Any] = {"marker": "D", "s": 150}


def _draw_rings(axes: Axes, points: np.ndarray, look: dict[str, Any]) -> None:
    """Rings around points (m, 2), light within dark, so that they are seen on any colour."""
    for colour, width in ((INK, 3.4), ("white", 1.7)):
        axes.scatter(*points.T, facecolors="none", edgecolors=colour, linewidths=width, clip_on=False, zorder=6, **look)


def _draw_boxes(axes: Axes, points: np.ndarray, classes: Sequence[str], seen: np.ndarray | None = None) -> None:
    """Boxes with the first letter of a class at points (C, 2)."""
    for place, (point, name) in enumerate(zip(points, classes, strict=True)):
        if seen is not None and not seen[place]:
            continue
        look: dict[str, Any] = {"marker": "s", "s": 62, "color": _COLOURS[place % len(_COLOURS)], "edgecolors": "white"}
        axes.scatter(*point, linewidths=0.9, zorder=8, clip_on=False, **look)
        letter: Any = {"color": "white", "fontsize": 6.5, "fontweight": "bold", "ha": "center", "va": "center_baseline"}
        canvas.note(axes, name[:1], point, zorder=9, **letter)


def _write_title(axes: Axes, panel: ProbabilityPanel, width: float) -> None:
    title, below = canvas.fit_text(panel.title, width, 10, "bold"), canvas.fit_text(panel.note, width, 8)
    canvas.heading(axes, title, below, fontsize=8, color=MUTED)


def _draw_key(figure: Figure, classes: Sequence[str]) -> None:
    """The colour bar with the levels of the contours, and what the marks are."""
    from matplotlib.cm import ScalarMappable

    look: Any = {"location": "bottom", "shrink": 0.6, "aspect": 40, "pad": 0.02, "ticks": [0, *_LEVELS, 1]}
    bar = figure.colorbar(ScalarMappable(cmap=_MAP), ax=list(figure.axes), **look)
    bar.set_label(f"p({classes[0]} | x), with lines at the ticks", fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    marks = [("s", 7.0, _COLOURS[place % len(_COLOURS)], "none", name) for place, name in enumerate(classes)]
    marks += [("o", 9.0, "none", INK, "most probable"), ("D", 8.0, "none", INK, "least probable")]
    handles = [
        canvas.mark(label, linestyle="", marker=marker, markersize=size, color=colour, markeredgecolor=edge)
        for marker, size, colour, edge, label in marks
    ]
    canvas.draw_legend(figure, handles, len(handles), "outside lower center")


def _columns(asked: int, panels: int) -> int:
    if not 1 <= asked <= _MOST_COLUMNS:
        raise DataError(f"A picture of probabilities has 1 to {_MOST_COLUMNS} panels in a row, not {asked}.")
    return min(asked, panels)


def _checked(
    panel: ProbabilityPanel, classes: Sequence[str], dimension: int, views: int | None = None
) -> ProbabilityPanel:
    """The panel with plain arrays; raises DataError unless they are finite and fit together."""
    values = plain_numbers(panel.values, f"probabilities of '{panel.title}'")
    wanted = "(h, w)" if views is None else f"({views}, n, n)"
    fits = values.ndim == 2 if views is None else values.ndim == 3 and len(values) == views
    if not fits or min(values.shape[-2:]) < 2 or not ((values >= 0) & (values <= 1)).all():
        raise DataError(f"'{panel.title}' needs probabilities {wanted} from 0 to 1, but got {values.shape} or others.")
    parts: dict[str, Any] = {
        name: shaped(getattr(panel, name), f"{name} points of '{panel.title}'", "m", dimension) for name in _POINTS
    }
    if len(parts["representatives"]) != len(classes) or not len(classes):
        raise DataError(
            f"'{panel.title}' has {len(parts['representatives'])} representatives for {len(classes)} classes."
        )
    if not 0 < panel.half < np.inf:
        raise DataError(f"The frame of '{panel.title}' must have a positive half width, not {panel.half}.")
    return replace(panel, values=values, **parts)


_HEIGHT = 450
_WASH = 0.28  # how strongly a region has its class's colour
_SIMILARITY_LEVELS = (-20, -10, -5, 0, 5, 10, 20)


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
    with canvas.drawing(WIDTH, _HEIGHT) as figure:
        regions, levels = figure.subplots(1, 2, sharex=True, sharey=True)
        _draw_regions(regions, plane)
        _draw_levels(levels, plane)
        levels.set(xlim=plane.extent[:2], ylim=plane.extent[2:])
        regions.grid(False)
        levels.grid(False)
        handles = [
            regions.scatter([], [], s=24, color=HUES[code], label=str(name)) for code, name in enumerate(plane.classes)
        ]
        handles.append(regions.scatter([], [], s=70, marker="*", color="white", edgecolors=INK, label="prototype"))
        canvas.draw_legend(figure, handles, 6, "outside lower center", columnspacing=1.2, handletextpad=0.2)
        return canvas.to_png(figure)


def _draw_regions(axes: Axes, plane: LearnedPlane) -> None:
    from matplotlib.colors import to_rgb

    chosen = plane.scores.argmax(axis=-1)
    colours = np.array([to_rgb(hue) for hue in HUES])
    wash = 1 - _WASH * (1 - colours[chosen])
    axes.imshow(wash, origin="lower", extent=plane.extent, aspect="auto", interpolation="nearest")
    for code in range(len(plane.classes)):
        mine = plane.labels == code
        axes.scatter(plane.points[mine, 0], plane.points[mine, 1], s=5, color=HUES[code], linewidths=0)
        x, y = plane.prototypes[code]
        axes.scatter(x, y, s=90, marker="*", color=HUES[code], edgecolors=INK, linewidths=1)
    axes.set_title("Most similar prototype")


def _draw_levels(axes: Axes, plane: LearnedPlane) -> None:
    values = plane.scores[..., plane.chosen]
    left, right, bottom, top = plane.extent
    rows, columns = values.shape
    x = left + (np.arange(columns) + 0.5) / columns * (right - left)
    y = bottom + (np.arange(rows) + 0.5) / rows * (top - bottom)
    hues = [HUES[label] for label in plane.labels]
    axes.scatter(plane.points[:, 0], plane.points[:, 1], s=4, color=hues, linewidths=0, alpha=0.5)
    levels = [level for level in _SIMILARITY_LEVELS if values.min() < level < values.max()]
    if levels:
        styles = ["--" if level < 0 else "-" for level in levels]
        widths = [2.0 if level == 0 else 1.0 for level in levels]
        lines = axes.contour(x, y, values, levels=levels, colors=INK, linestyles=styles, linewidths=widths)
        axes.clabel(lines, fontsize=8, fmt="%d")
    own_x, own_y = plane.prototypes[plane.chosen]
    axes.scatter(own_x, own_y, s=110, marker="*", color=HUES[plane.chosen], edgecolors=INK, linewidths=1)
    axes.set_title(f"S to the prototype of {plane.classes[plane.chosen]}")
