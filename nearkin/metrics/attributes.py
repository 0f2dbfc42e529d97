"""Zero-shot transfer of attributes: do they say of classes never seen where their embeddings lie?

With Z (M, h) the attribute vectors and Y (d, h) the mean embeddings of one half of the classes, the linear map
`A = Y (Z^T Z + ridge I)^-1 Z^T` predicts the mean embedding `A z` of a class of the other half from its attributes z.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError
from nearkin.metrics.intervals import Interval, percentile_interval
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors

_L2, _COSINE, _CHANCE = (f"attribute transfer, {name}" for name in ("l2", "cosine", "chance"))
_FEWEST = 4
_LEVEL = 0.95
_BLOCK_ENTRIES = 2**22  # float64 numbers that the splits of a block need: 32 MB


@dataclass(frozen=True, eq=False)
class AttributeTransfer:
    """How often the attributes of unseen classes lead to the right mean embedding.

    Attributes:
        values: "attribute transfer, l2" and "attribute transfer, cosine" (higher is better), the share of classes whose
            prediction is nearest to their own mean, averaged over splits; "attribute transfer, chance", what attributes
            that say nothing reach.
        intervals: (low, high) that hold the middle 95 % of the splits' accuracies. They say how much depends on which
            classes are seen. They do not shrink with more splits, and are no confidence intervals of the mean.
        classes: how many there are.
        splits: how many random halves were tried, each in both directions.
    """

    values: dict[str, float]
    intervals: dict[str, Interval]
    classes: int
    splits: int

    primary = _L2
    higher_is_better = True

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "values": dict(self.values),
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "classes": self.classes,
            "splits": self.splits,
        }


@torch.no_grad()
def attribute_transfer(
    attributes: Any, embeddings: Any, labels: Any, *, splits: int = 1000, ridge: float = 0.05, seed: int = 0
) -> AttributeTransfer:
    """Fit attributes to mean embeddings on half of the classes, name the other half by it; both ways, many splits.

    A class is represented by the mean of its items' attributes and the mean of its items' embeddings. Each split puts
    the classes into two halves at random, the first one class smaller if their number is odd. The map fitted on a half
    predicts the means of the other, and a prediction is right if of all true means of that other half its own is the
    nearest. A split's accuracy is the share of all classes that were predicted rightly, so chance is 2 / classes, the
    inverse of a half.

    Reference: Gürbüz 2022, section 5.3.3.

    Args:
        attributes: (n, M), array or tensor: how much of each of M things an item has, as poolings with attributes give
            it. Rows that sum to 1 suit the default ridge.
        embeddings: (n, d), array or tensor, in the space in which they are compared.
        labels: n labels of any hashable kind, of at least four classes.
        splits: how many random halves to try.
        ridge: what is added to the diagonal; above 0.
        seed: the same seed gives the same splits.

    Raises:
        DataError: if there are fewer than four classes, the numbers of rows differ, or a value is not finite.
    """
    given, vectors = as_vectors(attributes, "attributes"), as_vectors(embeddings)
    if len(given) != len(vectors):
        raise DataError(f"There are {len(given)} rows of attributes for {len(vectors)} embeddings: pass one for each.")
    (codes,) = label_codes(label_array(labels, len(vectors)))
    classes = len(np.unique(codes))
    _check(classes, splits, ridge)
    z, y = (_coordinates(_class_means(rows, codes, classes)) for rows in (given, vectors))
    vanishing = torch.finfo(z.dtype).eps * float(z.square().sum())
    if ridge <= vanishing:
        raise DataError(f"The ridge {ridge:g} is negligible for these attributes: raise it above {vanishing:.1g}.")
    blocks = [_accuracies(z, y, order, float(ridge)) for order in _orders(z, y, int(splits), seed)]
    found = np.concatenate(blocks, axis=1)
    values, intervals = {}, {}
    for name, accuracies in zip((_L2, _COSINE), found, strict=True):
        values[name], intervals[name] = float(accuracies.mean()), percentile_interval(accuracies, _LEVEL)
    return AttributeTransfer(values | {_CHANCE: 2 / classes}, intervals, classes, int(splits))


def _check(classes: int, splits: int, ridge: float) -> None:
    if classes < _FEWEST:
        raise DataError(
            f"Attribute transfer needs at least {_FEWEST} classes, two in each half, and there are {classes}: "
            "add more classes."
        )
    check_whole(splits, "splits", 1)
    if isinstance(ridge, bool) or not isinstance(ridge, Real) or not 0 < ridge < float("inf"):
        raise DataError(f"The ridge must be a finite number above 0, not {ridge!r}.")


def _class_means(rows: Tensor, codes: np.ndarray, classes: int) -> Tensor:
    """The mean (c, k) in float64 of the rows (n, k) of each class."""
    sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64)
    sums.index_add_(0, torch.from_numpy(codes), rows.detach().cpu().double())
    return sums / torch.from_numpy(np.bincount(codes, minlength=classes)).unsqueeze(1)


def _coordinates(means: Tensor) -> Tensor:
    """Vectors (c, k) in a basis of the space they span, (c, min(c, k)): all inner products stay, dimensions may go."""
    return torch.linalg.qr(means.T, mode="r").R.T


def _orders(z: Tensor, y: Tensor, splits: int, seed: int) -> Iterator[Tensor]:
    """Random orders of the classes, (b, c) in blocks that memory holds; the first half of an order is one half."""
    classes, m = z.shape
    size = max(1, _BLOCK_ENTRIES // (m * m + classes * (m + y.shape[1] + classes)))
    rng = np.random.default_rng(seed)
    for start in range(0, splits, size):
        rows = min(size, splits - start)
        yield torch.from_numpy(rng.permuted(np.tile(np.arange(classes), (rows, 1)), axis=1))


def _accuracies(z: Tensor, y: Tensor, orders: Tensor, ridge: float) -> np.ndarray:
    """The accuracy by l2 and by cosine, (2, b), of the splits that orders (b, c) of the classes make."""
    half = orders.shape[1] // 2
    first, second = orders[:, :half], orders[:, half:]
    right = torch.zeros(2, len(orders), dtype=torch.float64)
    for seen, unseen in ((first, second), (second, first)):
        target = y[unseen]
        products = _predicted(z[seen], y[seen], z[unseen], ridge) @ target.mT  # (b, prediction, true mean)
        squares = target.square().sum(dim=2).unsqueeze(1)
        own = torch.arange(unseen.shape[1])
        # What is left of |p - y|^2 and of cos(p, y) when the prediction's own length, equal for all y, is taken out.
        right[0] += ((squares - 2 * products).argmin(dim=2) == own).sum(dim=1)
        lengths = squares.sqrt().clamp_min(torch.finfo(torch.float64).tiny)
        right[1] += ((products / lengths).argmax(dim=2) == own).sum(dim=1)
    return (right / orders.shape[1]).numpy()


def _predicted(z: Tensor, y: Tensor, unseen: Tensor, ridge: float) -> Tensor:
    """Predictions (b, u, d) from attributes (b, u, M) by the map fitted to attributes (b, s, M) and means (b, s, d)."""
    # The same map as in the print, with the smaller system where there are more classes than attributes.
    system = z.mT @ z + ridge * torch.eye(z.shape[2], dtype=z.dtype)
    return unseen @ torch.linalg.solve(system, z.mT @ y)
