"""The distortion of proxies against a tree: naive loops, the best scale by search, what it forgets, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.objectives import ObjectiveSection, RegulariserSection, make_objective
from nearkin.objectives.hierarchy import Distortion
from nearkin.spaces import Euclidean, make_space, spaces

TREE = Hierarchy.from_nested({"cats": ["lion", "tiger", "lynx"], "dogs": ["wolf", "fox"], "birds": ["owl"]})
NAMES = TREE.classes
LABELS = torch.tensor([0, 1])


def vectors(seed=0, dimension=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(NAMES), dimension, generator=generator, dtype=torch.float64)


def tree_distances(how="path", names=NAMES):
    return TREE.distances(names, how=how)


def ratios(space, points, wanted):
    """Distance over tree distance of every ordered pair."""
    n = range(len(points))
    return [space.distance(points[i : i + 1], points[j : j + 1]).item() / wanted[i][j] for i in n for j in n if i != j]


@pytest.mark.parametrize("how", ["path", "lcs"])
@pytest.mark.parametrize("name", spaces.names())
def test_distortion_by_loops_with_the_best_scale_found_by_search(name, how):
    space, wanted = make_space(name), tree_distances(how)
    points = space.project(vectors())
    found = ratios(space, points, wanted)
    best = minimize_scalar(lambda s: np.mean([(s * r - 1) ** 2 for r in found]), bracket=(0.1, 3), tol=1e-10)
    value = Distortion(space, wanted)(points, LABELS)
    assert best.fun > 0.01
    assert value.item() == pytest.approx(best.fun, rel=1e-6)


def test_the_gradient_does_not_flow_through_the_scale_and_need_not():
    """With the scale put in, the term is 1 - mean(r)^2/mean(r^2): differentiated as a whole it gives the same."""
    wanted = tree_distances()
    ours, whole = vectors().requires_grad_(), vectors().requires_grad_()
    value = Distortion(Euclidean(), wanted)(ours, LABELS)
    first, second = np.triu_indices(len(NAMES), k=1)
    r = (whole[first] - whole[second]).norm(dim=1) / torch.tensor(wanted[first, second])
    other = 1 - r.mean() ** 2 / r.square().mean()
    torch.testing.assert_close(value, other, rtol=1e-6, atol=0)
    gradients = torch.autograd.grad(value, ours), torch.autograd.grad(other, whole)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.01, 100), st.floats(0.01, 100))
def test_neither_the_size_of_the_embedding_nor_the_unit_of_the_tree_counts(seed, size, unit):
    f, wanted = vectors(seed), tree_distances()
    first = Distortion(Euclidean(), wanted)(f, LABELS)
    second = Distortion(Euclidean(), unit * wanted)(size * f, LABELS)
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(len(NAMES))))
def test_the_order_of_classes_does_not_matter(order):
    renamed = [NAMES[i] for i in order]
    first = Distortion(Euclidean(), tree_distances())(vectors(), LABELS)
    second = Distortion(Euclidean(), tree_distances(names=renamed))(vectors()[list(order)], LABELS)
    torch.testing.assert_close(first, second)


def test_distances_in_proportion_have_no_distortion():
    """A star: every pair is as far apart as any other, as the corners of a simplex are."""
    star = Hierarchy.from_nested(["a", "b", "c", "d"])
    module = Distortion(Euclidean(), star.distances(how="path"))
    assert module(3 * torch.eye(4), LABELS).item() == pytest.approx(0, abs=1e-12)
    assert module(torch.eye(4).cumsum(0), LABELS).item() > 0.01


@pytest.mark.parametrize("name", spaces.names())
def test_gradients_in_every_space(name):
    space = make_space(name)
    module = Distortion(space, tree_distances()).double()
    assert torch.autograd.gradcheck(lambda f: module(space.project(f), LABELS), vectors().requires_grad_())


def test_class_vectors_in_one_point_are_finite():
    f = torch.ones(len(NAMES), 4, requires_grad=True)
    value = Distortion(Euclidean(), tree_distances())(f, LABELS)
    value.backward()
    assert value.item() == pytest.approx(1)
    assert f.grad.isfinite().all()


def test_learning_brings_proxies_into_the_shape_of_the_tree():
    wanted = tree_distances()
    module, f = Distortion(Euclidean(), wanted), vectors().float().requires_grad_()
    optimiser = torch.optim.Adam([f], lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        value = module(f, LABELS)
        value.backward()
        optimiser.step()
    pairs = np.triu_indices(len(NAMES), k=1)
    learned = torch.cdist(f, f).detach().numpy()[pairs]
    assert value.item() < 0.01
    assert np.corrcoef(learned, wanted[pairs])[0, 1] > 0.999


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_distances_that_no_proxies_can_have_are_refused(wrong):
    wanted = tree_distances().copy()
    wanted[1, 3] = wanted[3, 1] = wrong
    with pytest.raises(DataError, match=r"1\D+3"):
        Distortion(Euclidean(), wanted)


TERM = {"name": "distortion", "weight": 2.0}


def make(loss="normface", hierarchy=TREE, class_names=NAMES, term=TERM, **section):
    made = ObjectiveSection(loss=loss, regularisers=[term], **section)
    return make_objective(made, dimension=5, classes=len(NAMES), class_names=class_names, hierarchy=hierarchy)


@pytest.mark.parametrize("how", ["path", "lcs"])
@pytest.mark.parametrize("loss", ["softmax", "normface", "proxy-dr"])
def test_the_objective_gives_it_the_class_vectors_of_its_loss(loss, how):
    objective = make(loss, term=TERM | {"parameters": {"tree_distance": how}})
    f = torch.randn(2, 5, requires_grad=True)
    part = objective.parts(f, LABELS)["distortion"]
    alone = Distortion(objective.regularisers["distortion"].space, tree_distances(how))
    torch.testing.assert_close(part, 2 * alone(objective.loss.class_vectors(), LABELS))
    part.backward()
    assert f.grad is None
    assert max(proxy.grad.abs().max() for proxy in objective.proxies() if proxy.grad is not None) > 0


def test_without_a_tree_it_says_what_to_set():
    for missing in ({"hierarchy": None}, {"class_names": None}):
        with pytest.raises(RecipeError, match=r"data\.hierarchy"):
            make(**missing)


@pytest.mark.parametrize(
    ("loss", "parameters"),
    [("contrastive", {}), ("normface", {"proxies": "ema"}), ("proxy-dr", {"proxies": "mds"}), ("corr", {})],
)
def test_a_loss_without_learned_proxies_is_refused(loss, parameters):
    with pytest.raises(RecipeError, match="proxies"):
        make(loss, parameters=parameters)


def test_an_unknown_tree_distance_is_refused():
    with pytest.raises(RecipeError, match="tree_distance"):
        RegulariserSection(name="distortion", parameters={"tree_distance": "height"})
