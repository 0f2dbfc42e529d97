"""The book: a directory with all that was measured when recipes were compared, so that it can go on and grow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import RunError
from nearkin.lock import WriterLock
from nearkin.protocol.candidates import Against, Candidate, comparisons
from nearkin.protocol.cells import Cell, cells_of
from nearkin.protocol.division import Protocol
from nearkin.protocol.ledger import Ledger
from nearkin.protocol.measuring import HeldOut
from nearkin.storage import replacing, write_json, write_text

_FORMAT = "nearkin.benchmark"
_VERSION = 1
_UNCOMMITTED = "# What a finished benchmark does not need.\nruns/\nembeddings/\nwriter.lock\n"


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
    """

    protocol: Protocol
    data: dict[str, Any]
    classes: list[str]
    test_classes: list[str]
    folds: list[list[str]]
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    against: Against = None
    untrained: str = ""

    @property
    def models(self) -> int:
        """Models of a recipe and seed."""
        return len(self.folds)

    @property
    def comparisons(self) -> dict[str, str]:
        """Candidate to what it is compared with."""
        return comparisons(self.against, list(self.recipes))

    def cells(self, names: Sequence[str], seeds: int) -> list[Cell]:
        """All cells of some candidates, in the order in which they are done: every recipe has its turn with a seed."""
        return [cell for seed in range(seeds) for name in names for cell in cells_of(name, seed, self.models)]

    def planned(self) -> list[Cell]:
        """All cells that were ever asked for, the untrained features aside."""
        return [cell for name, recipe in self.recipes.items() for cell in self.cells([name], recipe["seeds"])]


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
        """Refuse a file, and a directory of something else."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: choose a directory for the benchmark.")
        if self.path.is_dir() and not self.file.exists():
            # A lock and unfinished files may be left of a benchmark that was killed at its very beginning.
            others = [
                entry.name for entry in self.path.iterdir() if entry.name[0] != "." and entry.name != "writer.lock"
            ]
            if others:
                raise RunError(
                    f"{self.path} holds something other than a benchmark ({min(others)}): choose a new directory."
                )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only process that writes to the book."""
        self.check_place()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path} cannot be made ({error.strerror}): choose another directory.") from error
        with WriterLock(self.path).held():
            yield

    def read(self) -> Contents | None:
        """What the book says; None if it is new."""
        if not self.file.exists():
            return None
        try:
            stored = json.loads(self.file.read_text(encoding="utf-8"))
            if stored.pop("format") != _FORMAT or stored.pop("version") != _VERSION:
                raise RunError(f"{self.file} is not a benchmark of this nearkin: choose a new directory.")
            return Contents(**stored)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{self.file} is damaged: restore it, or choose a new directory.") from error

    def begin(self, contents: Contents, held_out: HeldOut) -> None:
        """Write what is there before anything is measured: `book.json`, and the classes of the queries."""
        self.save(contents)
        if not self.codes_file.exists():
            write_text(self.path / ".gitignore", _UNCOMMITTED)
            with replacing(self.codes_file) as temporary, open(temporary, "wb") as handle:
                np.save(handle, held_out.codes)

    def save(self, contents: Contents) -> None:
        """Write `book.json`."""
        write_json(self.file, {"format": _FORMAT, "version": _VERSION, **asdict(contents)})

    def ledger(self) -> Ledger:
        """What has been measured so far."""
        return Ledger(self.ledger_file, self.queries)

    def codes(self) -> np.ndarray:
        """The class of each query as an index into the book's `classes`, (n,)."""
        try:
            return np.load(self.codes_file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise RunError(f"{self.codes_file} is missing or damaged: choose a new directory.") from error

    def embedding_file(self, cell: Cell) -> Path:
        """Where the test embeddings of a model wait for those of the other folds."""
        return self.embeddings / f"{cell.file}.npy"

    def run_folder(self, cell: Cell) -> Path:
        """Where a model is trained."""
        return self.runs / cell.file

    def tidy(self) -> None:
        """Remove folders that have become empty."""
        for folder in (self.runs, self.embeddings):
            if folder.is_dir() and not any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


def extended(book: Book, new: Contents, candidates: Sequence[Candidate], seeds: int, against: Against) -> Contents:
    """What a book shall say with some more candidates and seeds; refuse what does not belong into it.

    Args:
        book: the book; nothing is written.
        new: what a new book would say, without candidates.
        candidates: what is to be benchmarked now.
        seeds: how many seeds are asked for.
        against: what to compare with; None: as before.
    """
    stored = book.read()
    if stored is not None:
        _check_same(book.path, stored, new)
    contents = stored or replace(new, recipes={})
    for candidate in candidates:
        known = contents.recipes.get(candidate.name)
        if known is not None and (difference := candidate.difference(known["content"])):
            raise RunError(
                f"{book.path} has another recipe called '{candidate.name}' ({difference}): rename this one, or choose "
                "a new directory."
            )
        before = 0 if known is None else known["seeds"]
        contents.recipes[candidate.name] = {
            "hash": candidate.digest(),
            "seeds": max(before, seeds),
            "content": candidate.content(),
        }
    if against is not None:
        contents.against = against if isinstance(against, str) else dict(against)
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
    if stored.models != new.models:
        raise RunError(
            f"{path} has {stored.models} folds, not {new.models}: keep to {stored.models}, or choose a new directory."
        )
    if stored.folds != new.folds:
        raise RunError(f"{path} divides the training classes otherwise: use the same data section, or a new directory.")
