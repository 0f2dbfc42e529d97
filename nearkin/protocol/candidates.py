"""What is compared: recipes under names, the cells each is measured in, and how the data is divided for all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from nearkin.data.dataset import Dataset
from nearkin.data.hierarchy import load_hierarchy
from nearkin.data.section import DataSection
from nearkin.data.splits import FoldOrder, Split, class_folds, resolve_split
from nearkin.errors import DataError, NearkinError, RecipeError, UnknownNameError, suggestion
from nearkin.models import Embedder
from nearkin.recipe import Recipe
from nearkin.recipe.recipe import ADDED_LATER
from nearkin.training.batches import BatchSampler, make_sampler
from nearkin.training.fit import check_fine_tuning, make_learner
from nearkin.training.validation import check_validation

CellKind = Literal["separate", "concatenated", "untrained"]

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
    kind: CellKind
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


_IDLE = {"data": ("val_classes", "workers"), "training": ("seed", "log_every", "validation_metrics")}
"""Keys that decide nothing about a model here: the protocol has seeds and folds, the others are not about weights."""

Against = str | Mapping[str, str] | None
"""One baseline for all, or candidate to baseline; None: the first candidate of the book."""


@dataclass(frozen=True)
class Candidate:
    """A recipe that takes part, under a name of its own.

    Args:
        name: what tables call it, such as "contrastive-ccp, 4 proxies".
        recipe: how its models are trained; its `training.seed` and `data.val_classes` are those of the protocol.
    """

    name: str
    recipe: Recipe

    def content(self) -> dict[str, Any]:
        """All of the recipe that decides what its models are, as JSON can hold it."""
        return _content(self.recipe)

    def digest(self) -> str:
        """A short hash of the content."""
        return hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()[:16]

    def seeded(self, seed: int) -> Recipe:
        """The recipe with another seed."""
        training = self.recipe.training.model_copy(update={"seed": seed})
        return self.recipe.model_copy(update={"training": training})

    def is_recipe(self, other: Recipe) -> bool:
        """Whether a recipe decides the same as this one's, its seed aside."""
        return _content(other) == self.content()

    def difference(self, stored: Mapping[str, Any]) -> str:
        """The first thing in which stored content is another: `training.lr was 0.1 and is 0.2`; empty if none is."""
        try:
            known = _content(Recipe.model_validate(stored))  # keys that came later have their usual values
        except (ValidationError, NearkinError):
            known = _counting(dict(stored))
        before, now = dict(_flat(known)), dict(_flat(self.content()))
        for key in [*before, *now]:
            if before.get(key) != now.get(key):
                return f"{key} was {json.dumps(before.get(key))} and is {json.dumps(now.get(key))}"
        return ""


def check_names(candidates: Sequence[Candidate]) -> None:
    """Refuse no candidates, a name that is taken, and names that tables or comparisons cannot use."""
    if not candidates:
        raise RecipeError("There is no recipe to benchmark: name at least one.")
    seen: set[str] = set()
    for name in (candidate.name for candidate in candidates):
        if name in seen:
            raise RecipeError(f"The recipe '{name}' is named twice: name each once, or give variations other names.")
        if not name.strip() or not name.isprintable() or name in (UNTRAINED, UNTRAINED_TITLE):
            raise RecipeError(f"A recipe cannot be called {name!r} here: give it another name in one printable line.")
        seen.add(name)


def check_trainable(candidate: Candidate, dataset: Dataset, splits: Iterable[Split]) -> list[str]:
    """Refuse, before anything starts, a recipe that could not be trained on the data; a note if it knows test classes.

    Args:
        candidate: the recipe.
        dataset: all the data.
        splits: the divisions of its models.
    """
    recipe, name = candidate.recipe, candidate.name
    known: set[str] = set()
    for split in splits:
        try:
            check_fine_tuning(recipe)
            embedder, _ = embedder_and_sampler(recipe, dataset.select(split.train))
            check_validation(recipe, dataset.labels[split.val])
        except (DataError, RecipeError) as error:
            raise type(error)(f"The recipe '{name}' cannot be benchmarked: {error}") from error
        if not any(parameter.requires_grad for parameter in embedder.parameters()):
            raise RecipeError(
                f"The recipe '{name}' has no weights to train: leave it out; untrained features are measured anyway."
            )
        known |= set((embedder.card.started_from or {}).get("classes", [])) & set(map(str, dataset.labels[split.test]))
    if not known:
        return []
    count = f"{len(known)} test {'class' if len(known) == 1 else 'classes'}"
    return [f"{name} started from a model that was trained on {count} of this table, so its numbers are optimistic."]


