"""The attack inside training: where it may go, what it raises, what it leaves alone, and what it draws."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional

from nearkin import fit
from nearkin.errors import RecipeError
from nearkin.protocol import Candidate
from nearkin.recipe import AdversarialSection, load_recipe
from nearkin.training import Run, train
from nearkin.training.fit import make_learner
from nearkin.training.ranks import Ranks
from nearkin.training.step import Step
from nearkin.training.strategies import Adversarial, Schedule
from nearkin.training.strategies.adversarial import InnerAttack, adversarial_triplets, in_eval_mode

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
LENGTHS = {
    "linf": lambda x: x.abs().amax(dim=1),
    "l2": lambda x: x.norm(dim=1),
    "l1": lambda x: x.abs().sum(dim=1),
    "combined": lambda x: (99 / 767) * x.abs().sum(dim=1) + (1 - 99 / 767) * x.abs().amax(dim=1),
}


@pytest.mark.parametrize("settings", ATTACKS, ids=lambda settings: settings["attack"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 8 / 255), ("l2", 0.5), ("l1", 2.0), ("combined", 2.0)])
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
    with in_eval_mode(embedder, loss), torch.no_grad():
        return embedder.embed(inputs), embedder.embed(found)


@pytest.mark.parametrize("settings", ATTACKS, ids=lambda settings: settings["attack"])
@pytest.mark.parametrize("loss", ["normface", "softmax", "learned-similarity"])
def test_it_raises_the_cross_entropy_of_every_point(settings, loss, learner):
    embedder, loss = learner(loss)
    inputs = batch(embedder)
    found = attack(**settings)(embedder, loss, inputs, LABELS, 0)
    clean, perturbed = at_the_end(embedder, loss, inputs, found)
    with in_eval_mode(loss):
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
    with in_eval_mode(embedder, loss):
        functional.cross_entropy(loss.class_scores(embedder.embed(embedder.normalise(start))), LABELS).backward()
    expected = (start + 0.02 * start.grad.sign()).clamp(0, 1).flatten(1)
    torch.testing.assert_close(pixels(embedder, found), expected.detach(), rtol=0, atol=1e-5)


def test_modes_come_back_after_an_error(learner):
    embedder, loss = learner()
    embedder.head.eval()

    def fail():
        with in_eval_mode(embedder, loss):
            assert not embedder.training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert embedder.training
    assert not embedder.head.training


def ready(tiny, loss="normface", *overrides, **settings):
    """A step, and one that is its equal and never used."""
    recipe = load_recipe(loss, [*tiny, *overrides])
    embedder, objective, _ = make_learner(recipe, "image", 6, validated=True, items=60)
    schedule = Adversarial(AdversarialSection(steps=2, **settings), embedder.space, seed=5)
    step = Step(embedder, objective, schedule, None, Ranks()).train()
    return step, copy.deepcopy(step)


def inputs(embedder):
    return embedder.normalise(torch.rand(12, 3, 16, 16, generator=torch.Generator().manual_seed(0)))


def embedded(step):
    """Raw embeddings (12, d) of clean inputs and of those that the step's first attack finds, in one batch."""
    clean = inputs(step.embedder)
    perturbed = step.schedule.attack(step.embedder, step.objective.loss, clean, LABELS, 0)
    return step.embedder(torch.cat([clean, perturbed])).chunk(2)


def log_probabilities(step, embeddings):
    """Of NormFace, point by point and class by class."""
    proxies = [row / row.norm() for row in step.objective.loss.bank.proxies.detach()]
    rows = []
    for point in embeddings.detach():
        logits = [10.0 * float(point @ proxy / point.norm()) for proxy in proxies]
        total = math.log(sum(math.exp(value) for value in logits))
        rows.append([value - total for value in logits])
    return rows


def cross_entropy(step, embeddings):
    rows = log_probabilities(step, embeddings)
    return -sum(row[label] for row, label in zip(rows, LABELS.tolist(), strict=True)) / len(rows)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_mix_is_the_weighted_loss_of_both(alpha, tiny):
    step, twin = ready(tiny, alpha=alpha)
    clean, perturbed = embedded(twin)
    expected = alpha * cross_entropy(twin, clean) + (1 - alpha) * cross_entropy(twin, perturbed)
    assert step(inputs(step.embedder), LABELS).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("loss", ["normface", "triplet", "proxy-anchor", "learned-similarity", "growing-triplet"])
