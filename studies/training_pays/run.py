"""Does training pay? The default recipe against raw features on classes it has never seen.

    python studies/training_pays/run.py             finish the grid, print the table
    python studies/training_pays/run.py losses      every loss, CCP, GSP and attention on CUB-200-2011 from this start
    python studies/training_pays/run.py rates       how fast to learn, on classes held out of the training classes
    python studies/training_pays/run.py --check     exit code 0 only if the bars hold
    python studies/training_pays/run.py --pages     write docs/results/start.md from the ledger
    python studies/training_pays/run.py --quick     one folder, one seed; the ledger is not touched

Whole data sets, and folders of 10 and 40 classes with a few items each drawn from their training classes; 15 % of the
classes of each (two at least) choose the weights, and all unseen classes of the data set test. What is the same for all
(the learning rate, how it falls with few classes, how the start is chosen) is decided by `rates`, which sees no test
class: three in ten training classes take their place. Each finished cell is a line of `ledger.jsonl`, those
of `rates` of `rates.jsonl`; a run that is stopped goes on where it was. Features of whole data sets are
computed once and kept in the user's cache. Needs the data: NEARKIN_DATA or --data-root; Fashion-MNIST from Debian's
package.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import Split, resolve_split, split_classes
from nearkin.metrics import RetrievalResult, class_bootstrap, retrieval_metrics
from nearkin.models import FeatureCache, build_embedder, cache_point, start
from nearkin.models.start import HeadStart, Trial
from nearkin.objectives import losses
from nearkin.recipe import DEFAULT_RECIPE, load_recipe
from nearkin.training import Run
from nearkin.training.fit import train
from studies.places import DOCS, located

SEEDS = (0, 1, 2)
MEASURES = ("P@1", "MAP@R")
SETS = ("cub200", "emoji", "omniglot", "cifar100")
FOLDERS = {
    "cub200": (5, 10, 40),
    "emoji": (5,),
    "omniglot": (5, 10, 20),
    "cifar100": (5, 10, 40),
}
"""Items of each class in the folders drawn; emoji has 6 of each and Omniglot 20."""
FOLDER_CLASSES = (10, 40)
FEW_CLASSES = ("pacs", "fashion-mnist")
"""Shown, without a bar: too few classes are unseen for an interval."""
CIFAR_TEST = 20
FASHION_ITEMS = 500
SELECTION = "val_MAP@R"
BARS = {"cub200": (53.0, 16.0), "emoji": (62.5, 41.0)}
CONSTANT = ("training.max_steps=1500", "training.lr_schedule=constant")
SHORT = (*CONSTANT, "training.evaluate_every=25", "training.patience=8")
LONG = (*CONSTANT, "training.evaluate_every=50", "training.patience=10")
COSINE = (
    "training.max_steps=400",
    "training.evaluate_every=25",
    "training.patience=null",
    "training.lr_schedule=cosine",
)
RATES = {
    "1e-4, share": (1e-4, 1, SHORT),
    "1e-4, share^2": (1e-4, 2, SHORT),
    "3e-5, share": (3e-5, 1, LONG),
    "1e-4, share^2, cosine": (1e-4, 2, COSINE),
}
"""Learning rates to choose from, the power of the share of classes and items that they are lowered by, and when to stop
training."""
FULL_CLASSES, FULL_ITEMS = 80, 3000
AS_SHIPPED = "as shipped"
LOSS_RATES = ("1e-5", "3e-5", "1e-4")
"""Learning rates to choose from for every loss, its recipe else as shipped."""


def safer(slack: float) -> Callable[[list[Trial]], Trial]:
    """Of one size: undamped and with the largest ridge, if it costs no more than this over the root of the queries."""

    def choose(trials: list[Trial]) -> Trial:
        best = [max(getattr(trial, name) for trial in trials) for name in ("precision", "map_at_r")]
        needed = [value - slack / trials[0].queries ** 0.5 for value in best]
        near = [trial for trial in trials if trial.precision >= needed[0] and trial.map_at_r >= needed[1]]
        return max(near or trials, key=lambda trial: (-trial.damping, trial.ridge or 0.0))

    return choose


STARTS: dict[str, dict[str, Any]] = {
    "start": {},
    "start, large ridge within 0.1": {"_best": safer(0.1)},
    "start, large ridge within 0.3": {"_best": safer(0.3)},
    "start, 2 dimensions a class": {"_DIMENSIONS_A_CLASS": 2},
}
"""Ways to choose the start, untrained: what of `nearkin.models.start` differs from what is shipped."""
RATE_SETS = ("cub200", "emoji", "cifar100")
HELD_OUT, HELD_OUT_SEED = 0.3, 7
"""Share of the training classes that stand for unseen ones in `rates`, and what draws them."""
LEDGER = located("studies/training_pays/ledger.jsonl")
RATES_LEDGER = located("studies/training_pays/rates.jsonl")
PAGE = DOCS / "results" / "start.md"
LOSSES = [name for name in losses if losses.get(name).family != "episodes" and not losses.get(name).needs_hierarchy]
NOT_FROM_HERE = ("learned-similarity",)
"""Losses whose recipes start at random."""
CCP = ("contrastive-ccp", "contrastive-cosine-ccp", "multi-similarity-ccp", "triplet-ccp")
ALIKE = (
    "data.classes_per_batch=8 data.per_class=4 training.max_steps=1200 training.lr_schedule=cosine "
    "training.evaluate_every=25 training.patience=null"
)
"""What CCP and the same loss without it are compared at: batch, steps and schedule of their recipes differ."""
GSP = ("multi-similarity", "contrastive", "proxy-anchor", "proxy-nca++")
TRIPLETS = "model.dimension=64 objective.parameters.margin=0.01"
ATTENTION = "model.attention.matrices=2 model.attention.hidden=128"
"""What costs a sixth of the recipes' own form; see adversary/run.py."""
ATTENDED = ("triplet-gdfl", "triplet-soft-adv", "triplet-adapt-adv")


