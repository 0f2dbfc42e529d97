"""What a validation measures: retrieval, and accuracy: of episodes of unseen classes, or of a loss that knows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.data.episodes import EpisodeSampler
from nearkin.errors import DataError
from nearkin.metrics import mean_class_radius
from nearkin.metrics.fewshot import fewshot_accuracy
from nearkin.metrics.named import named_metrics
from nearkin.recipe import EpisodicSection, Recipe
from nearkin.spaces import Representation, Space

_USUAL = ("MAP@R", "P@1")


@dataclass(frozen=True)
class Validation:
    """Values of the validation classes by the weights of the moment, called without arguments.

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
        asked = dict.fromkeys((*_USUAL, *training.validation_metrics))
        values |= named_metrics(embeddings, self.labels, list(asked), space=self.space, knn=audit.knn, seed=audit.seed)
        if training.schedule == "chance-constrained":
            values["covering_radius"] = mean_class_radius(embeddings, self.labels)
        return values

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
            f"Each class has one validation item, so that none has another to find: raise data.val_items (it is "
            f"{recipe.data.val_items:g}), or choose a loss that classifies, such as 'normface'."
        )
    if recipe.training.schedule != "episodic" or not len(labels):
        return
    section = recipe.training.episodic
    try:
        EpisodeSampler(labels, _way(section), section.shot, section.query)
    except DataError as error:
        raise DataError(
            f"The validation classes cannot be asked as training.episodic says: {str(error).rstrip('.')}, or set "
            "training.episodic.validation_way or data.val_classes."
        ) from error


def _has_pairs(labels: np.ndarray) -> bool:
    """Whether any class has two items."""
    return len(np.unique(labels)) < len(labels)


def _way(section: EpisodicSection) -> int:
    return section.way if section.validation_way is None else section.validation_way
