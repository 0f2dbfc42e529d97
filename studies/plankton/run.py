"""Article I on birds: an open set of classes, sorted by centroids and neighbours; seen classes and unseen ones.

    python studies/plankton/run.py           every seed, then tables and pictures; finished seeds are kept
    python studies/plankton/run.py --quick   a few classes and steps, to see whether it runs; keeps nothing

Malde and Kim 2019 (Kim 2023, article I) with the recipe `plankton-triplet`, on CUB-200-2011 in place of ZooScan and
with a frozen EfficientNet-Lite0 in place of a whole Inception v3. Of each of the first 100 species 20 photographs are
kept out; the others train, all species, and the last weights are taken. Then both the 20 kept out ("seen") and 20 of
each of the other 100 species ("unseen") are halved: one half is the reference, the other is named by the nearest
centroid and by votes. Beside it the same with the untrained features. Seeds are lines of studies/plankton/ledger.jsonl.
Pictures are those of the first seed. The F1 of classes is drawn from its line each time; maps and clusters need the
trained model, and are drawn when that seed is computed: to draw them again, remove its line. Needs the data:
NEARKIN_DATA or --data-root.
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
from studies.places import IMAGES, located

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np

from nearkin.audits import AuditResult, run_suites, subject_of_model
from nearkin.audits.result import draw_embedding_map
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe
from nearkin.report.bars import draw_f1
from nearkin.report.dynamics import draw_clusters
from nearkin.training import Run, train
from studies.random_start import load_recipe

LEDGER = located("studies/plankton/ledger.jsonl")
RECIPE = "plankton-triplet"
SETTINGS = [
    "data.split=fraction",
    "data.test_classes=0",
    "data.val_classes=0",
    "audit.suites=[classification]",
    "audit.classification_k=[1, 5, 10]",
]
QUICK = ["training.max_steps=40", "training.evaluate_every=10", "objective.parameters.margins=[[0, 1.0], [20, 1.5]]"]
SEEDS = (0, 1, 2)
KEPT_OUT = 20
"""Photographs of each species that are named or named by; the article has a hundred."""
SETS = ("seen", "unseen")
CLASSIFIERS = ("centroid", "1-NN", "5-NN", "10-NN")


def divide(dataset: Dataset, classes: int | None = None) -> tuple[Dataset, dict[str, Dataset]]:
    """What trains, and the photographs to name: `KEPT_OUT` of each class, by a seed of their own.

    Args:
        dataset: with the published split of classes.
        classes: how many of each part; None: all.
    """
    order = np.random.default_rng(0).permutation(len(dataset))
    chosen: dict[str, list[int]] = {"train": [], "seen": [], "unseen": []}
    for part, kept_as in (("train", "seen"), ("test", "unseen")):
        of_part = dataset.manifest.mask(split=part)
        for name in np.unique(dataset.labels[of_part])[:classes]:
            rows = order[(dataset.labels[order] == name) & of_part[order]]
            chosen[kept_as].extend(rows[:KEPT_OUT])
            chosen["train"].extend(rows[KEPT_OUT:] if part == "train" else [])
    parts = {name: dataset.select(np.sort(rows)) for name, rows in chosen.items()}
    return parts.pop("train"), parts


def cell(learned: Dataset, asked: dict[str, Dataset], recipe: Recipe, pictures: Path | None) -> dict[str, Any]:
    """Train one model and name the photographs that it has not seen; draw, where there is a place for pictures."""
    features = cache_directory() / "features"
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(learned, recipe, run, source="cub200", cache_directory=features)
        if result.interrupted:
            raise SystemExit(130)  # a model that was not trained to its end is not kept
        embedder = result.embedder
        clusters = run.clusters()
    if clusters is None:
        raise SystemExit(f"The recipe {recipe.name} keeps no clusters: set training.cluster_items.")
    found: dict[str, Any] = {
        "seed": recipe.training.seed,
        "recipe": Candidate(RECIPE, recipe).digest(),
        "seconds": embedder.card["seconds"],
        "clusters": {
            "steps": clusters.steps.tolist(),
            "radius": _rounded(clusters.radii.mean(axis=1)),
            "drift": _rounded(clusters.drift.mean(axis=1)),
            "accuracy": _rounded(clusters.accuracy),
        },
    }
    for name, items in asked.items():
        result = run_suites(subject_of_model(embedder, items, cache_directory=features), recipe.audit)
        found[name] = _told(result)
        if pictures is not None:
            (pictures / f"plankton-map-{name}.png").write_bytes(draw_embedding_map(result.subject).png)
    if pictures is not None:
        marks = {step: f"margin {margin:g}" for step, margin in recipe.objective.parameters["margins"] if step}
        png = draw_clusters(clusters.steps, clusters.radii, clusters.drift, clusters.accuracy, marks=marks)
        (pictures / "plankton-clusters.png").write_bytes(png)
    return found


def _told(result: AuditResult) -> dict[str, Any]:
    """What the ledger keeps of an audit."""
    details = result.details["classification"]
    return {
        "classes": len(details["per_class"]["centroid"]["F1"]),
        "evaluated": details["evaluated"],
        "reference": details["reference"],
        "values": {name: round(value, 5) for name, value in result.values.items()},
        "intervals": {name: _rounded(pair) for name, pair in result.intervals.items()},
        "untrained": {name: round(value, 5) for name, value in result.baseline.items()},
        "F1": {
            classifier: {name: round(value, 4) for name, value in details["per_class"][classifier]["F1"].items()}
            for classifier in CLASSIFIERS
        },
        "confusions": [[true, taken, round(rate, 4)] for true, taken, rate in details["confusions"]["10-NN"]],
        "radius": round(mean(details["radii"].values()), 5),
    }


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]


def draw_scores(told: dict[str, Any], pictures: Path) -> None:
    """The F1 of each class, of one seed: centroid in black, votes in grey."""
    for name in SETS:
        scores = {classifier: told[name]["F1"][classifier] for classifier in ("centroid", "10-NN")}
        (pictures / f"plankton-f1-{name}.png").write_bytes(draw_f1(scores))


def tell(cells: list[dict[str, Any]]) -> None:
    """Print macro F1, in percent: the mean and range over seeds, and the untrained features."""
    print(f"\n{'classes':>8} {'classifier':>12} {'macro F1':>22} {'untrained':>10}")
    for name in SETS:
        for classifier in CLASSIFIERS:
            metric = f"macro F1, {classifier}"
            values = [100 * one[name]["values"][metric] for one in cells]
            told = f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
            print(f"{name:>8} {classifier:>12} {told:>22} {100 * cells[0][name]['untrained'][metric]:10.1f}")
    for name in SETS:
        print(f"\nCommonest confusions, {name} classes")
        for true, taken, rate in cells[0][name]["confusions"]:
            print(f"{100 * rate:5.1f} %  {true} taken for {taken}")


def run_quick(data_root: Path | None) -> None:
    """A few classes and steps, in a directory of its own."""
    learned, asked = divide(open_data("cub200", data_root=data_root), classes=6)
    with tempfile.TemporaryDirectory() as folder:
        found = cell(learned, asked, load_recipe(RECIPE, [*SETTINGS, *QUICK]), Path(folder))
        draw_scores(found, Path(folder))
        print(f"{len(list(Path(folder).iterdir()))} pictures drawn")
    tell([found])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few classes and steps; keeps nothing")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.quick:
        run_quick(arguments.data_root)
        return 0
    recipes = {seed: load_recipe(RECIPE, [*SETTINGS, f"training.seed={seed}"]) for seed in SEEDS}
    digests = {seed: Candidate(RECIPE, recipe).digest() for seed, recipe in recipes.items()}
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    # A line that another recipe made is not of this table.
    done = {line["seed"]: line for line in lines if line["recipe"] == digests.get(line["seed"])}
    if missing := [seed for seed in SEEDS if seed not in done]:
        learned, asked = divide(open_data("cub200", data_root=arguments.data_root))
        for seed in missing:
            done[seed] = cell(learned, asked, recipes[seed], IMAGES if seed == SEEDS[0] else None)
            with open(LEDGER, "a", encoding="utf-8") as file:
                file.write(json.dumps(done[seed]) + "\n")
    cells = [done[seed] for seed in SEEDS]
    draw_scores(cells[0], IMAGES)
    tell(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
