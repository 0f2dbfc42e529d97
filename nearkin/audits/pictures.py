"""The pictures of an audit: neighbours, distances, the map, and the errors of verification."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from nearkin.audits.learned import compared_by, shown
from nearkin.audits.subject import Subject
from nearkin.metrics import VerificationResult
from nearkin.report import Figure, NeighbourRow, Thumb, draw_det, draw_histograms, draw_map, draw_neighbours, project_2d
from nearkin.search import exact
from nearkin.spaces import Space

_PLACES = (0.02, 0.15, 0.3, 0.45, 0.6, 0.8, 0.95, 1.0)
"""Which queries are shown, from the easiest (0) to the hardest (1)."""

_NEIGHBOURS = 8
_PAIRS = 40_000
_TSNE_POINTS = 1500
_MOST_CROSSES = 200
_THUMBNAIL = 112
_SEED = 0


def draw_subject(subject: Subject) -> list[Figure]:
    """Every picture the subject allows."""
    figures = []
    if subject.picture is not None:
        figures.append(_neighbours(subject))
    figures.append(_distances(subject))
    figures.append(draw_embedding_map(subject))
    return figures


def _neighbours(subject: Subject) -> Figure:
    """Queries chosen from all levels of success: from all neighbours right to none."""
    size = min(_NEIGHBOURS, len(subject.embeddings) - 1)
    distances, indices = exact(subject.embeddings, k=size, space=subject.space)
    found, values = indices.numpy(), shown(subject.space, distances)
    hits = subject.labels[found] == subject.labels[:, None]
    rng = np.random.default_rng(_SEED)
    by_success = np.lexsort((rng.permutation(len(hits)), -hits.sum(1)))
    chosen = [by_success[int(place * (len(by_success) - 1))] for place in _PLACES]
    rows = [
        NeighbourRow(
            _thumb(subject, query),
            [
                (_thumb(subject, found[query, rank]), float(values[query, rank]), bool(hits[query, rank]))
                for rank in range(size)
            ],
        )
        for query in dict.fromkeys(chosen)
    ]
    return Figure(
        "Nearest neighbours",
        "Each row is a query and its nearest neighbours among all audited items, from easy queries to hard ones; "
        "ticks are of the query's class, crosses are not.",
        draw_neighbours(rows, number=compared_by(subject.space)),
        "Grid of queries with their nearest neighbours, hits and misses framed",
    )


def _thumb(subject: Subject, index: int) -> Thumb:
    assert subject.picture is not None
    image = subject.picture(int(index)).convert("RGB")
    image.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.LANCZOS)
    return Thumb(image, str(subject.labels[index]))


def _distances(subject: Subject) -> Figure:
    """Distances of sampled pairs of the same class and of different classes."""
    rng = np.random.default_rng(_SEED)
    _, codes = np.unique(subject.labels, return_inverse=True)
    first = rng.integers(len(codes), size=_PAIRS)
    order = np.argsort(codes, kind="stable")
    starts, sizes = np.searchsorted(codes[order], np.arange(codes.max() + 1)), np.bincount(codes)
    mate = order[starts[codes[first]] + rng.integers(0, sizes[codes[first]])]
    other = rng.integers(len(codes), size=_PAIRS)
    same = _pair_distances(subject, first[mate != first], mate[mate != first])
    apart = codes[first] != codes[other]
    different = _pair_distances(subject, first[apart], other[apart])
    what = {"similarity": "similarities"}.get(compared_by(subject.space), "distances")
    return Figure(
        what.capitalize(),
        f"{what.capitalize()} of {len(same):,} pairs of the same class and {len(different):,} pairs of different "
        "classes; the less the two overlap, the better a threshold works.",
        draw_histograms(same, different, xlabel=compared_by(subject.space)),
        f"Histograms of {what} between pairs of the same class and of different classes",
    )


@torch.no_grad()
def _pair_distances(subject: Subject, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    points = torch.from_numpy(np.ascontiguousarray(subject.embeddings))
    distance = subject.space.distance(points[left][:, None], points[right][:, None])
    return shown(subject.space, distance[:, 0, 0]).numpy()


def draw_embedding_map(subject: Subject) -> Figure:
    """Items in the plane, and the centroids of their classes, which are projected with them."""
    kept, centroids = _sample(len(subject.embeddings)), _centroids(subject)
    together = np.concatenate([subject.embeddings[kept], centroids])
    points, _ = project_2d(together, method="tsne", seed=_SEED, max_points=len(together))
    told = ", black crosses are the centroids of classes" if len(centroids) else ""
    return Figure(
        "Map of the embedding",
        f"t-SNE of {len(kept):,} items{told}: near in the map means near in the embedding; far apart means little.",
        draw_map(points[: len(kept)], subject.labels[kept].astype(str), title="", crosses=points[len(kept) :]),
        "Two-dimensional map of the embedding, coloured by class",
    )


def _sample(items: int) -> np.ndarray:
    """Which items the map shows, ascending."""
    if items <= _TSNE_POINTS:
        return np.arange(items)
    return np.sort(np.random.default_rng(_SEED).choice(items, _TSNE_POINTS, replace=False))


def _centroids(subject: Subject) -> np.ndarray:
    """The mean of each class (C, d); none where the space has no mean, or where they would hide the map."""
    _, codes = np.unique(subject.labels, return_inverse=True)
    if not isinstance(subject.space, Space) or codes.max() >= _MOST_CROSSES:
        return np.empty((0, subject.embeddings.shape[1]), subject.embeddings.dtype)
    points = torch.from_numpy(np.ascontiguousarray(subject.embeddings))
    means = [subject.space.mean(points[torch.from_numpy(codes == code)]) for code in range(codes.max() + 1)]
    return torch.stack(means).numpy()


def draw_errors(results: dict[str, VerificationResult], what: str, threshold: float) -> Figure:
    """Both errors of verification against each other, of the model and what it is compared with.

    Args:
        results: by name, the model's first.
        what: the model decides by, a distance or a similarity.
        threshold: at which its errors are equal.
    """
    name, first = next(iter(results.items()))
    return Figure(
        "Errors of verification",
        f"For every threshold on the {what}, how many of {first.impostors:,} impostor pairs it accepts and how many "
        f"of {first.genuine:,} genuine pairs it refuses: the nearer to the lower left corner, the better. The marks "
        f"are where both errors are equal, for {name} at the {what} {threshold:.3g}.",
        draw_det(
            {name: result.det for name, result in results.items()},
            equal_errors={name: result.values["EER"] for name, result in results.items()},
        ),
        "DET curve: false negative rate against false positive rate on normal-deviate axes",
    )
