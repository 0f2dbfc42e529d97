"""Gradient ascent: steps by hand, what is kept on the way, and where it stops."""

import foolbox
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.attacks import (
    L2,
    AscentResult,
    Ball,
    Combined,
    LInf,
    Misclassify,
    PullTo,
    PushAway,
    ascend,
    attack,
    attack_classifier,
    climb,
    usual_step,
)
from nearkin.attacks.library import published_attack
from nearkin.attacks.pgd import nothing_found
from nearkin.errors import DataError
from nearkin.spaces import Euclidean, Sphere


class Sum:
    """Raise the sum of the coordinates; the aim is a limit, another one for each input."""

    def __init__(self, limits):
        self.limits = torch.tensor(limits)
        self.asked = []

    def __call__(self, points, rows):
        self.asked.append(rows.tolist())
        values = points.sum(dim=1)
        return values, values.detach() >= self.limits[rows]


def test_an_input_is_left_alone_once_its_aim_is_reached():
    goal = Sum([0.0, 0.25, 0.5, 9.0])
    start = torch.zeros(4, 1)
    found = ascend(goal, start, Ball(start, 1.0, LInf(), None), steps=3, step=0.3)
    assert goal.asked == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    torch.testing.assert_close(found.points, torch.tensor([[0.0], [0.3], [0.6], [0.9]]))
    assert found.reached.tolist() == [True, True, True, False]
    torch.testing.assert_close(found.values, torch.tensor([0.0, 0.3, 0.6, 0.9]))


def test_the_best_point_on_the_way_is_kept():
    """A step that is too long crosses the top: what was higher before is given back."""

    def hill(points, rows):
        return -(points - 0.5).square().sum(dim=1), torch.zeros(len(points), dtype=torch.bool)

    start = torch.tensor([[0.45], [0.0]])
    found = ascend(hill, start, Ball(start, 2.0, L2(), None), steps=1, step=0.4)
    torch.testing.assert_close(found.points, torch.tensor([[0.45], [0.4]]))


def test_no_steps_look_at_the_start_alone():
    goal = Sum([0.5, 5.0])
    found = ascend(goal, torch.ones(2, 2), Ball(torch.ones(2, 2), 1.0, L2(), None), steps=0, step=0.0)
    assert goal.asked == [[0, 1]]
    assert torch.equal(found.points, torch.ones(2, 2))
    assert found.reached.tolist() == [True, False]


def test_it_asks_for_gradients_by_itself():
    start = torch.ones(2, 2)
    ball = Ball(start, 1.0, LInf(), None)
    with torch.no_grad():
        found = ascend(Sum([9.0, 9.0]), start, ball, steps=2, step=0.1)
        climbed = climb(lambda points: points.sum(dim=1), start, ball, steps=2, step=0.1)
    torch.testing.assert_close(found.points, torch.full((2, 2), 1.2))
    torch.testing.assert_close(climbed, found.points)


def test_where_there_is_no_number_there_is_no_way_up():
    def broken(points, rows):
        return (points * torch.tensor([1.0, torch.nan])).nansum(dim=1), torch.zeros(len(points), dtype=torch.bool)

    start = torch.zeros(1, 2)
    found = ascend(broken, start, Ball(start, 1.0, LInf(), None), steps=2, step=0.25)
    assert torch.equal(found.points, torch.tensor([[0.5, 0.0]]))


@pytest.mark.parametrize(("steps", "step"), [(-1, 0.1), (1, -0.1), (1, float("nan"))])
def test_steps_that_make_no_sense_are_refused(steps, step):
    with pytest.raises(DataError, match="step"):
        ascend(Sum([1.0]), torch.zeros(1, 1), Ball(torch.zeros(1, 1), 1.0, L2()), steps=steps, step=step)


def test_climbing_is_the_plain_loop():
    """Whatever is met on the way: eight steps by hand, on a function with many tops."""
    centres = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = Ball(centres, 0.3, L2())
    x = centres.clone()
    for _ in range(8):
        gradient = 9 * torch.cos(9 * x)
        x = x + 0.1 * gradient / gradient.norm(dim=1, keepdim=True)
        way = x - centres
        x = (centres + way * (0.3 / way.norm(dim=1, keepdim=True)).clamp(max=1)).clamp(0, 1)
    found = climb(lambda points: torch.sin(9 * points).sum(dim=1), centres, ball, steps=8, step=0.1)
    torch.testing.assert_close(found, x)
    assert not found.requires_grad


