"""The best recipe for CUB-200-2011, by ablation: with a cached trunk, and with fine-tuned upper stages on cached maps.

    python benchmarks/best.py trunk     which pretrained backbone: its raw features, nothing trained
    python benchmarks/best.py head      cached trunk: losses, schedules, poolings, regularisers, averages, dimensions
    python benchmarks/best.py upper     cached lower stages, fine-tuned upper ones
    python benchmarks/best.py report    the chosen ones on the test classes, once (a book of `nearkin benchmark`)
    python benchmarks/best.py --pages   docs/results/best.md and its picture

Classes 1-100 are divided into four folds; a candidate trains on three and is measured on the fourth, which also chooses
its weights. Candidates are compared on these validation classes alone; classes 101-200 are seen by `report` only. Each
finished cell is a line of `best.jsonl`; a run that is stopped goes on where it was. Needs the data: NEARKIN_DATA or
--data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.metrics import retrieval_metrics
from nearkin.models import build_embedder
from nearkin.protocol.division import Division, divide
from nearkin.recipe import Recipe, load_recipe
from nearkin.training import Run, train

FOLDS = 4
LEDGER = Path(__file__).with_suffix(".jsonl")
CUB = ["data.split=column"]
CROPS = "model.cache_views={flip: true, crops: 2, crop_scale: [0.4, 1.0]}"


@dataclass(frozen=True)
class Candidate:
    """A recipe with settings, under a name, and the folds that it is tried on."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    folds: tuple[int, ...] = (1, 2, 3, 4)

    def load(self) -> Recipe:
        """The recipe to train."""
        return load_recipe(self.recipe, [*CUB, *self.settings])


def trunk() -> list[Candidate]:
    """Backbones as ImageNet made them."""
    shown = [(0, 224), (1, 240), (2, 260), (2, 224)]
    return [
        Candidate(
            f"efficientnet-lite{number}, {size} px",
            "pretrained",
            (f"model.backbone=efficientnet-lite{number}", f"model.size={size}"),
            folds=(0,),
        )
        for number, size in shown
    ]


UPPER = (
    "model.backbone=efficientnet-lite2",
    "model.size=224",
    "model.freeze=stage5",
    "model.frozen_batch_norm=true",
    "model.cache_dtype=float16",
    "model.cache_views={flip: true, crops: 4, crop_scale: [0.3, 1.0]}",
    "training.lr_schedule=cosine",
    "training.max_steps=240",
    "training.evaluate_every=60",
    "training.patience=null",
)
"""Stages 6, 7 and the last convolution learn, from cached maps of 14 x 14; the backbone at a tenth of the head's rate."""

GSP = (
    "model.local_dimension=128",
    "model.pooling=gsp",
    "model.pooling_parameters={prototypes: 64, budget: 0.3, sharpness: 0.5}",
    "model.dimension=null",
    "objective.weight=0.9",
    "objective.regularisers=[{name: zero-shot, weight: 0.1}]",
)
ADVERSARY = "objective.regularisers=[{name: class-adversary, weight: 0.5}]"
PAIRS = ("data.classes_per_batch=8", "data.per_class=4", "training.lr=3e-4", "training.backbone_lr_factor=0.3")


def upper() -> list[Candidate]:
    """What each part adds to ProxyAnchor where the upper stages learn; one fold each, then what was chosen on all."""
    base = "proxy-anchor"
    changes: dict[str, tuple[str, tuple[str, ...]]] = {
        "proxy-anchor": (base, ()),
        "backbone at 3e-4": (base, ("training.backbone_lr_factor=0.3",)),
        "moving average": (base, ("training.ema=0.98",)),
        "backbone at 3e-5": (base, ("training.backbone_lr_factor=0.03",)),
        "head and backbone at 1e-4, proxies at 1e-2": (
            base,
            ("training.lr=1e-4", "training.backbone_lr_factor=1", "training.proxy_lr_factor=100"),
        ),
        "batch norm learns": (base, ("model.frozen_batch_norm=false",)),
        "GSP + zero-shot loss": (base, GSP),
        "attention": (base, ("model.attention={}",)),
        "attention + adversary": (base, ("model.attention={}", ADVERSARY)),
        "contrastive on cosines + CCP": (
            "contrastive-cosine-ccp",
            (*PAIRS, "training.evaluate_every=30", "training.chance_constrained.patience=1"),
        ),
        "multi-similarity": ("multi-similarity", PAIRS),
        "arcface": ("arcface", ()),
    }
    return [Candidate(name, recipe, (*UPPER, *settings), (1,)) for name, (recipe, settings) in changes.items()]


