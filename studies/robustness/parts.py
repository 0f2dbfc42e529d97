"""What run.py trains: Fashion-MNIST and CIFAR-100 with and without adversarial training, and a head for CUB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe
from studies.random_start import load_recipe
from studies.unified.parts import PARTS as UNIFIED
from studies.unified.parts import PLAIN, SCRATCH, SEEN

SOFTMAX, LEARNED = "softmax", "learned similarity"
SOFTMAX_AT, LEARNED_AT = "softmax + AT", "learned similarity + AT"
STANDARD = "ST"
TRADES_KL, TRADES_CE = "TRADES, divergence", "TRADES, cross-entropy as printed"
SEEDS = (0, 1, 2)
INNER_STEPS = {"fashion": 10, "cifar": 5}
"""Steps of the attack inside training."""


def _adversarial(norm: str, eps: str, steps: int, alpha: float) -> list[str]:
    return [
        "training.schedule=adversarial",
        f"training.adversarial.norm={norm}",
        f"training.adversarial.eps={eps}",
        f"training.adversarial.steps={steps}",
        f"training.adversarial.alpha={alpha:g}",
    ]


FASHION = [*UNIFIED["fashion"].changes]
"""As in unified/run.py: LeNet, 1,000 items a class, 1,500 steps of 10 x 6."""
CIFAR = [
    *SCRATCH, *SEEN, "model.backbone=lenet", "model.channels=3", "model.size=32", "model.dimension=128",
    "data.crop=centre", "data.flip=true", "data.classes_per_batch=20", "data.per_class=3", "training.max_steps=600",
    "training.evaluate_every=150",
]  # fmt: skip
CIFAR_CLASSES = 20
BUDGETS = {
    "AT, l2 0.25": ("l2", "0.25"),
    "AT, l2 0.5": ("l2", "0.5"),
    "AT, l2 1.0": ("l2", "1.0"),
    "AT, linf 8/255": ("linf", "8/255"),
}
"""As in tables 5.1 and 5.4 of Kim 2023; the adversarial points alone train (alpha 0)."""

CELLS: dict[str, dict[str, tuple[str, list[str]]]] = {
    "fashion": {
        SOFTMAX: ("softmax", FASHION),
        LEARNED: ("learned-similarity", FASHION),
        SOFTMAX_AT: ("softmax", [*FASHION, *_adversarial("linf", "0.3", INNER_STEPS["fashion"], 0.5)]),
        LEARNED_AT: ("learned-similarity", [*FASHION, *_adversarial("linf", "0.3", INNER_STEPS["fashion"], 0.5)]),
    },
    "cifar": {
        STANDARD: ("softmax", CIFAR),
        **{
            name: ("softmax", [*CIFAR, *_adversarial(norm, eps, INNER_STEPS["cifar"], 0.0)])
            for name, (norm, eps) in BUDGETS.items()
        },
    },
}
CELLS["trades"] = {
    TRADES_KL: ("softmax", [*FASHION, *_adversarial("linf", "0.1", 10, 0.5), "training.adversarial.mode=trades"]),
    TRADES_CE: (
        "softmax",
        [
            *FASHION,
            *_adversarial("linf", "0.1", 10, 0.5),
            "training.adversarial.mode=trades",
            "training.adversarial.trades_term=cross-entropy",
        ],
    ),
}
PART_SEEDS = {"fashion": SEEDS, "cifar": SEEDS, "trades": (0,)}
SOURCES = {"fashion": "fashion-mnist", "trades": "fashion-mnist", "cifar": "cifar100"}


@dataclass(frozen=True)
class Cell:
    """A model to be trained."""

    part: str
    name: str
    seed: int

    def recipe(self, more: Sequence[str] = ()) -> Recipe:
        """How it is trained."""
        base, changes = CELLS[self.part][self.name]
        return load_recipe(base, [*PLAIN, *changes, f"training.seed={self.seed}", *more])

    def key(self) -> dict[str, Any]:
        """What tells its line in the ledger from others."""
        return {
            "part": self.part,
            "cell": self.name,
            "seed": self.seed,
            "recipe": Candidate("cell", self.recipe()).digest(),
        }


def cells_of(part: str) -> Iterator[Cell]:
    """The cells of a part, a whole seed after the other."""
    for seed in PART_SEEDS[part]:
        for name in CELLS[part]:
            yield Cell(part, name, seed)


def chosen(part: str, dataset: Dataset) -> Dataset:
    """The items that take part."""
    if SOURCES[part] == "fashion-mnist":
        return UNIFIED["fashion"].select(dataset)
    few = sorted(set(dataset.labels.tolist()))[:: len(set(dataset.labels.tolist())) // CIFAR_CLASSES][:CIFAR_CLASSES]
    return dataset.select(np.flatnonzero(np.isin(dataset.labels, few)))
