"""Cross-batch memory against a queue written as plain Python."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from nearkin.objectives import ObjectiveSection, make_objective
from nearkin.recipe import CrossBatchMemorySection
from nearkin.training.strategies import CrossBatchMemory

BATCH, DIMENSION, CLASSES = 6, 4, 3


def make(batches=3, warmup=2, loss="contrastive"):
    objective = make_objective(ObjectiveSection(loss=loss), dimension=DIMENSION, classes=CLASSES)
    section = CrossBatchMemorySection(batches=batches, warmup_steps=warmup)
    return CrossBatchMemory(section, BATCH, DIMENSION), objective


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, DIMENSION, generator=generator), torch.arange(BATCH) % CLASSES


@pytest.mark.parametrize("loss", ["contrastive", "contrastive-cosine", "triplet"])
@pytest.mark.parametrize("warmup", [0, 2])
def test_loss_is_that_of_the_batch_plus_that_to_the_last_batches(loss, warmup):
    schedule, objective = make(warmup=warmup, loss=loss)
    queue: deque = deque(maxlen=3)
    for step in range(9):
        embeddings, labels = batch(step)
        expected = objective(embeddings, labels)
        if step >= warmup and queue:
            past, past_labels = (torch.cat(list(part)) for part in zip(*queue, strict=True))
            expected = expected + objective.against(embeddings, labels, past, past_labels)
        assert schedule(objective, embeddings, labels).item() == pytest.approx(expected.item(), rel=1e-5)
        queue.append((embeddings, labels))


def test_gradient_reaches_the_batch_and_not_the_memory():
    schedule, objective = make(warmup=0)
    schedule(objective, *batch(0))
    embeddings, labels = batch(1)
    embeddings.requires_grad_(True)
    loss = schedule(objective, embeddings, labels)
    schedule(objective, *batch(2))  # the queue moves on before the backward pass
    loss.backward()
    assert embeddings.grad.abs().sum() > 0
    assert not schedule.memory.requires_grad


@pytest.mark.parametrize("stop", [1, 2, 4, 5])
def test_restored_in_the_middle_it_goes_on_as_if_nothing_had_happened(stop):
    whole, objective = make()
    for step in range(stop):
        whole(objective, *batch(step))
    restored, _ = make()
    restored.restore({name: value.clone() for name, value in whole.tensors().items()}, whole.facts())
    for step in range(stop, stop + 5):
        assert torch.equal(restored(objective, *batch(step)), whole(objective, *batch(step)))
    assert torch.equal(restored.memory, whole.memory)


@pytest.mark.parametrize("size", [BATCH + 2, 2 * BATCH - 1, 3 * BATCH + 5])
def test_a_memory_that_batches_do_not_fill_exactly_holds_the_last_items_once(size):
    _, objective = make()
    schedule = CrossBatchMemory(CrossBatchMemorySection(batches=1, warmup_steps=0), size, DIMENSION)
    queue: deque = deque(maxlen=size)
    for step in range(9):
        embeddings, labels = batch(step)
        schedule(objective, embeddings, labels)
        queue.extend(zip(embeddings.tolist(), labels.tolist(), strict=True))
        held = list(zip(schedule.memory.tolist(), schedule.memory_labels.tolist(), strict=True))
        assert sorted(held[: len(queue)]) == sorted(queue)
