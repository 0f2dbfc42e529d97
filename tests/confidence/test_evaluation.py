"""Evaluation against the metrics by hand, and sweeps over k against separate fits."""

import math

import numpy as np
import pytest
import torch

from nearkin.confidence import NED, DudaniVote, GouVote, KNNVote, NearestNeighbour, PrototypeSoftmax, evaluate, sweep_k
from nearkin.confidence.evaluation import best_k
from nearkin.errors import DataError
from nearkin.metrics.calibration import calibration_from_probabilities, calibration_metrics

VOTES = {"kNN": KNNVote, "Dudani": DudaniVote, "Gou": GouVote, "NED": NED}


def clouds(seed=0, n=60, classes=5, queries=40):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 6))
    labels, truth = np.arange(n) % classes, rng.integers(classes, size=queries)
    support = centres[labels] + rng.normal(size=(n, 6))
    return (
        support.astype(np.float32),
        labels,
        (centres[truth] + rng.normal(size=(queries, 6))).astype(np.float32),
        truth,
    )


def same(found, expected):
    assert found.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        assert found.values[name] == pytest.approx(value, abs=1e-6), name
    assert found.queries == expected.queries


@pytest.mark.parametrize("made", [NED, KNNVote, DudaniVote, GouVote, NearestNeighbour, PrototypeSoftmax])
@pytest.mark.parametrize("bins", [5, 15])
def test_evaluation_is_the_metrics_of_the_dense_table(made, bins):
    support, labels, queries, truth = clouds()
    fitted = made().fit(support, labels)
    prediction = fitted.predict(queries)
    table = prediction.probabilities.dense().astype(np.float64)
    codes = np.array([fitted.classes_.tolist().index(label) for label in truth])
    rows = np.arange(len(truth))
    expected = calibration_metrics(
        table.astype(np.float32)[rows, prediction.probabilities.best],
        prediction.labels == truth,
        truth=table[rows, codes],
        squares=np.minimum((table**2).sum(axis=1), 1),
        bins=bins,
    )
    same(evaluate(prediction, truth, bins=bins), expected)
    same(evaluate(prediction.probabilities, torch.tensor(truth), bins=bins), expected)
    nll = -np.log(np.maximum(table[rows, codes], 1e-12)).mean()
    brier = ((table - np.eye(5)[codes]) ** 2).sum(axis=1).mean()
    assert evaluate(prediction, truth).values["NLL"] == pytest.approx(nll, abs=1e-5)
    assert evaluate(prediction, truth).values["Brier"] == pytest.approx(brier, abs=1e-5)
    assert evaluate(prediction, truth).values["accuracy"] == (prediction.labels == truth).mean()


def test_the_same_as_from_probabilities():
    support, labels, queries, truth = clouds()
    fitted = NED().fit(support, labels)
    prediction = fitted.predict(queries)
    codes = prediction.probabilities.find(truth)
    same(evaluate(prediction, truth), calibration_from_probabilities(prediction.probabilities.dense(), codes))


def test_a_rest_is_counted():
    """More classes than are listed: the table with the rest spread evenly is what is measured."""
    rng = np.random.default_rng(0)
    support, labels = rng.normal(size=(600, 4)).astype(np.float32), np.arange(600) % 300
    prediction = PrototypeSoftmax(temperature=1.0).fit(support, labels).predict(support[:50])
    assert prediction.probabilities.rest.min() > 0
    expected = calibration_from_probabilities(
        prediction.probabilities.dense(), prediction.probabilities.find(labels[:50])
    )
    same(evaluate(prediction, labels[:50]), expected)


def test_foreign_labels_are_wrong_and_without_probability():
    support, labels, queries, truth = clouds()
    prediction = NED().fit(support, labels).predict(queries)
    names = truth.astype(object)
    names[:10] = ["somebody", 99, -1, 2.5, "0", b"1", ("a",), False + 7, "x", 10**30]
    found = evaluate(prediction, names)
    right = prediction.labels[10:] == truth[10:]
    assert found.values["accuracy"] == right.sum() / 40
    likelihoods = np.log(np.maximum(prediction.probabilities.of(truth)[10:].astype(np.float64), 1e-12))
    assert found.values["NLL"] == pytest.approx(-(10 * math.log(1e-12) + likelihoods.sum()) / 40, rel=1e-6)
    squares = prediction.probabilities.squares()
    brier = squares.sum() + 40 - 2 * prediction.probabilities.of(truth)[10:].sum()
    assert found.values["Brier"] == pytest.approx(brier / 40, rel=1e-5)


