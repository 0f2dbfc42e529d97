"""The growing triplet loss by naive loops, its margins at their borders, its state, and the miner that draws for it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from nearkin.errors import RecipeError
from nearkin.objectives import ObjectiveSection, make_objective
from nearkin.objectives.triplet import MARGINS, GrowingTriplet
from nearkin.recipe import Recipe, load_recipe
from nearkin.spaces import Euclidean, PoincareBall, Sphere, make_space

CLASSES, DIMENSION = 4, 6
SPACES = ["sphere", "lipschitz-ball", "euclidean", "poincare-ball"]


def batch(seed=0, per_class=3):
    """Raw vectors (B, d) in double precision and labels (B,), classes mixed."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat(per_class)
    return torch.randn(len(labels), DIMENSION, generator=generator, dtype=torch.float64), labels


def make(margins=None, space=None, miner=None, seed=0):
    parameters = {} if margins is None else {"margins": margins}
    section = ObjectiveSection(loss="growing-triplet", parameters=parameters, miner=miner)
    return make_objective(section, dimension=DIMENSION, classes=CLASSES, space=space or Sphere(), seed=seed)


def squared(space, x, y):
    """The squared distance of two raw vectors, by the formulas of the spaces."""
    x, y = x.numpy(), y.numpy()
    lengths = [np.linalg.norm(v) for v in (x, y)]
    if space == "sphere":
        return float(((x / lengths[0] - y / lengths[1]) ** 2).sum())
    if space == "lipschitz-ball":
        x, y = x / max(lengths[0], 1), y / max(lengths[1], 1)
    if space == "poincare-ball":
        x, y = (math.tanh(n) * v / n for v, n in zip((x, y), lengths, strict=True))
        room = (1 - (x**2).sum()) * (1 - (y**2).sum())
        return math.acosh(1 + 2 * ((x - y) ** 2).sum() / room) ** 2
    return float(((x - y) ** 2).sum())


def naive(space, embeddings, triplets, margin):
    """The mean over all triplets, also of those that cost nothing."""
    costs = []
    for a, p, n in triplets:
        near, far = squared(space, embeddings[a], embeddings[p]), squared(space, embeddings[a], embeddings[n])
        costs.append(max(0.0, near - far + margin))
    return sum(costs) / len(costs)


def every_triplet(labels):
    each = range(len(labels))
    return [
        (a, p, n) for a, p, n in product(each, repeat=3) if a != p and labels[a] == labels[p] and labels[a] != labels[n]
    ]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("margin", [0.2, 0.7])
def test_growing_triplet_of_all_triplets_by_naive_loops(space, margin):
    embeddings, labels = batch()
    expected = naive(space, embeddings, every_triplet(labels.tolist()), margin)
    loss = make([[0, margin]], make_space(space), miner="all")
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-5)


def test_triplets_that_cost_nothing_count_in_the_mean():
    unit = torch.eye(DIMENSION)[[0, 0, 1, 1]]
    labels, choice = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 2], [1, 3], [2, 1]])
    unit[1] = -unit[0]  # the first triplet costs 4 - 2 + 0.5, the second 0 - 2 + 0.5, which is nothing
    assert GrowingTriplet([(0, 0.5)], Sphere())(unit, labels, tuple(choice)).item() == pytest.approx(2.5 / 2)


@pytest.mark.parametrize("miner", ["random", "hard", "pair-margin", "violating"])
def test_growing_triplet_of_mined_triplets_by_naive_loops(miner):
    """Pairs that a miner chose are all triplets of a shared anchor."""
    embeddings, labels = batch(1, per_class=5)
    choice = [index.tolist() for index in make(miner=miner).miner(embeddings, labels)]
    if len(choice) == 3:
        triplets = list(zip(*choice, strict=True))
    else:
        positives, negatives = zip(*choice[:2], strict=True), list(zip(*choice[2:], strict=True))
        triplets = [(a, p, n) for a, p in positives for b, n in negatives if a == b]
    value = make([[0, 0.3]], miner=miner)(embeddings, labels)
    assert value.item() == pytest.approx(naive("sphere", embeddings, triplets, 0.3), rel=1e-5)


def test_on_the_sphere_distances_are_chords_whatever_search_measures_by():
    embeddings, labels = batch()
    by_angle = make(space=Sphere(metric="angle"), miner="all")(embeddings, labels)
    assert by_angle == make(miner="all")(embeddings, labels)