HEAD = (
    "model.backbone=efficientnet-lite2",
    "model.size=224",
    "model.cache_views={flip: true, crops: 2, crop_scale: [0.4, 1.0]}",
    "training.max_steps=1000",
    "training.evaluate_every=50",
    "training.patience=8",
)
"""Only a head learns, from cached vectors."""


def head() -> list[Candidate]:
    """Losses and averages behind a trunk that stays as it is."""
    pairs = ("data.classes_per_batch=8", "data.per_class=4", "training.lr=1e-4", "training.max_steps=3000")
    slow = ("training.lr=1e-4", "training.max_steps=3000")
    changes: dict[str, tuple[str, tuple[str, ...]]] = {
        "proxy-anchor": ("proxy-anchor", ()),
        "proxy-anchor, lr 1e-4": ("proxy-anchor", slow),
        "proxy-anchor, moving average": ("proxy-anchor", ("training.ema=0.98",)),
        "proxy-anchor, 512 dimensions": ("proxy-anchor", ("model.dimension=512",)),
        "arcface": ("arcface", ()),
        "arcface, lr 1e-4": ("arcface", slow),
        "normalized-softmax": ("normalized-softmax", ()),
        "multi-similarity": ("multi-similarity", pairs),
        "multi-similarity + CCP": ("multi-similarity-ccp", pairs),
        "contrastive on cosines + CCP": ("contrastive-cosine-ccp", pairs),
    }
    return [Candidate(name, recipe, (*HEAD, *settings)) for name, (recipe, settings) in changes.items()]


STUDIES = {"trunk": trunk, "head": head, "upper": upper}


def measure(vectors: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """MAP@R and P@1 by cosine, and of each class."""
    found = retrieval_metrics(vectors, labels, metrics=["MAP@R", "P@1"])
    classes = {name: round(value, 5) for name, value in sorted(found.per_class("MAP@R").items())}
    return {name: round(found.values[name], 5) for name in ("MAP@R", "P@1")} | {"classes": classes}


def untrained_cell(dataset: Dataset, division: Division, candidate: Candidate) -> dict[str, Any]:
    """The training classes, all of them, by features that nothing was trained for."""
    split = division.splits[0]
    items = dataset.select(np.sort(np.concatenate([split.train, split.val])))
    embedder = build_embedder(candidate.load().model, seed=0)
    return measure(embed_items(embedder, items, cache_directory() / "features", progress=True), items.labels)


def trained_cell(dataset: Dataset, division: Division, candidate: Candidate, fold: int) -> dict[str, Any]:
    """The classes of a fold by a model that was trained on the others."""
    split = division.splits[fold - 1]
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            dataset,
            candidate.load(),
            Run(Path(folder) / "run"),
            source="cub200",
            cache_directory=cache_directory() / "features",
            split=split,
        )
    items = dataset.select(split.val)
    measured = measure(result.embedder.encode(items, progress=False), items.labels)
    facts = {"best step": result.state.best_step, "steps": result.state.step}
    return measured | facts | {"seconds": round(result.state.seconds, 1)}


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text(encoding="utf-8").splitlines()] if LEDGER.exists() else []


def run_study(name: str, data_root: Path | None) -> None:
    """Do the cells of a study that the ledger has not."""
    done = {(row["study"], row["candidate"], row["fold"]) for row in read_ledger()}
    dataset = open_data("cub200", data_root=data_root)
    candidates = STUDIES[name]()
    division = divide(dataset, candidates[0].load().data, "fair", FOLDS)
    wanted = [(candidate, fold) for fold in range(FOLDS + 1) for candidate in candidates if fold in candidate.folds]
    for candidate, fold in wanted:
        if (name, candidate.name, fold) in done:
            continue
        row = {"study": name, "candidate": candidate.name, "fold": fold}
        if fold == 0:
            row |= untrained_cell(dataset, division, candidate)
        else:
            row |= trained_cell(dataset, division, candidate, fold)
        with open(LEDGER, "a", encoding="utf-8") as ledger:
            ledger.write(json.dumps(row) + "\n")
        print(candidate.name, fold, {key: row.get(key) for key in ("MAP@R", "P@1", "best step", "seconds")}, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--data-root", type=Path, help="where cub200.zip is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    run_study(arguments.study, arguments.data_root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
