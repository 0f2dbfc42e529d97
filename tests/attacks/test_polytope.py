"""Projections onto cell, ball and box together, against scipy's quadratic programs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from nearkin.attacks.polytope import project_to_cell


def naive_projection(target, centre, others, radius, bounds):
    """The nearest point by sequential quadratic programming, from the centre, which is inside."""
    ways = others - centre
    constraints = [
        {
            "type": "ineq",
            "fun": lambda x: (ways**2).sum(axis=1) / 2 - ways @ (x - centre),
            "jac": lambda x: -ways,
        }
    ]
    if np.isfinite(radius):
        constraints.append(
            {
                "type": "ineq",
                "fun": lambda x: radius**2 - (x - centre) @ (x - centre),
                "jac": lambda x: -2 * (x - centre),
            }
        )
    solved = minimize(
        lambda x: 0.5 * (x - target) @ (x - target),
        centre,
        jac=lambda x: x - target,
        bounds=None if bounds is None else [bounds] * len(centre),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return solved.x


def draw(seed, dimension, count, reach):
    rng = np.random.default_rng(seed)
    centre, others = rng.random(dimension), rng.random((count, dimension))
    return centre + reach * rng.normal(size=dimension), centre, others


def projected(targets, centres, others, radius, bounds, **options):
    options = {"sweeps": 20_000, "tolerance": 1e-9} | options
    present = torch.ones(np.shape(others)[:2], dtype=torch.bool)
    parts = [torch.from_numpy(np.asarray(part)) for part in (targets, centres, others)]
    return project_to_cell(*parts, present, radius, bounds, **options).numpy()


@given(
    seed=st.integers(0, 10**6),
    dimension=st.integers(1, 4),
    count=st.integers(1, 5),
    radius=st.sampled_from([0.1, 0.4, 1.0, np.inf]),
    bounds=st.sampled_from([None, (0.0, 1.0)]),
    reach=st.sampled_from([0.1, 0.5]),
)
@settings(max_examples=40)
def test_the_nearest_point_is_that_of_the_quadratic_program(seed, dimension, count, radius, bounds, reach):
    target, centre, others = draw(seed, dimension, count, reach)
    found = projected([target], [centre], [others], radius, bounds)[0]
    expected = naive_projection(target, centre, others, radius, bounds)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_point_of_all_of_them_stays():
    target, centre, others = draw(0, 3, 4, 0.0)
    others = centre + 10 * (others - centre)
    target = centre + 0.01
    for radius, bounds in ((0.5, None), (np.inf, (-1.0, 2.0))):
        np.testing.assert_allclose(projected([target], [centre], [others], radius, bounds)[0], target, atol=1e-15)


def test_rows_do_not_disturb_each_other_and_absent_neighbours_do_not_count():
    cases = [draw(seed, 3, count, 0.5) for seed, count in enumerate((1, 4, 2, 3))]
    others, present = torch.zeros(4, 4, 3, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.bool)
    for row, (_, _, near) in enumerate(cases):
        others[row, : len(near)] = torch.from_numpy(near)
        present[row, : len(near)] = True
    targets, centres = (torch.from_numpy(np.stack([case[part] for case in cases])) for part in (0, 1))
    together = project_to_cell(targets, centres, others, present, 0.6, (0.0, 1.0), sweeps=20_000, tolerance=1e-10)
    for row, (target, centre, near) in enumerate(cases):
        alone = projected([target], [centre], [near], 0.6, (0.0, 1.0))[0]
        np.testing.assert_allclose(together[row].numpy(), alone, atol=1e-6)


@pytest.mark.parametrize("radius", [0.3, np.inf])
def test_without_neighbours_it_is_ball_and_box(radius):
    target, centre = np.array([[1.7, 0.4]]), np.array([[0.9, 0.5]])
    found = projected(target, centre, np.zeros((1, 0, 2)), radius, (0.0, 1.0))
    expected = naive_projection(target[0], centre[0], np.zeros((0, 2)), radius, (0.0, 1.0))
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize("radius", [1e3, 1e6, 1e9])
def test_a_huge_ball_does_not_make_it_careless(radius):
    """What counts as no move is measured by the way to the target where that is shorter than the radius."""
    target, centre, others = draw(4, 3, 5, 0.5)
    found = projected([target], [centre], [others], radius, None, tolerance=1e-7)[0]
    np.testing.assert_allclose(found, naive_projection(target, centre, others, np.inf, None), atol=1e-4)


def test_standing_still_is_not_the_end():
    """The point rests at a corner of the box for some sweeps, while the corrections of ball and box still change."""
    target, centre, others = np.array([0.27, 5.81]), np.array([0.0, 0.38]), np.array([[0.9, 0.92]])
    found = projected([target], [centre], [others], 0.7, (0.0, 1.0))[0]
    np.testing.assert_allclose(found, [0.24, 1.0], atol=1e-6)
    np.testing.assert_allclose(found, naive_projection(target, centre, others, 0.7, (0.0, 1.0)), atol=1e-5)


def test_a_ball_of_no_size_is_its_centre():
    target, centre, others = draw(5, 3, 2, 1.0)
    np.testing.assert_allclose(projected([target], [centre], [others], 0.0, None)[0], centre, atol=1e-12)


def test_no_rows():
    assert projected(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 2, 3)), 1.0, None, sweeps=3).shape == (0, 3)
