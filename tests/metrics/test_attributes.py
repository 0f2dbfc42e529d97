"""Zero-shot transfer of attributes against scikit-learn's ridge regression in plain loops."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from nearkin.errors import DataError
from nearkin.metrics import local_features
from nearkin.metrics.local_features import AttributeTransfer, attribute_transfer

L2, COSINE, CHANCE = "attribute transfer, l2", "attribute transfer, cosine", "attribute transfer, chance"


def items(classes, m, d, per_class=3, seed=0, noise=0.5):
    """Attributes that tell something of the embeddings, with labels in random order and classes of different sizes."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), per_class + np.arange(classes) % 2))
    shares = rng.dirichlet(np.full(m, 0.5), size=classes)
    attributes = 0.8 * shares[labels] + 0.2 * rng.dirichlet(np.ones(m), size=len(labels))
    means = shares @ rng.normal(size=(m, d)) + noise * rng.normal(size=(classes, d))
    return attributes, means[labels] + 0.1 * rng.normal(size=(len(labels), d)), labels


def means_of(rows, labels):
    return np.stack([rows[labels == name].mean(axis=0) for name in np.unique(labels)])


def hits(z, y, seen, unseen, ridge):
    """How many of the unseen classes are named rightly, by l2 and by cosine."""
    predicted = Ridge(alpha=ridge, fit_intercept=False).fit(z[seen], y[seen]).predict(z[unseen])
    right = [0, 0]
    for row, vector in enumerate(predicted):
        distances = [np.linalg.norm(vector - mean) for mean in y[unseen]]
        cosines = [vector @ mean / np.linalg.norm(vector) / np.linalg.norm(mean) for mean in y[unseen]]
        right[0] += int(np.argmin(distances) == row)
        right[1] += int(np.argmax(cosines) == row)
    return np.array(right)


def both_ways(z, y, order, ridge):
    half = len(order) // 2
    first, second = order[:half], order[half:]
    return (hits(z, y, first, second, ridge) + hits(z, y, second, first, ridge)) / len(order)


@pytest.mark.parametrize("ridge", [0.05, 1.0])
@pytest.mark.parametrize(("classes", "m", "d"), [(10, 8, 5), (7, 3, 16), (4, 64, 2), (12, 2, 2), (21, 30, 40)])
def test_it_is_ridge_regression_in_loops(classes, m, d, ridge):
    attributes, embeddings, labels = items(classes, m, d)
    found = attribute_transfer(attributes, embeddings, labels, splits=30, ridge=ridge, seed=3)
    z, y = means_of(attributes, labels), means_of(embeddings, labels)
    rng = np.random.default_rng(3)
    splits = np.array([both_ways(z, y, rng.permuted(np.arange(classes)), ridge) for _ in range(30)])
    assert found.values[L2] == pytest.approx(splits[:, 0].mean(), abs=1e-12)
    assert found.values[COSINE] == pytest.approx(splits[:, 1].mean(), abs=1e-12)
    assert found.values[CHANCE] == pytest.approx(2 / classes)
    for name, accuracies in zip((L2, COSINE), splits.T, strict=True):
        assert found.intervals[name] == pytest.approx(tuple(np.quantile(accuracies, [0.025, 0.975])), abs=1e-12)
    assert (found.classes, found.splits) == (classes, 30)


def test_all_halves_of_a_few_classes_are_tried():
    attributes, embeddings, labels = items(6, 4, 3, noise=0.2)
    z, y = means_of(attributes, labels), means_of(embeddings, labels)
    every = [both_ways(z, y, [*c, *sorted(set(range(6)) - set(c))], 0.05) for c in combinations(range(6), 3)]
    expected = np.mean(every, axis=0)
    found = attribute_transfer(attributes, embeddings, labels, splits=8000)
    assert expected.min() > 0.4  # else it would be chance that is compared
    assert [found.values[L2], found.values[COSINE]] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("classes", [10, 11])
def test_a_linear_relation_transfers_perfectly(classes):
    rng = np.random.default_rng(0)
    attributes, _, labels = items(classes, 4, 1)
    embeddings = attributes @ rng.normal(size=(4, 6))
    found = attribute_transfer(attributes, embeddings, labels, ridge=1e-9)
    assert found.values == {L2: 1.0, COSINE: 1.0, CHANCE: 2 / classes}
    assert found.intervals == {L2: (1.0, 1.0), COSINE: (1.0, 1.0)}


