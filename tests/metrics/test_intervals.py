"""The class bootstrap against a naive resampler and known variances."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap


def naive_interval(values, labels, resamples, level, seed):
    rng = np.random.default_rng(seed)
    classes = sorted(set(labels))
    means = []
    for _ in range(resamples):
        drawn = []
        for _ in classes:
            chosen = classes[rng.integers(len(classes))]
            members = [v for v, label in zip(values, labels, strict=True) if label == chosen]
            drawn += [members[rng.integers(len(members))] for _ in members]
        means.append(np.mean(drawn))
    return np.quantile(means, [(1 - level) / 2, (1 + level) / 2])


def naive_same_draws(values, labels, resamples, level, seed):
    """The same random numbers as ours, one query at a time."""
    rng = np.random.default_rng(seed)
    classes = sorted(set(labels))
    members = {name: [v for v, label in zip(values, labels, strict=True) if label == name] for name in classes}
    means = []
    for _ in range(resamples):
        chosen = [classes[place] for place in rng.integers(len(classes), size=len(classes))]
        uniform = iter(rng.random(sum(len(members[name]) for name in chosen)))
        drawn = [members[name][int(next(uniform) * len(members[name]))] for name in chosen for _ in members[name]]
        means.append(sum(drawn) / len(drawn))
    return np.quantile(means, [(1 - level) / 2, (1 + level) / 2])


@pytest.mark.parametrize("sizes", [[3, 9, 5, 5, 12, 2], [4, 4, 4], [7], [1, 1, 1, 1]])
def test_is_a_naive_loop_over_the_same_draws(sizes):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    values = rng.normal(size=len(labels))
    ours = class_bootstrap(values, labels, resamples=200, level=0.8, seed=5)
    np.testing.assert_allclose(ours, naive_same_draws(values, labels, 200, 0.8, 5), rtol=1e-12)


def test_metrics_that_share_a_resampling_get_the_intervals_they_have_alone():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, 90)
    metrics = {name: rng.random(90).astype(kind) for name, kind in (("a", "f4"), ("b", "f8"), ("c", "f4"))}
    assert class_bootstrap(metrics, labels, seed=2) == {
        name: class_bootstrap(values, labels, seed=2) for name, values in metrics.items()
    }
    assert class_bootstrap({}, labels) == {}


def covers(interval, truth):
    return interval[0] <= truth <= interval[1]


def test_the_interval_covers_the_mean_of_all_classes_and_that_of_queries_alone_does_not():
    """200 data sets of 30 classes whose levels differ by 0.2 and whose queries scatter by 0.3, around a mean of 0.5."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 8)
    ours = queries_alone = 0
    for seed in range(200):
        values = 0.5 + 0.2 * rng.normal(size=30)[labels] + 0.3 * rng.normal(size=len(labels))
        ours += covers(class_bootstrap(values, labels, resamples=300, seed=seed), 0.5)
        queries_alone += covers(class_bootstrap(values, np.zeros(len(labels), int), resamples=300, seed=seed), 0.5)
    assert 0.88 <= ours / 200 <= 0.99
    assert queries_alone / 200 < 0.8


def test_agrees_with_a_naive_resampler():
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c", "d", "e", "f"], [3, 9, 5, 5, 12, 2])
    values = rng.random(len(labels)) + (labels == "b") * 0.5
    ours = class_bootstrap(values, labels, resamples=4000, level=0.9)
    np.testing.assert_allclose(ours, naive_interval(values, labels, 4000, 0.9, seed=1), atol=0.015)


def test_width_is_that_of_classes_not_of_queries():
    """Queries of a class that agree tell nothing new: the width follows from the number of classes."""
    rng = np.random.default_rng(0)
    class_values = rng.normal(size=40)
    low, high = class_bootstrap(np.repeat(class_values, 100), np.repeat(np.arange(40), 100), resamples=2000)
    expected = 2 * 1.96 * class_values.std() / np.sqrt(40)
    assert high - low == pytest.approx(expected, rel=0.1)


def test_single_class_resamples_its_queries():
    values = np.random.default_rng(0).normal(size=400)
    low, high = class_bootstrap(values, ["only"] * 400, resamples=2000)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert low < values.mean() < high


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), classes=st.integers(1, 8))
def test_interval_is_ordered_finite_within_range_and_repeatable(seed, n, classes):
    rng = np.random.default_rng(seed)
    values, labels = rng.random(n).astype(np.float32), rng.integers(0, classes, n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = class_bootstrap(values, labels, resamples=50, seed=seed)
    assert values.min() - 1e-6 <= low <= high <= values.max() + 1e-6
    assert (low, high) == class_bootstrap(values, labels, resamples=50, seed=seed)


def test_order_of_queries_does_not_matter_to_a_constant():
    assert class_bootstrap([0.25] * 5, list("aabbc")) == (0.25, 0.25)


def test_a_higher_level_is_wider():
    rng = np.random.default_rng(0)
    values, labels = rng.random(60), np.arange(60) % 6
    narrow, wide = class_bootstrap(values, labels, level=0.5), class_bootstrap(values, labels, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": [], "labels": []}, "empty"),
        ({"values": [1.0, np.nan], "labels": [0, 1]}, "finite"),
        ({"values": [1.0, 2.0], "labels": [0]}, "labels"),
        ({"values": [1.0], "labels": [0], "resamples": 0}, "resamples"),
        ({"values": [1.0], "labels": [0], "level": 95}, "level"),
        ({"values": {"a": [1.0, 2.0], "b": [1.0]}, "labels": [0, 1]}, "b: 1"),
        ({"values": {"a": [1.0, np.inf]}, "labels": [0, 1]}, "finite"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(DataError, match=message):
        class_bootstrap(**arguments)
