"""Pictures of how sure an answer is: class probabilities over the plane, novelty, and a two-sample test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearkin.confidence import NED, KNNVote, NearestNeighbour, Novelty, PrototypeSoftmax
from nearkin.metrics import mmd_test
from nearkin.report.canvas import BLUE, FAINT, INK, VERMILION, WIDTH, drawing, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALL, _PIXELS, _HALF = 9.5, 60, 3.2


def _support() -> tuple[np.ndarray, np.ndarray]:
    """Two classes in the plane: one of two groups, one of a single group between and above them."""
    rng = np.random.default_rng(5)
    groups = [((-1.3, -0.8), 0, 14), ((1.5, -0.8), 0, 14), ((0.1, 0.9), 1, 18)]
    points = [centre + 0.55 * rng.normal(size=(count, 2)) for centre, _, count in groups]
    return np.concatenate(points), np.repeat([0, 0, 1], [count for _, _, count in groups])


def _grid() -> np.ndarray:
    line = np.linspace(-_HALF, _HALF, _PIXELS)
    return np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)


def _show(axes: Axes, values: np.ndarray, cmap: str, low: float, high: float, title: str) -> None:
    """A value over the plane."""
    extent = (-_HALF, _HALF, -_HALF, _HALF)
    levels = np.round(np.clip((values - low) / (high - low), 0, 1) * 10) / 10
    axes.imshow(levels.reshape(_PIXELS, _PIXELS), origin="lower", extent=extent, cmap=cmap, vmin=-0.25, vmax=1.25)
    axes.set(xticks=[], yticks=[], xlim=(-_HALF, _HALF), ylim=(-_HALF, _HALF))
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.set_title(title, fontsize=_SMALL)


def ned() -> bytes:
    """The probability of one class over the plane by four estimators fitted to the same points."""
    points, labels = _support()
    ways = {
        "1NN": NearestNeighbour(space="euclidean"),
        "kNN, k = 10": KNNVote(space="euclidean", k=10),
        "NED": NED(space="euclidean"),
        "prototypes, softmax": PrototypeSoftmax(space="euclidean"),
    }
    with drawing(WIDTH, 205) as figure:
        for axes, (title, way) in zip(figure.subplots(1, 4), ways.items(), strict=True):
            prediction = way.fit(points, labels).predict(_grid())
            _show(axes, prediction.probabilities.dense()[:, 1], "RdBu_r", 0, 1, title)
            axes.scatter(
                *points.T, s=9, c=["white" if label else INK for label in labels], edgecolors=INK, linewidths=0.4
            )
        return to_png(figure)


def novelty() -> bytes:
    """The p-value of being no novelty over the plane, by three scores."""
    points, _ = _support()
    with drawing(WIDTH, 276) as figure:
        for axes, method in zip(figure.subplots(1, 3), ("nearest", "mean", "one-class-svm"), strict=True):
            p = Novelty(method=method, space="euclidean").fit(points).p_values(_grid())
            _show(axes, p, "Blues", 0, 1, method)
            axes.contour(p.reshape(_PIXELS, _PIXELS), levels=[0.05], colors=[VERMILION], linewidths=1.2,
                         extent=(-_HALF, _HALF, -_HALF, _HALF))  # fmt: skip
            axes.scatter(*points.T, s=9, color="white", edgecolors=INK, linewidths=0.5)
        return to_png(figure)


def mmd() -> bytes:
    """The statistic of two sets beside those of random divisions, where they are alike and where one has moved."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    cases = {"one distribution": rng.normal(size=(60, 2)), "moved by 0.6": rng.normal((0.6, 0.0), size=(60, 2))}
    with drawing(WIDTH, 240) as figure:
        for axes, (title, y) in zip(figure.subplots(1, 2, sharex=True, sharey=True), cases.items(), strict=True):
            found = mmd_test(x, y, space="euclidean", permutations=999)
            axes.hist(found.null, bins=40, color=FAINT)
            axes.axvline(found.statistic, color=BLUE, linewidth=2)
            axes.set_title(f"{title}: p = {found.p_value:.3f}", fontsize=_SMALL)
            axes.set_xlabel("MMD^2; grey: of random divisions", fontsize=8.5)
        return to_png(figure)


PICTURES = {"ned": ned, "novelty": novelty, "mmd": mmd}
