"""Classification by centroid and by neighbours: scikit-learn and plain loops as oracles, ties, halves, bad input."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_score, recall_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from nearkin.errors import DataError
from nearkin.metrics.classification import (
    CENTROID,
    classification_metrics,
    mean_corruption_error,
    relative_corruption_error,
)
from nearkin.metrics.labels import halves
from nearkin.search import InnerProduct
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

SPACES = [Euclidean(), Sphere(), Sphere("angle"), LipschitzBall(), PoincareBall(0.7)]
NAMES = ["wren", "kite", "owl", "rook", "tern", "gull"]


def cloud(classes=6, each=14, noise=1.4, seed=0, dimension=5):
    rng = np.random.default_rng(seed)
    labels = np.repeat(NAMES[:classes], each)
    centres = np.repeat(rng.normal(size=(classes, dimension)), each, axis=0)
    points = (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)
    order = rng.permutation(len(labels))
    return points[order], labels[order]


def naive(space, points, labels, queries, k):
    """Centroid and k-NN, one query at a time; a tied vote goes to the class that comes first by distance."""
    known = {name: space.mean(points[torch.from_numpy(np.flatnonzero(labels == name))]) for name in np.unique(labels)}
    by_centroid, by_vote = [], []
    for query in queries:
        far = {name: float(space.distance(query[None].double(), mean[None].double())) for name, mean in known.items()}
        by_centroid.append(min(far, key=far.get))
        order = np.argsort(space.distance(query[None].double(), points.double())[0].numpy(), kind="stable")[:k]
        votes = Counter(labels[order])
        by_vote.append(next(name for name in labels[order] if votes[name] == max(votes.values())))
    return by_centroid, by_vote


@pytest.mark.parametrize("space", SPACES, ids=lambda space: f"{space.name}-{getattr(space, 'metric', '')}")
@pytest.mark.parametrize("k", [1, 4, 10])
def test_predictions_are_those_of_a_plain_loop(space, k):
    raw, labels = cloud()
    points = space.project(torch.from_numpy(raw))
    result = classification_metrics(points, labels, k=[k], space=space, seed=3)
    known, asked = halves(labels, 3)
    assert result.rows.tolist() == asked.tolist()
    assert result.reference_rows.tolist() == known.tolist()
    by_centroid, by_vote = naive(space, points[known], labels[known], points[asked], k)
    assert result.predictions[CENTROID].tolist() == by_centroid
    assert result.predictions[f"{k}-NN"].tolist() == by_vote
    assert result.labels.tolist() == labels[asked].tolist()


def test_both_classifiers_agree_with_scikit_learn():
    points, labels = cloud(noise=1.0, seed=1)
    known, asked = halves(labels, 0)
    result = classification_metrics(
        points[asked],
        labels[asked],
        reference=points[known],
        reference_labels=labels[known],
        k=[1, 5],
        space="euclidean",
    )
    peers = {
        "centroid": NearestCentroid(),
        "1-NN": KNeighborsClassifier(1),
        "5-NN": KNeighborsClassifier(5, weights=lambda far: 1 + 1e-6 / (1 + far)),  # a tie goes to what is nearer
    }
    assert result.classifiers == list(peers)
    for name, peer in peers.items():
        assert (
            result.predictions[name].tolist() == peer.fit(points[known], labels[known]).predict(points[asked]).tolist()
        )


@pytest.mark.parametrize("classifier", ["centroid", "7-NN"])
def test_measures_are_those_of_scikit_learn(classifier):
    points, labels = cloud(noise=2.5, seed=2)
    result = classification_metrics(points, labels, k=[7])
    truth, predicted = result.labels, result.predictions[classifier]
    names = sorted(NAMES)
    options = {"labels": names, "average": None, "zero_division": 0}
    for ours, theirs in (
        (result.f1, f1_score),
        (result.precision, precision_score),
        (result.recall, recall_score),
    ):
        assert list(ours[classifier]) == names
        assert list(ours[classifier].values()) == pytest.approx(theirs(truth, predicted, **options).tolist())
    assert result.values[f"macro F1, {classifier}"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert result.values[f"accuracy, {classifier}"] == pytest.approx(accuracy_score(truth, predicted))


def test_confusions_are_the_largest_rates_beside_the_diagonal():
    points, labels = cloud(noise=2.5, seed=2)
    labels = np.append(labels, ["owl"] * 6)  # another size, so that a rate is no plain count
    points = np.concatenate([points, points[:6]])
    result = classification_metrics(points, labels, k=[7])
    names = sorted(NAMES)
    table = confusion_matrix(result.labels, result.predictions["7-NN"], labels=names).astype(float)
    rates = table / table.sum(axis=1, keepdims=True)
    np.fill_diagonal(rates, 0)
    expected = sorted((-rates[i, j], names[i], names[j]) for i, j in zip(*np.nonzero(rates), strict=True))
    found = result.confusions("7-NN", top=100)
    assert [(pair.true, pair.predicted) for pair in found] == [(true, predicted) for _, true, predicted in expected]
    assert [pair.rate for pair in found] == pytest.approx([-rate for rate, _, _ in expected])
    assert result.confusions("7-NN", top=3) == found[:3]


def test_a_tied_vote_goes_to_the_nearest_of_the_tied():
    # Distances 1 (a), 2 (b), 3 (b), 4 (a), 5 (c): at 5 a and b have two votes each, and a has the nearest item.
    reference = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    labels = ["a", "b", "b", "a", "c"]
    result = classification_metrics(
        [[0.0]], ["a"], reference=reference, reference_labels=labels, k=[1, 2, 3, 4, 5], space=Euclidean()
    )
    votes = {name: list(found) for name, found in result.predictions.items() if name != CENTROID}
    assert votes == {"1-NN": ["a"], "2-NN": ["a"], "3-NN": ["b"], "4-NN": ["a"], "5-NN": ["a"]}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.permutations(NAMES))
def test_what_classes_are_called_makes_no_difference(seed, others):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, size=(40, 2)).astype(np.float32)  # many equal points and distances
    labels = rng.choice(NAMES, size=40)
    called = dict(zip(NAMES, others, strict=True))
    renamed = np.array([called[name] for name in labels])
    first = classification_metrics(points, labels, k=[1, 4], space=Euclidean(), seed=seed)
    second = classification_metrics(points, renamed, k=[1, 4], space=Euclidean(), seed=seed)
    assert second.values == pytest.approx(first.values)
    for classifier in first.classifiers:
        assert [called[name] for name in first.predictions[classifier]] == second.predictions[classifier].tolist()
    assert {called[name]: radius for name, radius in first.radii.items()} == pytest.approx(second.radii)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=60), st.integers(0, 50))
def test_each_class_is_halved_and_the_odd_one_is_known(codes, seed):
    labels = np.array(codes)
    sizes = Counter(codes)
    if sum(size > 1 for size in sizes.values()) < 2:
        return
    points = np.random.default_rng(seed).normal(size=(len(labels), 3))
    result = classification_metrics(points, labels, k=[3], seed=seed)
    expected = {label: (-(-size // 2), size // 2) for label, size in sizes.items() if size > 1}
    known, asked = Counter(labels[result.reference_rows].tolist()), Counter(labels[result.rows].tolist())
    assert {label: (known[label], asked[label]) for label in known} == expected
    assert not set(result.rows) & set(result.reference_rows)
    alone = sum(size == 1 for size in sizes.values())
    assert any("single" in note for note in result.notes) == (alone > 0)


def test_the_seed_draws_the_halves():
    points, labels = cloud()
    first, again, other = (classification_metrics(points, labels, seed=seed) for seed in (1, 1, 2))
    assert first.rows.tolist() == again.rows.tolist() != other.rows.tolist()
    assert first.values == again.values


def test_a_radius_is_the_mean_distance_from_the_centroid_of_the_reference():
    reference = np.array([[0.0, 0.0], [2.0, 0.0], [10.0, 0.0], [10.0, 0.0]])
    result = classification_metrics(
        np.array([[1.0, 3.0], [1.0, 5.0], [10.0, 7.0]]),
        ["a", "a", "b"],
        reference=reference,
        reference_labels=["a", "a", "b", "b"],
        space=Euclidean(),
    )
    assert result.radii == pytest.approx({"a": 4.0, "b": 7.0})


def test_well_separated_classes_are_all_found():
    points, labels = cloud(noise=0.01)
    result = classification_metrics(points, labels, k=[5], space=Euclidean())
    assert set(result.values.values()) == {1.0}
    assert result.confusions("centroid") == []
    assert list(result.values) == ["macro F1, centroid", "accuracy, centroid", "macro F1, 5-NN", "accuracy, 5-NN"]


def test_a_class_that_only_the_reference_has_can_be_taken_for_but_is_not_in_the_mean():
    result = classification_metrics(
        [[0.0], [0.2], [5.0]],
        ["a", "a", "b"],
        reference=[[0.0], [0.2], [5.0]],
        reference_labels=["a", "c", "b"],
        k=[1],
        space=Euclidean(),
    )
    assert result.predictions["1-NN"].tolist() == ["a", "c", "b"]
    assert result.f1["1-NN"] == pytest.approx({"a": 2 / 3, "b": 1.0})
    assert result.values["macro F1, 1-NN"] == pytest.approx(5 / 6)
    assert result.confusions("1-NN") == [("a", "c", 0.5)]


def test_items_of_classes_without_reference_are_left_out_and_counted():
    result = classification_metrics(
        [[0.0], [9.0], [5.0]],
        ["a", "stranger", "b"],
        reference=[[0.0], [5.0]],
        reference_labels=["a", "b"],
        k=[1],
        space=Euclidean(),
    )
    assert result.rows.tolist() == [0, 2]
    assert any("reference" in note for note in result.notes)


def test_a_k_beyond_the_reference_is_left_out_and_told():
    points, labels = cloud(classes=2, each=4)
    result = classification_metrics(points, labels, k=[4, 5, 50])
    assert result.classifiers == ["centroid", "4-NN"]
    assert any("5-NN" in note and "50-NN" in note for note in result.notes)
    assert classification_metrics(points, labels, k=[50]).classifiers == ["centroid"]
    with pytest.raises(DataError, match=r"\bk\b"):
        classification_metrics(points, labels, k=[50], space=InnerProduct())


@pytest.mark.parametrize("k", [np.array([3, 1]), [np.int64(1), np.int32(3)], (3, 1, 3), range(1, 4, 2)])
def test_whole_numbers_of_any_kind_are_taken_as_k(k):
    points, labels = cloud()
    result = classification_metrics(points, labels, k=k, seed=np.int64(2))
    assert result.classifiers == ["centroid", "1-NN", "3-NN"]
    assert result.values == classification_metrics(points, labels, k=[1, 3], seed=2).values


def test_where_there_is_no_mean_only_neighbours_classify():
    points, labels = cloud(noise=0.5)
    result = classification_metrics(points, labels, k=[3], space=InnerProduct())
    assert result.classifiers == ["3-NN"]
    assert result.radii == {}
    assert any("mean" in note for note in result.notes)
    with pytest.raises(DataError, match="classify"):
        classification_metrics(points, labels, k=[], space=InnerProduct())


@pytest.mark.parametrize("kind", [list, torch.from_numpy, lambda points: points.astype(np.float16)])
def test_any_kind_of_array_is_taken(kind):
    points, labels = cloud(noise=0.05)
    result = classification_metrics(kind(points), list(labels), k=[3], space=Euclidean())
    assert result.values["accuracy, 3-NN"] == 1.0


def test_labels_of_any_kind_are_told_apart():
    labels = [1, "1", (2, 3)] * 6
    points = np.array([[0.0], [5.0], [10.0]] * 6) + np.linspace(0, 0.1, 18)[:, None]
    result = classification_metrics(points, labels, k=[1], space=Euclidean())
    assert set(result.f1["centroid"]) == {"1", "'1'", "(2, 3)"}
    assert result.values["accuracy, 1-NN"] == 1.0


def test_all_but_the_predictions_can_be_written():
    points, labels = cloud(noise=2.0)
    plain = json.loads(json.dumps(classification_metrics(points, labels, k=[1, 10]).to_dict(top=4)))
    assert set(plain["per_class"]) == set(plain["confusions"]) == {"centroid", "1-NN", "10-NN"}
    assert set(plain["per_class"]["centroid"]) == {"F1", "precision", "recall"}
    assert len(plain["confusions"]["10-NN"]) == 4
    assert plain["evaluated"] + plain["reference"] == len(labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": [0]}, "whole"),
        ({"k": [2.5]}, "whole"),
        ({"k": [True]}, "whole"),
        ({"k": np.array([1.0])}, "whole"),
        ({"k": np.array([[1]])}, "list"),
        ({"k": np.array(1)}, "list"),
        ({"k": 10}, "list"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"labels": ["a", "a", "b", "c"]}, "single"),
        ({"k": "10"}, "whole"),
        ({"reference": [[0.0, 1.0]]}, "reference"),
        ({"reference_labels": ["a"]}, "reference"),
        ({"reference": [[0.0, 1.0, 2.0]], "reference_labels": ["a"]}, "dimensions"),
        ({"reference": [[0.0, 1.0]], "reference_labels": ["a", "b"]}, "labels"),
        ({"reference": [[0.0, 1.0]], "reference_labels": ["a"]}, "classes"),
        ({"reference": [[0.0, 1.0]], "reference_labels": ["z"]}, "item"),
        ({"labels": ["a", "b", "c", "d"]}, "two"),
        ({"labels": ["a", "a", "a", "a"]}, "classes"),
        ({"labels": ["a", "a", "b"]}, "labels"),
        ({"space": "spere"}, "spere"),
        ({"embeddings": [[0.0, np.nan]] * 4}, "NaN"),
    ],
)
def test_bad_input_is_told(options, message):
    given = {"embeddings": [[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [0.5, 0.5]], "labels": ["a", "a", "b", "b"], **options}
    with pytest.raises(DataError, match=message):
        classification_metrics(given.pop("embeddings"), given.pop("labels"), **given)


def test_an_unknown_classifier_has_no_confusions():
    points, labels = cloud()
    with pytest.raises(DataError, match="10-NN"):
        classification_metrics(points, labels).confusions("5-NN")


RNG = np.random.default_rng(0)
OWN, THEIRS = RNG.uniform(0.2, 0.6, (15, 5)), RNG.uniform(0.3, 0.8, (15, 5))


def test_is_the_mean_of_ratios_of_sums():
    ratios = [sum(OWN[c]) / sum(THEIRS[c]) for c in range(15)]
    assert mean_corruption_error(OWN, THEIRS) == pytest.approx(sum(ratios) / 15)
    assert mean_corruption_error(THEIRS, THEIRS) == pytest.approx(1.0)
    assert mean_corruption_error(OWN) == pytest.approx(OWN.mean())


def test_relative_is_of_what_corruption_adds():
    ratios = [sum(OWN[c] - 0.1) / sum(THEIRS[c] - 0.2) for c in range(15)]
    assert relative_corruption_error(OWN, 0.1, THEIRS, 0.2) == pytest.approx(sum(ratios) / 15)


def test_a_reference_that_never_errs_gives_no_ratio():
    assert np.isnan(mean_corruption_error(OWN, np.zeros((15, 5))))


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 5))])
def test_bad_tables_are_refused(bad):
    with pytest.raises(DataError, match="table"):
        mean_corruption_error(bad)
    with pytest.raises(DataError, match="shape"):
        mean_corruption_error(OWN, THEIRS[:3])