def test_nearly_all_weight_on_clean_inputs_is_plain_training(loss, tiny):
    """Without batch norm, in which perturbed inputs are seen by the clean ones."""
    step, twin = ready(tiny, loss, "model.freeze=all", alpha=1 - 1e-7)
    twin.schedule = Schedule()
    clean = inputs(step.embedder)
    mixed, plain = step(clean, LABELS), twin(clean, LABELS)
    torch.testing.assert_close(mixed, plain, rtol=1e-5, atol=1e-6)
    mixed.backward()
    plain.backward()
    torch.testing.assert_close(step.embedder.head.weight.grad, twin.embedder.head.weight.grad, rtol=1e-4, atol=1e-6)


def test_without_clean_inputs_it_is_plain_training_on_perturbed_ones(tiny):
    step, twin = ready(tiny, alpha=0)
    clean = inputs(step.embedder)
    perturbed = twin.schedule.attack(twin.embedder, twin.objective.loss, clean, LABELS, 0)
    seen = []
    step.embedder.head.register_forward_hook(lambda *given: seen.append(given[2]) if given[0].training else None)
    value = step(clean, LABELS)
    twin.schedule = Schedule()
    assert torch.equal(value, twin(perturbed, LABELS))
    assert [len(embeddings) for embeddings in seen] == [12]


@pytest.mark.parametrize("term", ["kl", "cross-entropy"])
@pytest.mark.parametrize("trades_lambda", [1 / 6, 2.0])
def test_trades_by_loops(term, trades_lambda, tiny):
    step, twin = ready(tiny, mode="trades", trades_lambda=trades_lambda, trades_term=term)
    clean, perturbed = embedded(twin)
    apart = 0.0
    for p, q in zip(log_probabilities(twin, clean), log_probabilities(twin, perturbed), strict=True):
        apart -= sum(math.exp(a) * b for a, b in zip(p, q, strict=True))
        if term == "kl":
            apart += sum(math.exp(a) * a for a in p)
    expected = cross_entropy(twin, clean) + apart / 12 / trades_lambda
    assert step(inputs(step.embedder), LABELS).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_logit_pairing_by_loops(alpha, tiny):
    step, twin = ready(tiny, mode="logit-pairing", pairing_weight=0.7, alpha=alpha)
    clean, perturbed = embedded(twin)
    proxies = [row / row.norm() for row in twin.objective.loss.bank.proxies.detach()]
    apart = [
        (10 * float(p @ proxy / p.norm()) - 10 * float(q @ proxy / q.norm())) ** 2
        for p, q in zip(clean.detach(), perturbed.detach(), strict=True)
        for proxy in proxies
    ]
    plain = alpha * cross_entropy(twin, clean) + (1 - alpha) * cross_entropy(twin, perturbed)
    expected = plain + 0.7 * sum(apart) / len(apart)
    assert step(inputs(step.embedder), LABELS).item() == pytest.approx(expected, rel=1e-4)


def naive_triplets(clean, perturbed, labels, margin):
    total = 0.0
    for row, (anchor, label) in enumerate(zip(perturbed, labels, strict=True)):
        cosines = [float(anchor @ other / anchor.norm() / other.norm()) for other in clean]
        turns = [(row + turn) % len(labels) for turn in range(1, len(labels) + 1)]
        positive = next(place for place in turns if labels[place] == label)
        others = [cosines[place] for place in range(len(labels)) if labels[place] != label]
        if others:
            total += max((1 - cosines[positive]) - (1 - max(others)) + margin, 0.0)
    return total / len(labels)


