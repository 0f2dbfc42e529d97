"""A learned similarity for classes it has never seen: which form, which training; and does it keep up with softmax?

    python studies/similarity_forms/run.py cub       head on a trunk, unseen birds of CUB-200-2011, every form
    python studies/similarity_forms/run.py cub20     the same with the first 20 images of each class, in 500 steps
    python studies/similarity_forms/run.py emoji     388 unseen emoji, each as six designers draw it, after 100 others
    python studies/similarity_forms/run.py cifar     100 classes that are known, against softmax of as many steps
    python studies/similarity_forms/run.py pacs      each of four domains left out in turn
    python studies/similarity_forms/run.py cub --trunk runs/cub-fold1           on another trunk: a run or model file
    python studies/similarity_forms/run.py pacs --trunk runs/pacs-{domain}      one for each domain that is left out
    python studies/similarity_forms/run.py trunks --work runs                   fine-tunes these four, 500 steps each
    python studies/similarity_forms/run.py --pages                              the tables, from what is finished

Each finished model is a line of `ledger.jsonl`, seed by seed; the same command goes on where it was, and a model that
was stopped begins anew. `--cells` and `--seeds` choose some. A trunk keeps the classes that it was validated on: they
choose the weights here too. It needs the data: NEARKIN_DATA or --data-root. Estimates in minutes of one core: cub 35,
cub20 10, emoji 10, cifar 25, pacs 20, trunks 50; a trunk for images of 224 px adds 10 for its features. None was timed
on a quiet machine.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch
from torch import Tensor

from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import Split, resolve_split
from nearkin.metrics import retrieval_metrics, verification_from_scores
from nearkin.metrics.labels import label_codes
from nearkin.metrics.pairs import draw_trials
from nearkin.models import Embedder, FeatureCache, SimilarityModel, build_embedder, cache_point
from nearkin.models.similarity_sides import fused
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe, load_recipe
from nearkin.training import Run, TrainingResult, train
from studies.places import located
from studies.unified.measures import classes_named
from studies.unified.parts import DOMAINS

LEDGER = located("studies/similarity_forms/ledger.jsonl")
IMAGENET = "imagenet"
WAYS = ("cosine", "sim", "cosine+sim", "raw-sum")
MEASURES = ("MAP@R", "Recall@1")
TRIALS = 20_000
SEEDS = (0, 1, 2)

SOFTMAX, PAPER, EARLIER, DIFFERENCE = "softmax", "concatenation", "concatenation, earlier settings", "difference"
DEEP, WHITENED, UNTRAINED = "difference, depth 2", "difference, whitened head", "untrained"
_FORM = "model.similarity.form=difference"
CELLS: dict[str, tuple[str, list[str]]] = {
    UNTRAINED: ("pretrained", []),
    SOFTMAX: ("softmax", ["model.head_start=random"]),
    PAPER: ("learned-similarity", []),
    DIFFERENCE: ("learned-similarity", [_FORM]),
    WHITENED: ("learned-similarity", [_FORM, "model.head_start=whitened", "training.lr=1e-4"]),
    DEEP: ("learned-similarity", [_FORM, "model.similarity.depth=2"]),
    EARLIER: (
        "learned-similarity",
        ["model.space=euclidean", "objective.parameters={label_smoothing: 0, target_spread: 0}"],
    ),
}
"""Name of a cell to its recipe and what it changes. The earlier settings: no smoothing, embeddings of any length."""
_PLAIN = ["training.optimizer=adam", "training.weight_decay=0", "training.patience=null", "training.lr=1e-3"]
_SAME = [*_PLAIN, "data.workers=0", "model.dimension=128", "training.lr_schedule=constant"]


@dataclass(frozen=True)
class Part:
    """What is asked: the data, what every recipe changes, and who takes part, in this order."""

    source: str
    changes: list[str]
    cells: tuple[str, ...]
    cases: tuple[str, ...] = ("",)
    each: int | None = None
    train_classes: int | None = None

    def fewer(self, split: Split, labels: np.ndarray, seed: int) -> Split:
        """The split with as many training classes as the part has, drawn by the seed."""
        if self.train_classes is None:
            return split
        names = np.random.default_rng(seed).permutation(np.unique(labels[split.train]))[: self.train_classes]
        return Split(split.train[np.isin(labels[split.train], names)], split.val, split.test)

    def select(self, dataset: Dataset) -> Dataset:
        """The first items of every class, as many as the part has of each."""
        if self.each is None:
            return dataset
        ids = dataset.class_ids()
        chosen = [np.flatnonzero(ids == one)[: self.each] for one in np.unique(ids)]
        return dataset.select(np.sort(np.concatenate(chosen)))


def _steps(classes: int, each: int, steps: int, every: int) -> list[str]:
    batch = [f"data.classes_per_batch={classes}", f"data.per_class={each}"]
    return [*batch, f"training.max_steps={steps}", f"training.evaluate_every={every}"]


_BIRDS = ["model.size=128", "data.split=column", "data.val_classes=0.2"]
PARTS = {
    "cub": Part(
        "cub200",
        [*_steps(16, 4, 1000, 100), *_BIRDS],
        (PAPER, DIFFERENCE, WHITENED, SOFTMAX, UNTRAINED, DEEP, EARLIER),
    ),
    "cub20": Part(
        "cub200",
        [*_steps(16, 4, 500, 100), *_BIRDS],
        (PAPER, DIFFERENCE, WHITENED, UNTRAINED, EARLIER, DEEP, SOFTMAX),
        each=20,
    ),
    "emoji": Part(
        "emoji",
        [*_steps(16, 4, 400, 200), "data.split=column", "data.val_classes=0.05"],
        (PAPER, DIFFERENCE, UNTRAINED, EARLIER, DEEP, SOFTMAX, WHITENED),
        train_classes=100,
    ),
    "cifar": Part(
        "cifar100",
        [*_steps(32, 2, 2000, 200), "model.size=96", "data.split=items", "data.val_items=0.1"],
        (SOFTMAX, PAPER, EARLIER, DIFFERENCE),
    ),
    "pacs": Part(
        "pacs",
        [*_steps(7, 8, 1000, 100), "model.size=112", "model.cache_views={flip: false}", "data.split=domains",
         "data.val_items=0.1"],
        (SOFTMAX, PAPER, DIFFERENCE),
        DOMAINS,
    ),
}  # fmt: skip
"""The number of steps is the same for all cells of a part."""


@dataclass(frozen=True)
class Cell:
    """A model to be trained."""

    part: str
    name: str
    seed: int
    case: str = ""

    def recipe(self, trunk: Trunk | None = None, more: Sequence[str] = ()) -> Recipe:
        """How it is trained, on the trunk of its part or on another."""
        part, (base, changes) = PARTS[self.part], CELLS[self.name]
        own = [f"data.test_domains=[{self.case}]"] if self.case else []
        own += [f"training.seed={self.seed}", *(trunk.overrides() if trunk else []), *more]
        if self.name == UNTRAINED:
            size = [change for change in part.changes if change.startswith(("model.size=", "data.split", "data.val"))]
            return load_recipe(base, [*size, *own])
        return load_recipe(base, [*_SAME, *part.changes, *changes, *own])

    def key(self, trunk: Trunk | None) -> dict[str, Any]:
        """What tells its line in the ledger from others; the place of a trunk's file does not matter."""
        told = {"part": self.part, "cell": self.name, "case": self.case, "seed": self.seed}
        digest = Candidate("cell", self.recipe()).digest()
        return {**told, "trunk": trunk.name if trunk else IMAGENET, "recipe": digest}


