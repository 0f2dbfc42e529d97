"""The ROC of rejection: known queries kept against unknown queries let through, for every threshold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearkin.report._canvas import MUTED, WIDTH, drawing, percent_axis, to_png
from nearkin.report._lines import curve_points, draw_curve, legend_above, legend_height, legend_labels


def draw_rejection(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, areas: Mapping[str, float] | None = None
) -> bytes:
    """Draw how well scores tell known classes from unknown ones; the nearer to the upper left corner, the better.

    Args:
        curves: name to the share of unknown queries accepted (FPR, m) and of known ones (TPR, m), both ascending.
            Points that are not finite are left out.
        areas: name to the area under its curve (AUROC), told in the legend.

    Returns:
        PNG bytes, or none when there is no point.
    """
    points = {name: curve_points(name, curve, "FPR", "TPR") for name, curve in curves.items()}
    if not any(len(fpr) for fpr, _ in points.values()):
        return b""
    labels = legend_labels(points, areas, "AUROC")
    with drawing(WIDTH, 440 + legend_height([*labels, "chance"])) as figure:
        axes = figure.add_subplot()
        (chance,) = axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (1, 3)), label="chance")
        for place, (fpr, tpr) in enumerate(points.values()):
            draw_curve(axes, place, fpr, tpr, travelled=fpr + tpr)
        axes.set_xlim(-0.015, 1.015)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("unknown queries accepted (FPR)")
        axes.set_ylabel("known queries accepted (TPR)")
        percent_axis(axes, "x")
        percent_axis(axes, "y")
        legend_above(figure, labels, chance)
        return to_png(figure)
