"""The temperature against a fine grid in float64, its derivative against differences, and what is left out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.confidence import NED, fit_temperature, temperature
from nearkin.confidence.temperature import Likelihood
from nearkin.errors import DataError


def naive(energies, positive, t):
    """Mean log-likelihood of the rows that have a positive, in float64."""
    rows = positive.any(axis=1)
    gaps = energies[rows].astype(np.float64)
    gaps -= gaps.min(axis=1, keepdims=True)
    weights = np.exp(-gaps / t)
    share = (weights * positive[rows]).sum(axis=1) / weights.sum(axis=1)
    return np.log(np.maximum(share, 1e-12)).mean()


def finest(energies, positive):
    """The best T and its likelihood, by a grid over all scales that the energies have, twice refined."""
    gaps = (energies - energies.min(axis=1, keepdims=True))[positive.any(axis=1)].astype(np.float64)
    gaps = gaps[gaps > 0]
    grid = np.linspace(math.log(gaps.min()) - 3, math.log(gaps.max()) + 5, 160)
    for points in (30, 30, 0):
        values = [naive(energies, positive, math.exp(place)) for place in grid]
        best = int(np.argmax(values))
        if points:
            grid = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], points)
    return math.exp(grid[best]), values[best]


def left_one_out(points, labels, k):
    """Energies and positives of the k nearest other points, by a full sort."""
    squares = (points**2).sum(axis=1)
    table = np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0)
    np.fill_diagonal(table, np.inf)
    near = np.argsort(table, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(table, near, axis=1).astype(np.float32), labels[near] == labels[:, None]


def blobs(seed, n, classes, dimensions, separation, *, shares=None, spread=0.0, flipped=0.0, copies=0.0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, n, p=shares)
    width = np.exp(rng.normal(0, spread, classes))[labels][:, None]
    points = separation * rng.normal(size=(classes, dimensions))[labels] + width * rng.normal(size=(n, dimensions))
    number = int(copies * n)
    points[:number] = points[n - number :]
    labels = np.where(rng.random(n) < flipped, rng.integers(classes, size=n), labels)
    return points, labels


def check_optimum(energies, positive):
    """T within 1 % of the optimum, or a likelihood that is as good: where it is flat, or at an edge that is noted."""
    found = fit_temperature(energies, positive)
    best, value = finest(energies, positive)
    assert naive(energies, positive, found.temperature) == pytest.approx(found.likelihood, abs=1e-5)
    near = abs(math.log(found.temperature / best)) < 0.01
    missed = value - naive(energies, positive, found.temperature)
    noted = any("likely" in note for note in found.notes)
    assert near or missed < (3e-6 if noted else 1e-6), (found, best, value)


PROBLEMS = {
    "tiny": ({"n": 20, "classes": 2, "dimensions": 2, "separation": 1}, 19),
    "small": ({"n": 60, "classes": 5, "dimensions": 3, "separation": 1.5}, 20),
    "hard": ({"n": 400, "classes": 10, "dimensions": 8, "separation": 0.3}, 100),
    "medium": ({"n": 1000, "classes": 20, "dimensions": 16, "separation": 1}, 200),
    "just sampled": ({"n": 1100, "classes": 10, "dimensions": 4, "separation": 1}, 50),
    "large": ({"n": 3000, "classes": 30, "dimensions": 16, "separation": 1}, 100),
    "unbalanced": ({"n": 800, "classes": 4, "dimensions": 3, "separation": 1, "shares": [0.9, 0.06, 0.03, 0.01]}, 50),
    "unequal": ({"n": 900, "classes": 8, "dimensions": 8, "separation": 2, "spread": 0.5}, 50),
    "copies": ({"n": 600, "classes": 6, "dimensions": 4, "separation": 1, "copies": 0.2}, 30),
    "noisy": ({"n": 900, "classes": 5, "dimensions": 8, "separation": 5, "flipped": 0.02}, 50),
    "k=2": ({"n": 500, "classes": 3, "dimensions": 2, "separation": 1}, 2),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_optimum_is_that_of_a_fine_grid(name, seed):
    given, k = PROBLEMS[name]
    check_optimum(*left_one_out(*blobs(seed, **given), k))


def test_six_thousand_points():
    rng = np.random.default_rng(0)
    energies = np.sort(rng.gamma(2, size=(6000, 30)), axis=1)
    check_optimum(energies, rng.random((6000, 30)) < np.exp(-energies / 3))


def test_rare_mislabelled_points_are_not_overlooked_in_a_large_support():
    """Half a per cent whose class is far away: a sharp kernel costs each of them log 1e-12, a floor without slope."""
    energies = np.tile(np.array([1, 400], np.float32), (4000, 1))
    positive = np.tile([True, False], (4000, 1))
    unseen = np.setdiff1d(np.arange(4000), np.linspace(0, 3999, 512).astype(np.int64))  # by an even sample
    positive[unseen[:20]] = [False, True]
    check_optimum(energies, positive)


@pytest.mark.parametrize(
    ("seed", "given", "k"),
    [
        (0, {"n": 2000, "classes": 5, "dimensions": 16, "separation": 10, "flipped": 0.002}, 20),
        (4, {"n": 2000, "classes": 2, "dimensions": 16, "separation": 50, "flipped": 0.004}, 2),
        (3, {"n": 2000, "classes": 10, "dimensions": 8, "separation": 10, "spread": 2}, 20),
    ],
)
def test_well_separated_classes_with_a_few_odd_points(seed, given, k):
    check_optimum(*left_one_out(*blobs(seed, **given), k))


def test_collapsed_classes_do_not_hide_the_scale_of_the_others():
    """Six in ten rows have gaps of 1e-8 and are right at any T; the others need a T of about 1."""
    rng = np.random.default_rng(0)
    wide = np.sort(rng.gamma(2, size=(200, 10)), axis=1)
    energies = np.concatenate([1e-8 * rng.random((300, 10)), wide]).astype(np.float32)
    positive = np.concatenate([np.ones((300, 10), bool), rng.random((200, 10)) < np.exp(-wide / 2)])
    check_optimum(energies, positive)


def test_far_groups_of_close_points_do_not_hide_the_scale_inside():
    """All neighbours but the first few are far away: the gap to the last says nothing of the scale that decides."""
    rng = np.random.default_rng(0)
    near = np.sort(1e-6 * rng.gamma(2, size=(400, 10)), axis=1)
    positive = rng.random((400, 10)) < np.exp(-near / 1e-6)
    energies = np.concatenate([near, 100 + rng.random((400, 5))], axis=1).astype(np.float32)
    check_optimum(energies, np.concatenate([positive, np.zeros((400, 5), bool)], axis=1))


@st.composite
def tables(draw):
    seed, n, k = draw(st.integers(0, 10**6)), draw(st.integers(2, 40)), draw(st.integers(2, 15))
    rng = np.random.default_rng(seed)
    energies = np.sort(rng.gamma(draw(st.sampled_from([0.5, 2, 20])), size=(n, k)), axis=1).astype(np.float32)
    energies *= np.float32(10.0 ** draw(st.integers(-6, 6)))
    positive = rng.random((n, k)) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    positive[0, 0] = True
    return energies, positive


@settings(max_examples=40, deadline=None)
@given(tables())
def test_small_problems_of_any_scale(drawn):
    check_optimum(*drawn)


@settings(max_examples=60, deadline=None)
@given(tables(), st.floats(-3, 2))
def test_value_and_derivative(drawn, decades):
    energies, positive = drawn
    rows = positive.any(axis=1)
    curve = Likelihood.of(energies[rows], positive[rows])
    place = decades * math.log(10)
    value, slope = curve(place)
    assert value == pytest.approx(naive(energies, positive, curve.scale * math.exp(place)), abs=1e-5)
    step = 1e-4
    sides = [naive(energies, positive, curve.scale * math.exp(place + side)) for side in (-step, step)]
    assert slope == pytest.approx((sides[1] - sides[0]) / (2 * step), rel=2e-3, abs=2e-4)


def test_blocks_change_nothing(monkeypatch):
    energies, positive = left_one_out(*blobs(0, 100, 3, 3, 1), 10)
    rows = positive.any(axis=1)
    curve = Likelihood.of(energies[rows], positive[rows])
    whole = curve(0.3)
    monkeypatch.setattr(temperature, "_BLOCK", 15)
    assert curve(0.3) == pytest.approx(whole, abs=1e-6)


def test_shifting_the_energies_of_a_row_changes_nothing():
    energies, positive = left_one_out(*blobs(2, 200, 4, 4, 1), 20)
    moved = energies.astype(np.float64) + np.random.default_rng(0).normal(0, 5, (200, 1))
    assert fit_temperature(moved, positive).temperature == pytest.approx(
        fit_temperature(energies, positive).temperature, rel=2e-3
    )


def test_points_without_positives_are_left_out_and_counted():
    energies, positive = left_one_out(*blobs(1, 300, 5, 3, 1), 10)
    base = fit_temperature(energies, positive)
    foreign = np.zeros((7, 10), bool)
    more = fit_temperature(np.concatenate([energies, energies[:7]]), np.concatenate([positive, foreign]))
    lost = int((~positive.any(axis=1)).sum())
    assert (base.left_out, base.used) == (lost, 300 - lost)
    assert (more.left_out, more.used) == (lost + 7, 300 - lost)
    assert more.temperature == pytest.approx(base.temperature, rel=1e-4)
    assert more.likelihood == pytest.approx(base.likelihood, abs=1e-6)
    assert str(lost + 7) in more.notes[0]


def test_no_positive_at_all_is_refused():
    with pytest.raises(DataError, match="class"):
        fit_temperature(np.ones((3, 2)), np.zeros((3, 2), bool))


@pytest.mark.parametrize("height", [0.0, 1.0, 1e6])
def test_equal_distances(height):
    positive = np.array([[True, False, False, True], [False, True, False, False]])
    found = fit_temperature(np.full((2, 4), height), positive)
    assert found.temperature == 1
    assert found.likelihood == pytest.approx((math.log(0.5) + math.log(0.25)) / 2, abs=1e-6)
    assert "equal" in found.notes[0]


def test_some_rows_at_equal_distances_do_not_matter():
    energies, positive = left_one_out(*blobs(3, 200, 4, 3, 1), 12)
    flat = np.zeros((600, 12), np.float32)
    more = fit_temperature(np.concatenate([energies, flat]), np.concatenate([positive, np.ones((600, 12), bool)]))
    assert more.temperature == pytest.approx(fit_temperature(energies, positive).temperature, rel=5e-3)


@pytest.mark.parametrize("n", [60, 1500])
def test_perfect_data_run_to_the_lowest_temperature_and_say_so(n):
    energies = np.tile(np.array([1.0, 2, 3, 4], np.float32), (n, 1))
    found = fit_temperature(energies, np.tile([True, False, False, False], (n, 1)))
    assert found.likelihood == pytest.approx(0, abs=2e-6)
    assert any("lower" in note for note in found.notes)
    # exp(-1/T) + exp(-2/T) + exp(-3/T) is the loss, and a millionth of it is nothing.
    assert found.temperature == pytest.approx(1 / math.log(1e6), rel=0.1)


@pytest.mark.parametrize("n", [60, 1500])
def test_data_that_a_vote_explains_best_run_to_the_highest_and_say_so(n):
    energies = np.tile(np.array([1.0, 2, 3, 4], np.float32), (n, 1))
    found = fit_temperature(energies, np.tile([False, False, False, True], (n, 1)))
    assert found.likelihood == pytest.approx(math.log(0.25), abs=1e-3)
    assert any("higher" in note for note in found.notes)


def test_a_single_class_has_a_likelihood_of_zero():
    points, _ = blobs(0, 50, 1, 3, 1)
    fitted = NED(space="euclidean").fit(points, ["x"] * 50)
    assert fitted.fit_.likelihood == pytest.approx(0, abs=1e-6)
    assert any("single" in note for note in fitted.notes_)
    assert (fitted.predict(points).confidence == 1).all()


def test_copies_at_distance_zero():
    """Each point twice, a copy of its own class: with the other neighbours far, the copy is all that counts."""
    points, labels = blobs(0, 40, 4, 2, 3)
    fitted = NED(k=10, space="euclidean").fit(np.concatenate([points, points]), np.concatenate([labels, labels]))
    assert math.isfinite(fitted.temperature_)
    assert any("lower" in note for note in fitted.notes_)
    assert (fitted.predict(points).labels == labels).all()


@pytest.mark.parametrize("n", [300, 1000])
def test_separated_classes_have_a_temperature_that_rounding_does_not_choose(n):
    """Two far clouds: every T up to one is as likely, and that one hardly depends on the draw."""
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        points = np.concatenate([rng.normal(size=(n, 8)), rng.normal(size=(n, 8)) + 20]).astype(np.float32)
        fitted = NED(space="euclidean").fit(points, np.repeat([0, 1], n))
        assert fitted.fit_.likelihood <= 0
        assert any("likely" in note for note in fitted.notes_)
        found.append(math.log(fitted.temperature_))
    assert max(found) - min(found) < 0.5


@pytest.mark.parametrize(
    ("energies", "positive"),
    [
        ([[1.0, 2.0]], [[True, False]]),
        (np.full((2, 2), np.nan), np.eye(2, dtype=bool)),
        (np.array([[1.0, np.inf], [1.0, 2.0]]), np.eye(2, dtype=bool)),
        (np.ones((2, 3)), np.eye(2, dtype=bool)),
    ],
)
def test_bad_arguments(energies, positive):
    with pytest.raises(DataError):
        fit_temperature(energies, positive)
