"""What is compared: recipes under names, and what makes two recipes the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nearkin.data.dataset import Dataset
from nearkin.data.hierarchy_files import load_hierarchy
from nearkin.data.splits import Split
from nearkin.errors import DataError, NearkinError, RecipeError, UnknownNameError, suggestion
from nearkin.protocol.cells import UNTRAINED, UNTRAINED_TITLE
from nearkin.recipe import AdversarialSection, Recipe
from nearkin.training.fit import make_learner, make_sampler
from nearkin.training.validation import check_validation

_IDLE = {"data": ("val_classes", "workers"), "training": ("seed", "log_every", "validation_metrics")}
"""Keys that decide nothing about a model here: the protocol has seeds and folds, the others are not about weights."""

_LATER: dict[str, dict[str, Any]] = {
    "data": {"test_domains": []},
    "model": {"similarity": None, "head_start": "random"},
    "objective": {"proxy_start": "random", "switch": 0.0, "prefixes": [], "prefix_weights": None},
    "training": {
        "adversarial": AdversarialSection().model_dump(mode="json"),
        "full_rate_classes": 80,
        "full_rate_items": 3000,
        "gradient_cache": None,
        "sync_batch_norm": True,
    },
}
"""Keys that recipes of old did not have, with the values that leave all as it was: a digest does not heed these."""

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


def check_trainable(candidate: Candidate, dataset: Dataset, splits: Iterable[Split]) -> None:
    """Refuse, before anything starts, a recipe that could not be trained on the data.

    Args:
        candidate: the recipe.
        dataset: all the data.
        splits: the divisions of its models.
    """
    recipe, name = candidate.recipe, candidate.name
    for split in splits:
        try:
            hierarchy = None if recipe.data.hierarchy is None else load_hierarchy(recipe.data.hierarchy)
            part = dataset.select(split.train)
            embedder, _, batch_classes = make_learner(
                recipe,
                dataset.kind,
                len(part.classes),
                validated=True,
                class_names=part.classes,
                hierarchy=hierarchy,
            )
            make_sampler(recipe, part.class_ids(), batch_classes)
            check_validation(recipe, dataset.labels[split.val])
        except (DataError, RecipeError) as error:
            raise type(error)(f"The recipe '{name}' cannot be benchmarked: {error}") from error
        if not any(parameter.requires_grad for parameter in embedder.parameters()):
            raise RecipeError(
                f"The recipe '{name}' has no weights to train: leave it out, for untrained features are measured "
                "anyway."
            )


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
    """A recipe's content without the keys that decide nothing; books of old have some of them."""
    counting = dict(tree)
    for section, idle in _IDLE.items():
        if isinstance(counting.get(section), Mapping):
            counting[section] = {key: value for key, value in counting[section].items() if key not in idle}
    for section, later in _LATER.items():
        if isinstance(counting.get(section), Mapping):
            kept = {key: value for key, value in counting[section].items() if key not in later or value != later[key]}
            counting[section] = kept
    return counting


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
