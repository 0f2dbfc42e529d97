"""What a validation measures: retrieval, the accuracy of episodes, or that of a loss that knows the classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.data.samplers import EpisodeSampler
from nearkin.errors import DataError, RecipeError
from nearkin.metrics import mean_class_radius, pair_violations, retrieval_metrics
from nearkin.metrics.fewshot import fewshot_accuracy
from nearkin.metrics.named import named_metrics
from nearkin.metrics.pair_constraints import BOUND, VIOLATION
from nearkin.models import Embedder, LearnedSpace
from nearkin.models.items import ItemLoader, open_items, stacked
from nearkin.objectives.section import pair_margins
from nearkin.recipe import EpisodicSection, Recipe
from nearkin.spaces import Representation, Space, Sphere

_MOST_BYTES = 512 * 2**20
_BATCH, _WORKERS = 32, 2


@dataclass(eq=False)
class ValidationInputs:
    """Plain views of a data set, kept in memory after the first use if they are not too large for it.

    Args:
        dataset: the validation items.
        spec: what the model takes.
        most: bytes that may be kept; larger data is decoded again each time.
    """

    dataset: Dataset
    spec: InputSpec
    most: int = _MOST_BYTES

    def __post_init__(self) -> None:
        self._items = open_items(self.dataset, self.spec)
        self._samples: Tensor | None = None
        self._tried = False

    def encode(self, embedder: Embedder) -> np.ndarray:
        """Points of the space (n, d), the same bits that `embedder.encode` gives for the data set.

        Args:
            embedder: a model that takes what `spec` says, with its current weights.
        """
        if not self._tried:
            self._tried = True  # what is too large once is so always
            self._samples = self._decoded() if self._fits() else None
        return embedder.encode(self.dataset if self._samples is None else self._samples, progress=False)

    def _fits(self) -> bool:
        if not len(self.dataset):
            return False
        # All views of images have one size; of recordings the first stands for the others.
        return len(self.dataset) * ItemLoader(self.spec).of_dataset(self.dataset, 0).nbytes <= self.most

    def _decoded(self) -> Tensor:
        """All samples (n, C, H, W), uint8 or log-mel values, the channels innermost in memory as batches have them."""
        if self.spec.kind == "audio":  # of different lengths
            return stacked([one for batch in self._items.batches(1, _WORKERS) for one in batch])
        samples, done = torch.empty(0), 0
        for batch in self._items.batches(_BATCH, _WORKERS):
            inner = batch.movedim(1, -1)
            if not done:
                samples = inner.new_empty(len(self.dataset), *inner.shape[1:])
            samples[done : done + len(inner)] = inner
            done += len(inner)
        return samples.movedim(-1, 1)


_USUAL = ("MAP@R", "P@1")
_PAIRS = 20_000
"""Of each kind, whose violations are counted: a share of them is off by a third of a point."""


def compared_scores(embeddings: np.ndarray, labels: np.ndarray, space: LearnedSpace) -> dict[str, Any]:
    """MAP@R of items (n, d) with n labels by each way to compare, for a model's card; which is best, first of equals.

    The cosine comes first: it is the simpler one, and has a graph index.
    """
    ways: dict[str, Space] = {"cosine": Sphere(), "sim": LearnedSpace(space.base, space.network)}
    ways["cosine+sim"] = LearnedSpace(space.base, space.network, "cosine+sim")
    found = {
        name: retrieval_metrics(embeddings, labels, metrics=["MAP@R"], space=way, per_query=False).values["MAP@R"]
        for name, way in ways.items()
    }
    return {"MAP@R": found, "best": max(found, key=lambda name: found[name]), "items": len(labels)}


@dataclass(frozen=True)
class Validation:
    """Values of the validation classes by the current weights, called without arguments.

    Args:
        encode: gives the embeddings (n, d) of the validation items.
        labels: their n labels.
        recipe: says which values.
        space: where embeddings are compared.
        representation: what stands for a class in episodes.
        classify: gives class scores (n, C) of embeddings (n, d), where validation is on classes that are trained on.
        class_names: of these C classes.
    """

    encode: Callable[[], np.ndarray]
    labels: np.ndarray
    recipe: Recipe
    space: Space
    representation: Representation = "mean"
    classify: Callable[[Tensor], Tensor] | None = None
    class_names: tuple[str, ...] = ()

    def __call__(self) -> dict[str, float]:
        """Every value by its name; raises FloatingPointError for embeddings that are not finite."""
        embeddings = self.encode()
        if not np.isfinite(embeddings).all():
            raise FloatingPointError
        training, audit = self.recipe.training, self.recipe.audit
        values = {"accuracy": self._accuracy(embeddings)} if training.schedule == "episodic" else {}
        if self.classify is not None:
            values["accuracy"] = self._classified(embeddings, self.classify)
            if not _has_pairs(self.labels):
                return values
        if training.validation_metrics:
            names = list(dict.fromkeys((*_USUAL, *training.validation_metrics)))
            values |= named_metrics(embeddings, self.labels, names, space=self.space, knn=audit.knn, seed=audit.seed)
        else:
            values |= retrieval_metrics(
                embeddings, self.labels, metrics=_USUAL, space=self.space, per_query=False
            ).values
        if training.schedule == "chance-constrained":
            values["covering_radius"] = mean_class_radius(embeddings, self.labels)
            values |= self._violations(embeddings)
        return values

    def _violations(self, embeddings: np.ndarray) -> dict[str, float]:
        """How often the same sample of pairs is violated, and the bound on it; nothing where no margins say when."""
        audit = self.recipe.audit
        margins = audit.pair_margins or pair_margins(self.recipe.objective, self.space)
        if margins is None or not 0 <= margins[0] < margins[1] or len(np.unique(self.labels)) < 2:
            return {}
        found = pair_violations(
            embeddings,
            self.labels,
            pos_margin=margins[0],
            neg_margin=margins[1],
            space=self.space,
            pairs=_PAIRS,
            seed=audit.seed,
        ).values
        return {name.replace(" ", "_"): found[name] for name in (VIOLATION, BOUND)}

    @torch.no_grad()
    def _classified(self, embeddings: np.ndarray, classify: Callable[[Tensor], Tensor]) -> float:
        """Share of the items whose class has the highest score."""
        chosen = classify(torch.from_numpy(embeddings)).argmax(dim=1).cpu().numpy()
        return float((np.array(self.class_names, dtype=object)[chosen] == self.labels).mean())

    def _accuracy(self, embeddings: np.ndarray) -> float:
        """Of the same episodes in every validation."""
        section = self.recipe.training.episodic
        return fewshot_accuracy(
            embeddings,
            self.labels,
            way=_way(section),
            shot=section.shot,
            query=section.query,
            episodes=section.validation_episodes,
            representation=self.representation,
            space=self.space,
            seed=self.recipe.training.seed,
        ).accuracy


def check_validation(recipe: Recipe, labels: np.ndarray, classified: bool = False) -> None:
    """Raise DataError when validation items with these labels do not offer what the recipe measures on them.

    Args:
        recipe: says what is measured.
        labels: of the validation items, (n,).
        classified: whether the loss can name them, so that nothing need be retrieved.
    """
    if len(labels) and recipe.data.classes_are_seen and not classified and not _has_pairs(labels):
        raise DataError(
            f"Each class has only one validation item, so there is nothing to retrieve: raise data.val_items (it is "
            f"{recipe.data.val_items:g}), or choose a loss that classifies, such as 'normface'."
        )
    if len(labels):
        _check_selection(recipe, classified, _has_pairs(labels))
    if recipe.training.schedule != "episodic" or not len(labels):
        return
    section = recipe.training.episodic
    try:
        EpisodeSampler(labels, _way(section), section.shot, section.query)
    except DataError as error:
        raise DataError(
            f"The validation classes are too few or too small for the episodes of training.episodic: "
            f"{str(error).rstrip('.')}, or set "
            "training.episodic.validation_way to fewer classes or data.val_classes to a larger share, such as 0.3."
        ) from error


def _check_selection(recipe: Recipe, classified: bool, pairs: bool) -> None:
    """Refuse to choose the weights by what validations do not measure."""
    select = recipe.training.select
    if select == "accuracy" and not classified and recipe.training.schedule != "episodic":
        raise RecipeError(
            "training.select is accuracy, which is measured with training.schedule=episodic, or with data.split=items "
            "or domains and a loss that classifies: set it to MAP@R or P@1."
        )
    if select not in (None, "accuracy") and not pairs:
        raise DataError(
            f"Each class has only one validation item, so there is nothing to retrieve and no {select}: set "
            "training.select to accuracy, or raise data.val_items."
        )


def _has_pairs(labels: np.ndarray) -> bool:
    """Whether any class has two items."""
    return len(np.unique(labels)) < len(labels)


def _way(section: EpisodicSection) -> int:
    return section.way if section.validation_way is None else section.validation_way
