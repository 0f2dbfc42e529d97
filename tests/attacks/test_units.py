"""Perturbations in pixels and in normalised numbers: there and back, channel by channel."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.attacks import attack_classifier
from nearkin.attacks.library import published_attack
from nearkin.attacks.units import Unit
from nearkin.data.inputs import InputSpec
from nearkin.errors import DataError

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
