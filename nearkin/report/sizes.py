"""Metrics against the number of dimensions, one line a way of cutting embeddings short."""

from __future__ import annotations

import numpy as np

from nearkin.report._canvas import WIDTH, drawing, to_png
from nearkin.report._lines import legend_above, legend_labels, line_style
from nearkin.report._metric_panels import Pairs, method_names, metric_lines, metric_panels, picture_height, write_title

_TICK_GAP = 0.06  # of the axis


def draw_sizes(series: Pairs, *, intervals: Pairs | None = None, of: str = "unseen classes") -> bytes:
    """Draw one panel a metric, with one line a way of cutting, on an axis where halves are equally far apart.

    Args:
        series: metric to way to sizes (m,), from 1, and shares of 1 (m,). Points that are not finite are left out.
        intervals: metric to way to the lower and upper ends (m,) of intervals, drawn as bands.
        of: what was measured, for the titles.

    Returns:
        PNG bytes, or none when there is no point.
    """
    lines = metric_lines(series, intervals)
    if not lines:
        return b""
    names = method_names(lines)
    places = np.unique(np.concatenate([line.x for methods in lines.values() for line in methods.values()]))
    with drawing(WIDTH, picture_height(len(lines), names)) as figure:
        for metric, axes in metric_panels(figure, lines, "dimensions").items():
            axes.set_xscale("log", base=2)
            for name, line in lines[metric].items():
                place = names.index(name)
                style = line_style(place)
                axes.fill_between(line.x, line.low, line.high, color=style["color"], alpha=0.13, linewidth=0, zorder=2)
                axes.plot(line.x, line.y, zorder=4 if place == 0 else 3, **style)
            write_title(axes, f"{metric} on {of}")
        ticks = _apart(places)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        legend_above(figure, legend_labels(names))
        return to_png(figure)


def _apart(places: np.ndarray) -> np.ndarray:
    """Those of ascending places (m,) whose ticks do not touch, the last one among them."""
    logs = np.log2(places)
    kept = [len(places) - 1]
    for place in range(len(places) - 2, -1, -1):
        if logs[kept[-1]] - logs[place] >= _TICK_GAP * np.ptp(logs):
            kept.append(place)
    return places[kept[::-1]]
