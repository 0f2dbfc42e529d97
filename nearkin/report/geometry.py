"""The geometry of embeddings: maps, spectra, distances, re-weighted directions, and measures against a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.report import canvas
from nearkin.report.canvas import BLACK, BLUE, FAINT, INK, MARKERS, MUTED, SERIES, VERMILION, WIDTH
from nearkin.report.lines import chart, draw_curve, fit_shares, legend_height, legend_labels
from nearkin.report.values import check_shape, clean, plain_numbers, shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_HEAT = "Blues"
_CELLS = 45  # hexagons from left to right
_SLICES = 20  # of the running median
_TITLE = 11  # points
_TIE = 1e-9  # beyond the average, of rounding
_PANEL = 200  # CSS pixels: the height of a panel
_COLUMNS = 3
_MEASURE: Any = {"color": BLUE, "linewidth": 1.8, "marker": "o", "markersize": 4.5}
_STAR: Any = {"marker": "*", "markersize": 14, "color": "white", "markeredgecolor": INK}
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
    told = [
        f"{name}: {int((line > 1 + _TIE).sum())} of {len(line)} above average"
        for name, line in zip(legend_labels(lines), lines.values(), strict=True)
    ]
    with chart(360, told, canvas.mark("average, 1 / (d − 1)", **_LEVEL)) as (figure, axes):
        for place, line in enumerate(lines.values()):
            x = np.arange(1, len(line) + 1) / len(line)
            draw_curve(axes, place, x, line)
        axes.axhline(1.0, zorder=2, **_LEVEL)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.margins(x=0.02)
        canvas.percent_axis(axes, "x")
        axes.set_xlabel("directions, strongest first")
        axes.set_ylabel("singular value / average")
        return canvas.to_png(figure)


def draw_distance_pairs(pairs: Mapping[str, tuple[Any, Any]]) -> bytes:
    """Draw distances of features against those of the inputs, one panel a norm: the darker, the more pairs of items.

    The line is the median of the feature distances of pairs whose inputs are about as far apart.

    Args:
        pairs: the title of a panel to input distances (p,) and feature distances (p,), up to two.

    Returns:
        PNG bytes, or none when no panel has pairs that differ.
    """
    shown = {title: found for title, both in pairs.items() if (found := _varied(title, *both)) is not None}
    if not shown:
        return b""
    width = WIDTH if len(shown) > 1 else 460
    with canvas.drawing(width, 390) as figure:
        grid = canvas.panel_grid(figure, len(shown), len(shown), sharey=True)
        for axes, (title, (x, y)) in zip(grid, shown.items(), strict=True):
            axes.hexbin(x, y, gridsize=_CELLS, bins="log", cmap=_HEAT, mincnt=1, linewidths=0)
            axes.plot(*_running_median(x, y), color=VERMILION, linewidth=2.0)
            axes.set_title(canvas.fit_text(title, width / len(shown) - 50, _TITLE, "bold"))
            axes.set_xlabel("distance of inputs")
            axes.grid(False)
        grid[0].set_ylabel("distance of features")
        canvas.draw_legend(figure, [canvas.mark("median", color=VERMILION, linewidth=2.0)], 1)
        return canvas.to_png(figure)


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
    handles = [canvas.mark("centred and re-weighted", **_MEASURE)]
    if unchanged is not None:
        handles.append(canvas.mark("as the model gives them", **_LEVEL))
    if chosen is not None:
        handles.append(canvas.mark("power chosen on the other classes", linewidth=0, **{**_STAR, "markersize": 12}))
    with canvas.drawing(WIDTH, 60 + _PANEL * -(-len(lines) // _COLUMNS)) as figure:
        grid = canvas.panel_grid(figure, len(lines), _COLUMNS)
        for axes, (name, line) in zip(grid, lines.items(), strict=True):
            _draw_measure(axes, name, at, line, (unchanged or {}).get(name, np.nan), name in shares, chosen)
        for axes in grid[-_COLUMNS:]:
            axes.set_xlabel("power")
        canvas.draw_legend(figure, handles, 3, columnspacing=1.4)
        return canvas.to_png(figure)


def _draw_measure(
    axes: Axes, name: str, at: np.ndarray, line: np.ndarray, level: float, share: bool, chosen: float | None
) -> None:
    axes.plot(at, line, zorder=3, **_MEASURE)
    if np.isfinite(level):
        axes.axhline(level, zorder=2, **_LEVEL)
    if chosen is not None and (marked := np.flatnonzero(np.isclose(at, chosen))).size:
        axes.plot(at[marked[0]], line[marked[0]], zorder=5, **_STAR)
    axes.set_title(clean(name))
    axes.set_xticks(at, [f"{power:g}" for power in at])
    axes.margins(x=0.08, y=0.2)
    if share:
        fit_shares(axes, line, [level])
    else:
        canvas.plain_axis(axes, "y")


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


_RUN_PANEL = 210
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
    shown = {}
    for measure in of:
        x, y = (
            plain_numbers([row.get(key, np.nan) for row in rows], f"values of '{key}'") for key in (measure, against)
        )
        if (np.isfinite(x) & np.isfinite(y)).any():
            shown[measure] = (x, y)
    if not shown:
        return b""
    labels = legend_labels(names) if len(names) <= _NAMED else []
    rim = 40 + (legend_height(labels) if labels else 0)
    with canvas.drawing(WIDTH, rim + _RUN_PANEL * -(-len(shown) // _COLUMNS)) as figure:
        grid = canvas.panel_grid(figure, len(shown), _COLUMNS, sharey=True)
        for axes, (measure, (x, y)) in zip(grid, shown.items(), strict=True):
            for place in np.flatnonzero(np.isfinite(x) & np.isfinite(y)).tolist():
                look = _look(place) if labels else {"color": BLUE, "marker": "o", "alpha": 0.6}
                axes.scatter(x[place], y[place], s=34, zorder=3, **look)
            axes.set_title(canvas.fit_text(of[measure] or measure, WIDTH / _COLUMNS - 45, _TITLE, "bold"))
            canvas.plain_axis(axes, "x")
            axes.locator_params(axis="x", nbins=4)
            axes.margins(0.12)
            if percent:
                canvas.percent_axis(axes, "y")
        for axes in grid[::_COLUMNS]:
            axes.set_ylabel(clean(against))
        if labels:
            handles = [grid[0].scatter([], [], s=34, label=label, **_look(i)) for i, label in enumerate(labels)]
            canvas.draw_legend(figure, handles, min(4, len(labels)))
        return canvas.to_png(figure)


def _look(place: int) -> dict[str, Any]:
    return {"color": SERIES[place % len(SERIES)], "marker": MARKERS[place % len(MARKERS)]}


_METHODS = ("pca", "tsne")


def project_2d(
    embeddings: np.ndarray, *, method: Literal["pca", "tsne"] = "tsne", seed: int = 0, max_points: int = 2000
) -> tuple[np.ndarray, np.ndarray]:
    """Project embeddings (n, d) to the plane, a seeded sample of them when there are many.

    PCA keeps the directions of largest variance and so the coarse layout; t-SNE keeps neighbourhoods, and its
    distances between far groups mean nothing. With fewer than five points t-SNE has no neighbourhoods: PCA is used.

    Args:
        embeddings: (n, d) finite vectors.
        method: "pca" or "tsne".
        seed: picks the sample and seeds t-SNE.
        max_points: how many points are kept at most.

    Returns:
        Points (m, 2) and the indices (m,) of the embeddings they show, ascending.
    """
    if method not in _METHODS:
        raise DataError(f"Unknown projection '{method}'.{suggestion(method, _METHODS)}")
    vectors = np.asarray(embeddings, dtype=np.float64)
    check_shape(vectors, "embeddings of a map", "n", "d")
    indices = np.arange(len(vectors))
    if len(vectors) > max_points:
        indices = np.sort(np.random.default_rng(seed).choice(len(vectors), max_points, replace=False))
        vectors = vectors[indices]
    plane = _principal_plane(vectors)
    if method == "tsne" and len(vectors) >= 5:
        plane = _tsne(vectors, plane, seed)
    return plane, indices


def _principal_plane(vectors: np.ndarray) -> np.ndarray:
    """Coordinates (n, 2) along the two main directions; a direction that does not exist is zero."""
    from sklearn.decomposition import PCA

    plane = np.zeros((len(vectors), 2))
    rank = min(2, *vectors.shape)
    if rank and np.ptp(vectors, axis=0).any():
        plane[:, :rank] = PCA(rank, svd_solver="full").fit_transform(vectors)
    return plane


def _tsne(vectors: np.ndarray, plane: np.ndarray, seed: int) -> np.ndarray:
    """t-SNE (n, 2) started from the principal plane."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    spread = plane[:, 0].std()
    start = (plane / spread * 1e-4 if spread > 0 else plane).astype(np.float32)
    machine = TSNE(perplexity=min(30.0, (len(vectors) - 1) / 3), init=start, learning_rate="auto", random_state=seed)
    # Threads add their gradients up in no fixed order, and t-SNE blows any difference up: one thread, one map.
    with threadpool_limits(limits=1, user_api="openmp"):
        return np.asarray(machine.fit_transform(vectors.astype(np.float32)), dtype=np.float64)


