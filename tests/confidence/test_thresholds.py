"""Thresholds against naive loops over all of them, their intervals against a known model, and refusals."""

import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binom, norm

from nearkin.confidence import thresholds
from nearkin.confidence.targets import EqualErrorRate, FalseAcceptRate, FBeta, Precision, as_target
from nearkin.confidence.thresholds import OperatingPoints, Threshold, choose_threshold, resampled
from nearkin.errors import DataError
from nearkin.metrics import verification_from_scores

TARGETS = [Precision(0.7), Precision(0.5), FalseAcceptRate(0.25), FalseAcceptRate(0.6), EqualErrorRate()]
TARGETS += [FBeta(1.0), FBeta(0.5), FBeta(2.0)]


def naive_rates(scores, correct, value):
    accepted = [bool(c) for s, c in zip(scores, correct, strict=True) if s >= value]
    right, wrong = sum(accepted), len(accepted) - sum(accepted)
    return {
        "precision": right / len(accepted),
        "recall": right / sum(correct),
        "false accept rate": wrong / (len(correct) - sum(correct)),
        "coverage": len(accepted) / len(correct),
    }


def naive_choice(scores, correct, target):
    """The lowest score that the best threshold accepts, by trying all of them; None if none will do."""
    best, least = None, -math.inf
    for value in sorted(set(scores), reverse=True):
        rates = naive_rates(scores, correct, value)
        p, r, f = rates["precision"], rates["recall"], rates["false accept rate"]
        if isinstance(target, Precision):
            goodness = 0.0 if p >= target.least else -math.inf
        elif isinstance(target, FalseAcceptRate):
            goodness = 0.0 if f <= target.most else -math.inf
        elif isinstance(target, EqualErrorRate):
            goodness = -abs(f - (1 - r))
        else:
            goodness = (1 + target.beta**2) * p * r / (target.beta**2 * p + r) if p else 0.0
        if goodness > -math.inf and goodness >= least - 1e-12:
            best, least = value, goodness
    return best


@st.composite
def scored(draw):
    """Scores with ties, of distances (negative) or confidences, and whether they are correct; 10 of each at least."""
    steps = draw(st.sampled_from([2, 5, 1000]))
    rows = draw(st.lists(st.tuples(st.integers(-steps, steps), st.booleans()), min_size=20, max_size=60))
    correct = [c for _, c in rows]
    assume(min(sum(correct), len(correct) - sum(correct)) >= 10)
    return [s / steps for s, _ in rows], correct


def normal_model(n, share, distance, seed):
    rng = np.random.default_rng(seed)
    correct = rng.random(n) < share
    return rng.normal(distance * correct), correct


@settings(max_examples=60, deadline=None)
@given(scored(), st.sampled_from(TARGETS), st.sampled_from(["f8", "f4"]))
def test_is_a_naive_loop_over_all_thresholds(items, target, kind):
    scores, correct = np.array(items[0], kind), items[1]
    expected = naive_choice(scores.tolist(), correct, target)
    try:
        found = choose_threshold(scores, correct, target, resamples=3)
    except DataError:
        wrong = len(correct) - sum(correct)
        if expected is None:
            return
        rates = naive_rates(scores, correct, expected)
        few = {Precision: rates["coverage"] * len(correct) < 3 / (1 - getattr(target, "least", 0)) - 1e-6}
        assert few.get(type(target), wrong < 3 / getattr(target, "most", 1))
        return
    assert expected is not None
    assert scores[scores >= found.value].min() == expected
    assert found.rates == naive_rates(scores, correct, expected)
    assert (found.accepts(scores) == (scores >= np.asarray(expected, kind))).all()
    for name, (low, high) in found.intervals.items():
        assert 0 <= low <= found.rates[name] <= high <= 1
    assert found.interval[0] <= found.value <= found.interval[1]