@dataclass(frozen=True)
class Trunk:
    """A run or model file whose backbone takes the place of the pretrained one."""

    path: Path
    name: str
    model: Embedder

    @classmethod
    def read(cls, path: Path, case: str) -> Trunk:
        """The trunk of a file; refuses one that has seen what is left out."""
        file = path / "model.safetensors" if path.is_dir() else path
        model = Embedder.load(file)
        seen = model.card.domains
        if case and (seen is None or case in seen.train or case in seen.val):
            raise SystemExit(f"{file} was not trained without '{case}': give the trunk of that domain, by {{domain}}.")
        return cls(path, hashlib.sha256(file.read_bytes()).hexdigest()[:12], model)

    def overrides(self) -> list[str]:
        """What a recipe changes to begin from it."""
        spec = self.model.spec
        shape = [f"model.backbone={self.model.backbone_name}", f"model.size={spec.size}"]
        return [*shape, f"model.channels={spec.channels}", "model.pretrained=false", f"model.weights={self.path}"]

    def split(self, dataset: Dataset) -> Split | None:
        """Its own training and validation classes, if it was validated on others than it was trained on."""
        classes = self.model.card.classes
        if not classes.val or set(classes.val) & set(classes.train):
            return None
        labels = dataset.labels.astype(str)
        held = ~np.isin(labels, [*classes.train, *classes.val])
        parts = [np.isin(labels, list(names)) for names in (classes.train, classes.val)]
        return Split(*(np.flatnonzero(part) for part in (*parts, held)))


