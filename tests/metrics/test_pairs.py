"""Verification trials: which pairs, in which order, and the EER in resamples of the classes."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.metrics import verification_from_scores
from nearkin.metrics.pairs import draw_trials, resampled_equal_errors

CODES = np.array([0, 1, 0, 2, 1, 0, 2, 2, 3])


def test_all_pairs_are_drawn_once_where_they_are_few():
    trials = draw_trials(CODES, most=1000, seed=1)
    pairs = [tuple(sorted(pair)) for pair in zip(trials.enrolled.tolist(), trials.queries.tolist(), strict=True)]
    assert sorted(pairs) == [(i, j) for i in range(9) for j in range(i + 1, 9)]
    assert trials.same.tolist() == [bool(CODES[i] == CODES[j]) for i, j in pairs]
    assert trials.total == (int(trials.same.sum()), int((~trials.same).sum()))
    assert trials.notes == []


def test_a_coin_says_who_is_enrolled():
    codes = np.repeat(np.arange(20), 10)
    trials = draw_trials(codes, most=100_000, seed=0)
    first = trials.enrolled < trials.queries
    for kind in (trials.same, ~trials.same):
        assert abs(first[kind].mean() - 0.5) < 5 * 0.5 / np.sqrt(kind.sum())
    again = draw_trials(codes, most=100_000, seed=0)
    assert (again.enrolled == trials.enrolled).all()
    assert (draw_trials(codes, most=100_000, seed=1).enrolled != trials.enrolled).any()


def test_with_a_gallery_its_items_are_enrolled():
    gallery = np.array([1, 0, 2])
    trials = draw_trials(CODES, gallery, most=1000)
    assert trials.enrolled.max() == 2
    expected = {(i, j) for i in range(3) for j in range(9)}
    assert set(zip(trials.enrolled.tolist(), trials.queries.tolist(), strict=True)) == expected
    assert (trials.same == (gallery[trials.enrolled] == CODES[trials.queries])).all()
    assert trials.total == (8, 19)


def test_a_sample_has_as_many_of_each_kind_and_says_so():
    codes = np.repeat(np.arange(10), 12)
    trials = draw_trials(codes, most=50, seed=3)
    assert (int(trials.same.sum()), int((~trials.same).sum())) == (50, 50)
    assert (trials.same == (codes[trials.enrolled] == codes[trials.queries])).all()
    pairs = {tuple(sorted(pair)) for pair in zip(trials.enrolled.tolist(), trials.queries.tolist(), strict=True)}
    assert len(pairs) == 100
    genuine, impostor = trials.notes
    assert "660" in genuine
    assert "6,480" in impostor


def test_one_kind_alone_is_refused():
    for codes in (np.zeros(4, int), np.arange(4)):
        with pytest.raises(DataError, match="classes"):
            draw_trials(codes, most=10)


def trials_and_scores(classes=7, items=6, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(classes), items)
    trials = draw_trials(codes, most=10_000, seed=seed)
    ease = rng.normal(size=classes)[codes[trials.enrolled]]  # some classes are harder than others
    scores = np.where(trials.same, 1.5 + ease, 0.0) + rng.normal(size=len(trials.same))
    return codes, trials, scores


def test_resampled_errors_are_those_of_repeated_trials():
    codes, trials, scores = trials_and_scores()
    classes = (codes[trials.enrolled], codes[trials.queries])
    found = resampled_equal_errors({"a": scores}, trials.same, classes, resamples=30, seed=5)["a"]
    rng = np.random.default_rng(5)
    for value in found:
        drawn = np.bincount(rng.integers(7, size=7), minlength=7)
        kept = []
        for place in range(len(scores)):
            a, b = classes[0][place], classes[1][place]
            kept += [place] * int(drawn[a] if a == b else drawn[a] * drawn[b])
        expected = verification_from_scores(scores[kept], trials.same[kept]).values["EER"]
        assert value == pytest.approx(expected, abs=1e-9)


def test_scores_share_their_resamples_and_order_is_all_that_counts():
    codes, trials, scores = trials_and_scores(classes=12, items=20)
    classes = (codes[trials.enrolled], codes[trials.queries])
    given = {"a": scores, "b": 3 * scores - 7, "c": scores + np.random.default_rng(1).normal(size=len(scores))}
    found = resampled_equal_errors(given, trials.same, classes, resamples=200)
    np.testing.assert_allclose(found["a"], found["b"], atol=2e-3)  # bins may part ties otherwise
    whole = verification_from_scores(scores, trials.same).values["EER"]
    low, high = np.quantile(found["a"], [0.025, 0.975])
    assert low < whole < high
    assert (found["c"] > found["a"]).mean() > 0.9


def test_resamples_without_impostors_have_no_error_rate():
    codes = np.repeat([0, 1], 5)
    trials = draw_trials(codes, most=100)
    scores = np.random.default_rng(0).normal(size=len(trials.same))
    classes = (codes[trials.enrolled], codes[trials.queries])
    found = resampled_equal_errors({"a": scores}, trials.same, classes, resamples=100)["a"]
    assert 20 < np.isnan(found).sum() < 80  # half of the draws of two classes are twice the same


@pytest.mark.parametrize(("flipped", "error"), [(1, 0.0), (-1, 1.0)])
def test_few_trials_are_counted_one_by_one(flipped, error):
    scores, same = flipped * np.array([0.9, 0.8, 0.3, 0.2]), np.array([True, True, False, False])
    classes = np.array([0, 1, 0, 0]), np.array([0, 1, 1, 1])
    found = resampled_equal_errors({"a": scores}, same, classes, resamples=50)["a"]
    some = found[np.isfinite(found)]
    assert len(some)
    np.testing.assert_allclose(some, error, atol=1e-12)
