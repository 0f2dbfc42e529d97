from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

from nearkin.errors import DataError, ModelError
from nearkin.models.pooling.base import make_pooling, poolings
from nearkin.models.pooling.gem import GeneralisedMeanPooling
from nearkin.models.pooling.netvlad import NetVladPooling
from nearkin.models.pooling.optimal_transport import OptimalTransportPooling
from nearkin.models.pooling.smk import MatchKernelPooling
from nearkin.models.pooling.solar import SolarPooling
from nearkin.models.pooling.weldon import WeldonPooling

# Name, parameters for six channels, size of the result, whether the order of positions does not matter.
CASES = [
    ("solar", {"reduction": 2}, 6, True),
    ("smk", {}, 6, False),
    ("smk", {"dimension": 4, "window": 1}, 4, True),
    ("netvlad", {"clusters": 3}, 18, True),
    ("netvlad", {"clusters": 4, "dimension": 2, "alpha": 3.0}, 8, True),
    ("ot", {"references": 3}, 18, True),
    ("ot", {"references": 2, "dimension": 4, "regularisation": 0.5}, 8, True),
    ("weldon", {"k_max": 2, "k_min": 3}, 6, True),
]
IDS = ["-".join([name, *map(str, parameters.values())]) for name, parameters, _, _ in CASES]


def random_map(seed: int = 0, shape: tuple[int, ...] = (2, 6, 3, 4)) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(name: str, parameters: dict, channels: int = 6) -> nn.Module:
    """The pooling with all of its parameters away from where they start, since zeros hide gradients."""
    torch.manual_seed(0)
    pooling = make_pooling(name, channels, **parameters).double()
    for parameter in pooling.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return pooling


def rows(x: torch.Tensor) -> np.ndarray:
    """Local features (B, N, C) of a map."""
    return x.detach().numpy().reshape(x.shape[0], x.shape[1], -1).transpose(0, 2, 1)


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


# -- all of them


@pytest.mark.parametrize(("name", "parameters", "size", "unordered"), CASES, ids=IDS)
@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (1, 6, 1, 1), (3, 6, 1, 5), (1, 6, 7, 7), (2, 6, 2, 1)])
def test_shapes_in_every_mode_and_layout(name, parameters, size, unordered, shape):
    pooling = make(name, parameters).float()
    x = random_map(1, shape).float()
    pooled = pooling(x)
    assert pooled.shape == (shape[0], size)
    assert pooling.out_channels == size
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooling.eval()(x.to(memory_format=torch.channels_last)), pooled)
    torch.testing.assert_close(pooling(x[:1]), pooled[:1])


@pytest.mark.parametrize(("name", "parameters", "size", "unordered"), CASES, ids=IDS)
def test_order_of_positions(name, parameters, size, unordered):
    pooling, x = make(name, parameters), random_map(2)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = pooling(x.flatten(2)[:, :, order].unflatten(2, (3, 4)))
    assert torch.allclose(shuffled, pooling(x), atol=1e-10) == unordered


