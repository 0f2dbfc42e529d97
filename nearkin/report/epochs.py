"""Metrics against epochs, one line a method: how soon methods get where, and whether they stay there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nearkin.report._canvas import SERIES, WIDTH, drawing, to_png
from nearkin.report._lines import draw_curve, legend_above, legend_labels
from nearkin.report._metric_panels import Pairs, method_names, metric_lines, metric_panels, picture_height, write_title

_MARKED = 12
"""Points of a line, up to which each has its marker."""


def draw_metric_curves(
    series: Pairs,
    *,
    intervals: Pairs | None = None,
    of: str = "unseen classes",
    across: str = "epoch",
    plain: Collection[str] = (),
    alike: Mapping[str, int] | None = None,
) -> bytes:
    """Draw one panel a metric, such as NMI above Recall@1, with one line a method.

    Up to twenty lines are told apart without their colours; more than six are hard to read.

    Args:
        series: metric to method to epochs (m,) and shares of 1 (m,); methods need not have the same epochs. Points
            that are not finite are left out.
        intervals: metric to method to the lower and upper ends (m,) of intervals, drawn as bands.
        of: what was measured, for the titles.
        across: what the lines run against.
        plain: the metrics that are no shares, such as correlations, whose axis has plain numbers.
        alike: method to the place of its colour among those of all pictures, for methods that share one or have it in
            another picture too; without it a method's own place counts.

    Returns:
        PNG bytes, or none when there is no point.
    """
    lines = metric_lines(series, intervals)
    if not lines:
        return b""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    names = method_names(lines)
    colours = [SERIES[(alike or {}).get(name, place) % len(SERIES)] for place, name in enumerate(names)]
    with drawing(WIDTH, picture_height(len(lines), names)) as figure:
        for metric, axes in metric_panels(figure, lines, across).items():
            for name, line in lines[metric].items():
                place = names.index(name)
                colour = colours[place]
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0, zorder=2)
                draw_curve(axes, place, line.x, line.y, travelled=line.x)
                axes.lines[-1].set_color(colour)
                if len(line.x) <= _MARKED:
                    axes.lines[-1].set_markevery(None)
            write_title(axes, f"{metric} on {of}")
            if metric in plain:
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
            axes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
        legend_above(figure, legend_labels(names))
        for handle, colour in zip(figure.legends[0].legend_handles, colours, strict=True):
            if isinstance(handle, Line2D):
                handle.set_color(colour)
        return to_png(figure)
