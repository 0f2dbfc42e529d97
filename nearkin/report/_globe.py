"""A unit sphere seen from afar (orthographic), its north being +z."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearkin.errors import DataError
from nearkin.report._lines import plain_numbers

_EVERY = 30  # degrees between the lines of a graticule
_FINE = 181  # points of such a line
_BEHIND = -1e-9


class Globe:
    """What of the sphere is seen from one side, and where.

    Args:
        view: (3,) from where it is seen; only the direction counts.
    """

    def __init__(self, view: Sequence[float] | np.ndarray) -> None:
        towards = plain_numbers(view, "view of a globe")
        length = np.linalg.norm(towards)
        if towards.shape != (3,) or not 0 < length < np.inf:
            raise DataError(
                f"A globe is seen from a direction of three numbers, not all 0, but got {towards.tolist()}."
            )
        self.towards = towards / length
        above_pole = abs(self.towards[2]) > 1 - 1e-9
        right = np.cross((0.0, 1.0, 0.0) if above_pole else (0.0, 0.0, 1.0), self.towards)
        self.right = right / np.linalg.norm(right)
        self.up = np.cross(self.towards, self.right)

    def project(self, points: np.ndarray) -> np.ndarray:
        """Places (m, 2) within the unit disc of points (m, 3) of the sphere, seen or not."""
        return points @ np.stack([self.right, self.up], axis=1)

    def visible(self, points: np.ndarray) -> np.ndarray:
        """Which (m,) of points (m, 3) are on the side that is seen."""
        return points @ self.towards >= _BEHIND

    def points(self, size: int) -> np.ndarray:
        """Points (size, size, 3) of the sphere below the pixels of a square around the disc, the lowest row first.

        Beside the disc they are those of its rim, so that the rim has no gaps.
        """
        line = (np.arange(size) + 0.5) / size * 2 - 1
        x, y = np.meshgrid(line, line)
        radius = np.maximum(np.hypot(x, y), 1.0)
        x, y = x / radius, y / radius
        depth = np.sqrt(np.maximum(1 - x**2 - y**2, 0.0))
        return x[..., None] * self.right + y[..., None] * self.up + depth[..., None] * self.towards

    def graticule(self) -> list[np.ndarray]:
        """Parallels and meridians that are seen, as lines (n, 2); what is behind is NaN."""
        around, upright = np.radians(np.linspace(0, 360, 2 * _FINE - 1)), np.radians(np.linspace(-90, 90, _FINE))
        lines = [_on_sphere(around, np.full_like(around, np.radians(at))) for at in range(-90 + _EVERY, 90, _EVERY)]
        lines += [_on_sphere(np.full_like(upright, np.radians(at)), upright) for at in range(0, 360, _EVERY)]
        return [np.where(self.visible(line)[:, None], self.project(line), np.nan) for line in lines]


def _on_sphere(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Points (n, 3)."""
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)