def embedder_and_sampler(recipe: Recipe, items: Dataset) -> tuple[Embedder, BatchSampler]:
    """What would learn from items, and which of them a step would take; refuse a recipe that could not be trained."""
    hierarchy = None if recipe.data.hierarchy is None else load_hierarchy(recipe.data.hierarchy)
    names = items.classes
    learner = make_learner(recipe, items.kind, len(names), validated=True, class_names=names, hierarchy=hierarchy)
    return learner.embedder, make_sampler(recipe, items.class_ids(), learner.batch_classes)


def comparisons(against: Against, names: Sequence[str]) -> dict[str, str]:
    """Candidate to the one it is compared with.

    Args:
        against: what was asked for.
        names: all candidates.
    """
    if against is None:
        against = names[0]
    if isinstance(against, str):
        _check_known(against, names)
        return {name: against for name in names if name != against}
    for name, base in against.items():
        _check_known(base, names)
        if name == UNTRAINED or name not in names:
            raise UnknownNameError(f"There is no recipe '{name}' here to compare.{suggestion(name, names)}")
        if name == base:
            raise RecipeError(f"The recipe '{name}' is to be compared with itself: name another one as its baseline.")
    return dict(against)


def _check_known(base: str, names: Sequence[str]) -> None:
    if base not in (*names, UNTRAINED):
        raise UnknownNameError(
            f"There is no recipe '{base}' here to compare against.{suggestion(base, [*names, UNTRAINED])}"
        )


def _content(recipe: Recipe) -> dict[str, Any]:
    return _counting(recipe.model_dump(mode="json", exclude={"name", "audit"}))


def _counting(tree: dict[str, Any]) -> dict[str, Any]:
    """A recipe's content without the keys that do not matter; older books have some of them."""
    counting = dict(tree)
    for place, later in ADDED_LATER.items():
        section, _, within = place.partition(".")
        if isinstance(given := counting.get(section), Mapping):
            inner = given.get(within) if within else given
            if isinstance(inner, Mapping):
                kept = {key: value for key, value in inner.items() if key not in later or value != later[key]}
                kept = {key: value for key, value in kept.items() if key not in _IDLE.get(place, ())}
                counting[section] = {**given, within: kept} if within else kept
    return counting


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


ProtocolName = Literal["fair", "conventional"]

_SEED = 0
"""Of the test classes, where they are drawn, and of the folds: the same for every recipe and every seed."""


@dataclass(frozen=True, eq=False)
class DataDivision:
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


def protocol_named(name: str) -> ProtocolName:
    """The protocol of a name."""
    return _named(name, "protocol", get_args(ProtocolName))


def fold_order_named(name: str) -> FoldOrder:
    """The order of folds of a name."""
    return _named(name, "fold order", get_args(FoldOrder))


def _named(name: str, what: str, known: Sequence[Any]) -> Any:
    if name not in known:
        raise UnknownNameError(f"There is no {what} '{name}'.{suggestion(name, known)}")
    return name


def divide(
    dataset: Dataset, section: DataSection, protocol: ProtocolName, folds: int, fold_order: FoldOrder = "random"
) -> DataDivision:
    """Divide a data set as a recipe's data section says, without validation classes.

    The fair protocol divides the training classes into folds: model i learns from all the others and chooses its
    weights on fold i. The conventional one learns from all training classes and chooses on the test classes.

    Args:
        dataset: all the data.
        section: says which classes are held out.
        protocol: "fair" or "conventional".
        folds: how many folds the fair protocol makes.
        fold_order: whether these cut the sorted list of classes in order, or are drawn.
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
        made = class_folds(labels[pool], folds, _SEED, fold_order)
        splits = [Split(pool[split.train], pool[split.val], plain.test) for split in made]
    else:
        splits = [Split(pool, plain.test, plain.test)]
    chosen_by = [sorted(set(map(str, labels[split.val]))) for split in splits]
    return DataDivision(splits, chosen_by, sorted(set(map(str, labels[plain.test]))))


def common_division(
    dataset: Dataset,
    candidates: Sequence[Candidate],
    protocol: ProtocolName,
    folds: int,
    fold_order: FoldOrder = "random",
) -> DataDivision:
    """The division that all candidates ask for; refuse candidates that ask for different ones."""
    divisions = [divide(dataset, candidate.recipe.data, protocol, folds, fold_order) for candidate in candidates]
    first = divisions[0]
    for candidate, division in zip(candidates, divisions, strict=True):
        if (division.test_classes, division.folds) != (first.test_classes, first.folds):
            raise RecipeError(
                f"The recipes '{candidates[0].name}' and '{candidate.name}' hold out different classes: give all "
                "recipes the same data.split and data.test_classes."
            )
    return first
