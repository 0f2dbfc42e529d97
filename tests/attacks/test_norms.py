"""Norms against scipy: projections as quadratic programs, steepest directions as linear ones, balls as convex hulls."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from scipy.spatial import ConvexHull
from scipy.spatial.distance import cdist

from nearkin.attacks import L1, L2, Combined, LInf, as_norm
from nearkin.attacks.norms import Scaled, norm_of_inputs
from nearkin.errors import DataError

NORMS = [L1(share=1e-9), L2(), LInf(), Combined(0.05), Combined(0.4), Combined(0.95)]
norms = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: f"{norm.name}{getattr(norm, 'beta', '')}")


def naive_length(norm, x):
    if isinstance(norm, Combined):
        return norm.beta * np.abs(x).sum() + (1 - norm.beta) * np.abs(x).max()
    return np.linalg.norm(x, ord=1 if isinstance(norm, L1) else 2 if isinstance(norm, L2) else np.inf)


def sizes_and_top(dimension, beta):
    """Rows of `A z <= b` for z = (sizes, top): no size is above the top, and `beta sum + (1 - beta) top <= radius`."""
    below = np.hstack([np.eye(dimension), -np.ones((dimension, 1))])
    return np.vstack([below, np.append(np.full(dimension, beta), 1 - beta)])


def naive_projection(norm, x, radius):
    """The nearest point of the ball: sizes by a quadratic program, signs by symmetry."""
    sizes, dimension = np.abs(x), len(x)
    if isinstance(norm, L2):
        constraints = [{"type": "ineq", "fun": lambda z: radius**2 - z[:-1] @ z[:-1]}]
    elif isinstance(norm, LInf):
        constraints = [{"type": "ineq", "fun": lambda z: radius - z[:-1]}]
    elif isinstance(norm, L1):
        constraints = [{"type": "ineq", "fun": lambda z: radius - z[:-1].sum()}]
    else:
        rows, limits = sizes_and_top(dimension, norm.beta), np.append(np.zeros(dimension), radius)
        constraints = [{"type": "ineq", "fun": lambda z: limits - rows @ z, "jac": lambda z: -rows}]
    solved = minimize(
        lambda z: 0.5 * ((z[:-1] - sizes) ** 2).sum(),
        np.zeros(dimension + 1),
        jac=lambda z: np.append(z[:-1] - sizes, 0.0),
        bounds=[(0, None)] * (dimension + 1),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return np.sign(x) * solved.x[:-1]


@norms
@pytest.mark.parametrize("seed", range(6))
def test_projection_is_the_solution_of_the_quadratic_program(norm, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, int(rng.integers(1, 6))))
    radius = float(rng.uniform(0.1, 1.5))
    found = norm.project(torch.from_numpy(x), radius).numpy()
    expected = np.stack([naive_projection(norm, row, radius) for row in x])
    np.testing.assert_allclose(found, expected, atol=2e-6)


@norms
@given(seed=st.integers(0, 10**6), dimension=st.integers(1, 40), radius=st.sampled_from([0.0, 1e-6, 0.3, 2.0, 50.0]))
@settings(max_examples=25)
def test_no_point_of_the_ball_is_nearer_than_the_projection(norm, seed, dimension, radius):
    """What is left over points out of the ball: over the ball, its product is largest at the projection."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(3, dimension)) * rng.choice([0.1, 1, 10]))
    found = norm.project(x, radius)
    left = x - found
    assert (norm.length(found) <= radius * (1 + 1e-9)).all()
    most = radius * (left * norm.steepest(left)).sum(dim=1)
    assert ((left * found).sum(dim=1) >= most - 1e-7 * (1 + x.square().sum(dim=1))).all()


@norms
def test_points_of_the_ball_stay(norm):
    x = norm.draw(torch.zeros(20, 7, dtype=torch.float64), 0.5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm.project(x, 0.5 + 1e-12), x, rtol=0, atol=1e-15)
    assert torch.equal(norm.project(x, math.inf), x)


@norms
def test_large_inputs_in_single_precision(norm):
    x = torch.randn(3, 3000, generator=torch.Generator().manual_seed(1))
    found = norm.project(x, 0.7)
    assert found.dtype == torch.float32
    assert (norm.length(found.double()) <= 0.7 * (1 + 1e-5)).all()
    torch.testing.assert_close(found, norm.project(x.double(), 0.7).float(), rtol=1e-4, atol=1e-6)


