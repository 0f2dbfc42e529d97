from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from nearkin.errors import ModelError
from nearkin.models.pooling.base import Pooling, make_pooling, poolings
from nearkin.models.pooling.cbam import BlockAttentionPooling
from nearkin.models.pooling.crow import CrossDimensionalPooling
from nearkin.models.pooling.delf import AttentivePooling
from nearkin.models.pooling.generalized_max import GeneralizedMaxPooling
from nearkin.models.pooling.gsop import SecondOrderPooling

# Small versions, one or more of each.
SETTINGS = [
    ("generalized-max", {}),
    ("generalized-max", {"ridge": 0.01}),
    ("crow", {}),
    ("crow", {"norm": 1.0, "root": 1.0}),
    ("cbam", {"reduction": 2, "kernel": 3}),
    ("cbam", {"reduction": 16}),
    ("delf", {"hidden": 7}),
    ("delf", {"hidden": 7, "normalise": True}),
    ("gsop", {"reduced": 3}),
]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(SETTINGS)]
WITHOUT_ORDER = [setting for setting in SETTINGS if setting[0] != "cbam"]
every_pooling = pytest.mark.parametrize(("name", "parameters"), SETTINGS, ids=IDS)


def random_map(seed: int = 0, shape=(3, 5, 4, 6), positive: bool = False) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.clamp(min=0) if positive else x


def shaken(pooling: Pooling, seed: int = 0, scale: float = 0.7) -> Pooling:
    """The pooling in double precision, its weights as if it had learned something."""
    generator = torch.Generator().manual_seed(seed)
    pooling = pooling.double()
    for parameter in pooling.parameters():
        parameter.data.normal_(0.0, scale, generator=generator)
    return pooling


def make(name: str, parameters: dict, channels: int = 5, seed: int = 0) -> Pooling:
    return shaken(make_pooling(name, channels, **parameters), seed)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


@every_pooling
@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (1, 5, 1, 7), (3, 40, 2, 3), (4, 3, 9, 5)])
def test_shapes(name, parameters, shape):
    pooling = make_pooling(name, shape[1], **parameters)
    x = random_map(shape=shape).float()
    pooled = pooling(x)
    assert pooling.out_channels == shape[1]
    assert pooled.shape == shape[:2]
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooling.eval()(x.contiguous(memory_format=torch.channels_last)), pooled)
    torch.testing.assert_close(pooling(x[:1]), pooled[:1])


@every_pooling
def test_gradients(name, parameters):
    pooling = make(name, parameters)
    names = [name for name, _ in pooling.named_parameters()]

    def pool(x, *values):
        return functional_call(pooling, dict(zip(names, values, strict=True)), (x,))

    values = [value.detach().clone().requires_grad_() for value in pooling.parameters()]
    assert torch.autograd.gradcheck(pool, (random_map(1, (2, 5, 3, 2)).requires_grad_(), *values))


