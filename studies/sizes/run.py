"""How short may embeddings be? MAP@R on the unseen birds of CUB-200-2011 against the number of dimensions kept.

    python studies/sizes/run.py            finish the cells, print the table
    python studies/sizes/run.py --pages    also write docs/results/sizes.md and its picture
    python studies/sizes/run.py --quick    one loss, one seed; the ledger is not touched

A head of 128 dimensions on the cached features of a frozen EfficientNet-Lite0 is trained plainly and with
`objective.prefixes`, and heads of 8 to 64 dimensions are trained for themselves. Classes 1-100 train (20 of them, drawn
by the seed, choose the weights, and how principal components are taken), classes 101-200 test. Each finished cell is a
line of `ledger.jsonl`; a run that is stopped goes on where it was. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.api import fit_run
from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.sources import open_data
from nearkin.metrics import retrieval_metrics
from nearkin.models import Embedder
from nearkin.spaces import Euclidean, PrincipalRotation, Sphere
from nearkin.training import Run
from studies.cub_frozen.run import SETTINGS
from studies.places import located
from studies.random_start import load_recipe
from studies.sizes.page import summarise, table_rows, write_page

LOSSES = ("proxy-anchor", "multi-similarity")
SEEDS = (0, 1, 2)
WHOLE, SIZES = 128, (8, 16, 32, 64)
PREFIXES = f"objective.prefixes={list(SIZES)}"
LEDGER = located("studies/sizes/ledger.jsonl")


def trainings() -> dict[str, list[str]]:
    """What a training is called, and its overrides."""
    own = {f"at {size}": [f"model.dimension={size}"] for size in SIZES}
    return {"plain": [], "prefixes": [PREFIXES], **own}


def run_cell(dataset: Any, loss: str, training: str, seed: int) -> dict[str, Any]:
    """Train one model and measure it at every size that it can be cut to."""
    recipe = load_recipe(loss, [*SETTINGS, f"training.seed={seed}", *trainings()[training]])
    with tempfile.TemporaryDirectory() as folder:
        result = fit_run(dataset, recipe, Run(Path(folder) / "run"), progress=False)
        if result.interrupted:
            raise SystemExit(130)  # a model that was not trained to its end is not kept
    model = result.embedder
    points, labels = embed_parts(model, dataset)
    cell: dict[str, Any] = {"loss": loss, "training": training, "seed": seed}
    cell |= {"steps": result.state.step, "seconds": round(result.state.seconds, 1)}
    if model.dimension < WHOLE:
        return cell | {"first": {str(model.dimension): per_class(points["test"], labels["test"])}}
    turned = PrincipalRotation(Sphere()).fit(points["train"]).transform(points["test"])
    for way, vectors in (("first", points["test"]), ("PCA", turned)):
        cell[way] = {str(size): per_class(vectors[:, :size], labels["test"]) for size in (*SIZES, WHOLE)}
    if training == "plain":
        flat = copy.deepcopy(model)
        flat.space = Euclidean()
        cell["validation"] = compare_centres(points, embed_parts(flat, dataset)[0], labels["val"])
    return cell


def embed_parts(model: Embedder, dataset: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Embeddings and labels of the classes that trained, chose the weights, and test.

    The first two are embedded together: which is which depends on the seed, and features are cached by data set.
    """
    classes = model.card["classes"]
    tests = np.isin(dataset.labels, classes["test"])
    points, labels = {}, {}
    for mask, parts in ((~tests, ("train", "val")), (tests, ("test",))):
        items = dataset.select(mask)
        vectors = embed_items(model, items, cache_directory() / "features", progress=True)
        for part in parts:
            rows = np.isin(items.labels, classes[part])
            points[part], labels[part] = vectors[rows], items.labels[rows]
    return points, labels


def per_class(vectors: np.ndarray, labels: np.ndarray) -> list[float]:
    """MAP@R of each class by cosine, classes in the order of their names."""
    found = retrieval_metrics(vectors, labels, metrics=["MAP@R"]).per_class("MAP@R")
    return [round(found[name], 4) for name in sorted(found)]


def compare_centres(
    points: dict[str, np.ndarray], raw: dict[str, np.ndarray], labels: np.ndarray
) -> dict[str, dict[str, float]]:
    """MAP@R of the validation classes by ways to take principal components, and size."""
    _, _, around_zero = np.linalg.svd(points["train"].astype(np.float64), full_matrices=False)
    ways = {
        "directions around the mean, nothing taken off": PrincipalRotation(Sphere())
        .fit(points["train"])
        .transform(points["val"]),
        "directions around zero, nothing taken off": points["val"] @ around_zero.T,
        "the mean of raw embeddings taken off": PrincipalRotation(Euclidean()).fit(raw["train"]).transform(raw["val"]),
    }
    return {
        way: {
            str(size): round(retrieval_metrics(turned[:, :size], labels, metrics=["MAP@R"]).values["MAP@R"], 5)
            for size in (*SIZES, WHOLE)
        }
        for way, turned in ways.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", action="store_true", help="write the page and its picture")
    parser.add_argument("--quick", action="store_true", help="one loss, one seed; once the cache is built, a minute")
    parser.add_argument("--data-root", type=Path, help="where cub200.zip is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    cells = []
    if not arguments.quick and LEDGER.exists():
        cells = [json.loads(line) for line in LEDGER.read_text(encoding="utf-8").splitlines()]
    done = {(cell["loss"], cell["training"], cell["seed"]) for cell in cells}
    losses, seeds = (LOSSES[:1], SEEDS[:1]) if arguments.quick else (LOSSES, SEEDS)
    wanted = [(loss, training, seed) for seed in seeds for loss in losses for training in trainings()]
    missing = [key for key in wanted if key not in done]
    dataset = open_data("cub200", data_root=arguments.data_root) if missing else None
    for key in missing:
        cells.append(run_cell(dataset, *key))
        print(*key, f"{cells[-1]['seconds']} s", flush=True)
        if not arguments.quick:
            with open(LEDGER, "a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(cells[-1]) + "\n")
    for row in table_rows(summarise(cells)):
        print(" | ".join(row))
    if arguments.pages:
        write_page(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
