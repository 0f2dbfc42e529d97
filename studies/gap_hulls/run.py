"""What average pooling does to local features, seen in two dimensions: ten super-classes of CIFAR-100.

    python studies/gap_hulls/run.py            finish the cells, print the table
    python studies/gap_hulls/run.py --quick    one seed, few steps; the ledger is not touched

Gürbüz 2022, section 4.3, there of CIFAR-10: a ResNet-20 from scratch whose local features have two dimensions learns
ten classes by contrastive loss. Here these are the first ten super-classes by name; their published training images
train, half of the others choose the weights and half are measured. As in the print: 64 images of each class, features
scaled into the unit ball, 48 prototypes by greedy k-center; the distance between the mean of an image's features (GAP)
and the convex combination of their prototypes (PCC), the prototypes that several classes share, and how much the hulls
of the classes overlap, as the audit suite `pooling` measures them.

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

from nearkin.audits.pooling_suite import LocalEncoder, pooling_suite
from nearkin.audits.subject import Subject
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.sources import open_data
from nearkin.data.splits import Split
from nearkin.data.stores import ArrayStore
from nearkin.metrics import retrieval_metrics
from nearkin.recipe import AuditSection
from nearkin.training import Run, train
from studies.gsp_collage.collages import SUPER_CLASSES
from studies.places import located
from studies.random_start import load_recipe

SEEDS = (0, 1, 2)
CLASSES = 10
STEPS = 150
SETTINGS = [
    "data.classes_per_batch=10",
    "data.per_class=4",
    "data.workers=0",
    "model={backbone: resnet20, size: 32, local_dimension: 2, dimension: null, pooling: gap, pretrained: false, "
    "freeze: null, cache: false, space: lipschitz-ball}",
    f"training.max_steps={STEPS}",
    "training.lr=2e-3",
    "training.lr_schedule=cosine",
    "training.backbone_lr_factor=1.0",
    "training.evaluate_every=75",
    "training.patience=null",
]
SECTION = AuditSection(pooling_classes=CLASSES, pooling_items=64, pooling_prototypes=48)
LEDGER = located("studies/gap_hulls/ledger.jsonl")


def ten_classes(data_root: Path | None) -> tuple[Dataset, Split]:
    """The images of ten super-classes in memory, labelled by these, and what each image is for."""
    source = open_data("cifar100", data_root=data_root)
    names = sorted(SUPER_CLASSES)[:CLASSES]
    super_of = {sub: name for name in names for sub in SUPER_CLASSES[name].split()}
    rows = np.flatnonzero([label in super_of for label in source.labels])
    paths = [source.manifest.paths[row] for row in rows]
    images = np.stack([np.asarray(source.image(int(row)).convert("RGB")) for row in rows])
    labels = [super_of[source.labels[row]] for row in rows]
    dataset = Dataset(Manifest.from_rows(paths, labels), ArrayStore(images, paths), name="CIFAR-100")
    published = source.manifest.column("split")[rows]
    train, rest = (np.flatnonzero(published == part) for part in ("train", "test"))
    rest = np.random.default_rng(0).permutation(rest)
    return dataset, Split(train, *(np.sort(half) for half in np.array_split(rest, 2)))


def train_cell(dataset: Dataset, split: Split, seed: int, settings: list[str]) -> dict[str, Any]:
    """Train from one seed, and look at the pooling of images that were not trained on."""
    recipe = load_recipe("contrastive", [*SETTINGS, f"training.seed={seed}", *settings])
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(dataset, recipe, run, source="cifar100", cache_directory=cache_directory(), split=split)
    if result.interrupted:
        raise SystemExit("Stopped; the next run begins with this cell.")
    embedder, items = result.embedder, dataset.select(split.test)
    embeddings = embedder.encode(items, progress=False)
    local = LocalEncoder(embedder, items)
    found = pooling_suite(
        Subject(embeddings, items.labels, embedder.space, local=local, model=embedder, progress=False), SECTION
    )
    retrieved = retrieval_metrics(embeddings, items.labels, metrics=("MAP@R",), space=embedder.space)
    return {
        "seed": seed,
        **{name: round(float(value), 5) for name, value in found.values.items()},
        "hulls": np.round(found.details["pooling"]["hulls"], 4).tolist(),
        "MAP@R": round(retrieved.values["MAP@R"], 5),
        "steps": result.state.step,
        "seconds": round(result.state.seconds, 1),
    }


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    cells = [] if arguments.quick else read_ledger()
    settings = ["training.max_steps=20", "training.evaluate_every=10"] if arguments.quick else []
    done = {cell["seed"] for cell in cells}
    wanted = [seed for seed in (SEEDS[:1] if arguments.quick else SEEDS) if seed not in done]
    if wanted:
        dataset, split = ten_classes(arguments.data_root)
    for seed in wanted:
        cells.append(train_cell(dataset, split, seed, settings))
        if not arguments.quick:
            with open(LEDGER, "a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(cells[-1]) + "\n")
    print("\n| measure | mean | least | greatest |\n|---|---|---|---|")
    for name in (name for name, value in cells[0].items() if isinstance(value, float)):
        values = [cell[name] for cell in cells]
        print(f"| {name} | {np.mean(values):.3f} | {min(values):.3f} | {max(values):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
