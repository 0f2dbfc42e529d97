"""Pairs of a gallery's items and how far apart they are: of one class, and of two."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.gallery.store import Sample, Store
from nearkin.search.scorers import Factorised
from nearkin.spaces import Space

MOST_IMPOSTORS = 1_000_000
"""Pairs of two classes that are compared at the most."""

_MOST_GENUINE = 200_000
_BLOCK = 2**22
"""Numbers of the vectors of the pairs that are compared together."""

_FEW_GENUINE = 2_000
"""With fewer pairs of one class in the sample, mates of some of its items are fetched."""

_MATES = (500, 8)
"""Of how many classes, and how many items of each at the most."""


@dataclass(frozen=True, eq=False)
class PairDistances:
    """Distances of pairs.

    Attributes:
        genuine: of pairs of one class, float32 (g,).
        weights: what each of these counts (g,); together a class counts as many times as it has items in the sample,
            however many more pairs a large class has.
        impostors: of pairs of two classes, float32 (i,), all alike.
        least: what no distance is below; minus infinity for minus a similarity.
    """

    genuine: np.ndarray
    weights: np.ndarray
    impostors: np.ndarray
    least: float = 0.0


Places = tuple[np.ndarray, np.ndarray]
"""Indices (p,) and (p,) of the two items of each pair."""


def compare_pairs(store: Store, space: Space, sample: Sample, sizes: np.ndarray, seed: int) -> PairDistances:
    """Distances of pairs among the items of a sample (n,), no pair twice, no item more often than another of its class.

    In a large gallery of small classes a sample holds few pairs of one class: then more items of some classes are
    fetched for these.

    Args:
        store: the gallery.
        space: how vectors are compared.
        sample: items of it, all with a label.
        sizes: how many items each class has, by code.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    impostors = _distances(space, sample.vectors, impostor_pairs(sample.codes, MOST_IMPOSTORS, rng))
    vectors, codes = sample.vectors, sample.codes
    pairs, weights = genuine_pairs(codes, _MOST_GENUINE, rng)
    if len(weights) < _FEW_GENUINE and len(codes) < sizes.sum():
        # If an item is removed meanwhile, the pairs of the sample will do.
        with suppress(DataError):
            vectors, codes = _with_mates(store, sample, sizes, rng)
        pairs, weights = genuine_pairs(codes, _MOST_GENUINE, rng)
    least = -np.inf if isinstance(space, Factorised) else 0.0
    return PairDistances(_distances(space, vectors, pairs), weights, impostors, least)


def genuine_pairs(codes: np.ndarray, most: int, rng: np.random.Generator) -> tuple[Places, np.ndarray]:
    """At most about `most` pairs of one class among items of classes (n,), and what each counts (p,).

    The items of each class stand on a ring in random order, and each is paired with the next ones.
    """
    n = len(codes)
    order = np.lexsort((rng.random(n), codes))
    _, starts, sizes = np.unique(codes[order], return_index=True, return_counts=True)
    start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    place = np.arange(n) - start
    left, right = [], []
    for step in range(1, min(int(size.max(initial=0)) // 2, max(1, most // max(1, n))) + 1):
        # Half-way round the ring two items see each other, and count once.
        chosen = np.flatnonzero((2 * step < size) | ((2 * step == size) & (place < step)))
        left.append(order[chosen])
        right.append(order[start[chosen] + (place[chosen] + step) % size[chosen]])
    pairs = _joined(left, right)
    _, group, counts = np.unique(codes[pairs[0]], return_inverse=True, return_counts=True)
    members = np.bincount(codes[order], minlength=1)[codes[pairs[0]]] if n else np.empty(0)
    return pairs, members / counts[group] if len(group) else np.empty(0)


def impostor_pairs(codes: np.ndarray, most: int, rng: np.random.Generator) -> Places:
    """At most `most` pairs of two classes among items of classes (n,): all of them if they are no more.

    All items stand on a ring in random order, and each is paired with the next ones of another class.
    """
    n = len(codes)
    order = rng.permutation(n)
    ring = codes[order]
    left, right, count = [], [], 0
    for step in range(1, n // 2 + 1):
        ends = n // 2 if 2 * step == n else n
        other = np.roll(ring, -step)
        chosen = np.flatnonzero(ring[:ends] != other[:ends])[: most - count]
        left.append(order[chosen])
        right.append(order[(chosen + step) % n])
        count += len(chosen)
        if count >= most:
            break
    return _joined(left, right)


def _joined(left: list[np.ndarray], right: list[np.ndarray]) -> Places:
    none = np.empty(0, np.int64)
    return np.concatenate([none, *left]), np.concatenate([none, *right])


def _with_mates(
    store: Store, sample: Sample, sizes: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (m, d) and classes (m,) of a few items of some of the classes in a sample."""
    most, each = _MATES
    names, classes = store.classes(), np.unique(sample.codes)
    classes = classes[sizes[classes] > 1]
    chosen = np.sort(rng.permutation(classes)[:most])
    ids: list[str] = []
    codes: list[int] = []
    for code in chosen.tolist():
        members = store.ids_where(label=names[code])
        kept = [members[place] for place in rng.permutation(len(members))[:each]]
        ids += kept
        codes += [code] * len(kept)
    return store.vectors(ids), np.array(codes, np.int32)


@torch.no_grad()
def _distances(space: Space, vectors: np.ndarray, pairs: Places) -> np.ndarray:
    """Distances float32 (p,) between vectors (n, d) of pairs, a block of pairs at a time."""
    left, right = pairs
    points = torch.from_numpy(np.ascontiguousarray(vectors))
    if isinstance(space, Factorised):
        return _by_sides(space, points, pairs)
    rows = max(1, _BLOCK // max(1, points.shape[1]))
    found = []
    for start in range(0, len(left), rows):
        a, b = (points[torch.from_numpy(side[start : start + rows]), None] for side in (left, right))
        # One pair as a batch of 1 x 1 matrices.
        found.append(space.distance(a, b).flatten().float().numpy())
    return np.concatenate([np.empty(0, np.float32), *found])


def _by_sides(space: Factorised, points: Tensor, pairs: Places) -> np.ndarray:
    """The same by a learned similarity, the first of a pair being the query: what each side adds is computed once."""
    apart = space.sides()
    queries, enrolled = apart.of_queries(points), apart.of_enrolled(points)
    rows = max(1, _BLOCK // apart.width)
    found = []
    for start in range(0, len(pairs[0]), rows):
        left, right = (torch.from_numpy(side[start : start + rows]) for side in pairs)
        found.append(-apart.scores(queries[left, None], enrolled[right, None]).flatten().numpy())
    return np.concatenate([np.empty(0, np.float32), *found])
