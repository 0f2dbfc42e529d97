"""Chance-constrained training: what each instance reached, and its points and proxies in the plane."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, FAINT, GREEN, HUES, INK, PURPLE, VERMILION, WIDTH
from nearkin.report.lines import mark_places, stacked_panels
from nearkin.report.values import LOWER, course_text, plain_numbers, shaped, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_PANEL, _RIM = 150, 40  # CSS pixels: the height of a panel, and of what the axis below adds
_MOST_MARKED = 60  # of more instances only the line is drawn
_LINES = (("instance_MAP@R", BLUE, "o"), ("instance_covering_radius", VERMILION, "s"), ("instance_spread", GREEN, "^"))
_VIOLATION, _BOUND = "instance_violation", "instance_violation_bound"
_STEPS = "instance_steps"


def draw_instances(history: Sequence[Mapping[str, float]]) -> bytes:
    """Draw what each instance reached, a panel a measure: MAP@R, violated pairs and bound, radius, spread, steps.

    Args:
        history: rows of the training log; those with an `instance` count, and of an instance that occurs twice, as
            after a resumed run, the last row. A measure without a finite value has no panel.

    Returns:
        PNG bytes, or empty bytes when there is nothing to draw.
    """
    rows = {int(row["instance"]): row for row in history if row.get("instance") is not None}
    instances = np.array(sorted(rows))
    values = {}
    for key in (_LINES[0][0], _VIOLATION, _BOUND, *(key for key, _, _ in _LINES[1:]), _STEPS):
        line = np.array([rows[instance].get(key) for instance in instances], dtype=np.float64)  # None becomes NaN
        values[key] = np.where(np.isfinite(line), line, np.nan)
    bound = values.pop(_BOUND)
    keys = [key for key, line in values.items() if np.isfinite(line).any()]
    if not keys:
        return b""
    from matplotlib.ticker import MaxNLocator

    with canvas.drawing(WIDTH, _RIM + _PANEL * len(keys)) as figure:
        grid = stacked_panels(figure, keys)
        for key, colour, marker in _LINES:
            if key in grid:
                look: Any = {"color": colour, "marker": marker if len(instances) <= _MOST_MARKED else ""}
                grid[key].plot(instances, values[key], linewidth=1.6, markersize=4, zorder=3, **look)
                grid[key].margins(y=0.15)
        if _VIOLATION in grid:
            _draw_violations(grid[_VIOLATION], instances, values[_VIOLATION], bound)
        _write_titles(grid, instances, values)
        if _STEPS in grid:
            grid[_STEPS].bar(instances, np.nan_to_num(values[_STEPS]), width=0.7, color=FAINT)
        last = grid[keys[-1]]
        last.set_xlabel("instance")
        last.set_xlim(instances[0] - 0.6, instances[-1] + 0.6)
        last.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True, min_n_ticks=1))
        return canvas.to_png(figure)


def _draw_violations(axes: Axes, instances: np.ndarray, violation: np.ndarray, bound: np.ndarray) -> None:
    """The share of violated pairs (n,) below Markov's bound on it (n,), which is dashed."""
    marker = "D" if len(instances) <= _MOST_MARKED else ""
    axes.plot(instances, bound, color=PURPLE, linewidth=1.2, linestyle=(0, (4, 2)), zorder=2)
    axes.plot(instances, violation, color=PURPLE, linewidth=1.6, marker=marker, markersize=4, zorder=3)
    title = f"Violated pairs {LOWER}{_course(violation, percent=True)}"
    axes.set_title(f"{title}; bound (dashed){_course(bound, percent=True)}")
    axes.set_ylim(0, 1.15 * float(np.nanmax([*violation, *bound])) or 1.0)
    canvas.percent_axis(axes, "y")