def naive_steepest(norm, gradient):
    """The largest product with the gradient over the unit ball, by a linear program where there is one."""
    if isinstance(norm, L2):
        return float(np.linalg.norm(gradient))
    dimension = len(gradient)
    if isinstance(norm, L1):
        return float(np.abs(gradient).max())
    if isinstance(norm, LInf):
        return -linprog(-gradient, bounds=[(-1, 1)] * dimension).fun
    sizes = sizes_and_top(dimension, norm.beta)
    both = np.hstack([sizes[:, :dimension], sizes])  # ups and downs count alike
    costs = np.concatenate([-gradient, gradient, [0.0]])
    return -linprog(costs, A_ub=both, b_ub=np.append(np.zeros(dimension), 1.0), bounds=(0, None)).fun


@norms
@pytest.mark.parametrize("seed", range(6))
def test_steepest_rises_as_much_as_anything_in_the_ball(norm, seed):
    rng = np.random.default_rng(seed)
    gradient = rng.normal(size=(5, int(rng.integers(1, 8)))) ** 3
    found = norm.steepest(torch.from_numpy(gradient)).numpy()
    for way, slope in zip(found, gradient, strict=True):
        assert naive_length(norm, way) == pytest.approx(1.0)
        assert way @ slope == pytest.approx(naive_steepest(norm, slope), rel=1e-8)


@norms
def test_there_is_no_way_up_from_nowhere(norm):
    assert torch.equal(norm.steepest(torch.zeros(2, 3)), torch.zeros(2, 3))


@norms
def test_lengths_and_distances_match_scipy(norm):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 6)), rng.normal(size=(4, 6))
    if isinstance(norm, Combined):
        expected = norm.beta * cdist(x, y, "cityblock") + (1 - norm.beta) * cdist(x, y, "chebyshev")
    else:
        expected = cdist(x, y, {"l1": "cityblock", "l2": "euclidean", "linf": "chebyshev"}[norm.name])
    np.testing.assert_allclose(norm.distances(torch.from_numpy(x), torch.from_numpy(y)).numpy(), expected, rtol=1e-12)
    lengths = norm.length(torch.from_numpy(x[:, None] - y[None])).numpy()
    np.testing.assert_allclose(lengths, expected, rtol=1e-12)


def test_near_points_far_from_zero_keep_their_distance():
    x = torch.full((1, 50), 1000.0, dtype=torch.float64)
    assert float(L2().distances(x, x + 1e-9)) == pytest.approx(1e-9 * math.sqrt(50), rel=1e-3)


@norms
@pytest.mark.parametrize(("dimension", "side"), [(1, 1.0), (7, 0.25)])
def test_reach_is_the_diagonal_of_a_cube(norm, dimension, side):
    assert norm.reach(dimension, side) == pytest.approx(naive_length(norm, np.full(dimension, side)))


@norms
@given(seed=st.integers(0, 10**6), dimension=st.integers(1, 30), radius=st.floats(1e-6, 100))
@settings(max_examples=25)
def test_what_is_drawn_is_in_the_ball(norm, seed, dimension, radius):
    like = torch.zeros(50, dimension, dtype=torch.float64)
    found = norm.draw(like, radius, torch.Generator().manual_seed(seed))
    assert (norm.length(found) <= radius * (1 + 1e-12)).all()
    assert torch.equal(found, norm.draw(like, radius, torch.Generator().manual_seed(seed)))


@norms
def test_draws_fill_the_ball(norm):
    """In two dimensions a quarter of the ball is within half the radius, and all ways are taken."""
    if not isinstance(norm, Combined) or norm.beta == 0.4:
        drawn = norm.draw(torch.zeros(4000, 2, dtype=torch.float64), 2.0, torch.Generator().manual_seed(0))
        assert float((norm.length(drawn) <= 1.0).double().mean()) == pytest.approx(0.25, abs=0.03)
        assert drawn.mean(dim=0).abs().max() < 0.06


def vertices(eps1, epsinf, dimension):
    """Of the L1 ball and of the L-inf ball."""
    axes = np.vstack([np.eye(dimension), -np.eye(dimension)]) * eps1
    corners = np.array(np.meshgrid(*[[-epsinf, epsinf]] * dimension)).reshape(dimension, -1).T
    return axes, corners


@pytest.mark.parametrize(("eps1", "epsinf", "dimension"), [(1.5, 1.0, 2), (0.9, 0.5, 2), (2.0, 1.0, 3), (1.2, 0.5, 5)])
def test_the_combined_ball_just_holds_both_balls(eps1, epsinf, dimension):
    norm = Combined.of_balls(eps1, epsinf, dimension)
    axes, corners = vertices(eps1, epsinf, dimension)
    for points in (axes, corners):
        np.testing.assert_allclose(norm.length(torch.from_numpy(points)).numpy(), eps1, rtol=1e-12)
    shares = np.random.default_rng(0).dirichlet(np.full(len(axes) + len(corners), 0.3), size=500)
    mixed = torch.from_numpy(shares @ np.vstack([axes, corners]))
    assert (norm.length(mixed) <= eps1 * (1 + 1e-12)).all()


