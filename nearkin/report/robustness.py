"""Accuracy against the size of a perturbation: attacks, cells and certificates on one kind of axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearkin.report._canvas import FAINT, MUTED, WIDTH, drawing, percent_axis, to_png
from nearkin.report._lines import curve_points, legend_above, legend_height, legend_labels, line_style

_HEIGHT = 300


def draw_robustness(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    label: str,
    *,
    marks: Mapping[str, float] | None = None,
    steps: bool = False,
) -> bytes:
    """Draw accuracies against sizes of perturbations.

    Args:
        curves: name to sizes (m,) and shares of 1 (m,).
        label: what the sizes are.
        marks: name to a size at which something is worth a line.
        steps: whether curves are known everywhere, and fall where they fall.

    Returns:
        PNG bytes, or none when there is no point.
    """
    points = {name: curve_points(name, curve, "sizes", "accuracies") for name, curve in curves.items()}
    if not any(len(x) for x, _ in points.values()):
        return b""
    labels = legend_labels(list(points))
    with drawing(WIDTH, _HEIGHT + legend_height(labels)) as figure:
        axes = figure.subplots()
        for place, (x, y) in enumerate(points.values()):
            style = {**line_style(place), **({"drawstyle": "steps-post", "marker": ""} if steps else {})}
            axes.plot(x, y, zorder=3, **style)
        for name, size in (marks or {}).items():
            axes.axvline(size, color=FAINT, linewidth=1, zorder=1)
            axes.annotate(name, (size, 0.01), xycoords=("data", "axes fraction"), rotation=90, fontsize=8, color=MUTED,
                          xytext=(3, 3), textcoords="offset points", va="bottom")  # fmt: skip
        axes.set_ylim(-0.02, 1.03)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy")
        percent_axis(axes, "y")
        legend_above(figure, labels)
        return to_png(figure)
