"""Where a value is largest: known peaks, several of them, edges, and scipy as the oracle."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from nearkin.errors import DataError
from nearkin.spaces import Euclidean, PoincareBall, Sphere, distance_ratio_scores
from nearkin.spaces.extremes import where_largest, widest_angle
from nearkin.spaces.scores import arcface_probabilities, normface_probabilities


def grid(d, half=1.0, count=5):
    return torch.cartesian_prod(*[torch.linspace(-half, half, count, dtype=torch.float64)] * d)


def search(value, space, d, half=1.0):
    return where_largest(value, grid(d, half), space=space, step=half / 2, bounds=(-half, half))


@pytest.mark.parametrize("sharp", [False, True])
def test_a_single_peak(sharp):
    peak = torch.tensor([0.137, -0.731], dtype=torch.float64)
    points, largest = search(lambda x: 5 - (x - peak).norm(dim=1) ** (0.5 if sharp else 2), Euclidean(), 2)
    torch.testing.assert_close(points, peak[None], atol=1e-5, rtol=0)
    assert largest == pytest.approx(5, abs=1e-2 if sharp else 1e-9)


def test_equal_peaks_are_all_told_and_lower_ones_are_not():
    peaks = torch.tensor([[-0.7, 0.1], [0.6, 0.5], [0.1, -0.8]], dtype=torch.float64)
    heights = torch.tensor([1.0, 1.0, 0.9], dtype=torch.float64)
    points, largest = search(lambda x: (heights - torch.cdist(x, peaks)).amax(dim=1), Euclidean(), 2)
    assert largest == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(points[points[:, 0].argsort()], peaks[:2], atol=1e-5, rtol=0)


def test_what_is_largest_at_infinity_ends_at_the_bounds():
    points, _ = search(lambda x: x[:, 0] - x[:, 1] ** 2, Euclidean(), 2, half=3.0)
    torch.testing.assert_close(points, torch.tensor([[3.0, 0.0]], dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", [normface_probabilities, lambda c, s: arcface_probabilities(c, s, 0.25)])
@pytest.mark.parametrize("sign", [1, -1])
def test_scipy_finds_the_same_on_the_sphere(model, sign):
    representatives = torch.eye(3, dtype=torch.float64)

    def value(points):
        return sign * model(torch.nn.functional.normalize(points) @ representatives.T, 2.0)[:, 0].log()

    points, largest = search(value, Sphere("angle"), 3)

    def loss(angles):
        x = [math.sin(angles[0]) * math.cos(angles[1]), math.sin(angles[0]) * math.sin(angles[1]), math.cos(angles[0])]
        return -value(torch.tensor([x], dtype=torch.float64)).item()

    found = [minimize(loss, start) for start in np.random.default_rng(0).uniform(0, 3, (8, 2))]
    assert largest == pytest.approx(-min(one.fun for one in found), abs=1e-6)
    assert len(points) == 1
    assert value(points).item() == pytest.approx(largest)


@pytest.mark.parametrize("space", [Sphere("chord"), PoincareBall()])
def test_distance_ratios_peak_at_representatives(space):
    """Raw vectors are searched, points of the space told."""
    raw = torch.tensor([[0.2, 0.5, 0.4], [-0.5, 0.1, 0.3], [0.3, -0.6, 0.2]], dtype=torch.float64)
    representatives = space.project(raw)

    def log_p(points):
        return distance_ratio_scores(space.distance(points, representatives), 2.0).log_softmax(dim=1)

    points, _ = search(lambda x: log_p(x)[:, 0], space, 3)
    assert space.distance(points, representatives[:1]).max() < 1e-4
    points, _ = search(lambda x: -log_p(x)[:, 0], space, 3)
    assert space.distance(points, representatives[1:]).amin(dim=1).max() < 1e-4


def test_a_flat_value_ends():
    points, largest = search(lambda x: torch.zeros(len(x)), Euclidean(), 2)
    assert largest == 0
    assert len(points) > 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"starts": torch.zeros(3)}, "starts"),
        ({"starts": torch.zeros(0, 2)}, r"\(0, 2\)"),
        ({"starts": torch.full((1, 2), math.nan)}, "finite"),
        ({"step": 0.0}, "step"),
        ({"step": math.inf}, "step"),
        ({"bounds": (1.0, -1.0)}, "bounds"),
        ({"bounds": (0.0, math.inf)}, "bounds"),
        ({"value": lambda x: x}, "shape"),
        ({"value": lambda x: x[:, 0] * math.nan}, "NaN"),
    ],
)
def test_bad_input_is_told(change, match):
    asked = {"value": lambda x: x[:, 0], "starts": grid(2), "space": Euclidean(), "step": 0.5, "bounds": (-1.0, 1.0)}
    with pytest.raises(DataError, match=match):
        where_largest(**asked | change)


@pytest.mark.parametrize(("points", "dimension"), [(2, 3), (4, 2), (4, 3), (6, 3), (5, 6)])
def test_the_widest_angle_is_what_directions_that_repel_each_other_reach(points, dimension):
    best = 0.0
    for seed in range(3):
        free = torch.randn(points, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        free.requires_grad_()
        for sharpness in (4.0, 30.0, 300.0):
            optimiser = torch.optim.Adam([free], lr=0.3 / sharpness)
            for _ in range(150):
                unit = torch.nn.functional.normalize(free)
                between = (unit @ unit.T)[~torch.eye(points, dtype=torch.bool)]
                optimiser.zero_grad()
                (sharpness * between).logsumexp(dim=0).backward()
                optimiser.step()
        best = max(best, math.acos(between.max().item()))
    assert best == pytest.approx(widest_angle(points, dimension), abs=0.02)
    assert best <= widest_angle(points, dimension) + 1e-9


@pytest.mark.parametrize(("points", "dimension"), [(1, 3), (3, 1)])
def test_one_direction_or_dimension_has_no_widest_angle(points, dimension):
    with pytest.raises(DataError, match="points" if points == 1 else "dimension"):
        widest_angle(points, dimension)
