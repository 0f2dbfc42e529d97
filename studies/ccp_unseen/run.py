"""Does chance-constrained training improve the geometry of classes that it has not seen? CUB, split again and again.

    python studies/ccp_unseen/run.py            finish the cells, print the table
    python studies/ccp_unseen/run.py --quick    one seed, few steps; the ledger is not touched

Gürbüz 2022, figure 3.3: of the first 100 classes of CUB-200-2011 two thirds train and one third validates, drawn anew
for each seed. A single proxy problem and CCP, both with contrastive loss on a frozen EfficientNet-Lite0 and the
settings of the book `ablation`, each with the weights that validated best. Measured on the validation classes, as in
the print: MAP@R, the mean covering radius and the mean distance between items of different classes; of each problem
that CCP solves also its steps and what it reached.

Each finished cell is a line of `ledger.jsonl`; a run that is stopped goes on where it was. Needs the data:
NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import resolve_split
from nearkin.models import FeatureCache, cache_point
from nearkin.training import Run, train
from studies.ccp.run import BATCH, CUB, FAST
from studies.ccp_toy.run import BETWEEN, CCP, RADIUS, SINGLE, geometry
from studies.places import located
from studies.random_start import load_recipe

SEEDS = (0, 1, 2, 3, 4)
SETTINGS = [*CUB, *BATCH, f"training.lr={FAST}", "data.val_classes=0.33"]
VARIANTS = {SINGLE: ["training.chance_constrained={instances: 1}"], CCP: []}
MEASURES = (RADIUS, BETWEEN, "MAP@R")
INSTANCE = {
    "steps": "instance_steps",
    "MAP@R": "instance_MAP@R",
    RADIUS: "instance_covering_radius",
    "spread": "instance_spread",
}
LEDGER = located("studies/ccp_unseen/ledger.jsonl")


def train_cell(dataset: Dataset, variant: str, seed: int, settings: list[str]) -> dict[str, Any]:
    """Train one variant, and measure it on its validation classes."""
    recipe = load_recipe("contrastive-ccp", [*SETTINGS, *VARIANTS[variant], f"training.seed={seed}", *settings])
    split = resolve_split(dataset.manifest, recipe.data, seed)
    features = cache_directory() / "features"
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(dataset, recipe, run, source="cub200", cache_directory=features, split=split)
        instances = [row for row in run.history() if row.get("instance") is not None]
    if result.interrupted:
        raise SystemExit("Stopped; the next run begins with this cell.")
    embedder, used = result.embedder, np.sort(np.concatenate([split.train, split.val]))
    cache = FeatureCache.build(
        embedder,
        dataset.select(used),
        at=cache_point(embedder),
        views=recipe.model.cache_views,
        dtype=recipe.model.cache_dtype,
        directory=features,
    )
    embeddings = cache.encode(embedder, np.searchsorted(used, split.val))
    return {
        "variant": variant,
        "seed": seed,
        **geometry(embeddings, dataset.labels[split.val], embedder.space),
        "instances": [{name: round(row[key], 5) for name, key in INSTANCE.items()} for row in instances],
        "steps": result.state.step,
        "seconds": round(result.state.seconds, 1),
    }


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def print_table(cells: list[dict[str, Any]]) -> None:
    """A row a variant: the mean over its seeds, and their range."""
    print(f"\n| variant | seeds | {' | '.join(MEASURES)} |")
    print("|---" * (len(MEASURES) + 2) + "|")
    for variant in VARIANTS:
        mine = [cell for cell in cells if cell["variant"] == variant]
        columns = [[cell[name] for cell in mine] for name in MEASURES]
        told = [f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})" for values in columns]
        print(f"| {variant} | {len(mine)} | {' | '.join(told)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    cells = [] if arguments.quick else read_ledger()
    settings = ["training.max_steps=300"] if arguments.quick else []
    done = {(cell["variant"], cell["seed"]) for cell in cells}
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    wanted = [(variant, seed) for seed in seeds for variant in VARIANTS if (variant, seed) not in done]
    if wanted:
        dataset = open_data("cub200", data_root=arguments.data_root)
    for variant, seed in wanted:
        cells.append(train_cell(dataset, variant, seed, settings))
        if not arguments.quick:
            with open(LEDGER, "a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(cells[-1]) + "\n")
    print_table(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
