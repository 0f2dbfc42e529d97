"""How far to trust answers: reliability, risk against coverage, rejection of unknowns, sensitivity to k and shift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, INK, MUTED, VERMILION, WIDTH
from nearkin.report.lines import (
    chart,
    curve_points,
    draw_curve,
    fit_shares,
    legend_above,
    legend_height,
    legend_labels,
    line_style,
    stacked_panels,
)
from nearkin.report.values import LOWER, plain_numbers, plain_parts, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Bins: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

_COLUMNS = {1: 1, 2: 2, 4: 2}  # otherwise three
_PANEL, _SHARES, _TITLE, _RIM = 190, 62, 84, 60  # heights, in CSS pixels
_TITLE_SIZE, _TITLE_WIDTHS = 10.5, {1: 560, 2: 290, 3: 180}  # points; CSS pixels by the number of columns
_PAIR_PANEL = 210
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)

# Gaps are told apart by hatching and by where they lie, above the bar or within it, as well as by colour.
_BAR: Any = {"facecolor": "#b3d5e8", "edgecolor": "white", "linewidth": 0.6}
_OVER: Any = {"facecolor": "none", "edgecolor": VERMILION, "hatch": "////", "linewidth": 0.8}
_UNDER: Any = {"facecolor": "none", "edgecolor": INK, "hatch": "....", "linewidth": 0.8}
_SHARE: Any = {"facecolor": MUTED, "edgecolor": "white", "linewidth": 0.6}
_DIAGONAL: Any = {"color": INK, "linewidth": 1.1, "linestyle": "--", "zorder": 4}


def draw_reliability(curves: Mapping[str, Bins], *, errors: Mapping[str, float] | None = None) -> bytes:
    """Draw one panel a name: accuracy in each bin of confidence, its gap to the mean confidence, and the bin's share.

    Each panel of shares has a height of its own, with the largest share at the top and told there: beside an estimator
    that gives every answer the same confidence, the others would be too low to see on a common one.

    Args:
        curves: name to bin edges (m + 1,) from 0 to 1, counts (m,), mean confidence (m,) and accuracy (m,); the last
            two are NaN where a bin is empty.
        errors: name to its expected calibration error, told above its panel.

    Returns:
        PNG bytes, or none when every bin is empty.
    """
    bins = {name: _bins(name, curve) for name, curve in curves.items()}
    totals = [counts.sum() for _, counts, _, _ in bins.values()]
    if not any(totals):
        return b""
    from matplotlib.patches import Patch

    columns = _COLUMNS.get(len(bins), 3)
    rows = -(-len(bins) // columns)
    with canvas.drawing(WIDTH, _RIM + rows * (_TITLE + _PANEL + _SHARES)) as figure:
        grid = figure.subplots(2 * rows, columns, sharex=True, squeeze=False, height_ratios=[_PANEL, _SHARES] * rows)
        for place, (name, curve) in enumerate(bins.items()):
            row, column = divmod(place, columns)
            upper, lower = grid[2 * row, column], grid[2 * row + 1, column]
            _draw_accuracy(upper, curve)
            _draw_shares(lower, curve)
            title = canvas.fit_text(name, _TITLE_WIDTHS[columns], _TITLE_SIZE, "bold")
            told = f"ECE {value_text(float(errors[name]), True)}" if errors and name in errors else ""
            canvas.heading(upper, title, told, size=_TITLE_SIZE, fontsize=9.5)
            if column == 0:
                upper.set_ylabel("accuracy")
                lower.set_ylabel("queries")
            upper.tick_params(labelleft=column == 0)
            lower.tick_params(labelbottom=True)
        for axes in grid[-2:, len(bins) - columns * (rows - 1) :].flat:
            axes.remove()
        figure.align_ylabels(grid[:, 0])
        figure.supxlabel(f"confidence ({_total_text(totals)})", fontsize=10, color=MUTED)
        handles = [
            Patch(label="accuracy", **_BAR),
            Patch(label="overconfident by", **_OVER),
            Patch(label="underconfident by", **_UNDER),
            canvas.mark("calibrated", **_DIAGONAL),
        ]
        canvas.draw_legend(figure, handles, 4, handlelength=2.6, handleheight=1.2)
        return canvas.to_png(figure)


def _bins(name: str, curve: Sequence[Any]) -> Bins:
    """The four arrays of one curve, checked against one another; empty bins have a count of 0 and no accuracy."""
    edges, counts, confidence, accuracy = plain_parts(name, curve, "edges", "counts", "confidence", "accuracy")
    if not (edges.ndim == 1 and counts.shape == confidence.shape == accuracy.shape == (len(edges) - 1,)):
        raise DataError(
            f"The bins of '{name}' need m + 1 edges and m counts, confidences and accuracies, but got "
            f"{edges.shape}, {counts.shape}, {confidence.shape} and {accuracy.shape}."
        )
    if not (np.diff(edges) >= 0).all():
        raise DataError(f"The edges of the bins of '{name}' must ascend, but got {edges.tolist()}.")
    counts = np.where(counts > 0, counts, 0.0)
    empty = (counts == 0) | ~np.isfinite(confidence) | ~np.isfinite(accuracy)
    return edges, counts, np.where(empty, np.nan, confidence), np.where(empty, np.nan, accuracy)


def _draw_accuracy(axes: Axes, curve: Bins) -> None:
    """Bars of accuracy; between each and its mean confidence a hatched gap."""
    edges, _, confidence, accuracy = curve
    axes.plot([0, 1], [0, 1], **_DIAGONAL)
    filled = np.isfinite(accuracy)
    for chosen, bottom, top, look in (
        (filled, np.zeros_like(accuracy), accuracy, _BAR),
        (filled & (confidence > accuracy), accuracy, confidence, _OVER),
        (filled & (confidence < accuracy), confidence, accuracy, _UNDER),
    ):
        left, wide, high = edges[:-1][chosen], np.diff(edges)[chosen], (top - bottom)[chosen]
        axes.bar(left, high, bottom=bottom[chosen], width=wide, align="edge", **look)
    axes.hlines(accuracy[filled], edges[:-1][filled], edges[1:][filled], color=BLUE, linewidth=1.5, zorder=3)
    if not filled.any():
        axes.text(0.5, 0.5, "no queries", ha="center", va="center", color=MUTED, backgroundcolor="white", zorder=5)
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xticks=_TICKS, yticks=_TICKS)
    axes.tick_params(labelbottom=False, labelsize=8.5)
    canvas.percent_axis(axes, "y")


def _draw_shares(axes: Axes, curve: Bins) -> None:
    """The share of queries in each bin, the largest at the top."""
    edges, counts, _, _ = curve
    shares = counts / max(counts.sum(), 1)
    top = float(shares.max(initial=0.0))
    axes.bar(edges[:-1], shares, width=np.diff(edges), align="edge", **_SHARE)
    axes.set_ylim(0, top or 1.0)
    axes.set_yticks([0.0, top] if top else [0.0], ["0 %", _share_text(top)] if top else ["0 %"])
    axes.tick_params(labelsize=8.5)
    canvas.percent_axis(axes, "x")


def _share_text(share: float) -> str:
    """A share as a tick has room for it: whole percents, two digits below ten, and 100 % only where it is all."""
    percent = 100 * share
    if percent < 9.95:
        return f"{percent:.2g} %"
    return f"{percent:.0f} %" if percent < 99.5 or share == 1 else f"> {int(percent)} %"


def _total_text(totals: list[float]) -> str:
    """How many queries the panels show."""
    low, high = min(totals), max(totals)
    if low < high:
        return f"{low:,.0f} to {high:,.0f} queries"
    return f"{high:,.0f} {'query' if high == 1 else 'queries'}" + (" each" if len(totals) > 1 else "")


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
        PNG bytes, or empty bytes when there is no point.
    """
    points = {name: curve_points(name, curve, "coverage", "risk") for name, curve in curves.items()}
    if not any(len(coverage) for coverage, _ in points.values()):
        return b""
    with chart(380, legend_labels(points, areas, "AURC")) as (figure, axes):
        for place, (coverage, risk) in enumerate(points.values()):
            draw_curve(axes, place, coverage, risk)
        steady = [risk[coverage >= _STEADY].max(initial=0.0) for coverage, risk in points.values()]
        top = max(0.01, *steady)
        axes.set(xlim=(-0.01, 1.02), ylim=(-0.03 * top, 1.08 * top))
        axes.set(xlabel="queries answered, the surest first (coverage)", ylabel="errors among the answered (risk)")
        canvas.percent_axis(axes, "x", "y")
        return canvas.to_png(figure)


