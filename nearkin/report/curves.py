"""Training curves: the loss and the validation metrics against steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkin.report._canvas import BLUE, DASHES, INK, MARKERS, MUTED, SERIES, WIDTH, drawing, percent_axis, to_png
from nearkin.report._panels import share_limits
from nearkin.report._steps import Series, draw_noisy, step_series
from nearkin.report.formatting import shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PREFIX = "val_"
_USUAL = ("val_accuracy", "val_MAP@R", "val_P@1")
"""What selects the weights comes first: the accuracy of episodes where there are some, else MAP@R."""
_LENGTHS = ("val_covering_radius",)
"""No shares of 1, and drawn elsewhere."""


def draw_curves(
    history: Sequence[Mapping[str, float]],
    *,
    loss: str = "loss",
    metrics: Sequence[str] | None = None,
    percent: bool = True,
) -> bytes:
    """Draw the loss, raw and smoothed, above the validation metrics, with the best step marked.

    By default accuracy, MAP@R and P@1 have one panel, and what a recipe asked for besides
    (`training.validation_metrics`) the next: NMI would press curves of a few percent flat.

    Args:
        history: rows such as `{"step": 10, "loss": 1.2}` or `{"step": 50, "val_MAP@R": 0.3}`; a step that occurs
            twice, as after a resumed run, counts with its last row.
        loss: key of the loss.
        metrics: keys of the metrics, higher is better, the first decides the best step; by default accuracy, MAP@R and
            P@1 on the validation classes, then every other `val_` key that is a metric.
        percent: whether the metrics are shares of 1.

    Returns:
        PNG bytes, or none when there is nothing to draw.
    """
    groups = [list(metrics)] if metrics is not None else _usual_groups(history)
    losses = step_series(history, loss)
    drawn = [{key: series for key in keys if len((series := step_series(history, key))[0])} for keys in groups]
    drawn = [curves for curves in drawn if curves]
    panels = int(len(losses[0]) > 0) + len(drawn)
    if not panels:
        return b""
    with drawing(WIDTH, 40 + 210 * panels) as figure:
        grid = list(figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0])
        if len(losses[0]):
            draw_noisy(grid[0], losses, BLUE)
            grid[0].set_title("Training loss")
        for axes, curves in zip(grid[panels - len(drawn) :], drawn, strict=True):
            _draw_metrics(axes, curves, percent)
        if drawn:
            best = _mark_best(grid[panels - len(drawn)], drawn[0], percent)
            for axes in grid:
                axes.axvline(best, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        grid[-1].set_xlabel("step")
        return to_png(figure)


def _draw_metrics(axes: Axes, curves: Mapping[str, Series], percent: bool) -> None:
    """Draw every metric of a panel."""
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
    axes.set_title(f"Validation: {_name(next(iter(curves)))}" if len(curves) == 1 else "Validation: further metrics")
    if len(curves) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.margins(x=0.02, y=0.15)
    if percent:
        values = np.concatenate([line for _, line in curves.values()])
        axes.set_ylim(*share_limits(float(values.min()), float(values.max())))
        percent_axis(axes, "y")


def _mark_best(axes: Axes, curves: Mapping[str, Series], percent: bool) -> float:
    """Mark where the first metric is best, and return that step."""
    first = next(iter(curves))
    steps, values = curves[first]
    best = int(np.argmax(values))
    axes.plot(steps[best], values[best], marker="*", markersize=13, color="white", markeredgecolor=INK, zorder=5)
    axes.set_title(f"Validation: best {_name(first)} {value_text(values[best], percent)} at step {steps[best]:,.0f}")
    return float(steps[best])


def _usual_groups(history: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """What to draw when nobody says, a list for each panel: accuracy, MAP@R and P@1, then all else validated."""
    found = dict.fromkeys(key for row in history for key in row if key.startswith(_PREFIX))
    usual = [key for key in _USUAL if key in found]
    return [usual, [key for key in found if key not in (*_USUAL, *_LENGTHS)]]


def _name(key: str) -> str:
    return shorten(key.removeprefix(_PREFIX), 28)
