"""What run.py trains: parts, their recipes, and the cells of each in the order they are trained in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe
from studies.random_start import load_recipe
from studies.unified.measures import classes_named, episodes_answered, items_found, pairs_verified

SOFTMAX, LEARNED, ANCHOR, UNTRAINED = "softmax", "learned similarity", "ProxyAnchor", "untrained features"
NO_AUXILIARY, NO_PAIRS = "without the auxiliary loss", "without the pair loss"
ABLATIONS = (NO_AUXILIARY, NO_PAIRS)
CELLS: dict[str, tuple[str, list[str]]] = {
    SOFTMAX: ("softmax", []),
    LEARNED: ("learned-similarity", []),
    ANCHOR: ("proxy-anchor", []),
    UNTRAINED: ("pretrained", []),
    NO_AUXILIARY: ("learned-similarity", ["objective.parameters.auxiliary_weight=0"]),
    NO_PAIRS: ("learned-similarity", ["objective.parameters.pair_weight=0"]),
}
"""Name of a cell to its recipe and what it changes."""
RATES = (3e-4, 1e-3, 3e-3)
RATE_SEED = 100
"""Of the models that choose a learning rate; no other model has it."""
FEW_SEEDS = 3
"""That ablations have where the methods have more."""
PLAIN = [
    "training.optimizer=adam",
    "training.weight_decay=0",
    "training.patience=null",
    "training.lr=1e-3",
    "data.workers=0",
]
SCRATCH = ["model.pretrained=false", "model.freeze=null", "model.cache=false", "training.backbone_lr_factor=1"]
TRUNK = ["model.dimension=128"]
CHARACTERS = ["data.flip=false", "data.crop_scale=[0.8, 1.0]", "data.crop_ratio=[0.9, 1.1]", "model.channels=1"]
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


@dataclass(frozen=True)
class Part:
    """A task, the data it is asked on, and who learns it.

    Args:
        source: the data, as `open_data` knows it.
        changes: what every recipe changes.
        cells: which of `CELLS` take part, in the order they are trained in.
        measure: how a trained model is judged.
        seeds: of the weights, the batches, and the choice of validation items.
        cases: what is left out in turn; a single empty one where nothing is.
        rates: learning rates to choose from; empty: 1e-3 for all.
        select: which of the data's items take part.
    """

    source: str
    changes: list[str]
    cells: tuple[str, ...]
    measure: Callable[..., dict[str, Any]]
    seeds: tuple[int, ...] = (0, 1, 2)
    cases: tuple[str, ...] = ("",)
    rates: tuple[float, ...] = ()
    select: Callable[[Dataset], Dataset] = lambda dataset: dataset


def first_of_each(dataset: Dataset, count: int = 1000) -> Dataset:
    """The first training items of each class, as many as said, and all test items."""
    train, ids = dataset.manifest.mask(split="train"), dataset.class_ids()
    kept = [np.flatnonzero(train & (ids == code))[:count] for code in range(len(dataset.classes))]
    return dataset.select(np.sort(np.concatenate([*kept, np.flatnonzero(~train)])))


def fewer_characters(dataset: Dataset, every: int = 4) -> Dataset:
    """Of the classes that train every fourth, which the class loss compares each item with; and all that test."""
    train = dataset.manifest.mask(split="train")
    kept = np.unique(dataset.labels[train].astype(str))[::every]
    return dataset.select(np.flatnonzero(~train | np.isin(dataset.labels.astype(str), kept)))


def _batch(classes: int, each: int, steps: int, every: int) -> list[str]:
    return [
        f"data.classes_per_batch={classes}",
        f"data.per_class={each}",
        f"training.max_steps={steps}",
        f"training.evaluate_every={every}",
    ]


SEEN = ["data.split=items", "data.val_items=0.1"]
PARTS = {
    "fashion": Part(
        "fashion-mnist",
        [*SCRATCH, *SEEN, *_batch(10, 6, 1500, 150), "model.backbone=lenet", "model.channels=1", "model.size=28",
         "model.dimension=128", "data.crop=centre", "data.flip=false"],
        (SOFTMAX, LEARNED, NO_AUXILIARY, NO_PAIRS),
        classes_named,
        seeds=(0, 1, 2, 3, 4),
        rates=RATES,
        select=first_of_each,
    ),
    "cifar": Part(
        "cifar100",
        [*TRUNK, *SEEN, *_batch(32, 2, 1000, 100), "model.size=96"],
        (SOFTMAX, LEARNED, NO_AUXILIARY, NO_PAIRS),
        classes_named,
    ),
    "pacs": Part(
        "pacs",
        [*TRUNK, *_batch(7, 8, 600, 60), "model.size=112", "model.cache_views={flip: false}", "data.split=domains",
         "data.val_items=0.1"],
        (SOFTMAX, LEARNED, NO_AUXILIARY, NO_PAIRS),
        classes_named,
        cases=DOMAINS,
        rates=RATES,
    ),
    "speakers": Part(
        "audiomnist",
        [*SCRATCH, *_batch(16, 2, 400, 100), "model.backbone=tdnn", "model.pooling=stats", "model.dimension=128",
         "data.flip=false", "data.audio_seconds=0.5", "data.split=column", "data.val_classes=0.15"],
        (LEARNED, SOFTMAX, NO_AUXILIARY),
        pairs_verified,
    ),
    "cub": Part(
        "cub200",
        [*TRUNK, *_batch(16, 4, 1000, 100), "model.size=128", "data.split=column", "data.val_classes=0.2"],
        (SOFTMAX, LEARNED, ANCHOR, UNTRAINED, NO_AUXILIARY),
        items_found,
    ),
    "omniglot": Part(
        "omniglot",
        [*SCRATCH, *CHARACTERS, *_batch(16, 4, 500, 100), "model.backbone=conv4", "model.size=28",
         "model.pooling=flatten", "model.dimension=null", "data.split=column", "data.val_classes=0.15"],
        (LEARNED, SOFTMAX),
        episodes_answered,
        select=fewer_characters,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A model to be trained: who learns what, with which seed, case and learning rate."""

    part: str
    name: str
    seed: int
    case: str = ""
    rate: float | None = None

    def recipe(self, more: Sequence[str] = ()) -> Recipe:
        """How it is trained."""
        part, (base, changes) = PARTS[self.part], CELLS[self.name]
        if self.name == UNTRAINED:
            size = [change for change in part.changes if change.startswith(("model.size=", "data."))]
            return load_recipe(base, [*size, f"training.seed={self.seed}"])
        own = [] if self.name != ANCHOR else ["training.proxy_lr_factor=10"]
        own += [] if not self.case else [f"data.test_domains=[{self.case}]"]
        own += [] if self.rate is None else [f"training.lr={self.rate:g}"]
        return load_recipe(base, [*PLAIN, *part.changes, *changes, *own, f"training.seed={self.seed}", *more])

    def key(self) -> dict[str, Any]:
        """What tells its line in the ledger from others."""
        digest = Candidate("cell", self.recipe()).digest()
        told = {"part": self.part, "cell": self.name, "case": self.case, "seed": self.seed, "recipe": digest}
        return told if self.rate is None else {**told, "rate": self.rate}


def cells_of(name: str, rates: Mapping[str, float]) -> Iterator[Cell]:
    """The cells of a part with the learning rates that were chosen, those that decide first."""
    part = PARTS[name]
    groups = [[cell for cell in part.cells if (cell in ABLATIONS) == ablation] for ablation in (False, True)]
    for place, group in enumerate(groups):
        for seed in part.seeds[: FEW_SEEDS if place else None]:
            for case in part.cases:
                for cell in group:
                    if cell != UNTRAINED or seed == part.seeds[0]:
                        yield Cell(name, cell, seed, case, rates.get(cell))


def rate_cells(name: str) -> list[Cell]:
    """The cells that choose learning rates: the two methods, by every rate, in the first case."""
    part = PARTS[name]
    return [Cell(name, cell, RATE_SEED, part.cases[0], rate) for cell in (SOFTMAX, LEARNED) for rate in part.rates]