@pytest.mark.parametrize(("name", "parameters", "size", "unordered"), CASES, ids=IDS)
def test_gradients_of_maps_and_parameters(name, parameters, size, unordered):
    pooling = make(name, parameters)
    # Above what GeM raises to its smallest value, where the gradient has a corner.
    x = (random_map(3) + (4.0 if name == "solar" else 0.0)).requires_grad_()
    names = [key for key, _ in pooling.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in pooling.parameters()]

    def pooled(x, *values):
        return torch.func.functional_call(pooling, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(pooled, (x, *values))
    # Any linear functional will do but the squared length, which normalised results do not change.
    (pooled(x, *values) * random_map(4, (pooling.out_channels,))).sum().backward()
    for key, value in zip(names, values, strict=True):
        # A softmax over keys is blind to what is added to all of them.
        assert (value.grad.abs().max() > 1e-8) == (key != "keys.bias"), key


DEGENERATE = {
    "zero": torch.zeros(2, 6, 3, 3),
    "constant": torch.full((2, 6, 3, 3), 0.7),
    "negative": -torch.rand(2, 6, 3, 3, generator=torch.Generator().manual_seed(0)) - 0.1,
    "one position": torch.randn(2, 6, 1, 1, generator=torch.Generator().manual_seed(0)),
    "huge": 1e30 * torch.randn(2, 6, 3, 3, generator=torch.Generator().manual_seed(0)),
    "tiny": 1e-30 * torch.randn(2, 6, 3, 3, generator=torch.Generator().manual_seed(0)),
    "mixed": torch.tensor([0.0, 1e30, 1e-30]).repeat(36).view(2, 6, 3, 3),
}


@pytest.mark.parametrize(("name", "parameters", "size", "unordered"), CASES, ids=IDS)
@pytest.mark.parametrize("started", [False, True])
def test_degenerate_maps_stay_finite(name, parameters, size, unordered, started):
    for kind, features in DEGENERATE.items():
        pooling = make(name, parameters).float()
        x = features.clone().requires_grad_()
        if started:
            with torch.no_grad():
                pooling.init_from(x.expand(-1, -1, 3, 3))
        pooled = pooling(x)
        assert pooled.isfinite().all(), kind
        pooled.sum().backward()
        assert x.grad.isfinite().all(), kind
        assert all(value.grad.isfinite().all() for value in pooling.parameters()), kind


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "parameters", "size", "unordered"), CASES, ids=IDS)
def test_half_precision_by_autocast(name, parameters, size, unordered, kind):
    pooling = make(name, parameters).float()
    x = random_map(4).float().abs().requires_grad_()
    whole = pooling(x)
    with torch.autocast("cpu", dtype=kind):
        half = pooling(x)
        from_half = pooling(x.to(kind))
    torch.testing.assert_close(half.float(), whole, rtol=0.05, atol=0.05)
    torch.testing.assert_close(from_half.float(), whole, rtol=0.05, atol=0.1)
    half.float().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(("name", "parameters", "size", "unordered"), CASES, ids=IDS)
def test_init_from_fills_the_parameters_that_exist(name, parameters, size, unordered):
    pooling = make(name, parameters).float()
    before = {key: (value, value.detach().clone()) for key, value in pooling.named_parameters()}
    pooling.init_from(random_map(5).float())
    after = dict(pooling.named_parameters())
    expected = {
        "smk": {"whitening.weight", "whitening.bias"},
        "netvlad": {"centers", "assignment.weight", "assignment.bias"},
        "ot": {"references"},
    }.get(name, set())
    assert {key for key, (_, old) in before.items() if not torch.equal(old, after[key])} == expected
    assert all(after[key] is value and value.requires_grad for key, (value, _) in before.items())
    values = [value.detach().clone() for value in after.values()]
    pooling.init_from(random_map(5).float(), seed=0)
    assert all(torch.equal(old, new) for old, new in zip(values, pooling.parameters(), strict=True))


@pytest.mark.parametrize("name", ["netvlad", "ot"])
def test_more_centers_than_features_are_refused(name):
    pooling = make_pooling(name, 6)
    with pytest.raises(ModelError, match="64"):
        pooling.init_from(torch.randn(1, 6, 3, 4))
    with pytest.raises(DataError, match="NaN"):
        pooling.init_from(torch.full((8, 6, 3, 4), torch.nan))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("solar", {"reduction": 0}),
        ("solar", {"reduction": 7}),
        ("solar", {"p": -1.0}),
        ("smk", {"dimension": 7}),
        ("smk", {"dimension": 0}),
        ("smk", {"window": 2}),
        ("smk", {"window": -1}),
        ("netvlad", {"clusters": 0}),
        ("netvlad", {"dimension": -2}),
        ("netvlad", {"alpha": 0.0}),
        ("netvlad", {"alpha": math.nan}),
        ("ot", {"references": 0}),
        ("ot", {"iterations": 0}),
        ("ot", {"regularisation": 0.0}),
        ("ot", {"regularisation": math.inf}),
        ("weldon", {"k_max": 0, "k_min": 0}),
        ("weldon", {"k_max": -1}),
    ],
)
def test_bad_parameters_say_what_to_change(name, parameters):
    """Built by hand; `make_pooling` refuses more, see test_pooling_parameters.py."""
    with pytest.raises(ModelError, match=rf"(?i)\b{next(iter(parameters))}\b"):
        poolings.get(name)(6, **parameters)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("solar", {"reduction": 7}),
        ("smk", {"dimension": 7}),
        ("weldon", {"k_max": 0, "k_min": 0}),
    ],
)
def test_what_no_annotation_can_say(name, parameters):
    with pytest.raises(ModelError, match=rf"(?i)\b{next(iter(parameters))}\b"):
        make_pooling(name, 6, **parameters)


