"""The same or not: pairs of a gallery's items, thresholds for a false accept rate, and the probability."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.gallery.calibration.pair_rule import PairRule, fit_pair_rule
from nearkin.gallery.calibration.pairs import (
    PairDistances,
    compare_pairs,
    genuine_pairs,
    impostor_pairs,
)
from nearkin.gallery.store import Sample
from nearkin.spaces import Euclidean

SPACE = Euclidean()
CODES = st.lists(st.integers(0, 4), min_size=0, max_size=30).map(lambda codes: np.array(codes, np.int32))


def as_set(pairs):
    return {tuple(sorted(pair)) for pair in zip(*(side.tolist() for side in pairs), strict=True)}


def all_pairs(codes, same):
    return {(a, b) for a, b in itertools.combinations(range(len(codes)), 2) if (codes[a] == codes[b]) == same}


@given(CODES)
def test_few_items_give_every_pair_once(codes):
    rng = np.random.default_rng(0)
    genuine, weights = genuine_pairs(codes, 10_000, rng)
    assert as_set(genuine) == all_pairs(codes, True)
    assert len(genuine[0]) == len(weights) == len(as_set(genuine))
    impostors = impostor_pairs(codes, 10_000, rng)
    assert as_set(impostors) == all_pairs(codes, False)
    assert len(impostors[0]) == len(as_set(impostors))


@given(CODES)
def test_a_class_counts_as_many_times_as_it_has_items(codes):
    (left, _), weights = genuine_pairs(codes, 40, np.random.default_rng(1))
    for code, size in zip(*np.unique(codes, return_counts=True), strict=True):
        if size > 1:
            assert weights[codes[left] == code].sum() == pytest.approx(size)


def test_many_items_give_a_bounded_number_of_distinct_pairs():
    codes = np.random.default_rng(0).integers(0, 20, 2000).astype(np.int32)
    rng = np.random.default_rng(1)
    impostors = impostor_pairs(codes, 50_000, rng)
    assert len(as_set(impostors)) == len(impostors[0]) == 50_000
    assert (codes[impostors[0]] != codes[impostors[1]]).all()
    genuine, _ = genuine_pairs(codes, 20_000, rng)
    assert len(as_set(genuine)) == len(genuine[0]) == 20_000
    assert (codes[genuine[0]] == codes[genuine[1]]).all()
    counts = np.bincount(np.concatenate(genuine))
    assert set(counts.tolist()) == {20}


class Mates:
    """A large gallery of classes of two, of which a sample holds hardly a pair."""

    def __init__(self, classes):
        rng = np.random.default_rng(0)
        self.centres = rng.normal(size=(classes, 4)).astype(np.float32)
        self.points = np.repeat(self.centres, 2, axis=0) + 0.01 * rng.normal(size=(2 * classes, 4)).astype(np.float32)
        self.asked = 0

    def classes(self):
        return [f"c{code}" for code in range(len(self.centres))]

    def ids_where(self, where=None, *, label=...):
        self.asked += 1
        return [str(2 * int(label[1:]) + one) for one in (0, 1)]

    def vectors(self, ids):
        return self.points[[int(one) for one in ids]]


def test_mates_are_fetched_where_a_sample_holds_few():
    store = Mates(5000)
    rows = np.arange(0, 2000, 2)
    sample = Sample(rows, store.points[rows], (rows // 2).astype(np.int32))
    found = compare_pairs(store, SPACE, sample, np.full(5000, 2), seed=0)
    assert store.asked == 500
    assert len(found.genuine) == 500
    assert np.median(found.genuine) < 0.1 < np.median(found.impostors)
    assert len(found.impostors) == 1000 * 999 // 2


def test_distances_are_those_of_the_space():
    points = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    codes = np.repeat(np.arange(4), 3).astype(np.int32)
    found = compare_pairs(None, SPACE, Sample(np.arange(12), points, codes), np.full(4, 3), seed=0)
    table = SPACE.distance(torch.from_numpy(points), torch.from_numpy(points)).numpy()
    same = codes[:, None] == codes
    upper = np.triu(np.ones((12, 12), bool), 1)
    assert np.sort(found.genuine) == pytest.approx(np.sort(table[same & upper]), abs=1e-5)
    assert np.sort(found.impostors) == pytest.approx(np.sort(table[~same & upper]), abs=1e-5)


def drawn(genuine, impostors, seed=0):
    rng = np.random.default_rng(seed)
    near = rng.normal(1.0, 0.3, genuine).clip(0).astype(np.float32)
    far = rng.normal(2.0, 0.4, impostors).clip(0).astype(np.float32)
    return PairDistances(near, np.ones(genuine), far)


@pytest.mark.parametrize("rate", [3e-5, 1e-4, 1e-3, 0.01, 0.0371, 0.2])
def test_false_accept_rate_holds_on_fresh_pairs(rate):
    fitted = fit_pair_rule(drawn(5_000, 100_000))
    ruling = fitted.judge(1.0, rate)
    fitted_share = (drawn(5_000, 100_000).impostors <= ruling.threshold).mean()
    assert fitted_share <= rate
    assert fitted_share >= 0.9 * rate - 1 / 100_000
    fresh = drawn(50_000, 400_000, seed=1)
    share = (fresh.impostors <= ruling.threshold).mean()
    # Four deviations of the fitted and of the fresh share, and the step of the table.
    assert abs(share - rate) < 4 * math.sqrt(rate * (1 / 100_000 + 1 / 400_000)) + 0.1 * rate
    assert (fresh.genuine <= ruling.threshold).mean() == pytest.approx(ruling.true_accept_rate, abs=0.03)


@given(
    st.lists(st.integers(0, 20), min_size=30, max_size=200),
    st.floats(1e-3, 0.999),
)
@settings(max_examples=200)
def test_the_rate_is_never_exceeded_on_the_fitted_pairs(steps, rate):
    impostors = np.array(steps, np.float32) / 7
    fitted = fit_pair_rule(PairDistances(np.linspace(0, 1, 40, dtype=np.float32), np.ones(40), impostors))
    ruling = fitted.judge(0.5, rate)
    if ruling.threshold is None:
        assert ruling.same is None
        assert ruling.reason
        assert rate * len(impostors) < 3 + 1e-9 or (impostors == 0).mean() > rate
    else:
        assert (impostors <= ruling.threshold).mean() <= rate
        assert ruling.same == (ruling.threshold >= 0.5)


@pytest.mark.parametrize(("rate", "promised"), [(0.003, True), (0.0029, False), (1e-9, False)])
def test_a_rate_below_the_rule_of_three_is_refused(rate, promised):
    ruling = fit_pair_rule(drawn(100, 1000)).judge(0.5, rate)
    assert (ruling.threshold is not None) == promised
    assert (ruling.same is not None) == promised
    assert ruling.probability is not None
    assert ("0.003" in ruling.reason) != promised


def test_the_probability_is_calibrated_at_equal_priors():
    fitted = fit_pair_rule(drawn(5_000, 100_000))
    fresh = drawn(20_000, 20_000, seed=2)
    sure = np.array([fitted.judge(float(d), 0.1).probability for d in np.concatenate([fresh.genuine, fresh.impostors])])
    same = np.arange(40_000) < 20_000
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (sure >= low) & (sure < low + 0.2)
        assert sure[inside].mean() == pytest.approx(same[inside].mean(), abs=0.06)


def test_the_probability_falls_with_the_distance_and_stays_inside():
    fitted = fit_pair_rule(drawn(500, 1000))
    found = [fitted.judge(distance, 0.1).probability for distance in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 1e6, 1e300)]
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < found[0] < 1


def test_weights_count_in_the_line_and_in_the_true_accepts():
    near, far = np.float32([0.1] * 30), np.float32([1.9] * 30)
    impostors = np.linspace(1, 3, 100, dtype=np.float32)
    light = fit_pair_rule(PairDistances(np.concatenate([near, far]), np.repeat([1.0, 0.01], 30), impostors))
    even = fit_pair_rule(PairDistances(np.concatenate([near, far]), np.ones(60), impostors))
    assert light.judge(0.5, 0.1).true_accept_rate == pytest.approx(1 / 1.01, abs=1e-4)
    assert even.judge(0.5, 0.1).true_accept_rate == 0.5
    assert light.judge(1.9, 0.1).probability < even.judge(1.9, 0.1).probability


def test_labels_that_mean_nothing_give_no_evidence():
    both = np.random.default_rng(0).normal(2, 0.1, 2000).astype(np.float32)
    fitted = fit_pair_rule(PairDistances(both[:1000] + 0.05, np.ones(1000), both[1000:]))
    assert fitted.slope == 0
    assert fitted.judge(0.0, 0.1).probability == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(("genuine", "impostors"), [(0, 0), (29, 1000), (1000, 29)])
def test_too_few_pairs_give_a_reason(genuine, impostors):
    ruling = fit_pair_rule(drawn(genuine, impostors)).judge(0.5, 0.1)
    assert (ruling.same, ruling.probability, ruling.threshold) == (None, None, None)
    assert f"{genuine:,}" in ruling.reason
    assert f"{impostors:,}" in ruling.reason


def test_the_table_is_small_and_reads_back():
    fitted = fit_pair_rule(drawn(5_000, 100_000))
    assert len(fitted.thresholds) < 200
    assert PairRule.from_dict(fitted.to_dict()) == fitted
    assert list(fitted.thresholds) == sorted(fitted.thresholds)
