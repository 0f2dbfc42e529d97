"""The true order of a few candidates, as `nearkin.search.exact` gives it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from nearkin.gallery.index.packed import Vectors
from nearkin.search.blocks.order import settled_array
from nearkin.spaces import Euclidean, LipschitzBall, Space, Sphere

_ENTRIES = 2**18  # of gathered vectors, in float64: 2 MB, which a cache can hold
_CLOSE = 1e-2  # the square of a chord, below which one minus a cosine has lost too many digits
_PARALLEL = 1e-14  # a chord in float64 of what is one direction


def nearest(
    space: Space, queries: np.ndarray, vectors: Vectors, candidates: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest candidates of every query: (distances float32, slots int64), each (q, k).

    Distances are computed in float64; what differs by rounding is equal, and goes by the lower slot.

    Args:
        space: what tells distances.
        queries: float32 (q, d).
        vectors: (n, d).
        candidates: slots (q, c), -1 where there is none.
        k: how many; if there are fewer candidates the rest is infinity and -1.
    """
    distances = np.full((len(queries), k), np.inf, np.float32)
    slots = np.full((len(queries), k), -1, np.int64)
    if not candidates.size:
        return distances, slots
    none = len(vectors)
    near = np.sort(np.where(candidates < 0, none, candidates), axis=1)
    # Rows beyond the last slot may be room that nothing was written to yet: any real slot does where there is none.
    true = _distances(space, queries, vectors, np.where(near == none, 0, near))
    true[near == none] = np.inf
    place = np.argsort(true, axis=1, kind="stable")[:, :k]  # slots ascend, so equal distances go by the lower one
    near = np.take_along_axis(near, place, axis=1)
    distances[:, : near.shape[1]] = np.take_along_axis(true, place, axis=1)
    slots[:, : near.shape[1]] = np.where(near == none, -1, near)
    return distances, slots


def _distances(space: Space, queries: np.ndarray, vectors: Vectors, near: np.ndarray) -> np.ndarray:
    """Distances (q, c), float64, of queries (q, d) to the vectors numbered by `near` (q, c)."""
    distances = np.empty(near.shape)
    width = max(1, min(near.shape[1], _ENTRIES // queries.shape[1]))
    height = max(1, _ENTRIES // (width * queries.shape[1]))
    measure = _measure(space)
    for top in range(0, len(near), height):
        rows = slice(top, top + height)
        x = queries[rows].astype(np.float64)
        for left in range(0, near.shape[1], width):
            part = rows, slice(left, left + width)
            distances[part] = measure(x, vectors[near[part]].astype(np.float64))
    if isinstance(space, Sphere):
        distances[distances < _PARALLEL] = 0.0  # one direction is one point at any length
    return settled_array(distances)


def _measure(space: Space) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Distances (r, c) of points (r, d) to (r, c, d), both float64; the second may be overwritten.

    What the common spaces compute is written out in numpy: for so few points torch spends its time on starting threads.
    """
    if isinstance(space, Sphere):
        return _angles if space.metric == "angle" else _chords
    if isinstance(space, Euclidean | LipschitzBall):
        return _lengths
    return partial(_by_space, space)


def _chords(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By the cosine, which takes two passes over y; where that loses digits, by the difference."""
    lengths = np.sqrt(_dots(x, x))[:, None] * np.sqrt(_dots(y, y))
    squares = 2 - 2 * _dots(x[:, None], y) / np.where(lengths == 0, 1.0, lengths)
    near = (squares < _CLOSE) | (lengths == 0)
    if near.any():
        rows = np.flatnonzero(near.any(axis=1))
        close = _lengths(_to_length_one(x[rows]), _to_length_one(y[rows]))
        squares[rows] = np.where(near[rows], np.square(close), squares[rows])
    return np.sqrt(squares)


def _angles(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    _to_length_one(y)
    x = _to_length_one(x.copy())
    across = _lengths(-x, y.copy())
    chord = _lengths(x, y)
    return 2 * np.arctan2(chord, np.where((chord == 0) & (across == 0), 1.0, across))


def _lengths(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Lengths (r, c) of y - x; y is overwritten by the differences."""
    y -= x[:, None]
    return np.sqrt(np.einsum("rcd,rcd->rc", y, y))


def _dots(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Inner products (...) of vectors (..., d)."""
    return np.vecdot(x, y) if hasattr(np, "vecdot") else np.einsum("...d,...d->...", x, y)


def _to_length_one(x: np.ndarray) -> np.ndarray:
    """Vectors (..., d) brought to length one in place; zero stays zero."""
    # They come from float32, whose squares float64 can hold at any scale.
    length = np.sqrt(_dots(x, x))[..., None]
    x /= np.where(length == 0, 1.0, length)
    return x


@torch.no_grad()
def _by_space(space: Space, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    distances = space.distance(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y))[:, 0]
    return distances.double().numpy()
