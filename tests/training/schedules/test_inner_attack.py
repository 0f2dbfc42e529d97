"""The attack inside training: where it may go, what it raises, what it leaves alone, and what it draws."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from nearkin.recipe import AdversarialSection, load_recipe
from nearkin.training.fit import make_learner
from nearkin.training.modes import at_rest
from nearkin.training.ranks import Ranks
from nearkin.training.schedules.inner_attack import InnerAttack

LABELS = torch.arange(12) % 6


@pytest.fixture
def learner(tiny):
    def make(loss="normface", *overrides):
        embedder, objective, _ = make_learner(load_recipe(loss, [*tiny, *overrides]), "image", 6, validated=True)
        embedder.train()
        objective.train()
        return embedder, objective.loss

    return make


def pixels(embedder, inputs):
    return (inputs * embedder.normalise.std + embedder.normalise.mean).flatten(1)


def batch(embedder, seed=0, outside=False):
    """Normalised inputs; where `outside`, some pixels lie outside [0, 1], as after a change of colours."""
    drawn = torch.rand(12, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    return embedder.normalise(1.4 * drawn - 0.2 if outside else drawn)


def attack(ranks=None, seed=3, **settings):
    return InnerAttack(AdversarialSection(**settings), seed, Ranks() if ranks is None else ranks)


ATTACKS = [{"attack": "fgsm"}, {"attack": "bim", "steps": 3}, {"attack": "pgd", "steps": 3}]
LENGTHS = {"linf": lambda x: x.abs().amax(dim=1), "l2": lambda x: x.norm(dim=1)}


@pytest.mark.parametrize("settings", ATTACKS, ids=lambda settings: settings["attack"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 8 / 255), ("l2", 0.5)])
@pytest.mark.parametrize(("loss", "mode"), [("normface", "mix"), ("normface", "trades"), ("triplet", "mix")])
def test_perturbed_inputs_are_in_the_ball_and_in_the_box(settings, norm, eps, loss, mode, learner):
    embedder, loss = learner(loss)
    inputs = batch(embedder, outside=True)
    found = attack(mode=mode, norm=norm, eps=eps, **settings)(embedder, loss, inputs, LABELS, 0)
    moved = pixels(embedder, found)
    assert moved.min() >= -1e-6
    assert moved.max() <= 1 + 1e-6
    lengths = LENGTHS[norm](moved - pixels(embedder, inputs).clamp(0, 1))
    assert lengths.max() <= eps * (1 + 1e-4)
    assert lengths.min() > 0.3 * eps, "the budget is used"
    assert not found.requires_grad
    assert found.is_contiguous(memory_format=torch.channels_last)


def at_the_end(embedder, loss, inputs, found):
    """Embeddings of clean and of perturbed inputs, as inference has them."""
    with at_rest(embedder, loss), torch.no_grad():
        return embedder.embed(inputs), embedder.embed(found)


@pytest.mark.parametrize("settings", ATTACKS, ids=lambda settings: settings["attack"])
@pytest.mark.parametrize("loss", ["normface", "softmax", "learned-similarity"])
def test_it_raises_the_cross_entropy_of_every_point(settings, loss, learner):
    embedder, loss = learner(loss)
    inputs = batch(embedder)
    found = attack(**settings)(embedder, loss, inputs, LABELS, 0)
    clean, perturbed = at_the_end(embedder, loss, inputs, found)
    with at_rest(loss):
        before, after = (
            functional.cross_entropy(loss.class_scores(points), LABELS, reduction="none")
            for points in (clean, perturbed)
        )
    assert (after > before).all()


@pytest.mark.parametrize("settings", ATTACKS, ids=lambda settings: settings["attack"])
@pytest.mark.parametrize(("loss", "mode"), [("triplet", "mix"), ("proxy-anchor", "mix"), ("normface", "trades")])
def test_what_has_no_slope_at_the_input_moves_farther_than_noise_does(settings, loss, mode, learner):
    """Distances, or predictions, that are compared with the input's own."""
    embedder, loss = learner(loss)
    inputs, eps = batch(embedder), 8 / 255
    found = attack(mode=mode, **settings)(embedder, loss, inputs, LABELS, 0)
    signs = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(7)).sign()
    noisy = embedder.normalise((pixels(embedder, inputs).view(inputs.shape) + eps * signs).clamp(0, 1))
    clean, perturbed = at_the_end(embedder, loss, inputs, found)
    _, shaken = at_the_end(embedder, loss, inputs, noisy)
    assert ((perturbed - clean).norm(dim=1) > 2 * (shaken - clean).norm(dim=1)).all()


