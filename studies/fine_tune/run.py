"""Fine-tuning whole networks on CUB-200-2011: which rate, size, loss and pooling, and what each method adds.

    python studies/fine_tune/run.py pilots --data CUB256 --work DIR    600 steps each, one thing changed at a time
    python studies/fine_tune/run.py folds ...                          what the pilots chose, for long, four folds
    python studies/fine_tune/run.py methods ...                        the same with CCP, GSP, an adversary; two folds
    python studies/fine_tune/run.py report ...                         the models of `folds` on the test classes

CUB256 is what `prepare.py` makes, or any folder with CUB-200-2011 in its published layout. DIR, outside the checkout,
keeps the runs: their checkpoints, logs and models. Each finished cell is a line of `ledger.jsonl`; whoever starts the
same command again goes on where it was, in the middle of a run too. Several processes may work side by side with the
same DIR and ledger: a cell is taken with a lock, and left to others while it is held. Each uses one thread.

Classes 1-100 are cut, in order, into four folds; a cell trains on three of them and is measured on the fourth, which
also chooses its weights. Cells are compared on these validation classes alone; classes 101-200 are seen by `report`
only: each model of the winner, all four concatenated, and these re-ranked.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

import argparse
import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch

from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import Split, class_folds
from nearkin.errors import NearkinError, StorageError
from nearkin.metrics import retrieval_metrics
from nearkin.protocol.ledger import concatenate
from nearkin.search import KReciprocal, Reranker
from nearkin.spaces import Sphere
from nearkin.storage import WriterLock
from nearkin.training import Run, TrainingResult, train
from studies.fine_tune.candidates import FOLDS, STAGES, Candidate
from studies.places import located

LEDGER = located("studies/fine_tune/ledger.jsonl")
MEASURES = ("MAP@R", "P@1")


def division(dataset: Dataset, fold: int) -> Split:
    """Training and validation items of a fold, whose classes are a run of the sorted training classes."""
    trains = dataset.manifest.column("split") == "train"
    pool = np.flatnonzero(trains)
    made = class_folds(dataset.labels[pool], FOLDS, order="contiguous")[fold - 1]
    return Split(pool[made.train], pool[made.val], np.flatnonzero(~trains))


def measure(vectors: np.ndarray, labels: np.ndarray, rerank: Reranker | None = None) -> dict[str, Any]:
    """Means over queries, and MAP@R of each class."""
    found = retrieval_metrics(vectors, labels, metrics=list(MEASURES), rerank=rerank)
    means = {name: round(float(np.mean(found.per_query[name], dtype=np.float64)), 5) for name in MEASURES}
    classes = {name: round(value, 5) for name, value in sorted(found.per_class("MAP@R").items())}
    return means | {"classes": classes}


def finish(dataset: Dataset, candidate: Candidate, fold: int, folder: Path) -> dict[str, Any] | None:
    """Train a cell or go on with it; None if it was interrupted."""
    clock, began = _Processor(folder / "processor.jsonl"), time.time()
    run, split = Run(folder / "run"), division(dataset, fold)
    try:
        result = train(
            dataset,
            candidate.load(),
            run,
            source="cub200",
            cache_directory=folder / "features",
            split=split,
            resume=run.recipe_file.exists(),
        )
    finally:
        clock.note()
    if result.interrupted:
        return None
    items = dataset.select(split.val)
    found = measure(result.embedder.encode(items, progress=False, workers=1), items.labels)
    clock.note()
    return found | facts(result, run) | {"processor seconds": round(clock.total()), "began": round(began)}


def facts(result: TrainingResult, run: Run) -> dict[str, Any]:
    """How the run went: validation after step 0, and at which step it was best."""
    curve = [
        [row["step"], *(round(row[f"val_{name}"], 5) for name in MEASURES)]
        for row in run.history()
        if "val_MAP@R" in row
    ]
    raw = next((row for row in run.history() if "raw_MAP@R" in row), {})
    state = result.state
    return {
        "raw": {name: round(raw[f"raw_{name}"], 5) for name in MEASURES if f"raw_{name}" in raw},
        "curve": curve,
        "best step": state.best_step,
        "steps": state.step,
        "seconds": round(state.seconds, 1),
    }


class _Processor:
    """Processor seconds of this process and its children, added up over the times that a cell was worked on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.since = _used()

    def note(self) -> None:
        now = _used()
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{now - self.since:.1f}\n")
        self.since = now

    def total(self) -> float:
        return sum(map(float, self.path.read_text(encoding="utf-8").split()))


def _used() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def work(stage: str, dataset: Dataset, place: Path) -> bool:
    """Do the cells of a stage that the ledger has not and nobody else is at; False if it was interrupted."""
    candidates = STAGES[stage]()
    for turn in range(max(len(candidate.folds) for candidate in candidates)):
        for candidate in candidates:
            if turn >= len(candidate.folds):
                continue
            fold = candidate.folds[turn]
            cell = {"stage": stage, "candidate": candidate.name, "fold": fold}
            folder = _folder(place, stage, candidate, fold)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with WriterLock(folder).held():
                    if any(cell.items() <= row.items() for row in read_ledger()):
                        continue
                    row = finish(dataset, candidate, fold, folder)
                    if row is None:
                        return False
                    write_row(cell | row)
            except StorageError as taken:
                print(f"{candidate.name}, fold {fold}: {taken}", flush=True)
    return True


def report(dataset: Dataset, place: Path) -> None:
    """The models of the stage `folds` on the test classes: each, all concatenated, and these re-ranked."""
    (candidate,) = STAGES["folds"]()
    items = dataset.select(division(dataset, 1).test)
    models = [Run(_folder(place, "folds", candidate, fold) / "run").model() for fold in candidate.folds]
    parts = [model.encode(items, progress=True) for model in models]
    joined, _ = concatenate(parts, Sphere())
    found: list[tuple[Any, np.ndarray, Reranker | None]] = list(
        zip(candidate.folds, parts, [None] * FOLDS, strict=True)
    )
    found += [("concatenated", joined, None), ("concatenated, re-ranked", joined, KReciprocal())]
    for fold, vectors, rerank in found:
        cell = {"stage": "report", "candidate": candidate.name, "fold": fold}
        if not any(cell.items() <= row.items() for row in read_ledger()):
            write_row(cell | measure(vectors, items.labels, rerank))


def _folder(place: Path, stage: str, candidate: Candidate, fold: int) -> Path:
    """Where a cell keeps its run."""
    return place / stage / f"{re.sub('[^a-z0-9.]+', '-', candidate.name.lower())}-fold{fold}"


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text(encoding="utf-8").splitlines()] if LEDGER.exists() else []


def write_row(row: dict[str, Any]) -> None:
    with open(LEDGER, "a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(row) + "\n")
    print({key: value for key, value in row.items() if key != "classes"}, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stage", choices=[*STAGES, "report"])
    parser.add_argument("--data", type=Path, required=True, help="the folder that prepare.py made")
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept, outside the checkout")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        dataset = open_data("cub200", data_root=arguments.data)
        if arguments.stage == "report":
            report(dataset, arguments.work)
            return 0
        return 0 if work(arguments.stage, dataset, arguments.work) else 130
    except KeyboardInterrupt:
        return 130
    except NearkinError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