@dataclass(frozen=True)
class Cell:
    """One model to train: a recipe on a data set, or on a folder drawn from it."""

    data: str
    seed: int
    classes: int = 0
    items: int = 0
    recipe: str = DEFAULT_RECIPE
    settings: str = ""
    """Overrides of the recipe, with blanks between them."""
    rate: str = ""
    """One of `STARTS` or `RATES`, judged on held-out training classes; "": the recipe as shipped, on test classes."""

    def key(self) -> dict[str, Any]:
        return vars(self)


def grid() -> list[Cell]:
    whole = [Cell(data, seed) for data in (*SETS, *FEW_CLASSES) for seed in SEEDS]
    folders = [
        Cell(data, seed, classes, items)
        for data, sizes in FOLDERS.items()
        for classes in FOLDER_CLASSES
        for items in sizes
        for seed in SEEDS
    ]
    return whole + folders


def loss_grid() -> list[Cell]:
    names = [name for name in (*LOSSES, *CCP) if name not in (*NOT_FROM_HERE, DEFAULT_RECIPE)]
    cells = [Cell("cub200", 0, recipe=name) for name in names]
    for name in CCP:
        cells += [Cell("cub200", 0, recipe=one, settings=ALIKE) for one in (name.removesuffix("-ccp"), name)]
    for name in GSP:
        cells += [
            Cell("cub200", 0, recipe=name, settings="model.dimension=128"),
            Cell("cub200", 0, recipe=f"{name}-gsp"),
        ]
    cells += [Cell("cub200", 0, recipe="triplet", settings=TRIPLETS), Cell("cub200", 0, recipe="triplet-energy")]
    cells += [Cell("cub200", 0, recipe=name, settings=ATTENTION) for name in ATTENDED]
    return [replace(cell, seed=seed) for seed in SEEDS for cell in cells]


def rates_grid() -> list[Cell]:
    """Of the folders only those with the fewest and the most items; of other losses only CUB-200-2011, one seed."""
    extremes = {data: (0, sizes[0], sizes[-1]) for data, sizes in FOLDERS.items()}
    cells = [cell for cell in grid() if cell.data in RATE_SETS and cell.items in extremes[cell.data]]
    shared = [replace(cell, rate=rate) for rate in (*STARTS, *RATES) for cell in cells]
    return shared + [
        Cell("cub200", 0, recipe=name, settings=f"training.lr={lr}", rate=AS_SHIPPED)
        for name in LOSSES
        if name not in (*NOT_FROM_HERE, DEFAULT_RECIPE)
        for lr in LOSS_RATES
    ]