def draw_rejection(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, areas: Mapping[str, float] | None = None
) -> bytes:
    """Draw how well scores tell known classes from unknown ones; the nearer to the upper left corner, the better.

    Args:
        curves: name to the share of unknown queries accepted (FPR, m) and of known ones (TPR, m), both ascending.
            Points that are not finite are left out.
        areas: name to the area under its curve (AUROC), told in the legend.

    Returns:
        PNG bytes, or empty bytes when there is no point.
    """
    points = {name: curve_points(name, curve, "FPR", "TPR") for name, curve in curves.items()}
    if not any(len(fpr) for fpr, _ in points.values()):
        return b""
    chance: Any = {"color": MUTED, "linewidth": 1.0, "linestyle": (0, (1, 3)), "label": "chance"}
    with chart(440, legend_labels(points, areas, "AUROC"), canvas.mark(**chance)) as (figure, axes):
        axes.plot([0, 1], [0, 1], **chance)
        for place, (fpr, tpr) in enumerate(points.values()):
            draw_curve(axes, place, fpr, tpr, travelled=fpr + tpr)
        axes.set(xlim=(-0.015, 1.015), ylim=(-0.02, 1.02))
        axes.set(xlabel="unknown queries accepted (FPR)", ylabel="known queries accepted (TPR)")
        canvas.percent_axis(axes, "x", "y")
        return canvas.to_png(figure)


_LETTER, _GAP = 0.014, 0.01  # of the axis: what a number's letter and the gap between two numbers need


