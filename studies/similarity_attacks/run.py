"""The learned similarity under attack on CIFAR images: the lower half of table 1 of its paper, small.

    python studies/similarity_attacks/run.py                 finish what is missing (about 15 minutes of one core)
    python studies/similarity_attacks/run.py --undefended    only the models without adversarial training (5 minutes)
    python studies/similarity_attacks/run.py --smoke         a few steps of each model; the ledger is not touched

LeNet at 32 px on 20 classes of CIFAR-100, as in robustness/run.py: softmax and the learned similarity, with and without
adversarial training at 8/255, attacked in L-inf at 8/255 by FGSM, PGD (7) and PGD (20), each way to name classes
through itself. Each finished model is a line of `ledger.jsonl`; a run that is stopped begins its model
anew. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
from torch import nn

from nearkin.attacks import class_codes
from nearkin.attacks.library import published_attack
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.models import Embedder, PixelReader
from nearkin.recipe import Recipe
from studies.places import located
from studies.random_start import load_recipe
from studies.robustness.measures import ATTACKED, SEED, answered, classifiers_of, draw
from studies.robustness.parts import (
    CELLS,
    CIFAR,
    LEARNED,
    LEARNED_AT,
    SEEDS,
    SOFTMAX,
    SOFTMAX_AT,
    SOURCES,
    STANDARD,
    Cell,
    chosen,
)
from studies.robustness.run import run_cell
from studies.unified.measures import pack
from studies.unified.parts import PLAIN

LEDGER = located("studies/similarity_attacks/ledger.jsonl")
PART = "cifar"
EPSILON = 8 / 255
ATTACKS = {"FGSM (1)": ("fgsm", None), "PGD (7)": ("pgd", 7), "PGD (20)": ("pgd", 20)}
"""As in the table's lower half."""
DEFENDED = [change for change in CELLS[PART]["AT, linf 8/255"][1] if change not in CELLS[PART][STANDARD][1]]
HALF = "training.adversarial.alpha=0.5"
"""Clean and perturbed images alike, as on Fashion-MNIST."""
RECIPES = {
    SOFTMAX: ("softmax", []),
    LEARNED: ("learned-similarity", []),
    SOFTMAX_AT: ("softmax", [*DEFENDED, HALF]),
    LEARNED_AT: ("learned-similarity", [*DEFENDED, HALF]),
}
UNDEFENDED = (SOFTMAX, LEARNED)
SMOKE = ["training.max_steps=4", "training.evaluate_every=2"]


@dataclass(frozen=True)
class Attacked(Cell):
    """A model to be trained and attacked."""

    def recipe(self, more: Sequence[str] = ()) -> Recipe:
        base, changes = RECIPES[self.name]
        return load_recipe(base, [*PLAIN, *CIFAR, *changes, f"training.seed={self.seed}", *more])


def cells() -> Iterator[Attacked]:
    """Every model, those without a defence first."""
    for group in (UNDEFENDED, tuple(name for name in RECIPES if name not in UNDEFENDED)):
        for seed in SEEDS:
            for name in group:
                yield Attacked(PART, name, seed)


def under_attack(
    embedder: Embedder, loss: nn.Module | None, asked: Dataset, known: Dataset, names: tuple[str, ...]
) -> dict[str, Any]:
    """Accuracy on a fixed sample, clean and under each attack, of every way to name classes."""
    rows = draw(asked, ATTACKED)
    pixels, codes = PixelReader(embedder, asked)(rows), class_codes(names, asked.labels[rows])
    right: dict[str, np.ndarray] = {}
    for way, classifier in classifiers_of(embedder, loss, names).items():
        right[f"{way}, clean"] = answered(classifier, pixels, codes)
        for name, (attack, steps) in ATTACKS.items():
            done = published_attack(attack, classifier, pixels, codes, EPSILON, steps=steps, seed=SEED, batch_size=250)
            right[f"{way}, {name}"] = ~done.wrong.numpy()
    return {
        "values": {name: float(hits.mean()) for name, hits in right.items()},
        "right": {name: pack(hits) for name, hits in right.items()},
        "attacked": len(rows),
    }


def read_ledger() -> list[dict[str, Any]]:
    """Every finished line that the recipes of now would make."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    keys = [cell.key() for cell in cells()]
    return [line for line in lines if any(key.items() <= line.items() for key in keys)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--undefended", action="store_true", help="only models without adversarial training")
    parser.add_argument("--smoke", action="store_true", help="a few steps of each model; nothing is kept")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    dataset = chosen(PART, open_data(SOURCES[PART], data_root=arguments.data_root))
    if arguments.smoke:
        for name in RECIPES:
            print(name, run_cell(dataset, Attacked(PART, name, 0), SMOKE, under_attack)["values"], flush=True)
        return 0
    for cell in cells():
        done = any(cell.key().items() <= line.items() for line in read_ledger())
        if done or (arguments.undefended and cell.name not in UNDEFENDED):
            continue
        line = {**cell.key(), **run_cell(dataset, cell, measure=under_attack)}
        with open(LEDGER, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{cell.name}, seed {cell.seed} ({line['seconds']} s): {line['values']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
