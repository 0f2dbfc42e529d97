"""Two runs class by class: where one is ahead, where it is behind, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nearkin.report._canvas import BLUE, INK, MUTED, VERMILION, WIDTH, drawing, to_png
from nearkin.report.formatting import change_text, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED = 40  # more classes than this cannot be told by name
_ENDS = 3  # of more classes, so many are named at either end
_BACKGROUND: Any = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}


def draw_class_differences(
    differences: Mapping[str, float], ahead: str, behind: str, metric: str, *, percent: bool = True
) -> bytes:
    """Draw the differences of all classes, sorted, with their mean.

    Up to forty classes are bars with names; more are one falling line of bars with the ends named.

    Args:
        differences: class to the value of one run minus that of the other.
        ahead: the one run.
        behind: the other.
        metric: what is compared.
        percent: whether the values are shares of 1, shown in percent.

    Returns:
        PNG bytes, or none when no difference is finite.
    """
    finite = {str(name): float(value) for name, value in differences.items() if math.isfinite(value)}
    if not finite:
        return b""
    ranked = sorted(finite.items(), key=lambda pair: -pair[1])
    few = len(ranked) <= _NAMED
    with drawing(WIDTH, 130 + 22 * len(ranked) if few else 420) as figure:
        axes = figure.add_subplot()
        (_draw_few if few else _draw_many)(axes, ranked, percent)
        wins, losses = sum(value > 0 for value in finite.values()), sum(value < 0 for value in finite.values())
        if percent:
            (axes.xaxis if few else axes.yaxis).set_major_formatter(
                lambda share, _: f"{100 * share:.4g}".replace("-", "−")
            )
        axes.set_title(
            f"{shorten(ahead, 24)} ahead in {wins}, {shorten(behind, 24)} in {losses} of {len(ranked)} classes"
        )
        mean = sum(finite.values()) / len(finite)
        label = f"difference in {shorten(metric, 24)}" + (", percentage points" if percent else "")
        dashed = f"dashed: mean {change_text(mean, 0.0, percent)}"
        line: Any = {"color": MUTED, "linewidth": 1.4, "linestyle": "--"}
        if few:
            axes.axvline(mean, **line, zorder=1.5)
            axes.set_xlabel(f"{label} ({dashed})")
        else:
            axes.axhline(mean, **line)
            axes.set_ylabel(label)
            axes.set_xlabel(f"{len(ranked):,} classes, sorted ({dashed})")
        return to_png(figure)


def _draw_few(axes: Axes, ranked: list[tuple[str, float]], percent: bool) -> None:
    """A bar a class, named, the largest lead on top."""
    heights = range(len(ranked))
    values = [value for _, value in ranked]
    axes.barh(heights, values, color=[BLUE if value >= 0 else VERMILION for value in values], height=0.7)
    axes.set_yticks(heights, [shorten(name, 28) for name, _ in ranked], color=INK, fontsize=9)
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=INK, linewidth=1)
    axes.margins(x=0.14)
    for height, value in zip(heights, values, strict=True):
        axes.annotate(
            change_text(value, 0.0, percent),
            (value, height),
            xytext=(4 if value >= 0 else -4, 0),
            textcoords="offset points",
            ha="left" if value >= 0 else "right",
            va="center",
            fontsize=8,
            bbox=_BACKGROUND,
        )


def _draw_many(axes: Axes, ranked: list[tuple[str, float]], percent: bool) -> None:
    """Bars side by side, the first and last few named in the corner that sorting leaves free."""
    values = [value for _, value in ranked]
    # One outline each for leads and lags: thousands of single bars take seconds to draw.
    axes.stairs([max(value, 0.0) for value in values], fill=True, color=BLUE)
    axes.stairs([min(value, 0.0) for value in values], fill=True, color=VERMILION)
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_xticks([])
    axes.set_xlim(0, len(ranked))
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.08)
    ends = [("highest", ranked[:_ENDS]), ("lowest", ranked[-_ENDS:])]
    lines = [
        line
        for title, group in ends
        for line in (
            f"{title}:",
            *(f"{shorten(name, 28)}  {change_text(value, 0.0, percent)}" for name, value in group),
        )
    ]
    above = values[0] >= -values[-1]  # falling bars leave the upper right corner free, or the lower left one
    axes.annotate(
        "\n".join(lines),
        (0.98, 0.97) if above else (0.02, 0.03),
        xycoords="axes fraction",
        ha="right" if above else "left",
        va="top" if above else "bottom",
        fontsize=8,
        bbox=_BACKGROUND,
    )
