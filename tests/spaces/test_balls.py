"""The Poincaré ball against textbook formulas that the code does not use."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.spaces import PoincareBall

curvatures = pytest.mark.parametrize("curvature", [0.1, 1.0, 4.0])


def points(ball, *shape, seed=0, dtype=torch.float64):
    raw = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return ball.project(raw / math.sqrt(ball.curvature))


def geodesic_by_arcosh(x, y, tau):
    """`arcosh(1 + 2 tau |x-y|^2 / ((1-tau|x|^2)(1-tau|y|^2))) / sqrt(tau)`, pair by pair."""
    return torch.stack(
        [
            torch.stack(
                [
                    torch.arccosh(1 + 2 * tau * (a - b).dot(a - b) / ((1 - tau * a.dot(a)) * (1 - tau * b.dot(b))))
                    / math.sqrt(tau)
                    for b in y
                ]
            )
            for a in x
        ]
    )


@curvatures
def test_distance_is_the_geodesic_of_the_arcosh_formula(curvature):
    ball = PoincareBall(curvature)
    x, y = points(ball, 6, 3), points(ball, 7, 3, seed=1)
    torch.testing.assert_close(ball.distance(x, y), geodesic_by_arcosh(x, y, curvature))


@curvatures
def test_distance_is_the_printed_artanh_of_the_gyrovector_difference(curvature):
    ball, root = PoincareBall(curvature), math.sqrt(curvature)
    x, y = points(ball, 6, 3), points(ball, 7, 3, seed=1)
    difference = ball.add(-x[:, None, :], y[None, :, :]).norm(dim=-1)
    torch.testing.assert_close(ball.distance(x, y), 2 / root * torch.arctanh(root * difference))


@curvatures
def test_gyrovector_addition_has_zero_inverses_and_left_cancellation(curvature):
    ball = PoincareBall(curvature)
    x, y = points(ball, 5, 3), points(ball, 5, 3, seed=1)
    torch.testing.assert_close(ball.add(torch.zeros_like(x), x), x)
    torch.testing.assert_close(ball.add(x, -x), torch.zeros_like(x))
    torch.testing.assert_close(ball.add(-x, ball.add(x, y)), y)


@curvatures
def test_exponential_map_keeps_direction_and_doubles_length(curvature):
    """The distance of exp_0(v) from the origin is 2|v|, the metric at 0 being 4 times the Euclidean one."""
    ball = PoincareBall(curvature)
    v = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 3
    p = ball.project(v)
    origin = torch.zeros(1, 3, dtype=torch.float64)
    torch.testing.assert_close(ball.distance(origin, p)[0], 2 * v.norm(dim=1))
    torch.testing.assert_close(torch.cosine_similarity(p, v), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@curvatures
def test_norms_are_clamped(curvature, dtype):
    ball = PoincareBall(curvature)
    far = torch.tensor([[1e6, 0.0], [0.0, 50.0]], dtype=dtype)
    torch.testing.assert_close(
        ball.project(far).norm(dim=1), torch.full((2,), (1 - 1e-5) / math.sqrt(curvature), dtype=dtype)
    )
    assert ball.distance(far, far).isfinite().all()  # not even points of the ball
    assert ball.mean(far).isfinite().all()


def test_small_curvature_is_nearly_euclidean():
    ball = PoincareBall(1e-8)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(ball.distance(x, x), 2 * torch.cdist(x, x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ball.mean(x), x.mean(dim=0), rtol=1e-6, atol=1e-6)


@curvatures
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_einstein_midpoint_of_two_is_halfway(curvature, seed):
    ball = PoincareBall(curvature)
    pair = points(ball, 2, 3, seed=seed)
    to_each = ball.distance(ball.mean(pair).unsqueeze(0), pair)[0]
    half = ball.distance(pair, pair)[0, 1] / 2
    torch.testing.assert_close(to_each, half.expand(2), rtol=1e-6, atol=1e-9)


@curvatures
def test_einstein_midpoint_is_the_weighted_mean_of_the_klein_model(curvature):
    ball = PoincareBall(curvature)
    x = points(ball, 6, 3)
    klein = 2 * x / (1 + curvature * x.square().sum(dim=1, keepdim=True))
    gamma = 1 / (1 - curvature * klein.square().sum(dim=1, keepdim=True)).sqrt()
    mean = (gamma * klein).sum(dim=0) / gamma.sum()
    expected = mean / (1 + (1 - curvature * mean.dot(mean)).sqrt())
    torch.testing.assert_close(ball.mean(x), expected)


def test_einstein_midpoint_commutes_with_isometries():
    ball = PoincareBall()
    x, shift = points(ball, 6, 3), points(ball, 1, 3, seed=3)
    torch.testing.assert_close(ball.mean(ball.add(shift, x)), ball.add(shift[0], ball.mean(x)))


def test_midpoint_of_single_precision_points_at_the_rim():
    """Where the Klein model's `1 - |k|^2` is below the resolution of float32."""
    ball = PoincareBall()
    copies = ball.project(torch.tensor([[20.0, 0.0]])).expand(3, 2)
    torch.testing.assert_close(ball.mean(copies), copies[0], atol=1e-7, rtol=0)
    apart = ball.project(torch.tensor([[20.0, 0.0], [20.0, 1e-3]]))
    to_each = ball.distance(ball.mean(apart)[None], apart)[0]
    torch.testing.assert_close(to_each, ball.distance(apart, apart)[0, 1].expand(2) / 2, rtol=0.02, atol=0)


@pytest.mark.parametrize("curvature", [0.3, 1.0, 4.0])
def test_clarity_is_the_distance_from_the_centre(curvature):
    ball = PoincareBall(curvature)
    points = ball.project(torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    centre = torch.zeros(1, 5, dtype=torch.float64)
    torch.testing.assert_close(ball.clarity(points), ball.distance(points, centre)[:, 0])
    raw = 0.2 * torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # The exponential map at the centre keeps lengths, up to the conformal factor 2.
    torch.testing.assert_close(ball.clarity(ball.project(raw)), 2 * raw.norm(dim=1))
    assert ball.clarity(torch.full((1, 5), 9.0)).isfinite().all()