@pytest.mark.parametrize("target", TARGETS)
def test_hand_made_scores_have_the_threshold_halfway(target):
    """Ten correct at 3, ten wrong at 1: every target that can tell separates them, and 2 is the middle."""
    scores, correct = np.repeat([3.0, 1.0], 20), np.repeat([True, False], 20)
    found = choose_threshold(scores, correct, target)
    if target in (EqualErrorRate(), FBeta(1.0), FBeta(0.5), FBeta(2.0), FalseAcceptRate(0.25), Precision(0.7)):
        assert found.value == 2.0
        assert found.rates == {"precision": 1.0, "recall": 1.0, "false accept rate": 0.0, "coverage": 0.5}
    else:  # half of all are correct, which Precision(0.5) allows
        assert found.value == (1.0 if target == Precision(0.5) else 2.0)


def test_ties_go_to_the_larger_coverage():
    scores = np.repeat([4.0, 3.0, 2.0], [12, 12, 12])
    correct = np.concatenate([np.ones(12), np.tile([1, 0], 6), np.zeros(12)]).astype(bool)
    # F1: 2 * 12 / (18 + 12) = 0.8; 2 * 18 / (18 + 24) = 6/7; 2 * 18 / (18 + 36) = 2/3
    assert choose_threshold(scores, correct, "f1").value == 2.5
    # FAR and FRR: (0, 1/3), (1/3, 0), (1, 0): the first two are equally far apart
    assert choose_threshold(scores, correct, "eer").value == 2.5
    # A precision of 0.75 is reached at 24 items exactly, and a little more only at 12, which are too few
    assert choose_threshold(scores, correct, "precision=0.75").rates["coverage"] == 24 / 36
    with pytest.raises(DataError, match="12"):
        choose_threshold(scores, correct, "precision=0.7500001")
    # A third of the wrong is allowed exactly
    assert choose_threshold(scores, correct, FalseAcceptRate(1 / 3)).value == 2.5
    assert choose_threshold(scores, correct, FalseAcceptRate(0.33)).value == 3.5


def test_a_lower_threshold_wins_although_one_between_is_not_precise_enough():
    correct = np.array([1] * 10 + [0] * 5 + [1] * 30 + [0] * 20, bool)
    scores = -np.arange(len(correct), dtype=float)
    found = choose_threshold(scores, correct, "precision=0.8")
    assert found.rates["coverage"] * len(correct) == 50  # 40 of 50; at 15 accepted it was 10 of 15
    assert found.value == -49.5


def test_equal_error_neighbours_the_interpolated_one_of_verification():
    scores, correct = normal_model(500, 0.4, 1.5, 1)
    found = choose_threshold(scores, correct, "eer")
    peer = verification_from_scores(scores, correct)
    between = np.sort(scores)[np.searchsorted(np.sort(scores), sorted([found.value, peer.threshold]))]
    assert np.count_nonzero((scores >= between[0]) & (scores < between[1])) <= 1
    assert found.rates["false accept rate"] == pytest.approx(peer.values["EER"], abs=1 / (~correct).sum())


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_neighbouring_floats_are_told_apart_in_their_own_type(kind):
    above = np.nextafter(np.array(0.7, kind), np.array(1, kind))
    scores = np.repeat(np.array([above, 0.7], kind), 20)
    correct = np.repeat([True, False], 20)
    found = choose_threshold(scores, correct, "eer")
    assert (found.accepts(scores) == correct).all()
    assert ((scores >= found.value) == correct).all()  # numpy compares in the type of the scores


def test_confidences_with_many_ones():
    """Ones cannot be told apart: 900 correct and 30 wrong share the highest score."""
    scores = np.concatenate([np.ones(930), np.linspace(0.1, 0.9, 170)])
    correct = np.concatenate([np.ones(900), np.zeros(30), np.tile([1, 0], 85)]).astype(bool)
    found = choose_threshold(scores, correct, "precision=0.96")
    assert found.rates["precision"] >= 0.96
    assert found.accepts(scores).sum() >= 930
    with pytest.raises(DataError, match=r"0\.967"):
        choose_threshold(scores, correct, "precision=0.99")
    with pytest.raises(DataError, match=r"0\.27"):
        choose_threshold(scores, correct, "far=0.1")
    assert choose_threshold(scores, correct, "far=0.27").rates["false accept rate"] <= 0.27


