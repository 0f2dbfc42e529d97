"""The proximal term against autograd on the formula."""

from __future__ import annotations

import torch

from nearkin.training.schedules.proximal import proximal

SHAPES = [(3, 4), (5,), (2, 3, 1, 1)]


def weights(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]


def test_value_and_gradient_are_those_of_the_formula():
    ours, plain = ([w.requires_grad_(True) for w in weights(0)] for _ in range(2))
    centre = weights(1)
    value = proximal(ours, centre, 0.3)
    expected = 0.15 * sum(((w - c) ** 2).sum() for w, c in zip(plain, centre, strict=True))
    torch.testing.assert_close(value, expected)
    (2.0 * value).backward()
    (2.0 * expected).backward()
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_gradient_points_away_from_the_centre():
    """Descending it comes nearer: the sign that algorithm 1 of the paper has the other way round."""
    (weight,) = [torch.tensor([2.0], requires_grad=True)]
    proximal([weight], [torch.tensor([0.5])], 1.0).backward()
    assert weight.grad.item() == 1.5


def test_gradcheck():
    centre = weights(2)
    inputs = tuple(w.requires_grad_(True) for w in weights(3))
    assert torch.autograd.gradcheck(lambda *w: proximal(list(w), centre, 0.7), inputs)
