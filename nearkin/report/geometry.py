"""The geometry of embeddings: spectra, distances, re-weighted directions, and measures against a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report.canvas import BLUE, INK, MARKERS, MUTED, SERIES, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report.lines import (
    draw_curve,
    fit_text,
    legend_above,
    legend_height,
    legend_labels,
    plain_numbers,
    share_limits,
)
from nearkin.report.values import clean, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_HEAT = "Blues"
_CELLS = 45  # hexagons from left to right
_SLICES = 20  # of the running median
_TITLE = 11  # points
_TIE = 1e-9  # beyond the average, of rounding
_PANEL = 200  # CSS pixels: the height of a panel
_COLUMNS = 3
_LEVEL: Any = {"color": MUTED, "linewidth": 1.6, "linestyle": (0, (1, 1.5))}


def draw_spectra(spectra: Mapping[str, np.ndarray]) -> bytes:
    """Draw singular values as multiples of their average, the largest first, on a log axis, one line an embedding.

    Embeddings of any dimension compare: the directions of each are spread over the whole width, and where all counted
    alike the line would lie at 1.

    Args:
        spectra: what to call an embedding to its singular values (m,), descending; of several up to four.

    Returns:
        PNG bytes, or none when there is no positive value.
    """
    lines = {}
    for name, values in spectra.items():
        spectrum = plain_numbers(values, f"singular values of '{name}'").ravel()
        if len(spectrum) and (np.isfinite(spectrum) & (spectrum > 0)).all():
            lines[name] = spectrum / spectrum.mean()
    if not lines:
        return b""
    from matplotlib.lines import Line2D

    told = [
        f"{name}: {int((line > 1 + _TIE).sum())} of {len(line)} above average"
        for name, line in zip(legend_labels(lines), lines.values(), strict=True)
    ]
    with drawing(WIDTH, 360 + legend_height([*told, ""])) as figure:
        axes = figure.add_subplot()
        for place, line in enumerate(lines.values()):
            x = np.arange(1, len(line) + 1) / len(line)
            draw_curve(axes, place, x, line, travelled=x)
        axes.axhline(1.0, zorder=2, **_LEVEL)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.margins(x=0.02)
        percent_axis(axes, "x")
        axes.set_xlabel("directions, strongest first")
        axes.set_ylabel("singular value / average")
        legend_above(figure, told, Line2D([], [], label="average, 1 / (d − 1)", **_LEVEL))
        return to_png(figure)


def draw_distance_pairs(pairs: Mapping[str, tuple[Any, Any]]) -> bytes:
    """Draw distances of features against those of the inputs, one panel a norm: the darker, the more pairs of items.

    The line is the median of the feature distances of pairs whose inputs are about as far apart.

    Args:
        pairs: the title of a panel to input distances (p,) and feature distances (p,), up to two.

    Returns:
        PNG bytes, or none when no panel has pairs that differ.
    """
    panels = {title: found for title, both in pairs.items() if (found := _varied(title, *both)) is not None}
    if not panels:
        return b""
    from matplotlib.lines import Line2D

    width = WIDTH if len(panels) > 1 else 460
    with drawing(width, 390) as figure:
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (title, (x, y)) in zip(grid, panels.items(), strict=True):
            axes.hexbin(x, y, gridsize=_CELLS, bins="log", cmap=_HEAT, mincnt=1, linewidths=0)
            axes.plot(*_running_median(x, y), color=VERMILION, linewidth=2.0)
            axes.set_title(fit_text(title, width / len(panels) - 50, _TITLE, "bold"))
            axes.set_xlabel("distance of inputs")
            axes.grid(False)
        grid[0].set_ylabel("distance of features")
        median = Line2D([], [], color=VERMILION, linewidth=2.0, label="median")
        figure.legend(handles=[median], loc="outside upper left", fontsize=9)
        return to_png(figure)


def draw_reweighting(
    powers: Sequence[float],
    measures: Mapping[str, Sequence[float]],
    *,
    unchanged: Mapping[str, float] | None = None,
    shares: Sequence[str] = (),
    chosen: float | None = None,
) -> bytes:
    """Draw measures against the power that principal directions are re-weighted by, one panel a measure.

    Args:
        powers: (m,), 0 for directions as they are, 1 for directions that vary alike.
        measures: measure to its values (m,); NaN is left out.
        unchanged: measure to its value of embeddings that were neither centred nor re-weighted, drawn as a line.
        shares: the measures that are shares of 1, whose axes are in percent.
        chosen: a power to mark.

    Returns:
        PNG bytes, or empty bytes when there is no value.
    """
    at = plain_numbers(powers, "powers")
    lines = {}
    for name, values in measures.items():
        line = plain_numbers(values, f"values of '{name}'")
        if line.shape != at.shape or line.ndim != 1:
            raise DataError(f"The line of '{name}' needs {len(at)} values, one for each power, not shape {line.shape}.")
        if np.isfinite(line).any():
            lines[name] = line
    if not lines:
        return b""
    rows = -(-len(lines) // _COLUMNS)
    with drawing(WIDTH, 60 + _PANEL * rows) as figure:
        grid = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for axes, (name, line) in zip(grid, lines.items(), strict=False):
            _draw_measure(axes, name, at, line, (unchanged or {}).get(name, np.nan), name in shares, chosen)
        for axes in grid[len(lines) :]:
            axes.set_axis_off()
        for axes in grid[max(0, len(lines) - _COLUMNS) : len(lines)]:
            axes.set_xlabel("power")
        _explain(figure, unchanged is not None, chosen is not None)
        return to_png(figure)


def _draw_measure(
    axes: Axes, name: str, at: np.ndarray, line: np.ndarray, level: float, share: bool, chosen: float | None
) -> None:
    axes.plot(at, line, color=BLUE, linewidth=1.8, marker="o", markersize=4.5, zorder=3)
    if np.isfinite(level):
        axes.axhline(level, zorder=2, **_LEVEL)
    if chosen is not None and (marked := np.flatnonzero(np.isclose(at, chosen))).size:
        place = int(marked[0])
        axes.plot(at[place], line[place], marker="*", markersize=14, color="white", markeredgecolor=INK, zorder=5)
    axes.set_title(clean(name))
    axes.set_xticks(at, [f"{power:g}" for power in at])
    axes.margins(x=0.08, y=0.2)
    if share:
        values = np.append(line, level)
        values = values[np.isfinite(values)]
        axes.set_ylim(*share_limits(float(values.min()), float(values.max())))
        percent_axis(axes, "y")
    else:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")


def _explain(figure: Any, unchanged: bool, chosen: bool) -> None:
    """A legend of the lines that all panels share."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=BLUE, linewidth=1.8, marker="o", markersize=4.5, label="centred and re-weighted")]
    if unchanged:
        handles.append(Line2D([], [], label="as the model gives them", **_LEVEL))
    if chosen:
        star: Any = {"marker": "*", "markersize": 12, "color": "white", "markeredgecolor": INK, "linewidth": 0}
        handles.append(Line2D([], [], label="power chosen on the other classes", **star))
    figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=9, columnspacing=1.4)


