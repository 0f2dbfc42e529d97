"""Metrics against epochs, one line a method: how soon methods get where, and whether they stay there."""

from __future__ import annotations

from collections.abc import Collection

from nearkin.report._canvas import WIDTH, drawing, to_png
from nearkin.report._lines import draw_curve, legend_above, legend_labels, line_style
from nearkin.report._metric_panels import Pairs, method_names, metric_lines, metric_panels, picture_height, write_title


def draw_metric_curves(
    series: Pairs,
    *,
    intervals: Pairs | None = None,
    of: str = "unseen classes",
    across: str = "epoch",
    plain: Collection[str] = (),
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

    Returns:
        PNG bytes, or none when there is no point.
    """
    lines = metric_lines(series, intervals)
    if not lines:
        return b""
    from matplotlib.ticker import MaxNLocator

    names = method_names(lines)
    with drawing(WIDTH, picture_height(len(lines), names)) as figure:
        for metric, axes in metric_panels(figure, lines, across).items():
            for name, line in lines[metric].items():
                place = names.index(name)
                colour = line_style(place)["color"]
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0, zorder=2)
                draw_curve(axes, place, line.x, line.y, travelled=line.x)
            write_title(axes, f"{metric} on {of}")
            if metric in plain:
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
            axes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
        legend_above(figure, legend_labels(names))
        return to_png(figure)
