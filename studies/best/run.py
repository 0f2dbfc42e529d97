"""The best recipe for CUB-200-2011, by ablation: with a cached trunk, and with fine-tuned upper stages on cached maps.

    python studies/best/run.py trunk     which pretrained backbone: its raw features, nothing trained
    python studies/best/run.py head      cached trunk: losses, schedules, averages, dimensions
    python studies/best/run.py upper     cached lower stages, fine-tuned upper ones
    python studies/best/run.py report    the recipes `best` and `best-frozen` on the test classes
    python studies/best/run.py pages     docs/results/best.md and its picture

Classes 1-100 are divided into four folds; a candidate trains on three and is measured on the fourth, which also chooses
its weights. Candidates are compared on these validation classes alone; classes 101-200 are seen by `report` only. Each
finished cell is a line of `ledger.jsonl`; a run that is stopped goes on where it was (`report` keeps its models in
runs/best). Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np

from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.errors import NearkinError
from nearkin.metrics import retrieval_metrics
from nearkin.models import build_embedder
from nearkin.protocol.candidates import DataDivision, divide
from nearkin.protocol.ledger import concatenate
from nearkin.search import KReciprocal, Reranker
from nearkin.spaces import Sphere
from nearkin.storage import replacing
from nearkin.training import Run, TrainingResult, train
from studies.best.candidates import FOLDS, STUDIES, Candidate
from studies.best.page import RERANKED, TOGETHER, UNTRAINED, write_page
from studies.places import PLACE, located

LEDGER = located("studies/best/ledger.jsonl")
RUNS = PLACE / "runs" / "best"
CHOSEN = [Candidate("best", "best"), Candidate("best-frozen", "best-frozen")]


def measure(vectors: np.ndarray, labels: np.ndarray, rerank: Reranker | None = None) -> dict[str, Any]:
    """MAP@R and P@1 by cosine, and MAP@R of each class."""
    found = retrieval_metrics(vectors, labels, metrics=["MAP@R", "P@1"], rerank=rerank)
    classes = {name: round(value, 5) for name, value in sorted(found.per_class("MAP@R").items())}
    return {name: round(found.values[name], 5) for name in ("MAP@R", "P@1")} | {"classes": classes}


def embed(embedder: Any, items: Dataset) -> np.ndarray:
    return embed_items(embedder, items, cache_directory() / "features", progress=True)


def fit(dataset: Dataset, division: DataDivision, candidate: Candidate, fold: int, run: Run) -> TrainingResult:
    """Train on the classes of all folds but one, or go on with it."""
    result = train(
        dataset,
        candidate.load(),
        run,
        source="cub200",
        cache_directory=cache_directory() / "features",
        split=division.splits[fold - 1],
        resume=run.state_file.exists(),
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def facts(result: TrainingResult) -> dict[str, Any]:
    state, validated = result.state, result.embedder.card["validation"]["val_MAP@R"]
    seen = {"validation MAP@R": round(validated, 5), "best step": state.best_step}
    return seen | {"steps": state.step, "seconds": round(state.seconds, 1)}


def select(study: str, dataset: Dataset, division: DataDivision) -> None:
    """Do the cells of a study on validation classes that the ledger has not; decisive folds first."""
    done = {(row["candidate"], row["fold"]) for row in read_ledger() if row["study"] == study}
    candidates = STUDIES[study]()
    for fold in range(FOLDS + 1):
        for candidate in candidates:
            if fold in candidate.folds and (candidate.name, fold) not in done:
                row = _validated(dataset, division, candidate, fold)
                write_row({"study": study, "candidate": candidate.name, "fold": fold} | row)


def _validated(dataset: Dataset, division: DataDivision, candidate: Candidate, fold: int) -> dict[str, Any]:
    """The classes of a fold by a model that was trained on the others; fold 0: all of them by untrained features."""
    split = division.splits[max(fold - 1, 0)]
    if fold == 0:
        items = dataset.select(np.sort(np.concatenate([split.train, split.val])))
        return measure(embed(build_embedder(candidate.load().model, seed=0), items), items.labels)
    with tempfile.TemporaryDirectory() as folder:
        result = fit(dataset, division, candidate, fold, Run(Path(folder) / "run"))
    items = dataset.select(split.val)
    return measure(result.embedder.encode(items, progress=False), items.labels) | facts(result)


def report(dataset: Dataset, division: DataDivision) -> None:
    """The chosen recipes on the test classes: the model of each fold, all together, and these re-ranked."""
    items = dataset.select(division.test)
    for candidate in CHOSEN:
        row = {"study": "report", "candidate": candidate.name}
        done = {other["fold"] for other in read_ledger() if row.items() <= other.items()}
        if RERANKED in done:
            continue
        if UNTRAINED not in done:
            raw = candidate.load().model.model_copy(update={"dimension": None, "freeze": "all"})
            vectors = embed(build_embedder(raw, seed=0), items)
            write_row(row | {"fold": UNTRAINED} | measure(vectors, items.labels))
        parts = []
        for fold in range(1, FOLDS + 1):
            kept = RUNS / candidate.name / f"fold{fold}.npy"
            if fold not in done or not kept.exists():
                result = fit(dataset, division, candidate, fold, Run(kept.with_suffix("")))
                vectors = embed(result.embedder, items)
                with replacing(kept) as path, path.open("wb") as file:
                    np.save(file, vectors)
                if fold not in done:
                    write_row(row | {"fold": fold} | measure(vectors, items.labels) | facts(result))
            parts.append(np.load(kept))
        joined, _ = concatenate(parts, Sphere())
        if TOGETHER not in done:
            write_row(row | {"fold": TOGETHER} | measure(joined, items.labels))
        write_row(row | {"fold": RERANKED} | measure(joined, items.labels, KReciprocal()))


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text(encoding="utf-8").splitlines()] if LEDGER.exists() else []


def write_row(row: dict[str, Any]) -> None:
    with open(LEDGER, "a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(row) + "\n")
    print({key: value for key, value in row.items() if key != "classes"}, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=[*STUDIES, "report", "pages"])
    parser.add_argument("--data-root", type=Path, help="where cub200.zip is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    try:
        if arguments.what == "pages":
            write_page(read_ledger())
            return 0
        dataset = open_data("cub200", data_root=arguments.data_root)
        division = divide(dataset, STUDIES["trunk"]()[0].load().data, "fair", FOLDS)
        if arguments.what == "report":
            report(dataset, division)
        else:
            select(arguments.what, dataset, division)
    except KeyboardInterrupt:
        return 130
    except NearkinError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