@every_pooling
def test_weights_are_shares(name, parameters):
    pooling, x = make(name, parameters), random_map(2)
    weights = pooling.weights(x)
    if name == "generalized-max":
        assert weights is None
        return
    assert weights.shape == (3, 4, 6)
    assert (weights > 0).all()
    torch.testing.assert_close(weights.sum(dim=(1, 2)), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(("name", "parameters"), WITHOUT_ORDER)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_positions_does_not_matter(name, parameters, seed):
    pooling, x = make(name, parameters, seed=seed), random_map(seed)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    moved = x.flatten(2)[:, :, order].view_as(x)
    torch.testing.assert_close(pooling(moved), pooling(x))
    weights = pooling.weights(x)
    if weights is not None:
        torch.testing.assert_close(pooling.weights(moved).flatten(1), weights.flatten(1)[:, order])


DEGENERATE = {
    "zeros": torch.zeros(2, 6, 4, 3),
    "constant": torch.full((2, 6, 4, 3), 3.3),
    "the same vector everywhere": torch.linspace(-2, 5, 6).view(1, 6, 1, 1).expand(2, 6, 4, 3).contiguous(),
    "negative": -random_map(3, (2, 6, 4, 3)).abs().float() - 0.1,
    "one position": random_map(4, (2, 6, 1, 1)).float(),
    "one zero position": torch.zeros(2, 6, 1, 1),
    "one position on": torch.eye(12)[5].view(1, 1, 4, 3).expand(2, 6, 4, 3) * 10,
    "tiny": random_map(5, (2, 6, 4, 3)).float() * 1e-20,
    "huge": random_map(6, (2, 6, 4, 3)).float() * 1e6,
}


@every_pooling
@pytest.mark.parametrize("scale", [0.7, 100.0])
def test_degenerate_maps_are_finite_forward_and_backward(name, parameters, scale):
    for kind, features in DEGENERATE.items():
        pooling = shaken(make_pooling(name, 6, **parameters), scale=scale).float()
        x = features.clone().requires_grad_()
        pooled, weights = pooling(x), pooling.weights(x)
        pooled.square().sum().backward()
        assert torch.isfinite(pooled).all(), kind
        assert torch.isfinite(x.grad).all(), kind
        assert all(torch.isfinite(value.grad).all() for value in pooling.parameters()), kind
        if weights is not None:
            torch.testing.assert_close(weights.sum(dim=(1, 2)), torch.ones(2))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@every_pooling
def test_autocast_and_half_maps(name, parameters, kind):
    pooling = make(name, parameters).float()
    x = random_map(7).float().requires_grad_()
    expected = pooling(x)
    with torch.autocast("cpu", dtype=kind):
        found = pooling(x)
        from_half = pooling(x.to(kind))
    assert found.dtype == torch.float32
    assert from_half.dtype == kind
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.05)
    torch.testing.assert_close(from_half.float(), expected, rtol=0.1, atol=0.05)
    found.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(("name", "factor"), [("delf", 1.0), ("cbam", 0.25), ("gsop", 0.5)])
def test_training_starts_with_average_pooling_up_to_a_factor(name, factor):
    pooling, x = make_pooling(name, 20).double(), random_map(8, (2, 20, 5, 4))
    torch.testing.assert_close(pooling(x), factor * x.mean(dim=(2, 3)))
    torch.testing.assert_close(pooling.weights(x), torch.full((2, 5, 4), 1 / 20, dtype=torch.float64))
    pooling(x).square().sum().backward()
    assert any(value.grad.abs().max() > 0 for value in pooling.parameters())


# Generalised max pooling.


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (2, 15, 3, 4), (2, 12, 3, 4)])
@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_generalized_max_solves_the_ridge_problem_of_the_paper(shape, ridge):
    """By numpy from both forms, whichever one the pooling chose."""
    x = random_map(9, shape)
    found = GeneralizedMaxPooling(shape[1], ridge=ridge)(x).numpy()
    for image in range(shape[0]):
        phi = x[image].flatten(1).numpy()
        channels, positions = phi.shape
        unit = np.mean([phi[:, n] @ phi[:, n] for n in range(positions)])
        alpha = np.linalg.solve(phi.T @ phi + ridge * unit * np.eye(positions), np.ones(positions))
        primal = np.linalg.solve(phi @ phi.T + ridge * unit * np.eye(channels), phi @ np.ones(positions))
        np.testing.assert_allclose(phi @ alpha, primal, rtol=1e-9)
        np.testing.assert_allclose(found[image], primal * unit * (positions + ridge) / positions, rtol=1e-9)


def test_generalized_max_lies_between_average_and_equal_similarities():
    x = random_map(10, (3, 30, 4, 5))
    torch.testing.assert_close(GeneralizedMaxPooling(30, ridge=1e9)(x), x.mean(dim=(2, 3)), rtol=1e-6, atol=1e-9)
    similarities = torch.einsum("bchw,bc->bhw", x, GeneralizedMaxPooling(30, ridge=1e-8)(x)).flatten(1)
    expected = x.square().sum(dim=1).mean(dim=(1, 2))[:, None].expand(3, 20)
    torch.testing.assert_close(similarities, expected, rtol=1e-5, atol=0)


