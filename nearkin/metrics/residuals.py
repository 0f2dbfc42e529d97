"""Residuals: an embedding minus the mean of its class. What varies inside classes, and does it vary alike in all?

With r_i = f_i - mu_k(i), the principal directions of the residuals of some classes are asked how much of the other
classes' residuals they explain. Where poses, lighting or makers change all classes alike, that is nearly as much as
these classes' own directions do, and an item's nearest residual in another class is an item in the same pose.
Derivation: docs/methods/residuals.md. Reference: Kim 2023, section 6.2.2, after Lin et al. 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.checks import check_whole
from nearkin.errors import DataError
from nearkin.metrics.clusters import agreement, cluster
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors
from nearkin.spaces.principal import triangular_factor

_ROWS = 1024
"""Residuals whose cosines with all others are held at once."""
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class ResidualResult:
    """What varies inside classes, and whether it does so alike in all of them.

    Attributes:
        values: "variance within classes", the share of all variance; "shared directions", how far leading directions
            of other classes explain a class's residuals, 0 for chance and 1 for its own directions; "nearest residual",
            the mean cosine to the most similar residual of another class, and "nearest residual, by chance", with the
            directions of each class shuffled; "NMI of residual clusters and classes", near 0 where clusters hold items
            of all classes; with attributes, "same attribute" of the nearest residuals and "same attribute, by chance",
            and "NMI of residual clusters and attributes".
        sizes: numbers of directions (s,).
        explained: name to the share (s,) of the residuals' variance that so many directions explain: "of other
            classes", "their own", "at random".
        rows: the items (m,) whose neighbours were looked for.
        nearest: of each of these the nearest in another class, rows (m, j), nearest first.
        cosines: with these (m, j).
        clusters: of all items (n,).
        distances: of all items to the centre of their cluster (n,).
    """

    values: dict[str, float]
    sizes: np.ndarray
    explained: dict[str, np.ndarray]
    rows: np.ndarray = field(repr=False)
    nearest: np.ndarray = field(repr=False)
    cosines: np.ndarray = field(repr=False)
    clusters: np.ndarray = field(repr=False)
    distances: np.ndarray = field(repr=False)


def class_residuals(embeddings: Any, labels: Any) -> np.ndarray:
    """Embeddings (n, d) minus the arithmetic mean of their class, float64.

    Args:
        embeddings: points (n, d), array or tensor.
        labels: n labels of any hashable kind.
    """
    points = as_vectors(embeddings).double().cpu().numpy()
    (codes,) = label_codes(label_array(labels, len(points)))
    return points - _means(points, codes)[codes]


def residual_metrics(
    embeddings: Any,
    labels: Any,
    *,
    attributes: Any | None = None,
    directions: int = 10,
    clusters: int = 10,
    neighbours: int = 5,
    most: int = 2000,
    seed: int = 0,
) -> ResidualResult:
    """Analyse the residuals of embeddings: directions that classes share, nearest residuals, clusters.

    Classes of one item have no residual and are left out. Directions are found on half of the classes and measured on
    the other half, both ways.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> classes, poses = np.divmod(np.arange(200), 5)
        >>> points = rng.normal(size=(40, 16))[classes] + rng.normal(size=(5, 16))[poses]
        >>> found = residual_metrics(points, classes, attributes=poses).values
        >>> found["shared directions"] > 0.99, found["same attribute"]
        (True, 1.0)

    Args:
        embeddings: points of the space (n, d), array or tensor.
        labels: n labels of any hashable kind.
        attributes: n values of what may vary inside classes, such as poses or makers, if they are known.
        directions: how many leading directions "shared directions" is about; fewer where there are fewer.
        clusters: of residuals, by k-means.
        neighbours: nearest residuals kept of each item.
        most: items whose nearest residuals are looked for, drawn from all; memory and time grow with its square.
        seed: of halves, draws, shuffles and clusters.
    """
    for name, value in (("directions", directions), ("clusters", clusters), ("neighbours", neighbours)):
        check_whole(value, name, 1)
    check_whole(most, "most", 2)
    points = as_vectors(embeddings).double().cpu().numpy()
    (codes,) = label_codes(label_array(labels, len(points)))
    kept = np.flatnonzero(np.bincount(codes)[codes] > 1)
    if len(np.unique(codes[kept])) < 4:
        raise DataError("Residuals need four classes with two items each: two to learn directions of, two to measure.")
    codes = np.unique(codes[kept], return_inverse=True)[1]
    residuals = points[kept] - _means(points[kept], codes)[codes]
    squares = float(np.square(residuals).sum())
    if squares <= _ROUNDING * float(np.square(points[kept]).sum()):
        raise DataError("Every item lies at the mean of its class, so there are no residuals to look at.")
    spread = float(np.square(points[kept] - points[kept].mean(axis=0)).sum())
    values = {"variance within classes": squares / spread}
    sizes, explained = _explained(residuals, codes, seed)
    wanted = int(np.searchsorted(sizes, min(directions, sizes[-1])))
    theirs, own, chance = (float(share[wanted]) for share in explained.values())
    values["shared directions"] = (theirs - chance) / (own - chance) if own > chance else 1.0
    rows = np.sort(np.random.default_rng(seed).permutation(len(kept))[:most])
    nearest, cosines = _nearest(residuals[rows], codes[rows], neighbours)
    shuffled = _shuffled(residuals[rows], codes[rows], seed)
    values["nearest residual"] = float(cosines[:, 0].mean())
    values["nearest residual, by chance"] = float(_nearest(shuffled, codes[rows], 1)[1].mean())
    found = cluster(residuals, min(clusters, len(kept)), seed)
    values["NMI of residual clusters and classes"] = agreement(codes, found)["NMI"]
    if attributes is not None:
        (kinds,) = label_codes(label_array(attributes, len(points), "attributes"))
        kinds = kinds[kept]
        values["same attribute"] = float((kinds[rows] == kinds[rows][nearest[:, 0]]).mean())
        values["same attribute, by chance"] = _agreement_by_chance(kinds[rows], codes[rows])
        values["NMI of residual clusters and attributes"] = agreement(kinds, found)["NMI"]
    everyone = np.full(len(points), -1)
    everyone[kept] = found
    away = np.full(len(points), np.inf)
    away[kept] = np.linalg.norm(residuals - _means(residuals, found)[found], axis=1)
    return ResidualResult(values, sizes, explained, kept[rows], kept[rows][nearest], cosines, everyone, away)


def _means(points: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The mean (C, d) of points (n, d) of each class, by their codes (n,); zero of a code without any."""
    order, sizes = np.argsort(codes, kind="stable"), np.bincount(codes)
    present = np.flatnonzero(sizes)
    means = np.zeros((len(sizes), points.shape[1]))
    starts = (np.cumsum(sizes) - sizes)[present]
    means[present] = np.add.reduceat(points[order], starts, axis=0) / sizes[present][:, None]
    return means