def test_distances_with_a_minus_sign():
    scores, correct = normal_model(900, 0.3, 2.0, 0)
    shifted = scores - 100
    near, far = (choose_threshold(s, correct, "far=0.05") for s in (scores, shifted))
    assert far.value == pytest.approx(near.value - 100)
    assert far.rates == near.rates
    assert far.intervals == near.intervals


def test_equal_scores_accept_everything_and_say_so():
    found = choose_threshold(np.ones(100), np.arange(100) < 90, "precision=0.8")
    assert found.value == 1.0
    assert found.interval == (1.0, math.inf) or found.interval == (1.0, 1.0)
    assert found.rates["coverage"] == 1.0
    assert any("every" in note for note in found.notes)


# Intervals


TRUE_RATES = {  # of scores N(2, 1) for the 40 % that are correct, N(0, 1) for the others
    "precision": lambda t: 0.4 * norm.sf(t - 2) / (0.4 * norm.sf(t - 2) + 0.6 * norm.sf(t)),
    "recall": lambda t: norm.sf(t - 2),
    "false accept rate": norm.sf,
    "coverage": lambda t: 0.4 * norm.sf(t - 2) + 0.6 * norm.sf(t),
}


def _f1(t):
    p, r = TRUE_RATES["precision"](t), TRUE_RATES["recall"](t)
    return 2 * p * r / (p + r)


TRUE_THRESHOLDS = {
    "far=0.05": norm.isf(0.05),
    "precision=0.9": brentq(lambda t: TRUE_RATES["precision"](t) - 0.9, -3, 5),
    "eer": 1.0,
    "f1": minimize_scalar(lambda t: -_f1(t), bounds=(-2, 4), method="bounded").x,
}


@pytest.mark.parametrize("target", TRUE_THRESHOLDS)
def test_intervals_hold_what_is_true_as_often_as_they_say(target):
    """80 % intervals of 120 samples: a share below 0.7 or above 0.9 has a probability under 1 % if they are right."""
    trials, level = 120, 0.8
    assert binom.cdf(0.7 * trials - 1, trials, level) < 0.01
    held = dict.fromkeys([*TRUE_RATES, "threshold"], 0)
    for seed in range(trials):
        scores, correct = normal_model(500, 0.4, 2.0, seed)
        found = choose_threshold(scores, correct, target, resamples=150, level=level, seed=seed)
        held["threshold"] += found.interval[0] <= TRUE_THRESHOLDS[target] <= found.interval[1]
        for name, rate in TRUE_RATES.items():
            held[name] += found.intervals[name][0] <= rate(found.value) <= found.intervals[name][1]
    shares = {name: count / trials for name, count in held.items()}
    assert all(0.68 <= share <= 0.92 for share in shares.values()), shares


def naive_resamples(scores, correct, groups, target, resamples, seed):
    """Groups, then items inside each, drawn one by one."""
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    values = []
    for _ in range(resamples):
        chosen = rng.integers(len(members), size=len(members)) if len(members) > 1 else [0]
        rows = np.concatenate([rng.choice(members[g], len(members[g])) for g in chosen])
        points, _ = OperatingPoints.of(scores[rows], correct[rows])
        place = target.pick(points.right, points.wrong)[None]
        values.append(float(points.value(place, place)[0]) if place[0] >= 0 else math.inf)
    return np.array(values)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("target", ["eer", "far=0.1", "precision=0.8"])
def test_interval_is_that_of_drawing_items_one_by_one(target, grouped):
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(30), 20)
    correct = rng.random(600) < 0.4
    scores = rng.normal(2.0 * correct) + rng.normal(size=30)[groups]  # classes differ, so they must be drawn
    given = groups if grouped else None
    ours = choose_threshold(scores, correct, target, groups=given, resamples=4000, level=0.8)
    naive = naive_resamples(scores, correct, groups * grouped, as_target(target), 2000, 1)
    low, high = ours.interval
    assert np.mean(naive < low) < 0.13
    assert np.mean(naive <= low) > 0.07
    assert np.mean(naive > high) < 0.13
    assert np.mean(naive >= high) > 0.07


def test_groups_that_differ_widen_the_interval():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 50)
    correct = rng.random(2000) < 0.5
    scores = rng.normal(2.0 * correct) + rng.normal(size=40)[groups]
    alone, together = (choose_threshold(scores, correct, "eer", groups=g) for g in (None, [f"c{g}" for g in groups]))
    assert alone.value == together.value
    assert np.diff(together.interval)[0] > 2 * np.diff(alone.interval)[0]