def test_all_are_registered_with_their_defaults():
    for name, size in {"solar": 128, "smk": 128, "netvlad": 64 * 128, "ot": 64 * 128, "weldon": 128}.items():
        assert name in poolings
        assert make_pooling(name, 128).out_channels == size
        assert make_pooling(name, 128).has_parameters == (name != "weldon")
    # The two sizes of the comparison in the seed.
    for name, count in (("netvlad", "clusters"), ("ot", "references")):
        assert make_pooling(name, 512, dimension=16, **{count: 8}).out_channels == 128
        assert make_pooling(name, 512, dimension=128, **{count: 64}).out_channels == 8192


# -- SOLAR


def test_solar_starts_as_the_generalised_mean():
    x = random_map(6).abs()
    torch.testing.assert_close(SolarPooling(6, p=2.5).double()(x), GeneralisedMeanPooling(6, p=2.5).double()(x))


def test_solar_against_loops():
    pooling, x = make("solar", {"reduction": 2}), random_map(7) + 2
    pooling.queries.weight.data *= 3
    q, k, v, back = (
        (layer.weight.detach().numpy()[:, :, 0, 0], layer.bias.detach().numpy())
        for layer in (pooling.queries, pooling.keys, pooling.values, pooling.back)
    )
    p = pooling.mean.p.item()
    found = pooling(x).detach().numpy()
    for image, local in enumerate(rows(x)):
        attended = []
        for here in local:
            query = q[0] @ here + q[1]
            scores = np.exp([query @ (k[0] @ there + k[1]) / math.sqrt(3) for there in local])
            seen = sum(s * (v[0] @ there + v[1]) for s, there in zip(scores, local, strict=True)) / scores.sum()
            attended.append(here + back[0] @ seen + back[1])
        expected = (np.maximum(attended, 1e-6) ** p).mean(axis=0) ** (1 / p)
        np.testing.assert_allclose(found[image], expected, rtol=1e-9)


def test_solar_with_queries_of_zero_adds_one_mean_value_everywhere():
    pooling, x = make("solar", {"reduction": 2}), random_map(8)
    nn.init.zeros_(pooling.queries.weight)
    nn.init.zeros_(pooling.queries.bias)
    added = pooling.attend(x) - x
    expected = pooling.back(pooling.values(x.mean(dim=(2, 3), keepdim=True)))
    torch.testing.assert_close(added, expected.expand_as(x))


# -- SMK


def test_smk_of_a_map_worked_out_by_hand():
    # Two channels, three positions in a row, of lengths 5, 0 and 10.
    x = torch.tensor([[3.0, 0.0, 6.0], [4.0, 0.0, 8.0]], dtype=torch.float64).view(1, 2, 1, 3)
    pooling = MatchKernelPooling(2).double()
    torch.testing.assert_close(pooling.weights(x), torch.tensor([[[1 / 3, 0.0, 2 / 3]]], dtype=torch.float64))
    # Smoothed over what lies inside: (3 + 0)/2, (3 + 0 + 6)/3, (0 + 6)/2 and 2, 4, 4.
    expected = [[1.5 / 3 + 2 * 3.0 / 3, 2.0 / 3 + 2 * 4.0 / 3]]
    torch.testing.assert_close(pooling(x), torch.tensor(expected, dtype=torch.float64))
    # Not smoothed: (3 + 2 * 6)/3, (4 + 2 * 8)/3.
    bare = MatchKernelPooling(2, window=1).double()
    torch.testing.assert_close(bare(x), torch.tensor([[5.0, 20 / 3]], dtype=torch.float64))