@cache
def opened(name: str, root: str | None) -> Dataset:
    """A data set."""
    if name == "fashion-mnist":
        dataset = open_data(name, data_root=None)
        rng = np.random.default_rng(0)
        rows = [rng.permutation(np.flatnonzero(dataset.labels == label))[:FASHION_ITEMS] for label in dataset.classes]
        dataset = dataset.select(np.sort(np.concatenate(rows)))
    else:
        folder = root or os.environ.get("NEARKIN_DATA")
        if not folder:
            raise SystemExit("Set NEARKIN_DATA, or give --data-root: the directory with the data sets.")
        dataset = open_data(Path(folder) / f"{name}.zip", data_root=None)
    return dataset


@cache
def features_of(name: str, root: str | None, recipe: str, settings: str) -> FeatureCache:
    """What the frozen part of a recipe's model makes of all items of a data set."""
    section = load_recipe(recipe, settings.split()).model
    embedder = build_embedder(section)
    return FeatureCache.build(
        embedder,
        opened(name, root),
        at=cache_point(embedder),
        directory=cache_directory() / "features",
        views=section.cache_views,
        dtype=section.cache_dtype,
    )


def divide(dataset: Dataset, cell: Cell, recipe: Any) -> Split:
    """Which items train, choose the weights and test."""
    labels = dataset.labels
    if cell.data in FEW_CLASSES:
        return resolve_split(dataset.manifest, recipe.data.model_copy(update={"split": "fraction"}), cell.seed)
    if cell.data == "cifar100":
        unseen = np.isin(labels, sorted(set(labels))[-CIFAR_TEST:])
    else:
        unseen = dataset.manifest.column("split") == "test"
    rows, test = np.flatnonzero(~unseen), np.flatnonzero(unseen)
    if cell.rate:
        names = np.random.default_rng(HELD_OUT_SEED).permutation(np.unique(labels[rows]))
        held_out = np.isin(labels[rows], names[: round(HELD_OUT * len(names))])
        rows, test = rows[~held_out], rows[held_out]
    if cell.classes:
        rng = np.random.default_rng([cell.seed, cell.classes, cell.items])
        drawn = rng.permutation(np.unique(labels[rows]))[: cell.classes]
        rows = np.sort(np.concatenate([rng.permutation(rows[labels[rows] == name])[: cell.items] for name in drawn]))
    inner = split_classes(labels[rows], test=0.0, val=recipe.data.val_classes, seed=cell.seed)
    return Split(rows[inner.train], rows[inner.val], test)


def overrides(rate: str, labels: np.ndarray) -> list[str]:
    """What one of `RATES` means for these training items; of `STARTS`: one step that moves nothing."""
    if rate in STARTS:
        return ["training.lr=1e-12", "training.max_steps=1"]
    if rate == AS_SHIPPED:
        return []
    lr, power, lasting = RATES[rate]
    share = min(1.0, len(np.unique(labels)) / FULL_CLASSES, len(labels) / FULL_ITEMS)
    return [f"training.lr={lr * share**power}", "training.full_rate_classes=0", "training.full_rate_items=0", *lasting]


STARTED: dict[Any, HeadStart] = {}


def remembered(*key: Any) -> Callable[..., HeadStart]:
    """`fit_start`, once for cells that start from the same items and features."""

    def fit(*arguments: Any, **options: Any) -> HeadStart:
        whole = (*key, options["kind"], options["dimension"], type(options["space"]))
        if whole not in STARTED:
            STARTED[whole] = start.fit_start(*arguments, **options)
        return STARTED[whole]

    return fit


@cache
def raw_metrics(data: str, root: str | None, rows: tuple[int, ...]) -> RetrievalResult:
    dataset, features = opened(data, root), features_of(data, root, DEFAULT_RECIPE, "")
    indices = np.array(rows)
    return retrieval_metrics(np.asarray(features.gather(indices)), dataset.labels[indices])


