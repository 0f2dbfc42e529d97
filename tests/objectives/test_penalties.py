"""Regularisers against naive loops, their gradients and their limits."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.errors import RecipeError
from nearkin.objectives import LossShape, ObjectiveSection, make_objective, regularisers
from nearkin.objectives.penalties import EnergyConfusion, ResidualAugmentation, partners
from nearkin.spaces import Euclidean, Sphere, make_space, spaces

OF_BATCHES = [name for name in regularisers if name != "distortion"]
"""That one looks at the proxies, not at a batch: test_distortion.py."""


def make(name, space=None):
    shape = LossShape(dimension=5, classes=3, space=space or Sphere(), features=5, epoch_steps=4)
    return regularisers.get(name).factory(shape)


def embeddings(n=8, dtype=torch.float64):
    return 2 * torch.randn(n, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)


LABELS = torch.arange(8) % 3


def test_embedding_norm():
    f = embeddings()
    expected = sum(sum(v * v for v in row) for row in f.tolist()) / len(f)
    assert make("embedding-norm")(f, LABELS).item() == pytest.approx(expected)


@pytest.mark.parametrize("space", spaces.names())
def test_koleo_is_minus_the_mean_log_of_nearest_distances(space):
    f, where = embeddings(), make_space(space)
    points = where.project(f)
    terms = []
    for i in range(len(f)):
        others = [where.distance(points[i : i + 1], points[j : j + 1]).item() for j in range(len(f)) if j != i]
        terms.append(math.log(min(others)))
    assert make("koleo", where)(f, LABELS).item() == pytest.approx(-sum(terms) / len(terms), rel=1e-5)


def test_koleo_spreads():
    f = (0.1 * embeddings() + 1).requires_grad_()
    module = make("koleo")
    before = module(f, LABELS)
    optimiser = torch.optim.Adam([f], lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        module(f, LABELS).backward()
        optimiser.step()
    assert module(f, LABELS) < before - 1


@pytest.mark.parametrize("name", [name for name in OF_BATCHES if name != "residual-augmentation"])  # has constants
@pytest.mark.parametrize("n", [1, 2, 8])
def test_gradients(name, n):
    f = embeddings(n).requires_grad_()
    module = make(name, Euclidean()).double().eval()
    assert torch.autograd.gradcheck(lambda x: module(x, LABELS[:n]), f)


@pytest.mark.parametrize("name", OF_BATCHES)
def test_copies_are_finite(name):
    f = torch.ones(4, 5, requires_grad=True)
    value = make(name)(f, LABELS[:4])
    value.backward()
    assert value.isfinite()
    assert f.grad.isfinite().all()


def samples(labels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(len(labels), 4, generator=generator, dtype=torch.float64), torch.tensor(labels)


def by_hand(space, embeddings, labels):
    points = space.project(embeddings)
    pairs = []
    for one, two in combinations(sorted(set(labels.tolist())), 2):
        squares = [
            space.distance(points[i : i + 1], points[j : j + 1]).item() ** 2
            for i in range(len(labels))
            for j in range(len(labels))
            if labels[i] == one and labels[j] == two
        ]
        pairs.append(sum(squares) / len(squares))
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("space", spaces.names())
@pytest.mark.parametrize("labels", [[0, 1], [5, 2, 5, 2, 5, 9], [0, 0, 0, 0, 1, 2, 2]])
def test_value_is_that_of_loops(space, labels):
    """Classes of different sizes count the same."""
    where = make_space(space)
    embeddings, labels = samples(labels)
    value = EnergyConfusion(where)(embeddings, labels)
    assert value.item() == pytest.approx(by_hand(where, embeddings, labels), rel=1e-6)


def test_on_the_sphere_it_is_the_squared_chord():
    embeddings, labels = samples([0, 0, 1, 1])
    unit = torch.nn.functional.normalize(embeddings)
    expected = (2 - 2 * unit[:2] @ unit[2:].T).mean()
    torch.testing.assert_close(EnergyConfusion(Sphere())(embeddings, labels), expected)


@given(st.integers(0, 10_000), st.permutations(range(8)))
def test_neither_order_nor_names_of_classes_count(seed, order):
    embeddings, labels = samples([0, 0, 1, 1, 1, 2, 3, 3], seed)
    energy = EnergyConfusion(Euclidean())
    value = energy(embeddings, labels)
    torch.testing.assert_close(energy(embeddings[list(order)], labels[list(order)]), value)
    torch.testing.assert_close(energy(embeddings, 7 - 2 * labels), value)


def test_two_points_by_numbers():
    embeddings = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    value = EnergyConfusion(Euclidean())(embeddings, torch.tensor([0, 1]))
    value.backward()
    assert value.item() == pytest.approx(25)
    torch.testing.assert_close(embeddings.grad, torch.tensor([[-6.0, -8.0], [6.0, 8.0]]))


@pytest.mark.parametrize("space", spaces.names())
def test_gradient_is_finite_where_samples_coincide(space):
    embeddings, labels = samples([0, 0, 1, 1, 2])
    embeddings[2] = embeddings[0]
    embeddings[1] = embeddings[0]
    embeddings.requires_grad_()
    value = EnergyConfusion(make_space(space))(embeddings, labels)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.abs().max() > 0


def test_minimising_it_brings_classes_together():
    embeddings, labels = samples([0, 0, 1, 1, 2, 2])
    embeddings.requires_grad_()
    energy = EnergyConfusion(Sphere())
    before = energy(embeddings, labels).item()
    optimiser = torch.optim.Adam([embeddings], lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        energy(embeddings, labels).backward()
        optimiser.step()
    assert energy(embeddings, labels).item() < 0.1 * before


def test_one_class_costs_nothing_and_is_refused_beforehand():
    embeddings, labels = samples([3, 3, 3])
    embeddings.requires_grad_()
    value = EnergyConfusion(Sphere())(embeddings, labels)
    value.backward()
    assert value.item() == 0
    assert embeddings.grad.abs().max() == 0
    section = ObjectiveSection(loss="proxy-anchor", regularisers=[{"name": "energy-confusion", "weight": 0.1}])
    with pytest.raises(RecipeError, match="energy-confusion"):
        make_objective(section, dimension=4, classes=5).check_batch(1, 4)


def test_it_is_added():
    section = ObjectiveSection(loss="contrastive", regularisers=[{"name": "energy-confusion", "weight": 0.1}])
    objective = make_objective(section, dimension=4, classes=3)
    embeddings, labels = samples([0, 0, 1, 1, 2, 2])
    terms = objective.parts(embeddings, labels)
    expected = 0.1 * by_hand(Sphere(), embeddings, labels)
    assert terms["energy-confusion"].item() == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(objective(embeddings, labels), terms["loss"] + terms["energy-confusion"])


def varied_by_hand(where, embeddings, labels, amount, scale):
    """The next class in order lends its items' residuals, one after the other."""
    points = where.project(embeddings)
    classes = sorted(set(labels.tolist()))
    members = {c: [i for i, label in enumerate(labels.tolist()) if label == c] for c in classes}
    means = {c: sum(points[i] for i in members[c]) / len(members[c]) for c in classes}
    total = 0.0
    for place, c in enumerate(classes):
        other = classes[(place + 1) % len(classes)]
        for turn, i in enumerate(members[c]):
            j = members[other][turn % len(members[other])]
            moved = where.project((points[i] + amount * (points[j] - means[other]))[None])
            scores = [-scale * where.distance(moved, where.project(means[k][None])).item() ** 2 for k in classes]
            total += math.log(sum(math.exp(s - scores[place]) for s in scores))
    return total / len(labels)


