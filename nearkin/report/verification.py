"""Distributions: distances of same-class pairs against other pairs, the DET curve of both errors, drift by chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from nearkin.report import canvas
from nearkin.report.canvas import BLUE, DASHES, FAINT, INK, MARKERS, MUTED, SERIES, VERMILION, WIDTH
from nearkin.report.values import clean, p_text, shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_BINS = 60


def draw_histograms(
    same: np.ndarray, other: np.ndarray, *, threshold: float | None = None, xlabel: str = "distance"
) -> bytes:
    """Draw both distributions over common bins, each with an area of one, so that unequal counts compare.

    Args:
        same: (n,) distances of pairs of one class.
        other: (m,) distances of pairs of two classes.
        threshold: a distance to mark, below which a pair counts as the same class.
        xlabel: what the distances are.

    Returns:
        PNG bytes, or none when there is no finite distance. Values that are not finite are left out.
    """
    groups = [np.asarray(group, dtype=np.float64).ravel() for group in (same, other)]
    same, other = (group[np.isfinite(group)] for group in groups)
    both = np.concatenate([same, other])
    if not len(both):
        return b""
    edges = np.histogram_bin_edges(both, bins=_BINS)
    with canvas.drawing(WIDTH, 400) as figure:
        axes = figure.add_subplot()
        # Told apart by filling, hatching and line as well as by colour.
        for values, name, colour, hatch, dash in (
            (other, "other class", VERMILION, "////", "--"),
            (same, "same class", BLUE, "", "-"),
        ):
            if len(values):
                pairs = f"{len(values):,} {'pair' if len(values) == 1 else 'pairs'}"
                label = f"{name}: {pairs}, median {np.median(values):.3g}"
                density = np.histogram(values, bins=edges, density=True)[0]
                axes.stairs(density, edges, fill=True, facecolor=colour, edgecolor=colour, alpha=0.28, hatch=hatch)
                axes.stairs(density, edges, color=colour, linewidth=1.6, linestyle=dash, label=label)
        axes.set_xlabel(clean(xlabel))
        axes.set_ylabel("share of pairs (area 1)")
        axes.set_yticks([])
        axes.margins(x=0.01, y=0.12)
        axes.set_ylim(bottom=0)
        if threshold is not None and np.isfinite(threshold):
            axes.axvline(threshold, color=INK, linewidth=1.2, linestyle=":")
            # Its name stands on the side that has more room.
            side, shift = ("right", -5) if threshold > sum(axes.get_xlim()) / 2 else ("left", 5)
            told, at = f"threshold {threshold:.3g}", ("data", "axes fraction")
            canvas.note(axes, told, (threshold, 1), (shift, -2), at, ha=side, va="top", fontsize=9)
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.8, reverse=True)
        return canvas.to_png(figure)


_TICKS = (1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99)
_MINOR = (0.002, 0.005, 0.02, 0.1, 0.3, 0.4, 0.6, 0.7, 0.9)
_ROOM = 0.7  # normal deviates


def draw_det(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, equal_errors: Mapping[str, float] | None = None
) -> bytes:
    """Draw the trade-off of one model or several; the nearer to the lower left corner, the better.

    Args:
        curves: name to false positive rates (m,), ascending, and false negative rates (m,), descending.
        equal_errors: name to the rate at which both errors are equal, marked on the curve and told in the legend.

    Returns:
        PNG bytes, or none when there is no curve.
    """
    if not any(len(fpr) for fpr, _ in curves.values()):
        return b""
    rates = equal_errors or {}
    low, high = _limits(curves, rates)
    with canvas.drawing(WIDTH, 500) as figure:
        axes = figure.add_subplot()
        axes.plot(_probit([low, high]), _probit([low, high]), color=FAINT, linewidth=1.0, linestyle=":", zorder=1)
        for place, (name, (fpr, fnr)) in enumerate(curves.items()):
            label, rate = shorten(name, 40).lstrip("_"), rates.get(name)
            colour = SERIES[place % len(SERIES)]
            axes.plot(
                _probit(fpr),
                _probit(fnr),
                color=colour,
                linestyle=DASHES[place % len(DASHES)],
                linewidth=2.0 if place == 0 else 1.6,
                label=label if rate is None else f"{label}: EER {value_text(rate, True)}",
                zorder=4 if place == 0 else 3,
            )
            if rate is not None and low < rate < high:
                marker = MARKERS[place % len(MARKERS)]
                at = _probit([rate])
                axes.plot(at, at, marker, color="white", markeredgecolor=colour, markeredgewidth=1.8, zorder=5)
        _frame(axes, low, high)
        if not any(((fpr > 0) & (fnr > 0)).any() for fpr, fnr in curves.values()):
            words = "Some threshold makes no error at all."
            axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", backgroundcolor="white")
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.4)
        return canvas.to_png(figure)


def _frame(axes: Axes, low: float, high: float) -> None:
    """Ticks at round rates, the same on both axes, so that equal errors lie on the diagonal."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(_probit([tick for tick in _TICKS if low <= tick <= high]))
        axis.set_ticks(_probit([tick for tick in _MINOR if low <= tick <= high]), minor=True)
        axis.set_major_formatter(lambda deviate, _: f"{100 * _rate(deviate):.3g} %")
    axes.tick_params(which="minor", length=2)
    axes.set_xlim(*_probit([low, high]))
    axes.set_ylim(*_probit([low, high]))
    axes.set_xlabel("impostor pairs accepted (FPR)")
    axes.set_ylabel("genuine pairs refused (FNR)")
    axes.text(0.115, 0.06, "equal errors", transform=axes.transAxes, fontsize=8, color=MUTED)