def run_cell(cell: Cell, root: str | None) -> dict[str, Any]:
    """Train one model and measure it on the unseen classes, beside raw features."""
    dataset, features = opened(cell.data, root), features_of(cell.data, root, cell.recipe, cell.settings)
    recipe = load_recipe(cell.recipe, [*cell.settings.split(), f"training.seed={cell.seed}"])
    split = divide(dataset, cell, recipe)
    if cell.rate:
        recipe = load_recipe(recipe, overrides(cell.rate, dataset.labels[split.train]))
    chosen_by = cell.rate if cell.rate in STARTS else next(iter(STARTS)) if cell.rate else ""
    fit = remembered(id(features), chosen_by, cell.seed, cell.classes, cell.items)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(vars(start), STARTS.get(cell.rate, {})),
        patch("nearkin.training.start.fit_start", fit),
    ):
        began = time.monotonic()
        run = Run(Path(folder) / "run")
        result = train(
            dataset,
            recipe,
            run,
            source=cell.data,
            cache_directory=cache_directory() / "features",
            split=split,
            features=features,
            progress=False,
        )
        seconds = time.monotonic() - began
        curve = [[row["step"], round(row[SELECTION], 5)] for row in run.history() if SELECTION in row]
    if result.interrupted:
        raise SystemExit(130)  # a model that was not trained to its end is not kept
    model, labels = result.embedder, dataset.labels[split.test]
    ours = retrieval_metrics(features.encode(model, split.test), labels, space=model.space)
    raw = raw_metrics(cell.data, root, tuple(split.test))
    gains = {}
    for name in MEASURES:
        before = raw.per_class(name)
        gains[name] = {label: round(value - before[label], 5) for label, value in ours.per_class(name).items()}
    return {
        **cell.key(),
        "values": {name: round(ours.values[name], 5) for name in MEASURES},
        "raw": {name: round(raw.values[name], 5) for name in MEASURES},
        "gain per class": gains,
        "validation": result.gain.to_dict() if result.gain else None,
        "dimension": model.dimension,
        "ridge": model.card["start"]["ridge"],
        "training classes": len(model.card["classes"]["train"]),
        "best step": result.state.best_step,
        "curve": curve,
        "steps": result.state.step,
        "training seconds": round(result.state.seconds, 1),
        "seconds": round(seconds, 1),
    }


