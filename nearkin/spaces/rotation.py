"""Principal components: embeddings turned so that their first dimensions hold as much as any so many can.

`f_new = U (f - c)`, the rows of U being the unit principal directions of the points fitted: those in which points vary
most around their mean. In Euclidean space c is the mean. On the sphere c is zero: angles are seen from there, and what
is turned around it keeps them all, while taking the mean off changes them. Turning by itself changes no neighbour;
cutting short what was turned is PCA. What else was tried, and when to use it: docs/guide/short-embeddings.md.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.spaces.euclidean import Euclidean
from nearkin.spaces.principal import as_points, moved, principal_directions
from nearkin.spaces.sphere import Sphere

_SPHERE = Sphere()


class PrincipalRotation:
    """Turn embeddings onto their principal directions, those that vary most first.

    Example:
        >>> import numpy as np
        >>> from nearkin.spaces import Euclidean
        >>> points = np.random.default_rng(0).normal(size=(500, 3)) * [0.1, 10.0, 1.0]
        >>> turned = PrincipalRotation(Euclidean()).fit_transform(points)
        >>> bool(np.all(np.diff(turned.std(axis=0)) < 0))
        True

    Args:
        space: where embeddings are compared, the sphere or Euclidean space: in others, what is left of a point has no
            linear form.

    Attributes:
        centre_: what is taken off (d,): zero on the sphere, else the mean of the fitted points.
        components_: the unit principal directions (d, d), one a row.
        kept_: the share (d,) of the variance that the first 1 ... d dimensions keep.
        items_: how many points were fitted; directions beyond their number are arbitrary.
    """

    centre_: np.ndarray
    components_: np.ndarray
    kept_: np.ndarray
    items_: int

    def __init__(self, space: Any = _SPHERE) -> None:
        self.space = space

    def __repr__(self) -> str:
        return f"PrincipalRotation(space={self.space!r})"

    def fit(self, embeddings: Any) -> Self:
        """Find the directions of embeddings (n, d), array or tensor, at least two."""
        check_turnable(self.space)
        points = as_points(embeddings)
        on_sphere = isinstance(self.space, Sphere)
        if on_sphere:
            points = self.space.project(torch.from_numpy(np.asarray(points, dtype=np.float64))).numpy()
        found = principal_directions(points)
        self.centre_ = np.zeros_like(found.mean) if on_sphere else found.mean
        self.components_, self.items_ = found.components, len(points)
        squares = np.square(found.singular_values)
        self.kept_ = np.cumsum(squares) / squares.sum()
        return self

    def transform(self, embeddings: Any) -> np.ndarray:
        """Embeddings (n, d), turned, in the precision they were given in; the first k dimensions are PCA to k."""
        if not hasattr(self, "components_"):
            raise DataError("This rotation knows no directions yet: call fit(embeddings) first.")
        return moved(embeddings, self.centre_, self.components_.T)

    def fit_transform(self, embeddings: Any) -> np.ndarray:
        """Fit embeddings (n, d), and give them turned."""
        return self.fit(embeddings).transform(embeddings)


def check_turnable(space: Any) -> None:
    """Refuse a space other than the sphere and Euclidean space."""
    if not isinstance(space, Sphere | Euclidean):
        name = getattr(space, "name", type(space).__name__)
        raise DataError(
            f"Embeddings are measured and turned for being cut short on the sphere or in Euclidean space, and these "
            f"are compared by '{name}': compare them in one of both, or shorten the model to its first dimensions "
            "(method prefix) and audit that."
        )