def test_what_is_worse_for_the_defender_is_taken():
    found = nothing_found(torch.zeros(5, 1))
    everyone = torch.arange(5)
    found.take(everyone, torch.ones(5, 1), torch.tensor([1.0, 1, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 0]).bool())
    # higher; lower but reached; higher but not reached; higher and reached; no number
    values, reached = torch.tensor([2.0, 0, 5, 3, torch.nan]), torch.tensor([0, 1, 0, 1, 0]).bool()
    found.take(everyone, torch.full((5, 1), 2.0), values, reached)
    assert found.points.squeeze(1).tolist() == [2, 2, 1, 2, 1]
    assert found.values.tolist() == [2, 0, 1, 3, 1]
    assert found.reached.tolist() == [False, True, True, True, False]
    assert isinstance(found, AscentResult)


def test_the_usual_step_crosses_the_ball():
    assert usual_step(0.4, 1) == 0.4
    assert usual_step(0.4, 10) == pytest.approx(0.1)
    assert usual_step(0.4, 0) == 0.4


PROBABILITIES = torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.35, 0.4], [0.2, 0.5, 0.3]])


def test_values_of_misclassification_by_hand():
    codes = torch.tensor([2, 0, 0, 1])  # of four inputs, of which the points are of 1, 2 and 3
    rows = torch.tensor([1, 2, 3])
    raised, wrong = Misclassify(lambda x: PROBABILITIES.log(), codes, (2,))(torch.zeros(3, 2), rows)
    np.testing.assert_allclose(raised.numpy(), [-np.log(0.7), -np.log(0.25), -np.log(0.5)], rtol=1e-6)
    assert wrong.tolist() == [False, True, False]
    raised, wrong = Misclassify(lambda x: PROBABILITIES.log(), codes, (2,), "margin")(torch.zeros(3, 2), rows)
    np.testing.assert_allclose(raised.numpy(), np.log([0.2 / 0.7, 0.4 / 0.25, 0.3 / 0.5]), rtol=1e-6)
    assert wrong.tolist() == [False, True, False]
    assert ((raised > 0) == wrong).all()


def test_a_margin_has_a_gradient_where_the_classifier_is_sure():
    def sure(x):
        return torch.log_softmax(torch.stack([1000 * x[:, 0], torch.zeros(len(x))], dim=1), dim=1)

    slopes = []
    for raised in ("cross-entropy", "margin"):
        x = torch.ones(1, 1, requires_grad=True)
        Misclassify(sure, torch.zeros(1, dtype=torch.int64), (1,), raised)(x, torch.arange(1))[0].sum().backward()
        slopes.append(float(x.grad))
    assert slopes == [0.0, -1000.0]


def test_the_shape_is_given_back():
    seen = []

    def classifier(x):
        seen.append(tuple(x.shape))
        return torch.zeros(len(x), 2)

    Misclassify(classifier, torch.zeros(5, dtype=torch.int64), (3, 2, 2))(torch.zeros(4, 12), torch.arange(4))
    assert seen == [(4, 3, 2, 2)]


def embedder(seed=0, dimension=5):
    matrix = torch.randn(6, dimension, generator=torch.Generator().manual_seed(seed))
    return lambda x: (x.flatten(1) - 0.5) @ matrix


def naive(distance, query, gallery):
    return np.array([distance(query, item) for item in gallery])


def euclidean(a, b):
    return np.sqrt(((a - b) ** 2).sum())


def chord(a, b):
    return euclidean(a / np.linalg.norm(a), b / np.linalg.norm(b))


@pytest.mark.parametrize("space", [Euclidean(), Sphere()])
def test_pushing_away_by_naive_loops(space):
    embed = embedder()
    gallery, x = torch.randn(9, 5, generator=torch.Generator().manual_seed(1)), torch.rand(4, 1, 2, 3)
    codes, own = torch.arange(9) % 3, torch.tensor([0, 1, 2, 1])
    rows = torch.tensor([3, 0])
    raised, away = PushAway(embed, gallery, codes, own, space, (1, 2, 3))(x.flatten(1)[rows], rows)
    distance = space.distance(embed(x[rows]), gallery).numpy()
    for place, row in enumerate(rows.tolist()):
        same = codes.numpy() == int(own[row])
        gap = distance[place][same].min() - distance[place][~same].min()
        assert float(raised[place]) == pytest.approx(gap, rel=1e-5)
        assert bool(away[place]) == (gap > 0)
    if isinstance(space, Euclidean):
        expected = naive(euclidean, embed(x[3:4])[0].numpy(), gallery.numpy())
        np.testing.assert_allclose(distance[0], expected, rtol=1e-4)