@pytest.mark.parametrize(("eps1", "epsinf"), [(1.5, 1.0), (1.1, 1.0), (0.9, 0.5), (1.9, 1.0)])
def test_in_two_dimensions_the_combined_ball_is_the_convex_hull(eps1, epsinf):
    norm = Combined.of_balls(eps1, epsinf, 2)
    hull = ConvexHull(np.vstack(vertices(eps1, epsinf, 2)))
    points = np.random.default_rng(0).uniform(-1.2 * eps1, 1.2 * eps1, (3000, 2))
    heights = (points @ hull.equations[:, :2].T + hull.equations[:, 2]).max(axis=1)
    clear = np.abs(heights) > 1e-9
    inside = norm.length(torch.from_numpy(points)).numpy() <= eps1
    assert np.array_equal(inside[clear], heights[clear] < 0)
    assert 0.2 < inside.mean() < 0.8


def test_in_three_dimensions_it_holds_more_than_the_hull():
    norm = Combined.of_balls(2.0, 1.0, 3)
    hull = ConvexHull(np.vstack(vertices(2.0, 1.0, 3)))
    corner = np.array([1.0, 1.0, 0.0]) / naive_length(norm, np.array([1.0, 1.0, 0.0])) * 2.0
    assert (hull.equations[:, :3] @ corner + hull.equations[:, 3]).max() > 0.05


@pytest.mark.parametrize(
    ("eps1", "epsinf", "dimension"), [(1.0, 1.0, 3), (0.5, 1.0, 3), (3.0, 1.0, 3), (1.5, 0.0, 3), (1.5, 1.0, 1)]
)
def test_a_ball_that_holds_the_other_is_refused(eps1, epsinf, dimension):
    with pytest.raises(DataError, match="epsinf"):
        Combined.of_balls(eps1, epsinf, dimension)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, math.nan])
def test_a_share_is_between_0_and_1(beta):
    with pytest.raises(DataError, match=str(beta)):
        Combined(beta)


def test_norms_by_name():
    assert isinstance(as_norm("l2"), L2)
    assert isinstance(as_norm("linf"), LInf)
    mixed = Combined(0.5)
    assert as_norm(mixed) is mixed
    with pytest.raises(DataError, match="linf"):
        as_norm("linv")


@pytest.mark.parametrize("base", ["l2", "linf"])
def test_a_scaled_norm_is_the_norm_of_what_was_divided(base):
    scales = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    norm, plain = Scaled(as_norm(base), scales), as_norm(base)
    x, y = torch.randn(2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    torch.testing.assert_close(norm.length(x), plain.length(x / scales))
    torch.testing.assert_close(norm.distances(x, y), plain.distances(x / scales, y / scales))
    assert (norm.length(norm.project(x, 0.3)) <= 0.3 + 1e-12).all()
    assert (norm.length(norm.draw(x, 0.3, torch.Generator().manual_seed(1))) <= 0.3 + 1e-12).all()
    best = (norm.steepest(x) * x).sum(dim=1)
    assert torch.allclose(norm.length(norm.steepest(x)), torch.ones(6, dtype=torch.float64))
    others = norm.draw(x.repeat(200, 1), 1.0, torch.Generator().manual_seed(2)).view(200, 6, 3)
    assert ((others * x).sum(dim=2) <= best + 1e-9).all()
    assert norm.name == base


def test_a_step_in_l1_changes_the_share_of_the_largest_gradient_alike():
    gradient = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    found = L1(share=0.05).steepest(gradient)
    for way, slope in zip(found, gradient, strict=True):
        largest = sorted(range(200), key=lambda place: -abs(float(slope[place])))[:10]
        expected = torch.zeros(200)
        expected[largest] = slope[largest].sign() / 10
        torch.testing.assert_close(way, expected)


def test_norms_of_inputs_by_name():
    assert norm_of_inputs("l1", 5, 100.0) == L1()
    assert norm_of_inputs("combined", 5, 3.0).beta == pytest.approx(Combined.of_balls(0.6, 0.2, 5).beta)
    with pytest.raises(DataError, match="ratio"):
        norm_of_inputs("combined", 5, 100.0)
    with pytest.raises(DataError, match="of_balls"):
        as_norm("combined")
