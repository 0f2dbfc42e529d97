"""Accuracy and calibration error against k: an estimator that is flat needs no k to be tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import WIDTH, drawing, to_png
from nearkin.report._lines import plain_numbers
from nearkin.report._panels import draw_panels, has_values, panels_height, value_line

_LETTER, _GAP = 0.014, 0.01  # of the axis: what a number's letter and the gap between two numbers need


def draw_sensitivity(ks: Sequence[int], accuracy: Mapping[str, np.ndarray], ece: Mapping[str, np.ndarray]) -> bytes:
    """Draw accuracy above the expected calibration error, one line an estimator, against k on a log axis.

    Args:
        ks: (m,) numbers of neighbours, 1 or more.
        accuracy: estimator to its accuracy (m,) at each k; NaN is left out.
        ece: estimator to its calibration error (m,) at each k; NaN is left out.

    Returns:
        PNG bytes, or none when there is no value.
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