_LABEL_LETTERS = 24
# How far a name may move from its class, in pixels.
_RADII = (0.0, 18.0, 34.0, 54.0, 80.0, 112.0, 150.0, 200.0, 260.0, 330.0)
_ANGLES = np.linspace(0, 2 * np.pi, 16, endpoint=False) + np.pi / 2


def draw_map(
    points: np.ndarray, labels: np.ndarray, *, title: str = "", max_classes: int = 20, crosses: np.ndarray | None = None
) -> bytes:
    """Draw points in the plane; the largest classes get a colour, a marker and a name, the others are grey.

    Args:
        points: (n, 2) coordinates, as of `project_2d`.
        labels: (n,) class names.
        title: heading inside the picture.
        max_classes: how many classes are coloured; up to 35 have a pair of colour and marker of their own.
        crosses: (m, 2) further points, such as the centroids of classes, marked by black crosses.

    Returns:
        PNG bytes, or none when there are no points.
    """
    points = np.asarray(points, dtype=np.float64)
    names = np.asarray([str(label) for label in labels], dtype=object)
    if len(points) != len(names) or points.shape[1:] != (2,):
        raise DataError(f"A map needs points (n, 2) and n labels, but got {points.shape} and {len(names)} labels.")
    if not len(points):
        return b""
    counts = Counter(names)
    shown = sorted(sorted(counts, key=lambda name: (-counts[name], name))[:max_classes])
    with canvas.drawing(WIDTH, 640) as figure:
        axes = figure.add_subplot()
        axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
        axes.spines[:].set_visible(True)
        axes.margins(0.06)
        size = float(np.clip(12000 / len(points), 9, 40))
        grey = ~np.isin(names, shown)
        axes.scatter(points[grey, 0], points[grey, 1], s=0.6 * size, color=FAINT, linewidths=0)
        styles = {name: (SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(shown)}
        for name, (colour, marker) in styles.items():
            x, y = points[names == name].T
            axes.scatter(x, y, s=size, color=colour, marker=marker, linewidths=0, alpha=0.75)
        if crosses is not None:
            x, y = np.reshape(crosses, (-1, 2)).T
            axes.scatter(x, y, s=22, color=BLACK, marker="x", linewidths=1.1, zorder=5)
        axes.set_title(clean(title))
        if hidden := len(counts) - len(shown):
            axes.set_xlabel(f"grey: {hidden:,} more {'class' if hidden == 1 else 'classes'}", loc="left")
        centres = np.array([np.median(points[names == name], axis=0) for name in shown]).reshape(-1, 2)
        _write_names(figure, axes, points, centres, shown, [styles[name][0] for name in shown])
        return canvas.to_png(figure)


def _write_names(
    figure: Figure, axes: Axes, points: np.ndarray, centres: np.ndarray, names: list[str], colours: list[str]
) -> None:
    """Write each class's name near its centre (k, 2), where it hides least."""
    look: Any = {"textcoords": "offset pixels", "ha": "center", "va": "center", "fontsize": 8, "zorder": 6}
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "alpha": 0.88}
    way = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
    texts = [
        axes.annotate(
            shorten(name, _LABEL_LETTERS), tuple(at), (0, 0), bbox={**box, "edgecolor": colour}, arrowprops=way, **look
        )
        for name, at, colour in zip(names, centres, colours, strict=True)
    ]
    figure.draw_without_rendering()  # the layout must be settled before pixels mean anything
    figure.set_layout_engine("none")
    frame = np.array(axes.get_window_extent().extents)
    at = axes.transData.transform(centres).reshape(-1, 2)
    dots = axes.transData.transform(points)
    sizes = []
    for text in texts:
        patch = text.get_bbox_patch()
        extent = patch.get_window_extent() if patch is not None else text.get_window_extent()
        sizes.append((extent.width, extent.height))
    for text, offset in zip(texts, _place(at, np.array(sizes), dots, frame), strict=True):
        text.set_position((float(offset[0]), float(offset[1])))


