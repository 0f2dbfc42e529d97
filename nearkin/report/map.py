"""The map of an embedding: projection to the plane by PCA or t-SNE, and its points coloured and named by class."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.report.canvas import BLACK, FAINT, INK, MARKERS, MUTED, SERIES, WIDTH, drawing, to_png
from nearkin.report.values import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise DataError(f"A map needs finite embeddings of shape (n, d), but got {_what(vectors)}.")
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
    machine = TSNE(
        perplexity=min(30.0, (len(vectors) - 1) / 3),
        init=start,
        learning_rate="auto",
        random_state=seed,
    )
    # Threads add their gradients up in no fixed order, and t-SNE blows any difference up: one thread, one map.
    with threadpool_limits(limits=1, user_api="openmp"):
        return np.asarray(machine.fit_transform(vectors.astype(np.float32)), dtype=np.float64)


def _what(vectors: np.ndarray) -> str:
    return f"shape {vectors.shape}" if vectors.ndim != 2 else "values that are not finite"


_LABEL_LETTERS = 24
_RADII = (
    0.0,
    18.0,
    34.0,
    54.0,
    80.0,
    112.0,
    150.0,
    200.0,
    260.0,
    330.0,
)  # how far a name may move from its class, in pixels
_ANGLES = np.linspace(0, 2 * np.pi, 16, endpoint=False) + np.pi / 2


def draw_map(
    points: np.ndarray,
    labels: np.ndarray,
    *,
    title: str = "",
    max_classes: int = 20,
    crosses: np.ndarray | None = None,
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
    with drawing(WIDTH, 640) as figure:
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
        return to_png(figure)


def _write_names(
    figure: Figure, axes: Axes, points: np.ndarray, centres: np.ndarray, names: list[str], colours: list[str]
) -> None:
    """Write each class's name near its centre (k, 2), where it hides least."""
    texts = [
        axes.annotate(
            shorten(name, _LABEL_LETTERS),
            tuple(centre),
            xytext=(0, 0),
            textcoords="offset pixels",
            ha="center",
            va="center",
            fontsize=8,
            color=INK,
            zorder=6,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colour, "alpha": 0.88},
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
        )
        for name, centre, colour in zip(names, centres, colours, strict=True)
    ]
    figure.draw_without_rendering()  # the layout must be settled before pixels mean anything
    figure.set_layout_engine("none")
    frame = np.array(axes.get_window_extent().extents)
    at = axes.transData.transform(centres).reshape(-1, 2)
    dots = axes.transData.transform(points)
    sizes = []
    for text in texts:
        box = text.get_bbox_patch()
        extent = box.get_window_extent() if box is not None else text.get_window_extent()
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
