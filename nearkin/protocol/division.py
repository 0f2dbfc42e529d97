"""Which classes a model of the protocol learns from, which choose its weights, and which judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.section import DataSection
from nearkin.data.splits import Split, class_folds, resolve_split
from nearkin.errors import DataError, RecipeError, UnknownNameError, suggestion
from nearkin.protocol.candidates import Candidate

Protocol = Literal["fair", "conventional"]

_SEED = 0
"""Of the test classes, where they are drawn, and of the folds: the same for every recipe and every seed."""


@dataclass(frozen=True, eq=False)
class Division:
    """How the data is divided, for all models of a book.

    Args:
        splits: one for each model of a seed; all have the same test items.
        folds: the classes that choose the weights of each model.
        test_classes: the classes that judge.
    """

    splits: list[Split]
    folds: list[list[str]]
    test_classes: list[str]

    @property
    def test(self) -> np.ndarray:
        """Positions of the items that judge, ascending."""
        return self.splits[0].test


def protocol_named(name: str) -> Protocol:
    """The protocol of a name."""
    for known in get_args(Protocol):
        if name == known:
            return known
    raise UnknownNameError(f"There is no protocol '{name}'.{suggestion(name, get_args(Protocol))}")


def divide(dataset: Dataset, section: DataSection, protocol: Protocol, folds: int) -> Division:
    """Divide a data set as a recipe's data section says, its validation classes aside.

    The fair protocol divides the training classes into folds: model i learns from all the others and chooses its
    weights on fold i. The conventional one learns from all training classes and chooses on the test classes.

    Args:
        dataset: all the data.
        section: says which classes are held out.
        protocol: "fair" or "conventional".
        folds: how many folds the fair protocol makes.
    """
    if section.classes_are_seen:
        raise RecipeError(
            f"The protocols judge by classes that were not trained on, and data.split '{section.split}' trains on all: "
            "set data.split to halves, fraction or column."
        )
    labels = dataset.labels
    plain = resolve_split(dataset.manifest, section.model_copy(update={"val_classes": 0.0}), _SEED)
    if not len(plain.test):
        raise DataError(
            "The data has no test classes to judge by: set data.test_classes, or data.split to halves or fraction."
        )
    pool = np.sort(np.concatenate([plain.train, plain.val]))
    if protocol == "fair":
        made = class_folds(labels[pool], folds, _SEED)
        splits = [Split(pool[split.train], pool[split.val], plain.test) for split in made]
    else:
        splits = [Split(pool, plain.test, plain.test)]
    chosen_by = [sorted(set(map(str, labels[split.val]))) for split in splits]
    return Division(splits, chosen_by, sorted(set(map(str, labels[plain.test]))))


def common_division(dataset: Dataset, candidates: Sequence[Candidate], protocol: Protocol, folds: int) -> Division:
    """The division that all candidates ask for; refuse candidates that ask for different ones."""
    divisions = [divide(dataset, candidate.recipe.data, protocol, folds) for candidate in candidates]
    first = divisions[0]
    for candidate, division in zip(candidates, divisions, strict=True):
        if (division.test_classes, division.folds) != (first.test_classes, first.folds):
            raise RecipeError(
                f"The recipes '{candidates[0].name}' and '{candidate.name}' hold out different classes: give all "
                "recipes the same data.split and data.test_classes."
            )
    return first
