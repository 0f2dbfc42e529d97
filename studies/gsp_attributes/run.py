"""Do the attributes of generalized sum pooling mean the same for unseen classes? With the zero-shot loss and without.

    python studies/gsp_attributes/run.py           every cell, then the table; finished cells are kept
    python studies/gsp_attributes/run.py --check   exit code 0 only if attributes transfer better than chance everywhere

Gürbüz 2022, section 5.3.3, on CUB-200-2011 in place of CIFAR-10: a model learns from the first 100 classes; of each of
the other 100 the mean attribute vector and the mean embedding are taken; a ridge regression from one to the other,
fitted on a random half of these classes, predicts the other half, whose nearest true mean is looked for. A thousand
halves; chance is 2 %. The trunk is a frozen EfficientNet-Lite0 whose maps are cached. Cells are lines of
studies/gsp_attributes/ledger.jsonl. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator
from studies.places import located

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch

from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import resolve_split
from nearkin.metrics import attribute_transfer
from nearkin.models import Embedder, FeatureCache, cache_point
from nearkin.training import Run, train
from studies.random_start import load_recipe

LEDGER = located("studies/gsp_attributes/ledger.jsonl")
SETTINGS = [
    "data.split=column",
    "data.val_classes=0.15",
    "model.cache_views={flip: true, crops: 2, crop_scale: [0.4, 1.0]}",
    "training.lr=1e-3",
    "training.max_steps=400",
    "training.evaluate_every=50",
    "model.pooling_parameters.sharpness=5",
]
LOSS = "proxy-nca++"
PROTOTYPES = (8, 64)
MIXTURES = (0.0, 0.1, 0.5)
"""The weight of the zero-shot loss, 0.1 in the seed's experiments on CUB, 0.5 on its collages."""
SEEDS = (0, 1, 2)
SPLITS = 1000
MEASURES = {"l2": "attribute transfer, l2", "cosine": "attribute transfer, cosine"}


def cell(dataset: Dataset, prototypes: int, mixture: float, seed: int) -> dict[str, Any]:
    """Train one model and see how its attributes transfer."""
    terms = f"[{{name: zero-shot, weight: {mixture}}}]" if mixture else "[]"
    changes = [
        f"model.pooling_parameters.prototypes={prototypes}",
        f"objective.weight={1 - mixture}",
        f"objective.regularisers={terms}",
        f"training.seed={seed}",
    ]
    recipe = load_recipe(f"{LOSS}-gsp", [*SETTINGS, *changes])
    features = cache_directory() / "features"
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(dataset, recipe, run, source="cub200", cache_directory=features)
        if result.interrupted:
            raise SystemExit(130)  # a model that was not trained to its end is not kept
        embedder = result.embedder
    held_out = dataset.select(resolve_split(dataset.manifest, recipe.data, seed).test)
    attributes, embeddings = describe(embedder, held_out, features)
    found = attribute_transfer(attributes, embeddings, held_out.labels, splits=SPLITS, seed=seed)
    return {
        "prototypes": prototypes,
        "mixture": mixture,
        "seed": seed,
        **{name: round(found.values[key], 5) for name, key in MEASURES.items()},
        "chance": round(found.values["attribute transfer, chance"], 5),
        "validation_MAP@R": round(embedder.card["validation"]["val_MAP@R"], 5),
        "seconds": embedder.card["seconds"],
    }


@torch.inference_mode()
def describe(embedder: Embedder, items: Dataset, directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Attributes (n, M) and embeddings (n, d) of all items."""
    at = cache_point(embedder)
    cache = FeatureCache.build(embedder, items, at=at, directory=directory, dtype="float16")
    attributes, embeddings = [], []
    for rows in np.array_split(np.arange(len(items)), -(-len(items) // 128)):
        raw, described = embedder.with_attributes(cache.gather(rows), start=at)
        embeddings.append(embedder.space.project(raw).numpy())
        attributes.append(described.numpy())
    return np.concatenate(attributes), np.concatenate(embeddings)


def tell(cells: list[dict[str, Any]]) -> bool:
    """Print the table; whether every cell is above chance."""
    print(f"\n{'prototypes':>10} {'zero-shot weight':>16} {'l2':>22} {'cosine':>22}   chance")
    for prototypes in PROTOTYPES:
        for mixture in MIXTURES:
            mine = [row for row in cells if (row["prototypes"], row["mixture"]) == (prototypes, mixture)]
            if not mine:
                continue
            told = [_range([row[name] for row in mine]) for name in MEASURES]
            print(f"{prototypes:10} {mixture:16} {told[0]:>22} {told[1]:>22}   {100 * mine[0]['chance']:.1f}")
    gains = {
        name: mean(row[name] for row in cells if row["mixture"])
        - mean(row[name] for row in cells if not row["mixture"])
        for name in MEASURES
    }
    print(
        f"\nWith the zero-shot loss attributes name {100 * gains['l2']:+.1f} points more of the unseen classes by l2, "
        f"{100 * gains['cosine']:+.1f} by cosine"
    )
    return all(row[name] > row["chance"] for row in cells for name in MEASURES)


def _range(values: list[float]) -> str:
    low, middle, high = (100 * number for number in (min(values), mean(values), max(values)))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every cell is above chance")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    cells = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    done = {(row["prototypes"], row["mixture"], row["seed"]) for row in cells}
    wanted = [(m, w, seed) for seed in SEEDS for m in PROTOTYPES for w in MIXTURES if (m, w, seed) not in done]
    if wanted:
        dataset = open_data("cub200", data_root=arguments.data_root)
        for place in wanted:
            cells.append(cell(dataset, *place))
            with open(LEDGER, "a", encoding="utf-8") as file:
                file.write(json.dumps(cells[-1]) + "\n")
    above = tell(cells)
    return 1 if arguments.check and not above else 0


if __name__ == "__main__":
    sys.exit(main())
