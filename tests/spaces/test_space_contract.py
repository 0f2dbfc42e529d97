"""What every space promises, and the formulas of the flat ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from nearkin.errors import ModelError, UnknownNameError
from nearkin.spaces import (
    Euclidean,
    EuclideanOrder,
    LipschitzBall,
    PoincareBall,
    Sphere,
    euclidean_distance,
    make_space,
    spaces,
)

ALL = [
    Euclidean(),
    Sphere(),
    Sphere("angle"),
    Sphere(radius=8.0),
    LipschitzBall(),
    PoincareBall(),
    PoincareBall(0.25),
    PoincareBall(7.0),
]
every_space = pytest.mark.parametrize("space", ALL, ids=repr)


def embeddings(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@every_space
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), dimension=st.integers(1, 6), size=st.sampled_from([1e-3, 0.1, 1.0, 10.0]))
def test_distance_is_a_metric(space, seed, dimension, size):
    points = space.project(size * embeddings(7, dimension, seed=seed))
    d = space.distance(points, points)
    assert (d >= 0).all()
    assert (d.diagonal() == 0).all()
    torch.testing.assert_close(d, d.T)
    through = (d[:, :, None] + d[None, :, :]).amin(dim=1)  # the best detour, over the middle point
    assert (d <= through + 1e-9 * (1 + d)).all()


@every_space
def test_distance_is_pairwise_and_batched(space):
    x, y = space.project(embeddings(2, 3, 5, 4)), space.project(embeddings(2, 3, 6, 4, seed=1))
    d = space.distance(x, y)
    assert d.shape == (2, 3, 5, 6)
    torch.testing.assert_close(d[1, 2, 3, 4], space.distance(x[1, 2, 3:4], y[1, 2, 4:5])[0, 0])
    assert space.mean(x).shape == (2, 3, 4)


@every_space
def test_project_gradient(space):
    f = embeddings(6, 3).requires_grad_()
    assert gradcheck(space.project, f)


@every_space
def test_distance_and_mean_gradients(space):
    x = space.project(0.4 * embeddings(4, 3)).requires_grad_()
    y = space.project(0.4 * embeddings(5, 3, seed=1)).requires_grad_()
    assert gradcheck(space.distance, (x, y))
    assert gradcheck(space.mean, x)


@every_space
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_finite_at_zero_vectors_copies_and_opposites(space, dtype):
    f = embeddings(6, 4).to(dtype)
    f[0], f[1], f[3], f[4] = 0, 0, f[2], -f[2]
    f[5] = 200 * f[5]
    f.requires_grad_()
    points = space.project(f)
    d = space.distance(points, points)
    mean = space.mean(points)
    assert points.dtype == mean.dtype == dtype
    assert d.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert d.isfinite().all()
    assert (d.diagonal() == 0).all()
    assert d[0, 1] == 0 == d[2, 3]
    (d.sum() + mean.float().sum()).backward()
    assert f.grad.isfinite().all()


@every_space
def test_gradient_at_zero_distance_is_zero(space):
    x = space.project(embeddings(3, 4)).requires_grad_()
    (gradient,) = torch.autograd.grad(space.distance(x, x.detach()).diagonal().sum(), x)
    assert (gradient == 0).all()


@every_space
def test_halves_are_computed_in_single_precision(space):
    f = embeddings(8, 16, dtype=torch.float32).bfloat16()
    torch.testing.assert_close(
        space.distance(f, f), space.distance(f.float(), f.float()), rtol=0, atol=0, check_dtype=True
    )


@every_space
def test_distance_under_autocast_keeps_single_precision(space):
    points = space.project(embeddings(8, 16, dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = space.distance(points, points)
    torch.testing.assert_close(inside, space.distance(points, points), rtol=0, atol=0)


@every_space
def test_mean_of_copies_is_the_point_and_a_mean_belongs_to_the_space(space):
    points = space.project(embeddings(5, 3))
    torch.testing.assert_close(space.mean(points[:1].expand(4, 3)), points[0], atol=3e-6, rtol=0)
    middle = space.mean(points).unsqueeze(0)
    farthest = space.distance(points, points).amax()
    assert (space.distance(middle, points) <= farthest).all()


@every_space
def test_euclidean_form_orders_as_the_distance(space):
    assert isinstance(space, EuclideanOrder)
    x, y = space.project(3 * embeddings(4, 5)), space.project(3 * embeddings(60, 5, seed=1))
    (flat_x, _), (flat_y, weights) = space.as_euclidean(x), space.as_euclidean(y)
    scores = euclidean_distance(flat_x, flat_y).square() / (1 if weights is None else weights)
    assert torch.equal(scores.argsort(dim=1), space.distance(x, y).argsort(dim=1))


@every_space
def test_a_card_rebuilds_the_space(space):
    card = space.to_dict()
    assert make_space(**card) == space
    assert card["name"] == space.name
    assert space.name in spaces


def test_names():
    assert spaces.names() == ["euclidean", "lipschitz-ball", "poincare-ball", "sphere"]
    assert make_space("sphere", metric="angle") == Sphere("angle")


@pytest.mark.parametrize(
    ("name", "parameters", "error", "message"),
    [
        ("spere", {}, UnknownNameError, "sphere"),
        ("sphere", {"metrc": "angle"}, ModelError, "'metric'"),
        ("euclidean", {"metric": "angle"}, ModelError, "metric"),
        ("sphere", {"metric": "angel"}, ModelError, "angle"),
        ("poincare-ball", {"curvature": 0}, ModelError, "curvature"),
        ("poincare-ball", {"curvature": "1"}, ModelError, "curvature"),
        ("poincare-ball", {"curvature": math.nan}, ModelError, "curvature"),
    ],
)
def test_bad_names_and_parameters(name, parameters, error, message):
    with pytest.raises(error, match=message):
        make_space(name, **parameters)


def test_sphere_follows_the_printed_normalisation():
    f = embeddings(5, 3)
    torch.testing.assert_close(Sphere().project(f), f / (f.norm(dim=1, keepdim=True) + 1e-6))


def test_chord_and_angle_against_trigonometry():
    angles = torch.tensor([0.0, 1e-7, 0.3, math.pi / 2, 3.0, math.pi], dtype=torch.float64)
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    torch.testing.assert_close(Sphere("angle").distance(points[:1], points)[0], angles, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(Sphere().distance(points[:1], points)[0], 2 * (angles / 2).sin(), atol=1e-9, rtol=2e-6)


def test_small_angles_survive_single_precision():
    points = torch.tensor([[1.0, 0.0], [1.0, 1e-5]])
    assert Sphere("angle").distance(points[:1], points[1:]).item() == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize("metric", ["chord", "angle"])
def test_sphere_ignores_length(metric):
    sphere, x = Sphere(metric), embeddings(6, 3)
    torch.testing.assert_close(sphere.distance(x, 5 * x), sphere.distance(x, x), atol=1e-5, rtol=0)
    torch.testing.assert_close(sphere.mean(x), sphere.mean(sphere.project(x)), atol=1e-5, rtol=0)


def test_sphere_mean_is_the_normalised_mean_of_normalised_points():
    x = embeddings(6, 3)
    mean = (x / x.norm(dim=1, keepdim=True)).mean(dim=0)
    torch.testing.assert_close(Sphere().mean(x), mean / mean.norm(), atol=1e-5, rtol=0)


def test_lipschitz_ball_keeps_short_vectors_and_shortens_long_ones():
    f = torch.tensor([[0.3, 0.4], [0.6, 0.8], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.3, 0.4], [0.6, 0.8], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(LipschitzBall().project(f), expected)


def test_lipschitz_gradient_is_identity_inside_and_tangent_outside():
    def jacobian(f):
        return torch.autograd.functional.jacobian(LipschitzBall().project, f)

    identity = torch.eye(3, dtype=torch.float64)
    inside = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    outside = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64)
    direction = outside / 3
    torch.testing.assert_close(jacobian(inside), identity)
    torch.testing.assert_close(jacobian(torch.zeros(3, dtype=torch.float64)), identity)
    torch.testing.assert_close(jacobian(outside), (identity - torch.outer(direction, direction)) / 3)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([0.2, 1.0, 5.0]))
def test_lipschitz_ball_never_stretches(seed, size):
    ball, f = LipschitzBall(), size * embeddings(6, 3, seed=seed)
    assert (ball.distance(ball.project(f), ball.project(f)) <= euclidean_distance(f, f) + 1e-12).all()


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_the_sphere_ignores_any_length(size):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Sphere().distance(size * x, x), Sphere().distance(x, x), atol=1e-6, rtol=1e-6)
