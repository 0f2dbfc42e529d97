"""The book: a directory with all that was measured when recipes were compared, so that it can go on and grow."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from nearkin.data.splits import FoldOrder
from nearkin.errors import RunError
from nearkin.protocol.candidates import Against, Candidate, Cell, ProtocolName, cells_of, comparisons
from nearkin.storage import WriterLock, replacing, storing, write_json, write_text

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
    """The content of `book.json`.

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
        fold_order: whether the folds cut the sorted list of classes in order; books of earlier versions do not say,
            and drew theirs.
    """

    protocol: ProtocolName
    data: dict[str, Any]
    classes: list[str]
    test_classes: list[str]
    folds: list[list[str]]
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    against: Against = None
    untrained: str = ""
    dropped_queries: int = 0
    fold_order: FoldOrder = "random"

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
        """All cells that were ever asked for, except the untrained features."""
        return [cell for name, recipe in self.recipes.items() for cell in self.cells([name], recipe["seeds"])]


def extended(
    path: Path, stored: Contents | None, new: Contents, candidates: Sequence[Candidate], seeds: int, against: Against
) -> Contents:
    """A book's content with some more candidates and seeds; refuse what does not belong in it.

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
    contents.dropped_queries = new.dropped_queries  # which older books do not say
    notes = dict.fromkeys([*contents.data["notes"], *new.data["notes"]])
    contents.data = {**contents.data, "notes": list(notes)}
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
    if stored.fold_order != new.fold_order and stored.protocol == "fair":
        raise RunError(
            f"{path} has {stored.fold_order} folds, not {new.fold_order} ones: leave --fold-order out to keep to them, "
            "or choose a new directory."
        )
    if stored.folds != new.folds:
        raise RunError(f"{path} divides the training classes otherwise: use the same data section, or a new directory.")


def _budget(content: Mapping[str, Any], section: str, key: str) -> Any:
    """A setting of a recipe; of batches that are episodes, whose recipe leaves it out, that of the episode."""
    if key in content[section]:
        return content[section][key]
    episode = content["training"]["episodic"]
    return episode["way"] if key == "classes_per_batch" else episode["shot"] + episode["query"]


_FORMAT = "nearkin.benchmark"
_VERSION = 1
_UNCOMMITTED = "# What a finished benchmark does not need.\nruns/\nembeddings/\nwriter.lock\n.*.tmp\n"
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
"""What `storage.replacing` calls a file that is not whole yet."""
_WELCOME = ("writer.lock", ".gitignore", ".git")
"""What a directory may hold in which a benchmark begins."""


class Book:
    """The files of a benchmark; making one touches nothing on disk.

    Args:
        path: the directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.file = self.path / "book.json"
        self.ledger_file = self.path / "ledger.jsonl"
        self.queries = self.path / "queries"
        self.codes_file = self.queries / "classes.npy"
        self.runs = self.path / "runs"
        self.embeddings = self.path / "embeddings"

    def check_place(self) -> None:
        """Refuse a file, a directory of something else, and one that cannot be opened."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"{self.path} is a file: choose a directory for the benchmark.")
            if not self.path.is_dir() or self.file.exists():
                return
            # A lock and unfinished files may be left of a benchmark that was killed at its very beginning.
            names = [entry.name for entry in self.path.iterdir()]
        except OSError as error:
            raise RunError(f"{self.path} cannot be opened ({error.strerror}): choose another directory.") from error
        others = [name for name in names if name not in _WELCOME and not _TEMPORARY.fullmatch(name)]
        if others:
            raise RunError(
                f"{self.path} holds something other than a benchmark ({min(others)}): choose a new directory."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only process that writes to the book; what a killed one left half-written is removed."""
        self.check_place()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path} cannot be made ({error.strerror}): choose another directory.") from error
        with WriterLock(self.path).held():
            self._sweep()
            yield

    def read(self) -> Contents | None:
        """The book's content; None if it is new."""
        if not self.file.exists():
            return None
        try:
            stored = json.loads(self.file.read_text(encoding="utf-8"))
            known = stored.pop("format") == _FORMAT and stored.pop("version") == _VERSION
            contents = Contents.of(stored) if known else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{self.file} is damaged: restore it, or choose a new directory.") from error
        if contents is None:
            raise RunError(f"{self.file} is not a benchmark of this nearkin: choose a new directory.")
        return contents

    def begin(self, contents: Contents, codes: np.ndarray) -> None:
        """Write what is there before anything is measured.

        Args:
            contents: the new content of `book.json`.
            codes: the class of each query as an index into the contents' `classes`, (n,). The data decides them, so a
                file with others is replaced.
        """
        self.save(contents)
        ignored = self.path / ".gitignore"
        if not ignored.exists():
            write_text(ignored, _UNCOMMITTED)
        stored = _array(self.codes_file)
        if stored is None or not np.array_equal(stored, codes):
            _save_array(self.codes_file, codes)

    def save(self, contents: Contents) -> None:
        """Write `book.json`."""
        write_json(self.file, {"format": _FORMAT, "version": _VERSION, **asdict(contents)})

    def run_folder(self, cell: Cell) -> Path:
        """Where a model is trained."""
        return self.runs / cell.file

    def drop_run(self, cell: Cell) -> None:
        """Remove the run of a model; one that is only half removed when the power fails does not look like a run."""
        folder = self.run_folder(cell)
        if folder.exists():
            doomed = folder.with_name(f".{folder.name}.00000000.tmp")
            shutil.rmtree(doomed, ignore_errors=True)
            with storing(folder):
                folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def embedding_file(self, cell: Cell) -> Path:
        """Where the test embeddings of a model wait for those of the other folds."""
        return self.embeddings / f"{cell.file}.npy"

    def keep_embeddings(self, cell: Cell, embeddings: np.ndarray) -> None:
        """Write the test embeddings (m, d) of a model."""
        _save_array(self.embedding_file(cell), embeddings)

    def kept_embeddings(self, cell: Cell, items: int) -> np.ndarray | None:
        """The test embeddings (items, d) of a model, read when looked at; None if they are missing or damaged."""
        found = _array(self.embedding_file(cell))
        whole = found is not None and found.ndim == 2 and len(found) == items and found.dtype.kind == "f"
        return found if whole else None

    def tidy(self) -> None:
        """Remove folders that have become empty."""
        for folder in (self.runs, self.embeddings):
            if folder.is_dir() and not any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self) -> None:
        for folder in (self.path, self.queries, self.embeddings, self.runs):
            for entry in folder.glob(".*.tmp") if folder.is_dir() else ():
                if not _TEMPORARY.fullmatch(entry.name):
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)


def _array(file: Path) -> np.ndarray | None:
    """An array of a file, mapped into memory; None if there is none or it is not whole."""
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None


def _save_array(file: Path, values: np.ndarray) -> None:
    with replacing(file) as temporary, open(temporary, "wb") as handle:
        np.save(handle, values)
