"""How much a query looks like one of a known class: four scores of its neighbours, higher is more likely known.

Each is a function of a fitted estimator and of what that estimator said of the queries, whose neighbours it holds
already: nothing is searched again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nearkin.confidence.estimator import NeighbourEstimator
from nearkin.confidence.ned import NED
from nearkin.confidence.probabilities import Prediction
from nearkin.errors import DataError
from nearkin.registry import Registry

UnknownScore = Callable[[NeighbourEstimator, Prediction], np.ndarray]
"""Finite scores (q,) of a fitted estimator's prediction for q queries."""

unknown_scores: Registry[UnknownScore] = Registry("rejection score")


@unknown_scores.register("probability")
def probability(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """The log-odds of the likeliest class, float64 (q,): ordered as its probability, which would round to 1.

    Low between classes. A query far from everything may still be nearest to one class by far, and score high. If all k
    neighbours are of one class, the weight of the last of them stands for those of other classes, which have less.
    """
    codes = estimator.support_.codes[found.indices]
    logarithms = estimator.log_weights(torch.from_numpy(found.distances), codes)
    best = torch.from_numpy(codes == found.probabilities.best[:, None])
    mine, rest = (torch.logsumexp(logarithms.masked_fill(part, -math.inf), dim=1) for part in (~best, best))
    return (mine - torch.where(best.all(dim=1), logarithms[:, -1], rest)).numpy()


@unknown_scores.register("distance")
def distance(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """Minus the distance to the nearest neighbour, float64 (q,).

    Low far from everything; the classes play no part.
    """
    return -found.distances[:, 0].astype(np.float64)


@unknown_scores.register("ratio")
def ratio(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """Minus the distance to the nearest neighbour over that to the nearest one of another class, float64 (q,).

    From -1 (as near to another class) to 0 (on a support point, no other class there). It does not depend on the scale
    of distances. If all k neighbours are of one class, the distance to the last of them stands for that to the other
    class, which is at least as far: the score is then a lower bound, and with k = 1 it is always -1 but at distance 0.

    Raises:
        DataError: if a distance is negative, as minus a similarity may be.
    """
    length = found.distances.astype(np.float64)
    if length.size and length[:, 0].min() < 0:
        raise DataError(
            "The ratio of distances means nothing where they are negative, as minus a similarity is: choose the "
            "score 'probability', 'distance' or 'density', or another space."
        )
    codes = estimator.support_.codes[found.indices]
    foreign = codes != codes[:, :1]
    rival = foreign.any(axis=1)
    place = np.where(rival, foreign.argmax(axis=1), length.shape[1] - 1)
    first, second = length[:, 0], length[np.arange(len(length)), place]
    apart = second > 0
    return np.where(apart, -first / np.where(apart, second, 1.0), np.where(rival, -1.0, 0.0))


@unknown_scores.register("density")
def density(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """The logarithm of the mean of the neighbours' kernels, `log (1/k sum_i exp(-d_i^2/T))`, float64 (q,).

    Low far from everything, high where several points are near. A mean, so that it does not grow with the number of
    points. Always finite, since it is never left in the exponential. A prediction by all support points keeps the 200
    nearest, and these are averaged.

    Raises:
        DataError: if the estimator is not NED: no other has kernels.
    """
    if not isinstance(estimator, NED):
        raise DataError(
            f"The density is a sum of kernels, which {type(estimator).__name__} does not have: use NED, or the score "
            "'probability', 'distance' or 'ratio'."
        )
    length = torch.from_numpy(found.distances.astype(np.float64))
    exponents = estimator.exponents(length, estimator.support_.codes[found.indices])
    largest = np.finfo(np.float64).max
    sums = torch.logsumexp(exponents, dim=1) - math.log(exponents.shape[1])
    return np.clip(sums.numpy(), -largest, largest)


def as_unknown_score(given: Any) -> UnknownScore:
    """The score of a name, or a function of one's own as it is.

    Raises:
        UnknownNameError: if no score has that name.
        DataError: if it is neither a name nor a function.
    """
    if isinstance(given, str):
        return unknown_scores.get(given)
    if not callable(given) or isinstance(given, type):
        raise DataError(
            f"The score must be one of {', '.join(unknown_scores.names())}, or a function of an estimator and its "
            f"prediction, not {given!r}."
        )

    def checked(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
        scores = np.asarray(given(estimator, found))
        if scores.shape != (len(found),) or scores.dtype.kind not in "fiub" or not np.isfinite(scores).all():
            raise DataError(
                f"The rejection score must give one finite number for each of the {len(found):,} queries, and it gave "
                f"{scores.dtype} of shape {scores.shape}, or NaN or infinity among them."
            )
        return scores.astype(np.float64)

    return checked
