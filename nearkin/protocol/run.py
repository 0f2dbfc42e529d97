"""A benchmark from beginning to end: check everything, do what is missing, keep the table up to date."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, TrainingError
from nearkin.protocol.book import Book
from nearkin.protocol.candidates import Against, Candidate, check_names, check_trainable
from nearkin.protocol.cells import UNTRAINED, Cell
from nearkin.protocol.contents import Contents, extended
from nearkin.protocol.division import Protocol, common_division, protocol_named
from nearkin.protocol.ledger import Ledger
from nearkin.protocol.measuring import HeldOut
from nearkin.protocol.summary import Summariser, Summary
from nearkin.protocol.tables import Tables, write_tables
from nearkin.protocol.work import Stopped, Surroundings, Task, Worker


@dataclass(frozen=True)
class Benchmark:
    """What came of a benchmark.

    Args:
        book: where everything is kept.
        contents: what the book is about.
        summary: the lines of the table.
        tables: the table as texts.
        interrupted: whether it was stopped; the same call goes on.
        failures: a sentence for each model whose training failed; the same call tries them again.
    """

    book: Book
    contents: Contents
    summary: Summary
    tables: Tables
    interrupted: bool = False
    failures: tuple[str, ...] = ()


def run_benchmark(
    dataset: Dataset,
    candidates: Sequence[Candidate],
    book: str | Path,
    *,
    cache_directory: Path,
    folds: int = 4,
    seeds: int = 3,
    protocol: Protocol = "fair",
    against: Against = None,
    source: str = "",
    notes: Sequence[str] = (),
    keep_runs: bool = False,
    progress: bool = True,
) -> Benchmark:
    """Compare recipes under one protocol; what the book already has is not done again.

    A model whose training fails is left out, and the others are trained.

    Args:
        dataset: all the data; the recipes say which classes are held out, and must agree on it.
        candidates: the recipes, under names.
        book: directory of the results; one that exists goes on, or is extended by recipes or seeds.
        cache_directory: where features of frozen backbones are kept, for all recipes together.
        folds: class-disjoint folds of the training classes, of the fair protocol.
        seeds: models are trained with the seeds 0 to seeds - 1.
        protocol: "fair", or "conventional", which trains on all training classes and selects on the test classes.
        against: the candidate that all others are compared with, or candidate to baseline; "untrained" stands for
            untrained features; None: as before, and at first the first candidate.
        source: what to call the data in cards.
        notes: what is to be said about the data.
        keep_runs: whether run directories stay when their models are measured.
        progress: whether to tell on standard error what is going on.
    """
    check_plan(candidates, protocol, folds, seeds)
    place = Book(book)
    place.check_place()
    division = common_division(dataset, candidates, protocol, folds)
    for candidate in candidates:
        check_trainable(candidate, dataset, division.splits)
    _check_untrained(against, candidates[0], dataset)
    held_out = HeldOut(dataset.select(division.test))
    data = {
        "name": dataset.name,
        "source": source,
        "fingerprint": dataset.fingerprint(),
        "items": len(dataset),
        "notes": list(notes),
    }
    new = Contents(protocol, data, held_out.classes, division.test_classes, division.folds)
    new.dropped_queries = held_out.dropped
    # What is refused leaves nothing behind.
    extended(place.path, place.read(), new, candidates, seeds, against)
    with place.writing():
        contents = extended(place.path, place.read(), new, candidates, seeds, against)
        ledger = Ledger(place.ledger_file, place.queries, contents, len(held_out.codes))
        place.begin(contents, held_out.codes)
        around = Surroundings(source, cache_directory, notes, keep_runs, progress)
        worker = Worker(place, contents, ledger, Task(dataset, division, held_out), candidates, around)
        return _go_on(worker, contents.cells([candidate.name for candidate in candidates], seeds), progress)


def _go_on(worker: Worker, cells: Sequence[Cell], progress: bool) -> Benchmark:
    """Do the cells that are not done, with a new table after each."""
    ledger, table = worker.ledger, _Table(worker)
    worker.clean(cells)
    left = [cell for cell in cells if not worker.is_done(cell)]
    models = sum(cell.kind == "separate" for cell in left)
    total = sum(cell.kind == "separate" for cell in cells)
    _tell(progress, f"{models} {'model' if models == 1 else 'models'} to train ({total - models} of {total} are done).")
    try:
        worker.measure_untrained()
        for place, cell in enumerate(left):
            if cell.kind == "separate":
                number = total - sum(other.kind == "separate" for other in left[place:]) + 1
                _tell(progress, f"Model {number} of {total}: {cell.title}{_time_left(ledger, left[place:])}")
            if not table.failures.keys().isdisjoint(worker.parts(cell)):
                continue
            try:
                worker.do(cell)
            except TrainingError as error:
                table.failures[cell] = str(error)
                _tell(progress, f"{error}")
            table.write()
    except (Stopped, KeyboardInterrupt):
        return replace(table.write(), interrupted=True)
    return table.written or table.write()


class _Table:
    """The table of a book that is being worked on."""

    def __init__(self, worker: Worker) -> None:
        self._book, self._contents = worker.book, worker.contents
        self._summariser = Summariser(worker.held_out.codes, worker.ledger)
        self.failures: dict[Cell, str] = {}
        self.written: Benchmark | None = None

    def write(self) -> Benchmark:
        """Write it as it stands."""
        summary = self._summariser.summarise(self._contents)
        tables = Tables(self._contents, summary, [cell.title for cell in self.failures])
        write_tables(self._book, tables)
        failures = tuple(self.failures.values())
        self.written = Benchmark(self._book, self._contents, summary, tables, failures=failures)
        return self.written


def _time_left(ledger: Ledger, left: Sequence[Cell]) -> str:
    """How long the cells that are left will take, going by those that are done; nothing if none is."""
    known: dict[str, list[float]] = {}
    for cell, row in ledger.rows.items():
        if cell.kind == "separate":
            known.setdefault(cell.recipe, []).append(row["seconds"])
    if not known:
        return ""
    means = {name: math.fsum(seconds) / len(seconds) for name, seconds in known.items()}
    usual = math.fsum(means.values()) / len(means)
    seconds = math.fsum(means.get(cell.recipe, usual) for cell in left if cell.kind == "separate")
    return f" (about {_duration(seconds)} left)"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _tell(progress: bool, text: str) -> None:
    if progress:
        print(text, file=sys.stderr, flush=True)


def check_plan(candidates: Sequence[Candidate], protocol: str, folds: int, seeds: int) -> None:
    """Refuse what no data could make possible; arguments as of `run_benchmark`."""
    check_names(candidates)
    if protocol_named(protocol) == "fair" and folds < 2:
        raise DataError(f"The fair protocol needs at least 2 folds, not {folds}.")
    if seeds < 1:
        raise DataError(f"A benchmark needs at least one seed, not {seeds}.")


def _check_untrained(against: Against, first: Candidate, dataset: Dataset) -> None:
    """Refuse to compare with untrained features where there are none."""
    named = against.values() if isinstance(against, Mapping) else [against]
    if UNTRAINED in named and not first.recipe.model.pretrained and dataset.kind != "image":
        raise DataError(
            f"There are no untrained features of {dataset.kind} without pretrained weights: compare with a recipe."
        )