@pytest.mark.parametrize("space", [Euclidean(), Sphere()])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_queries_are_pushed_away_from_their_class(space, norm):
    embed = embedder(2)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(10, 1, 2, 3, generator=generator)
    gallery = space.project(embed(torch.rand(12, 1, 2, 3, generator=generator)))
    codes = torch.arange(12) % 3
    own = codes[space.distance(space.project(embed(x)), gallery).argmin(dim=1)]  # right before the attack
    goal = PushAway(lambda inputs: space.project(embed(inputs)), gallery, codes, own, space, (1, 2, 3))
    found = attack(goal, x, 1.0, norm=norm, steps=40, restarts=3)
    assert found.reached.all()
    nearest = space.distance(space.project(embed(found.points)), gallery).argmin(dim=1)
    assert (codes[nearest] != own).all()
    assert not attack(goal, x, 0.0, steps=1).reached.any()


def test_queries_are_pulled_to_what_was_chosen():
    embed, space = embedder(4), Euclidean()
    generator = torch.Generator().manual_seed(5)
    x, others = torch.rand(8, 1, 2, 3, generator=generator), torch.rand(8, 1, 2, 3, generator=generator)
    gallery, targets = embed(others), torch.arange(8).flip(0)
    goal = PullTo(embed, gallery, targets, space, (1, 2, 3))
    raised, first = goal(x.flatten(1)[2:4], torch.tensor([2, 3]))
    for place, row in enumerate((2, 3)):
        distances = naive(euclidean, embed(x)[row].numpy(), gallery.numpy())
        assert float(raised[place]) == pytest.approx(-distances[targets[row]], rel=1e-4)
        assert bool(first[place]) == (distances.argmin() == int(targets[row]))
    found = attack(goal, x, 1.0, steps=100, step=0.05)  # the ball holds every target's own input
    assert found.reached.all()
    assert torch.equal(space.distance(embed(found.points), gallery).argmin(dim=1), targets)


def test_a_target_that_is_in_the_gallery_twice_is_found():
    gallery = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    goal = PullTo(lambda x: x, gallery, torch.tensor([1, 2]), Euclidean(), (2,))
    assert goal(torch.tensor([[0.9, 0.0], [0.9, 0.0]]), torch.arange(2))[1].tolist() == [True, False]


@pytest.mark.parametrize("codes", [[0, 0, 0], [1, 1, 1]])
def test_a_gallery_without_the_own_class_or_without_others_is_refused(codes):
    with pytest.raises(DataError, match="gallery"):
        PushAway(lambda x: x, torch.zeros(3, 2), torch.tensor(codes), torch.tensor([1]), Euclidean(), (2,))


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
    with pytest.raises(DataError, match="l3"):
        attack_classifier(model, x, codes, 0.1, norm="l3")
    with pytest.raises(DataError, match=r"\bmargin\b"):
        attack_classifier(model, x, codes, 0.1, raised="margins")


def test_a_targeted_attack_ends_only_at_its_target():
    """Three classes on a line of scores: towards each of the others the attack moves another way."""
    weights = torch.tensor([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]])

    def classify(x):
        return (x.flatten(1) - 0.5) @ weights.T

    inputs = torch.tensor([[0.6, 0.55]]).repeat(2, 1)
    codes, targets = torch.tensor([0, 0]), torch.tensor([1, 2])
    found = attack_classifier(classify, inputs, codes, 0.3, targets=targets, steps=20)
    assert found.reached.all()
    assert classify(found.points).argmax(dim=1).tolist() == [1, 2]
    torch.testing.assert_close(found.values, torch.log_softmax(classify(found.points), 1)[torch.arange(2), targets])
    near = attack_classifier(classify, inputs, codes, 0.03, targets=targets, steps=20)
    assert near.reached.tolist() == [True, False], "the third class is too far, though the second is not"
    with pytest.raises(DataError, match="own class"):
        attack_classifier(classify, inputs, codes, 0.3, targets=codes)
