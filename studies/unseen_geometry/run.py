"""What do embeddings of unseen classes look like, and does changing their geometry help? Emoji by six designers.

    python studies/unseen_geometry/run.py            finish the cells, draw, print the tables
    python studies/unseen_geometry/run.py --quick    one seed, few steps; the ledger is not touched

577 classes train and validate, 388 others test; each class has one item of each of six designers, so what varies inside
classes is known. A frozen EfficientNet-Lite0 at 112 px, the size of the pictures, and 128 dimensions: multi-similarity
loss from the whitened start, alone and with the regulariser `residual-augmentation`; ProxyDR from a random head on the
sphere and in the Poincare ball; contrastive loss with one proxy problem and with CCP, once. Of each model, on test
classes: MAP@R and P@1 with class means for paired intervals; chance constraints and covering radius; residuals with the
designer as what varies; MAP@R by power when principal directions of the training classes are re-weighted; and whether
items that lie far out are the clear ones.

Each finished cell is a line of `ledger.jsonl`; a run that is stopped goes on where it was. Needs the data:
NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
import torch

from nearkin.audits.geometry import POWERS, reweighting_of_training
from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.corruptions import CorruptedDataset
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import Split, resolve_split
from nearkin.errors import DataError
from nearkin.metrics import (
    mean_class_radius,
    pair_violations,
    residual_metrics,
    retrieval_metrics,
    verification_from_scores,
)
from nearkin.models import Embedder
from nearkin.models.shorten import raw_embeddings
from nearkin.objectives.section import pair_margins
from nearkin.recipe import load_recipe
from nearkin.report import draw_metric_curves
from nearkin.report.chance_constrained import draw_instances
from nearkin.search import exact
from nearkin.spaces import PoincareBall
from nearkin.training import Run, train
from studies.places import IMAGES, located

SEEDS = (0, 1, 2)
PLAIN, AUGMENTED = "multi-similarity", "with residual-augmentation"
HYPERBOLIC, STEEP, SPHERICAL = "Poincaré ball, curvature 0.01", "Poincaré ball, curvature 1, rate 1e-3", "sphere"
SETTINGS = (
    "data.split=column",
    "model.size=112",
    "model.cache_views={}",
    "model.dimension=128",
    "training.evaluate_every=100",
)
ONE_PROBLEM, CCP = "contrastive, one proxy problem", "contrastive, CCP"
_LONG = ("training.max_steps=600", "training.evaluate_every=25")
_SLOW = ("training.lr=1e-4", "training.proxy_lr_factor=100")
_TERM = "objective.regularisers=[{name: residual-augmentation, weight: 0.5}]"
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    PLAIN: ("multi-similarity", ()),
    AUGMENTED: ("multi-similarity", (_TERM,)),
    HYPERBOLIC: ("proxy-dr", ("model.space=poincare-ball", "model.space_parameters={curvature: 0.01}", *_SLOW)),
    SPHERICAL: ("proxy-dr", ("model.head_start=random", *_SLOW)),
    STEEP: ("proxy-dr", ("model.space=poincare-ball",)),  # the defaults
    ONE_PROBLEM: ("contrastive-ccp", ("training.chance_constrained={instances: 1}", *_LONG)),
    CCP: ("contrastive-ccp", _LONG),
}
ONCE = (STEEP, ONE_PROBLEM, CCP)
"""Variants of the first seed alone."""
METRICS = ("MAP@R", "P@1")
FEATURES = cache_directory() / "features"
LEDGER = located("studies/unseen_geometry/ledger.jsonl")
QUICK = ("training.max_steps=20", "training.evaluate_every=10")


@cache
def emoji(root: Path | None) -> Dataset:
    where = root or os.environ.get("NEARKIN_DATA")
    if where is None:
        raise SystemExit("emoji.zip is needed: set NEARKIN_DATA or --data-root to its folder.")
    return open_data(Path(where) / "emoji.zip")


def measure(model: Embedder, items: Dataset) -> dict[str, Any]:
    """Retrieval of items among themselves, with the mean of every class in the order of their names."""
    points = embed_items(model, items, FEATURES, progress=False)
    found = retrieval_metrics(points, items.labels, metrics=METRICS, space=model.space)
    means = {name: found.per_class(name) for name in METRICS}
    rounded = {name: [round(values[key], 4) for key in sorted(values)] for name, values in means.items()}
    return {**found.values, "classes": rounded}


def run_cell(variant: str, seed: int, settings: tuple[str, ...], root: Path | None) -> dict[str, Any]:
    """Train one model and look at its unseen classes from all sides."""
    name, own = VARIANTS[variant]
    dataset = emoji(root)
    recipe = load_recipe(name, [*SETTINGS, *own, f"training.seed={seed}", *settings])
    split = resolve_split(dataset.manifest, recipe.data, seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(dataset, recipe, run, source="emoji", cache_directory=FEATURES, split=split)
        instances = [row for row in run.history() if row.get("instance") is not None]
    if result.interrupted:
        raise SystemExit("Stopped; the next run begins with this cell.")
    model, items = result.embedder, dataset.select(split.test)
    points = embed_items(model, items, FEATURES, progress=False)
    least, most = pair_margins(recipe.objective, model.space) or (0.0, 1.0)
    margins = {"pos_margin": least, "neg_margin": most, "space": model.space, "pairs": 200_000}
    residuals = residual_metrics(points, items.labels, attributes=items.manifest.column("domain"))
    cell = {
        "variant": variant,
        "seed": seed,
        **measure(model, items),
        "constraints": pair_violations(points, items.labels, **margins).values,
        "covering radius": mean_class_radius(points, items.labels),
        "residuals": residuals.values,
        "sizes": residuals.sizes.tolist(),
        "explained": {name: np.round(shares, 5).tolist() for name, shares in residuals.explained.items()},
        "steps": result.state.step,
        "seconds": round(result.state.seconds, 1),
    }
    if instances:
        cell["instances"] = instances
    if variant == PLAIN:
        cell["re-weighted"] = reweighted(model, dataset, items)
    if name == "proxy-dr":
        cell["clarity"] = clarity(model, dataset, split)
    return cell


def clarity(model: Embedder, dataset: Dataset, split: Split) -> dict[str, float]:
    """How often an item that should be clearer lies farther out, by geodesic in the ball, else by raw norm.

    Items whose nearest neighbour is of their class, against others; clean items against corrupted copies; items of
    training classes against those of unseen ones.
    """
    raw, space = raw_embeddings(model), model.space

    def outward(points: np.ndarray) -> np.ndarray:
        vectors = torch.from_numpy(points)
        if isinstance(space, PoincareBall):
            return space.clarity(space.project(vectors)).numpy()
        return vectors.norm(dim=1).numpy()

    items = dataset.select(split.test)
    unseen, known = (
        outward(embed_items(raw, dataset.select(rows), FEATURES, False)) for rows in (split.test, split.train)
    )
    points = embed_items(model, items, FEATURES, progress=False)
    right = items.labels[exact(points, k=1, space=space)[1][:, 0].numpy()] == items.labels
    found = {
        "right against wrong neighbour": auc(unseen[right], unseen[~right]),
        "known against unseen": auc(known, unseen),
    }
    some = np.arange(0, len(items), 8)
    for name in ("gaussian_noise", "defocus_blur"):
        part = CorruptedDataset(items.select(some), name, 3, side=112)
        found[f"clean against {name}"] = auc(unseen[some], outward(raw.encode(part, progress=False)))
    return found


def auc(high: np.ndarray, low: np.ndarray) -> float:
    """How likely one of the first (n,) exceeds one of the second (m,)."""
    scores, first = np.concatenate([high, low]), np.arange(len(high) + len(low)) < len(high)
    return round(verification_from_scores(scores, first).values["ROC-AUC"], 5)


def reweighted(model: Embedder, dataset: Dataset, items: Dataset) -> dict[str, Any]:
    """MAP@R of test classes by power, and which power the validation classes choose; None: to keep the model."""
    options: dict[str, Any] = {"cache_directory": FEATURES, "progress": False}
    found: dict[str, Any] = {}
    for power in POWERS:
        changed = reweighting_of_training(model, dataset, power, **options)
        found[f"{power:g}"] = measure(changed, items)
    try:
        found["chosen"] = reweighting_of_training(model, dataset, **options).card["reweighted"]["power"]
    except DataError:
        found["chosen"] = None
    return found


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def draw(cells: list[dict[str, Any]]) -> None:
    """Variance inside unseen classes explained, of the first plain model; instances of chance-constrained training."""
    first = next(cell for cell in cells if cell["variant"] == PLAIN)
    series = {name: (first["sizes"], shares) for name, shares in first["explained"].items()}
    png = draw_metric_curves({"Variance inside classes explained": series}, of="388 unseen emoji", across="directions")
    (IMAGES / "residuals.png").write_bytes(png)
    rows = [cell["instances"] for cell in cells if cell["variant"] == CCP]
    (IMAGES / "ccp-constraints.png").write_bytes(draw_instances(rows[0]))


def print_table(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        told = {name: round(cell[name], 4) for name in METRICS}
        print(f"{cell['variant']}, seed {cell['seed']}: {told}, {cell['residuals']}, {cell['constraints']}")
        if "re-weighted" in cell:
            powers = cell["re-weighted"]
            print({power: round(powers[power]["MAP@R"], 4) for power in powers if power != "chosen"}, powers["chosen"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    cells = [] if arguments.quick else read_ledger()
    settings = QUICK if arguments.quick else ()
    done = {(cell["variant"], cell["seed"]) for cell in cells}
    for seed in SEEDS[:1] if arguments.quick else SEEDS:
        for variant in VARIANTS:
            if (variant, seed) in done or (variant in ONCE and seed != SEEDS[0]):
                continue
            cells.append(run_cell(variant, seed, settings, arguments.data_root))
            if not arguments.quick:
                with open(LEDGER, "a", encoding="utf-8") as ledger:
                    ledger.write(json.dumps(cells[-1]) + "\n")
    if not arguments.quick:
        draw(cells)
    print_table(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