@pytest.mark.parametrize("window", [1, 3, 5])
def test_smk_against_loops_over_whitened_positions(window):
    pooling, x = make("smk", {"dimension": 4, "window": window}), random_map(9)
    weight, bias = (value.detach().numpy() for value in pooling.whitening.parameters())
    image = x.numpy()
    reach = window // 2
    for b in range(2):
        total, mass = np.zeros(4), 0.0
        for row in range(3):
            for column in range(4):
                length = np.linalg.norm(image[b, :, row, column])
                patch = image[b, :, max(0, row - reach) : row + reach + 1, max(0, column - reach) : column + reach + 1]
                total += length * (weight @ patch.mean(axis=(1, 2)) + bias)
                mass += length
        np.testing.assert_allclose(pooling(x)[b].detach().numpy(), total / mass, rtol=1e-9)


def test_smk_is_the_match_kernel_of_all_pairs():
    pooling, x = MatchKernelPooling(6, window=1).double(), random_map(10)
    a, b = rows(x)
    pairs = sum(np.linalg.norm(u) * np.linalg.norm(v) * (u @ v) for u in a for v in b)
    norms = np.linalg.norm(a, axis=1).sum() * np.linalg.norm(b, axis=1).sum()
    pooled = pooling(x).detach().numpy()
    np.testing.assert_allclose(pooled[0] @ pooled[1], pairs / norms, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_smk_weights_sum_to_one_at_any_scale(seed, scale):
    pooling, x = MatchKernelPooling(6).double(), random_map(seed)
    weights = pooling.weights(x)
    torch.testing.assert_close(weights.sum(dim=(1, 2)), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(pooling.weights(scale * x), weights)
    torch.testing.assert_close(pooling.weights(x.abs() * 0), torch.full_like(weights, 1 / 12))


@pytest.mark.parametrize("dimension", [None, 4])
def test_smk_init_from_whitens(dimension):
    pooling = MatchKernelPooling(6, dimension=dimension, window=1).double()
    x = random_map(11, (20, 6, 5, 5)) * torch.tensor([3.0, 2.0, 1.0, 0.9, 0.8, 0.7]).view(6, 1, 1) + 5
    pooling.init_from(x)
    local = (
        rows(x).reshape(-1, 6) @ pooling.whitening.weight.detach().numpy().T + pooling.whitening.bias.detach().numpy()
    )
    np.testing.assert_allclose(local.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(np.cov(local.T, bias=True), np.eye(dimension or 6), atol=1e-9)


# -- NetVLAD


def naive_netvlad(pooling: NetVladPooling, local: np.ndarray) -> np.ndarray:
    weight, bias, centers = (
        value.detach().numpy() for value in (pooling.assignment.weight, pooling.assignment.bias, pooling.centers)
    )
    sums = np.zeros_like(centers)
    for x in local:
        x = x / (np.linalg.norm(x) + 1e-6)  # as our sphere normalises
        logits = np.array([weight[k] @ x + bias[k] for k in range(len(centers))])
        shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        for k in range(len(centers)):
            sums[k] += shares[k] * (x - centers[k])
    return unit(np.concatenate([unit(v) for v in sums]))


@pytest.mark.parametrize("dimension", [None, 3])
def test_netvlad_against_loops(dimension):
    pooling, x = make("netvlad", {"clusters": 5, "dimension": dimension, "alpha": 2.0}), random_map(12)
    reduced = pooling.reduction(x)
    found = pooling(x).detach().numpy()
    for image, local in enumerate(rows(reduced)):
        np.testing.assert_allclose(found[image], naive_netvlad(pooling, local), atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found.reshape(2, 5, -1), axis=2), 5**-0.5, atol=1e-6)


def test_netvlad_with_a_large_alpha_is_vlad():
    pooling, x = NetVladPooling(6, clusters=4, alpha=1e5).double(), random_map(13, (3, 6, 4, 4))
    pooling.init_from(x)
    centers = pooling.centers.detach().numpy()
    found = pooling(x).detach().numpy()
    for image, local in enumerate(rows(x)):
        sums = np.zeros_like(centers)
        for f in local:
            nearest = np.argmin([np.sum((unit(f) - c) ** 2) for c in centers])
            sums[nearest] += unit(f) - centers[nearest]
        expected = unit(np.concatenate([unit(v) if v.any() else v for v in sums]))
        np.testing.assert_allclose(found[image], expected, atol=1e-5)


def test_netvlad_starts_by_distances_to_centers_that_are_features():
    pooling, x = NetVladPooling(6, clusters=4).double(), random_map(14, (5, 6, 4, 4))
    pooling.init_from(x)
    local = rows(x).reshape(-1, 6)
    local = local / np.linalg.norm(local, axis=1, keepdims=True)
    centers = pooling.centers.detach().numpy()
    squares = ((local[:, None] - centers) ** 2).sum(axis=2)
    np.testing.assert_allclose(squares.min(axis=0), 0, atol=1e-9)
    logits = local @ pooling.assignment.weight.detach().numpy().T + pooling.assignment.bias.detach().numpy()
    ordered = np.sort(logits, axis=1)
    assert np.mean(ordered[:, -1] - ordered[:, -2]) == pytest.approx(math.log(100), rel=1e-4)
    # Differences of logits are those of squared distances, up to alpha.
    np.testing.assert_array_equal(logits.argmax(axis=1), squares.argmin(axis=1))
    alpha = np.diff(logits, axis=1) / -np.diff(squares, axis=1)
    np.testing.assert_allclose(alpha, alpha[0, 0], rtol=1e-3)


def test_netvlad_of_features_on_their_centers_has_no_wild_gradient():
    pooling = NetVladPooling(6, clusters=4)
    x = random_map(22, (4, 6, 1, 1)).float().requires_grad_()
    pooling.init_from(x.detach())
    pooled = pooling(x)
    # The residual to the own center is rounding, so it fades; the three others share the length.
    lengths = pooled.detach().view(4, 4, 6).norm(dim=2).sort(dim=1).values
    assert (lengths[:, 0] < 0.05).all()
    (pooled * random_map(4, (24,)).float()).sum().backward()
    assert x.grad.abs().max() < 1e5


def test_netvlad_assigns_in_full_precision_under_autocast():
    pooling, x = NetVladPooling(6, clusters=4, alpha=1e3), random_map(23).float()
    pooling.init_from(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(pooling(x), pooling.double()(x.double()).float(), rtol=0, atol=1e-3)


def test_netvlad_centers_cover_distant_clusters():
    directions = torch.eye(6)[:4]
    x = (directions.repeat(9, 1) + 0.01 * torch.randn(36, 6, generator=torch.Generator().manual_seed(0))).T
    pooling = NetVladPooling(6, clusters=4)
    pooling.init_from(x.view(1, 6, 6, 6))
    nearest = (pooling.centers.detach() @ directions.T).argmax(dim=1)
    assert sorted(nearest.tolist()) == [0, 1, 2, 3]


# -- optimal transport


def naive_plan(scores: np.ndarray, steps: int) -> np.ndarray:
    """The plan (K, N) of exp(scores) in extended precision, by plain products."""
    kernel = np.exp(scores.astype(np.longdouble) - scores.max())
    references, positions = kernel.shape
    rows, columns = np.ones((references, 1), dtype=np.longdouble), np.ones((1, positions), dtype=np.longdouble)
    for _ in range(steps):
        columns = 1 / positions / (rows * kernel).sum(axis=0, keepdims=True)
        rows = 1 / references / (kernel * columns).sum(axis=1, keepdims=True)
    return (rows * kernel * columns).astype(np.float64)


def cosines(pooling: OptimalTransportPooling, local: np.ndarray) -> np.ndarray:
    return np.array([[unit(z) @ unit(x) for x in local] for z in pooling.references.detach().numpy()])


@pytest.mark.parametrize("eps", [0.02, 0.1, 1.0, 10.0])
def test_ot_plan_against_products_and_its_marginals(eps):
    pooling = make("ot", {"references": 5, "regularisation": eps, "iterations": 3000})
    x = random_map(15)
    plan = pooling.plan(x).detach()
    for image, local in enumerate(rows(x)):
        expected = naive_plan(cosines(pooling, local) / eps, 3000)
        np.testing.assert_allclose(plan[image].flatten(1).numpy(), expected, atol=1e-6)
    torch.testing.assert_close(plan.sum(dim=(2, 3)), torch.full((2, 5), 1 / 5, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(dim=1), torch.full((2, 3, 4), 1 / 12, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("steps", [1, 4])
def test_ot_takes_the_steps_it_was_given(steps):
    pooling, x = make("ot", {"references": 5, "iterations": steps}), random_map(16)
    plan = pooling.plan(x).detach()
    for image, local in enumerate(rows(x)):
        expected = naive_plan(cosines(pooling, local) / 0.1, steps)
        np.testing.assert_allclose(plan[image].flatten(1).numpy(), expected, atol=1e-6)


def test_ot_with_a_small_eps_solves_the_linear_program():
    pooling = make("ot", {"references": 3, "regularisation": 2e-3, "iterations": 4000})
    x = random_map(17, (2, 6, 2, 3))
    plan = pooling.plan(x).detach().flatten(2).numpy()
    constraints = np.array(
        [np.repeat(np.eye(3)[k], 6) for k in range(3)] + [np.tile(np.eye(6)[i], 3) for i in range(6)]
    )
    for image, local in enumerate(rows(x)):
        scores = cosines(pooling, local)
        solution = linprog(-scores.ravel(), A_eq=constraints, b_eq=[1 / 3] * 3 + [1 / 6] * 6)
        np.testing.assert_allclose(plan[image], solution.x.reshape(3, 6), atol=1e-3)


def test_ot_against_loops():
    pooling, x = make("ot", {"references": 4, "dimension": 3}), random_map(18)
    found = pooling(x).detach().numpy()
    plan = pooling.plan(x).detach().flatten(2).numpy()
    for image, local in enumerate(rows(pooling.reduction(x))):
        expected = [2.0 * sum(plan[image, k, i] * local[i] for i in range(12)) for k in range(4)]
        np.testing.assert_allclose(found[image], np.concatenate(expected), rtol=1e-9)


def test_ot_limits_are_average_pooling():
    x = random_map(19)
    mean = x.mean(dim=(2, 3))
    torch.testing.assert_close(make("ot", {"references": 1})(x), mean)
    spread = make("ot", {"references": 4, "regularisation": 1e6})(x)
    torch.testing.assert_close(spread, mean.repeat(1, 4) / 2, rtol=1e-4, atol=1e-5)


def test_ot_references_start_at_features():
    pooling, x = OptimalTransportPooling(6, references=4).double(), random_map(20)
    pooling.init_from(x)
    local = rows(x).reshape(-1, 6)
    for reference in pooling.references.detach().numpy():
        assert min(np.linalg.norm(reference - unit(f)) for f in local) < 1e-5
    assert len(torch.unique(pooling.references.detach(), dim=0)) == 4


# -- WELDON


@pytest.mark.parametrize(("k_max", "k_min"), [(1, 0), (0, 1), (1, 1), (3, 2), (4, 9), (12, 5)])
def test_weldon_against_sorted_values(k_max, k_min):
    x = random_map(21)
    found = WeldonPooling(6, k_max=k_max, k_min=k_min)(x).numpy()
    for image in range(2):
        for channel in range(6):
            values = sorted(x[image, channel].flatten().tolist())
            high = sum(values[-k_max:]) / k_max if k_max else 0.0
            low = sum(values[:k_min]) / k_min if k_min else 0.0
            assert found[image, channel] == pytest.approx(high + low)


def test_weldon_of_a_map_worked_out_by_hand():
    x = torch.tensor([4.0, -1.0, 2.0, -3.0, 0.0, 1.0]).view(1, 1, 2, 3)
    assert WeldonPooling(1, k_max=2, k_min=3)(x).item() == pytest.approx((4 + 2) / 2 + (-3 - 1 + 0) / 3)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(12, 100))
def test_weldon_limits(seed, many):
    x = random_map(seed)
    average = x.mean(dim=(2, 3))
    torch.testing.assert_close(WeldonPooling(6, k_max=1, k_min=0)(x), x.amax(dim=(2, 3)))
    torch.testing.assert_close(WeldonPooling(6, k_max=0, k_min=1)(x), x.amin(dim=(2, 3)))
    torch.testing.assert_close(WeldonPooling(6, k_max=many, k_min=0)(x), average)
    torch.testing.assert_close(WeldonPooling(6, k_max=many, k_min=many)(x), 2 * average)