def draw_sensitivity(ks: Sequence[int], accuracy: Mapping[str, np.ndarray], ece: Mapping[str, np.ndarray]) -> bytes:
    """Draw accuracy above the expected calibration error, one line an estimator, against k on a log axis.

    Args:
        ks: (m,) numbers of neighbours, 1 or more.
        accuracy: estimator to its accuracy (m,) at each k; NaN is left out.
        ece: estimator to its calibration error (m,) at each k; NaN is left out.

    Returns:
        PNG bytes, or empty bytes when there is no value.
    """
    at = plain_numbers(ks, "ks")
    if at.ndim != 1 or not (np.isfinite(at) & (at >= 1)).all():
        raise DataError(f"The ks must be a flat list of whole numbers from 1 up, but got {list(ks)}.")

    def finish(axes: Axes) -> None:
        ticks = np.sort(at)
        axes.set_xscale("log")
        room = max(at.max() / at.min(), 10.0) ** 0.03  # a little beyond both ends; a single k stands in the middle
        axes.set_xlim(at.min() / room, at.max() * room)
        axes.set_xticks(ticks, _tick_labels(ticks))
        axes.set_xticks([], minor=True)
        axes.set_xlabel("neighbours asked (k)")

    return _accuracy_above_ece(at, accuracy, ece, "k", finish)


def _tick_labels(ks: np.ndarray) -> list[str]:
    """A number for each tick, ascending, but none for one too near to a tick that has one; both ends always have."""
    numbers = [f"{k:,.0f}" for k in ks]
    places = np.log(ks)
    apart = (_LETTER * max(map(len, numbers)) + _GAP) * (places[-1] - places[0])
    nearest = places[-1]
    for tick in range(len(ks) - 2, 0, -1):
        if nearest - places[tick] >= apart and places[tick] - places[0] >= apart:
            nearest = places[tick]
        else:
            numbers[tick] = ""
    return numbers


def draw_shift(severities: Sequence[int], lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Draw accuracy above the expected calibration error as severity grows, one line an estimator.

    Args:
        severities: (s,) severities; 0, clean, stands before them and need not be named.
        lines: estimator to its accuracy (s + 1,) and its ECE (s + 1,), clean first; NaN is left out.

    Returns:
        PNG bytes, or empty bytes when there is no value.
    """
    levels = ["clean", *(f"{severity:g}" for severity in plain_numbers(severities, "severities") if severity)]
    pairs = {name: plain_parts(name, pair, "accuracy", "ECE") for name, pair in lines.items()}
    accuracy, ece = ({name: pair[which] for name, pair in pairs.items()} for which in (0, 1))

    def finish(axes: Axes) -> None:
        axes.set_xticks(range(len(levels)), levels)
        axes.set_xlim(-0.2, len(levels) - 0.8)
        axes.set_xlabel("severity of the corruption")

    return _accuracy_above_ece(np.arange(len(levels)), accuracy, ece, "severity and one for clean", finish)


def _accuracy_above_ece(
    x: np.ndarray,
    accuracy: Mapping[str, np.ndarray],
    ece: Mapping[str, np.ndarray],
    each: str,
    finish: Callable[[Axes], None],
) -> bytes:
    """Draw lines (m,) over x (m,), accuracy above ECE, with one legend; `finish` dresses the axis they share."""
    order = np.argsort(x, kind="stable")
    labels = legend_labels(names := list(dict.fromkeys([*accuracy, *ece])))
    panels = [
        {name: _values(name, line, len(x), each)[order] for name, line in part.items()} for part in (accuracy, ece)
    ]
    if not any(np.isfinite(line).any() for lines in panels for line in lines.values()):
        return b""
    with canvas.drawing(WIDTH, 40 + 2 * _PAIR_PANEL + legend_height(labels)) as figure:
        upper, lower = stacked_panels(figure, ("accuracy", "ece")).values()
        for axes, lines in zip((upper, lower), panels, strict=True):
            for place, name in enumerate(names):
                if name in lines:
                    axes.plot(x[order], lines[name], **line_style(place))
        upper.set_title("Accuracy")
        lower.set_title(f"Expected calibration error (ECE) {LOWER}")
        fit_shares(upper, *panels[0].values())
        errors = np.concatenate([np.zeros(0), *panels[1].values()])
        top = float(max(np.nanmax(errors), 0.01)) if np.isfinite(errors).any() else 1.0
        lower.set_ylim(-0.04 * top, 1.1 * top)  # errors from 0 on: an ECE twice as high is drawn twice as high
        canvas.percent_axis(lower, "y")
        finish(lower)
        legend_above(figure, labels)
        return canvas.to_png(figure)


def _values(name: str, values: np.ndarray, length: int, each: str) -> np.ndarray:
    """The values of one line (m,), one for each place on its axis; what is not finite is NaN."""
    line = plain_numbers(values, f"values of '{name}'")
    if line.shape != (length,):
        raise DataError(f"The line of '{name}' needs {length} values, one for each {each}, but got shape {line.shape}.")
    return np.where(np.isfinite(line), line, np.nan)