def test_generalized_max_does_not_count_repetitions():
    """Without ridge, 99 copies of a feature weigh as much as a single other one; not so in a mean."""
    often, once = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    x = torch.stack([often] * 99 + [once], dim=1).view(1, 2, 10, 10).double()
    torch.testing.assert_close(GeneralizedMaxPooling(2, ridge=1e-9)(x), torch.ones(1, 2, dtype=torch.float64))
    torch.testing.assert_close(x.mean(dim=(2, 3)), torch.tensor([[0.99, 0.01]], dtype=torch.float64))


def test_generalized_max_keeps_single_precision_maps_exact_with_a_small_ridge():
    """Two equal columns and a ridge that single precision could not tell from none."""
    x = torch.zeros(1, 60, 7, 7)
    x[0, :, 0, 0] = x[0, :, 3, 2] = torch.linspace(-1, 1, 60)
    pooled = GeneralizedMaxPooling(60, ridge=1e-7)(x)
    # In units of the mean both columns have the squared length 49 / 2: an inner product of one takes 1 / sqrt(24.5).
    unit = (2 * x[0, :, 0, 0].square().sum() / 49).sqrt()
    expected = x[0, :, 0, 0] / x[0, :, 0, 0].norm() * unit / math.sqrt(24.5)
    torch.testing.assert_close(pooled[0], expected)


@pytest.mark.parametrize("factor", [1e-3, 7.0])
def test_generalized_max_scales_with_the_map(factor):
    x = random_map(11)
    pooling = GeneralizedMaxPooling(5)
    torch.testing.assert_close(pooling(factor * x), factor * pooling(x))


# CroW.


def crow_by_loops(x: np.ndarray, norm: float, root: float) -> np.ndarray:
    channels, height, width = x.shape
    sums = [[sum(max(x[k, i, j], 0.0) for k in range(channels)) for j in range(width)] for i in range(height)]
    length = sum(value**norm for row in sums for value in row) ** (1 / norm)
    on = [sum(x[k, i, j] > 0 for i in range(height) for j in range(width)) / (height * width) for k in range(channels)]
    pooled = []
    for k in range(channels):
        total = sum(
            x[k, i, j] * max(sums[i][j] / length, 1e-6) ** (1 / root) for i in range(height) for j in range(width)
        )
        pooled.append(total * math.log((sum(on) + channels * 1e-6) / (on[k] + 1e-6)))
    return np.array(pooled)


@pytest.mark.parametrize(("norm", "root"), [(2.0, 2.0), (1.0, 1.0), (3.0, 0.5)])
@pytest.mark.parametrize("positive", [True, False])
def test_crow_against_loops(norm, root, positive):
    x = random_map(12, positive=positive)
    found = CrossDimensionalPooling(5, norm=norm, root=root)(x).numpy()
    for image in range(3):
        np.testing.assert_allclose(found[image], crow_by_loops(x[image].numpy(), norm, root), rtol=1e-10)


