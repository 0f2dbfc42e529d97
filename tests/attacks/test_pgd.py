"""FGSM, BIM and PGD on linear models, whose worst points are known, beside foolbox's; and what every attack holds."""

import foolbox
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.attacks import L2, Combined, LInf, attack, attack_classifier
from nearkin.attacks.library import published_attack
from nearkin.errors import DataError

SHAPE = (1, 2, 3)


class Linear(torch.nn.Module):
    """Two classes, the first ahead by `<w, x> + b`."""

    def __init__(self, bias=0.0, seed=0):
        super().__init__()
        self.w = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.bias = bias

    def margin(self, x):
        return x.flatten(1) @ self.w + self.bias

    def forward(self, x):
        margin = self.margin(x)
        return torch.log_softmax(torch.stack([margin, torch.zeros_like(margin)], dim=1), dim=1)


def network(seed, classes=3, sizes=6):
    torch.manual_seed(seed)
    return (
        torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(sizes, 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, classes),
            torch.nn.LogSoftmax(dim=1),
        )
        .requires_grad_(False)
        .double()
    )


def pixels(count=8, low=0.3, high=0.7, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).uniform(low, high, (count, *SHAPE)))


ATTACKS = {
    "fgsm": {"steps": 1, "random_start": False},
    "bim": {"steps": 10, "random_start": False},
    "pgd": {"steps": 60, "step": 0.1},
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("raised", ["cross-entropy", "margin"])
def test_the_worst_point_of_a_linear_model(name, norm, raised):
    model, x = Linear(bias=9.0), pixels()  # so sure that it stays right: the climb goes to its end
    codes = torch.zeros(len(x), dtype=torch.int64)
    found = attack_classifier(model, x, codes, 0.1, norm=norm, raised=raised, bounds=None, **ATTACKS[name])
    way = model.w.sign() if norm == "linf" else model.w / model.w.norm()
    torch.testing.assert_close(found.points, x.flatten(1) - 0.1 * way, rtol=0, atol=1e-6)
    assert not found.reached.any()


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_foolbox_goes_to_the_same_points(name, norm):
    model, x = Linear(bias=9.0), pixels()
    codes = torch.zeros(len(x), dtype=torch.int64)
    ours = attack_classifier(model, x, codes, 0.1, norm=norm, **ATTACKS[name]).points.view_as(x)
    steps = ATTACKS[name]["steps"]
    theirs = published_attack(name, model, x, codes, 0.1, norm=norm, steps=steps, step=ATTACKS[name].get("step"))
    torch.testing.assert_close(theirs.pixels, ours, rtol=0, atol=1e-6)
    kinds = {
        "fgsm": "{}FastGradientAttack",
        "bim": "{}BasicIterativeAttack",
        "pgd": "{}ProjectedGradientDescentAttack",
    }
    options = {} if name == "fgsm" else {"steps": steps, "abs_stepsize": ATTACKS[name].get("step", 2.5 * 0.1 / steps)}
    theirs = getattr(foolbox.attacks, kinds[name].format(norm.capitalize()))(**options)
    direct = theirs(foolbox.PyTorchModel(model.eval(), bounds=(0, 1)), x, codes, epsilons=0.1)[1]
    torch.testing.assert_close(direct, ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_one_step_on_a_network_is_foolbox_s_fgsm(norm):
    model, x = network(0), pixels(20, 0, 1)
    codes = model(x).argmax(dim=1)
    ours = attack_classifier(model, x, codes, 0.02, norm=norm, steps=1, random_start=False)
    theirs = published_attack("fgsm", model, x, codes, 0.02, norm=norm)
    torch.testing.assert_close(ours.points.view_as(x), theirs.pixels, rtol=0, atol=1e-6)
    assert torch.equal(ours.reached, theirs.wrong)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("eps", [0.01, 0.05, 0.2])
def test_who_falls_is_who_is_nearer_to_the_border(norm, eps):
    model = Linear(bias=-0.1)
    x = pixels(60, 0.3, 0.7)
    codes = (model.margin(x) < 0).long()
    far = model.margin(x).abs() / (model.w.abs().sum() if norm == "linf" else model.w.norm())
    clear = (far - eps).abs() > 1e-4
    for options in ({"steps": 1, "random_start": False}, {"steps": 20}):
        found = attack_classifier(model, x, codes, eps, norm=norm, **options)
        assert torch.equal(found.reached[clear], (far < eps)[clear])
    named = model(found.points.view_as(x)).argmax(dim=1)
    assert torch.equal(named != codes, found.reached)


@given(
    seed=st.integers(0, 10**4),
    norm=st.sampled_from([L2(), LInf(), Combined(0.3)]),
    eps=st.sampled_from([0.0, 0.01, 0.3, 4.0]),
    random_start=st.booleans(),
)
@settings(max_examples=30)
def test_points_stay_in_ball_and_box(seed, norm, eps, random_start):
    model, x = network(seed), pixels(5, 0, 1, seed).round(decimals=1)
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 3, 5))
    found = attack_classifier(model, x, codes, eps, norm=norm, steps=4, restarts=2, random_start=random_start)
    assert (norm.length(found.points - x.flatten(1)) <= eps + 1e-9).all()
    assert ((found.points >= 0) & (found.points <= 1)).all()
    scores = model(found.points.view_as(x))
    assert torch.equal(scores.argmax(dim=1) != codes, found.reached)
    torch.testing.assert_close(found.values, -scores.gather(1, codes[:, None]).squeeze(1))
    before = model(x)
    wrong = before.argmax(dim=1) != codes
    assert torch.equal(found.points[wrong], x.flatten(1)[wrong])
    held = ~found.reached
    assert (found.values[held] >= -before.gather(1, codes[:, None]).squeeze(1)[held] - 1e-6).all()