def test_resampled_counts_have_the_means_and_variances_of_the_bootstrap():
    """By hand: the variance of drawing groups, and that of drawing items, which is their mean number."""
    cells, correct = np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 0, 1, 0, 0], bool)
    groups = np.array([0, 0, 1, 1, 1, 0])
    right, wrong = (np.concatenate(parts) for parts in zip(*resampled(cells, correct, groups, 40_000, 0), strict=True))
    np.testing.assert_allclose(right.mean(axis=0), [2, 3, 3], rtol=0.03)
    np.testing.assert_allclose(wrong.mean(axis=0), [1, 2, 3], rtol=0.03)
    # first cell, correct: 2 in group 0 and none in group 1; counts of the two groups are Binomial(2, 1/2)
    assert right[:, 0].var() == pytest.approx(2**2 * 0.5 + 2, rel=0.05)
    # all the wrong: 1 in group 0 and 2 in group 1, drawn in opposition
    assert wrong[:, 2].var() == pytest.approx((1 - 2) ** 2 * 0.5 + 3, rel=0.05)


def test_a_resample_puts_its_threshold_between_what_it_drew():
    """Cells at 3, 2 and 1; nothing is drawn at 2, in the second resample nothing is accepted."""
    points, _ = OperatingPoints.of(np.array([3.0, 2.0, 1.0]), np.array([True, True, False]))
    draws = [(np.array([[5, 5, 5], [0, 0, 0]]), np.array([[0, 0, 5], [0, 0, 0]]))]
    values, rates = thresholds._bootstrap(EqualErrorRate(), points, 0, draws)
    assert values.tolist() == [2.0, math.inf]
    assert rates["recall"][0] == 1.0
    assert np.isnan(rates["recall"][1])


def test_fewer_points_give_nearly_the_same_interval(monkeypatch):
    scores, correct = normal_model(30_000, 0.3, 2.0, 0)
    for target in ("far=0.01", "precision=0.9", "eer"):
        coarse = choose_threshold(scores, correct, target, resamples=400)
        with monkeypatch.context() as patched:
            patched.setattr(thresholds, "_MOST_POINTS", 10**9)
            fine = choose_threshold(scores, correct, target, resamples=400)
        assert coarse.value == fine.value
        assert coarse.rates == fine.rates
        np.testing.assert_allclose(coarse.interval, fine.interval, atol=0.2 * np.diff(fine.interval)[0])
        assert any("30,000" in note for note in coarse.notes)
        assert not fine.notes


def test_kept_points_are_densest_around_the_chosen_one():
    scores, correct = normal_model(50_000, 0.5, 1.0, 0)
    points, _ = OperatingPoints.of(scores, correct)
    kept, merged = points.around(20_000, 2048)
    assert len(kept.right) <= 2050
    place = merged[20_000]
    assert (kept.right[place], kept.wrong[place]) == (points.right[20_000], points.wrong[20_000])
    assert (kept.right[-1], kept.wrong[-1]) == (points.right[-1], points.wrong[-1])
    places = np.array([np.flatnonzero(points.lowest == low)[0] for low in kept.lowest])
    gaps = np.diff(places)
    assert (gaps <= 1 + 0.012 * np.abs(places[:-1] - 20_000) + 0.012 * gaps).all()
    np.testing.assert_array_equal(kept.highest, points.highest[np.append(0, places[:-1] + 1)])
    assert (np.diff(merged) >= 0).all()
    assert (merged[places] == np.arange(len(places))).all()


@pytest.mark.parametrize("grouped", [False, True])
def test_two_million_items(grouped):
    scores, correct = normal_model(2_000_000, 0.3, 3.0, 0)
    groups = np.arange(len(scores)) % 1000 if grouped else None
    found = choose_threshold(scores.astype("f4"), correct, "far=0.0001", groups=groups, resamples=100)
    assert found.value == pytest.approx(norm.isf(1e-4), abs=0.05)
    assert found.interval[0] < norm.isf(1e-4) < found.interval[1]
    assert np.diff(found.interval)[0] < 0.3
    accepted = found.accepts(scores.astype("f4"))
    assert found.rates["false accept rate"] == (accepted & ~correct).sum() / (~correct).sum()


