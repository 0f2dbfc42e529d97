"""How far to trust answers: reliability, risk against coverage, rejection of unknowns, sensitivity to k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nearkin.errors import DataError
from nearkin.report.canvas import BLUE, INK, MUTED, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report.lines import (
    curve_points,
    draw_curve,
    draw_panels,
    fit_text,
    has_values,
    legend_above,
    legend_height,
    legend_labels,
    panels_height,
    plain_numbers,
    plain_parts,
    value_line,
)
from nearkin.report.values import value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Bins: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

_COLUMNS = {1: 1, 2: 2, 4: 2}  # otherwise three
_PANEL, _SHARES, _TITLE, _RIM = 190, 62, 84, 60  # heights, in CSS pixels
_TITLE_SIZE, _TITLE_WIDTHS = 10.5, {1: 560, 2: 290, 3: 180}  # points; CSS pixels by the number of columns
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
    columns = _COLUMNS.get(len(bins), 3)
    rows = -(-len(bins) // columns)
    with drawing(WIDTH, _RIM + rows * (_TITLE + _PANEL + _SHARES)) as figure:
        grid = figure.subplots(2 * rows, columns, sharex=True, squeeze=False, height_ratios=[_PANEL, _SHARES] * rows)
        for place, (name, curve) in enumerate(bins.items()):
            row, column = divmod(place, columns)
            upper, lower = grid[2 * row, column], grid[2 * row + 1, column]
            _draw_accuracy(upper, curve)
            _draw_shares(lower, curve)
            _write_title(upper, fit_text(name, _TITLE_WIDTHS[columns], _TITLE_SIZE, "bold"), (errors or {}).get(name))
            if column == 0:
                upper.set_ylabel("accuracy")
                lower.set_ylabel("queries")
            upper.tick_params(labelleft=column == 0)
            lower.tick_params(labelbottom=True)
        for axes in grid[-2:, len(bins) - columns * (rows - 1) :].flat:
            axes.remove()
        figure.align_ylabels(grid[:, 0])
        figure.supxlabel(f"confidence ({_total_text(totals)})", fontsize=10, color=MUTED)
        _legend(figure)
        return to_png(figure)


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
        axes.bar(
            edges[:-1][chosen],
            (top - bottom)[chosen],
            bottom=bottom[chosen],
            width=np.diff(edges)[chosen],
            align="edge",
            **look,
        )
    axes.hlines(accuracy[filled], edges[:-1][filled], edges[1:][filled], color=BLUE, linewidth=1.5, zorder=3)
    if not filled.any():
        axes.text(0.5, 0.5, "no queries", ha="center", va="center", color=MUTED, backgroundcolor="white", zorder=5)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_xticks(_TICKS)
    axes.set_yticks(_TICKS)
    axes.tick_params(labelbottom=False, labelsize=8.5)
    percent_axis(axes, "y")


def _draw_shares(axes: Axes, curve: Bins) -> None:
    """The share of queries in each bin, the largest at the top."""
    edges, counts, _, _ = curve
    shares = counts / max(counts.sum(), 1)
    top = float(shares.max(initial=0.0))
    axes.bar(edges[:-1], shares, width=np.diff(edges), align="edge", **_SHARE)
    axes.set_ylim(0, top or 1.0)
    axes.set_yticks([0.0, top] if top else [0.0], ["0 %", _share_text(top)] if top else ["0 %"])
    axes.tick_params(labelsize=8.5)
    percent_axis(axes, "x")


def _write_title(axes: Axes, name: str, error: float | None) -> None:
    """The name and, on a line of its own, its calibration error: side by side they would be wider than a panel."""
    axes.set_title(name, fontsize=_TITLE_SIZE, pad=6 if error is None else 19)
    if error is not None:
        axes.annotate(
            f"ECE {value_text(float(error), True)}",
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 5),
            textcoords="offset points",
            fontsize=9.5,
        )


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(label="accuracy", **_BAR),
        Patch(label="overconfident by", **_OVER),
        Patch(label="underconfident by", **_UNDER),
        Line2D([], [], label="calibrated", **_DIAGONAL),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, fontsize=9, handlelength=2.6, handleheight=1.2)


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
    order = np.argsort(at, kind="stable")
    panels = [
        {name: value_line(name, values, len(at), "k")[order] for name, values in lines.items()}
        for lines in (accuracy, ece)
    ]
    names = list(dict.fromkeys([*accuracy, *ece]))
    if not has_values(*panels):
        return b""
    with drawing(WIDTH, panels_height(names)) as figure:
        for axes in draw_panels(figure, at[order], names, *panels):
            axes.set_xscale("log")
            axes.set_xlim(*_limits(at))
            axes.set_xticks(at[order], _tick_labels(at[order]))
            axes.set_xticks([], minor=True)
        axes.set_xlabel("neighbours asked (k)")
        return to_png(figure)


def _limits(ks: np.ndarray) -> tuple[float, float]:
    """A little beyond both ends; a single k stands in the middle."""
    room = max(ks.max() / ks.min(), 10.0) ** 0.03
    return ks.min() / room, ks.max() * room


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
