"""Doing the cells of a book: train, embed, measure, write down, clean up; in an order that a crash cannot spoil."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin._version import __version__
from nearkin.audits.subject import embed_items, untrained_features
from nearkin.data.dataset import Dataset
from nearkin.errors import TrainingError
from nearkin.models import build_embedder
from nearkin.protocol.book import Book, Contents
from nearkin.protocol.candidates import Candidate
from nearkin.protocol.cells import Cell, cells_of
from nearkin.protocol.division import Division
from nearkin.protocol.ledger import DIGITS, Ledger
from nearkin.protocol.measuring import HeldOut, concatenate
from nearkin.protocol.summary import UNTRAINED_CELL
from nearkin.spaces import Sphere, make_space
from nearkin.storage import replacing
from nearkin.training import Run, TrainingResult, train


class Stopped(Exception):
    """Training was asked to stop; it is saved."""


@dataclass(frozen=True)
class Surroundings:
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


class Worker:
    """Does the cells of a book.

    Args:
        book: where everything is kept.
        contents: what the book is about.
        ledger: what is done.
        dataset: all the data.
        division: how it is divided.
        held_out: the test items.
        candidates: name to candidate.
        around: what training needs besides.
    """

    def __init__(
        self,
        book: Book,
        contents: Contents,
        ledger: Ledger,
        dataset: Dataset,
        division: Division,
        held_out: HeldOut,
        candidates: Sequence[Candidate],
        around: Surroundings,
    ) -> None:
        self.book = book
        self.contents = contents
        self.ledger = ledger
        self.dataset = dataset
        self.division = division
        self.held_out = held_out
        self.candidates = {candidate.name: candidate for candidate in candidates}
        self.around = around

    def is_done(self, cell: Cell) -> bool:
        """Whether nothing is left to do; a model whose embeddings the concatenation lacks has to be made again."""
        if cell not in self.ledger or cell.fold is None:
            return cell in self.ledger
        together = Cell(cell.recipe, "concatenated", cell.seed)
        return together in self.ledger or self.book.embedding_file(cell).exists()

    def do(self, cell: Cell) -> None:
        """Do a cell that is not done."""
        if cell.kind == "separate":
            self._model(cell)
        else:
            self._together(cell)

    def measure_untrained(self) -> None:
        """Measure what the first candidate's backbone gives without training."""
        if UNTRAINED_CELL in self.ledger:
            return
        recipe = next(iter(self.candidates.values())).recipe
        embedder = build_embedder(recipe.model, seed=0, audio_seconds=recipe.data.audio_seconds)
        items, around = self.held_out.items, self.around
        name, features = untrained_features(embedder, items, around.cache_directory, around.progress)
        backbone = f" of {embedder.backbone_name}" if embedder.pretrained else ""
        self.contents.untrained = f"{name}{backbone}"
        self.book.save(self.contents)
        if features is not None:
            measured = self.held_out.measure(features, Sphere())
            self.ledger.add(UNTRAINED_CELL, measured, self._facts(UNTRAINED_CELL, 0.0))

    def clean(self, cells: Sequence[Cell]) -> None:
        """Remove what cells that are done have left behind."""
        for cell in cells:
            if cell in self.ledger and not self.around.keep_runs:
                shutil.rmtree(self.book.run_folder(cell), ignore_errors=True)
            if Cell(cell.recipe, "concatenated", cell.seed) in self.ledger:
                self.book.embedding_file(cell).unlink(missing_ok=True)
        self.book.tidy()

    def _model(self, cell: Cell) -> None:
        """Train a model and measure it by itself."""
        result = self._train(cell)
        began = time.monotonic()
        embedder, around = result.embedder, self.around
        embeddings = embed_items(embedder, self.held_out.items, around.cache_directory, around.progress)
        if cell.fold is not None:
            with replacing(self.book.embedding_file(cell)) as temporary, open(temporary, "wb") as handle:
                np.save(handle, embeddings)
        if cell not in self.ledger:
            measured = self.held_out.measure(embeddings, embedder.space)
            seconds = result.state.seconds + time.monotonic() - began
            self.ledger.add(cell, measured, self._facts(cell, seconds, result))
        self.clean([cell])

    def _train(self, cell: Cell) -> TrainingResult:
        """Train a model, going on where an earlier attempt was stopped."""
        run = Run(self.book.run_folder(cell))
        if not run.recipe_file.exists():
            shutil.rmtree(run.path, ignore_errors=True)  # killed before there was anything to resume
        try:
            result = train(
                self.dataset,
                self.candidates[cell.recipe].seeded(cell.seed or 0),
                run,
                source=self.around.source,
                cache_directory=self.around.cache_directory,
                notes=self.around.notes,
                resume=run.recipe_file.exists(),
                progress=self.around.progress,
                split=self.division.splits[(cell.fold or 1) - 1],
            )
        except TrainingError as error:
            raise TrainingError(f"{cell.title}: {error}") from error
        if result.interrupted:
            raise Stopped
        return result

    def _together(self, cell: Cell) -> None:
        """Measure the models of all folds together."""
        siblings = cells_of(cell.recipe, cell.seed or 0, len(self.division.splits))
        folds = [other for other in siblings if other.kind == "separate"]
        section = self.candidates[cell.recipe].recipe.model
        space = make_space(section.space, **section.space_parameters)
        parts = [np.load(self.book.embedding_file(fold), allow_pickle=False) for fold in folds]
        began = time.monotonic()
        measured = self.held_out.measure(*concatenate(parts, space))
        self.ledger.add(cell, measured, self._facts(cell, time.monotonic() - began))
        self.clean(folds)

    def _facts(self, cell: Cell, seconds: float, result: TrainingResult | None = None) -> dict[str, Any]:
        """What a line of the ledger says besides the measured values."""
        candidate = self.candidates.get(cell.recipe)
        state = None if result is None else result.state
        fair = self.contents.protocol == "fair"
        return {
            "hash": None if candidate is None else candidate.digest(),
            "protocol": self.contents.protocol,
            "selected_on": None if candidate is None else "validation classes" if fair else "test classes",
            "validation_MAP@R": None if state is None else round(state.best_value, DIGITS),
            "steps": None if state is None else state.step,
            "best_step": None if state is None else state.best_step,
            "seconds": round(seconds, 2),
            "versions": {"nearkin": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
