"""The ball inside the box: nothing leaves either."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.attacks import L2, Ball, Combined, LInf, attack_classifier
from nearkin.attacks.library import published_attack
from nearkin.attacks.region import Unit, check_bounds
from nearkin.data.inputs import InputSpec
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


COLOUR = InputSpec(3, 4, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY = InputSpec(1, 4, (0.1307,), (0.3081,))


def pixels(spec, count=6, seed=0, low=0.0, high=1.0):
    shape = (count, spec.channels, spec.size, spec.size)
    return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def linear(spec, seed=0):
    w = torch.randn(2, spec.channels * spec.size**2, generator=torch.Generator().manual_seed(seed))
    return lambda x: torch.log_softmax(x.flatten(1) @ w.T.to(x.dtype), dim=1)


@pytest.mark.parametrize("spec", [COLOUR, GREY])
@pytest.mark.parametrize("name", ["pixels", "normalised"])
def test_there_and_back(spec, name):
    unit, x = Unit.of(name, spec), pixels(spec)
    numbers = unit.of_pixels(x)
    torch.testing.assert_close(unit.to_pixels(numbers), x, rtol=0, atol=1e-6)
    for channel in range(spec.channels):
        mean, std = (0, 1) if name == "pixels" else (spec.mean[channel], spec.std[channel])
        torch.testing.assert_close(numbers[:, channel], (x[:, channel] - mean) / std)
    low, high = unit.bounds
    for value in (0.0, 1.0):
        whole = unit.of_pixels(torch.full((1, spec.channels, 2, 2), value))
        assert low <= float(whole.min()) <= float(whole.max()) <= high


@given(values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=12, max_size=12))
def test_points_stay_pixels(values):
    numbers = torch.tensor(values, dtype=torch.float32).view(1, 3, 2, 2)
    found = Unit.of("normalised", COLOUR).to_pixels(numbers)
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_black_and_white_pixels_have_a_gradient(value):
    """Rounding puts some of them a little outside of 0 to 1, where a plain cut would hide their slope."""
    mean, std = torch.rand(2, 2000, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.2
    unit = Unit("normalised", mean, std)
    numbers = unit.of_pixels(torch.full((1, 2000, 1, 1), value)).requires_grad_(True)
    plain = numbers.detach().flatten() * std + mean
    assert ((plain < 0) | (plain > 1)).any()
    unit.to_pixels(numbers).sum().backward()
    torch.testing.assert_close(numbers.grad.flatten(), std)


def test_epsilon_in_normalised_units_is_epsilon_times_std_in_pixels():
    unit, x, eps = Unit.of("normalised", COLOUR), pixels(COLOUR, low=0.3, high=0.7), 0.2
    model = linear(COLOUR)
    codes = model(x).argmax(dim=1)
    moved = published_attack("fgsm", model, x, codes, eps, unit=unit).pixels
    for channel, std in enumerate(COLOUR.std):
        change = (moved - x)[:, channel].abs()
        torch.testing.assert_close(change, torch.full_like(change, eps * std), rtol=0, atol=1e-6)
    found = attack_classifier(
        unit.taken_by(model), unit.of_pixels(x), codes, eps, steps=1, random_start=False, bounds=unit.bounds
    )
    torch.testing.assert_close(unit.to_pixels(found.points.view_as(x)), moved, rtol=0, atol=1e-6)


def test_the_box_of_pixels_holds_in_normalised_units():
    unit, x = Unit.of("normalised", COLOUR), pixels(COLOUR).round()
    model = linear(COLOUR, 1)
    codes = model(x).argmax(dim=1)
    found = published_attack("fgsm", model, x, codes, 3.0, unit=unit)
    assert ((found.pixels >= 0) & (found.pixels <= 1)).all()
    assert (found.distances <= 3.0 + 1e-5).all()
    assert (found.pixels != x).any(dim=1).any()


def test_a_classifier_of_pixels_takes_numbers():
    unit, x, model = Unit.of("normalised", GREY), pixels(GREY), linear(GREY)
    torch.testing.assert_close(unit.taken_by(model)(unit.of_pixels(x)), model(x), rtol=0, atol=1e-5)


def test_an_unknown_unit_is_refused():
    with pytest.raises(DataError, match="pixels"):
        Unit.of("pixel", GREY)
