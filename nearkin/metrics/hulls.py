"""Convex hulls in the plane, and how much those of classes overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearkin.errors import DataError


def convex_hull(points: np.ndarray) -> np.ndarray:
    """Corners (h, 2) of the convex hull, counter-clockwise; of points on one line its two ends, of one point itself.

    Args:
        points: (k, 2) finite points.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
        raise DataError(
            f"A hull in the plane needs finite points (k, 2), but got shape {points.shape} or other values."
        )
    ordered = np.unique(points, axis=0)  # sorted by x, then y
    if len(ordered) < 3:
        return ordered
    lower, upper = _chain(ordered), _chain(ordered[::-1])
    return np.array(lower[:-1] + upper[:-1])


def polygon_area(corners: np.ndarray) -> float:
    """The area of a polygon (h, 2); 0 with fewer than three corners."""
    if len(corners) < 3:
        return 0.0
    x, y = (corners - corners[0]).T  # far from the origin the products would swallow the area
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def intersection(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Corners (h, 2) of what two convex polygons, counter-clockwise, share; none if one has no area.

    `first` is cut along every edge of `second`.
    """
    if len(first) < 3 or len(second) < 3:
        return np.empty((0, 2))
    kept = first
    for start, end in zip(second, np.roll(second, -1, axis=0), strict=True):
        if not len(kept):
            break
        kept = _cut(kept, start, end)
    return kept


def hull_overlap(groups: Sequence[np.ndarray]) -> np.ndarray:
    """How much the hulls of groups of points overlap (C, C): area of the intersection over that of the union.

    0 where a hull has no area, even with itself.

    Args:
        groups: C arrays (k, 2) of points.
    """
    hulls = [convex_hull(group) for group in groups]
    areas = [polygon_area(hull) for hull in hulls]
    overlap = np.zeros((len(hulls), len(hulls)))
    for i, first in enumerate(hulls):
        for j in range(i, len(hulls)):
            shared = areas[i] if i == j else polygon_area(intersection(first, hulls[j]))
            union = areas[i] + areas[j] - shared
            overlap[i, j] = overlap[j, i] = min(shared / union, 1.0) if union > 0 else 0.0
    return overlap


def _chain(ordered: np.ndarray) -> list[np.ndarray]:
    """The lower half of the hull of sorted points, left turns only (Andrew's monotone chain)."""
    chain: list[np.ndarray] = []
    for point in ordered:
        while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _turn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """Positive where the way from a over b to c turns left."""
    return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))


def _cut(corners: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """What of a convex polygon (h, 2) lies to the left of a line."""
    edge = end - start
    side = edge[0] * (corners[:, 1] - start[1]) - edge[1] * (corners[:, 0] - start[0])
    kept = []
    for place in range(len(corners)):
        before = place - 1
        if (side[before] < 0) != (side[place] < 0):
            share = side[before] / (side[before] - side[place])
            kept.append(corners[before] + share * (corners[place] - corners[before]))
        if side[place] >= 0:
            kept.append(corners[place])
    return np.array(kept).reshape(-1, 2)
