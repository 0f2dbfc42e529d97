"""Losses of episodes: against naive loops, at their limits, and what they tell the log."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from nearkin.errors import DataError, RecipeError
from nearkin.objectives import ObjectiveSection, make_objective
from nearkin.spaces import Euclidean, PoincareBall, Sphere

WAY, DIMENSION = 4, 5
SPACES = [Euclidean(), Sphere(), Sphere(metric="angle"), PoincareBall()]
LOSSES = ["protonet-s", "protonet-dr", "1nn-s", "1nn-dr"]


def make(loss, shot, query, space=None, **parameters):
    section = ObjectiveSection(loss=loss, parameters=parameters)
    space = Euclidean() if space is None else space
    return make_objective(section, dimension=DIMENSION, classes=9, space=space, episode=(shot, query))


def episode(shot, query, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([7, 2, 5, 0]).repeat_interleave(shot + query)
    return torch.randn(len(labels), DIMENSION, generator=generator, dtype=dtype), labels


def distance(space, x, y):
    """One distance by the formulas of the spaces, in double precision."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if isinstance(space, Euclidean):
        return math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
    if isinstance(space, Sphere):
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
        chord = math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
        return chord if space.metric == "chord" else 2 * math.asin(min(1.0, chord / 2))
    tau = space.curvature
    inside = 1 + 2 * tau * ((x - y) @ (x - y)) / ((1 - tau * x @ x) * (1 - tau * y @ y))
    return math.acosh(inside) / math.sqrt(tau)


def naive(loss, space, raw, shot, query, **parameters):
    """The loss by loops over classes, queries and support items."""
    points = space.project(raw).view(WAY, shot + query, -1)
    rho = math.exp(parameters.get("log_rho", 2.0))
    scale, power = parameters.get("scale", 1.0), parameters.get("power", 2)
    total = 0.0
    for own in range(WAY):
        for number in range(shot, shot + query):
            scores = []
            for other in range(WAY):
                support = points[other, :shot]
                if loss.startswith("protonet"):
                    d = distance(space, points[own, number], space.mean(support))
                else:
                    d = min(distance(space, points[own, number], one) for one in support)
                ratio = -rho * 0.5 * math.log(d**2 + 1e-10)
                scores.append(ratio if loss.endswith("dr") else -scale * d**power)
            total += logsumexp(scores) - scores[own]
    return total / (WAY * query)


@pytest.mark.parametrize("shot", [1, 3])
@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.parametrize("parameters", [{}, {"scale": 0.3, "power": 1}], ids=["squared", "plain"])
@pytest.mark.parametrize("loss", ["protonet-s", "1nn-s"])
def test_protonet_s_and_1nn_s_by_naive_loops(loss, parameters, space, shot):
    raw, labels = episode(shot, 2)
    expected = naive(loss, space, raw, shot, 2, **parameters)
    assert make(loss, shot, 2, space, **parameters)(raw, labels).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shot", [1, 3])
@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.parametrize("parameters", [{}, {"log_rho": 0.5, "learn_rho": False}], ids=["learned", "fixed"])
@pytest.mark.parametrize("loss", ["protonet-dr", "1nn-dr"])
def test_protonet_dr_and_1nn_dr_by_naive_loops(loss, parameters, space, shot):
    raw, labels = episode(shot, 2)
    expected = naive(loss, space, raw, shot, 2, **parameters)
    assert make(loss, shot, 2, space, **parameters)(raw, labels).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("shot", "query"), [(1, 2), (2, 3)])
@pytest.mark.parametrize("loss", LOSSES)
def test_rolling_episodes_are_the_mean_over_all_turns(loss, shot, query):
    raw, labels = episode(shot, query)
    items = raw.view(WAY, shot + query, -1)
    turns = [
        naive(loss, Euclidean(), torch.cat([items[:, turn:], items[:, :turn]], dim=1).flatten(0, 1), shot, query)
        for turn in range(shot + query)
    ]
    made = make(loss, shot, query, rolling=True)
    assert made(raw, labels).item() == pytest.approx(np.mean(turns), rel=1e-5)
    assert made.train()(raw, labels).item() == pytest.approx(np.mean(turns), rel=1e-5)
    assert 0 <= made.readings()["accuracy"] <= 1


def test_in_a_rolling_episode_all_items_of_a_class_count_alike():
    raw, labels = episode(1, 3)
    objective = make("protonet-s", 1, 3, rolling=True)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = raw.view(WAY, 4, -1)[:, order].flatten(0, 1)
    torch.testing.assert_close(objective(raw, labels), objective(shuffled, labels))
    assert make("protonet-s", 1, 3)(raw, labels) != make("protonet-s", 1, 3)(shuffled, labels)


def test_1nn_s_and_1nn_dr_are_the_prototypes_with_one_shot():
    raw, labels = episode(1, 3)
    for form in ("s", "dr"):
        torch.testing.assert_close(make(f"1nn-{form}", 1, 3)(raw, labels), make(f"protonet-{form}", 1, 3)(raw, labels))
        more = episode(3, 3)
        assert make(f"1nn-{form}", 3, 3)(*more) != make(f"protonet-{form}", 3, 3)(*more)


