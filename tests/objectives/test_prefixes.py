"""Trained prefixes: the loss is the mean of those of truncated embeddings, in every family, and who is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nearkin.data.hierarchy import Hierarchy
from nearkin.data.inputs import InputSpec
from nearkin.errors import RecipeError
from nearkin.objectives import ObjectiveSection, losses, make_objective
from nearkin.protocol.candidates import Candidate
from nearkin.recipe import Recipe, load_recipe
from nearkin.training.strategies.adversarial import check_adversarial

CLASSES, PER_CLASS, DIMENSION, SIZES = 6, 4, 12, [3, 8]
NAMES = [str(i) for i in range(CLASSES)]
TREE = Hierarchy.from_nested({"low": NAMES[:3], "high": NAMES[3:]})
REFUSED = {"learned-similarity", "corr", "h-spherical"}
TAKERS = [name for name in losses if name not in REFUSED]


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    return torch.randn(len(labels), DIMENSION, generator=generator), labels


def objective_of(loss, dimension=DIMENSION, **more):
    section = ObjectiveSection(loss=loss, **more)
    return make_objective(
        section, dimension=dimension, classes=CLASSES, class_names=NAMES, hierarchy=TREE, episode=(2, 2)
    )


def alone(loss, module, size):
    """An objective for embeddings of one size, with the parameters of the loss of a prefix."""
    objective = objective_of(loss, size)
    objective.loss.load_state_dict(module.state_dict())
    return objective


@pytest.mark.parametrize("name", TAKERS)
def test_the_loss_is_the_weighted_mean_of_those_of_truncated_embeddings(name):
    embeddings, labels = batch()
    objective = objective_of(name, prefixes=SIZES, prefix_weights=[0.5, 2.0], weight=3.0)
    sizes = [(DIMENSION, 1.0, objective.loss), *((one.size, one.weight, one.loss) for one in objective.prefixes)]
    by_hand = sum(weight * float(alone(name, loss, k)(embeddings[:, :k], labels)) for k, weight, loss in sizes)
    assert float(objective(embeddings, labels)) == pytest.approx(3.0 * by_hand / 3.5, rel=1e-5)


@pytest.mark.parametrize("name", [name for name in TAKERS if losses.get(name).references])
def test_references_are_truncated_too(name):
    embeddings, labels = batch()
    references, of_references = batch(1)
    by_hand = [
        float(objective_of(name, size).against(embeddings[:, :size], labels, references[:, :size], of_references))
        for size in (DIMENSION, *SIZES)
    ]
    found = objective_of(name, prefixes=SIZES).against(embeddings, labels, references, of_references)
    assert float(found) == pytest.approx(sum(by_hand) / 3, rel=1e-5)


def test_proxy_losses_by_a_loop():
    embeddings, labels = batch()
    objective = objective_of("normface", prefixes=[5], parameters={"scale": 7.0})
    values = []
    for size, loss in ((DIMENSION, objective.loss), (5, objective.prefixes[0].loss)):
        proxies = F.normalize(loss.bank.proxies)
        assert proxies.shape == (CLASSES, size)
        values.append(F.cross_entropy(7.0 * F.normalize(embeddings[:, :size]) @ proxies.T, labels))
    assert float(objective(embeddings, labels)) == pytest.approx(float(sum(values)) / 2, rel=1e-5)


def test_gradients_reach_every_proxy_and_the_dimensions_in_question():
    embeddings, labels = batch()
    embeddings.requires_grad_()
    objective = objective_of("proxy-anchor", prefixes=SIZES)
    assert sorted(p.shape[1] for p in objective.proxies()) == [3, 8, 12]
    objective.prefixes[0](embeddings, labels).backward()
    assert (embeddings.grad[:, :3] != 0).any()
    assert (embeddings.grad[:, 3:] == 0).all()
    objective(embeddings, labels).backward()
    assert all((p.grad != 0).any() for p in objective.proxies())


@pytest.mark.parametrize("name", ["proxy-anchor", "margin", "softmax"])
def test_whole_embeddings_begin_as_without_prefixes(name):
    plain, more = objective_of(name), objective_of(name, prefixes=SIZES)
    state = more.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in plain.state_dict().items())


def test_regularisers_see_whole_embeddings_once():
    terms = [{"name": "koleo", "weight": 0.5}]
    plain, more = (objective_of("triplet", prefixes=p, regularisers=terms).parts(*batch()) for p in ([], [3]))
    assert float(more["koleo"]) == float(plain["koleo"])
    assert float(more["loss"]) != float(plain["loss"])


def test_moving_proxies_of_prefixes_move():
    objective = objective_of("normface", prefixes=[4], parameters={"proxies": "ema", "scale": "dynamic"})
    before = objective.prefixes[0].loss.bank.proxies.clone()
    objective(*batch())
    objective.stepped()
    assert not torch.equal(before, objective.prefixes[0].loss.bank.proxies)
    assert {"scale", "scale_first_4"} <= objective.readings().keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_cut_is_refused(name):
    with pytest.raises(RecipeError, match=r"objective\.prefixes"):
        objective_of(name, prefixes=[4])


def test_proxies_laid_out_by_a_tree_are_refused():
    with pytest.raises(RecipeError, match="tree"):
        objective_of("normface", prefixes=[4], parameters={"proxies": "mds"})


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"prefixes": [4, 4]}, r"objective\.prefixes"),
        ({"prefixes": [DIMENSION]}, str(DIMENSION)),
        ({"prefixes": [4, 99]}, "99"),
        ({"prefixes": [4], "prefix_weights": [1.0, 2.0]}, "prefix_weights"),
        ({"prefix_weights": [1.0]}, "prefix_weights"),
    ],
)
def test_sizes_that_are_no_prefixes_are_refused(more, word):
    with pytest.raises(RecipeError, match=word):
        objective_of("triplet", **more)


@pytest.mark.parametrize("bad", ["[0]", "[-3]", "[1]", "[2.5]", "[a]", "5"])
def test_values_that_are_no_sizes_are_refused(bad):
    with pytest.raises(RecipeError, match=r"objective\.prefixes"):
        load_recipe("triplet", [f"objective.prefixes={bad}"])


@pytest.mark.parametrize("bad", ["[0]", "[-1.0]", "[.inf]"])
def test_values_that_are_no_weights_are_refused(bad):
    with pytest.raises(RecipeError, match=r"objective\.prefix_weights"):
        load_recipe("triplet", ["objective.prefixes=[4]", f"objective.prefix_weights={bad}"])


def test_adversarial_training_refuses_prefixes():
    section, spec = load_recipe("normface-at").training.adversarial, InputSpec(3, 16, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(RecipeError, match=r"objective\.prefixes"):
        check_adversarial(section, objective_of("normface", prefixes=[4]), spec, cached=False)


def test_books_of_old_know_their_recipes():
    recipe = load_recipe("triplet")
    old = recipe.model_dump(mode="json")
    del old["objective"]["prefixes"], old["objective"]["prefix_weights"]
    first = Candidate("a", recipe)
    assert first.digest() == Candidate("a", Recipe.model_validate(old)).digest()
    shorter = load_recipe("triplet", ["objective.prefixes=[8]", "model.dimension=128"])
    assert first.digest() != Candidate("a", shorter).digest()