@pytest.mark.parametrize("space", ["sphere", "euclidean", "lipschitz-ball"])
@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [5, 2, 5, 2, 5, 9], [0, 0, 0, 0, 1, 2, 2]])
def test_residual_augmentation_is_that_of_loops(space, labels):
    where = make_space(space)
    f, labels = samples(labels)
    value = ResidualAugmentation(where, 0.7, 3.0)(f, labels)
    assert value.item() == pytest.approx(varied_by_hand(where, f, labels, 0.7, 3.0), rel=1e-5)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=20).filter(lambda labels: len(set(labels)) > 1))
def test_partners_are_of_the_class_that_follows(labels):
    belongs = torch.tensor(labels).unique(return_inverse=True)[1]
    found = partners(belongs)
    assert torch.equal(belongs[found], (belongs + 1) % (int(belongs.max()) + 1))


def test_residual_augmentation_gradients_agree_with_finite_differences_and_lent_residuals_are_constants():
    f, labels = samples([0, 0, 1, 1, 2, 2])
    f.requires_grad_()
    module = ResidualAugmentation(Euclidean(), 1.0, 0.5)
    module(f, labels).backward()
    kept = (f.detach() - torch.stack([f.detach()[labels == c].mean(0) for c in labels]))[partners(labels)]

    def loss(x):
        means = torch.stack([x[labels == c].mean(0) for c in range(3)])
        return torch.nn.functional.cross_entropy(-0.5 * torch.cdist(x + kept, means).square(), labels)

    assert torch.autograd.gradcheck(loss, (f.detach().clone().requires_grad_(),))
    (wanted,) = torch.autograd.grad(loss(f), f)
    torch.testing.assert_close(f.grad, wanted)


def test_residual_augmentation_asks_for_room_and_for_a_space_where_points_add():
    tight = torch.tensor([[1.0, 0.0], [1.0, 0.2], [-1.0, 0.0], [-1.0, 0.2]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    module = ResidualAugmentation(Euclidean(), 1.0, 1.0)
    assert module(3 * tight, labels) < module(tight, labels)
    assert ResidualAugmentation(Euclidean())(tight, torch.zeros(4, dtype=torch.int64)) == 0
    with pytest.raises(RecipeError, match="poincare-ball"):
        make("residual-augmentation", make_space("poincare-ball"))