def _write_titles(grid: Mapping[str, Axes], instances: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
    """Name each measure and say in its title what the line shows; mark the instance that validated best."""
    quality, radius, spread = (key for key, _, _ in _LINES)
    if quality in grid:
        best = int(np.nanargmax(values[quality]))
        text = value_text(values[quality][best], True)
        grid[quality].set_title(f"Validation MAP@R: best {text} in instance {instances[best]:,}")
        star: Any = {"marker": "*", "markersize": 13, "color": "white", "markeredgecolor": INK}
        grid[quality].plot(instances[best], values[quality][best], zorder=5, **star)
        canvas.percent_axis(grid[quality], "y")
        mark_places(grid.values(), instances[best])
    if radius in grid:
        grid[radius].set_title(f"Covering radius {LOWER}{_course(values[radius])}")
    if spread in grid:
        grid[spread].set_title(f"Spread of the proxies of one class{_course(values[spread])}")
        top = max(float(np.nanmax(values[spread])), 1e-3)
        grid[spread].set_ylim(-0.06 * top, 1.15 * top)  # from 0 on: collapsed proxies shall look so
    if _STEPS in grid:
        total = float(np.nansum(values[_STEPS]))
        grid[_STEPS].set_title(f"Steps: {total:,.0f} in all")


def _course(values: np.ndarray, percent: bool = False) -> str:
    """From the first to the last value, in words; nothing for a single one."""
    known = values[np.isfinite(values)]
    return f": {course_text(known, percent)}" if len(known) > 1 else ""


MOST_PANELS = 6
_PARTS = ("points", "converged", "upcoming")
_DOTS = ("o", "^", "D", "v", "X")  # no squares: those are proxies
_COLUMNS = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3}
_WIDEST = 420  # of a panel, in CSS pixels
_TITLE_ROOM, _LEGEND_ROW, _TEXT = 43, 21, 9  # CSS pixels above a panel and of a legend's row; points of type
_NAME_WIDTH, _HANDLE_WIDTH = 150, 42  # CSS pixels of a class's name, and of its dot with the gaps around


@dataclass(frozen=True, eq=False)
class ProxyPanel:
    """What one panel shows; everything in the space in which distances are taken.

    Args:
        points: (n, d) embeddings.
        labels: (n,) the class of each point, as its place among the classes.
        converged: (c, K, d) proxies at the end of the instance.
        upcoming: (c, M, d) the proxies picked for the next instance; M may be 0.
        title: heading of the panel, as "instance 3".
        map_at_r: MAP@R, a share of 1, told below the heading if it is known.
        radius: covering radius, told likewise.
    """

    points: np.ndarray
    labels: np.ndarray
    converged: np.ndarray
    upcoming: np.ndarray
    title: str = ""
    map_at_r: float = math.nan
    radius: float = math.nan


