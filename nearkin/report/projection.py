"""From many dimensions to two, for the map of an embedding."""

from __future__ import annotations

from typing import Literal

import numpy as np

from nearkin.errors import DataError, suggestion

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
        raise DataError(f"There is no projection '{method}'.{suggestion(method, _METHODS)}")
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
