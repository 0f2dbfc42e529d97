"""Training curves: the loss and the validation metrics against steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from nearkin.report._canvas import BLUE, DASHES, INK, MARKERS, MUTED, SERIES, WIDTH, drawing, percent_axis, to_png
from nearkin.report.formatting import shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PREFIX = "val_"
_USUAL = ("val_MAP@R", "val_P@1")
Series: TypeAlias = tuple[np.ndarray, np.ndarray]


def draw_curves(
    history: Sequence[Mapping[str, float]],
    *,
    loss: str = "loss",
    metrics: Sequence[str] | None = None,
    percent: bool = True,
) -> bytes:
    """Draw the loss, raw and smoothed, above the validation metrics, with the best step marked.

    Args:
        history: rows such as `{"step": 10, "loss": 1.2}` or `{"step": 50, "val_MAP@R": 0.3}`; a step that occurs
            twice, as after a resumed run, counts with its last row.
        loss: key of the loss.
        metrics: keys of the metrics, higher is better, the first decides the best step; by default MAP@R and P@1 on
            the validation classes, or every `val_` key when there is neither.
        percent: whether the metrics are shares of 1.

    Returns:
        PNG bytes, or none when there is nothing to draw.
    """
    keys = metrics if metrics is not None else _usual_metrics(history)
    losses = _series(history, loss)
    curves = {key: series for key in keys if len((series := _series(history, key))[0])}
    panels = int(len(losses[0]) > 0) + int(bool(curves))
    if not panels:
        return b""
    with drawing(WIDTH, 40 + 210 * panels) as figure:
        grid = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        if len(losses[0]):
            _draw_loss(grid[0], losses)
        if curves:
            best = _draw_metrics(grid[-1], curves, percent)
            for axes in grid:
                axes.axvline(best, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        grid[-1].set_xlabel("step")
        return to_png(figure)


def _draw_loss(axes: Axes, series: Series) -> None:
    steps, values = series
    smoothed = _smooth(values)
    few = len(steps) < 10
    axes.plot(steps, values, color=BLUE, linewidth=1.6 if few else 1.0, alpha=1 if few else 0.35)
    if not few:
        axes.plot(steps, smoothed, color=BLUE, linewidth=1.8)
        # One spike of the first steps shall not flatten all the rest.
        top = max(float(np.quantile(values, 0.995)), float(smoothed.max()))
        bottom = float(values.min())
        margin = 0.06 * (top - bottom) or 0.5
        axes.set_ylim(bottom - margin, top + margin)
    axes.set_title("Training loss")
    axes.margins(x=0.02)


def _draw_metrics(axes: Axes, curves: Mapping[str, Series], percent: bool) -> float:
    """Draw every metric; return the step at which the first one is best."""
    for place, (key, (steps, values)) in enumerate(curves.items()):
        axes.plot(
            steps,
            values,
            color=SERIES[(place + 1) % len(SERIES)],
            linestyle=DASHES[place % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)] if len(steps) <= 40 else "",
            markersize=3.5,
            linewidth=1.6,
            label=_name(key).lstrip("_"),
        )
    first = next(iter(curves))
    steps, values = curves[first]
    best = int(np.argmax(values))
    axes.plot(steps[best], values[best], marker="*", markersize=13, color="white", markeredgecolor=INK, zorder=5)
    axes.set_title(f"Validation: best {_name(first)} {value_text(values[best], percent)} at step {steps[best]:,.0f}")
    if len(curves) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.margins(x=0.02, y=0.15)
    if percent:
        percent_axis(axes, "y")
    return float(steps[best])


def _usual_metrics(history: Sequence[Mapping[str, float]]) -> list[str]:
    """What to draw when nobody says: a dozen curves on one panel show nothing."""
    found = list(dict.fromkeys(key for row in history for key in row if key.startswith(_PREFIX)))
    return [key for key in _USUAL if key in found] or found


def _name(key: str) -> str:
    return shorten(key.removeprefix(_PREFIX), 28)


def _series(history: Sequence[Mapping[str, float]], key: str) -> Series:
    """Steps and finite values of one key, in order of steps."""
    found = {float(row["step"]): float(row[key]) for row in history if "step" in row and row.get(key) is not None}
    steps = sorted(step for step, value in found.items() if math.isfinite(value))
    return np.array(steps), np.array([found[step] for step in steps])


def _smooth(values: np.ndarray) -> np.ndarray:
    """A Gaussian average over about a twentieth of the curve, without lag and fair at both ends."""
    sigma = max(1.0, len(values) / 50)
    reach = min(int(3 * sigma), len(values) - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weight = np.convolve(np.ones(len(values)), kernel)[reach : reach + len(values)]
    return np.convolve(values, kernel)[reach : reach + len(values)] / weight
