"""A benchmark from beginning to end: check everything, train and measure what is missing, keep the table up to date."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nearkin.data.augment import BatchAugment, transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.splits import FoldOrder, Split
from nearkin.errors import DataError, TrainingError
from nearkin.models.speed import channels_last, tune_allocator
from nearkin.progress import Progress, say
from nearkin.protocol.book import Book, Contents, extended
from nearkin.protocol.candidates import (
    UNTRAINED,
    UNTRAINED_CELL,
    Against,
    Candidate,
    Cell,
    ProtocolName,
    check_names,
    check_trainable,
    common_division,
    embedder_and_sampler,
    protocol_named,
)
from nearkin.protocol.ledger import HeldOut, Ledger
from nearkin.protocol.summary import Summariser, Summary
from nearkin.protocol.tables import Tables, write_tables
from nearkin.protocol.worker import BookWorker, Jobs, ModelTrainer, Stopped, Task, WorkerSettings
from nearkin.recipe import Recipe
from nearkin.training import Run
from nearkin.training.batches import DecodedBatches
from nearkin.training.forecast import duration, naming_full_memory, timed_steps
from nearkin.training.loop import StopRequest
from nearkin.training.validation import ValidationInputs


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
    started = [note for candidate in candidates for note in check_trainable(candidate, dataset, division.splits)]
    _check_untrained(against, candidates[0], dataset)
    held_out = HeldOut(dataset.select(division.test))
    data = {"name": dataset.name, "source": source, "fingerprint": dataset.fingerprint(), "items": len(dataset)}
    data["notes"] = [*notes, *started]
    new = Contents(protocol, data, held_out.classes, division.test_classes, division.folds)
    new.dropped_queries, new.fold_order = held_out.dropped, fold_order
    # What is refused leaves nothing behind.
    extended(place.path, begun, new, candidates, seeds, against)
    with place.writing():
        contents = extended(place.path, place.read(), new, candidates, seeds, against)
        ledger = Ledger(place.ledger_file, place.queries, contents, len(held_out.codes))
        place.begin(contents, held_out.codes)
        around = WorkerSettings(source, cache_directory, notes, keep_runs, progress and jobs == 1)
        trainer = ModelTrainer(place, contents, Task(dataset, division, held_out), candidates, around)
        worker = BookWorker(trainer, ledger)
        return _resume(worker, contents.cells([candidate.name for candidate in candidates], seeds), progress, jobs)


def _resume(worker: BookWorker, cells: Sequence[Cell], progress: bool, jobs: int) -> Benchmark:
    """Do the cells that are not done, with a new table after each."""
    ledger, table = worker.ledger, _LiveTable(worker)
    worker.clean(cells)
    left = [cell for cell in cells if not worker.is_done(cell)]
    models = sum(cell.kind == "separate" for cell in left)
    total = sum(cell.kind == "separate" for cell in cells)
    say(f"{models} {'model' if models == 1 else 'models'} to train ({total - models} of {total} are done).", progress)
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
                say(f"Model {number} of {total}: {cell.title}{_time_left(ledger, left[place:])}", progress)
            if not table.failures.keys().isdisjoint(worker.parts(cell)):
                continue
            try:
                worker.do(cell)
            except TrainingError as error:
                table.failures[cell] = str(error)
                say(f"{error}", progress)
            table.write()
    except (Stopped, KeyboardInterrupt):
        return replace(table.write(), interrupted=True)
    return table.written or table.write()


_ITEMS = 64  # of validation, that are embedded for it


@dataclass(frozen=True)
class Estimate:
    """What one model may take.

    Args:
        step: seconds of a training step, on average.
        validation: seconds of a validation.
        steps: steps at the most.
        validations: validations at the most.
    """

    step: float
    validation: float
    steps: int
    validations: int

    @property
    def seconds(self) -> float:
        """Of the whole model, if nothing stops it earlier."""
        return self.steps * self.step + self.validations * self.validation


def estimate_model(recipe: Recipe, dataset: Dataset, split: Split) -> Estimate | None:
    """Take a few steps as a recipe's training would, and forget them.

    None where features are cached first, or where steps go through the network as often as an attack asks.

    Args:
        recipe: the recipe.
        dataset: all the data.
        split: what trains and what validates.
    """
    if recipe.model.cache or recipe.training.schedule == "adversarial":
        return None
    items, section = dataset.select(split.train), recipe.training
    tune_allocator()
    embedder, sampler = embedder_and_sampler(recipe, items)
    gpu = section.accelerator in ("auto", "gpu") and torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    channels_last(embedder.to(device))
    batches = DecodedBatches(
        items,
        items.class_ids(),
        transform_for(embedder.spec, recipe.data, train=True),
        BatchAugment.for_section(embedder.spec, recipe.data, section.seed),
        transform_for(embedder.spec, recipe.data, train=False),
        sampler,
        section.seed,
        recipe.data.workers,
    )
    step, resting = timed_steps(embedder, batches, section, device)
    shown = split.val[:_ITEMS]
    with naming_full_memory():
        began = time.perf_counter()
        ValidationInputs(dataset.select(shown), embedder.spec).encode(embedder)
        validation = (time.perf_counter() - began) * len(split.val) / len(shown)
    step -= min(1.0, section.head_warmup_steps / section.max_steps) * (step - resting)
    return Estimate(step, validation, section.max_steps, 1 + -(-section.max_steps // section.evaluate_every))


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
            try:
                found = estimate_model(candidate.recipe, trainer.task.dataset, trainer.task.division.splits[0])
            except TrainingError as error:  # its models will fail, the others need not
                say(f"{name}: {error}")
                continue
            if found is None:
                continue
            total += len(models) * found.seconds
            count = f"{len(models)} {'model' if len(models) == 1 else 'models'}"
            say(
                f"{name}: about {found.step:.2g} s a step and {found.validation:.2g} s a validation; {count} of at "
                f"most {found.steps:,} steps: {duration(len(models) * found.seconds / jobs)}."
            )
    finally:
        torch.set_num_threads(threads)
    if total:
        say(
            f"A full run takes about {duration(total / jobs)} at the most, and less where validation stops gaining "
            "(training.patience). For less: --set training.max_steps=…"
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
        bar = _StepBar(worker, waiting, progress)
        with StopRequest() as stop, Jobs(worker.trainer, jobs) as pool, bar:
            while waiting or pool.busy:
                while waiting and pool.free and not stop.requested:
                    say(f"Begun: {waiting[0].title}{_time_left(worker.ledger, left, jobs)}", progress)
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
                        say(f"Finished: {cell.title}", progress)
                    elif isinstance(outcome.error, TrainingError):
                        told = str(outcome.error)
                        table.failures[cell] = told if cell.title in told else f"{cell.title}: {told}"
                        say(table.failures[cell], progress)
                    elif isinstance(outcome.error, Stopped):
                        unfinished = True
                    else:
                        raise outcome.error
                    for joint in [one for one in together if all(map(worker.is_done, worker.parts(one)))]:
                        together.remove(joint)
                        worker.do(joint)
                    table.write()
                bar.look(pool.busy)
            if unfinished or (stop.requested and together):
                raise Stopped
            for joint in together:  # whose models were done before
                if table.failures.keys().isdisjoint(worker.parts(joint)):
                    worker.do(joint)
                    table.write()
    finally:
        torch.set_num_threads(threads)
        worker.alone = True
        worker.clean([])


class _StepBar(Progress):
    """A progress bar over the steps of several models, as far as their logs tell."""

    def __init__(self, worker: BookWorker, cells: Sequence[Cell], progress: bool) -> None:
        self._book = worker.book
        self._steps = {cell: worker.trainer.steps(cell) for cell in cells if cell.kind == "separate"}
        self._seen = dict.fromkeys(self._steps, 0)
        super().__init__("steps at the most", sum(self._steps.values()), progress)

    def look(self, cells: Sequence[Cell]) -> None:
        """See how far the models in training are."""
        running = [cell for cell in cells if cell in self._seen]
        before = sum(self._seen.values())
        for cell in running:
            self._seen[cell] = max(self._seen[cell], _last_step(Run(self._book.run_folder(cell)).log_file))
        note = ", ".join(f"{cell.title}: {self._seen[cell]}" for cell in running)
        if (more := sum(self._seen.values()) - before) > 0:
            self.advance(more, note)

    def finish(self, cell: Cell) -> None:
        """A model is finished, which may be before its last step."""
        if cell in self._seen:
            self.advance(self._steps[cell] - self._seen.pop(cell))


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
