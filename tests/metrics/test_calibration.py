"""Calibration metrics against naive loops, scikit-learn, values by hand, and simulations with a known answer."""

import json
import math
import warnings
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap
from nearkin.metrics.calibration import CalibrationResult, calibration_from_probabilities, calibration_metrics

NAMES = ["accuracy", "ECE", "adaptive ECE", "MCE", "NLL", "Brier", "AURC"]


def naive_bins(confidence, bins):
    """The bin of each query, by comparing with every edge in turn."""
    return [max(m for m in range(bins) if m == 0 or c >= m / bins) for c in confidence]


def naive_adaptive_bins(confidence, bins):
    """A query's part is where the mean rank of its equals lies, in fractions."""
    n = len(confidence)
    places = []
    for c in confidence:
        below, equal = sum(other < c for other in confidence), sum(other == c for other in confidence)
        places.append(math.floor(Fraction(2 * below + equal, 2 * n) * bins))
    return places


def naive_errors(confidence, correct, places):
    """ECE and MCE of given bins."""
    expected, largest = 0.0, 0.0
    for place in set(places):
        rows = [row for row, other in enumerate(places) if other == place]
        gap = abs(sum(correct[row] for row in rows) - sum(confidence[row] for row in rows)) / len(rows)
        expected += len(rows) / len(places) * gap
        largest = max(largest, gap)
    return expected, largest


def naive_aurc(order, correct):
    """Queries answered in this order; the mean over coverages of the error rate so far."""
    risks = [sum(not correct[row] for row in order[:i]) / i for i in range(1, len(order) + 1)]
    return sum(risks) / len(risks)


def naive_expected_aurc(confidence, correct):
    """Each coverage takes whole levels, and of the level it cuts, every query with the same chance."""
    n, total = len(confidence), Fraction(0)
    for i in range(1, n + 1):
        wrong, left = Fraction(0), i
        for level in sorted(set(confidence), reverse=True):
            rows = [row for row in range(n) if confidence[row] == level]
            taken = min(left, len(rows))
            wrong += Fraction(taken * sum(not correct[row] for row in rows), len(rows))
            left -= taken
        total += wrong / i
    return float(total / n)


def naive_values(confidence, correct, truth, squares, bins):
    confidence, correct = list(map(float, confidence)), list(map(bool, correct))
    ece, mce = naive_errors(confidence, correct, naive_bins(confidence, bins))
    adaptive, _ = naive_errors(confidence, correct, naive_adaptive_bins(confidence, bins))
    return {
        "accuracy": sum(correct) / len(correct),
        "ECE": ece,
        "adaptive ECE": adaptive,
        "MCE": mce,
        "NLL": sum(-math.log(max(t, 1e-12)) for t in truth) / len(truth),
        "Brier": sum(s - 2 * t + 1 for s, t in zip(squares, truth, strict=True)) / len(truth),
        "AURC": naive_expected_aurc(confidence, correct),
    }


def softmaxes(n, classes, seed=0, sharpness=2.0):
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(n, classes))
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), rng.integers(0, classes, n)


