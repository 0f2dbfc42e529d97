"""What smaller forms cost: recall by naive loops, ties that are no loss, metrics of the same queries."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.gallery.dtypes import rounded
from nearkin.gallery.precision import precision_loss
from nearkin.metrics import retrieval_metrics


def clustered(n: int = 240, dimension: int = 6, noise: float = 0.4, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 12
    centres = rng.normal(size=(12, dimension))
    return (centres[codes] + noise * rng.normal(size=(n, dimension))).astype(np.float32), [f"c{code}" for code in codes]


def naive_recall(vectors: np.ndarray, stored: np.ndarray, k: int) -> float:
    """The share of the k nearest by float64 that stay the k nearest when what is stored is rounded."""
    shares = []
    for row, query in enumerate(vectors.astype(np.float64)):
        true = np.linalg.norm(vectors - query, axis=1)
        seen = np.linalg.norm(stored - query, axis=1)
        true[row] = seen[row] = np.inf
        shares.append(len(set(np.argsort(true)[:k]) & set(np.argsort(seen)[:k])) / k)
    return float(np.mean(shares))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_recall_and_metrics_are_those_of_naive_loops(dtype):
    vectors, labels = clustered()
    usual, small = precision_loss(vectors, labels, space="euclidean", dtypes=[dtype])
    assert (usual.dtype, usual.recall, usual.bytes) == ("float32", {1: 1.0, 10: 1.0}, 24)
    assert all(change.difference == change.low == change.high == 0 for change in usual.metrics.values())
    stored = rounded(vectors, dtype)
    for k in (1, 10):
        assert small.recall[k] == pytest.approx(naive_recall(vectors, stored, k), abs=1e-9)
    exclude = np.arange(len(vectors))
    options = {"space": "euclidean", "metrics": ["MAP@R", "P@1"], "exclude": exclude}
    expected = retrieval_metrics(vectors, labels, gallery=stored, gallery_labels=labels, **options)
    before = retrieval_metrics(vectors, labels, gallery=vectors, gallery_labels=labels, **options)
    for name, change in small.metrics.items():
        assert change.value == pytest.approx(expected.values[name], abs=1e-6)
        assert change.difference == pytest.approx(expected.values[name] - before.values[name], abs=1e-6)
        assert change.low <= change.difference + 1e-9
        assert change.difference <= change.high + 1e-9
    assert (small.queries, small.items) == (240, 240)


def test_coarse_vectors_lose_neighbours_and_it_is_seen():
    vectors, labels = clustered(400, dimension=64, noise=0.01)
    vectors[:, 0] = 50  # a large number leaves the others few steps
    [_, half, small] = precision_loss(vectors, labels, space="euclidean")
    assert small.recall[10] < half.recall[10] <= 1
    assert small.recall[10] < 0.9


def test_copies_are_as_good_as_each_other():
    vectors, _ = clustered(40)
    vectors = np.repeat(vectors, 20, axis=0)
    for one in precision_loss(vectors, dtypes=["float16"]):
        assert one.recall == {1: 1.0, 10: 1.0}
        assert one.metrics == {}


def test_items_without_labels_are_found_and_not_measured():
    vectors, labels = clustered()
    named = [label if row % 3 else None for row, label in enumerate(labels)]
    [usual, *_] = precision_loss(vectors, named, queries=100, seed=3)
    kept = [row for row, label in enumerate(named) if label is not None]
    assert set(usual.metrics) == {"MAP@R", "P@1"}
    assert usual.items == 240 > len(kept)
    assert precision_loss(vectors, list(map(str, range(240))))[0].metrics == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"vectors": np.ones((10, 3))}, "10"),
        ({"dtypes": ["int4"]}, "int4"),
        ({"queries": 0}, "queries"),
        ({"labels": ["a"]}, r"\b1\b.*label"),
        ({"space": "poincare-ball", "dtypes": ["int8"]}, "poincare"),
        ({"vectors": np.full((20, 3), np.nan)}, "NaN"),
    ],
)
def test_bad_questions_are_told(arguments, told):
    given = {"vectors": clustered()[0], **arguments}
    with pytest.raises(DataError, match=told):
        precision_loss(**given)
