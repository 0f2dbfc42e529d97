"""Paired tests against enumeration by hand, scipy and what must hold when nothing differs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nearkin.errors import DataError
from nearkin.metrics import RetrievalResult, class_bootstrap, holm, paired_permutation, retrieval_metrics
from nearkin.metrics.paired import _count_drawn, _count_exact, _sign_test


def as_classes(values):
    return {f"class {place}": float(value) for place, value in enumerate(values)}


def compare(differences, **options):
    return paired_permutation(as_classes(differences), as_classes(np.zeros(len(differences))), **options)


def naive_p(numbers):
    """Exact with whole numbers: no rounding anywhere."""
    observed = abs(sum(numbers))
    sums = [
        abs(sum(s * d for s, d in zip(signs, numbers, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(numbers))
    ]
    return sum(value >= observed for value in sums) / len(sums)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(-6, 6), min_size=2, max_size=9), st.sampled_from([1.0, 0.1, 1 / 3, 1e-300, 1e300]))
def test_small_cases_are_enumerated_whatever_the_scale(numbers, scale):
    """Tenths and thirds are not binary: sums that should be equal differ by rounding."""
    result = compare([number * scale for number in numbers])
    assert result.p_value == pytest.approx(naive_p(numbers), abs=1e-15)
    assert result.exact
    assert result.p_value >= result.smallest_p


@pytest.mark.parametrize("n", [2, 5, 8, 10])
def test_is_scipys_permutation_test_of_samples(n):
    rng = np.random.default_rng(n)
    a, b = rng.random(n), rng.random(n)
    theirs = stats.permutation_test(
        (a, b),
        lambda x, y, axis: (x - y).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**n,
    )
    ours = paired_permutation(as_classes(a), as_classes(b))
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert ours.difference == pytest.approx(theirs.statistic)


def test_drawn_signs_agree_with_all_signs():
    d = np.random.default_rng(0).normal(0.25, 1, size=18)
    exact = compare(d, permutations=2**18)
    drawn = compare(d, permutations=20_000)
    assert exact.exact
    assert not drawn.exact
    assert 0.02 < exact.p_value < 0.9
    assert drawn.p_value == pytest.approx(exact.p_value, abs=4 * np.sqrt(0.25 / 20_000))
    assert compare(d, permutations=20_000) == drawn
    assert compare(d, permutations=20_000, seed=1).p_value != drawn.p_value


def test_drawn_signs_count_the_observed_ones_too():
    """Where no drawn sum reaches the observed one p is 1 / (1 + permutations), never 0."""
    result = compare(np.ones(60), permutations=999)
    assert result.p_value == result.smallest_p == 1 / 1000


def test_equal_sums_in_another_order_are_equal():
    d = np.array([0.1, 0.2, 0.3] * 10 + [-0.6] * 10)  # sums to zero but for rounding
    assert compare(d, permutations=500).p_value == 1


def test_blocks_do_not_change_the_count(monkeypatch):
    d = np.random.default_rng(0).normal(size=70)
    together = _count_drawn(d, 9.0, 1000, seed=0)
    monkeypatch.setattr("nearkin.metrics.paired._SIGNS_AT_ONCE", 70 * 128)
    assert 100 < together < 900
    assert _count_drawn(d, 9.0, 1000, seed=0) == together
    assert _count_drawn(d, -1.0, 1000, seed=0) == 1000


def test_more_signs_than_a_block_are_all_tried():
    d = np.random.default_rng(0).integers(-4, 5, size=18)
    half = np.array(list(itertools.product((-1, 1), repeat=9)))
    sums = np.add.outer(half @ d[:9], half @ d[9:])
    assert _count_exact(d.astype(float), 3.0) == (np.abs(sums) >= 3).sum()


@pytest.mark.parametrize("classes", [8, 25])
def test_p_is_uniform_when_nothing_differs(classes):
    """Both the enumerated and the drawn test, with skewed noise that is exchangeable between the models."""
    rng = np.random.default_rng(0)
    p_values = []
    for seed in range(400):
        a, b = rng.exponential(size=(2, classes))
        p_values.append(_sign_test(a - b, 400, seed)[0])
    for level in (0.05, 0.1, 0.25, 0.5, 0.75):
        share = np.mean(np.array(p_values) <= level)
        assert share == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / 400))
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_a_real_difference_is_found_and_its_interval_holds_it():
    rng = np.random.default_rng(0)
    skill = rng.random(40)  # classes differ far more than the models do
    a, b = skill + 0.05 + 0.02 * rng.normal(size=40), skill + 0.02 * rng.normal(size=40)
    result = paired_permutation(as_classes(a), as_classes(b))
    assert result.p_value < 0.001
    assert result.low < 0.05 < result.high
    assert result.low > 0.03
    assert (result.low, result.high) == class_bootstrap(a - b, np.arange(40))
    alone = class_bootstrap(a, np.arange(40))
    assert alone[1] - alone[0] > 5 * (result.high - result.low)  # what pairing is for
    swapped = paired_permutation(as_classes(b), as_classes(a))
    assert swapped.difference == pytest.approx(-result.difference)
    assert (swapped.wins, swapped.losses) == (result.losses, result.wins)


def test_no_difference_at_all():
    same = as_classes(np.random.default_rng(0).random(30))
    result = paired_permutation(same, same)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)
    assert (result.wins, result.losses, result.ties, result.classes) == (0, 0, 30, 30)


def test_ties_do_not_stand_in_the_way_of_an_exact_test():
    result = compare([0.5, 0.25, 0.25, 0.5, 0.125] + [0.0] * 100)
    assert result.exact
    assert result.p_value == result.smallest_p == 2 / 32
    assert (result.wins, result.losses, result.ties) == (5, 0, 100)


def test_only_shared_classes_are_compared():
    result = paired_permutation(
        {"a": 1.0, "b": 0.5, "c": 0.25, "mine": 0.0}, {"b": 0.25, "yours": 9.0, "a": 0.0, "c": 1.0}
    )
    assert result.differences == {"a": 1.0, "b": 0.25, "c": -0.75}
    assert (result.classes, result.wins, result.losses) == (3, 2, 1)


def test_queries_are_averaged_by_class():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([1, 2, 3, 4, 5], [1, 2, 9, 4, 30]))
    a, b = rng.random((2, len(labels))).astype(np.float32)
    names = sorted(set(labels.tolist()))
    by_class = [{name: float(np.mean(x[labels == name].astype(float))) for name in names} for x in (a, b)]
    ours, expected = paired_permutation(a, b, labels), paired_permutation(*by_class)
    assert ours.differences == pytest.approx(expected.differences)
    assert ours.p_value == expected.p_value
    words = paired_permutation(a, b, [f"class {label}" for label in labels])
    assert words.difference == pytest.approx(ours.difference)


def test_takes_what_retrieval_results_give():
    rng = np.random.default_rng(0)
    labels = np.repeat([f"c{place}" for place in range(12)], 6)
    centres = 2 * np.eye(12)[np.repeat(np.arange(12), 6)]
    good, bad = (retrieval_metrics(centres + noise * rng.normal(size=centres.shape), labels) for noise in (0.6, 1.5))
    assert isinstance(good, RetrievalResult)
    result = paired_permutation(good.per_class("MAP@R"), bad.per_class("MAP@R"))
    assert result.classes == 12
    assert result.difference == pytest.approx(good.values["MAP@R"] - bad.values["MAP@R"], abs=1e-6)
    assert result.p_value < 0.01
    by_query = paired_permutation(good.per_query["MAP@R"], bad.per_query["MAP@R"], labels)
    assert by_query.p_value == result.p_value


def naive_holm(p_values):
    """Step down: test the smallest against 1/k, the next against 1/(k-1), ...; the level at which each is rejected."""
    k, adjusted, level = len(p_values), {}, 0.0
    for step, place in enumerate(sorted(range(k), key=lambda place: p_values[place])):
        level = max(level, min(1.0, (k - step) * p_values[place]))
        adjusted[place] = level
    return [adjusted[place] for place in range(k)]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_the_step_down_procedure(p_values):
    corrected = holm(p_values)
    assert corrected == pytest.approx(naive_holm(p_values))
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    assert all(q <= min(1.0, p * len(p_values)) + 1e-15 for p, q in zip(p_values, corrected, strict=True))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"a": 1.0}, {"a": 0.5}), "1"),
        (({"a": 1.0, "b": 1.0}, {"c": 0.5, "d": 0.5}), "0"),
        (({"a": 1.0, "b": np.nan}, {"a": 0.5, "b": 0.5}), "finite"),
        (([1.0, 2.0], [1.0, 2.0]), "labels"),
        (([1.0, 2.0], [1.0], ["a", "b"]), "queries"),
        (([1.0, 2.0], [1.0, 1.0], ["a"]), "labels"),
        (([1.0, 2.0], [1.0, 1.0], ["a", "a"]), "1"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(DataError, match=message):
        paired_permutation(*arguments)


def test_bad_options():
    with pytest.raises(DataError, match="permutation"):
        compare([1, 2, 3], permutations=0)
    with pytest.raises(DataError, match="level"):
        compare([1, 2, 3], level=2)
    with pytest.raises(DataError, match="p-values"):
        holm([0.5, 1.5])