def votes(n, k, classes, seed=0):
    """Shares of k votes: many queries have equal confidences, and these lie on the edges of bins."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, classes, (n, k))
    return np.stack([(drawn == c).sum(axis=1) for c in range(classes)], axis=1) / k, rng.integers(0, classes, n)


def parts(p, targets):
    rows = np.arange(len(p))
    predicted = p.argmax(axis=1)
    options = {"truth": p[rows, targets], "squares": (p**2).sum(axis=1)}
    return (p[rows, predicted], predicted == targets), options


def close(found, expected):
    assert list(found) == list(expected)
    for name, value in found.items():
        assert value == pytest.approx(expected[name], rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("bins", [1, 2, 5, 10, 15, 40])
@pytest.mark.parametrize("made", [softmaxes(57, 4), votes(60, 5, 3), votes(45, 15, 4), votes(7, 1, 2), softmaxes(1, 3)])
def test_is_what_naive_loops_find(made, bins):
    given_, options = parts(*made)
    result = calibration_metrics(*given_, **options, bins=bins)
    assert list(result.values) == NAMES
    close(result.values, naive_values(*given_, options["truth"], options["squares"], bins))
    close(calibration_from_probabilities(*made, bins=bins).values, result.values)
    assert result.queries == len(made[1])


def test_by_hand():
    # Bins of width 1/2: {0.2, 0.4}, one right, and {0.5, 0.8, 1.0}, two right. The answer of 0.8 is wrong.
    result = calibration_metrics([1.0, 0.2, 0.5, 0.4, 0.8], [1, 0, 1, 1, 0], bins=2)
    first, second = abs(0.5 - 0.3), abs(2 / 3 - 2.3 / 3)
    close(
        result.values,
        {
            "accuracy": 0.6,
            "ECE": 0.4 * first + 0.6 * second,
            # ranks 0, 1 below the half; the middle query's own middle is the half, and goes up
            "adaptive ECE": 0.4 * first + 0.6 * second,
            "MCE": first,
            "AURC": (0 + 1 / 2 + 1 / 3 + 1 / 4 + 2 / 5) / 5,
        },
    )
    np.testing.assert_array_equal(result.reliability.edges, [0, 0.5, 1])
    np.testing.assert_array_equal(result.reliability.counts, [2, 3])
    np.testing.assert_allclose(result.reliability.confidence, [0.3, 2.3 / 3])
    np.testing.assert_allclose(result.reliability.accuracy, [0.5, 2 / 3])
    np.testing.assert_allclose(result.adaptive.edges, [0.2, 0.5, 1.0])
    coverage, risk = result.risk_coverage
    np.testing.assert_allclose(coverage, [0.2, 0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(risk, [0, 1 / 2, 1 / 3, 1 / 4, 2 / 5])


def test_agrees_with_scikit_learn():
    p, targets = softmaxes(400, 6, seed=3)
    values = calibration_from_probabilities(p, targets).values
    assert values["accuracy"] == pytest.approx(accuracy_score(targets, p.argmax(axis=1)))
    assert values["NLL"] == pytest.approx(log_loss(targets, p, labels=range(6)))
    assert values["Brier"] == pytest.approx(brier_score_loss(targets, p, labels=range(6), scale_by_half=False))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("bins", [3, 7, 10, 15, 100])
def test_a_confidence_on_an_edge_is_in_the_bin_above_however_it_is_rounded(bins, kind):
    shares = (np.arange(bins + 1) / bins).astype(kind)
    curve = calibration_metrics(shares, np.ones(bins + 1), bins=bins).reliability
    np.testing.assert_array_equal(curve.counts, [1] * (bins - 1) + [2])
    np.testing.assert_array_equal(curve.edges, shares)


def test_empty_bins_are_nan_and_none_and_count_for_nothing():
    result = calibration_metrics([0.05, 0.95, 0.95], [0, 1, 0], bins=4)
    np.testing.assert_array_equal(result.reliability.counts, [1, 0, 0, 2])
    np.testing.assert_array_equal(np.isnan(result.reliability.confidence), [False, True, True, False])
    np.testing.assert_array_equal(np.isnan(result.reliability.accuracy), [False, True, True, False])
    assert result.values["ECE"] == pytest.approx((0.05 + 2 * 0.45) / 3)
    assert result.to_dict()["reliability"]["accuracy"] == [0.0, None, None, 0.5]


@pytest.mark.parametrize("n", [15, 30, 47, 100, 7])
def test_adaptive_bins_differ_by_one_at_most_where_no_confidence_repeats(n):
    rng = np.random.default_rng(n)
    curve = calibration_metrics(rng.permutation(n) / n, rng.random(n) < 0.5).adaptive
    assert len(curve.counts) == min(n, 15)
    assert curve.counts.sum() == n
    assert curve.counts.max() - curve.counts.min() <= (n % 15 > 0)
    assert len(curve.edges) == len(curve.counts) + 1


def test_equal_confidences_share_an_adaptive_bin_and_bins_are_never_empty():
    confidence = np.repeat([0.3, 0.31, 0.9], [1, 60, 39])
    curve = calibration_metrics(confidence, np.ones(100), bins=10).adaptive
    np.testing.assert_array_equal(curve.counts, [1, 60, 39])
    np.testing.assert_array_equal(curve.edges, [0.3, 0.31, 0.9, 0.9])
    alone = calibration_metrics(np.ones(20), np.arange(20) < 5)
    np.testing.assert_array_equal(alone.adaptive.counts, [20])
    assert alone.values["ECE"] == alone.values["adaptive ECE"] == alone.values["MCE"] == 0.75
    assert alone.values["AURC"] == pytest.approx(0.75, rel=1e-12)  # 1-NN: any order of the answers is as good


def test_aurc_of_equal_confidences_is_the_mean_over_their_orders():
    confidence, correct = [0.9, 0.9, 0.9, 0.5, 0.5, 0.2], [1, 0, 1, 0, 1, 0]
    orders = [o for o in permutations(range(6)) if all(confidence[a] >= confidence[b] for a, b in pairwise(o))]
    expected = np.mean([naive_aurc(order, correct) for order in orders])
    assert len(orders) == 12
    assert calibration_metrics(confidence, correct).values["AURC"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("made", [softmaxes(300, 4), votes(300, 5, 3)])
@pytest.mark.parametrize("named", [False, True])
def test_the_order_of_the_queries_changes_nothing(made, named):
    p, targets = made
    labels = targets.astype(str) if named else None
    first = calibration_from_probabilities(p, targets, labels=labels, resamples=20).to_dict()
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(p))
        again = calibration_from_probabilities(
            p[order], targets[order], labels=labels if labels is None else labels[order], resamples=20
        )
        assert again.to_dict() == first


@st.composite
def answers(draw):
    n = draw(st.integers(1, 40))
    share = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.2, 0.5, 0.6, 1.0]))
    confidence = draw(st.lists(share, min_size=n, max_size=n))
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(confidence), np.array(correct), draw(st.integers(1, 20))


@settings(max_examples=150, deadline=None)
@given(answers())
def test_bounds_and_loops_for_any_answers(made):
    confidence, correct, bins = made
    result = calibration_metrics(confidence, correct, bins=bins)
    values, tiny = result.values, 1e-12
    assert 0 <= values["ECE"] <= values["MCE"] + tiny <= 1 + 2 * tiny
    assert (
        abs(values["accuracy"] - confidence.mean()) <= values["ECE"] + tiny
    )  # triangle inequality, one bin at the least
    assert abs(values["accuracy"] - confidence.mean()) <= values["adaptive ECE"] + tiny <= 1 + 2 * tiny
    assert values["accuracy"] == correct.mean()
    assert result.risk_coverage[1][-1] == pytest.approx(1 - values["accuracy"], abs=tiny)
    assert 0 <= values["AURC"] <= 1
    expected = naive_values(confidence, correct, confidence, confidence, bins)
    close(values, {name: expected[name] for name in values})
    for curve in (result.reliability, result.adaptive):
        assert curve.counts.sum() == len(confidence)
        filled = curve.counts > 0
        assert (curve.confidence[filled] >= curve.edges[:-1][filled] - tiny).all()
        assert (curve.confidence[filled] <= curve.edges[1:][filled] + tiny).all()


@settings(max_examples=100, deadline=None)
@given(answers())
def test_no_order_has_less_risk_than_right_answers_first_nor_more_than_wrong_ones_first(made):
    confidence, correct, _ = made
    best, worst = np.argsort(~correct, kind="stable"), np.argsort(correct, kind="stable")
    found = calibration_metrics(confidence, correct).values["AURC"]
    assert naive_aurc(best, correct) - 1e-12 <= found <= naive_aurc(worst, correct) + 1e-12
    assert calibration_metrics(correct, correct).values["AURC"] == pytest.approx(naive_aurc(best, correct), abs=1e-12)


@pytest.mark.parametrize("right", [True, False])
def test_limits_are_exact(right):
    n = 37
    sure = calibration_metrics(np.ones(n), [right] * n, truth=[float(right)] * n, squares=np.ones(n))
    wrong = 1.0 - right
    expected = dict.fromkeys(NAMES, wrong) | {"accuracy": float(right), "Brier": 2 * wrong}
    expected["NLL"] = -math.log(1e-12) if wrong else 0.0
    assert sure.values == pytest.approx(expected, rel=1e-15, abs=0)


def test_only_what_can_be_computed_is_there():
    confidence, correct = [0.5, 0.7], [True, False]
    short = ["accuracy", "ECE", "adaptive ECE", "MCE", "AURC"]
    assert list(calibration_metrics(confidence, correct).values) == short
    assert list(calibration_metrics(confidence, correct, squares=[0.5, 0.6]).values) == short
    assert list(calibration_metrics(confidence, correct, truth=[0.5, 0.2]).values) == [*short[:4], "NLL", "AURC"]
    result = calibration_metrics(confidence, correct, truth=[0.5, 0.2], squares=[0.5, 0.6], resamples=3)
    assert list(result.values) == list(result.intervals) == NAMES
    assert set(result.lower_is_better) | {"accuracy"} == set(NAMES)


def test_a_calibrated_model_has_an_ece_near_zero_which_shrinks_with_the_sample():
    widths, errors = [], []
    for n in (500, 5_000, 50_000):
        rng = np.random.default_rng(n)
        confidence = rng.random(n)
        result = calibration_metrics(confidence, rng.random(n) < confidence, resamples=60)
        errors.append(result.values["ECE"])
        low, high = result.intervals["ECE"]
        widths.append(high - low)
        assert result.intervals["accuracy"][0] < 0.5 < result.intervals["accuracy"][1]
        assert low <= errors[-1] <= high
    assert errors[2] < 0.01
    assert errors[0] > errors[1] > errors[2]
    assert widths[0] > widths[1] > widths[2]


def test_overconfidence_is_measured_as_what_it_is():
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.4, 1, 100_000)
    values = calibration_metrics(confidence, rng.random(100_000) < confidence - 0.2).values
    for name in ("ECE", "adaptive ECE"):
        assert values[name] == pytest.approx(0.2, abs=0.01)


def naive_draws(labels, rows, resamples, seed):
    """The same random numbers as ours, one query at a time; `rows` is the order in which queries of a class stand."""
    rng = np.random.default_rng(seed)
    names = sorted(set(labels))
    members = {name: [row for row in rows if labels[row] == name] for name in names}
    for _ in range(resamples):
        chosen = [names[place] for place in rng.integers(len(names), size=len(names))]
        uniform = iter(rng.random(sum(len(members[name]) for name in chosen)))
        yield [members[name][int(next(uniform) * len(members[name]))] for name in chosen for _ in members[name]]


@pytest.mark.parametrize("made", [softmaxes(40, 3), votes(40, 5, 3)])
@pytest.mark.parametrize("named", [False, True])
def test_intervals_are_quantiles_of_the_naive_metrics_of_drawn_queries(made, named):
    (confidence, correct), options = parts(*made)
    truth, squares = options["truth"], options["squares"]
    labels = np.repeat(np.arange(4), [3, 20, 7, 10]) if named else np.zeros(40, int)
    rows = np.lexsort([labels, squares - 2 * truth + 1, -np.log(np.maximum(truth, 1e-12)), correct, confidence])
    drawn = [
        list(naive_values(confidence[d], correct[d], truth[d], squares[d], 15).values())
        for d in naive_draws(labels, rows, 30, seed=4)
    ]
    drawn, values = np.array(drawn), naive_values(confidence, correct, truth, squares, 15)
    for column, name in enumerate(NAMES):
        if name in ("ECE", "adaptive ECE", "MCE"):  # moved back by the mean excess of the resamples
            drawn[:, column] = np.clip(drawn[:, column] + values[name] - drawn[:, column].mean(), 0, 1)
    low, high = np.quantile(drawn, [0.1, 0.9], axis=0)
    result = calibration_metrics(
        confidence, correct, **options, labels=labels if named else None, resamples=30, level=0.8, seed=4
    )
    assert list(result.intervals) == NAMES
    np.testing.assert_allclose(list(result.intervals.values()), np.stack([low, high], axis=1), rtol=1e-9, atol=1e-12)


def test_intervals_mean_what_those_of_the_class_bootstrap_mean():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 40)
    confidence = rng.random(30)[labels] * 0.9 + 0.05
    correct = rng.random(1200) < confidence
    classes = calibration_metrics(confidence, correct, truth=confidence, labels=labels, resamples=1500)
    queries = calibration_metrics(confidence, correct, truth=confidence, resamples=300)
    peers = class_bootstrap({"accuracy": correct, "NLL": -np.log(confidence)}, labels, resamples=1500, seed=9)
    for name, peer in peers.items():
        assert classes.intervals[name] == pytest.approx(peer, abs=0.15 * (peer[1] - peer[0])), name
        assert np.ptp(queries.intervals[name]) < 0.7 * np.ptp(peer), name


def test_seeds_and_levels():
    p, targets = softmaxes(80, 3)
    wide, again, other, narrow = (
        calibration_from_probabilities(p, targets, labels=targets, resamples=60, level=level, seed=seed).intervals
        for level, seed in ((0.95, 1), (0.95, 1), (0.95, 2), (0.5, 1))
    )
    assert wide == again != other
    assert all(wide[name][0] <= narrow[name][0] <= narrow[name][1] <= wide[name][1] for name in NAMES)
    assert calibration_from_probabilities(p, targets, labels=targets).intervals == {}


def test_long_curves_are_thinned_and_keep_their_ends():
    rng = np.random.default_rng(0)
    confidence = rng.random(12_345)
    correct = rng.random(12_345) < confidence
    coverage, risk = calibration_metrics(confidence, correct).risk_coverage
    assert len(coverage) == len(risk) == 1000
    assert (np.diff(coverage) > 0).all()
    assert (coverage[0], coverage[-1]) == (1 / 12_345, 1.0)
    order = np.argsort(-confidence)
    expected = np.cumsum(~correct[order]) / np.arange(1, 12_346)
    np.testing.assert_allclose(risk, expected[np.round(coverage * 12_345).astype(int) - 1], rtol=1e-12)


def test_a_result_is_plain_json():
    p, targets = votes(30, 5, 3)
    result = calibration_from_probabilities(p, targets, resamples=5)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["values"] == result.values
    assert plain["intervals"]["ECE"] == list(result.intervals["ECE"])
    assert None in plain["reliability"]["confidence"]
    assert len(plain["reliability"]["counts"]) == 15
    assert plain["risk_coverage"]["risk"] == result.risk_coverage[1].tolist()
    assert plain["adaptive"]["counts"] == result.adaptive.counts.tolist()
    assert (plain["queries"], CalibrationResult.primary, CalibrationResult.higher_is_better) == (30, "ECE", False)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_with_a_gradient_are_detached(kind):
    p = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]], dtype=kind, requires_grad=True)
    targets = torch.tensor([0, 1, 1])
    expected = calibration_from_probabilities([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]], [0, 1, 1])
    assert calibration_from_probabilities(p, targets).values == expected.values
    assert expected.values["accuracy"] == pytest.approx(2 / 3)  # of equals the lower class is predicted
    by_parts = calibration_metrics(p.max(dim=1).values, torch.tensor([True, False, True]))
    assert by_parts.values["ECE"] == expected.values["ECE"]


def test_rounding_is_cut_off_and_inputs_are_left_alone():
    confidence = np.array([1 + 5e-7, 0.5])
    truth, squares = np.array([1 + 5e-7, -1e-8]), np.array([1.0, 1 + 1e-7])
    kept = confidence.copy(), truth.copy(), squares.copy()
    result = calibration_metrics(confidence, [1, 0], truth=truth, squares=squares)
    assert result.values["Brier"] == 1.0
    assert result.reliability.counts[-1] == 1
    for before, after in zip(kept, (confidence, truth, squares), strict=True):
        np.testing.assert_array_equal(before, after)
    table = np.array([[1.0005, 0.0], [0.9995, 0.0]], np.float32)
    assert calibration_from_probabilities(table, [0, 0]).values["MCE"] == pytest.approx(0.0005 / 2, rel=1e-3)


GOOD = {"confidence": [0.5, 0.7, 0.9], "correct": [1, 0, 1], "truth": [0.5, 0.2, 0.9], "squares": [0.5, 0.6, 0.82]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"confidence": []}, "confidences"),
        ({"confidence": [0.5, np.nan, 0.9]}, "row 1"),
        ({"confidence": [0.5, np.inf, 0.9]}, "NaN"),
        ({"confidence": [0.5, 1.2, 0.9]}, r"1\.2"),
        ({"confidence": [0.5, 0.2, -0.1]}, r"-0\.1"),
        ({"confidence": [[0.5, 0.2, 0.1]]}, r"\(1, 3\)"),
        ({"confidence": 0.5}, "one-dim"),
        ({"confidence": ["a", "b", "c"]}, "numbers"),
        ({"confidence": None}, "numbers"),
        ({"confidence": [0.5, None, 0.1]}, "numbers"),
        ({"confidence": [[0.5], [0.2, 0.1]]}, "array"),
        ({"confidence": np.array([0.5j, 0.1, 0.2])}, "complex128"),
        ({"confidence": np.ma.masked_array([0.5, 0.1, 0.2], [0, 1, 0])}, "masked"),
        ({"confidence": torch.eye(3).to_sparse()}, "array"),
        ({"correct": [1, 0]}, "correct"),
        ({"correct": [1, 0, 2]}, "correct"),
        ({"correct": [1, 0, np.nan]}, "nan"),
        ({"correct": ["yes", "no", "yes"]}, "correct"),
        ({"correct": np.ma.masked_array([1, 0, 1], [0, 1, 0])}, "masked"),
        ({"truth": [0.5, 0.2]}, "probabilities"),
        ({"truth": [0.5, 0.2, 7]}, "7"),
        ({"squares": [0.5, 0.2, 3]}, "squares"),
        ({"squares": [0.5, 0.6]}, "squares"),
        ({"squares": [0.5, 0.6, 0.5]}, "row 2"),
        ({"bins": 0}, "bins"),
        ({"bins": 2.5}, "bins"),
        ({"bins": True}, "bins"),
        ({"resamples": -1}, "resamples"),
        ({"seed": -1}, "seed"),
        ({"level": 1}, "level"),
        ({"level": "high"}, "level"),
        ({"labels": ["a", "b"]}, "labels"),
        ({"labels": ["a", None, "b"]}, "labels"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(changed, message):
    arguments = GOOD | changed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibration_metrics(**GOOD)
        with pytest.raises(DataError, match=message):
            calibration_metrics(**arguments)


@pytest.mark.parametrize(
    ("table", "targets", "message"),
    [
        ([0.5, 0.5], [0, 1], "shape"),
        (np.zeros((0, 3)), [], "shape"),
        ([[0.5, 0.6]], [0], r"1\.1"),
        ([[0.5, 0.5], [1.5, -0.5]], [0, 1], r"-0\.5"),
        ([[0.5, 0.5], [np.nan, 1]], [0, 1], "nan"),
        ([["a", "b"]], [0], "numbers"),
        (np.ma.masked_array([[0.5, 0.5]], [[0, 1]]), [0], "masked"),
        ([[0.5, 0.5]], [0, 1], "targets"),
        ([[0.5, 0.5]], [2], "2"),
        ([[0.5, 0.5]], [-1], "-1"),
        ([[0.5, 0.5]], [0.5], r"0\.5"),
        ([[0.5, 0.5]], [True], "True"),
        ([[0.5, 0.5]], ["a"], "targets"),
        ([[0.5, 0.5]], [np.nan], "NaN"),
    ],
)
def test_probabilities_and_targets_that_do_not_fit_are_refused(table, targets, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=message):
            calibration_from_probabilities(table, targets)
