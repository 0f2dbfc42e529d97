"""Generalized sum pooling against the paper's own iteration, its closed-form gradient and its linear program."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from nearkin.errors import ModelError
from nearkin.models.pooling import make_pooling
from nearkin.models.pooling.gsp import local_costs, soft_minimum, spend, threshold
from nearkin.spaces import euclidean_distance

BUDGETS = [0.01, 0.2, 0.5, 0.99]
SHARPNESSES = [0.01, 0.5, 5.0, 50.0]


def random_costs(batch=3, positions=12, prototypes=4, seed=0, dtype=torch.float64):
    return 2 * torch.rand(batch, positions, prototypes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def fixed_point(costs, sharpness, budget, steps=20_000):
    """Proposition 5.2.1 for costs (B, N, M): rho (B, N) and pi (B, N, M)."""
    kernel = torch.exp(-sharpness * costs)
    positions = costs.shape[1]
    t = costs.new_ones(len(costs), 1)
    for _ in range(steps):
        rho = 1 / positions / (1 + t * kernel.sum(2))
        following = budget / (kernel * rho.unsqueeze(2)).sum((1, 2)).unsqueeze(1)
        if torch.allclose(following, t, rtol=1e-15, atol=0):
            break
        t = following
    return rho, t.unsqueeze(2) * kernel * rho.unsqueeze(2)


def pooling_weights(costs, sharpness, budget):
    return spend(soft_minimum(costs, sharpness), budget)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("sharpness", SHARPNESSES)
def test_weights_match_the_fixed_point_of_the_paper(budget, sharpness):
    costs = random_costs()
    rho, _ = fixed_point(costs, sharpness, budget)
    expected = (1 / costs.shape[1] - rho) / budget
    torch.testing.assert_close(pooling_weights(costs, sharpness, budget), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("budget", [0.2, 0.37])
def test_sharp_weights_solve_the_linear_program(budget):
    costs = random_costs(batch=1, positions=10, prototypes=3)[0].numpy()
    positions, prototypes = costs.shape
    # Variables: pi (N M), rho (N).
    per_position = np.hstack([np.kron(np.eye(positions), np.ones((1, prototypes))), np.eye(positions)])
    in_all = np.concatenate([np.ones(positions * prototypes), np.zeros(positions)])
    solved = linprog(
        np.concatenate([costs.ravel(), np.zeros(positions)]),
        A_eq=np.vstack([per_position, in_all]),
        b_eq=np.concatenate([np.full(positions, 1 / positions), [budget]]),
    )
    expected = (1 / positions - solved.x[-positions:]) / budget
    found = pooling_weights(torch.from_numpy(costs)[None], 20_000.0, budget)[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("budget", [0.2, 0.9])
@pytest.mark.parametrize("sharpness", [0.5, 5.0])
def test_gradient_matches_the_unrolled_iteration_and_the_corrected_closed_form(budget, sharpness):
    costs = random_costs().requires_grad_()
    upstream = torch.randn(costs.shape[:2], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (found,) = torch.autograd.grad(pooling_weights(costs, sharpness, budget), costs, upstream)

    rho, pi = fixed_point(costs, sharpness, budget, steps=300)
    positions = costs.shape[1]
    (unrolled,) = torch.autograd.grad((1 / positions - rho) / budget, costs, upstream)
    torch.testing.assert_close(found, unrolled, rtol=1e-6, atol=1e-10)

    # Equation 5.2.2 with its misprint mended, for a loss of rho alone.
    q = rho * (-upstream / budget)
    eta = q.sum(1, keepdim=True) - positions * (q * rho).sum(1, keepdim=True)
    kappa = 1 / (1 - budget - positions * (rho * rho).sum(1, keepdim=True))
    closed = sharpness * positions * pi * (q - eta * kappa * rho).unsqueeze(2)
    torch.testing.assert_close(found, closed.detach(), rtol=1e-6, atol=1e-10)


def test_gradient_is_finite_where_unrolling_is_not():
    costs = (1.0 + random_costs(positions=49, prototypes=8, dtype=torch.float32)).requires_grad_()
    kernel = torch.exp(-100.0 * costs)
    t = torch.ones(len(costs), 1)
    for _ in range(100):
        rho = 1 / 49 / (1 + t * kernel.sum(2))
        t = 0.3 / (kernel * rho.unsqueeze(2)).sum((1, 2)).unsqueeze(1)
    (unrolled,) = torch.autograd.grad(rho.square().sum(), costs)
    assert not unrolled.isfinite().all()
    (ours,) = torch.autograd.grad(pooling_weights(costs, 100.0, 0.3).square().sum(), costs)
    assert ours.isfinite().all()
    assert ours.abs().max() > 0


@pytest.mark.parametrize("budget", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("sharpness", [0.01, 1.0, 200.0])
@pytest.mark.parametrize("positions", [1, 2, 49])
def test_single_precision_meets_the_budget_with_finite_gradients(budget, sharpness, positions):
    costs = random_costs(4, positions, 6, dtype=torch.float32).requires_grad_()
    weights = pooling_weights(costs, sharpness, budget)
    assert (weights.sum(1) - 1).abs().max() <= 1e-6
    assert weights.max() <= 1 / (positions * budget) + 1e-6  # no position gives more than it has
    (gradient,) = torch.autograd.grad(weights.square().sum(), costs)
    assert gradient.isfinite().all()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-800, 800), min_size=1, max_size=30),
    st.floats(0.001, 0.999),
)
def test_threshold_solves_its_equation_for_any_scores(scores, budget):
    scores = torch.tensor([scores], dtype=torch.float64)
    spent = torch.sigmoid(scores + threshold(scores, budget)).mean()
    assert abs(float(spent) - budget) <= 1e-9


def test_rows_do_not_disturb_each_other():
    hard = torch.tensor([[0.0, 500.0, 1000.0, -300.0]], dtype=torch.float64)
    easy = torch.zeros(1, 4, dtype=torch.float64)
    together = threshold(torch.cat([hard, easy]), 0.3)
    torch.testing.assert_close(together, torch.cat([threshold(hard, 0.3), threshold(easy, 0.3)]))


def test_first_and_second_derivatives():
    pooling = make_pooling("gsp", 3, prototypes=2).double()
    features = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)

    def pool(x, prototypes):
        replaced = {"prototypes": prototypes}
        with torch.nn.utils.stateless._reparametrize_module(pooling, replaced):
            return pooling.with_attributes(x)

    assert torch.autograd.gradcheck(pool, (features, pooling.prototypes))
    assert torch.autograd.gradgradcheck(pool, (features, pooling.prototypes))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**16))
def test_full_budget_is_average_pooling(batch, channels, height, width, seed):
    features = torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(seed))
    pooling = make_pooling("gsp", channels, prototypes=3, budget=1)
    torch.testing.assert_close(pooling(features), features.mean((2, 3)), rtol=0, atol=1e-6)
    torch.testing.assert_close(pooling.with_attributes(features)[0], features.mean((2, 3)), rtol=0, atol=1e-6)
    assert torch.equal(pooling.weights(features), torch.full((batch, height, width), 1 / (height * width)))


def test_nearly_full_budget_is_nearly_average_pooling():
    torch.manual_seed(0)
    features = torch.randn(2, 8, 5, 5)
    pooling = make_pooling("gsp", 8, budget=0.9999, sharpness=1.0)
    torch.testing.assert_close(pooling(features), features.mean((2, 3)), rtol=0, atol=1e-3)


def test_low_sharpness_is_nearly_average_pooling_and_high_sharpness_selects():
    torch.manual_seed(0)
    features = torch.randn(2, 8, 5, 5)
    soft, sharp = (make_pooling("gsp", 8, budget=0.2, sharpness=s) for s in (1e-3, 1e5))
    torch.testing.assert_close(soft.weights(features), torch.full((2, 5, 5), 1 / 25), rtol=0, atol=1e-3)
    kept = sharp.weights(features).flatten(1).sort(descending=True).values
    torch.testing.assert_close(kept[:, :5], torch.full((2, 5), 0.2), rtol=0, atol=0.05)


def test_costs_are_distances_in_the_unit_ball():
    features = 3 * torch.randn(2, 5, 3, 4)
    features[0] *= 0.05  # some inside the ball
    prototypes = torch.randn(6, 5)

    def shorten(v):
        return v / max(1.0, float(v.norm()))

    costs = local_costs(features, prototypes)
    for image in range(2):
        for position in range(12):
            local = shorten(features[image, :, position // 4, position % 4])
            for i in range(6):
                expected = float((local - shorten(prototypes[i])).norm())
                assert float(costs[image, position, i]) == pytest.approx(expected, abs=1e-5)


def test_plan_weights_and_attributes_agree():
    features = torch.randn(3, 8, 4, 5)
    pooling = make_pooling("gsp", 8, prototypes=6, budget=0.4)
    plan, weights = pooling.plan(features), pooling.weights(features)
    pooled, attributes = pooling.with_attributes(features)
    assert plan.shape == (3, 6, 4, 5)
    torch.testing.assert_close(plan.sum((1, 2, 3)), torch.full((3,), 0.4))
    assert (plan.sum(1) <= 1 / 20 + 1e-6).all()  # the rest is discarded
    torch.testing.assert_close(plan.sum(1) / 0.4, weights)
    torch.testing.assert_close(plan.sum((2, 3)) / 0.4, attributes)
    torch.testing.assert_close(pooled, (weights.unsqueeze(1) * features).sum((2, 3)))
    torch.testing.assert_close(pooled, pooling(features))
    _, pi = fixed_point(local_costs(features, pooling.prototypes).double(), 5.0, 0.4)
    torch.testing.assert_close(plan.double(), pi.transpose(1, 2).unflatten(2, (4, 5)), rtol=1e-4, atol=1e-7)


def test_prototypes_start_on_local_features_far_apart():
    torch.manual_seed(0)
    features = 0.1 * torch.randn(4, 6, 5, 5)
    pooling = make_pooling("gsp", 6, prototypes=8)
    parameter = pooling.prototypes
    pooling.init_from(features, seed=3)
    assert pooling.prototypes is parameter
    local = features.flatten(2).transpose(1, 2).flatten(0, 1)
    to_local = euclidean_distance(parameter.detach(), local)
    assert to_local.amin(1).max() <= 1e-5
    between = euclidean_distance(parameter.detach(), parameter.detach()) + torch.eye(8) * 9
    assert between.min() >= to_local.amin(0).max() - 1e-5  # greedy k-center: no two are nearer than the radius
    again = make_pooling("gsp", 6, prototypes=8)
    again.init_from(features, seed=3)
    assert torch.equal(again.prototypes, parameter)
    pooling(features.requires_grad_()).square().sum().backward()
    assert features.grad.isfinite().all()
    assert parameter.grad.isfinite().all()


def test_it_saves_little_for_the_backward_pass():
    costs = random_costs(4, 49, 64, dtype=torch.float32).requires_grad_()
    saved = 0

    def count(tensor):
        nonlocal saved
        saved += tensor.nbytes if tensor.data_ptr() != costs.data_ptr() else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        pooling_weights(costs, 5.0, 0.3)
    assert 0 < saved <= 8 * 8 * 4 * 49  # a few vectors of doubles, no matrix


def test_half_precision_is_close_and_keeps_its_type():
    features = torch.randn(2, 16, 6, 6)
    pooling = make_pooling("gsp", 16, prototypes=8)
    exact = pooling(features)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = pooling(features.bfloat16())
    assert pooled.dtype == torch.bfloat16
    torch.testing.assert_close(pooled.float(), exact, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", ["gsp", "gsp+gmp"])
def test_compiled_it_gives_the_same(name):
    torch.manual_seed(0)
    features = torch.randn(2, 8, 4, 4)
    pooling = make_pooling(name, 8, prototypes=4)
    compiled = torch.compile(pooling, fullgraph=True, backend="aot_eager")
    found, expected = features.clone().requires_grad_(), features.clone().requires_grad_()
    compiled(found).square().sum().backward()
    pooling(expected).square().sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_maximum_is_added():
    features = torch.randn(2, 8, 4, 4)
    both, alone = make_pooling("gsp+gmp", 8), make_pooling("gsp", 8)
    alone.load_state_dict(both.state_dict())
    torch.testing.assert_close(both(features), alone(features) + features.amax((2, 3)))
    torch.testing.assert_close(both.with_attributes(features)[0], both(features))
    torch.testing.assert_close(both.with_attributes(features)[1], alone.with_attributes(features)[1])
    assert both.weights(features) is None  # the maximum has no weights of positions


@pytest.mark.parametrize(
    "parameters",
    [
        {"budget": 0},
        {"budget": 1.1},
        {"budget": float("nan")},
        {"budget": "half"},
        {"sharpness": 0},
        {"sharpness": float("inf")},
        {"prototypes": 0},
        {"prototypes": 2.5},
    ],
)
def test_bad_parameters_say_what_to_change(parameters):
    with pytest.raises(ModelError, match=next(iter(parameters))):
        make_pooling("gsp", 4, **parameters)


def test_a_ruined_prototype_or_map_shows():
    features = torch.randn(2, 4, 3, 3)
    pooling = make_pooling("gsp", 4, prototypes=3)
    with torch.no_grad():
        pooling.prototypes[1] = torch.nan
    assert pooling(features).isnan().all()
    whole = make_pooling("gsp", 4, prototypes=3)
    features[0, 0, 0, 0] = torch.nan
    pooled = whole(features)
    assert pooled[0].isnan().all()
    assert pooled[1].isfinite().all()


def test_second_derivatives_at_positions_that_are_zero():
    features = torch.randn(1, 4, 2, 2, dtype=torch.float64)
    features[:, :, 0, 0] = 0
    features.requires_grad_()
    pooling = make_pooling("gsp", 4, prototypes=3).double()
    (first,) = torch.autograd.grad(pooling(features).square().sum(), features, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), features)
    assert first.isfinite().all()
    assert second.isfinite().all()


def test_attributes_keep_their_precision_under_autocast():
    features = torch.randn(2, 16, 6, 6)
    pooling = make_pooling("gsp", 16, prototypes=8)
    with torch.autocast("cpu", torch.bfloat16):
        pooled, attributes = pooling.with_attributes(features)
    assert pooled.dtype == attributes.dtype == torch.float32
    torch.testing.assert_close(attributes, pooling.with_attributes(features)[1])


def test_too_few_features_for_the_prototypes():
    with pytest.raises(ModelError, match="prototypes"):
        make_pooling("gsp", 4, prototypes=10).init_from(torch.randn(1, 4, 3, 3))
