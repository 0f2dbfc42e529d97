"""What a book is about: its data, its folds, its recipes; and what may be added to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from nearkin.errors import RunError
from nearkin.protocol.candidates import Against, Candidate, comparisons
from nearkin.protocol.cells import Cell, cells_of
from nearkin.protocol.division import Protocol

_DATA = {"name": str, "source": str, "fingerprint": str, "items": int, "notes": list}
_BUDGET = (
    ("training", "max_steps"),
    ("training", "evaluate_every"),
    ("training", "patience"),
    ("data", "classes_per_batch"),
    ("data", "per_class"),
)
"""Settings that give a recipe more or less to work with, whatever its method."""

_RECIPE = {"hash": str, "seeds": int, "content": dict}


@dataclass
class Contents:
    """What `book.json` says.

    Args:
        protocol: "fair" or "conventional".
        data: name, source, fingerprint, number of items and notes of the data.
        classes: the test classes that have queries, in the order of the ledger's lists.
        test_classes: all test classes.
        folds: the classes that choose the weights of each model of a seed.
        recipes: candidate to its content, its hash, and how many seeds are planned.
        against: what the candidates are compared with.
        untrained: what the untrained features are; empty where there are none.
        dropped_queries: queries that were left out because nothing of their class is there to be found.
    """

    protocol: Protocol
    data: dict[str, Any]
    classes: list[str]
    test_classes: list[str]
    folds: list[list[str]]
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    against: Against = None
    untrained: str = ""
    dropped_queries: int = 0

    __pydantic_config__ = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, stored: Any) -> Contents:
        """The contents that JSON holds; ValueError if it does not hold any."""
        made = TypeAdapter(cls).validate_python(stored)
        parts = [(made.data, _DATA), *((recipe, _RECIPE) for recipe in made.recipes.values())]
        if not all(isinstance(given.get(key), kind) for given, kinds in parts for key, kind in kinds.items()):
            raise ValueError("a part of data or recipes is missing or of another type")
        return made

    @property
    def models(self) -> int:
        """Models of a recipe and seed."""
        return len(self.folds)

    def unequal_budgets(self) -> dict[str, list[str]]:
        """What those that are compared differ in besides their method, such as "data.per_class 4 and 1", and who."""
        found: dict[str, list[str]] = {}
        for name, base in self.comparisons.items():
            if base not in self.recipes:
                continue
            ours, theirs = (self.recipes[one]["content"] for one in (name, base))
            pairs = {
                f"{section}.{key}": (_budget(ours, section, key), _budget(theirs, section, key))
                for section, key in _BUDGET
            }
            told = ", ".join(f"{key} {one} and {other}" for key, (one, other) in pairs.items() if one != other)
            if told:
                found.setdefault(told, []).append(f"{name} and {base}")
        return found

    @property
    def comparisons(self) -> dict[str, str]:
        """Candidate to what it is compared with."""
        return comparisons(self.against, list(self.recipes))

    @property
    def selected_on(self) -> str:
        """What chooses the weights of its models."""
        return "validation classes" if self.protocol == "fair" else "test classes"

    def cells(self, names: Sequence[str], seeds: int) -> list[Cell]:
        """All cells of some candidates, in the order in which they are done: every recipe has its turn with a seed."""
        return [cell for seed in range(seeds) for name in names for cell in cells_of(name, seed, self.models)]

    def planned(self) -> list[Cell]:
        """All cells that were ever asked for, the untrained features aside."""
        return [cell for name, recipe in self.recipes.items() for cell in self.cells([name], recipe["seeds"])]


def extended(
    path: Path, stored: Contents | None, new: Contents, candidates: Sequence[Candidate], seeds: int, against: Against
) -> Contents:
    """What a book shall say with some more candidates and seeds; refuse what does not belong into it.

    Args:
        path: the book, for messages.
        stored: what it says; None: it is new.
        new: what a new book would say, without candidates.
        candidates: what is to be benchmarked now.
        seeds: how many seeds are asked for.
        against: what to compare with; None: as before.
    """
    if stored is not None:
        _check_same(path, stored, new)
    contents = replace(stored or new, recipes=dict(stored.recipes if stored else {}))
    contents.dropped_queries = new.dropped_queries  # which books of old do not say
    for candidate in candidates:
        known = contents.recipes.get(candidate.name)
        if known is None:
            fresh = {"hash": candidate.digest(), "seeds": seeds, "content": candidate.content()}
            contents.recipes[candidate.name] = fresh
            continue
        if difference := candidate.difference(known["content"]):
            raise RunError(
                f"{path} has another recipe called '{candidate.name}' ({difference}): rename this one, or choose a "
                "new directory."
            )
        # Hash and content stay: lines of the ledger go by them, and defaults of later versions change nothing here.
        contents.recipes[candidate.name] = {**known, "seeds": max(known["seeds"], seeds)}
    if against is not None:
        contents.against = dict(against) if isinstance(against, Mapping) else against
    comparisons(contents.against, list(contents.recipes))  # tells an unknown name
    return contents


def _check_same(path: Path, stored: Contents, new: Contents) -> None:
    """Refuse other data, another protocol, other folds."""
    before, now = stored.data, new.data
    if before["fingerprint"] != now["fingerprint"]:
        raise RunError(
            f"{path} was made with other data ({before['name'] or before['source']}, {before['items']} items; now "
            f"{now['name'] or now['source']}, {now['items']} items): use the same, or choose a new directory."
        )
    if stored.protocol != new.protocol:
        raise RunError(
            f"{path} follows the {stored.protocol} protocol, not the {new.protocol} one: choose a new directory."
        )
    if stored.test_classes != new.test_classes:
        raise RunError(
            f"{path} holds out other test classes ({len(stored.test_classes)}, now {len(new.test_classes)}): use the "
            "same data.split and data.test_classes, or choose a new directory."
        )
    if stored.classes != new.classes:
        raise RunError(f"The classes in {path / 'book.json'} are not the data's: restore it, or use a new directory.")
    if stored.models != new.models:
        raise RunError(
            f"{path} has {stored.models} folds, not {new.models}: keep to {stored.models}, or choose a new directory."
        )
    if stored.folds != new.folds:
        raise RunError(f"{path} divides the training classes otherwise: use the same data section, or a new directory.")


def _budget(content: Mapping[str, Any], section: str, key: str) -> Any:
    """A setting of a recipe; of batches that are episodes, whose recipe leaves it out, that of the episode."""
    if key in content[section]:
        return content[section][key]
    episode = content["training"]["episodic"]
    return episode["way"] if key == "classes_per_batch" else episode["shot"] + episode["query"]