def test_crow_by_hand():
    """Sums 9, 12, 0, 20 have length 25; the channels are on at three, two and none of the four positions."""
    x = torch.tensor([[[9.0, 4.0], [0.0, 16.0]], [[0.0, 8.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]]).double()[None]
    pooling = CrossDimensionalPooling(3)
    shares = np.sqrt(np.array([9.0, 12.0, 0.0, 20.0]) / 25)
    shares[2] = 1e-3
    first = math.log(5 / 3) * (9 * 0.6 + 4 * math.sqrt(0.48) + 16 * math.sqrt(0.8))
    second = math.log(5 / 2) * (8 * math.sqrt(0.48) + 4 * math.sqrt(0.8))
    np.testing.assert_allclose(pooling(x).numpy(), [[first, second, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(pooling.weights(x).numpy().ravel(), shares / shares.sum(), rtol=1e-12)


def test_crow_of_a_dense_constant_map_is_average_pooling_up_to_a_factor():
    x = torch.tensor([1.0, 2.0, 5.0]).double().view(1, 3, 1, 1).expand(1, 3, 4, 4)
    torch.testing.assert_close(CrossDimensionalPooling(3)(x), x[:, :, 0, 0] * 16**0.75 * math.log(3))


# CBAM.


def cbam_by_loops(pooling: BlockAttentionPooling, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    weights = {name: value.detach().numpy() for name, value in pooling.named_parameters()}

    def network(vector: np.ndarray) -> np.ndarray:
        hidden = np.maximum(weights["channel.0.weight"] @ vector + weights["channel.0.bias"], 0)
        return weights["channel.2.weight"] @ hidden + weights["channel.2.bias"]

    channels, height, width = x.shape
    x = x * sigmoid(network(x.mean(axis=(1, 2))) + network(x.max(axis=(1, 2))))[:, None, None]
    seen = [x.mean(axis=0), x.max(axis=0)]
    kernel = weights["spatial.weight"][0]
    side = kernel.shape[-1]
    attention = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            total = weights["spatial.bias"][0]
            for plane in range(2):
                for di in range(side):
                    for dj in range(side):
                        row, column = i + di - side // 2, j + dj - side // 2
                        if 0 <= row < height and 0 <= column < width:
                            total += kernel[plane, di, dj] * seen[plane][row, column]
            attention[i, j] = sigmoid(total)
    pooled = np.array([(x[k] * attention).sum() / (height * width) for k in range(channels)])
    return pooled, attention / attention.sum()


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_cbam_against_loops(kernel):
    pooling = shaken(BlockAttentionPooling(5, reduction=2, kernel=kernel), scale=0.3)
    x = random_map(13)
    for image in range(3):
        pooled, weights = cbam_by_loops(pooling, x[image].numpy())
        np.testing.assert_allclose(pooling(x).detach().numpy()[image], pooled, rtol=1e-10)
        np.testing.assert_allclose(pooling.weights(x).detach().numpy()[image], weights, rtol=1e-10)


def test_cbam_knows_neighbours():
    """Unlike the others: a position moved to another place has another weight."""
    pooling, x = shaken(BlockAttentionPooling(5, reduction=2)), random_map(14)
    assert not torch.allclose(pooling(x.flip(3)), pooling(x))


def test_cbam_with_open_attention_is_average_pooling():
    pooling, x = BlockAttentionPooling(5).double(), random_map(15)
    torch.nn.init.constant_(pooling.channel[2].bias, 30.0)
    torch.nn.init.constant_(pooling.spatial.bias, 60.0)
    torch.testing.assert_close(pooling(x), x.mean(dim=(2, 3)))


# DELF.


@pytest.mark.parametrize("normalise", [False, True])
def test_delf_against_loops(normalise):
    pooling = shaken(AttentivePooling(5, hidden=4, normalise=normalise))
    first, first_bias, second, second_bias = (value.detach().numpy() for value in pooling.parameters())
    x = random_map(16)
    found, weights = pooling(x).detach().numpy(), pooling.weights(x).detach().numpy()
    for image in range(3):
        local = x[image].flatten(1).numpy().T
        scores = []
        for vector in local:
            hidden = np.maximum(first[:, :, 0, 0] @ vector + first_bias, 0)
            scores.append(np.log1p(np.exp(second[0, :, 0, 0] @ hidden + second_bias[0])))
        shares = np.array(scores) / sum(scores)
        lengths = [math.sqrt(sum(v * v for v in vector)) if normalise else 1.0 for vector in local]
        expected = sum(share * vector / length for share, vector, length in zip(shares, local, lengths, strict=True))
        np.testing.assert_allclose(weights[image].ravel(), shares, rtol=1e-10)
        np.testing.assert_allclose(found[image], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("level", [-500.0, -30.0, 0.0, 500.0])
def test_delf_takes_the_ratio_of_scores_at_any_level(level):
    """Scores log 3 apart: weights 1 to 3 where softplus is exponential, all but equal where it is linear."""
    pooling = AttentivePooling(1, hidden=1)
    with torch.no_grad():
        for parameter, value in zip(pooling.parameters(), (1.0, 0.0, math.log(3.0), level), strict=True):
            parameter.fill_(value)
    weights = pooling.weights(torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)).detach().numpy().ravel()
    low, high = (np.logaddexp(0.0, level + shift) for shift in (0.0, math.log(3.0)))
    expected = [0.25, 0.75] if level == -500.0 else [low / (low + high), high / (low + high)]
    np.testing.assert_allclose(weights, expected, rtol=1e-4)


def test_delf_ignores_what_scores_low():
    pooling = AttentivePooling(2, hidden=1)
    with torch.no_grad():
        for parameter, value in zip(pooling.parameters(), ([[1.0, 0.0]], 0.0, 100.0, -50.0), strict=True):
            parameter.copy_(
                torch.tensor(value).reshape(parameter.shape) if parameter.ndim == 4 else torch.tensor([value])
            )
    x = torch.tensor([[1.0, 0.0, -2.0], [5.0, 7.0, 9.0]]).view(1, 2, 1, 3)
    torch.testing.assert_close(pooling(x), torch.tensor([[1.0, 5.0]]))


# GSoP.


def test_gsop_against_loops():
    pooling = shaken(SecondOrderPooling(5, reduced=3))
    weights = {name: value.detach().numpy() for name, value in pooling.named_parameters()}
    x = random_map(17)
    found = pooling(x).detach().numpy()
    for image in range(3):
        local = x[image].flatten(1).numpy()
        covariance = np.cov(weights["reduce.weight"][:, :, 0, 0] @ local, bias=True)
        covariance = covariance / (np.trace(covariance) / 3 + 1e-6)
        responses = []
        for row in range(3):
            for number in range(4):
                response = weights["rows.weight"][4 * row + number, 0] @ covariance[row]
                response += weights["rows.bias"][4 * row + number]
                responses.append(response if response > 0 else 0.01 * response)
        gate = sigmoid(weights["gate.weight"] @ np.array(responses) + weights["gate.bias"])
        np.testing.assert_allclose(found[image], gate * local.mean(axis=1), rtol=1e-10)


def test_gsop_weights_channels_by_covariance_alone():
    """A common shift or factor of all local features leaves the channel weights; another covariance does not."""
    pooling, x = shaken(SecondOrderPooling(5, reduced=3)), random_map(18)
    weights = pooling.channel_weights(x)
    shift = torch.arange(5.0, dtype=torch.float64).view(1, 5, 1, 1)
    torch.testing.assert_close(pooling.channel_weights(x + shift), weights)
    torch.testing.assert_close(pooling.channel_weights(4.0 * x), weights, rtol=1e-4, atol=0)
    assert not torch.allclose(pooling.channel_weights(shift * x), weights, rtol=1e-2)
    assert ((weights > 0) & (weights < 1)).all()


# What cannot be built by hand; `make_pooling` refuses more, see test_pooling_parameters.py.


@pytest.mark.parametrize(
    ("name", "channels", "parameters", "word"),
    [
        ("generalized-max", 4, {"ridge": 0.0}, "ridge"),
        ("generalized-max", 4, {"ridge": -1.0}, "ridge"),
        ("generalized-max", 4, {"ridge": math.nan}, "ridge"),
        ("generalized-max", 4, {"ridge": math.inf}, "ridge"),
        ("crow", 1, {}, "channels"),
        ("crow", 4, {"norm": 0.5}, "norm"),
        ("crow", 4, {"root": 0.0}, "root"),
        ("crow", 4, {"root": math.nan}, "root"),
        ("cbam", 4, {"reduction": 0}, "reduction"),
        ("cbam", 4, {"kernel": 4}, "kernel"),
        ("cbam", 4, {"kernel": -1}, "kernel"),
        ("delf", 4, {"hidden": 0}, "hidden"),
        ("gsop", 4, {"reduced": 0}, "reduced"),
    ],
)
def test_what_cannot_be_built_says_why(name, channels, parameters, word):
    with pytest.raises(ModelError, match=word):
        poolings.get(name)(channels, **parameters)