class Precomputed:
    """Scores (n, n) of items with each other as a distance between their numbers (n, 1)."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative scores (q, m) of items numbered by x (q, 1) and y (m, 1)."""
        return -self.scores[x[:, 0].long()][:, y[:, 0].long()]


@torch.no_grad()
def ways_compared(model: Embedder, points: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """MAP@R, Recall@1 and the EER of unseen classes by every way to compare; of the cosine alone without a network."""
    vectors = torch.from_numpy(points)
    directions = torch.nn.functional.normalize(vectors)
    cosines = directions @ directions.T
    learned = model.network.table(vectors, vectors, at_rest=True) if isinstance(model, SimilarityModel) else None
    trials = draw_trials(label_codes(labels)[0], most=TRIALS)
    numbers, values = torch.arange(len(points))[:, None].float(), {}
    for way in WAYS if learned is not None else WAYS[:1]:
        scores = cosines if learned is None else fused(learned, cosines, way)
        found = retrieval_metrics(numbers, labels, metrics=list(MEASURES), space=Precomputed(scores)).values
        errors = verification_from_scores(scores[trials.queries, trials.enrolled].numpy(), trials.same).values
        values |= {f"{measure}, {way}": found[measure] for measure in MEASURES} | {f"EER, {way}": errors["EER"]}
    return values


def trained(dataset: Dataset, cell: Cell, recipe: Recipe, split: Split, kept: Split) -> TrainingResult:
    """A trained model; the features of all items of a split are cached, those that are kept of it are used."""
    rows = np.sort(np.concatenate([split.train, split.val]))
    pool, features = dataset.select(rows), cache_directory() / "features"
    embedder = build_embedder(recipe.model, classes=["any"])
    views = recipe.model.cache_views
    cache = FeatureCache.build(
        embedder, pool, at=cache_point(embedder), directory=features, views=views, progress=False
    )
    train_rows, val_rows = (np.searchsorted(rows, part) for part in (kept.train, kept.val))
    parts = Split(train_rows, val_rows, np.empty(0, np.int64))
    how = {"source": cell.part, "cache_directory": features, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        result = train(pool, recipe, Run(Path(folder) / "run"), split=parts, features=cache, **how)
    if result.interrupted:
        raise SystemExit(130)
    return result


def measured(dataset: Dataset, cell: Cell, trunk: Trunk | None, more: Sequence[str] = ()) -> dict[str, Any]:
    """Train a model and judge it on the test items."""
    recipe, began = cell.recipe(trunk, more), time.process_time()
    split = None if trunk is None or cell.case else trunk.split(dataset)
    split = resolve_split(dataset.manifest, recipe.data, recipe.training.seed) if split is None else split
    kept = PARTS[cell.part].fewer(split, dataset.labels, cell.seed)
    known, asked = dataset.select(kept.train), dataset.select(split.test)
    if cell.name == UNTRAINED:
        model, best, loss = build_embedder(recipe.model, seed=cell.seed).eval(), 0, None
    else:
        result = trained(dataset, cell, recipe, split, kept)
        model, best, loss = result.embedder.eval(), result.state.best_step, result.objective.loss
    if recipe.data.classes_are_seen:
        found = classes_named(model, loss, recipe, asked, tuple(known.classes))
    else:
        points = embed_items(model, asked, cache_directory() / "features", progress=False)
        found = {"values": ways_compared(model, points, asked.labels)}
    found["values"] = {name: round(float(value), 5) for name, value in found["values"].items()}
    items = {"train": len(known), "val": len(kept.val), "test": len(asked)}
    told = {"core_seconds": round(time.process_time() - began, 1), "best_step": best, "items": items}
    compared, validated = model.card.compared, model.card.validation or {}
    return told | found | {"validation": validated if compared is None else compared["MAP@R"]}


def read_ledger() -> list[dict[str, Any]]:
    """Every finished model."""
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def run_part(arguments: argparse.Namespace) -> None:
    """Train every cell of a part that is not in the ledger."""
    part = PARTS[arguments.part]
    folder = arguments.data_root or os.environ.get("NEARKIN_DATA")
    if not folder:
        raise SystemExit("Set NEARKIN_DATA, or give --data-root: the directory with the data sets.")
    dataset = part.select(open_data(Path(folder) / f"{part.source}.zip"))
    for seed in arguments.seeds:
        for case in part.cases:
            given = None if arguments.trunk is None else Path(str(arguments.trunk).replace("{domain}", case))
            trunk = None if given is None else Trunk.read(given, case)
            for name in part.cells:
                if (arguments.cells and name not in arguments.cells) or (name == UNTRAINED and seed != SEEDS[0]):
                    continue
                cell = Cell(arguments.part, name, seed, case)
                key = cell.key(trunk)
                if any(all(line.get(at) == value for at, value in key.items()) for line in read_ledger()):
                    continue
                line = key | measured(dataset, cell, trunk)
                with open(LEDGER, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{cell}: {line['values']} ({line['core_seconds']} s)", flush=True)


def run_trunks(work: Path, data_root: Path | None) -> None:
    """Fine-tune a trunk for each domain of PACS that is left out; what is there is kept, or gone on with."""
    dataset = open_data("pacs", data_root=data_root)
    for domain in DOMAINS:
        run = Run(work / f"pacs-{domain}")
        if (run.path / "model.safetensors").exists():
            continue
        changes = ["data.split=domains", f"data.test_domains=[{domain}]", "data.val_items=0.1", "model.size=112"]
        changes += ["data.classes_per_batch=7", "training.max_steps=500", "training.evaluate_every=100"]
        recipe = load_recipe("fine-tune", [*changes, "data.workers=0"])
        features = cache_directory() / "features"
        train(dataset, recipe, run, source="pacs", cache_directory=features, resume=run.path.exists())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=[*PARTS, "trunks"], help="what to train")
    parser.add_argument("--trunk", type=Path, help="a run or model file; {domain} is the domain that is left out")
    parser.add_argument("--work", type=Path, help="with trunks: where their runs are kept")
    parser.add_argument("--cells", nargs="+", default=[], choices=list(CELLS), metavar="CELL", help="only these cells")
    parser.add_argument("--seeds", nargs="+", default=list(SEEDS), type=int, help="only these seeds")
    parser.add_argument("--pages", action="store_true", help="tables from what is finished")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.part == "trunks":
        if arguments.work is None:
            parser.error("say where the runs are kept: --work DIR")
        run_trunks(arguments.work, arguments.data_root)
    elif arguments.part:
        run_part(arguments)
    if arguments.pages:
        from studies.similarity_forms.page import write_tables

        write_tables(read_ledger())
    if not (arguments.part or arguments.pages):
        parser.error("name a part, or give --pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
