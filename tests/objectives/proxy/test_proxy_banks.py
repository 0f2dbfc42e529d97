"""Proxies that follow the class means or a hierarchy, the options together, and going on from a checkpoint."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data.hierarchy import Hierarchy, load_hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.objectives import ObjectiveSection, losses, make_objective
from nearkin.objectives.proxy import ClassVectors, MeanProxies, Stepped
from nearkin.objectives.proxy.loss import TreeLayout, tree_proxies
from nearkin.objectives.registry import LossShape
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere, make_space, spaces
from nearkin.spaces.mds import chord_targets, multidimensional_scaling

CLASSES, DIMENSION = 5, 4
TREE = Hierarchy.from_nested({"cats": ["lion", "tiger"], "dogs": ["wolf", "fox", "dingo"]})
WITH_PROXIES = ["normface", "cosface", "arcface", "adacos", "sd-softmax", "proxy-dr"]


def make(loss, space=None, tree=TREE, seed=0, dimension=DIMENSION, **parameters):
    return make_objective(
        ObjectiveSection(loss=loss, parameters=parameters),
        dimension=dimension,
        classes=CLASSES,
        space=space,
        seed=seed,
        class_names=None if tree is None else TREE.classes,
        hierarchy=tree,
    )


def batch(seed=0, size=9, classes=CLASSES):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, DIMENSION, generator=generator), torch.randint(classes, (size,), generator=generator)


def moved_by_loops(proxies, seen, points, labels, rate, on_sphere):
    """W <- norm(rate mu + (1 - rate) W), class by class."""
    proxies, seen = proxies.copy(), seen.copy()

    def settle(vector):
        return vector / np.linalg.norm(vector) if on_sphere else vector

    for c in sorted(set(labels.tolist())):
        mean = settle(np.mean([p for p, y in zip(points, labels, strict=True) if y == c], axis=0))
        proxies[c] = settle(rate * mean + (1 - rate) * proxies[c]) if seen[c] else mean
        seen[c] = True
    return proxies, seen


@pytest.mark.parametrize("space", [Sphere(), LipschitzBall(), Euclidean(), PoincareBall()], ids=lambda s: s.name)
@pytest.mark.parametrize("rate", [0.001, 0.3, 1.0])
def test_means_are_followed_as_by_loops(space, rate):
    bank = MeanProxies(space, CLASSES, DIMENSION, rate).double()
    proxies, seen = bank.proxies.numpy().copy(), np.zeros(CLASSES, dtype=bool)
    for seed in range(6):
        x, labels = batch(seed, classes=CLASSES - 1)
        points = space.project(x.double())
        bank.watch(points, labels)
        bank.stepped()
        proxies, seen = moved_by_loops(proxies, seen, points.numpy(), labels, rate, space.name == "sphere")
        np.testing.assert_allclose(bank().numpy(), proxies, atol=1e-6)
        assert bank.seen.tolist() == seen.tolist()
    assert not seen[-1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(spaces.names()), st.floats(0.001, 1))
def test_proxies_stay_in_the_space(seed, name, rate):
    space = make_space(name)
    bank = MeanProxies(space, CLASSES, DIMENSION, rate)
    for step in range(5):
        x, labels = batch(seed + step)
        bank.watch(space.project(30 * x), labels)
        bank.stepped()
    norms = bank().norm(dim=1)
    if name == "sphere":
        torch.testing.assert_close(norms, torch.ones(CLASSES), rtol=0, atol=1e-5)
    elif name != "euclidean":
        assert (norms <= 1 + 1e-6).all()


def test_a_class_whose_points_cancel_waits():
    bank = MeanProxies(Sphere(), CLASSES, DIMENSION, 0.5)
    before = bank().clone()
    point = torch.eye(1, DIMENSION)
    bank.watch(torch.cat([point, -point]), torch.tensor([2, 2]))
    bank.stepped()
    assert torch.equal(bank(), before)
    assert not bank.seen.any()


def test_proxies_move_after_steps_of_training_only():
    objective = make("proxy-dr", proxies="ema", ema_rate=0.1)
    x, labels = batch()
    before = objective.loss.class_vectors().clone()
    objective.stepped()
    objective.eval()(x, labels)
    objective.stepped()
    objective.train()(x, labels)
    assert torch.equal(objective.loss.class_vectors(), before)
    objective.stepped()
    first = objective.loss.class_vectors().clone()
    there = torch.zeros(CLASSES, dtype=torch.bool).index_fill_(0, labels, True)
    assert torch.equal((first != before).any(dim=1), there)
    objective.stepped()
    assert torch.equal(objective.loss.class_vectors(), first), "what was seen counts once"


def test_only_the_last_forward_before_a_step_counts():
    first, second = make("normface", proxies="ema"), make("normface", proxies="ema")
    first(*batch(1))
    for objective in (first, second):
        objective(*batch(2))
        objective.stepped()
    assert torch.equal(first.loss.class_vectors(), second.loss.class_vectors())


@pytest.mark.parametrize("proxies", ["ema", "mds"])
@pytest.mark.parametrize("loss", WITH_PROXIES)
def test_only_learned_proxies_are_the_optimisers(loss, proxies):
    assert len(make(loss).proxies()) == 1
    objective = make(loss, proxies=proxies)
    assert objective.proxies() == []
    assert not objective.loss.class_vectors().requires_grad
    assert make(loss).loss.class_vectors().requires_grad


@pytest.mark.parametrize(
    ("space", "how"), [(Sphere(), "path"), (Sphere("angle"), "lcs"), (PoincareBall(), "lcs")], ids=str
)
def test_a_tree_lays_out_proxies(space, how):
    names = TREE.classes[::-1]
    shape = LossShape(DIMENSION, CLASSES, space, seed=3, class_names=names, hierarchy=TREE)
    farthest = math.sqrt(2) if how == "lcs" else None  # of LCS distances the farthest pair is at 90 degrees
    targets = chord_targets(TREE.distances(names, how=how), farthest=farthest)
    there = Sphere() if space.name == "sphere" else space
    wanted = multidimensional_scaling(targets, DIMENSION, space=there, seed=3).points
    assert torch.equal(tree_proxies(shape, "normface", "mds", TreeLayout(how))(), wanted)


def test_lcs_distances_no_longer_crowd_the_classes():
    """As printed they stay within 41.4 degrees, and NormFace at s = 10 gives 0.063 on the own proxy."""
    tree = load_hierarchy("cifar100")
    distances = tree.distances(how="lcs")
    surest = {}
    layouts = {"printed": chord_targets(distances), "ours": TreeLayout("lcs").chords(tree, tree.classes)}
    # The cosines of a layout that meets its targets.
    layouts = {name: 1 - np.square(targets) / 2 for name, targets in layouts.items()} | {"cosines": 1 - distances}
    for name, cosines in layouts.items():
        assert np.degrees(np.arccos(cosines.min())) == pytest.approx(41.41 if name == "printed" else 90, abs=0.01)
        surest[name] = (np.exp(10.0) / np.exp(10 * cosines).sum(axis=1)).mean()
    assert surest == pytest.approx({"printed": 0.063, "ours": 0.507, "cosines": 0.700}, abs=5e-4)
    found = make("corr", tree_distance="lcs", dimension=16).loss.class_vectors()
    angles = torch.acos((found @ found.T).clamp(-1, 1)).rad2deg()
    assert angles.max() == pytest.approx(90, abs=3)


@pytest.mark.parametrize(("beta", "angle"), [(1.0, None), (0.2, None), (3.0, 120.0)])
def test_beta_and_the_angle_of_the_farthest_pair_set_the_targets(beta, angle):
    names = TREE.classes
    found = TreeLayout("path", beta, angle).chords(TREE, names)
    for (i, one), (j, other) in product(enumerate(names), repeat=2):
        d = TREE.distances([one, other])[0, 1] if i != j else 0.0
        top = max(math.sqrt(2) * e / (beta + e) for e in TREE.distances(names).ravel())
        factor = 1.0 if angle is None else 2 * math.sin(math.radians(angle) / 2) / top
        assert found[i, j] == pytest.approx(factor * math.sqrt(2) * d / (beta + d))


def test_cosines_are_exactly_those_of_the_tree():
    proxies = make("corr", proxies="cosines", dimension=8).loss.class_vectors().double().numpy()
    np.testing.assert_allclose(proxies @ proxies.T, 1 - TREE.distances(how="lcs"), atol=2e-6)


def test_ranks_order_classes_as_the_tree_does():
    proxies = make("h-spherical", proxies="ranks", dimension=8).loss.class_vectors().double().numpy()
    cosines, distances = proxies @ proxies.T, TREE.distances()
    for i, j, k in product(range(len(distances)), repeat=3):
        if i not in (j, k) and distances[i, j] < distances[i, k]:
            assert cosines[i, j] > cosines[i, k]
    assert (cosines - np.eye(len(cosines))).max() < 0.55, "no two are drawn together"


@pytest.mark.parametrize(
    ("parameters", "space", "word"),
    [
        ({"proxies": "cosines"}, "sphere", "dimensions"),
        ({"proxies": "ranks"}, "euclidean", "sphere"),
        ({"proxies": "ema", "layout_beta": 2.0}, "sphere", "layout_beta"),
        ({"proxies": "ranks", "layout_angle": 60.0}, "sphere", "layout_angle"),
        ({"proxies": "cosines", "tree_distance": "lcs"}, "sphere", "tree_distance"),
    ],
)
def test_layouts_that_cannot_be_are_refused(parameters, space, word):
    given = {"dimension": 3} if word == "dimensions" else {}
    with pytest.raises(RecipeError, match=word):
        make("proxy-dr", space=make_space(space), **given, **parameters)


def test_proxies_of_a_tree_stay_where_they_are():
    objective = make("proxy-dr", proxies="mds", scale="dynamic")
    before = objective.loss.class_vectors().clone()
    for seed in range(3):
        objective(*batch(seed))
        objective.stepped()
    assert torch.equal(objective.loss.class_vectors(), before)
    assert torch.equal(before, make("corr").loss.class_vectors())
    assert not torch.equal(before, make("corr", tree_distance="lcs").loss.class_vectors())


def test_relatives_are_nearer():
    proxies = make("corr").loss.class_vectors()
    distances = Sphere().distance(proxies, proxies)
    related = [(a, b) for a, b in product(range(CLASSES), repeat=2) if a != b and (a < 2) == (b < 2)]
    unrelated = [(a, b) for a, b in product(range(CLASSES), repeat=2) if (a < 2) != (b < 2)]
    assert max(distances[pair] for pair in related) < min(distances[pair] for pair in unrelated)


@pytest.mark.parametrize("loss", WITH_PROXIES)
def test_proxies_of_a_tree_need_one(loss):
    with pytest.raises(RecipeError, match=r"data\.hierarchy"):
        make(loss, tree=None, proxies="mds")


@pytest.mark.parametrize("loss", ["corr", "h-spherical"])
def test_pulls_need_a_tree(loss):
    with pytest.raises(RecipeError, match=r"data\.hierarchy"):
        make(loss, tree=None)
    with pytest.raises(RecipeError, match=r"data\.hierarchy"):
        losses.get(loss).factory(LossShape(DIMENSION, CLASSES, Sphere()))


@pytest.mark.parametrize("proxies", ["ema", "mds"])
def test_sub_centres_are_learned(proxies):
    with pytest.raises(RecipeError, match="sub_centres"):
        make("arcface", sub_centres=2, proxies=proxies)


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"ema_rate": 0.1}, "ema_rate"),
        ({"ema_rate": 0.1, "proxies": "mds"}, "ema_rate"),
        ({"tree_distance": "lcs"}, "tree_distance"),
        ({"tree_distance": "lcs", "proxies": "ema"}, "tree_distance"),
    ],
)
def test_options_without_a_use_are_refused(parameters, word):
    for loss in WITH_PROXIES:
        with pytest.raises(RecipeError, match=word):
            make(loss, **parameters)


def test_angles_are_the_spheres():
    with pytest.raises(RecipeError, match="distance"):
        make("proxy-dr", space=Euclidean(), distance="angle")


@pytest.mark.parametrize(
    ("loss", "parameters", "word"),
    [
        ("normface", {"scale": "dynamc"}, r"\bdynamic\b"),
        ("proxy-dr", {"scale": 0}, "scale"),
        ("proxy-dr", {"scale": True}, "scale"),
        ("normface", {"scale": math.inf}, "scale"),
        ("cosface", {"scale": "dynamic"}, "proxy-dr"),
        ("arcface", {"scale": "dynamic"}, "proxy-dr"),
        ("sd-softmax", {"scale": "fast"}, "fast"),
        ("adacos", {"scale": 10}, "static"),
        ("normface", {"proxies": "fixed"}, "mds"),
        ("normface", {"ema_rate": 0}, "ema_rate"),
        ("softmax", {"proxies": "ema"}, "proxies"),
        ("proxy-dr", {"distance": "path"}, "angle"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(loss, parameters, word):
    with pytest.raises(RecipeError, match=word):
        ObjectiveSection(loss=loss, parameters=parameters)


def test_a_number_in_quotes_is_a_number():
    assert ObjectiveSection(loss="normface", parameters={"scale": "12"}).parameters == {"scale": 12.0}


OPTIONS = [
    {"scale": scale, "proxies": proxies} for scale, proxies in product((10.0, "dynamic"), ("learned", "ema", "mds"))
]


def trained(objective, embeddings, optimiser, seeds):
    """Loss values of a few steps on moving embeddings (20, d), four a class."""
    labels = torch.arange(20) % CLASSES
    values = []
    for seed in seeds:
        rows = torch.randperm(20, generator=torch.Generator().manual_seed(seed))[:8]
        optimiser.zero_grad()
        value = objective(embeddings[rows], labels[rows])
        value.backward()
        optimiser.step()
        objective.stepped()
        values.append(value.item())
    return values


def start(loss, space, parameters):
    objective = make(loss, space=space, **parameters)
    embeddings = torch.randn(20, DIMENSION, generator=torch.Generator().manual_seed(5)).requires_grad_()
    return objective, embeddings, torch.optim.Adam([embeddings, *objective.proxies()], lr=0.02)


@pytest.mark.parametrize(
    ("loss", "space"), [("normface", Sphere()), ("proxy-dr", Sphere()), ("proxy-dr", Euclidean())], ids=str
)
@pytest.mark.parametrize("parameters", OPTIONS, ids=str)
def test_options_go_together_and_a_checkpoint_goes_on_to_the_last_bit(loss, space, parameters):
    objective, embeddings, optimiser = start(loss, space, parameters)
    values = trained(objective, embeddings, optimiser, range(30))
    kept = {key: value.clone() for key, value in objective.state_dict().items()}
    vectors, adam = embeddings.detach().clone(), deepcopy(optimiser.state_dict())
    values += trained(objective, embeddings, optimiser, range(30, 60))
    assert sum(values[-10:]) < sum(values[:10])

    again, others, second = start(loss, space, parameters)
    again.load_state_dict(kept)
    others.data = vectors
    second.load_state_dict(adam)
    assert trained(again, others, second, range(30, 60)) == values[30:]
    for key, value in objective.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


@pytest.mark.parametrize("loss", [*WITH_PROXIES, "softmax", "corr", "h-spherical"])
def test_what_training_may_ask(loss):
    module = make(loss).loss
    assert isinstance(module, ClassVectors)
    assert isinstance(module, Stepped)
    x, _ = batch()
    assert module.class_scores(module.space.project(x)).shape == (len(x), CLASSES)
    assert module.class_vectors().shape == (CLASSES, DIMENSION)


def test_nothing_of_a_batch_is_kept_in_evaluation():
    module = make("normface", scale="dynamic", proxies="ema").loss.eval()
    module(*batch())
    assert module.bank._watched is None
    assert module.scores.scale._sight is None
    module.train()(*batch())
    assert not module.bank._watched[0].requires_grad


@pytest.mark.parametrize("loss", ["proxy-dr", "normface"])
def test_a_batch_that_is_not_finite_spoils_neither_proxies_nor_scale(loss):
    section = ObjectiveSection(loss=loss, parameters={"proxies": "ema", "scale": "dynamic"})
    objective = make_objective(section, dimension=4, classes=3)
    labels = torch.tensor([0, 1, 2, 0])
    objective(torch.full((4, 4), torch.nan), labels)
    objective.stepped()
    assert all(bool(value.isfinite().all()) for value in objective.state_dict().values())


def test_labels_of_another_type_are_told():
    objective = make_objective(ObjectiveSection(loss="normface"), dimension=4, classes=3)
    with pytest.raises(DataError, match="int64"):
        objective(torch.randn(3, 4), torch.tensor([0.0, 1.0, 2.0]))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"class_names": ["a", "a", "b"]}, "class_names"),
        ({"class_names": ["a", "b", "c"], "hierarchy": "cifar100"}, "hierarchy"),
    ],
)
def test_names_and_trees_of_the_wrong_kind_are_told(given, word):
    with pytest.raises(RecipeError, match=word):
        make_objective(ObjectiveSection(loss="normface"), dimension=4, classes=3, **given)