def test_a_target_that_resamples_do_not_reach_makes_the_interval_infinite():
    """Precision 0.75 is met at all 40 items only, and every other resample has less."""
    found = choose_threshold(np.ones(40), np.arange(40) < 30, "precision=0.75")
    assert found.interval == (1.0, math.inf)
    (note,) = [note for note in found.notes if "no threshold met" in note]
    share = float(re.search(r"In (\d+) %", note)[1])
    assert 30 < share < 60


def test_a_rate_that_cannot_vary_gets_its_binomial_end():
    scores, correct = np.repeat([3.0, 1.0], 50), np.repeat([True, False], 50)
    found = choose_threshold(scores, correct, "eer", level=0.9)
    low, high = found.intervals["precision"]
    assert high == 1.0
    assert binom.pmf(50, 50, low) == pytest.approx(0.05)
    assert found.intervals["false accept rate"] == (0.0, pytest.approx(1 - low))
    assert any("binomial" in note for note in found.notes)


def test_the_seed_decides():
    scores, correct = normal_model(300, 0.4, 2.0, 0)
    first, again, other = (choose_threshold(scores, correct, "eer", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.value == other.value
    assert first.intervals != other.intervals


@pytest.mark.parametrize("resamples", [1, 2])
def test_few_resamples_still_give_ordered_intervals(resamples):
    scores, correct = normal_model(60, 0.4, 2.0, 0)
    found = choose_threshold(scores, correct, "eer", resamples=resamples, groups=correct.tolist())
    for low, high in [found.interval, *found.intervals.values()]:
        assert low <= high
    assert any("groups" in note for note in found.notes)


# Refusals


def stated(error):
    """The numbers that an error states, in its order."""
    return [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?", str(error))]


def offered(error, wish):
    """The share that an error offers in place of the one that was wished for, or None."""
    shares = [share for share in stated(error) if 0 < share < 1 and share != pytest.approx(wish, rel=1e-9)]
    return shares[-1] if shares else None


def test_too_few_wrong_items_for_a_false_accept_rate():
    scores, correct = normal_model(1000, 0.4, 2.0, 0)
    total = int((~correct).sum())
    with pytest.raises(DataError, match=str(total)) as error:
        choose_threshold(scores, correct, "far=0.001")
    assert 3000 in stated(error.value)
    times = math.ceil(max(stated(error.value)) / 1000)
    assert 3000 / total <= times <= 1.2 * 3000 / total + 1
    assert choose_threshold(np.tile(scores, times), np.tile(correct, times), "far=0.001", resamples=1)
    rate = offered(error.value, 0.001)
    assert choose_threshold(scores, correct, FalseAcceptRate(rate), resamples=1)
    with pytest.raises(DataError, match="accept"):
        choose_threshold(scores, correct, FalseAcceptRate(0.9 * rate), resamples=1)


@pytest.mark.parametrize(("wrong", "enough"), [(29, False), (30, True)])
def test_the_rule_of_three_is_kept_exactly(wrong, enough):
    correct = np.arange(wrong + 50) < 50
    scores = np.where(correct, 1.0, 0.0)
    if enough:
        assert choose_threshold(scores, correct, "far=0.1").rates["false accept rate"] == 0
    else:
        with pytest.raises(DataError, match="30"):
            choose_threshold(scores, correct, "far=0.1")


@pytest.mark.parametrize(("accepted", "enough"), [(29, False), (30, True)])
def test_a_precision_counts_accepted_items_exactly(accepted, enough):
    correct = np.arange(accepted + 50) < accepted  # 3 / (1 - 0.9) is 30, though not in floats
    scores = -np.arange(accepted + 50.0)
    scores[accepted:] = -1000.0
    if enough:
        assert choose_threshold(scores, correct, "precision=0.9").rates["precision"] == 1
    else:
        with pytest.raises(DataError, match="30"):
            choose_threshold(scores, correct, "precision=0.9")


def test_too_few_accepted_items_for_a_precision():
    correct = np.array([1] * 40 + [0] * 10 + [1, 0] * 200, bool)
    scores = -np.arange(len(correct), dtype=float)
    with pytest.raises(DataError, match="450") as error:
        choose_threshold(scores, correct, "precision=0.99")
    assert 300 in stated(error.value)
    times = math.ceil(max(stated(error.value)) / len(correct))
    assert times == 8
    assert choose_threshold(np.tile(scores, times), np.tile(correct, times), "precision=0.99", resamples=1)
    best = offered(error.value, 0.99)
    assert best == 0.93  # with three wrong ones more: 40 of 43, and 1 - 3 / 43
    assert choose_threshold(scores, correct, Precision(best), resamples=1).rates["coverage"] == 43 / 450
    with pytest.raises(DataError, match="accept"):
        choose_threshold(scores, correct, Precision(best + 0.001), resamples=1)


def test_a_precision_that_no_threshold_reaches():
    correct = np.tile([False, True, True, True], 100)
    scores = -np.arange(400.0)
    with pytest.raises(DataError, match="precision") as error:
        choose_threshold(scores, correct, "precision=0.95")
    best = offered(error.value, 0.95)
    assert best == 0.75
    assert choose_threshold(scores, correct, Precision(best), resamples=1)


def test_fewer_items_than_a_precision_takes():
    correct = np.array([False] + [True] * 20)
    with pytest.raises(DataError, match="100"):
        choose_threshold(-np.arange(21.0), correct, "precision=0.97")


@pytest.mark.parametrize(("target", "name"), [("eer", "equal error rate"), ("f0.5", r"F0\.5")])
def test_ten_of_each_kind(target, name):
    scores, correct = np.linspace(0, 1, 100), np.arange(100) >= 91
    with pytest.raises(DataError, match=name) as error:
        choose_threshold(scores, correct, target)
    needed = max(stated(error.value))
    assert 9 / 100 * needed >= 10
    assert choose_threshold(scores, np.arange(100) >= 90, target).correct == 10


@settings(max_examples=40, deadline=None)
@given(scored(), st.floats(0.05, 0.995))
def test_what_a_refusal_offers_is_accepted(items, wish):
    scores, correct = items
    for make, share in ((Precision, wish), (FalseAcceptRate, 1 - wish)):
        try:
            choose_threshold(scores, correct, make(share), resamples=1)
        except DataError as error:
            found = offered(error, share)
            if found:
                assert choose_threshold(scores, correct, make(found), resamples=1)


@pytest.mark.parametrize("kind", ["correct", "wrong"])
def test_one_kind_alone_is_refused(kind):
    with pytest.raises(DataError, match=kind):
        choose_threshold(np.arange(50.0), np.full(50, kind == "correct"), "eer")


# Bad input, targets as text, JSON


SCORES, CORRECT = normal_model(60, 0.5, 2.0, 0)


@pytest.mark.parametrize(
    ("scores", "correct", "match"),
    [
        (np.append(SCORES[:-1], np.nan), CORRECT, "row 59"),
        (np.append(np.inf, SCORES[1:]), CORRECT, "NaN"),
        (SCORES[:-1], CORRECT, "correct"),
        (SCORES.reshape(2, 30), CORRECT.reshape(2, 30), "one-dim"),
        ([], [], "scores"),
        (0.5, True, "one-dim"),
        (["high"] * 60, CORRECT, "numbers"),
        ([[1, 2], [3]], CORRECT, "array"),
        (None, CORRECT, "numbers"),
        (SCORES + 1j, CORRECT, "numbers"),
        (np.ma.masked_less(SCORES, 0), CORRECT, "masked"),
        (torch.tensor(SCORES).to_sparse(), CORRECT, "array"),
        (SCORES, CORRECT * 2, "True"),
        (SCORES, np.where(CORRECT, 1.0, np.nan), "True"),
        (SCORES, np.where(CORRECT, "yes", "no"), "numbers"),
        (SCORES, np.ma.masked_array(CORRECT, ~CORRECT), "masked"),
    ],
)
def test_bad_items_are_told_in_a_sentence(scores, correct, match):
    with pytest.raises(DataError, match=match):
        choose_threshold(scores, correct, "eer")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"resamples": 0}, "resamples"),
        ({"resamples": 10.5}, "resamples"),
        ({"level": 1}, "level"),
        ({"level": "high"}, "level"),
        ({"seed": -1}, "seed"),
        ({"groups": [1, 2, 3]}, "groups"),
        ({"groups": "abc"}, "groups"),
        ({"groups": [None] * 60}, "groups"),
        ({"groups": np.ma.masked_equal(np.arange(60), 3)}, "masked"),
    ],
)
def test_bad_options_are_told_in_a_sentence(options, match):
    with pytest.raises(DataError, match=match):
        choose_threshold(SCORES, CORRECT, "eer", **options)


