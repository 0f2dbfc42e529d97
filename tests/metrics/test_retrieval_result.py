"""The value object of retrieval."""

import json

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.metrics import RetrievalResult, retrieval_metrics


@pytest.fixture
def result():
    rng = np.random.default_rng(0)
    labels = np.array(["robin", "wren", "owl", "jay"], dtype=object)[np.arange(25) % 4]
    labels[-1] = "heron"
    return retrieval_metrics(rng.normal(size=(25, 3)), labels)


def test_per_class_means(result):
    for metric in result.values:
        by_class = result.per_class(metric)
        assert set(by_class) == {"robin", "wren", "owl", "jay"}
        for name, value in by_class.items():
            assert value == pytest.approx(result.per_query[metric][result.labels == name].mean(), rel=1e-6)
        sizes = {name: (result.labels == name).sum() for name in by_class}
        weighted = sum(by_class[name] * sizes[name] for name in by_class) / sum(sizes.values())
        assert weighted == pytest.approx(result.values[metric], rel=1e-6)


def test_unknown_metric_suggests_the_nearest(result):
    with pytest.raises(DataError, match="MAP@R"):
        result.per_class("MAP@r")


@pytest.mark.parametrize("labels", [["a", "a", "b", "b"], [2**60, 2**60, 1, 1], np.array([1, 1, 2, 2])])
def test_json_round_trip(labels):
    result = retrieval_metrics(np.random.default_rng(0).normal(size=(4, 3)), labels)
    again = RetrievalResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.values == result.values
    assert again.dropped == result.dropped
    assert again.kept.tolist() == result.kept.tolist()
    assert again.labels.tolist() == result.labels.tolist()
    assert again.per_class("MRR") == result.per_class("MRR")
    for name, values in result.per_query.items():
        np.testing.assert_array_equal(again.per_query[name], values)


def test_short_form_keeps_means_and_counts(result):
    plain = json.loads(json.dumps(result.to_dict(per_query=False)))
    assert plain == {"values": result.values, "dropped": 1, "queries": 24}
    again = RetrievalResult.from_dict(plain)
    assert again.values == result.values
    with pytest.raises(DataError, match="queries"):
        again.per_class("MAP@R")


def test_primary_metric(result):
    assert RetrievalResult.primary in result.values
    assert RetrievalResult.higher_is_better


def test_labels_that_are_spelt_alike_stay_two_classes():
    from nearkin.metrics import retrieval_metrics

    x = np.random.default_rng(0).normal(size=(8, 2))
    assert set(retrieval_metrics(x, [1, "1"] * 4).per_class("P@1")) == {"1", "'1'"}
