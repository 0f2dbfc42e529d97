"""The two-sample test against naive loops, its level and its power."""

import numpy as np
import pytest
import torch

from nearkin.errors import DataError
from nearkin.metrics import GaussianKernel, LearnedKernel, kernel_matrix, kernels, mmd_squared, mmd_test
from nearkin.models.similarity import LearnedSpace, PairSimilarity
from nearkin.spaces import make_space


def naive_mmd(matrix, first):
    """Three double loops over different points."""
    total = len(matrix)
    x, y = [i for i in range(total) if first[i]], [i for i in range(total) if not first[i]]
    within_x = np.mean([matrix[i, j] for i in x for j in x if i != j])
    within_y = np.mean([matrix[i, j] for i in y for j in y if i != j])
    return within_x + within_y - 2 * np.mean([matrix[i, j] for i in x for j in y])


def draw(m, n, shift=0.0, seed=0, d=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, d)), rng.normal(size=(n, d)) + shift


class Table:
    """A kernel that is looked up: points are row numbers."""

    name = "table"

    def __init__(self, values):
        self.values = torch.from_numpy(values)

    def fitted(self, points, seed=0):
        return self

    def __call__(self, x, y):
        return self.values[x[:, 0].long()][:, y[:, 0].long()]


def table_test(values, m, **options):
    rows = np.arange(len(values), dtype=np.float64)[:, None]
    return mmd_test(rows[:m], rows[m:], Table(values), **options)