def read_ledger(path: Path = LEDGER) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def finish(cells: list[Cell], root: str | None, path: Path = LEDGER) -> None:
    """Run what the ledger lacks."""
    done = [{key: line.get(key, "") for key in Cell("", 0).key()} for line in read_ledger(path)]
    for cell in cells:
        if cell.key() not in done:
            line = run_cell(cell, root)
            with open(path, "a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(line) + "\n")
            print(told(line), flush=True)


def told(line: dict[str, Any]) -> str:
    numbers = " / ".join(f"{100 * line['values'][name]:.1f} (raw {100 * line['raw'][name]:.1f})" for name in MEASURES)
    folder = f" {line['classes']} x {line['items']}" if line["classes"] else ""
    where = f"{line['recipe']} {line['settings']} {line['data']}{folder} seed {line['seed']} {line['rate']}"
    return f"{' '.join(where.split())}: {numbers}, {line['dimension']}-d, step {line['best step']}"


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and the paired interval of the gain over raw features: classes resampled, seeds averaged."""
    row: dict[str, Any] = {"seeds": len(lines), "dimensions": sorted({line["dimension"] for line in lines})}
    row["training classes"] = lines[0]["training classes"]
    row["best steps"] = [line["best step"] for line in lines]
    row["seconds"] = max(line["seconds"] for line in lines)
    for name in MEASURES:
        row[name] = 100 * float(np.mean([line["values"][name] for line in lines]))
        row[f"raw {name}"] = 100 * float(np.mean([line["raw"][name] for line in lines]))
        found: dict[str, list[float]] = {}
        for line in lines:
            for label, value in line["gain per class"][name].items():
                found.setdefault(label, []).append(value)
        means = 100 * np.array([np.mean(values) for values in found.values()])
        row[f"gain {name}"] = (float(means.mean()), *class_bootstrap(means, np.arange(len(means))))
    return row


def rows_of(lines: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Summaries of the lines that share these keys, in the order of the ledger."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(tuple(line[key] for key in keys), []).append(line)
    return {key: summarise(group) for key, group in groups.items()}


def default_rows(lines: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    mine = [line for line in lines if line["recipe"] == DEFAULT_RECIPE and not line["settings"]]
    order = {data: place for place, data in enumerate((*SETS, *FEW_CLASSES))}
    mine.sort(key=lambda line: (line["classes"] > 0, order.get(line["data"], 0), line["classes"], line["items"]))
    return rows_of(mine, "data", "classes", "items")


def table(lines: list[dict[str, Any]]) -> list[str]:
    out = [
        "| data | trained on | dimensions | raw P@1 / MAP@R | default recipe | gain P@1 (95 %) | gain MAP@R (95 %) |",
        "|---|---|---|---|---|---|---|",
    ]
    for (data, classes, items), row in default_rows(lines).items():
        folder = f"{classes} classes x {items}" if classes else "all"
        sizes = " or ".join(map(str, row["dimensions"]))
        gains = " | ".join("{:+.1f} ({:+.1f} to {:+.1f})".format(*row[f"gain {name}"]) for name in MEASURES)
        out.append(
            f"| {data} | {folder} | {sizes} | {row['raw P@1']:.1f} / {row['raw MAP@R']:.1f} "
            f"| {row['P@1']:.1f} / {row['MAP@R']:.1f} | {gains} |"
        )
    return out


def pairs() -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """What is compared with what from this start: (recipe, settings) of the method, and of the same without it."""
    found = [((name, ALIKE), (name.removesuffix("-ccp"), ALIKE)) for name in CCP]
    found += [((f"{name}-gsp", ""), (name, "model.dimension=128")) for name in GSP]
    found += [(("triplet-energy", ""), ("triplet", TRIPLETS))]
    return found + [((name, ATTENTION), ("triplet", TRIPLETS)) for name in ATTENDED]


def pair_table(lines: list[dict[str, Any]]) -> list[str]:
    """Each method against the same loss without it, paired by class and seed."""
    out = ["| method | without it | seeds | P@1 (95 %) | MAP@R (95 %) |", "|---|---|---|---|---|"]
    by_name: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for line in lines:
        if line["data"] == "cub200" and not line["classes"]:
            by_name.setdefault((line["recipe"], line.get("settings", "")), {})[line["seed"]] = line
    for method, plain in pairs():
        ours, theirs = by_name.get(method, {}), by_name.get(plain, {})
        seeds = sorted(ours.keys() & theirs.keys())
        if seeds:
            told = []
            for name in MEASURES:
                found = [
                    {
                        k: v - theirs[seed]["gain per class"][name][k]
                        for k, v in ours[seed]["gain per class"][name].items()
                    }
                    for seed in seeds
                ]
                means = 100 * np.array([np.mean([one[label] for one in found]) for label in found[0]])
                low, high = class_bootstrap(means, np.arange(len(means)))
                told.append(f"{means.mean():+.1f} ({low:+.1f} to {high:+.1f})")
            size = theirs[seeds[0]]["dimension"]
            out.append(f"| {method[0]} | {plain[0]}, {size}-d | {len(seeds)} | {' | '.join(told)} |")
    return out


def tree_table() -> list[str]:
    """Heads by a class tree: the main models of taxonomy/run.py, from a random start and from this one."""
    path = located("studies/taxonomy/ledger.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    out = [
        "| model | seeds | top-1: random start | this start | MC of prototypes: random start | this start |",
        "|---|---|---|---|---|---|",
    ]
    for cell in dict.fromkeys(line["cell"] for line in lines if line["task"] == "start"):
        here = [line for line in lines if line["task"] == "start" and line["cell"] == cell]
        seeds = {line["seed"] for line in here}
        there = [line for line in lines if (line["task"], line["cell"]) == ("cifar", cell) and line["seed"] in seeds]
        numbers = [
            f"{100 * np.mean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"
            for name in ("top-1", "MC prototypes")
            for values in ([line["values"][name] for line in group] for group in (there, here))
        ]
        out.append(f"| {cell} | {len(seeds)} | {' | '.join(numbers)} |")
    return out


def same_start(line: dict[str, Any]) -> str:
    """What cells that begin with the same map share: the items and what step 0 gave on the validation classes."""
    parts = [line[key] for key in ("data", "seed", "classes", "items", "dimension")]
    return str([*parts, (line["validation"] or {}).get("values", {}).get("start")])


def loss_rows(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each loss on CUB-200-2011, best first, with its start where some cell of the ledger kept that (step 0)."""
    starts = {same_start(line): line["values"] for line in lines if line["best step"] == 0}
    mine = [line for line in lines if line["data"] == "cub200" and not line["classes"] and not line.get("settings")]
    rows = {name: row for (name,), row in rows_of(mine, "recipe").items()}
    for name, row in rows.items():
        pairs = [(line["values"], starts.get(same_start(line))) for line in mine if line["recipe"] == name]
        known = [(ours, start) for ours, start in pairs if start]
        row["starts"] = len(known)
        for measure in MEASURES if known else ():
            row[f"start {measure}"] = 100 * float(np.mean([start[measure] for _, start in known]))
            row[f"over start {measure}"] = 100 * float(np.mean([our[measure] - start[measure] for our, start in known]))
    return dict(sorted(rows.items(), key=lambda pair: -pair[1]["MAP@R"]))


def loss_table(lines: list[dict[str, Any]]) -> list[str]:
    out = [
        "| recipe | dimensions | seeds | P@1 / MAP@R | start alone | over its start | best step | gain P@1 (95 %) "
        "| gain MAP@R (95 %) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in loss_rows(lines).items():
        gains = " | ".join("{:+.1f} ({:+.1f} to {:+.1f})".format(*row[f"gain {measure}"]) for measure in MEASURES)
        sizes = " or ".join(map(str, row["dimensions"]))
        start = over = "–"
        if row["starts"]:
            seeds = "" if row["starts"] == row["seeds"] else f" ({row['starts']} of {row['seeds']} seeds)"
            start = " / ".join(f"{row[f'start {measure}']:.1f}" for measure in MEASURES) + seeds
            over = " / ".join(f"{row[f'over start {measure}']:+.1f}" for measure in MEASURES)
        out.append(
            f"| {name} | {sizes} | {row['seeds']} | {row['P@1']:.1f} / {row['MAP@R']:.1f} | {start} | {over} "
            f"| {np.mean(row['best steps']):.0f} | {gains} |"
        )
    return out


def below_start(lines: list[dict[str, Any]]) -> str:
    """Which losses end below their own start or below raw features, and which never left their start."""
    rows, below = loss_rows(lines), {}
    for name, row in rows.items():
        lost = [measure for measure in MEASURES if row["starts"] and round(row[f"over start {measure}"], 1) < 0]
        below.setdefault(" and ".join(lost), []).append(name)
    told = [f"Below their own start in {lost}: {', '.join(names)}." for lost, names in sorted(below.items()) if lost]
    if raw := [name for name, row in rows.items() if round(row["gain P@1"][0], 1) < 0]:
        told.append(f"Below raw features in P@1: {', '.join(raw)}.")
    if still := [name for name, row in rows.items() if not any(row["best steps"])]:
        told.append(f"No seed got beyond step 0, so the row is the start's, not the loss's: {', '.join(still)}.")
    return " ".join(told)


def rates_table(lines: list[dict[str, Any]]) -> list[str]:
    """What each candidate gives on held-out training classes: means over all rows, and the rows that lose to raw."""
    out = ["| | rows | gain P@1 | gain MAP@R | whole sets | rows wholly below zero |", "|---|---|---|---|---|---|"]
    for rate in (*STARTS, *RATES):
        rows = rows_of([line for line in lines if line["rate"] == rate], "data", "classes", "items")
        if rows:
            means = [np.mean([row[f"gain {name}"][0] for row in rows.values()]) for name in MEASURES]
            whole = [np.mean([row[f"gain {n}"][0] for k, row in rows.items() if not k[1]]) for n in MEASURES]
            below = [
                f"{data} {classes} x {items}"
                for (data, classes, items), row in rows.items()
                if any(row[f"gain {name}"][2] < 0 for name in MEASURES)
            ]
            numbers = " | ".join(f"{value:+.2f}" for value in means)
            told = f"{whole[0]:+.2f} / {whole[1]:+.2f}"
            out.append(f"| {rate} | {len(rows)} | {numbers} | {told} | {', '.join(below) or 'none'} |")
    return out


def loss_rates_table(lines: list[dict[str, Any]]) -> list[str]:
    """P@1 / MAP@R of each loss at each rate on held-out training classes of CUB-200-2011, seed 0."""
    found = {(line["recipe"], line["settings"]): line["values"] for line in lines if line["rate"] == AS_SHIPPED}
    out = [f"| recipe | {' | '.join(LOSS_RATES)} |", f"|---|{'---|' * len(LOSS_RATES)}"]
    for name in sorted({name for name, _ in found}):
        values = [found.get((name, f"training.lr={lr}")) for lr in LOSS_RATES]
        told = [" / ".join(f"{100 * value[one]:.1f}" for one in MEASURES) if value else "–" for value in values]
        out.append(f"| {name} | {' | '.join(told)} |")
    return out


def broken_bars(lines: list[dict[str, Any]]) -> list[str]:
    """What does not hold, in words."""
    found = []
    rows = default_rows(lines)
    done = [{key: line[key] for key in Cell("", 0).key()} for line in lines]
    missing = [cell for cell in grid() if cell.key() not in done]
    if missing:
        found.append(f"{len(missing)} cells are not measured")
    for (data, classes, items), row in rows.items():
        place = f"{data} {classes} x {items}" if classes else data
        for name, bar in zip(MEASURES, BARS.get(data, (0.0, 0.0)), strict=True):
            if data not in FEW_CLASSES and row[f"gain {name}"][2] < 0:
                found.append(f"{place}: {name} is below raw features by its whole interval")
            if not classes and row[name] < bar:
                found.append(f"{place}: {name} {row[name]:.1f} is below {bar}")
    return found


def write_page(lines: list[dict[str, Any]]) -> None:
    """docs/results/start.md: the words of `page.md`, its tables filled in from the ledger."""
    text = (Path(__file__).with_name("page.md")).read_text(encoding="utf-8")
    broken = "\n".join(f"- {sentence}" for sentence in broken_bars(lines)) or "None."
    kept = read_ledger(RATES_LEDGER)
    rates = {"rates": rates_table(kept), "loss_rates": loss_rates_table(kept)}
    filled = {"default": table(lines), "losses": loss_table(lines), "pairs": pair_table(lines), "tree": tree_table()}
    for name, rows in {**filled, **rates, "broken": [broken], "below": [below_start(lines)]}.items():
        text = text.replace(f"{{{name}}}", "\n".join(rows))
    PAGE.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("default", "losses", "rates"), default="default")
    parser.add_argument("--only", help="data sets to go on with, such as cub200,emoji; default: all")
    parser.add_argument("--check", action="store_true", help="fail unless the bars hold")
    parser.add_argument("--pages", action="store_true", help="write the page of results and stop")
    parser.add_argument("--quick", action="store_true", help="one folder, one seed")
    parser.add_argument("--data-root", help="where the data sets are; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.quick:
        print(told(run_cell(Cell("emoji", 0, 10, 5), arguments.data_root)))
        print("not checked: the bars, which need the whole grid")
        return 0
    if not arguments.pages:
        cells = {"default": grid, "losses": loss_grid, "rates": rates_grid}[arguments.part]()
        wanted = arguments.only.split(",") if arguments.only else (*SETS, *FEW_CLASSES)
        ledger = RATES_LEDGER if arguments.part == "rates" else LEDGER
        finish([cell for cell in cells if cell.data in wanted], arguments.data_root, ledger)
    if arguments.part == "rates":
        print("\n".join(rates_table(read_ledger(RATES_LEDGER))))
        return 0
    lines = read_ledger()
    if arguments.pages:
        write_page(lines)
    print("\n".join([*loss_table(lines), "", *pair_table(lines)] if arguments.part == "losses" else table(lines)))
    broken = broken_bars(lines)
    for sentence in broken:
        print(f"not met: {sentence}")
    return 1 if arguments.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