@pytest.mark.parametrize("loss", ["normface", "learned-similarity", "triplet"])
def test_it_leaves_no_trace(loss, learner):
    embedder, loss = learner(loss, "model.backbone=resnet20", "model.size=32")
    inputs = functional.interpolate(batch(embedder), 32)
    kept = {name: value.clone() for name, value in [*embedder.state_dict().items(), *loss.state_dict().items()]}
    modes = {module: module.training for part in (embedder, loss) for module in part.modules()}
    state = torch.get_rng_state()
    attack(steps=2)(embedder, loss, inputs, LABELS, 0)
    now = {**embedder.state_dict(), **loss.state_dict()}
    assert [name for name in kept if not torch.equal(kept[name], now[name])] == []
    assert any("running_mean" in name for name in kept)
    assert {module: module.training for module in modes} == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for part in (embedder, loss) for parameter in part.parameters())


def test_frozen_stages_stay_as_they_are(learner):
    embedder, loss = learner("normface", "model.freeze=all")
    found = attack(steps=2)(embedder, loss, batch(embedder), LABELS, 0)
    assert embedder.training
    assert not any(stage.training for stage in embedder.backbone.stages.values())
    assert not torch.equal(found, batch(embedder))


@pytest.mark.parametrize(("norm", "eps"), [("linf", 8 / 255), ("l2", 0.5)])
def test_the_start_follows_from_seed_step_and_place(norm, eps, learner):
    embedder, loss = learner()
    inputs = batch(embedder)

    def found(seed=3, step=0):
        return attack(seed=seed, norm=norm, eps=eps, steps=1)(embedder, loss, inputs, LABELS, step)

    assert torch.equal(found(), found())
    assert not torch.equal(found(), found(seed=4))
    assert not torch.equal(found(), found(step=1))
    halves = [
        attack(Ranks(rank, 2, rank, 2), norm=norm, eps=eps, steps=1)(
            embedder, loss, inputs.chunk(2)[rank], LABELS.chunk(2)[rank], 0
        )
        for rank in range(2)
    ]
    torch.testing.assert_close(torch.cat(halves), found(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", ATTACKS[:2], ids=lambda settings: settings["attack"])
def test_only_pgd_draws_where_there_is_a_slope(settings, learner):
    embedder, loss = learner()
    one, other = (attack(seed=seed, **settings)(embedder, loss, batch(embedder), LABELS, 0) for seed in (1, 2))
    assert torch.equal(one, other)


def test_fgsm_is_one_signed_step(learner):
    embedder, loss = learner()
    inputs = batch(embedder)
    found = attack(attack="fgsm", eps=0.02)(embedder, loss, inputs, LABELS, 0)
    start = pixels(embedder, inputs).view(inputs.shape).requires_grad_()
    with at_rest(embedder, loss):
        functional.cross_entropy(loss.class_scores(embedder.embed(embedder.normalise(start))), LABELS).backward()
    expected = (start + 0.02 * start.grad.sign()).clamp(0, 1).flatten(1)
    torch.testing.assert_close(pixels(embedder, found), expected.detach(), rtol=0, atol=1e-5)


def test_modes_come_back_after_an_error(learner):
    embedder, loss = learner()
    embedder.head.eval()

    def fail():
        with at_rest(embedder, loss):
            assert not embedder.training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert embedder.training
    assert not embedder.head.training
