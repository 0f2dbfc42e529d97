"""The book: a directory with all that was measured when recipes were compared, so that it can go on and grow."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from nearkin.errors import RunError
from nearkin.lock import WriterLock
from nearkin.protocol.cells import Cell
from nearkin.protocol.contents import Contents
from nearkin.storage import replacing, storing, write_json, write_text

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
        """Refuse a file, a directory of something else, and one that cannot be looked into."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"{self.path} is a file: choose a directory for the benchmark.")
            if not self.path.is_dir() or self.file.exists():
                return
            # A lock and unfinished files may be left of a benchmark that was killed at its very beginning.
            names = [entry.name for entry in self.path.iterdir()]
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be looked into ({error.strerror}): choose another directory."
            ) from error
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
        """What the book says; None if it is new."""
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
            contents: what `book.json` shall say.
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
