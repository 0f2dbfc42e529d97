"""How long the models of a benchmark may take, going by a few steps whose results are thrown away."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from nearkin.data.augment import BatchAugment, transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.hierarchy import load_hierarchy
from nearkin.data.splits import Split
from nearkin.models.embedder import to_device
from nearkin.models.speed import channels_last, tune_allocator
from nearkin.recipe import Recipe
from nearkin.training.batches import DecodedBatches, whole
from nearkin.training.fit import make_learner, make_sampler
from nearkin.training.validation import ValidationInputs

_STEPS = 3
"""Steps that are taken; the first of them warms up."""
_ITEMS = 64
"""Validation items that are embedded."""


@dataclass(frozen=True)
class Estimate:
    """What one model may take.

    Args:
        step: seconds of a training step.
        validation: seconds of a validation.
        steps: steps at the most.
        validations: validations at the most.
    """

    step: float
    validation: float
    steps: int
    validations: int

    @property
    def seconds(self) -> float:
        """Of the whole model, if nothing stops it earlier."""
        return self.steps * self.step + self.validations * self.validation


def estimate_model(recipe: Recipe, dataset: Dataset, split: Split) -> Estimate | None:
    """Take a few steps as a recipe's training would, and forget them; None where features are cached first.

    The loss itself is left out: next to a network it takes no time.

    Args:
        recipe: the recipe.
        dataset: all the data.
        split: what trains and what validates.
    """
    if recipe.model.cache:
        return None
    items, section = dataset.select(split.train), recipe.training
    hierarchy = None if recipe.data.hierarchy is None else load_hierarchy(recipe.data.hierarchy)
    tune_allocator()
    learner = make_learner(
        recipe, dataset.kind, len(items.classes), validated=True, class_names=items.classes, hierarchy=hierarchy
    )
    gpu = section.accelerator in ("auto", "gpu") and torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    embedder = learner.embedder.to(device)
    channels_last(embedder)
    batches = DecodedBatches(
        items,
        items.class_ids(),
        transform_for(embedder.spec, recipe.data, train=True),
        BatchAugment.for_section(embedder.spec, recipe.data, section.seed),
        transform_for(embedder.spec, recipe.data, train=False),
        make_sampler(recipe, items.class_ids(), learner.batch_classes),
        section.seed,
        workers=0,
    )
    decoding, computing = [], []
    with torch.random.fork_rng():
        embedder.train()
        began = time.perf_counter()
        for inputs, _ in batches.stream(1, _STEPS):
            decoded = time.perf_counter()
            embedder(to_device(whole(inputs), device)).square().mean().backward()
            if gpu:
                torch.cuda.synchronize()
            ended = time.perf_counter()
            decoding.append(decoded - began)
            computing.append(ended - decoded)
            began = ended
        shown = split.val[:_ITEMS]
        began = time.perf_counter()
        ValidationInputs(dataset.select(shown), embedder.spec).encode(embedder)
        validation = (time.perf_counter() - began) * len(split.val) / len(shown)
    step = np.mean(computing[1:]) + np.mean(decoding[1:]) / max(1, recipe.data.workers)
    return Estimate(float(step), validation, section.max_steps, 1 + -(-section.max_steps // section.evaluate_every))