@pytest.mark.parametrize("space", [Sphere(), Euclidean(), PoincareBall()], ids=lambda space: space.name)
def test_gradients(space):
    embeddings, labels = batch(2, per_class=2)
    loss = GrowingTriplet([(0, 0.7)], space)
    assert torch.autograd.gradcheck(lambda f: loss(f, labels), embeddings.requires_grad_())


# Margins.


def test_margins_hold_from_their_step_on():
    loss = make([[0, 0.5], [2, 0.75], [5, 3.0]], miner="all")
    fixed = {margin: make([[0, margin]], miner="all")(*batch()) for margin in (0.5, 0.75, 3.0)}
    margins = []
    for step in range(1, 8):
        value = loss(*batch())
        margins.append(loss.loss.readings()["margin"])
        assert value == fixed[margins[-1]], step
    assert margins == [0.5, 0.5, 0.75, 0.75, 0.75, 3.0, 3.0]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 40), st.floats(0.01, 3.9), max_size=5),
    st.floats(0.01, 3.9),
    st.integers(0, 60),
)
def test_the_margin_after_any_number_of_steps_is_the_last_that_began(later, first, steps):
    stages = [(0, first), *sorted(later.items())]
    expected = first
    for begins, margin in stages:
        if begins <= steps:
            expected = margin
    assert GrowingTriplet(stages, Sphere()).margin_after(steps) == expected


def test_readings_before_the_first_step_and_of_the_default_margins():
    loss = make().loss
    assert loss.readings() == {"margin": 1.0}
    assert [loss.margin_after(steps) for steps in (499, 500, 749, 750, 10**9)] == [1.0, 1.3, 1.3, 1.5, 1.5]
    assert loss.margins == MARGINS


def test_only_training_counts():
    loss = make([[0, 0.5], [1, 2.0]], miner="all").eval()
    values = [loss(*batch()).item() for _ in range(3)]
    assert len(set(values)) == 1
    assert int(loss.loss.steps) == 0
    loss.train()
    assert loss(*batch()).item() == values[0]
    assert loss(*batch()).item() > values[0]
    assert int(loss.loss.steps) == 2


def test_a_batch_without_triplets_is_a_step_too():
    loss = make([[0, 0.5], [1, 2.0]])
    embeddings = torch.randn(3, DIMENSION, requires_grad=True)
    value = loss(embeddings, torch.arange(3))
    value.backward()
    assert value.item() == 0
    assert not embeddings.grad.any()
    loss(*batch())
    assert loss.loss.readings() == {"margin": 2.0}


@pytest.mark.parametrize("done", [0, 2, 3, 6])
def test_a_loaded_state_goes_on_where_saving_left_off(done):
    margins = [[0, 0.5], [3, 1.0], [5, 2.0]]
    first, second = make(margins), make(margins)
    for _ in range(done):
        first(*batch())
    second.load_state_dict(first.state_dict())
    assert first.loss.readings() == second.loss.readings()
    for _ in range(4):
        assert first(*batch()) == second(*batch())
        assert first.loss.readings() == second.loss.readings()
    assert first.state_dict() == second.state_dict()
    assert int(second.state_dict()["loss.steps"]) == done + 4


# What a recipe may say.


@pytest.mark.parametrize(
    "margins",
    [
        [],
        {0: 1.0},
        1.0,
        [0, 1.0],
        [[0, 1.0, 2.0]],
        [[-1, 1.0]],
        [[0.5, 1.0]],
        [[0, 0.0]],
        [[0, -1.0]],
        [[0, math.inf]],
        [[0, math.nan]],
        [[0, True]],
        [[False, 1.0]],
        [["0", 1.0]],
        [[1, 1.0]],
        [[0, 1.0], [5, 1.2], [5, 1.3]],
        [[0, 1.0], [5, 1.2], [3, 1.3]],
    ],
)
def test_wrong_margins_are_refused_in_one_sentence(margins):
    with pytest.raises(RecipeError, match=r"objective\.parameters\.margins"):
        make(margins)


@pytest.mark.parametrize("space", ["sphere", "lipschitz-ball"])
def test_a_margin_that_no_triplet_could_meet_is_refused(space):
    with pytest.raises(RecipeError, match=r"4\.5"):
        make([[0, 1.0], [9, 4.5]], make_space(space))
    with pytest.raises(RecipeError, match="margins"):
        make([[0, 4]], make_space(space))
    make([[0, 3.99]], make_space(space))


