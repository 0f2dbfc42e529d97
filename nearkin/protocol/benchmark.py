"""A benchmark from beginning to end: check everything, train and measure what is missing, keep the table up to date."""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin._version import __version__
from nearkin.audits.subject import embed_items, untrained_features
from nearkin.data.dataset import Dataset
from nearkin.data.splits import FoldOrder
from nearkin.errors import CheckpointError, DataError, NearkinError, RunError, TrainingError
from nearkin.models import build_embedder
from nearkin.progress import Progress
from nearkin.protocol.book import Book, Contents, extended
from nearkin.protocol.candidates import (
    UNTRAINED,
    UNTRAINED_CELL,
    Against,
    Candidate,
    Cell,
    DataDivision,
    ProtocolName,
    cells_of,
    check_names,
    check_trainable,
    common_division,
    protocol_named,
)
from nearkin.protocol.estimate import estimate_model
from nearkin.protocol.jobs import Jobs, Stopped
from nearkin.protocol.ledger import DIGITS, HeldOut, Ledger, Measurement, concatenate
from nearkin.protocol.summary import Summariser, Summary
from nearkin.protocol.tables import Tables, write_tables
from nearkin.recipe import Recipe
from nearkin.spaces import Sphere, make_space
from nearkin.training import Run, TrainingResult, train
from nearkin.training.loop import StopRequest


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned from, and what is measured on.

    Args:
        dataset: all the data.
        division: how it is divided.
        held_out: the test items.
    """

    dataset: Dataset
    division: DataDivision
    held_out: HeldOut


@dataclass(frozen=True)
class WorkerSettings:
    """What training needs besides data and recipe.

    Args:
        source: what the user called the data.
        cache_directory: where features of frozen backbones are kept.
        notes: what is to be said about the data.
        keep_runs: whether run directories stay when their models are measured.
        progress: whether to show bars.
    """

    source: str
    cache_directory: Path
    notes: Sequence[str] = ()
    keep_runs: bool = False
    progress: bool = True


@dataclass(frozen=True, eq=False)
class Found:
    """What came of measuring a model.

    Args:
        measured: how it did on the test items; None if it was not asked, or if there is nothing to measure.
        facts: what a line of the ledger holds besides.
        name: what untrained features are called.
    """

    measured: Measurement | None
    facts: dict[str, Any]
    name: str = ""


class ModelTrainer:
    """Trains and measures the models of a book, each in a folder of its own; writes nothing that they share.

    Args:
        book: where everything is kept.
        contents: what the book is about.
        task: what is learned from, and what is measured on.
        candidates: name to candidate.
        around: what training needs besides.
    """

    def __init__(
        self, book: Book, contents: Contents, task: Task, candidates: Sequence[Candidate], around: WorkerSettings
    ) -> None:
        self.book = book
        self.contents = contents
        self.dataset = task.dataset
        self.division = task.division
        self.held_out = task.held_out
        self.candidates = {candidate.name: candidate for candidate in candidates}
        self.around = around

    def __call__(self, cell: Cell) -> Found:
        """Train the model of a cell and measure it; of all folds, its test embeddings are kept."""
        if cell == UNTRAINED_CELL:
            return self.untrained()
        result = self._train(cell)
        began = time.monotonic()
        embedder, around = result.embedder, self.around
        embeddings = embed_items(embedder, self.held_out.items, around.cache_directory, around.progress)
        if cell.fold is not None:
            self.book.keep_embeddings(cell, embeddings)
        measured = self.held_out.measure(embeddings, embedder.space)
        return Found(measured, self.facts(cell, result.state.seconds + time.monotonic() - began, result))

    def untrained(self) -> Found:
        """Measure what the first candidate's backbone gives without training."""
        recipe = next(iter(self.candidates.values())).recipe
        embedder = build_embedder(recipe.model, seed=0, audio_seconds=recipe.data.audio_seconds)
        items, around = self.held_out.items, self.around
        name, features = untrained_features(embedder, items, around.cache_directory, around.progress)
        backbone = f" of {embedder.backbone_name}" if embedder.pretrained else ""
        measured = None
        if features is not None:
            space = Sphere()
            measured = self.held_out.measure(space.project(torch.from_numpy(features)).numpy(), space)
        return Found(measured, self.facts(UNTRAINED_CELL, 0.0), f"{name}{backbone}")

    def steps(self, cell: Cell) -> int:
        """Steps that the training of a model may take."""
        return self.candidates[cell.recipe].recipe.training.max_steps

    def _train(self, cell: Cell) -> TrainingResult:
        """Train a model, going on where an earlier attempt was stopped."""
        begun = self._begun(cell)
        try:
            if begun is not None:
                try:
                    return self._fit(cell, begun, resume=True)
                except (CheckpointError, RunError):
                    pass  # a damaged checkpoint costs this model's steps, not the benchmark
            self.book.drop_run(cell)
            return self._fit(cell, self.candidates[cell.recipe].seeded(cell.seed or 0), resume=False)
        except TrainingError as error:
            raise TrainingError(f"{cell.title}: {error}") from error

    def _begun(self, cell: Cell) -> Recipe | None:
        """The recipe that a model's training began with; None if there is nothing to resume.

        It may differ from the candidate's in what decides nothing, and a run goes on only with its very own.
        """
        run = Run(self.book.run_folder(cell))
        try:
            recipe = run.recipe()
        except (NearkinError, OSError, ValueError):
            return None
        same = self.candidates[cell.recipe].is_recipe(recipe) and recipe.training.seed == (cell.seed or 0)
        return recipe if same else None

    def _fit(self, cell: Cell, recipe: Recipe, resume: bool) -> TrainingResult:
        """Train a model in its folder."""
        result = train(
            self.dataset,
            recipe,
            Run(self.book.run_folder(cell)),
            source=self.around.source,
            cache_directory=self.around.cache_directory,
            notes=self.around.notes,
            resume=resume,
            progress=self.around.progress,
            split=self.division.splits[(cell.fold or 1) - 1],
        )
        if result.interrupted:
            raise Stopped
        return result

    def facts(self, cell: Cell, seconds: float, result: TrainingResult | None = None) -> dict[str, Any]:
        """What a line of the ledger holds besides the measured values."""
        recipe = self.contents.recipes.get(cell.recipe)
        state = None if result is None else result.state
        return {
            "hash": None if recipe is None else recipe["hash"],
            "protocol": self.contents.protocol,
            "selected_on": None if recipe is None else self.contents.selected_on,
            "validation_MAP@R": None
            if result is None
            else round((result.embedder.card.validation or {})["val_MAP@R"], DIGITS),
            "steps": None if state is None else state.step,
            "best_step": None if state is None else state.best_step,
            "seconds": round(seconds, 2),
            "versions": {"nearkin": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }


class BookWorker:
    """Does the cells of a book.

    Args:
        book: where everything is kept.
        contents: what the book is about.
        ledger: what is done.
        task: what is learned from, and what is measured on.
        candidates: name to candidate.
        around: what training needs besides.
    """

    def __init__(
        self,
        book: Book,
        contents: Contents,
        ledger: Ledger,
        task: Task,
        candidates: Sequence[Candidate],
        around: WorkerSettings,
    ) -> None:
        self.book = book
        self.contents = contents
        self.ledger = ledger
        self.held_out = task.held_out
        self.trainer = ModelTrainer(book, contents, task, candidates, around)
        self.alone = True
        """Whether nothing else trains in the book; folders that others may be about to use stay."""

    def is_done(self, cell: Cell) -> bool:
        """Whether nothing is left to do; a model whose embeddings are missing for the concatenation is trained
        again.
        """
        if cell not in self.ledger or cell.fold is None:
            return cell in self.ledger
        together = Cell(cell.recipe, "concatenated", cell.seed)
        return together in self.ledger or self._embeddings(cell) is not None

    def parts(self, cell: Cell) -> list[Cell]:
        """The models that a concatenation puts together; none of a single model."""
        if cell.kind != "concatenated":
            return []
        siblings = cells_of(cell.recipe, cell.seed or 0, len(self.trainer.division.splits))
        return [other for other in siblings if other.kind == "separate"]

    def do(self, cell: Cell) -> None:
        """Do a cell that is not done."""
        if cell.kind == "separate":
            kept = self.keeps(cell)
            self.enter(cell, self.trainer(cell), kept)
        else:
            self._together(cell)

    def keeps(self, cell: Cell) -> bool:
        """Whether the run of a model that is yet to be trained is to stay."""
        # A model that is measured and made again for its embeddings may have a run that somebody asked to keep.
        return self.trainer.around.keep_runs or (cell in self.ledger and _is_finished(Run(self.book.run_folder(cell))))

    def enter(self, cell: Cell, found: Found, kept: bool) -> None:
        """Write down what was found of a model; its run is removed unless it is kept."""
        if cell == UNTRAINED_CELL:
            self.contents.untrained = found.name
            self.book.save(self.contents)
        if cell not in self.ledger and found.measured is not None:
            self.ledger.add(cell, found.measured, found.facts)
        if cell == UNTRAINED_CELL:
            return
        if not kept:
            self.book.drop_run(cell)
        self.clean([cell])

    def measure_untrained(self) -> None:
        """Measure what the first candidate's backbone gives without training."""
        if UNTRAINED_CELL not in self.ledger:
            self.enter(UNTRAINED_CELL, self.trainer.untrained(), kept=False)

    def clean(self, cells: Sequence[Cell]) -> None:
        """Remove what cells that are done have left unfinished; runs that were kept stay."""
        for cell in cells:
            if cell.kind == "separate" and self.is_done(cell) and not _is_finished(Run(self.book.run_folder(cell))):
                self.book.drop_run(cell)
            if Cell(cell.recipe, "concatenated", cell.seed) in self.ledger:
                self.book.embedding_file(cell).unlink(missing_ok=True)
        if self.alone:
            self.book.tidy()

    def _together(self, cell: Cell) -> None:
        """Measure the models of all folds together."""
        folds = self.parts(cell)
        section = self.trainer.candidates[cell.recipe].recipe.model
        space = make_space(section.space, **section.space_parameters)
        parts = [self._embeddings(fold) for fold in folds]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            raise RunError(f"Files of {self.book.embeddings} are missing: run the same benchmark again to remake them.")
        began = time.monotonic()
        measured = self.held_out.measure(*concatenate(whole, space))
        self.ledger.add(cell, measured, self.trainer.facts(cell, time.monotonic() - began))
        self.clean(folds)

    def _embeddings(self, cell: Cell) -> np.ndarray | None:
        return self.book.kept_embeddings(cell, len(self.held_out.items))


def _is_finished(run: Run) -> bool:
    """Whether a run finished, which a stopped one did not."""
    try:
        return bool(json.loads(run.card_file.read_text(encoding="utf-8"))["finished"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


@dataclass(frozen=True)
class Benchmark:
    """What came of a benchmark.

    Args:
        book: where everything is kept.
        contents: what the book is about.
        summary: the lines of the table.
        tables: the table as texts.
        interrupted: whether it was stopped; the same call resumes it.
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
    protocol: ProtocolName = "fair",
    against: Against = None,
    source: str = "",
    notes: Sequence[str] = (),
    keep_runs: bool = False,
    progress: bool = True,
    fold_order: FoldOrder | None = None,
    jobs: int = 1,
) -> Benchmark:
    """Compare recipes under one protocol; what the book already has is not done again.

    A model whose training fails is left out, and the others are trained.

    Args:
        dataset: all the data; the recipes say which classes are held out, and must agree on it.
        candidates: the recipes, under names.
        book: directory of the results; an existing one is resumed, or extended by recipes or seeds.
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
        fold_order: "contiguous" cuts the sorted list of training classes in order, as the papers do; "random" draws the
            folds; None: as the book has it, and contiguous in a new one.
        jobs: models that are trained side by side, each in a process of its own with one thread; a script that passes
            more than one needs `if __name__ == "__main__":`.
    """
    check_plan(candidates, protocol, folds, seeds)
    if jobs < 1:
        raise DataError(f"A benchmark needs at least one job, not {jobs}.")
    place = Book(book)
    place.check_place()
    begun = place.read()
    if fold_order is None:
        fold_order = "contiguous" if begun is None else begun.fold_order
    division = common_division(dataset, candidates, protocol, folds, fold_order)
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
    new.dropped_queries, new.fold_order = held_out.dropped, fold_order
    # What is refused leaves nothing behind.
    extended(place.path, begun, new, candidates, seeds, against)
    with place.writing():
        contents = extended(place.path, place.read(), new, candidates, seeds, against)
        ledger = Ledger(place.ledger_file, place.queries, contents, len(held_out.codes))
        place.begin(contents, held_out.codes)
        around = WorkerSettings(source, cache_directory, notes, keep_runs, progress and jobs == 1)
        worker = BookWorker(place, contents, ledger, Task(dataset, division, held_out), candidates, around)
        return _resume(worker, contents.cells([candidate.name for candidate in candidates], seeds), progress, jobs)


def _resume(worker: BookWorker, cells: Sequence[Cell], progress: bool, jobs: int) -> Benchmark:
    """Do the cells that are not done, with a new table after each."""
    ledger, table = worker.ledger, _LiveTable(worker)
    worker.clean(cells)
    left = [cell for cell in cells if not worker.is_done(cell)]
    models = sum(cell.kind == "separate" for cell in left)
    total = sum(cell.kind == "separate" for cell in cells)
    _tell(progress, f"{models} {'model' if models == 1 else 'models'} to train ({total - models} of {total} are done).")
    if progress and models:
        _tell_estimates(worker, left, min(jobs, models))
    try:
        if jobs > 1 and models:
            _side_by_side(worker, left, table, progress, min(jobs, models))
            return table.written or table.write()
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


_WORTH_ESTIMATING = 200
"""Steps of a recipe's models below which they are trained sooner than estimated."""


def _tell_estimates(worker: BookWorker, left: Sequence[Cell], jobs: int) -> None:
    """Say how long long trainings may take, by a few steps of each recipe; of cached features nobody knows before."""
    trainer, total = worker.trainer, 0.0
    threads = torch.get_num_threads()
    if jobs > 1:
        torch.set_num_threads(1)
    try:
        for name, candidate in trainer.candidates.items():
            models = [cell for cell in left if cell.kind == "separate" and cell.recipe == name]
            if sum(map(trainer.steps, models)) < _WORTH_ESTIMATING:
                continue
            found = estimate_model(candidate.recipe, trainer.dataset, trainer.division.splits[0])
            if found is None:
                continue
            total += len(models) * found.seconds
            count = f"{len(models)} {'model' if len(models) == 1 else 'models'}"
            _tell(
                True,
                f"{name}: about {found.step:.2g} s a step and {found.validation:.2g} s a validation; {count} of at "
                f"most {found.steps:,} steps: {duration(len(models) * found.seconds / jobs)}.",
            )
    finally:
        torch.set_num_threads(threads)
    if total:
        _tell(
            True,
            f"A full run takes about {duration(total / jobs)} at the most, and less where validation stops gaining "
            "(training.patience). For less: --set training.max_steps=…",
        )


_GLANCE = 1.0
"""Seconds between two looks at how far the models are."""


def _side_by_side(worker: BookWorker, left: Sequence[Cell], table: _LiveTable, progress: bool, jobs: int) -> None:
    """Do cells with several models in training at once; only this process writes to the book."""
    waiting = [] if UNTRAINED_CELL in worker.ledger else [UNTRAINED_CELL]
    waiting += [cell for cell in left if cell.kind == "separate"]
    together = [cell for cell in left if cell.kind == "concatenated"]
    kept = {cell: worker.keeps(cell) for cell in waiting}
    threads, unfinished = torch.get_num_threads(), False
    torch.set_num_threads(1)  # what is measured here is as with one thread, too
    worker.alone = False
    try:
        with StopRequest() as stop, Jobs(worker.trainer, jobs) as pool, _StepBar(worker, waiting, progress) as bar:
            while waiting or pool.busy:
                while waiting and pool.free and not stop.requested:
                    _tell(progress, f"Begun: {waiting[0].title}{_time_left(worker.ledger, left, jobs)}")
                    pool.begin(waiting.pop(0))
                if stop.requested:
                    pool.stop()
                    if not pool.busy:
                        raise Stopped
                for cell, outcome in pool.finished(_GLANCE):
                    if not isinstance(outcome.error, Stopped):
                        bar.finish(cell)
                    if outcome.error is None:
                        worker.enter(cell, outcome.value, kept[cell])
                        _tell(progress, f"Finished: {cell.title}")
                    elif isinstance(outcome.error, TrainingError):
                        told = str(outcome.error)
                        table.failures[cell] = told if cell.title in told else f"{cell.title}: {told}"
                        _tell(progress, table.failures[cell])
                    elif isinstance(outcome.error, Stopped):
                        unfinished = True
                    else:
                        raise outcome.error
                    for whole in [one for one in together if all(map(worker.is_done, worker.parts(one)))]:
                        together.remove(whole)
                        worker.do(whole)
                    table.write()
                bar.look(pool.busy)
            if unfinished or (stop.requested and together):
                raise Stopped
            for whole in together:  # whose models were done before
                if table.failures.keys().isdisjoint(worker.parts(whole)):
                    worker.do(whole)
                    table.write()
    finally:
        torch.set_num_threads(threads)
        worker.alone = True
        worker.clean([])


class _StepBar:
    """A progress bar over the steps of several models, as far as their logs tell."""

    def __init__(self, worker: BookWorker, cells: Sequence[Cell], progress: bool) -> None:
        self._worker = worker
        self._steps = {cell: worker.trainer.steps(cell) for cell in cells if cell.kind == "separate"}
        self._seen = dict.fromkeys(self._steps, 0)
        self._bar = Progress("steps at the most", sum(self._steps.values()), progress)

    def __enter__(self) -> _StepBar:
        self._bar.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._bar.__exit__(*details)

    def look(self, cells: Sequence[Cell]) -> None:
        """See how far the models in training are."""
        running = [cell for cell in cells if cell in self._seen]
        before = sum(self._seen.values())
        for cell in running:
            self._seen[cell] = max(self._seen[cell], _last_step(Run(self._worker.book.run_folder(cell)).log_file))
        note = ", ".join(f"{cell.title}: {self._seen[cell]}" for cell in running)
        if (more := sum(self._seen.values()) - before) > 0:
            self._bar.advance(more, note)

    def finish(self, cell: Cell) -> None:
        """A model is finished, which may be before its last step."""
        if cell in self._seen:
            self._bar.advance(self._steps[cell] - self._seen.pop(cell))


_TAIL = 4096


def _last_step(log: Path) -> int:
    """The last step that a log tells of; 0 if it tells of none yet."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            return int(json.loads(file.read().splitlines()[-1])["step"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return 0


class _LiveTable:
    """The table of a book that is being worked on."""

    def __init__(self, worker: BookWorker) -> None:
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


def _time_left(ledger: Ledger, left: Sequence[Cell], jobs: int = 1) -> str:
    """How long the cells that are left will take, going by those that are done; nothing if none is."""
    known: dict[str, list[float]] = {}
    for cell, row in ledger.rows.items():
        if cell.kind == "separate":
            known.setdefault(cell.recipe, []).append(row["seconds"])
    if not known:
        return ""
    means = {name: math.fsum(seconds) / len(seconds) for name, seconds in known.items()}
    usual = math.fsum(means.values()) / len(means)
    missing = [cell for cell in left if cell.kind == "separate" and cell not in ledger]
    seconds = math.fsum(means.get(cell.recipe, usual) for cell in missing)
    return f" (about {duration(seconds / jobs)} left)"


def duration(seconds: float) -> str:
    """A time in words."""
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
