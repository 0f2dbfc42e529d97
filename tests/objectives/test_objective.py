"""The objective as training uses it: gradients, odd batches, seeds, spaces, precision, learning."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import ProxyNCALoss

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import MissingExtraError, RecipeError
from nearkin.objectives import BatchNeeds, Objective, ObjectiveSection, check_space, losses, make_objective
from nearkin.objectives.pairs import ContrastiveCosine
from nearkin.objectives.proxies import _CentreMerging
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere, make_space, spaces

CLASSES, DIMENSION = 6, 8
PAIR_LOSSES = [name for name in losses if losses.get(name).family == "pairs"]
EPISODIC_LOSSES = [name for name in losses if losses.get(name).family == "episodes"]
PROXY_LOSSES = [name for name in losses if losses.get(name).family in ("proxies", "classification")]
ANY_BATCH = [name for name in losses if name not in EPISODIC_LOSSES]
TREE = Hierarchy.from_nested({"cats": ["lion", "tiger", "lynx"], "dogs": ["wolf", "fox"], "birds": ["owl"]})


def make(loss, seed=0, space=None, **section):
    made = ObjectiveSection(loss=loss, **section)
    given = {"episode": (1, 2)} if loss in EPISODIC_LOSSES else {}
    if losses.get(loss).needs_hierarchy:
        given |= {"hierarchy": TREE, "class_names": TREE.classes}
    return make_objective(made, dimension=DIMENSION, classes=CLASSES, space=space, seed=seed, **given)


def batch(seed=0, per_class=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(per_class)
    return torch.randn(len(labels), DIMENSION, generator=generator, dtype=dtype), labels


@pytest.mark.parametrize("loss", losses.names())
def test_a_few_steps_decrease_the_loss(loss):
    objective = make(loss)
    embeddings, labels = batch()
    embeddings.requires_grad_()
    optimiser = torch.optim.Adam([embeddings, *objective.proxies()], lr=0.02)
    values = []
    for _ in range(60):
        optimiser.zero_grad()
        value = objective(embeddings, labels)
        value.backward()
        optimiser.step()
        values.append(value.item())
    assert sum(values[-5:]) < sum(values[:5])


@pytest.mark.parametrize("loss", ANY_BATCH)
def test_a_batch_without_positives_or_negatives_is_finite_and_has_a_graph(loss):
    for labels in (torch.arange(6), torch.zeros(6, dtype=torch.int64), torch.tensor([3])):
        objective = make(loss)
        embeddings = batch()[0][: len(labels)].requires_grad_()
        value = objective(embeddings, labels)
        value.backward()
        assert value.shape == ()
        assert value.isfinite()
        assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("loss", PAIR_LOSSES)
def test_without_positives_a_pair_loss_has_nothing_to_pull(loss):
    far_apart = 3 * torch.eye(CLASSES, DIMENSION)
    assert make(loss)(far_apart, torch.arange(CLASSES)).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("loss", losses.names())
def test_copies_in_a_batch_have_finite_gradients(loss):
    objective = make(loss)
    embeddings, labels = batch()
    embeddings[1::3] = embeddings[0::3]
    embeddings.requires_grad_()
    objective(embeddings, labels).backward()
    assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("loss", losses.names())
def test_every_loss_runs_in_every_space_it_claims_and_says_so_elsewhere(loss):
    entry = losses.get(loss)
    miner = "all" if entry.miner else None
    for space in spaces.names():
        if entry.spaces is not None and space not in entry.spaces:
            with pytest.raises(RecipeError, match=r"model\.space"):
                make(loss, space=make_space(space), miner=miner)
            continue
        objective = make(loss, space=make_space(space), miner=miner)
        embeddings, labels = batch()
        embeddings[1] = embeddings[0]  # distance zero between different samples
        embeddings.requires_grad_()
        value = objective(embeddings, labels)
        value.backward()
        assert value.isfinite()
        assert embeddings.grad.isfinite().all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.01, 100))
def test_on_the_sphere_only_directions_count(seed, factor):
    embeddings, labels = batch(seed, dtype=torch.float64)
    factors = torch.logspace(-1, 1, len(labels), dtype=torch.float64).unsqueeze(1) * factor
    for loss in losses:
        first = make(loss).double()(embeddings, labels)
        second = make(loss).double()(factors * embeddings, labels)
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31))
def test_the_order_of_a_batch_does_not_matter(seed):
    embeddings, labels = batch(seed, per_class=2, dtype=torch.float64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    for loss in ANY_BATCH:
        if loss in ("margin", "growing-triplet", "n-pairs", "learned-similarity"):
            continue  # two draw triplets, one takes a class's first two as anchor and positive, one drops units out
        objective = make(loss).double()
        torch.testing.assert_close(objective(embeddings, labels), objective(embeddings[order], labels[order]))


@pytest.mark.parametrize("loss", PAIR_LOSSES)
def test_pair_losses_do_not_care_how_classes_are_numbered(loss):
    embeddings, labels = batch()
    assert make(loss)(embeddings, labels) == make(loss)(embeddings, (CLASSES - 1 - labels).sort().values)


def test_gradients_of_our_own_losses():
    embeddings, labels = batch(per_class=2, dtype=torch.float64)
    embeddings.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: ContrastiveCosine(0.1)(f, labels), embeddings)
    for loss in ("proxy-nca", "proxy-nca++"):
        for space in (Sphere(), LipschitzBall(), Euclidean(), PoincareBall()):
            module = make(loss, space=space).double()

            def value(f, proxies, module=module):
                return torch.func.functional_call(module, {"loss.proxies": proxies}, (f, labels))

            assert torch.autograd.gradcheck(value, (embeddings, module.proxies()[0]))


def test_gradient_of_distances_in_a_space():
    embeddings, labels = batch(per_class=2, dtype=torch.float64)
    embeddings.requires_grad_()
    for space in (LipschitzBall(), PoincareBall()):
        objective = make("contrastive", space=space, parameters={"neg_margin": 1.5})
        assert torch.autograd.gradcheck(lambda f, o=objective: o(f, labels), embeddings)


def test_merging_centres_has_a_bounded_gradient_where_they_meet():
    weights = torch.randn(6, DIMENSION, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_CentreMerging(3), weights)
    merged = torch.ones(6, DIMENSION, requires_grad=True)
    _CentreMerging(3)(merged).backward()
    assert merged.grad.abs().max() < 1


def test_arcface_is_finite_where_an_embedding_sits_on_its_class_weight():
    objective = make("arcface")
    on_weights = objective.loss.class_vectors().detach().clone().requires_grad_()
    objective(on_weights, torch.arange(CLASSES)).backward()
    assert on_weights.grad.isfinite().all()
    assert objective.proxies()[0].grad.isfinite().all()


def test_proxy_nca_plus_plus_is_the_librarys_where_that_does_not_underflow():
    objective = make("proxy-nca++", parameters={"temperature": 0.1})
    peer = ProxyNCALoss(CLASSES, DIMENSION, softmax_scale=10)
    peer.proxies.data = objective.loss.proxies.data.clone()
    torch.testing.assert_close(objective(*batch()), peer(*batch()))


@pytest.mark.parametrize("loss", losses.names())
def test_seeds(loss):
    data = batch()
    state = torch.get_rng_state()
    first, again, other = make(loss, seed=1), make(loss, seed=1), make(loss, seed=2)
    values = [first(*data), first(*data)]
    assert values == [again(*data), again(*data)]
    if loss in PROXY_LOSSES:
        assert values[0] != other(*data)
    assert torch.equal(state, torch.get_rng_state()), "the global random state was touched"


def test_drawn_triplets_go_on_after_loading_where_saving_left_off():
    data = batch(per_class=4)
    first, second = make("margin"), make("margin")
    first(*data)
    second.load_state_dict(first.state_dict())
    assert first(*data) == second(*data)
    assert first.state_dict()["miner.draws"] == 2


def test_parts_sum_to_the_whole_and_are_weighted():
    terms = [{"name": "embedding-norm", "weight": 0.5}, {"name": "koleo", "weight": 0.1}]
    objective = make("proxy-anchor", regularisers=terms)
    embeddings, labels = batch()
    parts = objective.parts(embeddings, labels)
    assert list(parts) == ["loss", "embedding-norm", "koleo"]
    assert parts["loss"] == make("proxy-anchor")(embeddings, labels)
    assert parts["embedding-norm"].item() == pytest.approx(0.5 * embeddings.norm(dim=1).square().mean().item())
    torch.testing.assert_close(objective(embeddings, labels), sum(parts.values()))


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [(loss, torch.float16) for loss in losses.names()]
    + [(loss, torch.bfloat16) for loss in ("triplet", "proxy-anchor", "softmax", "protonet-s")],
)
def test_half_precision_embeddings_leave_proxies_alone(loss, dtype):
    objective = make(loss)
    embeddings, labels = batch()
    value = objective((50 * embeddings).to(dtype), labels)
    assert value.dtype == torch.float32
    assert value.isfinite()
    assert all(proxy.dtype == torch.float32 for proxy in objective.proxies())


@pytest.mark.parametrize("loss", losses.names())
def test_proxies_are_what_the_loss_trains(loss):
    proxies = make(loss).proxies()
    learning = {*PROXY_LOSSES, "margin", "protonet-dr", "1nn-dr", "learned-similarity"} - {"corr", "h-spherical"}
    assert bool(proxies) == (loss in learning)
    assert not make("margin", parameters={"learn_beta": False}).proxies()


@pytest.mark.parametrize("loss", losses.names())
def test_check_batch(loss):
    objective = make(loss)
    objective.check_batch(8, 4)
    if loss in PROXY_LOSSES:
        objective.check_batch(32, 1)
        return
    with pytest.raises(RecipeError, match=r"data\.per_class"):
        objective.check_batch(32, 1)
    with pytest.raises(RecipeError, match=r"data\.classes_per_batch"):
        objective.check_batch(1, 4)


def test_spaces_can_be_checked_before_anything_is_built():
    check_space(ObjectiveSection(loss="arcface"), "sphere")
    with pytest.raises(RecipeError, match="sphere"):
        check_space(ObjectiveSection(loss="arcface"), "euclidean")
    with pytest.raises(RecipeError, match=r"objective\.miner"):
        check_space(ObjectiveSection(loss="margin"), "lipschitz-ball")
    check_space(ObjectiveSection(loss="margin", miner="all"), "lipschitz-ball")


def test_one_class_is_not_enough():
    with pytest.raises(RecipeError, match="classes"):
        make_objective(ObjectiveSection(), dimension=4, classes=1)


def test_a_missing_library_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[train\]"):
        make("proxy-anchor")


def test_an_objective_of_ones_own_modules():
    class Distance(torch.nn.Module):
        def forward(self, embeddings, labels):
            return F.mse_loss(embeddings, embeddings.mean(0).expand_as(embeddings))

    objective = Objective("spread", Distance(), BatchNeeds(), regularisers={"again": (2.0, Distance())})
    embeddings, labels = batch()
    assert objective(embeddings, labels).item() == pytest.approx(3 * Distance()(embeddings, labels).item())
