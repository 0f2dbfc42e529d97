"""Draws what a loss does to the toy of loss_toy.py: points before and after, and the cost of leaving a class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearkin.report.canvas import BLUE, FAINT, HUES, INK, MUTED, VERMILION, WIDTH, drawing, to_png
from studies.method_pictures.loss_toy import CLASSES, STEPS, Pull, Travel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 258
_ARROW = 0.42
"""Length of the longest arrow, of the circle's radius."""
_INSIDE = 0.86
"""Where proxies are drawn on the circle: within it, so that points do not hide them."""
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1}
_LINES = ((BLUE, "-"), (VERMILION, "--"))


def draw_loss(found: Pull, cost: Travel) -> bytes:
    """Three panels: the start with first moves, the end, and the cost along a way from class to class; PNG bytes."""
    with drawing(WIDTH, HEIGHT) as figure:
        before, after, curve = figure.subplots(1, 3, width_ratios=[1, 1, 1.1])
        draw_points(before, found, found.start, found.proxies, "start, and where each goes")
        draw_points(after, found, found.end, found.proxies_end, f"after {STEPS} steps")
        draw_arrows(before, found)
        _limit(before, after, found)
        draw_travel(curve, cost)
        return to_png(figure)


def draw_points(axes: Axes, found: Pull, points: np.ndarray, proxies: np.ndarray, title: str) -> None:
    """Points by class, support items ringed, and what stands for the classes as boxes."""
    axes.set_title(title, fontsize=9.5)
    axes.set(xticks=[], yticks=[], aspect="equal", anchor="N")
    axes.grid(False)
    if found.space == "sphere":
        angles = np.linspace(0, 2 * np.pi, 181)
        axes.plot(np.cos(angles), np.sin(angles), color=FAINT, linewidth=1, zorder=1)
        axes.spines[:].set_visible(False)
    else:
        axes.spines[:].set_visible(True)
    for label in range(len(CLASSES)):
        mine = found.labels == label
        axes.scatter(*points[mine].T, s=22, color=HUES[label], linewidths=0, alpha=0.65, zorder=3)
        rings = points[mine & found.support]
        axes.scatter(*rings.T, s=34, color="none", edgecolors=INK, linewidths=0.8, zorder=4)
        boxes = proxies[label] * (_INSIDE if found.space == "sphere" else 1)
        size = 34 if proxies.shape[1] == 1 else 14
        axes.scatter(*boxes.T, s=size, color=HUES[label], marker="s", edgecolors=INK, linewidths=0.8, zorder=5)


def draw_arrows(axes: Axes, found: Pull) -> None:
    """The first move of every point, in proportion; outside of the circle, where there is one."""
    longest = np.linalg.norm(found.arrows, axis=1).max()
    reach = _ARROW if found.space == "sphere" else 0.35 * np.abs(found.start).max()
    moves = found.arrows / (longest or 1.0) * reach
    tails = found.start * (1.09 if found.space == "sphere" else 1)
    seen = np.linalg.norm(moves, axis=1) > 0.02 * reach
    for tail, move, label in zip(tails[seen], moves[seen], found.labels[seen], strict=True):
        style = {"arrowstyle": "-|>", "color": HUES[label], "linewidth": 0.9, "mutation_scale": 6}
        axes.annotate("", tail + move, tail, arrowprops={**style, "shrinkA": 0, "shrinkB": 0}, zorder=2)


def _limit(before: Axes, after: Axes, found: Pull) -> None:
    """One frame for both panels."""
    half = 1.3
    if found.space != "sphere":
        parts = [found.start, found.end, found.proxies.reshape(-1, 2), found.proxies_end.reshape(-1, 2)]
        half = 1.12 * max(float(np.abs(part).max()) for part in parts if part.size)
    for axes in (before, after):
        axes.set(xlim=(-half, half), ylim=(-half, half))


def draw_travel(axes: Axes, cost: Travel) -> None:
    """The loss of a batch against the place of one of its samples."""
    for (name, values), (colour, dash) in zip(cost.costs.items(), _LINES, strict=False):
        axes.plot(cost.places, values, color=colour, linestyle=dash, linewidth=1.6, label=f"towards {name}")
    low, high = axes.get_ylim()
    top = high + 0.02 * (high - low)
    axes.set_ylim(low, high + 0.12 * (high - low))  # room for the words
    for place in cost.own:
        axes.axvline(place, color=MUTED, linewidth=0.9, linestyle=":")
    axes.text(np.mean(cost.own), top, "own", ha="center", va="bottom", fontsize=8, color=MUTED, bbox=_PAPER)
    for number, places in enumerate(cost.others.values()):
        for place in places:
            axes.axvline(place, color=_LINES[number][0], linewidth=0.9, linestyle=":")
        if len(cost.others) == 1:
            axes.text(
                np.mean(places),
                top,
                "other",
                ha="center",
                va="bottom",
                fontsize=8,
                color=_LINES[number][0],
                bbox=_PAPER,
            )
    if len(cost.costs) > 1:
        axes.legend(fontsize=7.5, loc="upper left", bbox_to_anchor=(0, 0.88), handlelength=1.6)
    round_ = cost.space == "sphere"
    axes.set_title("loss, as one sample travels", fontsize=9.5)
    axes.set_xlabel("degrees from its class" if round_ else "distance from its class", fontsize=8.5)
    axes.tick_params(labelsize=8)
    if round_:
        axes.set_xticks([-90, 0, 90, 180])
