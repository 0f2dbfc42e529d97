"""Scales that follow training: where they start, what they make small, how they move, and that they stay numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import RecipeError
from nearkin.objectives import LossShape, losses
from nearkin.objectives.proxy.scales import (
    ANGLE_LAW,
    CHORD_LAW,
    COSINE_LAW,
    DISTANCE_LAW,
    AdaCosScale,
    DynamicScale,
    adacos_scale,
    cosine_residual,
    cosine_scale,
    ratio_residual,
    ratio_scale,
)
from nearkin.spaces import Euclidean, PoincareBall, Sphere

EIGHTH, QUARTER = 2 * math.sin(math.pi / 8), math.sqrt(2)


def ratio_psi(s, classes, own, other):
    others = (classes - 1) * other**-s
    return others * (s + 1) * own**s - s + 1


def cosine_psi(s, classes):
    t, others = math.pi / 4, classes - 1
    own = math.exp(s * math.cos(t))
    return math.cos(t) * (own + others) + s * math.sin(t) ** 2 * (own - others)


@pytest.mark.parametrize(
    ("law", "classes", "expected"),
    [
        (ANGLE_LAW, 10, 3.922),
        (ANGLE_LAW, 100, 7.042),
        (ANGLE_LAW, 555, 9.421),
        (CHORD_LAW, 10, 4.343),
        (CHORD_LAW, 100, 7.899),
        (CHORD_LAW, 555, 10.597),
        (DISTANCE_LAW, 100, 7.899),
        (COSINE_LAW, 100, 5.794),
    ],
)
def test_first_scales(law, classes, expected):
    assert law.start(classes) == pytest.approx(expected, abs=5e-4)
    assert DynamicScale(law, classes)().item() == pytest.approx(expected, abs=5e-4)


def test_first_scale_of_five_classes_by_angles_is_three():
    assert ANGLE_LAW.start(5) == pytest.approx(3, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 22])
def test_few_classes_have_no_root_by_cosines(classes):
    assert all(cosine_psi(s, classes) > 0 for s in np.linspace(0, 50, 5001))
    assert cosine_scale(classes) == max(1, math.sqrt(2) * math.log(classes - 1)) == adacos_scale(classes)


@pytest.mark.parametrize("classes", [23, 24, 100, 1000])
def test_many_classes_have_two_roots_by_cosines_and_the_larger_is_taken(classes):
    grid = np.linspace(0, 50, 50_001)
    signs = np.sign([cosine_psi(s, classes) for s in grid])
    changes = np.flatnonzero(np.diff(signs))
    assert len(changes) == 2
    larger = brentq(cosine_psi, grid[changes[1]], grid[changes[1] + 1], args=(classes,))
    assert cosine_scale(classes) == pytest.approx(larger, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 100_000), st.floats(0.05, 0.9))
def test_ratios_have_one_root(classes, share):
    found = ratio_scale(classes, share)
    assert ratio_psi(found, classes, share, 1.0) == pytest.approx(0, abs=1e-6 * classes)
    assert ratio_psi(0.999 * found, classes, share, 1.0) > 0 > ratio_psi(1.001 * found, classes, share, 1.0)
    signs = np.sign([ratio_psi(s, classes, share, 1.0) for s in np.linspace(0.01, 3 * found, 2000)])
    assert (np.diff(signs) != 0).sum() == 1


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 60), st.floats(-5, 40), st.floats(-1.0, 1.0))
def test_slopes_of_the_residuals_are_their_derivatives(scale, log_others, nearness):
    for residual, formula in (
        (cosine_residual, lambda s, b, u: u * ((s * u).exp() + b) + s * (1 - u * u) * ((s * u).exp() - b)),
        (ratio_residual, lambda s, b, u: b * (s + 1) * (-u).exp() ** s - s + 1),
    ):
        s = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
        others, u = torch.tensor([log_others, nearness], dtype=torch.float64)
        wanted = formula(s, others.exp(), u)
        (derivative,) = torch.autograd.grad(wanted, s)
        psi, slope = residual(s.detach(), others, u)
        torch.testing.assert_close(psi, wanted.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(slope, derivative, rtol=1e-9, atol=1e-9)


def batches(count, size=8, classes=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        nearness = 2 * torch.rand(size, classes, generator=generator, dtype=torch.float64) - 1
        yield nearness, torch.randint(classes, (size,), generator=generator)


@pytest.mark.parametrize("rate", [1e-4, 0.01])
def test_the_first_step_of_adam_is_as_long_as_the_rate(rate):
    loss = losses.get("proxy-dr").factory(LossShape(4, 6, Sphere()), scale="dynamic", scale_rate=rate)
    before = loss.scores.scale.log_scale.item()
    loss(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 6)
    loss.stepped()
    assert abs(loss.scores.scale.log_scale.item() - before) == pytest.approx(rate, rel=1e-5)


def test_a_dynamic_scale_gets_as_near_to_its_root_as_its_rate_lets_it():
    """The same batch all the time: only the higher rate arrives at the scale where psi is zero, in so few steps."""
    nearness, labels = next(batches(1, classes=40))
    own, others = 0.6, 0.1
    nearness = torch.full_like(nearness, others).scatter(1, labels[:, None], own)
    left = {}
    for rate in (1e-4, 1e-2):
        scale = DynamicScale(CHORD_LAW, 40, rate)
        for _ in range(300):
            scale.watch(scale().item() * nearness, labels)
            scale.stepped()
        now = scale().item()
        left[rate] = abs(39 * math.exp(now * (others - own)) * (now + 1) - now + 1)
    assert left[1e-2] < 0.05 < left[1e-4]


@pytest.mark.parametrize(("name", "given"), [("normface", {}), ("hxe", {"scores": "softmax"})])
def test_a_rate_for_a_scale_that_does_not_move_is_refused(name, given):
    tree = Hierarchy.from_nested({"a": ["b", "c"], "d": ["e", "f"]})
    shape = LossShape(4, 4, Sphere(), class_names=tuple(tree.classes), hierarchy=tree)
    with pytest.raises(RecipeError, match="scale_rate"):
        losses.get(name).factory(shape, scale_rate=0.01, **given)


def seen(nearness, labels, scale):
    """B and the median nearness to the own class, by loops."""
    sums = [
        sum(math.exp(scale * u) for c, u in enumerate(row) if c != y) for row, y in zip(nearness, labels, strict=True)
    ]
    own = sorted((row[y] for row, y in zip(nearness, labels, strict=True)), reverse=True)
    return sum(sums) / len(sums), own[(len(own) - 1) // 2]


def cosine_square(s, others, u):
    return (u * ((s * u).exp() + others) + s * (1 - u * u) * ((s * u).exp() - others)).square()


def ratio_square(s, others, u):
    return (others * (s + 1) * math.exp(-u) ** s - s + 1).square()


@pytest.mark.parametrize(
    ("law", "square", "least"),
    [
        (COSINE_LAW, cosine_square, math.cos(math.pi / 4)),
        (ANGLE_LAW, ratio_square, -math.log(math.pi / 4)),
        (CHORD_LAW, ratio_square, -math.log(EIGHTH)),
        (DISTANCE_LAW, ratio_square, None),
    ],
)
def test_a_dynamic_scale_is_moved_by_adam_on_the_squared_residual(law, square, least):
    ours = DynamicScale(law, classes=6)
    theirs = torch.tensor(math.log(ours.start), dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([theirs], lr=1e-4)
    for nearness, labels in batches(40):
        ours.watch(ours() * nearness, labels)
        ours.stepped()
        others, own = seen(nearness.tolist(), labels.tolist(), theirs.exp().item())
        floor = least
        if floor is None:
            rest = [u for row, y in zip(nearness.tolist(), labels, strict=True) for c, u in enumerate(row) if c != y]
            floor = sum(rest) / len(rest) + math.log(QUARTER / EIGHTH)
        adam.zero_grad()
        square(theirs.exp(), others, max(own, floor)).backward()
        adam.step()
        assert ours.log_scale.item() == pytest.approx(theirs.item(), rel=1e-12)
    assert abs(ours.log_scale.item() - math.log(ours.start)) > 1e-3


def test_a_dynamic_scale_finds_the_root_it_looks_for():
    scale = DynamicScale(ANGLE_LAW, classes=5)
    scale.log_scale.copy_(torch.tensor(math.log(3.05)))
    nearness = torch.full((4, 5), -math.log(math.pi / 2), dtype=torch.float64)
    nearness[:, 0] = -math.log(math.pi / 4)
    for _ in range(3000):
        scale.watch(scale() * nearness, torch.zeros(4, dtype=torch.int64))
        scale.stepped()
    assert scale().item() == pytest.approx(3, abs=1e-3)


def test_adacos_is_the_formula_of_its_paper():
    scale = AdaCosScale(classes=6)
    expected = math.sqrt(2) * math.log(5)
    moved = set()
    for nearness, labels in batches(20, seed=3):
        nearness = 0.3 * nearness + 0.4  # all over the sphere, s would double at each step
        assert scale().item() == pytest.approx(expected)
        scale.watch(scale() * nearness, labels)
        scale.stepped()
        others, cosine = seen(nearness.tolist(), labels.tolist(), expected)
        expected = max(1.0, math.log(others) / math.cos(min(math.pi / 4, math.acos(cosine))))
        moved.add(round(expected, 6))
    assert len(moved) > 10


@pytest.mark.parametrize("law", [COSINE_LAW, ANGLE_LAW, CHORD_LAW, DISTANCE_LAW])
@pytest.mark.parametrize(
    ("nearness", "classes"), [(-40.0, 2), (-40.0, 7), (-1.0, 7), (0.0, 2), (1.0, 7), (13.8, 2), (40.0, 2), (40.0, 7)]
)
def test_a_dynamic_scale_stays_a_number_from_1_to_100(law, nearness, classes):
    scale = DynamicScale(law, classes)
    labels = torch.zeros(3, dtype=torch.int64)
    for log_scale in (0.0, math.log(100)):
        scale.log_scale.fill_(log_scale)
        for own in (-40.0, 0.0, 40.0):
            scores = scale() * torch.full((3, classes), nearness, dtype=torch.float64)
            scores[:, 0] = scale() * own
            scale.watch(scores.float(), labels)
            scale.stepped()
            assert 1 - 1e-9 <= scale().item() <= 100 + 1e-9
            assert scale.second_moment.isfinite()


def test_adacos_stays_from_1_to_100():
    scale = AdaCosScale(classes=2)
    assert scale() == 1
    labels = torch.zeros(2, dtype=torch.int64)
    for collapsed, expected in ((300.0, 100.0), (-300.0, 1.0)):
        scale.watch(torch.tensor([[0.0, collapsed]] * 2), labels)
        scale.stepped()
        assert scale().item() == expected


def built(loss, space, classes=6, **parameters):
    shape = LossShape(dimension=5, classes=classes, space=space)
    return losses.get(loss).factory(shape, **parameters)


@pytest.mark.parametrize(
    ("loss", "space", "parameters"),
    [
        ("normface", Sphere(), {"scale": "dynamic"}),
        ("adacos", Sphere(), {}),
        ("proxy-dr", Sphere(), {"scale": "dynamic"}),
        ("proxy-dr", Sphere(), {"scale": "dynamic", "distance": "angle"}),
        ("proxy-dr", Euclidean(), {"scale": "dynamic"}),
        ("proxy-dr", PoincareBall(), {"scale": "dynamic"}),
    ],
)
@pytest.mark.parametrize("classes", [2, 6])
def test_scales_move_after_steps_of_training_only(loss, space, parameters, classes):
    module = built(loss, space, classes, **parameters)
    x, labels = torch.randn(8, 5, requires_grad=True), torch.arange(8) % classes
    start = module.readings()["scale"]
    module.stepped()
    module.eval()(x, labels)
    module.stepped()
    assert module.readings() == {"scale": start}
    value = module.train()(x, labels)
    assert module.readings() == {"scale": start}
    value.backward()
    assert x.grad.isfinite().all()
    module.stepped()
    after = module.readings()["scale"]
    assert after != start or after == 1
    module.stepped()
    assert module.readings() == {"scale": after}, "what was seen counts once"


def test_the_loss_has_no_gradient_to_the_scale_and_uses_it_as_it_is():
    module = built("normface", Sphere(), scale="dynamic")
    fixed = built("normface", Sphere(), scale=module.readings()["scale"])
    fixed.bank.load_state_dict(module.bank.state_dict())
    x, labels = torch.randn(8, 5), torch.arange(8) % 6
    torch.testing.assert_close(module(x, labels), fixed(x, labels))
    assert [name for name, _ in module.named_parameters()] == ["bank.proxies"]


def test_fixed_scales_have_nothing_to_say():
    assert built("proxy-dr", Sphere()).readings() == {}