@pytest.mark.parametrize("classes", [20, 9])
def test_attributes_that_say_nothing_reach_chance(classes):
    rng = np.random.default_rng(1)
    values = []
    for draw in range(300):
        attributes, embeddings = rng.dirichlet(np.ones(8), size=classes), rng.normal(size=(classes, 16))
        values.append(attribute_transfer(attributes, embeddings, np.arange(classes), splits=8, seed=draw).values)
    for name in (L2, COSINE):
        drawn = np.array([value[name] for value in values])
        assert drawn.mean() == pytest.approx(2 / classes, abs=4 * drawn.std() / np.sqrt(len(drawn)))


@pytest.mark.parametrize("classes", [8, 9])
def test_equal_attributes_name_one_class_of_each_half(classes):
    _, embeddings, labels = items(classes, 4, 5)
    found = attribute_transfer(np.full((len(labels), 4), 0.25), embeddings, labels, splits=50)
    assert found.values[L2] == found.values[COSINE] == pytest.approx(2 / classes)


def test_l2_and_cosine_are_told_apart():
    """Means along few directions with very different lengths: only their direction can be predicted."""
    attributes, embeddings, labels = items(10, 4, 6, noise=0.0)
    scale = np.random.default_rng(2).uniform(0.05, 5, size=10)[labels]
    found = attribute_transfer(attributes, embeddings * scale[:, None], labels)
    assert found.values[COSINE] > found.values[L2] + 0.1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), classes=st.integers(4, 9))
def test_order_of_items_rotation_and_scale_of_embeddings_do_not_matter(seed, classes):
    attributes, embeddings, labels = items(classes, 5, 4, seed=seed)
    found = attribute_transfer(attributes, embeddings, labels, splits=20)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    again = attribute_transfer(attributes[order], 7.0 * embeddings[order] @ turn, labels[order], splits=20)
    assert again.values == pytest.approx(found.values)
    assert again.intervals[L2] == pytest.approx(found.intervals[L2])


def test_blocks_do_not_matter(monkeypatch):
    attributes, embeddings, labels = items(9, 5, 4)
    found = attribute_transfer(attributes, embeddings, labels, splits=23)
    monkeypatch.setattr(local_features, "_SPLIT_ENTRIES", 700)
    again = attribute_transfer(attributes, embeddings, labels, splits=23)
    assert (again.values, again.intervals) == (found.values, found.intervals)


def test_tensors_lists_and_names_are_taken_and_the_seed_decides():
    attributes, embeddings, labels = items(10, 4, 3)
    found = attribute_transfer(attributes, embeddings, labels, splits=7)
    names = [f"class {label}" for label in labels]
    tensors = torch.tensor(attributes, requires_grad=True), torch.tensor(embeddings)
    assert attribute_transfer(*tensors, torch.tensor(labels), splits=7).values == found.values
    assert attribute_transfer(attributes.tolist(), embeddings.tolist(), names, splits=7).values == found.values
    assert attribute_transfer(attributes, embeddings, labels, splits=7, seed=1).values != found.values


def test_the_result_is_plain_values():
    attributes, embeddings, labels = items(5, 4, 3)
    found = attribute_transfer(attributes, embeddings, labels, splits=3)
    assert isinstance(found, AttributeTransfer)
    assert found.primary in found.values
    low, high = found.intervals[L2]
    assert found.to_dict() == {
        "values": found.values,
        "intervals": {L2: [low, high], COSINE: list(found.intervals[COSINE])},
        "classes": 5,
        "splits": 3,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.repeat(np.arange(3), 4)}, "classes"),
        ({"labels": np.arange(11)}, "labels"),
        ({"attributes": np.ones((11, 4))}, "11"),
        ({"attributes": np.ones(12)}, "shape"),
        ({"attributes": np.full((12, 4), np.nan)}, "attributes"),
        ({"embeddings": np.full((12, 3), np.inf)}, "embeddings"),
        ({"splits": 0}, "splits"),
        ({"splits": 2.5}, r"2\.5"),
        ({"ridge": 0.0}, r"0\.0"),
        ({"ridge": float("nan")}, "nan"),
        ({"ridge": 1e-300}, "1e-300"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(change, message):
    rng = np.random.default_rng(0)
    given = {
        "attributes": rng.random((12, 4)),
        "embeddings": rng.random((12, 3)),
        "labels": np.repeat(np.arange(6), 2),
    } | change
    with pytest.raises(DataError, match=message):
        attribute_transfer(**given)


def test_without_items_the_classes_are_missed():
    with pytest.raises(DataError, match="0"):
        attribute_transfer(np.zeros((0, 4)), np.zeros((0, 3)), [])