def symmetric(size, seed=0):
    values = np.random.default_rng(seed).normal(size=(size, size))
    return values + values.T  # not positive definite, and a diagonal of any size


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 7), (9, 4)])
@pytest.mark.parametrize("entries", [1, 25, 10_000])
def test_every_permutation_is_what_a_loop_gives(m, n, entries, monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK_ENTRIES", entries)
    monkeypatch.setattr(kernels, "_COLUMNS", 7)
    values = symmetric(m + n)
    found = table_test(values, m, permutations=20, seed=3)
    divisions = kernels._divisions(m, n, 20, 3)
    assert divisions.sum(axis=0).tolist() == [m] * 21
    wanted = [naive_mmd(values, divisions[:, i]) for i in range(21)]
    np.testing.assert_allclose([found.statistic, *found.null], wanted, rtol=1e-10, atol=1e-12)
    assert found.p_value == (1 + sum(one >= wanted[0] - 1e-9 for one in wanted[1:])) / 21
    assert mmd_squared(values, m) == pytest.approx(wanted[0], rel=1e-10)


@pytest.mark.parametrize("entries", [1, 25, 10_000])
def test_means_and_witnesses_are_what_loops_give(entries, monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK_ENTRIES", entries)
    m, n = 5, 6
    values = symmetric(m + n, seed=1)
    found = table_test(values, m, permutations=5)
    x, y = range(m), range(m, m + n)
    assert found.within_x == pytest.approx(np.mean([values[i, j] for i in x for j in x if i != j]))
    assert found.within_y == pytest.approx(np.mean([values[i, j] for i in y for j in y if i != j]))
    assert found.between == pytest.approx(np.mean([values[i, j] for i in x for j in y]))
    for i in x:
        to_x = np.mean([values[i, j] for j in x if j != i])
        assert found.witness_x[i] == pytest.approx(to_x - np.mean([values[i, j] for j in y]))
    for i in y:
        to_y = np.mean([values[i, j] for j in y if j != i])
        assert found.witness_y[i - m] == pytest.approx(np.mean([values[i, j] for j in x]) - to_y)


def test_the_diagonal_plays_no_part():
    values = symmetric(9)
    other = values + np.diag(np.arange(9) * 100.0)
    first, second = table_test(values, 4, permutations=50), table_test(other, 4, permutations=50)
    np.testing.assert_array_equal(first.null, second.null)
    assert first.statistic == second.statistic
    assert mmd_squared(values, 4) == pytest.approx(mmd_squared(other, 4), rel=1e-9)


def test_ties_count_as_at_least_as_far():
    # All divisions are equally far where all pairs are equally alike, whatever rounding says.
    assert table_test(np.full((60, 60), 0.1), 23, permutations=99).p_value == 1.0
    # Of two against two there are three divisions, and the one at hand comes again and again.
    values = np.full((4, 4), 0.1)
    values[:2, :2] = values[2:, 2:] = 1 / 3
    found = table_test(values, 2, permutations=3000)
    assert found.p_value == pytest.approx(1 / 3, abs=0.03)


def discrete_uniform_gap(p_values, permutations):
    """Kolmogorov-Smirnov distance from p uniform on 1/(P+1), ..., 1."""
    grid = np.arange(1, permutations + 2) / (permutations + 1)
    found = np.searchsorted(np.sort(p_values), grid + 1e-9, side="right") / len(p_values)
    return np.abs(found - grid).max()


@pytest.fixture(scope="module")
def learned_space():
    torch.manual_seed(0)
    return LearnedSpace(make_space("euclidean"), PairSimilarity(3, hidden=8).eval())


@pytest.mark.parametrize(("m", "n"), [(8, 8), (4, 12)])
@pytest.mark.parametrize("kind", ["gaussian", "learned"])
def test_p_values_are_uniform_when_nothing_has_shifted(m, n, kind, learned_space):
    kernel = GaussianKernel("euclidean") if kind == "gaussian" else LearnedKernel(learned_space)
    repetitions, permutations = 700, 9
    p_values = np.empty(repetitions)
    for place in range(repetitions):
        x, y = draw(m, n, seed=(1, place))
        p_values[place] = mmd_test(
            x.astype(np.float32), y.astype(np.float32), kernel, permutations=permutations, seed=place
        ).p_value
    # Ten values of p, five of a two-sided one: a p without its ones lies a step lower and is 0 in as many cases.
    limit = 1.63 / np.sqrt(repetitions)  # of Kolmogorov and Smirnov, at a level of 0.01
    steps = 10 if kind == "gaussian" else 5
    assert discrete_uniform_gap(p_values, steps - 1) < limit < 0.07
    assert discrete_uniform_gap(p_values - 1 / steps, steps - 1) > limit


class TwoSided(Table):
    indefinite = True


@pytest.mark.parametrize("sign", [1, -1])
def test_an_indefinite_kernel_is_tested_on_both_sides(sign):
    values = np.full((16, 16), 0.1)
    values[:8, :8] = values[8:, 8:] = 0.9
    rows = np.arange(16, dtype=np.float64)[:, None]
    one, two = (mmd_test(rows[:8], rows[8:], kind(sign * values), permutations=199) for kind in (Table, TwoSided))
    assert (one.two_sided, two.two_sided) == (False, True)
    assert one.p_value == (1 / 200 if sign > 0 else 1.0)
    assert two.p_value == two.smallest_p == 2 / 200


def test_a_two_sided_p_of_ties_is_one():
    rows = np.arange(20, dtype=np.float64)[:, None]
    assert mmd_test(rows[:7], rows[7:], TwoSided(np.full((20, 20), 0.1)), permutations=50).p_value == 1.0


@pytest.mark.parametrize(
    ("sizes", "two_sided", "p"),
    [((3, 3), False, 0.1), ((2, 5), False, 1 / 21), ((2, 5), True, 2 / 21), ((3, 3), True, 0.2), ((2, 2), True, 2 / 3)],
)
def test_few_points_cannot_give_a_small_p(sizes, two_sided, p):
    assert kernels.reachable_p(*sizes, two_sided=two_sided) == pytest.approx(p)
    assert kernels.reachable_p(100_000, 100_000) < 1e-30


@pytest.mark.parametrize("kernel", ["gaussian", GaussianKernel("euclidean", 2.0)])
def test_a_shift_is_found(kernel):
    x, y = draw(60, 40, shift=1.0)
    found = mmd_test(x, y, kernel, permutations=199, space="euclidean")
    assert found.p_value == found.smallest_p == 1 / 200
    assert found.deviations > 5
    assert found.statistic == pytest.approx(found.within_x + found.within_y - 2 * found.between)
    # The farther a point of y goes the way of the shift, the less it belongs to x.
    assert np.corrcoef(found.witness_y, y.sum(axis=1))[0, 1] < -0.7
    assert np.corrcoef(found.witness_x, x.sum(axis=1))[0, 1] < -0.7


def test_the_spread_alone_may_differ():
    x, y = draw(80, 80, d=2)
    assert mmd_test(x, 3 * y, space="euclidean", permutations=199).p_value < 0.01


def test_the_seed_decides():
    x, y = draw(10, 12)
    first, second = (mmd_test(x, y, permutations=30, seed=seed) for seed in (0, 0))
    np.testing.assert_array_equal(first.null, second.null)
    assert not np.array_equal(first.null, mmd_test(x, y, permutations=30, seed=1).null)


def test_a_kernel_of_the_users_own_matrix():
    x, y = draw(6, 5)
    matrix = kernel_matrix(np.concatenate([x, y]), kernel="gaussian", space="euclidean")
    assert mmd_squared(matrix, 6) == pytest.approx(mmd_test(x, y, space="euclidean", permutations=1).statistic)


@pytest.mark.parametrize(
    ("x", "y", "options", "told"),
    [
        (np.zeros((1, 2)), np.zeros((5, 2)), {}, "points"),
        (np.zeros((4, 2)), np.zeros((5, 3)), {}, "dimensions"),
        (np.full((4, 2), np.nan), np.zeros((5, 2)), {}, "NaN"),
        (np.zeros((4, 2)), np.zeros((5, 2)), {"permutations": 0}, "permutation"),
        (np.zeros((4, 2)), np.zeros((5, 2)), {"kernel": "learned"}, "similarity"),
    ],
)
def test_what_cannot_be_tested_is_refused(x, y, options, told):
    with pytest.raises(DataError, match=told):
        mmd_test(x, y, **options)


@pytest.mark.parametrize(
    ("matrix", "first", "told"),
    [
        (np.zeros((4, 3)), 2, "square"),
        (np.full((4, 4), np.inf), 2, "NaN"),
        (np.zeros((4, 4)), 3, "3"),
    ],
)
def test_a_matrix_that_cannot_be_tested_is_refused(matrix, first, told):
    with pytest.raises(DataError, match=told):
        mmd_squared(matrix, first)
