"""Training with a class adversary: what it is given, its rate, its epochs, the log, and recipes it cannot work with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.models import build_embedder
from nearkin.objectives import ObjectiveSection, make_objective
from nearkin.objectives import adversary as module
from nearkin.recipe import TrainingSection, load_recipe
from nearkin.training import Run, train
from nearkin.training.fit import make_learner
from nearkin.training.ranks import Ranks
from nearkin.training.run import load_state
from nearkin.training.step import Step, make_optimiser, set_learning_rates
from nearkin.training.strategies import Schedule

KEYS = {"class-adversary_coefficient", "class-adversary_loss", "class-adversary_accuracy"}
FROZEN = ["model.freeze=all", "model.cache=true", "model.cache_views={flip: true}"]


def adversary(weight=0.5, **parameters):
    """The override that adds one."""
    chosen = ", ".join(f"{name}: {value}" for name, value in {"hidden": 16, **parameters}.items())
    return f"objective.regularisers=[{{name: class-adversary, weight: {weight}, parameters: {{{chosen}}}}}]"


def fit(patterns, path, recipe, *overrides):
    run = Run(path / "run")
    made = load_recipe(recipe, list(overrides))
    train(patterns, made, run, source="patterns", cache_directory=path / "cache", progress=False)
    return run


def counted(run):
    """What the checkpoint knows of the adversary."""
    tensors, _ = load_state(run.state_file)
    prefix = "regularisers.class-adversary."
    return {name.removeprefix(prefix): v for name, v in tensors["objective"].items() if name.startswith(prefix)}


def test_the_log_tells_of_the_adversary_beside_the_loss(patterns, tiny, tmp_path):
    run = fit(patterns, tmp_path, "triplet", *tiny, adversary(epoch_steps=5))
    rows = run.history()
    losses = [row for row in rows if "loss" in row]
    assert [row["step"] for row in losses] == [3, 6, 9, 12]
    assert all(set(row) >= KEYS for row in losses)
    assert not any(set(row) & KEYS for row in rows if "loss" not in row)
    coefficients = [row["class-adversary_coefficient"] for row in losses]
    classes = len(run.model().card["classes"]["train"])
    assert coefficients[0] == pytest.approx(-0.5 * math.tanh(math.log(classes) - 1.5), rel=1e-5)
    assert coefficients[1] == coefficients[2] != coefficients[0]  # epochs begin at steps 6 and 11
    assert coefficients[3] != coefficients[2]
    assert all(0 <= row["class-adversary_accuracy"] <= 1 for row in losses)
    assert losses[0]["class-adversary_loss"] == pytest.approx(math.log(classes), abs=0.5)
    state = counted(run)
    assert (int(state["steps"]), int(state["unread_steps"])) == (12, 0)


@pytest.mark.parametrize("epoch", [3, 100])
def test_the_logged_loss_is_that_of_equation_22(epoch, patterns, tiny, tmp_path):
    """Without the metric loss: minus the coefficient times the classifier's loss, in rows that are in one epoch."""
    run = fit(patterns, tmp_path, "triplet", *tiny, "objective.weight=0", adversary(epoch_steps=epoch))
    rows = [row for row in run.history() if "loss" in row]
    for row in rows:
        expected = -row["class-adversary_coefficient"] * row["class-adversary_loss"]
        assert row["loss"] == pytest.approx(expected, rel=1e-4)
    assert len({row["class-adversary_coefficient"] for row in rows}) == (4 if epoch == 3 else 1)


def test_changes_of_sign_between_rows_are_in_the_log(patterns, tiny, tmp_path, monkeypatch):
    """Coefficients of steps 1 to 12; what is set after the last step never acts."""
    signs = iter([-1, -1, 1, 1, -1, -1, -1, 1, 1, 1, 1, 1, -1])
    monkeypatch.setattr(module, "coefficient_for", lambda *_: torch.tensor(0.1 * next(signs)))
    run = fit(patterns, tmp_path, "triplet", *tiny, "training.log_every=12", adversary(epoch_steps=1))
    (row,) = [row for row in run.history() if "loss" in row]
    found = [row[f"class-adversary_{name}"] for name in ("turns", "first_turn", "last_turn", "coefficient")]
    assert found == pytest.approx([3, 3, 8, 0.05])
    assert list(signs) == []