class Told:
    """A goal whose second input is reached by the second climb only; it notes who is asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, points, rows):
        self.asked.append(rows.tolist())
        climbs = sum(len(rows) > 0 for rows in self.asked) - 1  # the first look is at the inputs
        reached = (rows == 0) | ((rows == 1) & torch.tensor(climbs > 2))
        return points.sum(dim=1), reached


def test_restarts_begin_only_what_is_left():
    goal = Told()
    found = attack(goal, torch.full((3, 2), 0.5), 0.1, steps=1, restarts=3)
    assert goal.asked == [[0, 1, 2], [1, 2], [1, 2], [1, 2], [2], [2], [2]]
    assert found.reached.tolist() == [True, True, False]
    assert torch.equal(found.points[0], torch.full((2,), 0.5))


def test_more_restarts_find_no_less():
    model, x = network(3), pixels(20, 0, 1)
    codes = model(x).argmax(dim=1)
    options = {"steps": 2, "seed": 5, "batch_size": 7}
    few = attack_classifier(model, x, codes, 0.1, restarts=1, **options)
    many = attack_classifier(model, x, codes, 0.1, restarts=4, **options)
    assert (many.reached | ~few.reached).all()
    held = ~many.reached
    assert (many.values[held] >= few.values[held]).all()
    assert torch.equal(many.points[few.reached], few.points[few.reached])


def test_a_seed_says_it_all():
    model, x = network(4), pixels(9, 0, 1)
    codes = torch.zeros(9, dtype=torch.int64)
    one, again, other = (
        attack_classifier(model, x, codes, 0.05, steps=1, step=0.001, seed=seed).points for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("norm", ["linf", "l2", Combined(0.3)])
def test_the_batch_size_does_not_matter(norm):
    model, x = network(5), pixels(11, 0, 1)
    codes = model(x).argmax(dim=1)
    told = []
    runs = [
        attack_classifier(
            model, x, codes, 0.1, norm=norm, steps=5, random_start=False, batch_size=size, advance=told.append
        )
        for size in (3, 11, 32)
    ]
    assert told == [3, 3, 3, 2, 11, 11]
    for run in runs[1:]:
        torch.testing.assert_close(run.points, runs[0].points, rtol=0, atol=1e-6)
        assert torch.equal(run.reached, runs[0].reached)


def test_nothing_to_attack():
    found = attack_classifier(network(0), pixels(0), torch.zeros(0, dtype=torch.int64), 0.1)
    assert found.points.shape == (0, 6)
    assert len(found.values) == len(found.reached) == 0


def test_what_makes_no_sense_is_refused():
    model, x, codes = network(0), pixels(2), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(DataError, match="0"):
        attack_classifier(model, x, codes, 0.1, restarts=0)
    with pytest.raises(DataError, match=r"-0\.1"):
        attack_classifier(model, x, codes, -0.1)
    with pytest.raises(DataError, match="inf"):
        attack_classifier(model, x, codes, float("inf"))
    with pytest.raises(DataError, match="bounds"):
        attack_classifier(model, x * 255, codes, 0.1)
    with pytest.raises(DataError, match="l1"):
        attack_classifier(model, x, codes, 0.1, norm="l1")
    with pytest.raises(DataError, match=r"\bmargin\b"):
        attack_classifier(model, x, codes, 0.1, raised="margins")