def _limits(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], rates: Mapping[str, float]) -> tuple[float, float]:
    """From a tick below the smallest error in sight to one well above the largest of equal errors, and a half at least.

    Below 0.001 % there is nothing to see but single pairs.
    """
    worst = _probit([max((0.0, *rates.values()))])[0]
    high = min((tick for tick in _TICKS if tick >= max(0.5, _rate(worst + _ROOM))), default=_TICKS[-1])
    smallest = 0.01
    for fpr, fnr in curves.values():
        seen = (fpr > 0) & (fnr > 0) & (fpr < high) & (fnr < high)
        smallest = np.minimum(fpr, fnr)[seen].min(initial=smallest)
    return max((tick for tick in _TICKS if tick <= smallest), default=_TICKS[0]), high


def _probit(rates: np.ndarray | list[float]) -> np.ndarray:
    """Normal deviates; 0 and 1, which have none, lie outside every frame."""
    from scipy.special import ndtri

    return np.clip(ndtri(np.asarray(rates, np.float64)), -9, 9)


def _rate(deviate: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(deviate))


_NULL_BINS = 40


def draw_null(null: np.ndarray, observed: float, p_value: float, two_sided: bool = False) -> bytes:
    """Draw the discrepancies of random divisions, and that of the given one.

    Args:
        null: (P,) of random divisions of all items into two sets.
        observed: of the two sets as they are.
        p_value: how often chance gives at least as much.
        two_sided: whether values that are low count as well; the legend says so.

    Returns:
        PNG bytes, or none when there is nothing finite to draw.
    """
    values = np.asarray(null, dtype=np.float64).ravel()
    values = values[np.isfinite(values)]
    if not len(values) or not np.isfinite(observed):
        return b""
    low, high = float(values.min()), float(values.max())
    edges = np.linspace(low, high if high > low else low + 1e-12, _NULL_BINS + 1)
    with canvas.drawing(WIDTH, 360) as figure:
        axes = figure.add_subplot()
        counts, _ = np.histogram(values, bins=edges)
        axes.stairs(counts, edges, fill=True, facecolor=BLUE, edgecolor=BLUE, alpha=0.28)
        axes.stairs(counts, edges, color=BLUE, linewidth=1.4, label=f"{len(values):,} divisions at random")
        told = f"these two sets, p = {p_text(p_value)}{' (two-sided)' if two_sided else ''}"
        axes.axvline(observed, color=VERMILION, linewidth=2.0, linestyle="--", label=told)
        span = max(high, observed) - min(low, observed) or 1e-12
        axes.set_xlim(min(low, observed) - 0.04 * span, max(high, observed) + 0.04 * span)
        axes.set_ylim(0, 1.12 * counts.max())
        axes.set_xlabel("squared discrepancy between the sets (MMD²)")
        axes.set_ylabel("divisions")
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.8)
        return canvas.to_png(figure)