@pytest.mark.parametrize("kind", ["adaptive", "soft"])
@pytest.mark.parametrize(
    "more",
    [
        ["training.schedule=cross-batch-memory", "training.cross_batch_memory={batches: 2, warmup_steps: 3}"],
        [
            "training.schedule=chance-constrained",
            "training.chance_constrained={proxies: 2, pool: 3, patience: 1}",
            "training.evaluate_every=2",
            "training.patience=null",
        ],
        ["training.ema=0.9"],
        ["training.precision=bf16-mixed"],
        [*FROZEN, "model.local_dimension=8"],
    ],
    ids=["memory", "chance-constrained", "averaged", "half", "cached"],
)
def test_every_schedule_asks_it_once_a_step(kind, more, patterns, tiny, tmp_path):
    chosen = {"kind": kind} | ({"epoch_steps": 4} if kind == "adaptive" else {})
    run = fit(patterns, tmp_path, "contrastive", *tiny, *more, adversary(**chosen))
    rows = [row for row in run.history() if "loss" in row]
    assert all(np.isfinite(row["loss"]) and set(row) >= KEYS for row in rows)
    assert int(counted(run)["steps"]) == 12
    if kind == "soft":
        assert {row["class-adversary_coefficient"] for row in rows} == {-0.5}


@pytest.mark.parametrize("cached", [False, True])
def test_attended_stages_and_an_adversary(cached, patterns, tiny, tmp_path):
    more = ["model.backbone=resnet20", "model.attention={}", "model.freeze=all", f"model.cache={str(cached).lower()}"]
    run = fit(patterns, tmp_path, "triplet", *tiny, *more, adversary())
    assert counted(run)["hidden.weight"].shape == (16, run.model().feature_size)
    assert run.model().feature_size > run.model().pooling.out_channels


def test_with_attributes_as_well(patterns, tiny, tmp_path):
    terms = "objective.regularisers=[{name: class-adversary, weight: 0.5}, {name: zero-shot, weight: 0.1}]"
    more = ["model.backbone=resnet20", "model.local_dimension=8", "model.pooling_parameters={prototypes: 4}", *FROZEN]
    run = fit(patterns, tmp_path, "contrastive-gsp", *tiny, *more, terms)
    tensors, _ = load_state(run.state_file)
    assert int(tensors["objective"]["regularisers.zero-shot.steps"]) == int(counted(run)["steps"]) == 12


# What a step gives it.


def ready_step(tiny, *overrides):
    recipe = load_recipe("triplet", [*tiny, "objective.weight=0", *overrides])
    embedder, objective, _ = make_learner(recipe, "image", 6, validated=True, items=60)
    return Step(embedder, objective, Schedule(), None, Ranks())


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 3, 16, 16, generator=generator), torch.arange(12) % 6


def test_it_sees_what_the_head_sees_and_reaches_what_comes_before(tiny):
    step = ready_step(tiny, adversary())
    seen = {}
    step.embedder.head.register_forward_pre_hook(lambda _, given: seen.update(head=given[0]))
    step.objective.regularisers["class-adversary"].register_forward_pre_hook(
        lambda _, given: seen.update(adversary=given[0])
    )
    step(*inputs()).backward()
    assert torch.equal(seen["head"], seen["adversary"])
    assert step.embedder.head.weight.grad.abs().max() == 0  # the metric loss counts nothing here
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in step.embedder.backbone.parameters() if p.ndim > 1)
    assert step.objective.regularisers["class-adversary"].output.weight.grad.abs().max() > 0


def test_on_embeddings_it_reaches_the_head(tiny):
    step = ready_step(tiny, "model.freeze=all", adversary(vectors="embeddings"))
    step(*inputs()).backward()
    assert step.embedder.head.weight.grad.abs().max() > 0


# Epochs.


@pytest.mark.parametrize(("items", "steps"), [(60, 5), (61, 6), (12, 1), (3, 1), (None, 1)])
def test_an_epoch_is_one_pass_through_the_training_items(items, steps, tiny):
    recipe = load_recipe("triplet", [*tiny, adversary()])
    _, objective, batch_classes = make_learner(recipe, "image", 6, validated=True, items=items)
    assert batch_classes * recipe.data.per_class == 12
    assert objective.regularisers["class-adversary"].epoch_steps == steps
    _, shared, _ = make_learner(recipe, "image", 6, validated=True, items=items, processes=2)
    assert shared.regularisers["class-adversary"].epoch_steps == steps


