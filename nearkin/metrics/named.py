"""Metrics by name, whichever kind they are of: how near the classes lie, or how well they come out as clusters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nearkin.errors import DataError, UnknownNameError, suggestion
from nearkin.metrics.clusters import clustering_metrics
from nearkin.metrics.retrieval import MAJORITY, PLURALITY, choose_metrics, retrieval_metrics
from nearkin.spaces import Sphere

_SPHERE = Sphere()
_CLUSTERING = ("NMI", "AMI", "F1")
_RETRIEVAL = (
    "MAP@R",
    "R-precision",
    "P@1",
    "MAP@10",
    "MRR",
    MAJORITY,
    PLURALITY,
    *(f"Recall@{k}" for k in (1, 2, 4, 8)),
)
"""What to suggest; P, MAP and Recall are there for every k."""
_AT_ANY = {"p": "P", "recall": "Recall"}
"""Families that mean nothing without a k, unlike MAP, of which MAP@R is the likeliest."""


def check_metric_name(name: str, where: str = "") -> None:
    """Refuse a name that no metric has.

    Args:
        name: such as "NMI" or "Recall@4".
        where: what the message adds about the place of the name, such as " in my.yaml".
    """
    if name in _CLUSTERING:
        return
    try:
        choose_metrics([name], (), (), knn=1)
    except DataError as error:
        raise UnknownNameError(f"There is no metric '{name}'{where}.{_hint(name)}") from error


def _hint(name: str) -> str:
    """What may have been meant."""
    family, _, k = name.partition("@")
    if family.lower() in _AT_ANY:
        right = _AT_ANY[family.lower()]
        if re.fullmatch("[1-9][0-9]*", k):
            return f" Did you mean '{right}@{k}'?"
        return f" Did you mean {right}@1, or any k from 1 on?"
    known = (*_CLUSTERING, *_RETRIEVAL)
    return suggestion(next((other for other in known if other.lower() == name.lower()), name), known)


def named_metrics(
    embeddings: Any, labels: Any, names: Sequence[str], *, space: Any = _SPHERE, knn: int = 5, seed: int = 0
) -> dict[str, float]:
    """Metrics of embeddings among themselves, in the order in which they are named, each once.

    What is not named is neither searched for nor clustered. Clusters are those of `clustering_metrics`, which compares
    by Euclidean distance whatever the space is.

    Args:
        embeddings: points of the space (n, d), array or tensor.
        labels: n labels of any hashable kind.
        names: of `retrieval_metrics` ("MAP@R", "Recall@4", "kNN-Acc") or `clustering_metrics` ("NMI", "AMI", "F1").
        space: a space, its name, or any scorer, for the metrics of retrieval.
        knn: how many neighbours vote in kNN-Acc.
        seed: of k-means.
    """
    for name in names:
        check_metric_name(name)
    searched = [name for name in names if name not in _CLUSTERING]
    found: dict[str, float] = {}
    if searched:
        found |= retrieval_metrics(embeddings, labels, metrics=searched, knn=knn, space=space, per_query=False).values
    if len(searched) < len(names):
        found |= clustering_metrics(embeddings, labels, seed=seed)
    return {name: found[name] for name in names}
