"""Retrieval metrics of single queries, from which of their neighbours are hits.

With R the number of items of the query's class that it can find, and hit_i whether its i-th neighbour is one of them:
`P@k = 1/k sum_{i<=k} hit_i`, `R-precision = P@R`, `MAP@R = 1/R sum_{i<=R} P@i hit_i`,
`MAP@k = 1/min(k, R) sum_{i<=k} P@i hit_i`, `MRR = 1 / rank of the first hit`, `Recall@k = any hit_{i<=k}`,
`kNN-Acc = more than half of hit_{i<=k}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.checks import check_whole
from nearkin.errors import DataError, suggestion

MRR = "MRR"


Compute = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class HitMetric:
    """A metric of a query.

    Args:
        name: what it is called.
        depth: how many neighbours it looks at, given R (b,); whole numbers (b,).
        compute: values (b,) from hits (b, c), R (b,) and how many items (b,) there are to find, c being at least the
            depth or all there is.
    """

    name: str
    depth: Callable[[np.ndarray], np.ndarray]
    compute: Compute


def choose_metrics(
    names: Sequence[str] | None, recall_at: Sequence[int], map_at: Sequence[int], knn: int
) -> list[HitMetric]:
    """The metrics called `names`; None means all, Recall and MAP at the given k.

    Raises:
        DataError: for an unknown name or a k below 1.
    """
    recall_at, map_at = _several(recall_at), _several(map_at)
    for k in (knn, *recall_at, *map_at):
        check_whole(k, "k", 1)
    if names is None:
        names = ["P@1", "R-precision", "MAP@R", MRR]
        names += [*(f"MAP@{k}" for k in map_at), *(f"Recall@{k}" for k in recall_at), "kNN-Acc"]
    names = _several(names)
    if len(names) == 0:
        raise DataError("No metric requested: name at least one, such as 'MAP@R', or omit `metrics` for all.")
    return [_metric(name, knn) for name in dict.fromkeys(names)]


def _several(given: Any) -> list[Any]:
    """A single one is a list of one."""
    return [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)


def _metric(name: str, knn: int) -> HitMetric:
    fixed = {
        "R-precision": HitMetric(name, lambda total: total, _r_precision),
        "MAP@R": HitMetric(name, lambda total: total, _map_at_r),
        MRR: HitMetric(name, np.ones_like, _reciprocal_rank),
        "kNN-Acc": HitMetric(
            name, lambda total: np.full_like(total, knn), lambda hits, _, there: _majority(hits, np.minimum(there, knn))
        ),
    }
    if name in fixed:
        return fixed[name]
    at = re.fullmatch(r"(P|MAP|Recall)@([1-9][0-9]*)", str(name))
    if at is None:
        known = ["P@1", *fixed, "MAP@10", "Recall@1"]
        raise DataError(f"There is no retrieval metric '{name}'.{suggestion(str(name), known)}")
    k = min(int(at[2]), np.iinfo(np.int32).max)
    compute: dict[str, Compute] = {
        "P": lambda hits, _, there: np.count_nonzero(hits[:, :k], axis=1) / np.minimum(there, k),
        "MAP": lambda hits, total, _: _average_precision(hits[:, :k], np.minimum(total, k)),
        "Recall": lambda hits, *_: np.count_nonzero(hits[:, :k], axis=1) > 0,
    }
    return HitMetric(name, lambda total: np.full_like(total, k), compute[at[1]])


def _r_precision(hits: np.ndarray, total: np.ndarray, _: np.ndarray) -> np.ndarray:
    return np.count_nonzero(_within(hits, total), axis=1) / total


def _map_at_r(hits: np.ndarray, total: np.ndarray, _: np.ndarray) -> np.ndarray:
    return _average_precision(_within(hits, total), total)


def _within(hits: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The hits (b, w) among the first R neighbours, w the largest R or all there is."""
    width = min(hits.shape[1], int(total.max(initial=0)))
    return hits[:, :width] & (np.arange(width) < total[:, None])


def _average_precision(hits: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    found = np.cumsum(hits, axis=1, dtype=np.int32)
    found *= hits
    return np.multiply(found, 1 / np.arange(1, hits.shape[1] + 1)).sum(axis=1) / divisor


def _reciprocal_rank(hits: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """Zero where none of the neighbours is a hit."""
    return np.where(hits.any(axis=1), 1 / (hits.argmax(axis=1) + 1), 0.0)


def _majority(hits: np.ndarray, voters: np.ndarray) -> np.ndarray:
    votes = hits & (np.arange(hits.shape[1]) < voters[:, None])
    return np.count_nonzero(votes, axis=1) > voters // 2