def draw_proxies(panels: Sequence[ProxyPanel], classes: Sequence[str]) -> bytes:
    """Draw up to six panels on equal axes: points coloured by class, converged proxies as boxes, the next as circles.

    Of more panels the first, the last and evenly spaced ones between are shown. Two dimensions are drawn as they are;
    of more, the plane of largest variance of all shown points, one plane for all panels. Only the first ten classes
    have a colour and proxies, the others are grey.

    Args:
        panels: in the order of training.
        classes: (c,) names of the classes.

    Returns:
        PNG bytes, or none when there are no points.
    """
    shown = [_checked(panels[place], len(classes)) for place in evenly_spaced(len(panels))]
    if not sum(len(panel.points) for panel in shown):
        return b""
    if len({panel.points.shape[1] for panel in shown}) > 1:
        raise DataError("The panels must have one dimension, but their points have several: draw them separately.")
    plane = canvas.Plane(np.concatenate([panel.points for panel in shown]))
    # From here on everything is in the plane: points (n, 2), proxies (c, K, 2) and (c, M, 2).
    parts: list[Any] = [{part: plane(getattr(panel, part)) for part in _PARTS} for panel in shown]
    drawn = [replace(panel, **moved) for panel, moved in zip(shown, parts, strict=True)]
    names = [canvas.fit_text(name.lstrip("_"), _NAME_WIDTH, _TEXT) for name in classes[: len(HUES)]]
    if more := len(classes) - len(names):
        names.append(f"{more:,} more")
    columns = _COLUMNS[len(drawn)]
    side = min(_WIDEST, WIDTH // columns - 8)
    legend = _LEGEND_ROW * (1 + -(-len(names) // _legend_columns(names))) + 24
    with canvas.drawing(WIDTH, -(-len(drawn) // columns) * (side + _TITLE_ROOM) + legend) as figure:
        limits = _limits(drawn)
        for axes, panel in zip(canvas.panel_grid(figure, len(drawn), columns), drawn, strict=True):
            _draw_panel(axes, panel)
            values = {"MAP@R": (panel.map_at_r, True), "radius": (panel.radius, False)}
            told = [f"{name} {value_text(*value)}" for name, value in values.items() if math.isfinite(value[0])]
            canvas.heading(
                axes, canvas.fit_text(panel.title, WIDTH // columns - 24, 10, "bold"), ", ".join(told), fontsize=_TEXT
            )
            axes.set(**limits, xticks=[], yticks=[], aspect="equal", anchor="S")
            axes.spines[:].set_visible(True)
        _write_legends(figure, names, more > 0, any(panel.upcoming.size for panel in drawn))
        return canvas.to_png(figure)


def evenly_spaced(count: int, most: int = MOST_PANELS) -> list[int]:
    """At most `most` of the places 0 to count - 1: the first, the last, and evenly spaced ones between."""
    return np.unique(np.round(np.linspace(0, count - 1, min(count, most))).astype(int)).tolist() if count else []


def _checked(panel: ProxyPanel, classes: int) -> ProxyPanel:
    """The panel with plain arrays; raises DataError unless they are finite and fit together."""
    points = shaped(panel.points, "points of a panel", "n", "d")
    labels = plain_numbers(panel.labels, "labels of a panel")
    if labels.shape != points.shape[:1] or not np.isin(labels, np.arange(classes)).all():
        raise DataError(
            f"A panel of {len(points)} points needs as many labels, each the place of one of the {classes} classes, "
            f"but got shape {labels.shape} or other values."
        )
    converged, upcoming = (
        shaped(getattr(panel, name), f"{name} proxies of a panel", classes, "K", points.shape[1]) for name in _PARTS[1:]
    )
    return replace(panel, points=points, labels=labels, converged=converged, upcoming=upcoming)


def _limits(drawn: Sequence[ProxyPanel]) -> dict[str, tuple[float, float]]:
    """One square that holds everything of every panel."""
    everything = np.concatenate([getattr(panel, part).reshape(-1, 2) for panel in drawn for part in _PARTS])
    low, high = everything.min(axis=0), everything.max(axis=0)
    half = 0.54 * float((high - low).max()) or 1.0
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    return {"xlim": (left, right), "ylim": (bottom, top)}


def _draw_panel(axes: Axes, panel: ProxyPanel) -> None:
    size = float(np.clip(3000 / max(len(panel.points), 1), 3, 20))
    x, y = panel.points[panel.labels >= len(HUES)].T
    axes.scatter(x, y, s=0.6 * size, color=FAINT, linewidths=0)
    for place, colour in enumerate(HUES[: len(panel.converged)]):
        x, y = panel.points[panel.labels == place].T
        axes.scatter(x, y, s=size, color=colour, marker=_DOTS[place % len(_DOTS)], linewidths=0, alpha=0.45, zorder=2)
        x, y = panel.upcoming[place].T
        # A white rim keeps a circle apart from points and other circles of its colour.
        axes.scatter(x, y, s=34, color="none", edgecolors="white", linewidths=3.0, zorder=4)
        axes.scatter(x, y, s=34, color="none", edgecolors=colour, linewidths=1.5, zorder=5)
        x, y = panel.converged[place].T
        axes.scatter(x, y, s=30, color=colour, marker="s", edgecolors=INK, linewidths=0.9, zorder=6)


def _write_legends(figure: Figure, names: Sequence[str], grey: bool, circles: bool) -> None:
    """What box and circle are, above; the classes, below."""
    point: Any = {"linestyle": "", "markeredgecolor": INK}
    marks = [
        canvas.mark("converged proxies", marker="s", color="white", **point),
        canvas.mark("next proxies (k-center)", marker="o", color="none", markeredgewidth=1.5, **point),
    ]
    looks = [(HUES[place], _DOTS[place % len(_DOTS)]) for place in range(len(names) - grey)] + [(FAINT, "o")] * grey
    dots = [
        canvas.mark(name, linestyle="", marker=marker, markersize=5.5, color=colour)
        for name, (colour, marker) in zip(names, looks, strict=True)
    ]
    spacing: Any = {
        "fontsize": _TEXT,
        "handlelength": 1.2,
        "handletextpad": 0.4,
        "columnspacing": 1.2,
        "borderpad": 0.4,
    }
    canvas.draw_legend(figure, marks[: 1 + circles], 2, **spacing)
    canvas.draw_legend(figure, dots, _legend_columns(names), "outside lower left", **spacing)


def _legend_columns(names: Sequence[str]) -> int:
    widest = max((canvas.text_width(name, _TEXT) for name in names), default=1.0)
    most = max(1, int(WIDTH // (widest + _HANDLE_WIDTH)))
    return -(-len(names) // -(-len(names) // most))  # rows of nearly one length