def _varied(title: str, inputs: Any, features: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Finite pairs of distances (p,), or None if one of them does not vary."""
    x, y = (plain_numbers(part, f"distances of '{title}'").ravel() for part in (inputs, features))
    if x.shape != y.shape:
        raise DataError(f"The panel '{title}' needs as many input as feature distances, not {len(x)} and {len(y)}.")
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    return (x, y) if len(x) and np.ptp(x) > 0 and np.ptp(y) > 0 else None


def _running_median(x: np.ndarray, y: np.ndarray) -> tuple[list[float], list[float]]:
    """Medians of x and y (up to 20) in parts of about as many pairs, ascending in x; equal x are in one part."""
    edges = np.unique(np.quantile(x, np.arange(1, _SLICES) / _SLICES))
    part = np.searchsorted(edges, x)
    found = [part == place for place in np.unique(part)]
    return [float(np.median(x[mask])) for mask in found], [float(np.median(y[mask])) for mask in found]


def correlation_title(name: str, value: float) -> str:
    """The title of a panel of `draw_distance_pairs`: the norm, and the mean correlation."""
    return f"{name}: MC {value_text(value, False)}"


_RUN_COLUMNS, _RUN_PANEL = 3, 210
_NAMED = 10  # runs up to which each has a colour and a marker of its own


def draw_measures(
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    of: Mapping[str, str],
    against: str,
    *,
    percent: bool = True,
) -> bytes:
    """Draw one panel a measure, its values to the right and those of the metric upwards, a point for each run.

    Args:
        rows: name to value for each run; what is missing or not finite is left out.
        names: of the runs.
        of: measure to what its title adds, such as its correlation.
        against: the metric.
        percent: whether that is a share of 1.

    Returns:
        PNG bytes, or none when no run has both.
    """
    panels = {}
    for measure in of:
        x, y = (
            plain_numbers([row.get(key, np.nan) for row in rows], f"values of '{key}'") for key in (measure, against)
        )
        if (np.isfinite(x) & np.isfinite(y)).any():
            panels[measure] = (x, y)
    if not panels:
        return b""
    lines = -(-len(panels) // _RUN_COLUMNS)
    labels = legend_labels(names) if len(names) <= _NAMED else []
    with drawing(WIDTH, 40 + _RUN_PANEL * lines + (legend_height(labels) if labels else 0)) as figure:
        grid = figure.subplots(lines, _RUN_COLUMNS, squeeze=False, sharey=True).ravel()
        for axes, (measure, (x, y)) in zip(grid, panels.items(), strict=False):
            _draw_points(axes, x, y, bool(labels))
            axes.set_title(fit_text(of[measure] or measure, WIDTH / _RUN_COLUMNS - 45, _TITLE, "bold"))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
            axes.locator_params(axis="x", nbins=4)
            axes.margins(0.12)
            if percent:
                percent_axis(axes, "y")
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[::_RUN_COLUMNS]:
            axes.set_ylabel(clean(against))
        if labels:
            handles = [grid[0].scatter([], [], s=34, **_look(place)) for place in range(len(labels))]
            figure.legend(handles, labels, loc="outside upper left", ncols=min(4, len(labels)), fontsize=9)
        return to_png(figure)


def _draw_points(axes: Axes, x: np.ndarray, y: np.ndarray, named: bool) -> None:
    for place in np.flatnonzero(np.isfinite(x) & np.isfinite(y)).tolist():
        look = _look(place) if named else {"color": BLUE, "marker": "o", "alpha": 0.6}
        axes.scatter(x[place], y[place], s=34, zorder=3, **look)


def _look(place: int) -> dict[str, str]:
    return {"color": SERIES[place % len(SERIES)], "marker": MARKERS[place % len(MARKERS)]}