@pytest.mark.parametrize("labels", [LABELS.tolist(), [0, 0, 0, 1], [0, 1, 2, 3], [0, 0]])
def test_adversarial_triplets_by_loops(labels):
    generator = torch.Generator().manual_seed(0)
    clean, perturbed = (torch.randn(len(labels), 5, generator=generator, dtype=torch.float64) for _ in range(2))
    clean.requires_grad_()
    found = adversarial_triplets(clean, perturbed, torch.tensor(labels), 0.3)
    assert found.item() == pytest.approx(naive_triplets(clean.detach(), perturbed, labels, 0.3))
    found.backward()
    assert clean.grad.isfinite().all()


@pytest.mark.parametrize("loss", ["normface", "triplet"])
def test_the_mode_triplet_adds_them_to_the_mix(loss, tiny):
    settings = {"alpha": 0.3, "pairing_weight": 2.0, "pairing_margin": 0.5}
    step, twin = ready(tiny, loss, mode="triplet", **settings)
    clean, perturbed = embedded(twin)
    mixed, _ = ready(tiny, loss, alpha=0.3)
    added = naive_triplets(clean.detach(), perturbed.detach(), LABELS.tolist(), 0.5)
    given = inputs(step.embedder)
    assert step(given, LABELS).item() == pytest.approx(mixed(given, LABELS).item() + 2 * added, rel=1e-4)
    assert step.schedule.readings()["pairing_loss"] == pytest.approx(added, rel=1e-4)


@pytest.mark.parametrize("parameters", ["{scale: 10}", "{scale: dynamic, proxies: ema}"])
def test_negative_margin_by_loops(parameters, tiny):
    step, twin = ready(tiny, "normface", f"objective.parameters={parameters}", mode="negative-margin", alpha=0.4)
    clean, perturbed = embedded(twin)
    proxies = [row.double() / row.double().norm() for row in twin.objective.loss.bank.proxies.detach()]
    scale = float(twin.objective.loss.scores.scale())

    def value(embeddings, margins):
        total = 0.0
        for point, label in zip(embeddings.detach().double(), LABELS.tolist(), strict=True):
            angles = [math.acos(max(-1.0, min(1.0, float(point @ w / point.norm())))) for w in proxies]
            angles[label] = max(angles[label] + margins[label], 0.0)
            logits = [scale * math.cos(angle) for angle in angles]
            total -= logits[label] - math.log(sum(map(math.exp, logits)))
        return total / len(embeddings)

    margins = [
        -min(math.acos(float(one @ other)) for other in proxies if other is not one) / 2 + 1e-3 for one in proxies
    ]
    expected = 0.4 * value(clean, [0.0] * 6) + 0.6 * value(perturbed, margins)
    assert step(inputs(step.embedder), LABELS).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("loss", "mode"), [("triplet", "mix"), ("learned-similarity", "trades")])
def test_other_losses_have_gradients(loss, mode, tiny):
    step, _ = ready(tiny, loss, mode=mode)
    step(inputs(step.embedder), LABELS).backward()
    gradients = [parameter.grad for parameter in step.embedder.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert step.embedder.head.weight.grad.abs().max() > 0


def test_halves_are_told_apart_process_by_process(tiny):
    step, _ = ready(tiny)
    step.schedule.ranks = Ranks(world_size=2, local_world_size=2)
    rows = torch.tensor([[0.0], [1.0], [10.0], [11.0], [2.0], [3.0], [12.0], [13.0]])
    clean, perturbed = step.schedule._halves(rows)
    assert clean.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert perturbed.flatten().tolist() == [10.0, 11.0, 12.0, 13.0]


# What follows the points.


@pytest.mark.parametrize("mode", ["mix", "trades"])
def test_prototypes_follow_clean_points_once(mode, tiny):
    step, twin = ready(tiny, "learned-similarity", mode=mode)
    clean, _ = embedded(twin)
    step(inputs(step.embedder), LABELS)
    twin.embedder.prototypes.update(twin.embedder.space.project(clean.detach()), LABELS, 0.9)
    torch.testing.assert_close(step.embedder.prototypes.points, twin.embedder.prototypes.points)


def test_prototypes_follow_perturbed_points_if_there_are_no_others(tiny):
    step, twin = ready(tiny, "learned-similarity", alpha=0)
    clean = inputs(step.embedder)
    points = twin.embedder(twin.schedule.attack(twin.embedder, twin.objective.loss, clean, LABELS, 0))
    step(clean, LABELS)
    twin.embedder.prototypes.update(twin.embedder.space.project(points.detach()), LABELS, 0.9)
    torch.testing.assert_close(step.embedder.prototypes.points, twin.embedder.prototypes.points)


@pytest.mark.parametrize("mode", ["mix", "trades", "negative-margin"])
def test_moving_proxies_and_scale_follow_clean_points(mode, tiny):
    step, twin = ready(tiny, "normface", "objective.parameters={proxies: ema, scale: dynamic}", mode=mode)
    clean, _ = embedded(twin)
    step(inputs(step.embedder), LABELS)
    twin.objective(clean, LABELS)
    for one in (step, twin):
        one.objective.stepped()
    ours, theirs = (one.objective.loss.state_dict() for one in (step, twin))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])


