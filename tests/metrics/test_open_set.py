"""Open-set metrics against scikit-learn, naive loops over thresholds and values by hand."""

import json
import warnings
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from nearkin.errors import DataError
from nearkin.metrics.intervals import draw_queries
from nearkin.metrics.open_set import OpenSetResult, open_set_metrics


def naive(scores, known, correct, tpr):
    """Every threshold in turn, the highest first, in fractions."""
    inside = [s for s, k in zip(scores, known, strict=True) if k]
    outside = [s for s, k in zip(scores, known, strict=True) if not k]
    named = [s for s, k, c in zip(scores, known, correct, strict=True) if k and c]
    points = [(Fraction(0), Fraction(0), Fraction(0))]
    at = None
    for t in sorted(set(scores), reverse=True):
        false = Fraction(sum(s >= t for s in outside), len(outside))
        true = Fraction(sum(s >= t for s in inside), len(inside))
        points.append((false, true, Fraction(sum(s >= t for s in named), len(inside))))
        if at is None and float(true) >= tpr:
            at = t, false

    def area(place):
        return sum((b[0] - a[0]) * (b[place] + a[place]) / 2 for a, b in pairwise(points))

    values = {"AUROC": area(1), f"FPR@{100 * tpr:g}TPR": at[1], "OSCR": area(2)}
    values["closed accuracy"] = Fraction(len(named), len(inside))
    return {name: float(value) for name, value in values.items()}, at[0], points


def trial(n, seed, levels=None):
    rng = np.random.default_rng(seed)
    known = rng.random(n) < 0.6
    known[:2] = True, False
    scores = rng.normal(size=n) + 1.2 * known
    if levels:
        scores = np.round(scores * levels) / levels
    return scores, known, rng.random(n) < 0.3 + 0.5 * (scores > 0.5)


