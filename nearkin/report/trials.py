"""A search for settings as a picture: the best so far, each setting against the score, and two numbers as a map."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, INK, MUTED, SERIES, WIDTH
from nearkin.report.lines import tick_whole_numbers
from nearkin.report.values import shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS, _HEIGHT = 2, 230
_MAP_TRIALS = 6
"""Fewer trials make no map."""
_MAP_CELLS = 60
_LETTERS = 26
"""Of a key that fit over a panel and beside it."""
_STAR: Any = {"marker": "*", "markersize": 14, "color": "white", "markeredgecolor": INK, "zorder": 6, "clip_on": False}


def draw_trials(
    scores: Sequence[float],
    settings: Mapping[str, Sequence[Any]],
    logs: Collection[str] = (),
    *,
    metric: str = "MAP@R",
) -> bytes:
    """Draw what a search found.

    The map is a Gaussian process fitted to the trials, as in Gürbüz 2022, figure 3.5; the dots on it are the trials.

    Args:
        scores: of the trials (n,), higher is better, in the order in which they were tried.
        settings: key of the recipe to its values (n,); anything but numbers is a list of names.
        logs: keys whose axis is logarithmic.
        metric: what the scores are.

    Returns:
        PNG bytes, or empty bytes when there is no trial.
    """
    values = np.asarray(scores, dtype=np.float64)
    if any(len(given) != len(values) for given in settings.values()):
        raise DataError("A search needs one value of each setting for each trial.")
    if not len(values):
        return b""
    numbers = [key for key, given in settings.items() if _is_number(given)]
    mapped = len(numbers) == 2 and len(values) >= _MAP_TRIALS
    count = 1 + len(settings) + mapped
    with canvas.drawing(WIDTH, 20 + _HEIGHT * -(-count // _COLUMNS)) as figure:
        grid = canvas.panel_grid(figure, count, _COLUMNS)
        best = int(values.argmax())
        _draw_course(grid[0], values, best, metric)
        for axes, (key, given) in zip(grid[1:], settings.items(), strict=False):
            _draw_setting(axes, values, key, list(given), best, key in logs)
        if mapped:
            first, second = numbers
            pairs = np.array([settings[first], settings[second]], dtype=np.float64)
            _draw_map(figure, grid[-1], values, pairs, (first, second), best, [one in logs for one in numbers])
        return canvas.to_png(figure)


def _is_number(given: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)


def _draw_course(axes: Axes, values: np.ndarray, best: int, metric: str) -> None:
    """Every trial, and the best one so far."""
    places = np.arange(1, len(values) + 1)
    axes.plot(places, values, linestyle="", marker="o", markersize=4, color=MUTED)
    axes.step(places, np.maximum.accumulate(values), where="post", color=BLUE, linewidth=1.8)
    axes.plot(places[best], values[best], **_STAR)
    axes.set_title(f"Best {shorten(metric, 20)}: {value_text(values[best], True)}")
    tick_whole_numbers(axes, "trials")
    axes.margins(y=0.1)
    canvas.percent_axis(axes, "y")


def _draw_setting(axes: Axes, values: np.ndarray, key: str, given: list[Any], best: int, log: bool) -> None:
    """Scores against one setting."""
    if _is_number(given):
        places = np.array(given, dtype=np.float64)
        if log:
            axes.set_xscale("log")
            _tick_plainly(axes, "x")
    else:
        names = list(dict.fromkeys(map(str, given)))
        places = np.array([names.index(str(value)) for value in given], dtype=np.float64)
        axes.set_xticks(range(len(names)), [shorten(name, 16) for name in names])
        axes.set_xlim(-0.5, len(names) - 0.5)
    # The later, the darker: where the search went.
    axes.scatter(places, values, c=np.arange(len(values)), cmap="Blues", vmin=-len(values) / 2, s=26, edgecolors=BLUE)
    axes.plot(places[best], values[best], **_STAR)
    axes.set_title(f"{_ending(key)}: {_told(given[best])}")
    axes.margins(y=0.1)
    canvas.percent_axis(axes, "y")


def _tick_plainly(axes: Axes, which: str) -> None:
    """Label the decades of a logarithmic axis, and nothing between them."""
    from matplotlib.ticker import NullFormatter

    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def _ending(key: str) -> str:
    """A key, or the end of a long one, which says more than its sections."""
    return key if len(key) <= _LETTERS else f"…{key[1 - _LETTERS :]}"


def _told(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else shorten(str(value), 16)


def _draw_map(
    figure: Figure,
    axes: Axes,
    values: np.ndarray,
    pairs: np.ndarray,
    names: tuple[str, str],
    best: int,
    logs: Sequence[bool],
) -> None:
    """What a Gaussian process makes of the trials between them."""
    scaled = np.stack([np.log10(row) if log else row for row, log in zip(pairs, logs, strict=True)])
    low, high = scaled.min(axis=1), scaled.max(axis=1)
    spans = np.where(high > low, high - low, 1.0)
    lines = [np.linspace(low[place], high[place], _MAP_CELLS) for place in range(2)]
    x, y = np.meshgrid(*lines)
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    fitted = fitted_surface((scaled.T - low) / spans, values, (points - low) / spans)
    drawn = [10**line if log else line for line, log in zip(lines, logs, strict=True)]
    mesh = axes.pcolormesh(*drawn, fitted.reshape(x.shape), cmap="viridis", shading="nearest")
    axes.plot(*pairs, linestyle="", marker="o", markersize=3.5, color="white", markeredgecolor=SERIES[-1])
    axes.plot(*pairs[:, best], **_STAR)
    for log, which in zip(logs, "xy", strict=True):
        if log:
            getattr(axes, f"set_{which}scale")("log")
            _tick_plainly(axes, which)
    axes.set(xlabel=_ending(names[0]), ylabel=_ending(names[1]))
    axes.set_title("Gaussian process")
    axes.grid(visible=False)
    bar = figure.colorbar(mesh, ax=axes)
    canvas.percent_axis(bar.ax, "y")


def fitted_surface(points: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """What a Gaussian process, fitted to values (n,) at points (n, d) of the unit cube, expects at others (m, d)."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    spread = float(values.std())
    if not math.isfinite(spread) or spread == 0:
        return np.full(len(asked), float(values.mean()))
    kernel = RBF(0.3, (0.05, 10.0)) + WhiteKernel(0.1, (1e-5, 1.0))
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at the end of its range is as good as any
        found: np.ndarray = process.fit(points, values).predict(asked)
    return found
