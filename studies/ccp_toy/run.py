"""Chance-constrained training made visible: Fashion-MNIST in two dimensions, where classes and proxies can be seen.

    python studies/ccp_toy/run.py               finish the grid, draw the pictures, print the table
    python studies/ccp_toy/run.py --check       exit code 0 only if the bars hold
    python studies/ccp_toy/run.py --quick       two variants, one seed, few steps; ledger and pictures are not touched
    python studies/ccp_toy/run.py --pictures    draw the pictures again
    python studies/ccp_toy/run.py --seeds 1     only these seeds; draws nothing

A LeNet learns 2-D embeddings of all ten classes (Gürbüz 2022, section 3.3.1, there of MNIST): 500 images a class train,
100 others choose the weights and end the instances, 200 others are measured. The proxies of the single problem start
in an untrained network, which puts everything near one point, and train to the end; those of CCP start in a trained
one and train for one short instance. "Two proxy problems" tells these apart: its second proxies start as CCP's do, and
train to the end.

Each finished cell is a line of `ledger.jsonl`; a run that is stopped goes on where it was. Needs the data:
NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
import torch

from nearkin.audits.training_pictures import proxy_panels
from nearkin.data.catalogue import cache_directory, open_named
from nearkin.data.dataset import Dataset
from nearkin.data.splits import Split
from nearkin.metrics import mean_class_radius, retrieval_metrics
from nearkin.models import Embedder
from nearkin.report.chance_constrained import MOST_PANELS, ProxyPanel, draw_instances, draw_proxies
from nearkin.spaces import Space
from nearkin.training import Run, train
from studies.places import IMAGES, located
from studies.random_start import load_recipe

SEEDS = (0, 1, 2)
SETTINGS = [
    "data.classes_per_batch=10",
    "data.per_class=4",
    "data.workers=0",
    "data.crop=centre",
    "data.flip=false",
    "model={backbone: lenet, channels: 1, size: 28, dimension: 2, space: lipschitz-ball, pretrained: false, "
    "freeze: null, cache: false}",
    "training.max_steps=1500",
    "training.lr=3.0e-3",
    "training.backbone_lr_factor=1.0",
    "training.evaluate_every=25",
    "training.patience=null",
]
_PROXIES = [
    "training.schedule=chance-constrained",
    "training.chance_constrained.proxies=4",
    "training.chance_constrained.pool=16",
]
SINGLE, CCP = "single proxy problem", "CCP"
VARIANTS = {
    "plain contrastive": [],
    SINGLE: [*_PROXIES, "training.chance_constrained.instances=1"],
    "two proxy problems": [*_PROXIES, "training.chance_constrained.instances=2"],
    CCP: _PROXIES,
    "CCP, random proxies": [*_PROXIES, "training.chance_constrained.pool=4"],
    "CCP, samples as anchors": [*_PROXIES, "training.chance_constrained.anchors=samples"],
}
SPREAD, RADIUS, BETWEEN = "proxies' spread", "covering radius", "distance between classes"
MEASURES = (SPREAD, RADIUS, BETWEEN, "MAP@R")

LEDGER = located("studies/ccp_toy/ledger.jsonl")
GEOMETRY, INSTANCES = IMAGES / "ccp-geometry.png", IMAGES / "ccp-instances.png"
_TRAIN, _VAL, _TEST = 500, 100, 200


def draw_items(dataset: Dataset) -> tuple[Dataset, Split]:
    """A fixed sample of every class, divided into items that train, that validate and that are measured."""
    rng = np.random.default_rng(0)
    ids = dataset.class_ids()
    wanted = _TRAIN + _VAL + _TEST
    chosen = np.stack([rng.permutation(np.flatnonzero(ids == c))[:wanted] for c in range(len(dataset.classes))])
    order = np.sort(chosen.ravel())
    parts = np.split(np.searchsorted(order, chosen), [_TRAIN, _TRAIN + _VAL], axis=1)
    return dataset.select(order), Split(*(np.sort(part.ravel()) for part in parts))


def train_cell(
    dataset: Dataset, split: Split, variant: str, seed: int, run: Run, settings: list[str]
) -> dict[str, Any]:
    """Train one variant in a run directory and measure it on items it never saw."""
    recipe = load_recipe("contrastive", [*SETTINGS, *VARIANTS[variant], f"training.seed={seed}", *settings])
    cache = cache_directory() / "features"
    result = train(dataset, recipe, run, source=dataset.name, cache_directory=cache, split=split)
    if result.interrupted:
        raise SystemExit(130)  # a model that was not trained to its end is not kept
    instances = [row for row in run.history() if row.get("instance") is not None]
    # The weights that were kept belong to the instance that validated best.
    best = max(instances, key=lambda row: row["instance_MAP@R"], default=None)
    return {
        "variant": variant,
        "seed": seed,
        SPREAD: round(best["instance_spread"], 5) if best else None,
        **measure(result.embedder, dataset.select(split.test)),
        "validation MAP@R": round(result.embedder.card["validation"]["val_MAP@R"], 5),
        "instances": len(instances),
        "steps": result.state.step,
        "seconds": round(result.state.seconds, 1),
    }


def measure(embedder: Embedder, items: Dataset) -> dict[str, float]:
    """Covering radius, mean distance between items of different classes, and MAP@R."""
    return geometry(embedder.encode(items, progress=False), items.labels, embedder.space)


def geometry(embeddings: np.ndarray, labels: np.ndarray, space: Space) -> dict[str, float]:
    """The same of embeddings (n, d) with labels (n,)."""
    points = torch.from_numpy(embeddings)
    distances = space.distance(points, points).numpy()
    found = retrieval_metrics(embeddings, labels, metrics=("MAP@R",), space=space)
    return {
        RADIUS: round(mean_class_radius(embeddings, labels), 5),
        BETWEEN: round(float(distances[labels[:, None] != labels].mean()), 5),
        "MAP@R": round(found.values["MAP@R"], 5),
    }


def draw_pictures(dataset: Dataset, split: Split) -> None:
    """Train the single problem and CCP once more; draw where their proxies lie and what each instance reached."""
    panels: list[ProxyPanel] = []
    with tempfile.TemporaryDirectory() as folder:
        for variant, most in ((SINGLE, 1), (CCP, MOST_PANELS - 1)):
            run = Run(Path(folder) / variant.replace(" ", "-"))
            train_cell(dataset, split, variant, SEEDS[0], run, [])
            mine = proxy_panels(run.instances(), run.history(), run.model().space, most)
            panels += [replace(panel, title=variant if most == 1 else f"{variant}, {panel.title}") for panel in mine]
        GEOMETRY.write_bytes(draw_proxies(panels, dataset.classes))
        INSTANCES.write_bytes(draw_instances(run.history()))


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def summarise(cells: list[dict[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """Variant to measure to the values of its seeds; a variant without proxies has no spread."""
    return {
        variant: {
            name: np.array([cell[name] for cell in cells if cell["variant"] == variant and cell[name] is not None])
            for name in MEASURES
        }
        for variant in VARIANTS
        if any(cell["variant"] == variant for cell in cells)
    }


def print_table(found: dict[str, dict[str, np.ndarray]]) -> None:
    """A row a variant: the mean over its seeds, and their range."""
    print(f"\n| variant | seeds | {' | '.join(MEASURES)} |")
    print("|---" * (len(MEASURES) + 2) + "|")
    for variant, values in found.items():
        spans = [span(values[name], "{:.1%}" if name == "MAP@R" else "{:.3f}") for name in MEASURES]
        print(f"| {variant} | {len(values['MAP@R'])} | {' | '.join(spans)} |")


def span(values: np.ndarray, form: str) -> str:
    if not len(values):
        return "–"
    mean, low, high = (form.format(value) for value in (values.mean(), values.min(), values.max()))
    return f"{mean} ({low} to {high})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the bars hold")
    parser.add_argument("--quick", action="store_true", help="two variants, one seed, few steps")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures, be they there or not")
    parser.add_argument("--seeds", nargs="+", default=[], type=int, help="only these seeds; draws nothing")
    parser.add_argument("--data-root", type=Path, help="where Fashion-MNIST is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    dataset, split = draw_items(open_named("fashion-mnist", arguments.data_root))
    cells = [] if arguments.quick else read_ledger()
    settings = ["training.max_steps=800"] if arguments.quick else []
    wanted = [(variant, 0) for variant in (SINGLE, CCP)]
    if not arguments.quick:
        wanted = [(variant, seed) for seed in arguments.seeds or SEEDS for variant in VARIANTS]
    done = {(cell["variant"], cell["seed"]) for cell in cells}
    for variant, seed in wanted:
        if (variant, seed) not in done:
            with tempfile.TemporaryDirectory() as folder:
                cells.append(train_cell(dataset, split, variant, seed, Run(Path(folder) / "run"), settings))
            if not arguments.quick:
                with open(LEDGER, "a", encoding="utf-8") as ledger:
                    ledger.write(json.dumps(cells[-1]) + "\n")
    missing = not (arguments.seeds or (GEOMETRY.exists() and INSTANCES.exists()))
    if not arguments.quick and (arguments.pictures or missing):
        draw_pictures(dataset, split)
    found = summarise(cells)
    print_table(found)
    single, ours = ({name: values.mean() for name, values in found[variant].items()} for variant in (SINGLE, CCP))
    print(
        f"\nCCP against the single proxy problem: proxies' spread {ours[SPREAD]:.3f} against {single[SPREAD]:.3f}, "
        f"covering radius {ours[RADIUS]:.3f} against {single[RADIUS]:.3f}, MAP@R {100 * ours['MAP@R']:.1f} against "
        f"{100 * single['MAP@R']:.1f}"
    )
    holds = ours[SPREAD] > single[SPREAD] and ours[RADIUS] < single[RADIUS]
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
