"""The ball inside the box: nothing leaves either."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.attacks import L2, Ball, Combined, LInf
from nearkin.attacks.region import check_bounds
from nearkin.errors import DataError


@given(
    seed=st.integers(0, 10**6),
    norm=st.sampled_from([L2(), LInf(), Combined(0.3)]),
    radius=st.sampled_from([0.0, 1e-3, 0.2, 5.0]),
    bounds=st.sampled_from([None, (0.0, 1.0)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=60)
def test_nothing_leaves_ball_or_box(seed, norm, radius, bounds, dtype):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(6, 5, generator=generator, dtype=dtype).round(decimals=1)
    ball = Ball(centres, radius, norm, bounds)
    far = centres + torch.randn(6, 5, generator=generator, dtype=dtype)
    slack = 1e-6 if dtype == torch.float32 else 1e-12
    for points in (ball.project(far), ball.draw(generator)):
        assert points.dtype == dtype
        assert (norm.length(points - centres) <= radius + slack).all()
        assert bounds is None or ((points >= 0) & (points <= 1)).all()
    torch.testing.assert_close(ball.project(ball.project(far)), ball.project(far), rtol=0, atol=slack)


def test_some_of_the_inputs():
    centres = torch.rand(4, 3)
    rows = torch.tensor([3, 1])
    some = Ball(centres, 0.1, L2(), None).select(rows)
    assert torch.equal(some.centres, centres[rows])
    assert (some.radius, some.bounds) == (0.1, None)


@pytest.mark.parametrize("radius", [-0.1, math.nan, math.inf])
def test_a_radius_is_a_number_from_0_on(radius):
    with pytest.raises(DataError, match=str(radius)):
        Ball(torch.zeros(1, 2), radius, L2())


def test_bounds_are_rounded_as_the_inputs_are():
    check_bounds(torch.tensor([0.1, 0.6]), (0.1, 0.6))  # 0.6 in single precision is above 0.6
    check_bounds(torch.zeros(0, 2), (0.0, 1.0))
    check_bounds(torch.tensor([7.0]), None)
    for value in (-0.01, 1.01, math.nan):
        with pytest.raises(DataError, match="bounds"):
            check_bounds(torch.tensor([0.5, value]), (0.0, 1.0))
