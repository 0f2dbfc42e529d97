"""The Square attack: within bounds, never worse for the attacker, and blind to gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.attacks.library import _side, square_attack

SHAPE = (2, 6, 6)


def pixels(count=6, seed=0):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


class Linear:
    """Three classes by a random matrix; counts how often it is asked, and with how many."""

    def __init__(self, seed=0, scale=1.0):
        self.w = scale * torch.randn(72, 3, generator=torch.Generator().manual_seed(seed))
        self.asked = []

    def __call__(self, x):
        self.asked.append(len(x))
        assert not x.requires_grad
        return torch.log_softmax(x.flatten(1) @ self.w, dim=1)


def margins(model, x, codes):
    scores = model(x)
    others = scores.clone()
    others[torch.arange(len(x)), codes] = -torch.inf
    return scores[torch.arange(len(x)), codes] - others.max(dim=1).values


@given(seed=st.integers(0, 10**5), eps=st.sampled_from([0.0, 0.01, 0.2, 3.0]), queries=st.integers(1, 12))
@settings(max_examples=30)
def test_points_stay_within_epsilon_and_bounds(seed, eps, queries):
    model, x = Linear(seed), pixels(seed=seed)
    codes = torch.randint(0, 3, (6,), generator=torch.Generator().manual_seed(seed))
    found = square_attack(model, x, codes, eps, queries=queries, generator=torch.Generator().manual_seed(seed))
    assert (found - x).abs().max() <= eps + 1e-6
    assert ((found >= 0) & (found <= 1)).all()
    assert len(model.asked) <= queries


def test_margins_fall_with_queries():
    x = pixels(20)
    model = Linear(1, scale=0.3)
    codes = model(x).argmax(dim=1)
    before = margins(model, x, codes)
    runs = [
        margins(
            model,
            square_attack(model, x, codes, 0.1, queries=queries, generator=torch.Generator().manual_seed(0)),
            codes,
        )
        for queries in (1, 40, 400)
    ]
    assert runs[1].mean() < runs[0].mean()
    assert runs[2].mean() < runs[1].mean() < before.mean()
    worst = before - 0.1 * (model.w[:, codes].T - model.w[:, (codes + 1) % 3].T).abs().sum(dim=1)
    assert (runs[2] >= worst - 1e-4).all() or (runs[2] <= 0).any()


def test_it_comes_near_the_worst_point_of_a_linear_model():
    """Two classes that stay apart: the worst point changes every number by epsilon against the slope."""
    w = torch.randn(72, generator=torch.Generator().manual_seed(2))

    def classify(x):
        margin = x.flatten(1) @ w + 100
        return torch.stack([margin, torch.zeros_like(margin)], dim=1)

    x, codes = 0.5 + 0 * pixels(4), torch.zeros(4, dtype=torch.int64)
    found = square_attack(classify, x, codes, 0.1, queries=3000, generator=torch.Generator().manual_seed(0))
    gained = classify(x)[:, 0] - classify(found)[:, 0]
    assert (gained > 0.9 * 0.1 * w.abs().sum()).all()


def test_inputs_that_are_wrong_are_asked_for_no_more():
    model, x = Linear(3), pixels()
    codes = (model(x).argmax(dim=1) + 1) % 3
    model.asked.clear()
    square_attack(model, x, codes, 0.0, queries=50)
    assert model.asked == [6]


def test_it_fools_what_has_no_gradient():
    """Scores of rounded pixels are steps: their gradient is zero everywhere, and the attack does not mind."""
    w = torch.randn(72, 2, generator=torch.Generator().manual_seed(4))

    def steps(x):
        return torch.log_softmax((x.flatten(1) * 16).round() / 16 @ w, dim=1).detach()

    x = pixels(10)
    codes = steps(x).argmax(dim=1)
    with torch.no_grad():
        found = square_attack(steps, x, codes, 0.3, queries=300, generator=torch.Generator().manual_seed(0))
    assert (steps(found).argmax(dim=1) != codes).float().mean() > 0.8


def test_votes_can_be_attacked_in_double_precision():
    x = pixels(5).double()

    def votes(x):
        return (x.flatten(1).sum(dim=1, keepdim=True) > torch.tensor([0.0, 36.0])).double()

    found = square_attack(votes, x, torch.zeros(5, dtype=torch.int64), 0.2, queries=3)
    assert found.dtype == torch.float64


def test_a_generator_says_it_all():
    model, x = Linear(5, scale=0.1), pixels()
    codes = model(x).argmax(dim=1)
    one, again, other = (
        square_attack(model, x, codes, 0.05, queries=9, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_other_bounds():
    model, x = Linear(6), 4 * pixels() - 2
    found = square_attack(model, x, model(x).argmax(dim=1), 1.0, queries=5, bounds=(-2.0, 2.0))
    assert ((found >= -2) & (found <= 2)).all()
    assert (found < 0).any()


@pytest.mark.parametrize(("query", "side"), [(1, 10), (11, 7), (51, 5), (201, 4), (9000, 1)])
def test_squares_shrink_as_in_the_paper(query, side):
    """0.1 of 32 x 32 pixels, halved after 10, 50, 200, ... of 10,000 queries."""
    halvings = sum(query > limit for limit in (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000))
    assert _side(query, 10_000, 32, 32) == side == max(1, round((0.1 / 2**halvings * 1024) ** 0.5))
