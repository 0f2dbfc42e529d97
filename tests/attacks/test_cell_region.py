"""Projections onto cell, ball and box together, against scipy's quadratic programs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from nearkin.attacks import L2, Combined, LInf
from nearkin.attacks.cells import CellRegion, VoronoiCells, project_to_cell
from nearkin.errors import DataError


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


NORMS = [L2(), LInf(), Combined(0.3)]
norms = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)
INF = float("inf")


def naive_length(norm, gap):
    sizes = np.abs(gap)
    if isinstance(norm, L2):
        return np.sqrt((sizes**2).sum(axis=-1))
    if isinstance(norm, LInf):
        return sizes.max(axis=-1)
    return norm.beta * sizes.sum(axis=-1) + (1 - norm.beta) * sizes.max(axis=-1)


def check_inside(found, points, rows, norm, radius, bounds):
    """In the ball, in the box, and nearer to the own point than to every other one."""
    x, data = found.double().numpy(), points.double().numpy()
    for place, row in enumerate(rows.tolist()):
        lengths = naive_length(norm, x[place] - data)
        assert lengths[row] <= radius * (1 + 1e-14)  # sums in another order
        assert (np.delete(lengths, row) > lengths[row]).all()
        assert bounds is None or (x[place].min() >= bounds[0] and x[place].max() <= bounds[1])


def draw_points(seed, kind, dtype, count=7):
    """Spread, on a grid (ties, corners of the box), or crowded around one place."""
    rng = np.random.default_rng(seed)
    dimension = int(rng.integers(1, 5))
    points = rng.random((int(rng.integers(1, count + 1)), dimension))
    if kind == "grid":
        points = np.round(points * 3) / 3
    if kind == "crowd":
        points = np.clip(points[:1] + 10.0 ** -rng.integers(2, 6) * (points - 0.5), 0, 1)
    return torch.unique(torch.from_numpy(points).to(dtype), dim=0)


@norms
@pytest.mark.parametrize("kind", ["spread", "grid", "crowd"])
@given(
    seed=st.integers(0, 10**6),
    radius=st.sampled_from([1e-9, 1e-4, 0.1, 0.5, 3.0, 1e6, INF]),
    bounds=st.sampled_from([None, (0.0, 1.0)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    reach=st.sampled_from([1e-3, 0.3, 3.0]),
)
@settings(max_examples=25)
def test_every_point_is_inside(norm, kind, seed, radius, bounds, dtype, reach):
    points = draw_points(seed, kind, dtype)
    cells, rows = VoronoiCells(points, norm), torch.arange(len(points))
    region = CellRegion(cells, rows, radius, bounds, dtype)
    generator = torch.Generator().manual_seed(seed)
    far = points + reach * torch.randn(points.shape, generator=generator, dtype=dtype)
    for found in (region.draw(generator), region.project(far), region.project(region.project(far))):
        assert found.dtype == dtype
        check_inside(found, points, rows, norm, radius, bounds)
        assert cells.inside(found, rows).all()


@norms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("radius", [0.05, 0.5, INF])
def test_points_that_are_inside_stay(norm, dtype, radius):
    points = draw_points(3, "spread", dtype)
    cells, rows = VoronoiCells(points, norm), torch.arange(len(points))
    region = CellRegion(cells, rows, radius, (0.0, 1.0), dtype)
    inside = points + 0.9 * (region.draw(torch.Generator().manual_seed(0)) - points)
    assert (norm.length(inside - points) > 1e-4).all()
    torch.testing.assert_close(region.project(inside), inside, rtol=0, atol=1e-15 if dtype == torch.float64 else 1e-7)
    assert torch.equal(region.project(points), points)


@norms
@pytest.mark.parametrize("radius", [0.05, 0.2, 0.4])
def test_points_farther_than_twice_the_radius_do_not_count(norm, radius):
    rng = np.random.default_rng(5)
    points = torch.from_numpy(rng.random((25, 2)))
    cells, rows = VoronoiCells(points, norm), torch.arange(25)
    pruned = CellRegion(cells, rows, radius, (0.0, 1.0), torch.float64)
    whole = CellRegion(cells, rows, radius, (0.0, 1.0), torch.float64, cells.neighbours(rows, INF))
    assert pruned.neighbours.counts.sum() < whole.neighbours.counts.sum()
    far = points + torch.from_numpy(rng.normal(size=(25, 2)))
    torch.testing.assert_close(pruned.project(far), whole.project(far), rtol=0, atol=1e-12)


def naive_nearest(target, row, points, radius):
    """Of a fine grid of the region, the point nearest to the target."""
    axis = np.linspace(0, 1, 401)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    own = np.linalg.norm(grid - points[row], axis=1)
    allowed = own <= radius
    for other in range(len(points)):
        if other != row:
            allowed &= own <= np.linalg.norm(grid - points[other], axis=1)
    grid = grid[allowed]
    return np.linalg.norm(grid - target, axis=1).min()


@pytest.mark.parametrize("radius", [0.15, 0.5, INF])
def test_in_l2_it_is_about_the_nearest_point(radius):
    rng = np.random.default_rng(6)
    points = rng.random((8, 2))
    targets = np.clip(points + 0.3 * rng.normal(size=(8, 2)), -0.2, 1.2)
    region = CellRegion(
        VoronoiCells(torch.from_numpy(points), L2()), torch.arange(8), radius, (0.0, 1.0), torch.float64
    )
    found = np.linalg.norm(region.project(torch.from_numpy(targets)).numpy() - targets, axis=1)
    expected = [naive_nearest(target, row, points, radius) for row, target in enumerate(targets)]
    np.testing.assert_allclose(found, expected, atol=6e-3)


@pytest.mark.parametrize("norm", [LInf(), Combined(0.3)], ids=lambda norm: norm.name)
def test_in_other_norms_it_goes_straight_towards_the_centre_as_far_as_it_must(norm):
    points = torch.tensor([[0.2, 0.5], [0.6, 0.5], [0.3, 0.9]], dtype=torch.float64)
    region = CellRegion(VoronoiCells(points, norm), torch.tensor([0]), 0.9, (0.0, 1.0), torch.float64)
    target = torch.tensor([[0.8, 0.6]], dtype=torch.float64)
    found = region.project(target)
    start = points[:1] + norm.project(target - points[:1], 0.9)
    share = (found - points[:1]) / (start - points[:1])
    assert float(share[0, 0]) == pytest.approx(float(share[0, 1]), abs=1e-6)
    further = points[0] + (share[0, 0] + 1e-5) * (start[0] - points[0])
    lengths = naive_length(norm, (further - points).numpy())
    assert lengths[0] >= lengths[1:].min()


@pytest.mark.parametrize("norm", [L2(), Combined(0.3)], ids=lambda norm: norm.name)
@pytest.mark.parametrize("apart", [1e-3, 1e-5])
def test_a_near_twin_does_not_tie_a_point_to_its_place(norm, apart):
    """Along the border between the two there is room, in a large ball: points must not fall back to the centre.

    In L-inf there is none: what is farther off along another axis is equally far from both.
    """
    points = torch.tensor([[0.5, 0.5], [0.5 + apart, 0.5]], dtype=torch.float64)
    region = CellRegion(VoronoiCells(points, norm), torch.tensor([0]), 0.4, (0.0, 1.0), torch.float64)
    found = region.project(torch.tensor([[0.45, 0.95]], dtype=torch.float64))
    assert float(norm.length(found - points[:1])) > 0.3


def test_crowded_cells_keep_some_room():
    moved = []
    for seed in range(20):
        points = draw_points(seed, "crowd", torch.float64)
        region = CellRegion(VoronoiCells(points, L2()), torch.arange(len(points)), 0.5, (0.0, 1.0), torch.float64)
        far = points + torch.randn(points.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        moved.append((region.project(far) != points).any(dim=1))
    assert torch.cat(moved).double().mean() > 0.95


@norms
def test_some_of_the_inputs(norm):
    points = draw_points(8, "spread", torch.float64, count=7)
    region = CellRegion(VoronoiCells(points, norm), torch.arange(len(points)), 0.5, None, torch.float64)
    rows = torch.tensor([len(points) - 1, 0])
    far = points + torch.randn(points.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(region.select(rows).project(far[rows]), region.project(far)[rows], rtol=0, atol=1e-12)
    assert region.norm is norm
    assert torch.equal(region.select(rows).centres, points[rows])


@norms
def test_a_single_point_has_everything(norm):
    region = CellRegion(VoronoiCells(torch.tensor([[0.25, 0.75]]), norm), torch.tensor([0]), INF, (0.0, 1.0))
    torch.testing.assert_close(region.project(torch.tensor([[3.0, 0.5]])), torch.tensor([[1.0, 0.5]]))


def test_portions_of_neighbours_do_not_matter(monkeypatch):
    points = torch.from_numpy(np.random.default_rng(9).random((30, 3)))
    region = CellRegion(VoronoiCells(points, L2()), torch.arange(30), 0.6, (0.0, 1.0), torch.float64)
    far = points + torch.randn(points.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole = region.project(far)
    monkeypatch.setattr("nearkin.attacks.cells._ENTRIES", 1)
    torch.testing.assert_close(region.project(far), whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("radius", [-1.0, float("nan")])
def test_a_radius_is_a_number_from_0_on(radius):
    with pytest.raises(DataError, match=str(radius)):
        CellRegion(VoronoiCells(torch.rand(3, 2), L2()), torch.arange(3), radius)