@pytest.mark.parametrize("space", ["euclidean", "poincare-ball"])
def test_elsewhere_any_margin_can_be_met(space):
    assert make([[0, 100]], make_space(space))(*batch()).isfinite()


def test_references_are_refused():
    with pytest.raises(RecipeError, match="references"):
        make().against(*batch(), *batch(1))


def test_margins_of_an_override_replace_those_of_the_recipe():
    recipe = load_recipe("plankton-triplet", ["objective.parameters.margins=[[0,0.5],[10,0.6]]"])
    assert recipe.objective.parameters == {"margins": ((0, 0.5), (10, 0.6))}
    assert load_recipe(recipe, ["objective.parameters.margins=[[0,2]]"]).objective.parameters["margins"] == ((0, 2.0),)


@pytest.mark.parametrize("name", ["growing-triplet", "plankton-triplet"])
def test_its_recipes_let_every_margin_act(name, tmp_path):
    recipe = load_recipe(name)
    begins = [step for step, _ in recipe.objective.parameters["margins"]]
    assert begins[-1] < recipe.training.max_steps
    patience = recipe.training.patience
    assert patience is None or begins[-1] < patience * recipe.training.evaluate_every
    assert [margin for _, margin in recipe.objective.parameters["margins"]] == [1.0, 1.3, 1.5]
    recipe.save(tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_the_recipe_of_the_article():
    recipe = load_recipe("plankton-triplet")
    training = recipe.training
    assert (training.optimizer, training.lr, training.lr_schedule, training.step_factor) == ("sgd", 0.01, "step", 0.9)
    assert training.momentum == 0
    assert recipe.data.classes_per_batch * recipe.data.per_class == 20
    assert (recipe.model.dimension, recipe.model.space) == (128, "sphere")
    assert training.cluster_items is not None
    assert recipe.audit.suites == ["retrieval", "clustering", "classification"]


# The miner.


def drawn(count, labels, *references, seed=0):
    """Triplets of `count` calls, (count, n, 3)."""
    miner = make(seed=seed).miner
    vectors = [torch.zeros(len(of), DIMENSION) for of in (labels, *references)]
    given = (vectors[0], labels) if not references else (vectors[0], labels, vectors[1], references[0])
    return torch.stack([torch.stack(miner(*given), dim=1) for _ in range(count)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.lists(st.integers(0, 3), max_size=12), st.booleans())
def test_every_anchor_that_can_has_one_valid_triplet(labels, others, with_references):
    own, refs = torch.tensor(labels), torch.tensor(others, dtype=torch.int64)
    (triplets,) = drawn(1, own, refs) if with_references else drawn(1, own)
    pool = others if with_references else labels
    expected = []
    for i, label in enumerate(labels):
        positives = [j for j, other in enumerate(pool) if other == label and (with_references or j != i)]
        if positives and any(other != label for other in pool):
            expected.append(i)
    assert triplets[:, 0].tolist() == expected
    for a, p, n in triplets.tolist():
        assert pool[p] == labels[a] != pool[n]
        assert with_references or p != a


def test_positives_and_negatives_are_drawn_evenly_and_apart():
    labels = torch.tensor([1, 0, 0, 1, 1, 0, 2])
    assert_even(drawn(400, labels)[:, 0], positives=[3, 4], negatives=[1, 2, 5, 6])  # of the first anchor
    anchors = torch.ones(3000, dtype=torch.int64)
    assert_even(drawn(1, anchors, labels)[0], positives=[0, 3, 4], negatives=[1, 2, 5, 6])


def assert_even(triplets, positives, negatives):
    pairs = [(p, n) for _, p, n in triplets.tolist()]
    counts = [pairs.count(pair) for pair in product(positives, negatives)]
    assert sum(counts) == len(pairs)
    assert chisquare(counts).pvalue > 0.001


def test_draws_depend_on_seed_and_call_alone():
    labels = torch.arange(4).repeat(5)
    state = torch.get_rng_state()
    first, again, other = (drawn(4, labels, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(state, torch.get_rng_state())


def test_other_losses_take_the_miner_too():
    embeddings, labels = batch()
    section = ObjectiveSection(loss="triplet", miner="random")
    value = make_objective(section, dimension=DIMENSION, classes=CLASSES)(embeddings, labels)
    assert value.isfinite()
    assert value > 0
