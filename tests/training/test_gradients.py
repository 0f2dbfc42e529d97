"""Gradient caching: the gradients of the whole batch, from parts of it."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearkin.errors import RecipeError
from nearkin.models import build_embedder
from nearkin.models.section import ModelSection
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import load_recipe
from nearkin.training import Run, train
from nearkin.training.batches import Deferred, part, whole
from nearkin.training.loop import Loop
from nearkin.training.ranks import Ranks
from nearkin.training.run import load_state
from nearkin.training.step import GradientCache, Step, WholeBatch
from nearkin.training.strategies import CrossBatchMemory, Schedule

CPU = torch.device("cpu")
LABELS = torch.arange(4).repeat_interleave(3)
ZERO_SHOT = {"name": "zero-shot", "weight": 0.3}
ADVERSARY = {"name": "class-adversary", "weight": 0.5, "parameters": {"hidden": 8, "epoch_steps": 3}}

OBJECTIVES = {
    "pairs": {"loss": "multi-similarity"},
    "triplets that a miner chooses": {"loss": "triplet"},
    "proxies": {"loss": "proxy-anchor"},
    "attributes": {"loss": "contrastive", "regularisers": [ZERO_SHOT]},
    "features": {"loss": "contrastive", "regularisers": [ADVERSARY]},
}


def make_step(objective: dict, schedule: Schedule | None = None, **changes) -> Step:
    """A network with a pooling that has prototypes, and batch norms that rest unless told otherwise."""
    gsp = {"pooling": "gsp", "pooling_parameters": {"prototypes": 4}, "local_dimension": 8}
    section = ModelSection(channels=3, size=16, **{"backbone": "conv4", "dimension": 6, **gsp, **changes})
    embedder = build_embedder(section, seed=1)
    embedder.pooling.init_from(torch.randn(4, 8, 2, 2, generator=torch.Generator().manual_seed(0)), 0)
    embedder.freeze(None, frozen_batch_norm=True)
    made = make_objective(
        ObjectiveSection(**objective), dimension=6, classes=4, features=embedder.feature_size, epoch_steps=3
    )
    return Step(embedder, made, schedule or Schedule(), None, Ranks()).train()


def images(count: int = 12) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(7))


def gradients_of(
    step: Step, size: int | None, inputs=None, labels: Tensor = LABELS
) -> tuple[Tensor, dict[str, Tensor]]:
    step.zero_grad(set_to_none=True)
    inputs = images() if inputs is None else inputs
    made = WholeBatch(step, Tensor.backward, CPU)
    if size is not None:
        made = GradientCache(step, Tensor.backward, CPU, size, nullcontext)
    loss = made(inputs, labels)
    return loss, {name: p.grad for name, p in step.named_parameters() if p.grad is not None}


def assert_equal_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert theirs
    for name, gradient in theirs.items():
        # Up to rounding in single precision: a part of one item is computed by other kernels than the batch.
        assert float((ours[name] - gradient).norm()) <= 5e-5 * max(float(gradient.norm()), 1e-3), name
    assert all(not ours[name].any() for name in ours.keys() - theirs.keys())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("size", [1, 5, 12, 100])
def test_gradients_are_those_of_the_whole_batch(name, size):
    loss, theirs = gradients_of(make_step(OBJECTIVES[name]), None)
    found, ours = gradients_of(make_step(OBJECTIVES[name]), size)
    torch.testing.assert_close(found, loss)
    assert not found.requires_grad
    assert_equal_gradients(ours, theirs)


def test_parts_leave_out_the_blocks_that_the_whole_batch_does():
    found = []
    for size in (None, 5):
        step = make_step({"loss": "contrastive"}, backbone="resnet20", drop_path=0.6)
        step.embedder.backbone.path_draws.begin(0, 1, 0, 12)
        found.append(gradients_of(step, size)[1])
    assert_equal_gradients(found[1], found[0])


def test_a_memory_of_batches_is_filled_once():
    section = load_recipe("contrastive-xbm", ["training.cross_batch_memory={batches: 2, warmup_steps: 1}"]).training
    steps = [make_step({"loss": "contrastive"}, CrossBatchMemory(section.cross_batch_memory, 12, 6)) for _ in range(2)]
    for _ in range(3):
        (_, theirs), (_, ours) = gradients_of(steps[0], None), gradients_of(steps[1], 5)
        assert_equal_gradients(ours, theirs)
    assert steps[0].schedule.seen == steps[1].schedule.seen == 36


def test_dropout_draws_the_same_in_both_passes_and_goes_on():
    """The reference keeps the graphs of all parts, which draw one after the other."""
    made = []
    for size in (None, 5):
        step = make_step({"loss": "contrastive"})
        step.embedder.head = nn.Sequential(nn.Dropout(0.5), step.embedder.head)
        torch.manual_seed(11)
        if size is None:
            outputs = [step.represent(one) for one in images().split(5)]
            joined = torch.cat([one.embeddings for one in outputs])
            step.objective(joined, LABELS).backward()
            found = {name: p.grad for name, p in step.named_parameters() if p.grad is not None}
        else:
            _, found = gradients_of(step, size)
        made.append((found, torch.rand(3)))
    assert_equal_gradients(made[1][0], made[0][0])
    assert torch.equal(made[0][1], made[1][1])


def test_batch_norm_that_learns_sees_each_part_once():
    """The reference passes the parts one after the other, with the graphs of all."""
    reference, step = (make_step({"loss": "contrastive"}) for _ in range(2))
    for one in (reference, step):
        one.embedder.freeze(None, frozen_batch_norm=False)
    joined = torch.cat([reference.represent(one).embeddings for one in images().split(6)])
    reference.objective(joined, LABELS).backward()
    _, ours = gradients_of(step, 6)
    assert_equal_gradients(ours, {name: p.grad for name, p in reference.named_parameters() if p.grad is not None})
    for name, value in reference.embedder.state_dict().items():
        torch.testing.assert_close(step.embedder.state_dict()[name], value)


def test_no_more_than_a_part_is_ever_prepared_or_kept():
    taken = []

    def prepare(samples: Tensor, place: int) -> Tensor:
        taken.append((place, len(samples)))
        return samples.float() / 255

    bytes_ = (images() * 30 + 120).clamp(0, 255).to(torch.uint8)
    step = make_step({"loss": "contrastive"})
    _, ours = gradients_of(step, 5, Deferred(bytes_, prepare))
    assert taken == [(0, 5), (5, 5), (10, 2)] * 2
    _, theirs = gradients_of(make_step({"loss": "contrastive"}), None, bytes_.float() / 255)
    assert_equal_gradients(ours, theirs)


def test_half_precision_is_close_to_the_whole_batch():
    def gradients(size: int | None) -> dict[str, Tensor]:
        step = make_step({"loss": "contrastive"})
        step.zero_grad(set_to_none=True)
        autocast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
        if size is None:
            with autocast():
                outputs = step.represent(images())
            step.loss(outputs, LABELS).backward()
        else:
            GradientCache(step, Tensor.backward, CPU, size, autocast)(images(), LABELS)
        return {name: p.grad for name, p in step.named_parameters() if p.grad is not None}

    whole_batch, parts = gradients(None), gradients(5)
    for name, gradient in whole_batch.items():
        assert float((parts[name] - gradient).norm()) <= 0.05 * float(gradient.norm()) + 1e-3, name


@settings(max_examples=20)
@given(count=st.integers(1, 9), size=st.integers(1, 10))
def test_parts_make_the_whole(count, size):
    tensor = torch.arange(count * 2.0).view(count, 2)
    deferred = Deferred(tensor, lambda samples, place: samples + place * 0)
    for inputs in (tensor, {"a": tensor, "b": tensor + 1}, deferred):
        parts = [part(inputs, first, first + size) for first in range(0, count, size)]
        assert len(parts) == math.ceil(count / size)
        if isinstance(inputs, dict):
            assert all(torch.equal(torch.cat([one[name] for one in parts]), inputs[name]) for name in inputs)
        else:
            assert torch.equal(torch.cat(parts), whole(inputs))


EPISODES = "training.episodic={way: 4, shot: 1, query: 2, validation_way: 2, validation_episodes: 20, record_every: 2}"


@pytest.mark.parametrize(
    ("base", "more"),
    [("multi-similarity", ["data.flip=true", "data.jitter=0.3", "training.ema=0.9"]), ("protonet-s", [EPISODES])],
)
def test_a_run_is_that_of_whole_batches(base, more, patterns, tiny, tmp_path):
    """With augmentation drawn by the place in the batch, and with what is recorded of episodes."""
    rows = []
    for cache in (None, 5):
        sets = [*tiny, *more, "model.freeze=all", "training.max_steps=6", f"training.gradient_cache={cache or 'null'}"]
        run = Run(tmp_path / f"run{cache}")
        train(patterns, load_recipe(base, sets), run, source="p", cache_directory=tmp_path, progress=False)
        rows.append(run.history())
    for one, two in zip(*rows, strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("given", ["0", "many"])
def test_a_part_is_a_number_of_items(given):
    with pytest.raises(RecipeError, match=r"training\.gradient_cache"):
        load_recipe("contrastive", [f"training.gradient_cache={given}"])


def test_adversarial_training_is_refused():
    with pytest.raises(RecipeError, match=r"training\.gradient_cache"):
        load_recipe("normface", ["training.schedule=adversarial", "training.gradient_cache=8"])


# ---------------------------------------------------------------- accumulation


@pytest.mark.parametrize("cache", ["null", "5"])
def test_accumulated_gradients_are_the_mean_of_those_of_the_batches(cache, patterns, tiny, tmp_path, monkeypatch):
    """One step of plain sgd, against a step by hand on the batches it saw."""
    sgd = ["training.optimizer=sgd", "training.momentum=0", "training.weight_decay=0", "training.lr=0.1"]
    more = ["training.gradient_accumulation=3", "training.max_steps=1", f"training.gradient_cache={cache}"]
    build_embedder(load_recipe("contrastive", tiny).model, seed=3).save(tmp_path / "pretrained")
    frozen = ["model.frozen_batch_norm=true", f"model.weights={tmp_path / 'pretrained'}"]
    recipe = load_recipe("contrastive", [*tiny, *sgd, *more, *frozen, "model.head_start=random"])
    seen, add = [], Loop._add

    def recorded(self, inputs, labels):
        seen.append((whole(inputs), labels))
        add(self, inputs, labels)

    monkeypatch.setattr(Loop, "_add", recorded)
    run = Run(tmp_path / "run")
    train(patterns, recipe, run, source="p", cache_directory=tmp_path, progress=False)
    assert len(seen) == 3
    assert not torch.equal(seen[0][0], seen[1][0])
    embedder = build_embedder(recipe.model, recipe.training.seed).train()
    objective = make_objective(recipe.objective, dimension=16, classes=5, space=embedder.space)
    losses = [objective(embedder(inputs), labels) for inputs, labels in seen]
    torch.stack(losses).mean().backward()
    last = load_state(run.state_file)[0]["embedder"]
    for name, parameter in embedder.named_parameters():
        torch.testing.assert_close(last[name], parameter.detach() - 0.1 * parameter.grad, rtol=1e-4, atol=1e-6)
    (logged,) = [row["loss"] for row in run.history() if "loss" in row]
    assert logged == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def test_accumulated_batches_are_those_that_single_steps_would_take(patterns, tiny, tmp_path, monkeypatch):
    seen, add = {}, Loop._add
    for count in (1, 2):
        seen[count] = []

        def recorded(self, inputs, labels, to=seen[count]):
            to.append((whole(inputs), labels))
            add(self, inputs, labels)

        monkeypatch.setattr(Loop, "_add", recorded)
        sets = [f"training.gradient_accumulation={count}", f"training.max_steps={4 // count}"]
        recipe = load_recipe("contrastive", [*tiny, *sets])
        train(patterns, recipe, Run(tmp_path / str(count)), source="p", cache_directory=tmp_path, progress=False)
    for (ours, our_labels), (theirs, their_labels) in zip(seen[1], seen[2], strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(our_labels, their_labels)
