"""What a validation measures: the retrieval of unseen classes, and the accuracy of episodes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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
    """

    encode: Callable[[], np.ndarray]
    labels: np.ndarray
    recipe: Recipe
    space: Space
    representation: Representation = "mean"

    def __call__(self) -> dict[str, float]:
        """Every value by its name; raises FloatingPointError for embeddings that are not finite."""
        embeddings = self.encode()
        if not np.isfinite(embeddings).all():
            raise FloatingPointError
        training, audit = self.recipe.training, self.recipe.audit
        values = {"accuracy": self._accuracy(embeddings)} if training.schedule == "episodic" else {}
        asked = dict.fromkeys((*_USUAL, *training.validation_metrics))
        values |= named_metrics(embeddings, self.labels, list(asked), space=self.space, knn=audit.knn, seed=audit.seed)
        if training.schedule == "chance-constrained":
            values["covering_radius"] = mean_class_radius(embeddings, self.labels)
        return values

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


def check_validation(recipe: Recipe, labels: np.ndarray) -> None:
    """Raise DataError when validation items with these labels do not offer the episodes that the recipe asks for."""
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


def _way(section: EpisodicSection) -> int:
    return section.way if section.validation_way is None else section.validation_way
