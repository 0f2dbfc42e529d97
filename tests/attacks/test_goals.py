"""What an adversary wants, by hand, and reached on embedders that are plain matrices."""

import numpy as np
import pytest
import torch

from nearkin.attacks import Misclassify, PullTo, PushAway, attack
from nearkin.errors import DataError
from nearkin.spaces import Euclidean, Sphere

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
