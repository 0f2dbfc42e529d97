"""Multidimensional scaling: the oracle of the CIFAR-100 tree, properties, limits and bad input."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.stats import spearmanr

from nearkin.data.hierarchy import Hierarchy, load_hierarchy
from nearkin.errors import DataError
from nearkin.spaces import Euclidean, PoincareBall, Sphere
from nearkin.spaces.mds import chord_targets, multidimensional_scaling, points_of_cosines, points_of_ranks

SMALL = Hierarchy.from_nested({"animals": {"fish": ["shark", "trout"], "dogs": ["poodle"]}, "plants": ["oak", "rose"]})


def mean_correlation(one, other, off_diagonal):
    """Row-wise Spearman correlations, averaged by Fisher's z."""
    correlations = []
    for row in range(len(one)):
        kept = np.ones(len(one), dtype=bool)
        kept[row] = not off_diagonal
        correlations.append(spearmanr(one[row][kept], other[row][kept]).statistic)
    return np.tanh(np.arctanh(np.clip(correlations, -1 + 1e-12, 1 - 1e-12)).mean())


@pytest.fixture(scope="module")
def cifar100():
    distances = load_hierarchy("cifar100").distances()
    return distances, multidimensional_scaling(chord_targets(distances), 128)


@pytest.mark.parametrize(("off_diagonal", "expected"), [(False, 0.858), (True, 0.853)])
def test_points_of_the_cifar100_tree_have_the_known_mean_correlation(cifar100, off_diagonal, expected):
    distances, scaling = cifar100
    between = torch.cdist(scaling.points.double(), scaling.points.double()).numpy()
    assert mean_correlation(distances, between, off_diagonal) == pytest.approx(expected, abs=0.003)


def test_stress_falls_and_is_that_of_the_points(cifar100):
    distances, scaling = cifar100
    targets = chord_targets(distances)
    points = scaling.points.double().numpy()
    between = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1))
    assert scaling.stress == pytest.approx(np.linalg.norm(between - targets) / np.linalg.norm(targets), abs=1e-5)
    assert scaling.course.shape == (1000,)
    assert scaling.course.dtype == np.float64
    assert scaling.course[0] > 0.1
    assert scaling.stress < 0.001
    thirds = [third.mean() for third in np.array_split(scaling.course, 3)]
    assert thirds[0] > thirds[1] > thirds[2]


def test_points_are_of_length_one_and_carry_no_gradient(cifar100):
    points = cifar100[1].points
    assert points.shape == (100, 128)
    assert points.dtype == torch.float32
    assert not points.requires_grad
    torch.testing.assert_close(points.norm(dim=1), torch.ones(100), atol=1e-4, rtol=0)


def test_the_same_seed_gives_the_same_bits_whatever_the_global_state():
    targets = chord_targets(SMALL.distances())
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = multidimensional_scaling(targets, 4, steps=30, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    with torch.no_grad():
        second = multidimensional_scaling(targets, 4, steps=30, seed=7)
    with torch.inference_mode():
        third = multidimensional_scaling(targets, 4, steps=30, seed=7)
    other = multidimensional_scaling(targets, 4, steps=30, seed=8)
    assert not third.points.is_inference()
    for again in (second, third):
        assert torch.equal(first.points, again.points)
        assert first.stress == again.stress
        assert np.array_equal(first.course, again.course)
    assert not torch.equal(first.points, other.points)


@pytest.mark.parametrize("space", [Sphere(), Sphere(metric="angle"), Euclidean(), PoincareBall(), PoincareBall(0.2)])
def test_every_space_places_a_small_tree(space):
    targets = SMALL.distances() / 4
    scaling = multidimensional_scaling(targets, 8, space=space, steps=1500, lr=5e-3)
    between = space.distance(scaling.points, scaling.points).numpy()
    assert scaling.stress < 0.5 * scaling.course[0]
    assert scaling.stress < 0.15
    assert np.linalg.norm(between - targets) / np.linalg.norm(targets) == pytest.approx(scaling.stress, abs=1e-5)


def test_distances_of_real_points_are_met():
    points = np.random.default_rng(0).normal(size=(7, 3))
    targets = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1))
    assert multidimensional_scaling(targets, 3, space=Euclidean(), steps=3000, lr=5e-3).stress < 0.01


@pytest.mark.parametrize("space", [Sphere(), Sphere(metric="angle"), Euclidean(), PoincareBall()])
def test_coincident_points_stay_finite(space):
    """On a line the sphere has two points only, and classes at distance zero fall together in any space."""
    targets = np.ones((6, 6)) - np.kron(np.eye(3), np.ones((2, 2)))
    for dimension in (1, 3):
        scaling = multidimensional_scaling(targets, dimension, space=space, steps=300, lr=1e-2)
        assert scaling.points.isfinite().all()
        assert np.isfinite(scaling.course).all()
        assert math.isfinite(scaling.stress)