def _explained(residuals: np.ndarray, codes: np.ndarray, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Numbers of directions (s,), and the share of variance that so many explain, the mean of both ways to halve."""
    classes, dimension = int(codes.max()) + 1, residuals.shape[1]
    first = np.random.default_rng(seed).permutation(classes) < (classes + 1) // 2
    halves = [residuals[first[codes]], residuals[~first[codes]]]
    bases = [np.linalg.svd(triangular_factor([half]), full_matrices=True)[2] for half in halves]
    most = min(dimension, *(len(half) for half in halves))
    sizes = np.array([size for size in range(1, most + 1) if size <= 10 or size in _sizes(most)])

    def shares(half: np.ndarray, basis: np.ndarray) -> np.ndarray:
        along = np.square(half @ basis.T).sum(axis=0)
        return (np.cumsum(along) / along.sum())[sizes - 1]

    across = [shares(halves[0], bases[1]), shares(halves[1], bases[0])]
    own = [shares(half, basis) for half, basis in zip(halves, bases, strict=True)]
    return sizes, {
        "of other classes": np.mean(across, axis=0),
        "their own": np.mean(own, axis=0),
        "at random": sizes / dimension,
    }


def _sizes(most: int) -> set[int]:
    """Some twenty sizes up to the most, evenly spread on a log scale."""
    return set(np.unique(np.geomspace(1, most, 20).round().astype(int)).tolist()) | {most}


def _nearest(residuals: np.ndarray, codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places (m, j) of the residuals (m, d) of other classes with the highest cosines, and these; j at most count."""
    lengths = np.linalg.norm(residuals, axis=1, keepdims=True)
    unit = residuals / np.where(lengths > 0, lengths, 1.0)
    count = min(count, len(codes) - int(np.bincount(codes).max()))
    if count < 1:
        raise DataError("The items whose nearest residuals are looked for are of one class: raise `most`.")
    places, values = [], []
    for start in range(0, len(unit), _ROWS):
        block = slice(start, start + _ROWS)
        cosines = np.where(codes[block, None] == codes, -np.inf, unit[block] @ unit.T)
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        places.append(order)
        values.append(np.take_along_axis(cosines, order, axis=1))
    return np.concatenate(places), np.concatenate(values)


def _shuffled(residuals: np.ndarray, codes: np.ndarray, seed: int) -> np.ndarray:
    """Residuals (m, d) whose principal directions are changed for others at random, and mirrored, class by class.

    A class keeps its shape; only where it points is no longer what it shares with others.
    """
    rng = np.random.default_rng([seed, 1])
    dimension = residuals.shape[1]
    along = residuals @ np.linalg.svd(triangular_factor([residuals]), full_matrices=True)[2].T
    found = np.empty_like(along)
    for code in np.unique(codes):
        mine = codes == code
        found[mine] = along[mine][:, rng.permutation(dimension)] * rng.choice([-1.0, 1.0], dimension)
    return found


def _agreement_by_chance(kinds: np.ndarray, codes: np.ndarray) -> float:
    """How likely a random item of another class has an item's attribute, averaged over items (m,)."""
    table = np.zeros((int(codes.max()) + 1, int(kinds.max()) + 1))
    np.add.at(table, (codes, kinds), 1)
    total, mine = table.sum(axis=0)[kinds], table[codes, kinds]
    return float(((total - mine) / (len(codes) - table.sum(axis=1)[codes])).mean())