@pytest.mark.parametrize(("factor", "softmax", "ratio"), [(1.0, 0.048587, 0.22314), (2.0, 6.1442e-6, 0.22314)])
def test_the_toy_example_of_the_paper(factor, softmax, ratio):
    """Article II, table 1: a query at distances 1 and 2 from two prototypes, then at 2 and 4."""
    support, query = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [2.0]])
    raw = factor * torch.stack([support[0], query[0], support[1], query[1]]).double()
    labels = torch.tensor([0, 0, 1, 1])
    assert make("protonet-s", 1, 1)(raw, labels).item() == pytest.approx(softmax, rel=2e-5)
    made = make("protonet-dr", 1, 1, log_rho=math.log(2))
    assert made(raw, labels).item() == pytest.approx(ratio, rel=2e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-2, 1e3), st.sampled_from(["protonet", "1nn"]))
def test_ratios_do_not_know_the_scale_and_squared_distances_do(seed, factor, kind):
    raw, labels = episode(3, 2, seed)
    ratio, softmax = make(f"{kind}-dr", 3, 2), make(f"{kind}-s", 3, 2)
    torch.testing.assert_close(ratio(factor * raw, labels), ratio(raw, labels), rtol=1e-4, atol=1e-6)
    if abs(math.log(factor)) > 0.1:
        assert abs(softmax(factor * raw, labels) - softmax(raw, labels)) > 1e-3


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_gradients_also_where_a_query_sits_on_a_support_item(loss, space):
    raw, labels = episode(2, 2)
    made = make(loss, 2, 2, space, **({"learn_rho": False} if loss.endswith("dr") else {}))
    assert torch.autograd.gradcheck(lambda f: made(f, labels), raw.clone().requires_grad_())
    raw[2] = raw[0] + 1e-4
    raw[3] = raw[1]
    raw[6] = raw[0]
    single = raw.float().requires_grad_()
    made(single, labels).backward()
    assert single.grad.isfinite().all()


@pytest.mark.parametrize("apart", [1e-4, 1e-3])
@pytest.mark.parametrize("loss", ["protonet-dr", "1nn-dr"])
def test_gradcheck_near_a_representative(loss, apart):
    raw, labels = episode(1, 2)
    raw[1] = raw[0] + apart
    made = make(loss, 1, 2, log_rho=math.log(2), learn_rho=False)
    assert torch.autograd.gradcheck(lambda f: made(f, labels), raw.requires_grad_(), eps=1e-8, atol=2e-3, rtol=1e-3)


def test_rho_is_learned_or_not():
    raw, labels = episode(1, 2, dtype=torch.float32)
    learned, fixed = make("protonet-dr", 1, 2), make("protonet-dr", 1, 2, learn_rho=False)
    assert [p.requires_grad for p in learned.parameters()] == [True]
    assert not fixed.proxies()
    optimiser = torch.optim.Adam(learned.proxies(), lr=1e-3)
    learned(raw, labels).backward()
    optimiser.step()
    assert learned.readings()["rho"] != pytest.approx(math.exp(2), rel=1e-5)
    assert fixed.readings()["rho"] == pytest.approx(math.exp(2), rel=1e-6)


def test_gradient_of_rho():
    raw, labels = episode(2, 2)
    made = make("1nn-dr", 2, 2).double()
    name = "loss.scores.log_rho"

    def value(log_rho):
        return torch.func.functional_call(made, {name: log_rho}, (raw, labels))

    assert torch.autograd.gradcheck(value, torch.tensor(1.5, dtype=torch.float64, requires_grad=True))


def test_readings_are_the_mean_accuracy_since_the_last_and_survive_a_checkpoint():
    made, again = make("protonet-s", 1, 2), make("protonet-s", 1, 2)
    good = torch.eye(WAY, DIMENSION).repeat_interleave(3, dim=0)
    labels = torch.arange(WAY).repeat_interleave(3)
    bad = good.clone()
    bad[[1, 4]] = good[[4, 1]]  # two of eight queries sit on each other's support
    made(good, labels)
    made(bad, labels)
    again.load_state_dict(made.state_dict())
    assert made.readings() == again.readings() == {"accuracy": pytest.approx((1 + 6 / 8) / 2)}
    assert made.readings() == {}
    made.eval()
    made(good, labels)
    assert made.readings() == {}, "only training counts"


def test_bad_episodes_get_one_sentence():
    made = make("protonet-s", 1, 2)
    raw, labels = episode(1, 2)
    with pytest.raises(DataError, match="11"):
        made(raw[:11], labels[:11])
    with pytest.raises(DataError, match="labels"):
        made(raw, labels.flip(0).roll(1))
    with pytest.raises(DataError, match="classes"):
        made(raw, torch.zeros_like(labels))
    with pytest.raises(DataError, match="classes"):
        made(raw[:3], labels[:3])


def test_a_loss_of_episodes_needs_them():
    with pytest.raises(RecipeError, match=r"training\.schedule"):
        make_objective(ObjectiveSection(loss="1nn-dr"), dimension=4, classes=5)
    with pytest.raises(RecipeError, match="shot"):
        make_objective(ObjectiveSection(loss="1nn-dr"), dimension=4, classes=5, episode=(0, 5))
    for episode in ((1,), (1, 2, 3), 3):
        with pytest.raises(RecipeError, match="episode"):
            make_objective(ObjectiveSection(loss="1nn-dr"), dimension=4, classes=5, episode=episode)
    with pytest.raises(RecipeError, match="100"):
        make("protonet-dr", 1, 1, log_rho=100)
    with pytest.raises(RecipeError, match="-1000"):
        make("protonet-dr", 1, 1, log_rho=-1000)
    smallest = make("protonet-dr", 1, 1, log_rho=-80).loss.scores.log_rho.exp()
    assert smallest > torch.finfo(torch.float32).tiny