def test_intervals_resample_classes():
    support, labels, queries, truth = clouds()
    prediction = NED().fit(support, labels).predict(queries)
    found = evaluate(prediction, truth, resamples=50, level=0.8, seed=3)
    probabilities = prediction.probabilities
    expected = calibration_metrics(
        probabilities.confidence, prediction.labels == truth, labels=truth, resamples=50, level=0.8, seed=3
    )
    assert found.intervals["accuracy"] == pytest.approx(expected.intervals["accuracy"])
    assert not evaluate(prediction, truth).intervals


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([1], "labels"),
        ([None] * 40, "missing"),
        ("x", "label"),
        (None, "label"),
    ],
)
def test_bad_labels(labels, match):
    support, names, queries, _ = clouds()
    with pytest.raises(DataError, match=match):
        evaluate(NED().fit(support, names).predict(queries), labels)


def test_nothing_to_evaluate():
    support, labels, queries, _ = clouds()
    with pytest.raises(DataError, match="one"):
        evaluate(NED().fit(support, labels).predict(queries[:0]), [])


@pytest.mark.parametrize("space", ["sphere", "euclidean", "cosine"])
def test_a_sweep_is_a_fit_at_every_k(space):
    support, labels, queries, truth = clouds()
    made = {name: kind(space=space) for name, kind in VOTES.items()}
    made["1NN"] = NearestNeighbour(space=space)
    found = sweep_k(made, support, labels, queries, truth, ks=[20, 1, 7, 7])
    assert list(found) == [*VOTES, "1NN"]
    for name, results in found.items():
        assert list(results) == [1, 7, 20]
        for k, result in results.items():
            fitted = made[name].with_k(k).fit(support, labels)
            same(result, evaluate(fitted.predict(queries), truth))
    assert all(made[name].k in (10, None, 1) for name in made)
    assert len({result.values["NLL"] for result in found["1NN"].values()}) == 1


def test_a_sweep_leaves_out_what_the_support_is_too_small_for():
    support, labels, queries, truth = clouds()
    assert list(sweep_k({"kNN": KNNVote()}, support, labels, queries, truth, ks=[5, 59, 60, 300])["kNN"]) == [5, 59]
    with pytest.raises(DataError, match="list"):
        sweep_k({"kNN": KNNVote()}, support, labels, queries, truth, ks=[])
    for ks in ([60], [0]):
        with pytest.raises(DataError, match="60"):
            sweep_k({"kNN": KNNVote()}, support, labels, queries, truth, ks=ks)


def test_a_sweep_is_in_one_space():
    support, labels, queries, truth = clouds()
    with pytest.raises(DataError, match="space"):
        sweep_k({"a": KNNVote(), "b": KNNVote(space="euclidean")}, support, labels, queries, truth, ks=[3])
    with pytest.raises(DataError):
        sweep_k({}, support, labels, queries, truth, ks=[3])
    found = sweep_k({"a": KNNVote(space="sphere"), "b": KNNVote()}, support, labels, queries, truth, ks=[3])
    same(found["a"][3], found["b"][3])


@pytest.mark.parametrize(("made", "ks"), [(KNNVote, [2.5, 3]), (KNNVote, ["3"]), (PrototypeSoftmax, [3])])
def test_bad_sweeps(made, ks):
    support, labels, queries, truth = clouds()
    with pytest.raises(DataError):
        sweep_k({"it": made()}, support, labels, queries, truth, ks=ks)


@pytest.mark.parametrize("support", [None, 3])
def test_a_sweep_over_nothing(support):
    _, labels, queries, truth = clouds()
    with pytest.raises(DataError):
        sweep_k({"it": KNNVote()}, support, labels, queries, truth, ks=[3])


@pytest.mark.parametrize("kind", [KNNVote, DudaniVote, GouVote, NED])
def test_the_best_k_names_most_points_by_the_others(kind):
    support, labels, _, _ = clouds()
    right = {}
    for k in (1, 3, 8, 25):
        _, found = kind(k=k).fit(support, labels).leave_one_out()
        right[k] = int((found.labels == labels).sum())
    best = best_k(kind(), support, labels, ks=[25, 8, 3, 1, 900])
    assert best == max(right, key=lambda k: (right[k], -k))
