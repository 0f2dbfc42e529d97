"""Class probabilities from cosines: pytorch-metric-learning as the oracle, the printed formulas, limits, gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning import losses

from nearkin.errors import DataError
from nearkin.spaces.cosine_scores import (
    arcface_probabilities,
    cosface_probabilities,
    normface_probabilities,
    sphereface_probabilities,
)

SCALE = 2.0


def directions(count, d=4, seed=0):
    raw = torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(raw)


MODELS = {
    "normface": (lambda c: normface_probabilities(c, SCALE), lambda angle: math.cos(angle)),
    "sphereface": (lambda c: sphereface_probabilities(c, SCALE, 4), lambda angle: psi(angle, 4)),
    "sphereface, k = 0": (lambda c: sphereface_probabilities(c, SCALE, 2, 1), lambda angle: math.cos(2 * angle)),
    "cosface": (lambda c: cosface_probabilities(c, SCALE, 0.25), lambda angle: math.cos(angle) - 0.25),
    "arcface": (lambda c: arcface_probabilities(c, SCALE, 0.25), lambda angle: falling(angle, 0.25)),
}


def psi(angle, margin):
    k = min(int(angle * margin / math.pi), margin - 1)
    return (-1) ** k * math.cos(margin * angle) - 2 * k


def falling(angle, margin):
    return math.cos(angle + margin) if angle + margin <= math.pi else math.cos(angle) - margin * math.sin(margin)


def naive(cosines, own):
    """p(c | x) by the printed formula, one class after the other."""
    rows = []
    for row in cosines.tolist():
        angles = [math.acos(value) for value in row]
        for c in range(len(row)):
            mine = math.exp(SCALE * own(angles[c]))
            others = sum(math.exp(SCALE * math.cos(angles[y])) for y in range(len(row)) if y != c)
            rows.append(mine / (mine + others))
    return torch.tensor(rows, dtype=torch.float64).view_as(cosines)


@pytest.mark.parametrize("name", MODELS)
def test_the_printed_formula(name):
    probabilities, own = MODELS[name]
    cosines = directions(40) @ directions(5, seed=1).T
    torch.testing.assert_close(probabilities(cosines), naive(cosines, own))


def library(name, classes, d):
    return {
        "normface": lambda: losses.NormalizedSoftmaxLoss(classes, d, temperature=1 / SCALE),
        "sphereface": lambda: losses.SphereFaceLoss(classes, d, margin=4, scale=SCALE),
        "cosface": lambda: losses.CosFaceLoss(classes, d, margin=0.25, scale=SCALE),
        "arcface": lambda: losses.ArcFaceLoss(classes, d, margin=math.degrees(0.25), scale=SCALE),
    }[name]()


@pytest.mark.parametrize("name", ["normface", "sphereface", "cosface", "arcface"])
def test_the_losses_of_pytorch_metric_learning(name):
    """Their loss of a single item is minus the log of the probability of its label."""
    weights, points = directions(3, seed=1), directions(30)
    loss = library(name, 3, 4)
    loss.W.data = weights.T.clone()
    with torch.no_grad():
        each = [[loss(x[None], torch.tensor([c])).item() for c in range(3)] for x in points]
    expected = (-torch.tensor(each, dtype=torch.float64)).exp()
    torch.testing.assert_close(MODELS[name][0](points @ weights.T), expected, rtol=1e-6, atol=1e-8)


def test_without_a_margin_all_are_normface():
    cosines = directions(7) @ directions(5, seed=1).T
    plain = normface_probabilities(cosines, SCALE)
    torch.testing.assert_close(plain.sum(dim=1), torch.ones(7, dtype=torch.float64))
    torch.testing.assert_close(sphereface_probabilities(cosines, SCALE, 1), plain)
    torch.testing.assert_close(cosface_probabilities(cosines, SCALE, 0.0), plain)
    torch.testing.assert_close(arcface_probabilities(cosines, SCALE, 0.0), plain)


@given(st.floats(0.01, 0.5), st.integers(0, 50))
def test_a_margin_only_lowers_probabilities(margin, seed):
    cosines = directions(9, seed=seed) @ directions(4, seed=seed + 100).T
    plain = normface_probabilities(cosines, SCALE)
    assert (cosface_probabilities(cosines, SCALE, margin) < plain).all()
    # Beyond 180 degrees less m/2 only the continuation is lower than the plain cosine.
    assert (arcface_probabilities(cosines, SCALE, margin) < plain)[cosines > -math.cos(margin / 2)].all()


@pytest.mark.parametrize("margin", [1, 2, 3, 4, 5])
def test_sphereface_falls_with_the_angle_over_all_segments(margin):
    cosines = torch.linspace(1, -1, 2001, dtype=torch.float64)
    pairs = torch.stack([cosines, torch.zeros_like(cosines)], dim=1)
    p = sphereface_probabilities(pairs, SCALE, margin)[:, 0]
    assert (p.diff() < 1e-12).all()
    assert p.diff().abs().max() < 0.05, "the segments meet"
    own = torch.logit(p) / SCALE
    assert own[0].item() == pytest.approx(1.0)
    assert own[-1].item() == pytest.approx(1 - 2 * margin)


def test_sphereface_with_one_segment_rises_again_behind():
    poles = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    p = sphereface_probabilities(poles, SCALE, 2, 1)[:, 0]
    assert p[2] == p[0] > 0.8 > 0.2 > p[1]


def test_any_leading_shape():
    cosines = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    for probabilities, _ in MODELS.values():
        whole = probabilities(cosines)
        assert whole.shape == cosines.shape
        torch.testing.assert_close(whole[1, 2, 3], probabilities(cosines[1, 2, 3]))
        assert probabilities(cosines[:0]).shape == (0, 3, 4, 5)
        assert probabilities(torch.zeros(2, 1)).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    cosines = (0.99 * directions(6) @ directions(3, seed=1).T).requires_grad_()
    assert torch.autograd.gradcheck(MODELS[name][0], cosines)


def test_scale_and_the_margin_of_cosface_can_be_learned():
    cosines = directions(6) @ directions(3, seed=1).T
    scale, margin = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (2.0, 0.25))
    assert torch.autograd.gradcheck(lambda s, m: cosface_probabilities(cosines, s, m), (scale, margin))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_gradients_are_finite_at_the_poles(name, dtype):
    cosines = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.5]], dtype=dtype, requires_grad=True)
    p = MODELS[name][0](cosines)
    assert p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    p[:, 0].log().sum().backward()
    assert cosines.grad.isfinite().all()


def test_cosines_a_little_beyond_one_are_harmless():
    cosines = torch.tensor([[1 + 1e-7, -1 - 1e-7]], requires_grad=True)
    for probabilities, _ in MODELS.values():
        p = probabilities(cosines)
        assert p.isfinite().all()
        np.testing.assert_allclose(p.detach(), probabilities(cosines.clamp(-1, 1)).detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c: sphereface_probabilities(c, SCALE, 0), "margin"),
        (lambda c: sphereface_probabilities(c, SCALE, 1.5), r"1\.5"),
        (lambda c: sphereface_probabilities(c, SCALE, 2, 3), "segments"),
        (lambda c: sphereface_probabilities(c, SCALE, 2, 0), "segments"),
        (lambda c: arcface_probabilities(c, SCALE, -0.1), r"-0\.1"),
        (lambda c: arcface_probabilities(c, SCALE, "0.5"), "ArcFace"),
        (lambda c: arcface_probabilities(c, SCALE, None), "None"),
        (lambda c: cosface_probabilities(c, SCALE, "0.5"), "CosFace"),
        (lambda c: cosface_probabilities(c, SCALE, None), "None"),
        (lambda c: arcface_probabilities(c, SCALE, 28.6), "radians"),
        (lambda c: arcface_probabilities(c, SCALE, math.nan), "nan"),
    ],
)
def test_bad_margins_are_told(call, match):
    with pytest.raises(DataError, match=match):
        call(torch.zeros(1, 3))