def test_a_growing_margin_counts_steps_not_batches(tiny):
    step, _ = ready(tiny, "growing-triplet")
    for _ in range(3):
        step(inputs(step.embedder), LABELS)
    assert int(step.objective.loss.steps) == 3


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_regularisers_apply_once(alpha, tiny):
    """To the clean points, or to the perturbed ones if there are no others."""
    terms = "objective.regularisers=[{name: embedding-norm, weight: 0.5}, {name: class-adversary, weight: 0}]"
    step, twin = ready(tiny, "normface", terms, alpha=alpha)
    value = step(inputs(step.embedder), LABELS).item()
    assert int(step.objective.regularisers["class-adversary"].steps) == 1
    if alpha:
        seen, perturbed = embedded(twin)
    else:
        clean = inputs(twin.embedder)
        seen = perturbed = twin.embedder(
            twin.schedule.attack(twin.embedder, twin.objective.loss, clean, LABELS, 0)
        ).detach()
    expected = alpha * cross_entropy(twin, seen) + (1 - alpha) * cross_entropy(twin, perturbed)
    norms = [float(point @ point) for point in seen.detach()]
    assert value == pytest.approx(expected + 0.5 * sum(norms) / 12, rel=1e-4)


def test_attributes_of_clean_points_reach_their_regulariser(tiny):
    recipe = ["model.backbone=resnet20", "model.local_dimension=8", "model.pooling_parameters={prototypes: 4}"]
    step, _ = ready(tiny, "contrastive-gsp", *recipe)
    seen = []
    step.objective.regularisers["zero-shot"].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    step(inputs(step.embedder), LABELS).backward()
    assert [tuple(attributes.shape) for attributes in seen] == [(12, 4)]


# The log and the checkpoint.


@pytest.mark.parametrize(
    ("loss", "settings", "names"),
    [
        ("normface", {}, {"clean_loss", "adv_loss", "clean_accuracy", "adv_accuracy"}),
        ("normface", {"alpha": 0}, {"adv_loss", "adv_accuracy"}),
        ("learned-similarity", {}, {"clean_loss", "adv_loss", "clean_accuracy", "adv_accuracy"}),
        ("triplet", {}, {"clean_loss", "adv_loss", "adv_distance"}),
        ("triplet", {"alpha": 0}, {"adv_loss"}),
    ],
)
def test_readings_are_means_since_the_last_ones(loss, settings, names, tiny):
    step, twin = ready(tiny, loss, **settings)
    assert step.schedule.readings() == {}
    clean = inputs(step.embedder)
    once = []
    for _ in range(2):
        twin(clean, LABELS)
        once.append(twin.schedule.readings())
        step(clean, LABELS)
    found = step.schedule.readings()
    assert found.keys() == names
    assert found == pytest.approx({name: (once[0][name] + once[1][name]) / 2 for name in names})
    assert step.schedule.readings() == {}


def test_a_schedule_goes_on_where_a_checkpoint_left_it(tiny):
    step, twin = ready(tiny)
    clean = inputs(step.embedder)
    step(clean, LABELS)
    twin.load_state_dict(step.state_dict())
    twin.schedule.restore(step.schedule.tensors(), step.schedule.facts())
    assert torch.equal(step(clean, LABELS), twin(clean, LABELS))
    assert step.schedule.readings() == twin.schedule.readings()


