"""Distances of same-class pairs against other pairs: the less the two overlap, the better the embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearkin.report._canvas import BLUE, INK, VERMILION, WIDTH, drawing, to_png
from nearkin.report.formatting import clean

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
    with drawing(WIDTH, 400) as figure:
        axes = figure.add_subplot()
        # Told apart by filling, hatching and line as well as by colour.
        for values, name, colour, hatch, dash in (
            (other, "other class", VERMILION, "////", "--"),
            (same, "same class", BLUE, "", "-"),
        ):
            if len(values):
                label = (
                    f"{name}: {len(values):,} {'pair' if len(values) == 1 else 'pairs'}, median {np.median(values):.3g}"
                )
                density = np.histogram(values, bins=edges, density=True)[0]
                axes.stairs(density, edges, fill=True, facecolor=colour, edgecolor=colour, alpha=0.28, hatch=hatch)
                axes.stairs(density, edges, color=colour, linewidth=1.6, linestyle=dash, label=label)
        axes.set_xlabel(clean(xlabel))
        axes.set_ylabel("share of pairs (area 1)")
        axes.set_yticks([])
        axes.margins(x=0.01, y=0.12)
        axes.set_ylim(bottom=0)
        if threshold is not None and np.isfinite(threshold):
            _mark(axes, threshold)
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.8, reverse=True)
        return to_png(figure)


def _mark(axes: Axes, threshold: float) -> None:
    """A line at the threshold, its name on the side that has more room."""
    axes.axvline(threshold, color=INK, linewidth=1.2, linestyle=":")
    left, right = axes.get_xlim()
    to_left = threshold > (left + right) / 2
    axes.annotate(
        f"threshold {threshold:.3g}",
        (threshold, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if to_left else 5, -2),
        textcoords="offset points",
        ha="right" if to_left else "left",
        va="top",
        fontsize=9,
    )
