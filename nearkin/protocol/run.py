"""A benchmark from beginning to end: check everything, do what is missing, keep the table up to date."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.protocol.book import Book, Contents, extended
from nearkin.protocol.candidates import UNTRAINED, Against, Candidate, check_names, check_trainable
from nearkin.protocol.cells import Cell
from nearkin.protocol.division import Protocol, common_division, protocol_named
from nearkin.protocol.ledger import Ledger
from nearkin.protocol.measuring import HeldOut
from nearkin.protocol.summary import Summariser, Summary
from nearkin.protocol.tables import Tables, write_tables
from nearkin.protocol.work import Stopped, Surroundings, Worker


@dataclass(frozen=True)
class Benchmark:
    """What came of a benchmark.

    Args:
        book: where everything is kept.
        contents: what the book is about.
        summary: the lines of the table.
        tables: the table as texts.
        interrupted: whether it was stopped; the same call goes on.
    """

    book: Book
    contents: Contents
    summary: Summary
    tables: Tables
    interrupted: bool


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
        check_trainable(candidate, dataset, division.splits[0])
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
    extended(place, new, candidates, seeds, against)  # what is refused leaves nothing behind
    with place.writing():
        contents = extended(place, new, candidates, seeds, against)
        place.begin(contents, held_out)
        around = Surroundings(source, cache_directory, notes, keep_runs, progress)
        worker = Worker(place, contents, place.ledger(), dataset, division, held_out, candidates, around)
        return _go_on(worker, contents.cells([candidate.name for candidate in candidates], seeds), progress)


def _go_on(worker: Worker, cells: Sequence[Cell], progress: bool) -> Benchmark:
    """Do the cells that are not done, with a new table after each."""
    book, contents, ledger = worker.book, worker.contents, worker.ledger
    summariser = Summariser(book, ledger)
    worker.clean(cells)
    left = [cell for cell in cells if not worker.is_done(cell)]
    models = sum(cell.kind == "separate" for cell in left)
    total = sum(cell.kind == "separate" for cell in cells)
    _tell(progress, f"{models} models to train ({total - models} of {total} are done).")
    result: Benchmark | None = None
    try:
        worker.measure_untrained()
        for place, cell in enumerate(left):
            if cell.kind == "separate":
                number = total - sum(other.kind == "separate" for other in left[place:]) + 1
                _tell(progress, f"Model {number} of {total}: {cell.title}{_time_left(ledger, left[place:])}")
            worker.do(cell)
            result = _tabulate(book, contents, summariser)
    except (Stopped, KeyboardInterrupt):
        return replace(_tabulate(book, contents, summariser), interrupted=True)
    return result or _tabulate(book, contents, summariser)


def _tabulate(book: Book, contents: Contents, summariser: Summariser) -> Benchmark:
    """Write the table as it stands."""
    summary = summariser.summarise(contents)
    tables = Tables(contents, summary)
    write_tables(book, tables)
    return Benchmark(book, contents, summary, tables, interrupted=False)


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
