"""Risk against coverage: how many errors remain when only the surest queries are answered."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearkin.report._canvas import WIDTH, drawing, percent_axis, to_png
from nearkin.report._lines import curve_points, draw_curve, legend_above, legend_height, legend_labels

_STEADY = 0.05  # below this coverage a handful of queries make the risk jump


def draw_risk_coverage(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, areas: Mapping[str, float] | None = None
) -> bytes:
    """Draw the errors among the answered queries against the share answered; the lower, the better.

    The height is that of the curves from 5 % coverage on; the jumps of the first few queries may leave the frame.

    Args:
        curves: name to coverage (m,), ascending, and risk (m,). Points that are not finite are left out.
        areas: name to the area under its curve (AURC), told in the legend.

    Returns:
        PNG bytes, or none when there is no point.
    """
    points = {name: curve_points(name, curve, "coverage", "risk") for name, curve in curves.items()}
    if not any(len(coverage) for coverage, _ in points.values()):
        return b""
    labels = legend_labels(points, areas, "AURC")
    with drawing(WIDTH, 380 + legend_height(labels)) as figure:
        axes = figure.add_subplot()
        for place, (coverage, risk) in enumerate(points.values()):
            draw_curve(axes, place, coverage, risk, travelled=coverage)
        steady = [risk[coverage >= _STEADY].max(initial=0.0) for coverage, risk in points.values()]
        top = max(0.01, *steady)
        axes.set_xlim(-0.01, 1.02)
        axes.set_ylim(-0.03 * top, 1.08 * top)
        axes.set_xlabel("queries answered, the surest first (coverage)")
        axes.set_ylabel("errors among the answered (risk)")
        percent_axis(axes, "x")
        percent_axis(axes, "y")
        legend_above(figure, labels)
        return to_png(figure)
