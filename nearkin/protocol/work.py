"""Doing the cells of a book: train, embed, measure, write down, clean up; in an order that a crash cannot spoil."""

from __future__ import annotations

import json
import platform
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
from nearkin.errors import CheckpointError, NearkinError, RunError, TrainingError
from nearkin.models import build_embedder
from nearkin.protocol.book import Book
from nearkin.protocol.candidates import Candidate
from nearkin.protocol.cells import UNTRAINED_CELL, Cell, cells_of
from nearkin.protocol.contents import Contents
from nearkin.protocol.division import Division
from nearkin.protocol.ledger import DIGITS, Ledger
from nearkin.protocol.measuring import HeldOut, concatenate
from nearkin.recipe import Recipe
from nearkin.spaces import Sphere, make_space
from nearkin.training import Run, TrainingResult, train


class Stopped(Exception):
    """Training was asked to stop; it is saved."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned from, and what is measured on.

    Args:
        dataset: all the data.
        division: how it is divided.
        held_out: the test items.
    """

    dataset: Dataset
    division: Division
    held_out: HeldOut


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
        around: Surroundings,
    ) -> None:
        self.book = book
        self.contents = contents
        self.ledger = ledger
        self.dataset = task.dataset
        self.division = task.division
        self.held_out = task.held_out
        self.candidates = {candidate.name: candidate for candidate in candidates}
        self.around = around

    def is_done(self, cell: Cell) -> bool:
        """Whether nothing is left to do; a model whose embeddings the concatenation lacks has to be made again."""
        if cell not in self.ledger or cell.fold is None:
            return cell in self.ledger
        together = Cell(cell.recipe, "concatenated", cell.seed)
        return together in self.ledger or self._embeddings(cell) is not None

    def parts(self, cell: Cell) -> list[Cell]:
        """The models that a concatenation puts together; none of a single model."""
        if cell.kind != "concatenated":
            return []
        siblings = cells_of(cell.recipe, cell.seed or 0, len(self.division.splits))
        return [other for other in siblings if other.kind == "separate"]

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
            space = Sphere()
            measured = self.held_out.measure(space.project(torch.from_numpy(features)).numpy(), space)
            self.ledger.add(UNTRAINED_CELL, measured, self._facts(UNTRAINED_CELL, 0.0))

    def clean(self, cells: Sequence[Cell]) -> None:
        """Remove what cells that are done have left unfinished; runs that were kept stay."""
        for cell in cells:
            if cell.kind == "separate" and self.is_done(cell) and not _is_finished(Run(self.book.run_folder(cell))):
                self.book.drop_run(cell)
            if Cell(cell.recipe, "concatenated", cell.seed) in self.ledger:
                self.book.embedding_file(cell).unlink(missing_ok=True)
        self.book.tidy()

    def _model(self, cell: Cell) -> None:
        """Train a model and measure it by itself."""
        # A model that is measured and made again for its embeddings may have a run that somebody asked to keep.
        kept = self.around.keep_runs or (cell in self.ledger and _is_finished(Run(self.book.run_folder(cell))))
        result = self._train(cell)
        began = time.monotonic()
        embedder, around = result.embedder, self.around
        embeddings = embed_items(embedder, self.held_out.items, around.cache_directory, around.progress)
        if cell.fold is not None:
            self.book.keep_embeddings(cell, embeddings)
        if cell not in self.ledger:
            measured = self.held_out.measure(embeddings, embedder.space)
            seconds = result.state.seconds + time.monotonic() - began
            self.ledger.add(cell, measured, self._facts(cell, seconds, result))
        if not kept:
            self.book.drop_run(cell)
        self.clean([cell])

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
        """The recipe with which a model's training was begun; None if there is nothing to go on from.

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

    def _together(self, cell: Cell) -> None:
        """Measure the models of all folds together."""
        folds = self.parts(cell)
        section = self.candidates[cell.recipe].recipe.model
        space = make_space(section.space, **section.space_parameters)
        parts = [self._embeddings(fold) for fold in folds]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            raise RunError(f"Files of {self.book.embeddings} were taken away: the same benchmark makes them again.")
        began = time.monotonic()
        measured = self.held_out.measure(*concatenate(whole, space))
        self.ledger.add(cell, measured, self._facts(cell, time.monotonic() - began))
        self.clean(folds)

    def _embeddings(self, cell: Cell) -> np.ndarray | None:
        return self.book.kept_embeddings(cell, len(self.held_out.items))

    def _facts(self, cell: Cell, seconds: float, result: TrainingResult | None = None) -> dict[str, Any]:
        """What a line of the ledger says besides the measured values."""
        recipe = self.contents.recipes.get(cell.recipe)
        state = None if result is None else result.state
        return {
            "hash": None if recipe is None else recipe["hash"],
            "protocol": self.contents.protocol,
            "selected_on": None if recipe is None else self.contents.selected_on,
            "validation_MAP@R": None
            if result is None
            else round(result.embedder.card["validation"]["val_MAP@R"], DIGITS),
            "steps": None if state is None else state.step,
            "best_step": None if state is None else state.best_step,
            "seconds": round(seconds, 2),
            "versions": {"nearkin": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }


def _is_finished(run: Run) -> bool:
    """Whether a run came to its end, which a stopped one did not."""
    try:
        return bool(json.loads(run.card_file.read_text(encoding="utf-8"))["finished"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