def _place(centres: np.ndarray, sizes: np.ndarray, dots: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Offsets (k, 2) of boxes of given sizes (k, 2) from their centres, in pixels: one box after the other.

    Each takes the candidate that overlaps earlier boxes least, hides few dots and stays near its centre.
    """
    candidates = np.array([(r * np.cos(a), r * np.sin(a)) for r in _RADII for a in (_ANGLES if r else (0.0,))])
    taken = np.empty((0, 4))
    offsets = np.zeros((len(centres), 2))
    # The outermost names have the most room: seating them first leaves the middle to those that need it.
    order = np.argsort(-np.linalg.norm(centres - frame.reshape(2, 2).mean(0), axis=1), kind="stable")
    for i in order:
        half = sizes[i] / 2
        low, high = centres[i] + candidates - half, centres[i] + candidates + half
        inside = ((dots > low[:, None]) & (dots < high[:, None])).all(2).sum(1)
        outside = (np.maximum(frame[:2] - low, 0) + np.maximum(high - frame[2:], 0)).sum(1)
        width = np.minimum(high[:, None], taken[:, 2:]) - np.maximum(low[:, None], taken[:, :2])
        overlap = np.maximum(width, 0).prod(2).sum(1)
        cost = overlap + 50 * outside + 25 * inside + 3 * np.linalg.norm(candidates, axis=1)
        best = int(np.argmin(cost))
        offsets[i] = candidates[best]
        taken = np.vstack([taken, np.concatenate([low[best], high[best]])])
    return offsets
