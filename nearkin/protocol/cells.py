"""The cells of a book: what is measured once and written down in one line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["separate", "concatenated", "untrained"]

UNTRAINED = "untrained"
"""How a comparison calls the features that nothing was trained for."""

UNTRAINED_TITLE = "untrained features"
"""How people call them."""

_LONGEST = 60
"""Letters of a recipe's name in the names of files."""


@dataclass(frozen=True)
class Cell:
    """One measurement on the test classes.

    Args:
        recipe: name of the candidate.
        kind: "separate": one model; "concatenated": the models of all folds together; "untrained": no model.
        seed: of the training, or None.
        fold: the fold that chooses the model's weights, counted from 1; None where there is none.
    """

    recipe: str
    kind: Kind
    seed: int | None = None
    fold: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """The cell that a line of the ledger is about."""
        return cls(row["recipe"], row["kind"], row["seed"], row["fold"])

    @property
    def title(self) -> str:
        """For people."""
        if self.kind == "untrained":
            return UNTRAINED_TITLE
        fold = "" if self.fold is None else f", fold {self.fold}"
        together = ", folds concatenated" if self.kind == "concatenated" else ""
        return f"{self.recipe}{fold}{together}, seed {self.seed}"

    @property
    def file(self) -> str:
        """A name for files and folders; different cells have different ones."""
        if self.kind == "untrained":
            return UNTRAINED
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", self.recipe).strip("-.")
        if plain != self.recipe or len(plain) > _LONGEST:
            plain = f"{plain[:_LONGEST]}-{hashlib.sha256(self.recipe.encode()).hexdigest()[:8]}"
        part = "all" if self.kind == "concatenated" else "one" if self.fold is None else f"fold{self.fold}"
        return f"{plain}-{part}-seed{self.seed}"


UNTRAINED_CELL = Cell(UNTRAINED, "untrained")


def cells_of(recipe: str, seed: int, splits: int) -> list[Cell]:
    """The cells of one recipe and seed in the order in which they are done.

    Args:
        recipe: name of the candidate.
        seed: of the training.
        splits: models of a seed; the folds of the fair protocol, or 1.
    """
    if splits == 1:
        return [Cell(recipe, "separate", seed)]
    folds = [Cell(recipe, "separate", seed, fold) for fold in range(1, splits + 1)]
    return [*folds, Cell(recipe, "concatenated", seed)]