@pytest.mark.parametrize(
    "scores",
    [SCORES.astype("f4"), torch.tensor(SCORES, requires_grad=True), torch.tensor(SCORES).bfloat16(), SCORES.tolist()],
)
@pytest.mark.parametrize("correct", [CORRECT.tolist(), CORRECT.astype(float), torch.tensor(CORRECT)])
def test_arrays_tensors_and_lists_are_taken(scores, correct):
    found = choose_threshold(scores, correct, "eer", groups=torch.arange(60) % 12)
    assert found.value == pytest.approx(choose_threshold(SCORES, CORRECT, "eer").value, abs=0.02)
    assert found.accepts(scores).mean() == found.rates["coverage"]


def test_whole_numbers_and_bools_are_scores():
    votes = np.round(3 * SCORES).astype(int)
    assert choose_threshold(votes, CORRECT, "eer") == choose_threshold(votes.astype(float), CORRECT, "eer")
    assert choose_threshold(SCORES > 1, CORRECT, "eer").value == 0.5


def test_accepts_any_shape_and_refuses_nan():
    found = choose_threshold(SCORES, CORRECT, "eer")
    assert found.accepts(SCORES.reshape(3, 20)).shape == (3, 20)
    assert found.accepts([np.inf, -np.inf]).tolist() == [True, False]
    assert bool(found.accepts(found.value))
    with pytest.raises(DataError, match="NaN"):
        found.accepts([0.1, np.nan])


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("precision=0.99", Precision(0.99)),
        (" Precision = 0.9 ", Precision(0.9)),
        ("far=0.001", FalseAcceptRate(0.001)),
        ("FAR=1e-3", FalseAcceptRate(0.001)),
        ("eer", EqualErrorRate()),
        ("f1", FBeta(1.0)),
        ("f0.5", FBeta(0.5)),
        ("f=2", FBeta(2.0)),
    ],
)
def test_targets_are_read_from_text(text, target):
    assert as_target(text) == target
    assert as_target(target) is target
    assert as_target(target.text) == target


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("presicion=0.95", "presicion"),
        ("frr=0.01", "frr"),
        ("err", "'err'"),
        ("f", "'f'"),
        ("precision", "'precision'"),
        ("recall", "recall"),
        ("", "target"),
        (0.99, "precision="),
        (None, "None"),
        ("precision=99", "99"),
        ("precision=nan", "nan"),
        ("precision=1", "precision"),
        ("precision=0", "precision"),
        ("far=0", "false accept"),
        ("far=1", "false accept"),
        ("far=-0.1", r"-0\.1"),
        ("f0", "0"),
        ("f1e400", "0"),
    ],
)
def test_other_targets_are_told_in_a_sentence(given, match):
    with pytest.raises(DataError, match=match):
        as_target(given)


@pytest.mark.parametrize("make", [Precision, FalseAcceptRate, FBeta])
@pytest.mark.parametrize("value", ["0.5", None, True, math.nan])
def test_targets_need_numbers(make, value):
    with pytest.raises(DataError, match="number"):
        make(value)


@pytest.mark.parametrize("target", ["precision=0.75", "far=0.1", "eer", "f0.5"])
def test_json_round_trip(target):
    infinite = choose_threshold(np.ones(40), np.arange(40) < 30, "precision=0.75")
    for found in (infinite, choose_threshold(*normal_model(200, 0.5, 2.0, 0), target)):
        plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert Threshold.from_dict(plain) == found
