"""How good probabilities are: predictions against the truth, for one estimator or for many values of k."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.confidence.estimator import NeighbourEstimator
from nearkin.confidence.probabilities import ClassProbabilities, Prediction
from nearkin.errors import DataError, FitError
from nearkin.metrics.calibration import CalibrationResult, calibration_metrics
from nearkin.metrics.labels import label_array
from nearkin.search import as_scorer, as_vectors, exact

USUAL_KS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Numbers of neighbours that are tried unless others are named."""


def evaluate(
    predicted: Prediction | ClassProbabilities,
    labels: Any,
    *,
    bins: int = 15,
    resamples: int = 0,
    level: float = 0.95,
    seed: int = 0,
) -> CalibrationResult:
    """Accuracy, ECE and the other measures of calibration of predictions for queries whose labels are known.

    A query whose class is not in the support counts as wrong, and its true class as one without probability.

    Args:
        predicted: what an estimator gave for q queries.
        labels: their true labels (q,).
        bins: of ECE and MCE.
        resamples: how often to resample classes, then queries, for intervals; 0 gives none.
        level: share of the resampled values inside an interval.
        seed: of the resampling.
    """
    probabilities = predicted.probabilities if isinstance(predicted, Prediction) else predicted
    if not isinstance(probabilities, ClassProbabilities):
        raise DataError(f"Pass the result of predict or predict_proba, not a {type(predicted).__name__}.")
    labels = label_array(labels, len(probabilities), "query labels")
    codes = probabilities.find(labels)
    return calibration_metrics(
        probabilities.confidence,
        probabilities.best == codes,
        truth=probabilities.of_codes(codes),
        squares=probabilities.squares(),
        bins=bins,
        labels=labels,
        resamples=resamples,
        level=level,
        seed=seed,
    )


def sweep_k(
    estimators: Mapping[str, NeighbourEstimator],
    support: Any,
    labels: Any,
    queries: Any,
    query_labels: Any,
    *,
    ks: Sequence[int] = USUAL_KS,
) -> dict[str, dict[int, CalibrationResult]]:
    """Every estimator at every k: what its user would get who chose that k, temperatures fitted anew.

    Neighbours are searched for once, at the largest k. All estimators must compare in one space. A k is left out for
    an estimator that cannot be fitted with it, as when no support point has its own class among so few neighbours.

    Args:
        estimators: by name; their own k is not used.
        support: embeddings (n, d).
        labels: n labels.
        queries: embeddings (q, d).
        query_labels: q labels.
        ks: numbers of neighbours; those above n - 1 are left out.
    """
    if not isinstance(estimators, Mapping) or not estimators:
        raise DataError('Pass the estimators by name, such as {"NED": NED(), "vote": KNNVote()}.')
    for name, estimator in estimators.items():
        _check_varied(estimator, name)
    spaces = {repr(as_scorer(estimator.space)) for estimator in estimators.values()}
    if len(spaces) != 1:
        raise DataError(f"A sweep compares estimators in one space, not in {', '.join(sorted(spaces))}.")
    support = as_vectors(support, "support embeddings")
    possible = _possible(ks, len(support))
    space = next(iter(estimators.values())).space
    own = exact(support, k=possible[-1], space=space)
    found = exact(queries, support, k=possible[-1], space=space)
    results: dict[str, dict[int, CalibrationResult]] = {name: {} for name in estimators}
    for k in possible:
        for name, estimator in estimators.items():
            try:
                fitted = estimator.with_k(k).fit(support, labels, neighbours=(own[0][:, :k], own[1][:, :k]))
            except FitError:
                continue
            probabilities = fitted.predict_proba(found[0][:, :k], found[1][:, :k])
            results[name][k] = evaluate(probabilities, query_labels)
    return results


def best_k(estimator: NeighbourEstimator, support: Any, labels: Any, *, ks: Sequence[int] = USUAL_KS) -> int:
    """The k with which most support points are named right by the others; the smaller one of equals.

    Plain and weighted votes depend on k and cannot say themselves which is good; the support can, without any query.

    Args:
        estimator: its own k is not used.
        support: embeddings (n, d).
        labels: n labels.
        ks: what to try; those that the support is too small for are left out.
    """
    _check_varied(estimator, "estimator")
    support = as_vectors(support, "support embeddings")
    possible = _possible(ks, len(support))
    distances, indices = exact(support, k=possible[-1], space=estimator.space)
    scores = {}
    for k in possible:
        fitted = estimator.with_k(k).fit(support, labels, neighbours=(distances[:, :k], indices[:, :k]))
        found = fitted.predict_proba(distances[:, :k], indices[:, :k])
        scores[k] = int((found.best == fitted.support_.codes).sum())
    return max(possible, key=lambda k: (scores[k], -k))


def _check_varied(estimator: Any, name: str) -> None:
    if not isinstance(estimator, NeighbourEstimator):
        raise DataError(f"'{name}' has no k to vary: pass a neighbour estimator, such as NED() or KNNVote().")


def _possible(ks: Sequence[int], points: int) -> list[int]:
    ks = list(ks) if isinstance(ks, Iterable) and not isinstance(ks, str) else ks
    if not isinstance(ks, list) or not ks:
        raise DataError(f"ks must be a list such as [5, 10, 20], not {ks!r}.")
    if not all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) for k in ks):
        raise DataError(f"ks must be whole numbers, not {list(ks)!r}.")
    found = sorted(int(k) for k in set(ks) if 1 <= k < points)
    if not found:
        raise DataError(f"None of k = {', '.join(map(str, ks))} can be tried on {points} support points.")
    return found
