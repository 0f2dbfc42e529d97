"""The plane that points of any dimension are drawn in, and ten hues to tell ten groups of them apart."""

from __future__ import annotations

import numpy as np

from nearkin.report._canvas import BLACK, SERIES

# Ten classes want ten hues, as a small mark does not tell its shape; black is the edge of marks and so none of them.
HUES = (*(colour for colour in SERIES if colour != BLACK), "#8f9a1f", "#8c5a2b", "#8a939e", "#5b3fa8")


class Plane:
    """Where vectors (…, d) lie in the plane: as they are if they fit, else along the two main directions of `points`.

    Args:
        points: (n, d) with n > 0.
    """

    def __init__(self, points: np.ndarray) -> None:
        dimension = points.shape[1]
        self.centre, self.directions = np.zeros(dimension), np.eye(dimension, 2)
        if dimension > 2:
            self.centre = points.mean(axis=0, dtype=np.float64)
            _, vectors = np.linalg.eigh(np.cov(points.T, bias=True))
            self.directions = vectors[:, :-3:-1]
            # An eigenvector has no sign of its own: one rule, one picture.
            largest = np.abs(self.directions).argmax(axis=0)
            self.directions = self.directions * np.where(self.directions[largest, [0, 1]] < 0, -1.0, 1.0)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Coordinates (…, 2) of vectors (…, d)."""
        # Neither a copy less the centre nor one in double precision: the local features of a network are many.
        directions = self.directions.astype(np.float32) if vectors.dtype == np.float32 else self.directions
        return vectors @ directions - self.centre @ self.directions