def test_a_run_counts_its_own_items(patterns, tiny, tmp_path, monkeypatch):
    from nearkin.training import fit as module

    made = []

    def watch(*arguments, **settings):
        made.append((settings["items"], plain(*arguments, **settings)))
        return made[-1][1]

    plain = module.make_learner
    monkeypatch.setattr(module, "make_learner", watch)
    run = fit(patterns, tmp_path, "triplet", *tiny, adversary())
    ((items, _),) = made
    assert items == int(np.isin(patterns.labels, run.model().card["classes"]["train"]).sum())


# Rates.


def test_its_network_learns_at_the_heads_rate_without_decay(tiny):
    recipe = load_recipe("proxy-anchor", [*tiny, "training.lr=0.1", "training.backbone_lr_factor=0.01"])
    section = recipe.training.model_copy(update={"proxy_lr_factor": 100.0, "head_warmup_steps": 3})
    terms = [{"name": "class-adversary"}, {"name": "zero-shot"}]
    embedder = build_embedder(recipe.model, seed=0)
    objective = make_objective(
        ObjectiveSection(loss="proxy-anchor", regularisers=terms),
        dimension=16,
        classes=5,
        features=embedder.feature_size,
        epoch_steps=3,
    )
    optimiser = make_optimiser(embedder, objective, section)
    set_learning_rates(optimiser, 3, section)
    groups = {group["name"]: group for group in optimiser.param_groups}
    assert list(groups) == ["head", "proxies", "backbone", "regularisers"]
    assert {name: group["lr"] for name, group in groups.items()} == pytest.approx(
        {"head": 0.1, "proxies": 10.0, "backbone": 0.0, "regularisers": 0.1}
    )
    assert groups["regularisers"]["weight_decay"] == 0
    members = {name: {id(p) for p in group["params"]} for name, group in groups.items()}
    assert members["regularisers"] == {id(p) for p in objective.regularisers["class-adversary"].parameters()}
    assert id(objective.regularisers["zero-shot"].class_vectors) in members["proxies"]
    every = [p for group in optimiser.param_groups for p in group["params"]]
    assert len(every) == len({id(p) for p in every}) == len([*embedder.parameters(), *objective.parameters()])


def test_there_is_no_group_without_one(tiny):
    embedder = build_embedder(load_recipe("triplet", tiny).model, seed=0)
    objective = make_objective(ObjectiveSection(loss="triplet"), dimension=16, classes=5)
    names = [group["name"] for group in make_optimiser(embedder, objective, TrainingSection()).param_groups]
    assert names == ["head", "backbone"]


# Refusals.


def learner(tiny, *overrides):
    return make_learner(load_recipe("triplet", [*tiny, *overrides]), "image", 6, validated=True, items=60)


@pytest.mark.parametrize("kind", ["adaptive", "soft"])
def test_features_that_nothing_makes_are_refused(kind, tiny):
    with pytest.raises(RecipeError, match="vectors"):
        learner(tiny, "model.freeze=all", adversary(kind=kind))


@pytest.mark.parametrize(
    "term",
    [adversary(), adversary(vectors="embeddings"), "objective.regularisers=[{name: koleo}]"],
    ids=["features", "embeddings", "koleo"],
)
def test_a_model_of_which_nothing_learns_is_refused(term, tiny):
    frozen = ["model.freeze=all", "model.dimension=null"]
    with pytest.raises(RecipeError, match=r"model\.dimension"):
        learner(tiny, *frozen, term)
    learner(tiny, *frozen)
    learner(tiny, *frozen, "model.freeze=null", term)


@pytest.mark.parametrize(
    "more",
    [
        ["model.freeze=null"],
        ["model.local_dimension=8"],
        ["model.pooling=gem"],
        ["model.backbone=resnet20", "model.attention={}"],
        ["model.backbone=resnet20", "model.freeze=stage2"],
        [adversary(vectors="embeddings")],
    ],
    ids=["trainable", "local", "pooling", "attention", "partly frozen", "on embeddings"],
)
def test_features_that_something_makes_are_taken(more, tiny):
    learner(tiny, "model.freeze=all", adversary(), *more)


def test_one_class_is_refused(tiny):
    with pytest.raises(RecipeError, match="classes"):
        make_learner(load_recipe("triplet", [*tiny, adversary()]), "image", 1, validated=True, items=60)