def test_chord_targets_by_hand():
    found = chord_targets(np.array([[0, 1], [3, 8]]))
    np.testing.assert_allclose(found, math.sqrt(2) * np.array([[0, 1 / 2], [3 / 4, 8 / 9]]))
    np.testing.assert_allclose(chord_targets(np.array([2.0]), beta=2.0), [math.sqrt(2) / 2])
    assert chord_targets(np.array([1e12]))[0] == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.zeros((1, 1)), "two"),
        (np.ones(4), "square"),
        (np.zeros((3, 3)), "zero"),
        (np.array([[0, 1], [2, 0]]), "symmetric"),
        (np.ones((2, 2)), "diagonal"),
        (np.array([[0, -1], [-1, 0]]), "negative"),
        (np.array([[0, np.nan], [np.nan, 0]]), "finite"),
        (np.array([[0, np.inf], [np.inf, 0]]), "finite"),
        ([["a", "b"], ["c", "d"]], "numbers"),
        ([[0, 1], [1]], "numbers"),
    ],
)
def test_bad_targets_are_refused(targets, message):
    with pytest.raises(DataError, match=message):
        multidimensional_scaling(targets, 4)


@pytest.mark.parametrize(
    "settings",
    [{"dimension": 0}, {"dimension": 2.5}, {"steps": 0}, {"steps": True}, {"lr": 0}, {"lr": math.nan}, {"seed": 0.5}],
)
def test_bad_settings_are_refused(settings):
    name = next(iter(settings))
    with pytest.raises(DataError, match=name):
        multidimensional_scaling(1 - np.eye(3), **{"dimension": 2, **settings})


@pytest.mark.parametrize("beta", [0, -1.0, math.inf, "1"])
def test_a_bad_beta_is_refused(beta):
    with pytest.raises(DataError, match="beta"):
        chord_targets(np.eye(2), beta)


def test_the_farthest_distance_becomes_the_chord_that_is_asked_for():
    distances = SMALL.distances(how="lcs")
    assert chord_targets(distances).max() == pytest.approx(math.sqrt(2) / 2)
    scaled = chord_targets(distances, farthest=math.sqrt(2))
    assert scaled.max() == pytest.approx(math.sqrt(2))
    np.testing.assert_allclose(scaled, 2 * chord_targets(distances))
    assert not chord_targets(np.zeros((2, 2)), farthest=1.0).any()
    with pytest.raises(DataError, match="farthest"):
        chord_targets(distances, farthest=0.0)


def test_points_of_cosines_are_those_of_scipys_square_root():
    wanted = 1 - load_hierarchy("cifar100").distances(how="lcs")
    points = points_of_cosines(wanted, 128).double().numpy()
    assert points.shape == (100, 128)
    np.testing.assert_allclose(points @ points.T, wanted, atol=1e-5)
    np.testing.assert_allclose(points @ points.T, sqrtm(wanted) @ sqrtm(wanted).T, atol=1e-5)


def test_a_matrix_of_low_rank_needs_no_more_dimensions():
    corners = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [math.sqrt(0.5)] * 2])
    points = points_of_cosines(corners @ corners.T, 2).double().numpy()
    np.testing.assert_allclose(points @ points.T, corners @ corners.T, atol=1e-6)


@pytest.mark.parametrize(
    ("cosines", "dimension", "word"),
    [
        (np.eye(3), 2, "dimensions"),
        (np.array([[1.0, 1, -1], [1, 1, 1], [-1, 1, 1]]), 3, "below 0"),
        (np.array([[1.0, 0.5], [0.2, 1]]), 2, "symmetric"),
        (2 * np.eye(2), 2, "diagonal"),
        (np.ones((2, 3)), 2, "square"),
        (np.ones((0, 0)), 2, "square"),
    ],
)
def test_cosines_that_no_points_have_are_refused(cosines, dimension, word):
    with pytest.raises(DataError, match=word):
        points_of_cosines(cosines, dimension)


def test_points_of_ranks_are_in_order_and_drawn_from_the_seed():
    distances = SMALL.distances()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    points = points_of_ranks(distances, 4, steps=300)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(points, points_of_ranks(distances, 4, steps=300))
    assert not torch.equal(points, points_of_ranks(distances, 4, steps=300, seed=1))
    between = torch.cdist(points.double(), points.double()).numpy()
    for row, others in zip(distances, between, strict=True):
        order = [others[row == step].max() for step in sorted(set(row))]
        after = [others[row == step].min() for step in sorted(set(row))]
        assert all(near < far for near, far in zip(order[:-1], after[1:], strict=True)), (
            "ties aside, as the tree has it"
        )
    cosines = (points @ points.T).fill_diagonal_(-1)
    assert cosines.max() < 0.52


def test_the_loss_of_ranks_is_smaller_at_its_points_than_at_any_that_are_turned_a_little():
    """The printed loss, by loops over all triplets, at what was found and beside it."""
    distances = SMALL.distances()

    def value(points):
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        cosines = unit @ unit.T
        terms = []
        for i, j, k in product(range(5), repeat=3):
            if i not in (j, k):
                s = 0.5 * (1 + np.sign(distances[i, k] - distances[i, j]))
                o = 10 * (cosines[i, j] - cosines[i, k])
                terms.append(s * np.logaddexp(0, -o) + (1 - s) * np.logaddexp(0, o))
        nearest = (cosines - 3 * np.eye(5)).max(axis=1)
        return np.mean(terms) + np.maximum(nearest - 0.5, 0).mean()

    found = points_of_ranks(distances, 4, steps=600).double().numpy()
    rng = np.random.default_rng(0)
    beside = [value(found + 0.2 * rng.normal(size=found.shape)) for _ in range(50)]
    assert value(found) < min(beside)
