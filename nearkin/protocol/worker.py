"""The models of a book: trained and measured, one by one or several at once in processes of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from nearkin._version import __version__
from nearkin.audits.subject import embed_items, untrained_features
from nearkin.data.dataset import Dataset
from nearkin.errors import CheckpointError, NearkinError, RunError, TrainingError
from nearkin.models import build_embedder
from nearkin.protocol.book import Book, Contents
from nearkin.protocol.candidates import UNTRAINED_CELL, Candidate, Cell, DataDivision, cells_of
from nearkin.protocol.ledger import DIGITS, HeldOut, Ledger, Measurement, concatenate
from nearkin.recipe import Recipe
from nearkin.spaces import Sphere, make_space
from nearkin.training import Run, TrainingResult, train

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext


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


class Trained(NamedTuple):
    """What came of training and measuring a model.

    Attributes:
        measured: how it did on the test items; None if there is nothing to measure.
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
        self.book, self.contents, self.task, self.around = book, contents, task, around
        self.candidates = {candidate.name: candidate for candidate in candidates}

    def __call__(self, cell: Cell) -> Trained:
        """Train the model of a cell and measure it; of all folds, its test embeddings are kept."""
        if cell == UNTRAINED_CELL:
            return self.untrained()
        result = self._train(cell)
        began = time.monotonic()
        embedder, around, held_out = result.embedder, self.around, self.task.held_out
        embeddings = embed_items(embedder, held_out.items, around.cache_directory, around.progress)
        if cell.fold is not None:
            self.book.keep_embeddings(cell, embeddings)
        measured = held_out.measure(embeddings, embedder.space)
        return Trained(measured, self.facts(cell, result.state.seconds + time.monotonic() - began, result))

    def untrained(self) -> Trained:
        """Measure what the first candidate's backbone gives without training."""
        recipe = next(iter(self.candidates.values())).recipe
        embedder = build_embedder(recipe.model, seed=0, audio_seconds=recipe.data.audio_seconds)
        held_out, around = self.task.held_out, self.around
        name, features = untrained_features(embedder, held_out.items, around.cache_directory, around.progress)
        backbone = f" of {embedder.backbone_name}" if embedder.pretrained else ""
        measured = None
        if features is not None:
            measured = held_out.measure(Sphere().project(torch.from_numpy(features)).numpy(), Sphere())
        return Trained(measured, self.facts(UNTRAINED_CELL, 0.0), f"{name}{backbone}")

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
        around, split = self.around, self.task.division.splits[(cell.fold or 1) - 1]
        result = train(
            self.task.dataset,
            recipe,
            Run(self.book.run_folder(cell)),
            source=around.source,
            cache_directory=around.cache_directory,
            notes=around.notes,
            resume=resume,
            progress=around.progress,
            split=split,
        )
        if result.interrupted:
            raise Stopped
        return result

    def facts(self, cell: Cell, seconds: float, result: TrainingResult | None = None) -> dict[str, Any]:
        """What a line of the ledger holds besides the measured values."""
        recipe = self.contents.recipes.get(cell.recipe)
        state = None if result is None else result.state
        validation = None if result is None else result.embedder.card.validation or {}
        return {
            "hash": None if recipe is None else recipe["hash"],
            "protocol": self.contents.protocol,
            "selected_on": None if recipe is None else self.contents.selected_on,
            "validation_MAP@R": None if validation is None else round(validation["val_MAP@R"], DIGITS),
            "steps": None if state is None else state.step,
            "best_step": None if state is None else state.best_step,
            "seconds": round(seconds, 2),
            "versions": {"nearkin": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }


class BookWorker:
    """Does the cells of a book.

    Args:
        trainer: makes and measures its models.
        ledger: what is done.
    """

    def __init__(self, trainer: ModelTrainer, ledger: Ledger) -> None:
        self.trainer, self.ledger = trainer, ledger
        self.book, self.contents, self.held_out = trainer.book, trainer.contents, trainer.task.held_out
        self.alone = True
        """Whether nothing else trains in the book; folders that others may be about to use stay."""

    def is_done(self, cell: Cell) -> bool:
        """Whether nothing is left to do; a model whose embeddings are missing for a concatenation is trained again."""
        if cell not in self.ledger or cell.fold is None:
            return cell in self.ledger
        together = Cell(cell.recipe, "concatenated", cell.seed)
        return together in self.ledger or self._embeddings(cell) is not None

    def parts(self, cell: Cell) -> list[Cell]:
        """The models that a concatenation puts together; none of a single model."""
        if cell.kind != "concatenated":
            return []
        siblings = cells_of(cell.recipe, cell.seed or 0, len(self.trainer.task.division.splits))
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

    def enter(self, cell: Cell, found: Trained, kept: bool) -> None:
        """Write down what was found of a model; its run is removed unless it is kept."""
        if cell == UNTRAINED_CELL:
            self.contents.untrained = found.name
            self.book.save(self.contents)
        if cell not in self.ledger and found.measured is not None:
            self.ledger.add(cell, found.measured, found.facts)
        if cell != UNTRAINED_CELL:
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


K = TypeVar("K")

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CONTEXT: ForkServerContext | SpawnContext
if "forkserver" in multiprocessing.get_all_start_methods():
    _CONTEXT = multiprocessing.get_context("forkserver")
    _CONTEXT.set_forkserver_preload([__name__])  # imported once, by the process that all others are forked from
else:
    _CONTEXT = multiprocessing.get_context("spawn")

_PATIENCE = 10.0
"""Seconds that an idle process has to end."""


class Stopped(Exception):
    """Work was stopped and can be resumed."""


class Outcome(NamedTuple):
    """What came of a piece of work.

    Attributes:
        value: what was found; None if nothing was.
        error: why nothing was found; `Stopped` if it was asked to stop.
    """

    value: Any = None
    error: Exception | None = None


class Jobs(Generic[K]):
    """Processes that do pieces of work, at most `count` at once; use as a context manager.

    They are in a session of their own, so Ctrl-C reaches only the process that started them, which then calls `stop`.
    When it dies, they end, too.

    Args:
        do: what to do with a piece of work; both must be picklable, and so must what it returns. It raises `Stopped`
            if SIGTERM asked it to stop.
        count: how many processes.
    """

    def __init__(self, do: Callable[[K], Any], count: int) -> None:
        self._do = do
        self._count = count
        self._idle: list[tuple[BaseProcess, Connection]] = []
        self._busy: dict[Connection, tuple[BaseProcess, K]] = {}
        self._stopping = False

    def __enter__(self) -> Jobs[K]:
        return self

    @property
    def busy(self) -> list[K]:
        """The pieces that are in work."""
        return [piece for _, piece in self._busy.values()]

    @property
    def free(self) -> bool:
        """Whether another piece can be begun now."""
        return len(self._busy) < self._count and not self._stopping

    def begin(self, piece: K) -> None:
        """Begin a piece of work."""
        process, connection = self._idle.pop() if self._idle else self._start()
        connection.send(piece)
        self._busy[connection] = (process, piece)

    def finished(self, seconds: float) -> list[tuple[K, Outcome]]:
        """What was finished, waiting so long for the first; a process that died is an outcome with an error."""
        found = []
        for ready in wait(list(self._busy), timeout=seconds):
            connection: Connection = ready  # type: ignore[assignment]
            process, piece = self._busy.pop(connection)
            try:
                outcome: Outcome = connection.recv()
                self._idle.append((process, connection))
            except (EOFError, OSError):
                process.join()
                outcome = Outcome(error=Stopped() if self._stopping else _died(process))
                connection.close()
            found.append((piece, outcome))
        return found

    def stop(self) -> None:
        """Ask all processes to stop where they can be resumed; they are still to be waited for by `finished`."""
        if self._stopping:
            return
        self._stopping = True
        for process, _ in self._busy.values():
            process.terminate()

    def __exit__(self, *_: object) -> None:
        for process, _piece in self._busy.values():
            process.kill()
        for process, connection in self._idle:
            with suppress(OSError):
                connection.send(None)
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
            connection.close()

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_work, args=(theirs, self._do))
        with _one_thread():
            process.start()
        theirs.close()
        return process, ours


def _died(process: BaseProcess) -> TrainingError:
    code = process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return TrainingError(f"Its process {how}: if the memory was too small, use fewer jobs or smaller batches.")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Inside the block, processes that start have one thread for each library."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name in _ONE_THREAD:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _work(connection: Connection, do: Callable[[Any], Any]) -> None:
    """Do pieces of work until there are no more; runs in a process of its own."""
    if hasattr(os, "setsid"):
        os.setsid()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError):
        while (piece := connection.recv()) is not None:
            connection.send(_attempt(do, piece))


def _attempt(do: Callable[[Any], Any], piece: Any) -> Outcome:
    try:
        return Outcome(do(piece))
    except (Stopped, NearkinError) as error:
        return Outcome(error=error)
    except KeyboardInterrupt:
        return Outcome(error=Stopped())
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return Outcome(error=RuntimeError(f"{type(error).__name__}: {error}"))


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one, however it comes, and end at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