@pytest.mark.parametrize("tpr", [0.05, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize(("n", "levels"), [(2, None), (40, None), (60, 2), (80, 1), (200, 10)])
def test_is_what_a_loop_over_thresholds_finds(n, levels, tpr):
    scores, known, correct = trial(n, n, levels)
    expected, threshold, points = naive(scores.tolist(), known, correct, tpr)
    result = open_set_metrics(scores, known, correct, tpr=tpr)
    assert list(result.values) == list(expected)
    assert result.values == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert result.threshold == threshold
    assert (result.known, result.unknown) == (known.sum(), (~known).sum())
    rates = np.array(points, dtype=np.float64)
    for place, name in enumerate(("FPR", "TPR", "CCR")):
        np.testing.assert_allclose(result.curve[name], rates[:, place], rtol=1e-12)


@pytest.mark.parametrize("levels", [None, 3])
def test_agrees_with_scikit_learn(levels):
    scores, known, _ = trial(700, 5, levels)
    result = open_set_metrics(scores, known)
    assert result.values["AUROC"] == pytest.approx(roc_auc_score(known, scores), rel=1e-12)
    fpr, tpr, thresholds = roc_curve(known, scores, drop_intermediate=False)
    first = int(np.argmax(tpr >= 0.95))
    assert result.values["FPR@95TPR"] == pytest.approx(fpr[first], rel=1e-12)
    assert result.threshold == thresholds[first]
    np.testing.assert_allclose(result.curve["FPR"], fpr)
    np.testing.assert_allclose(result.curve["TPR"], tpr)


def test_by_hand_with_a_tie_across_the_kinds():
    # Known 4 (right), 3 (wrong), 2 (right), 1 (right); unknown 2 and 0.
    result = open_set_metrics([4, 3, 2, 1, 2, 0], [1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 0], tpr=0.75)
    assert result.values == {
        "AUROC": (4 + 2.5) / 8,
        "FPR@75TPR": 0.5,
        "OSCR": (1.5 + 3) / 8,  # beside the 2: one above and a tie; beside the 0: three above
        "closed accuracy": 0.75,
    }
    assert result.threshold == 2
    np.testing.assert_allclose(result.curve["FPR"], [0, 0, 0, 0.5, 0.5, 1])
    np.testing.assert_allclose(result.curve["TPR"], [0, 0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(result.curve["CCR"], [0, 0.25, 0.25, 0.5, 0.75, 0.75])


def test_the_threshold_accepts_the_share_asked_for_and_the_next_one_does_not():
    scores, known, _ = trial(400, 1)
    for tpr in (0.1, 0.5, 0.9, 0.95):
        result = open_set_metrics(scores, known, tpr=tpr)
        assert (scores[known] >= result.threshold).mean() >= tpr > (scores[known] > result.threshold).mean()
        assert result.values[f"FPR@{100 * tpr:g}TPR"] == pytest.approx((scores[~known] >= result.threshold).mean())
    exactly = open_set_metrics([*range(20), -1], [1] * 20 + [0])
    assert exactly.threshold == 1  # 19 of 20 are 95 %, not a hair less


@st.composite
def trials(draw):
    n = draw(st.integers(2, 30))
    scores = draw(st.lists(st.integers(-6, 6), min_size=n, max_size=n))
    known = [True, False, *draw(st.lists(st.booleans(), min_size=n - 2, max_size=n - 2))]
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(scores) / 4, np.array(known), np.array(correct), draw(st.randoms(use_true_random=False))


@settings(max_examples=150, deadline=None)
@given(trials())
def test_properties(made):
    scores, known, correct, random = made
    result = open_set_metrics(scores, known, correct)
    values = result.values
    assert all(0 <= value <= 1 for value in values.values())
    assert values["OSCR"] <= min(values["AUROC"], values["closed accuracy"]) + 1e-12
    # Turned round, a known query is one that was unknown: the area is what was missing.
    assert open_set_metrics(-scores, known).values["AUROC"] == pytest.approx(1 - values["AUROC"], abs=1e-12)
    # Any rising function of the scores keeps their order, and the order is all that counts.
    assert open_set_metrics(np.exp(3 * scores), known, correct).values == values
    order = list(range(len(scores)))
    random.shuffle(order)
    again = open_set_metrics(scores[order], known[order], correct[order])
    assert again.to_dict() == result.to_dict()
    named = known & correct
    if named.any():
        kept = named | ~known
        product = roc_auc_score(named[kept], scores[kept]) * values["closed accuracy"]
        assert values["OSCR"] == pytest.approx(product, abs=1e-12)
    everyone = open_set_metrics(scores, known, np.ones(len(scores))).values
    assert everyone["OSCR"] == everyone["AUROC"]
    assert everyone["closed accuracy"] == 1


def test_limits_are_exact():
    known = np.arange(60) < 37
    apart = open_set_metrics(known * 1.0, known, known)
    assert apart.values == {"AUROC": 1.0, "FPR@95TPR": 0.0, "OSCR": 1.0, "closed accuracy": 1.0}
    alike = open_set_metrics(np.zeros(60), known, known)
    assert alike.values == {"AUROC": 0.5, "FPR@95TPR": 1.0, "OSCR": 0.5, "closed accuracy": 1.0}
    wrong = open_set_metrics(known * 1.0, known, ~known)
    assert (wrong.values["OSCR"], wrong.values["closed accuracy"]) == (0.0, 0.0)


def test_what_is_said_of_unknown_queries_does_not_count():
    scores, known, correct = trial(50, 2)
    said = np.where(known, correct, np.nan)
    assert open_set_metrics(scores, known, said).values == open_set_metrics(scores, known, correct).values
    assert open_set_metrics(scores, known, correct | ~known).values == open_set_metrics(scores, known, correct).values


def test_long_curves_are_thinned_and_stay_on_the_curve():
    scores, known, correct = trial(30_000, 3)
    result = open_set_metrics(scores, known, correct)
    curve = result.curve
    assert len({len(rate) for rate in curve.values()}) == 1
    assert 900 < len(curve["FPR"]) <= 1000
    assert all((np.diff(rate) >= 0).all() for rate in curve.values())
    assert [rate[0] for rate in curve.values()] == [0, 0, 0]
    assert [rate[-1] for rate in curve.values()] == [1, 1, result.values["closed accuracy"]]
    for name, value in (("TPR", "AUROC"), ("CCR", "OSCR")):
        middles = (curve[name][1:] + curve[name][:-1]) / 2
        assert np.dot(np.diff(curve["FPR"]), middles) == pytest.approx(result.values[value], abs=2e-3)
    assert (np.diff(curve["FPR"]) + np.diff(curve["TPR"])).max() < 0.005


def test_without_correct_there_is_no_oscr():
    result = open_set_metrics([2, 1, 0], [1, 1, 0], tpr=0.999)
    assert list(result.values) == ["AUROC", "FPR@99.9TPR"]
    assert list(result.curve) == ["FPR", "TPR"]
    assert result.lower_is_better == ("FPR@99.9TPR",)
    assert open_set_metrics([2, 1, 0], [1, 1, 0], [1, 0, 1]).lower_is_better == ("FPR@95TPR",)


def test_a_result_is_plain_json():
    result = open_set_metrics(*trial(30, 4))
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["values"] == result.values
    assert (plain["threshold"], plain["known"], plain["unknown"]) == (result.threshold, result.known, result.unknown)
    assert plain["curve"] == {name: rate.tolist() for name, rate in result.curve.items()}
    assert (OpenSetResult.primary, OpenSetResult.higher_is_better) == ("AUROC", True)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_tensors_with_a_gradient_are_detached(kind):
    scores = torch.tensor([0.5, 0.25, 0.75, 0.5], dtype=kind, requires_grad=True)
    known = torch.tensor([True, False, True, False])
    expected = open_set_metrics([0.5, 0.25, 0.75, 0.5], [1, 0, 1, 0], [1, 0, 0, 0])
    assert open_set_metrics(scores, known, torch.tensor([1, 0, 0, 0])).to_dict() == expected.to_dict()


@pytest.mark.parametrize(
    ("scores", "known", "correct", "message"),
    [
        ([], [], None, "scores"),
        ([1, np.nan], [1, 0], None, "row 1"),
        ([1, -np.inf], [1, 0], None, "NaN"),
        ([[1, 2]], [1, 0], None, "one-dim"),
        (["a", "b"], [1, 0], None, "numbers"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), [1, 0], None, "masked"),
        ([1, 2], [1, 0, 1], None, "known"),
        ([1, 2], [1, 3], None, "known"),
        ([1, 2], ["in", "out"], None, "known"),
        ([1, 2], [1, 1], None, "unknown"),
        ([1, 2], [0, 0], None, r"\bknown\b"),
        ([1, 2], [1, 0], [1], "correct"),
        ([1, 2], [1, 0], [0.5, 0], "correct"),
        ([1, 2], [1, 0], "no", "correct"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(scores, known, correct, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=message):
            open_set_metrics(scores, known, correct)


@pytest.mark.parametrize("tpr", [0, -0.1, 1.1, np.nan, "all", True, None])
def test_a_tpr_must_be_a_share(tpr):
    with pytest.raises(DataError, match="TPR"):
        open_set_metrics([1, 2], [1, 0], tpr=tpr)


def test_intervals_are_quantiles_over_drawn_classes():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    known = labels < 6
    scores = rng.normal(size=12)[labels] + known + 0.3 * rng.normal(size=120)
    right = rng.random(120) < 0.7
    found = open_set_metrics(scores, known, right, labels=labels, resamples=40, level=0.8, seed=2)
    drawn = []
    for rows in draw_queries(labels, 40, 2):
        if known[rows].any() and not known[rows].all():
            drawn.append(list(open_set_metrics(scores[rows], known[rows], right[rows]).values.values()))
    expected = np.quantile(drawn, [0.1, 0.9], axis=0).T
    assert list(found.intervals) == list(found.values)
    np.testing.assert_allclose(list(found.intervals.values()), expected)
    assert open_set_metrics(scores, known).intervals == {}
    wide, narrow = (open_set_metrics(scores, known, labels=given, resamples=60).intervals for given in (labels, None))
    assert np.ptp(wide["AUROC"]) > np.ptp(narrow["AUROC"])