def test_a_run_tells_of_both_losses(patterns, tiny, tmp_path):
    recipe = load_recipe("normface", [*tiny, "training.schedule=adversarial", "training.adversarial.steps=2"])
    train(patterns, recipe, Run(tmp_path / "run"), source="patterns", cache_directory=tmp_path, progress=False)
    rows = [row for row in Run(tmp_path / "run").history() if "loss" in row]
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    for row in rows:
        assert row["loss"] == pytest.approx((row["clean_loss"] + row["adv_loss"]) / 2, rel=1e-5)
        assert row["adv_loss"] > row["clean_loss"]
        assert row["adv_accuracy"] <= row["clean_accuracy"]


# Recipes.


@pytest.mark.parametrize(
    ("loss", "changes", "word"),
    [
        ("normface", ["model.freeze=all", "model.cache=true"], r"model\.cache"),
        ("triplet", ["training.adversarial.mode=trades"], "triplet"),
        ("triplet", ["training.adversarial.mode=logit-pairing"], "triplet"),
        ("proxy-anchor", ["training.adversarial.mode=trades"], r"training\.adversarial\.mode"),
        ("arcface", ["training.adversarial.mode=negative-margin"], "arcface"),
    ],
)
def test_refusals(loss, changes, word, tiny):
    recipe = load_recipe(loss, [*tiny, "training.schedule=adversarial", *changes])
    with pytest.raises(RecipeError, match=word):
        make_learner(recipe, "image", 6, validated=True)


def test_audio_is_refused():
    recipe = load_recipe("audio", ["training.schedule=adversarial", "model.cache=false", "model.pretrained=false"])
    with pytest.raises(RecipeError, match="audio"):
        make_learner(recipe, "audio", 6, validated=True)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ("{mode: trades, alpha: 0.3}", "alpha"),
        ("{trades_lambda: 1}", "trades_lambda"),
        ("{pairing_weight: 1}", "pairing_weight"),
        ("{mode: logit-pairing, pairing_margin: 1}", "pairing_margin"),
        ("{l1_ratio: 5}", "l1_ratio"),
        ("{trades_term: cross-entropy}", "trades_term"),
        ("{mode: negative-margin, alpha: 0}", "alpha"),
        ("{attack: fgsm, step_size: 0.1}", "step_size"),
        ("{attack: fgsm, steps: 3}", "steps"),
        ("{alpha: 1}", "alpha"),
        ("{eps: 0}", "eps"),
        ("{eps: eight}", "eps"),
        ("{attack: cw}", "attack"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, word):
    with pytest.raises(RecipeError, match=word):
        load_recipe("normface", ["training.schedule=adversarial", f"training.adversarial={settings}"])


def test_a_combined_ball_that_no_image_has_room_for_is_refused_before_anything_is_written(patterns, tiny, tmp_path):
    changes = [*tiny, "training.schedule=adversarial", "training.adversarial={norm: combined, l1_ratio: 768}"]
    with pytest.raises(RecipeError, match="l1_ratio"):
        fit(patterns, "normface", out=tmp_path / "run", overrides=changes, progress=False)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_settings_without_the_schedule_are_refused():
    with pytest.raises(RecipeError, match=r"training\.schedule"):
        load_recipe("normface", ["training.adversarial.eps=0.1"])


def test_fractions_are_numbers():
    settings = load_recipe(
        "normface",
        ["training.schedule=adversarial", "training.adversarial={mode: trades, eps: 2/255, trades_lambda: 1/3}"],
    ).training.adversarial
    assert (settings.eps, settings.trades_lambda) == (2 / 255, 1 / 3)


def test_recipes_of_old_keep_their_digests():
    plain = Candidate("plain", load_recipe("normface"))
    assert "adversarial" not in plain.content()["training"]
    changed = load_recipe("normface", ["training.schedule=adversarial", "training.adversarial.eps=1/9"])
    other = Candidate("other", changed)
    assert other.content()["training"]["adversarial"]["eps"] == 1 / 9
