"""Do learned classes lie as a known tree says? Article IV of Kim 2023 on CIFAR-100, and on Omniglot with its alphabets.

    python studies/taxonomy/run.py cifar      head on frozen EfficientNet-Lite0 features: every model and option
    python studies/taxonomy/run.py start      the main models of `cifar` again, heads and proxies starting from the data
    python studies/taxonomy/run.py options    `cifar` again, with other layouts, starts and scales of proxies
    python studies/taxonomy/run.py omniglot   Conv4 from random weights, 964 characters of 30 alphabets
    python studies/taxonomy/run.py spaces     mean correlations without training: input space, random and pretrained
    python studies/taxonomy/run.py omniglot --only "NormFace, standard" --seeds 1
    python studies/taxonomy/run.py --quick    a few steps of two cells, to see whether it runs; keeps nothing
    python studies/taxonomy/run.py --pages    tables and pictures from what is finished

Seen-class protocol (`data.split: items`): all classes train, a tenth of each class's items validates and chooses the
weights by accuracy, the published test images (CIFAR-100) or a fifth of each class (Omniglot) are judged. Each finished
model is a line of `ledger.jsonl`, with its curves; a run that is stopped begins its model anew. The controls have the
fixed scale that a dynamic one begins with. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator
from studies.places import located

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch

from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.hierarchy import Hierarchy, load_hierarchy
from nearkin.data.sources import open_data
from nearkin.data.splits import resolve_split
from nearkin.metrics.hierarchy import (
    class_distance_matrix,
    class_prototypes,
    hierarchical_metrics,
    hierarchical_similarity,
    mean_correlation,
)
from nearkin.models import build_embedder
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe
from nearkin.spaces import Euclidean, Sphere
from nearkin.training import Run, train
from studies.random_start import load_recipe

LEDGER = located("studies/taxonomy/ledger.jsonl")
CURVES = ("val_accuracy", "MC_proxies", "MC_prototypes", "scale")
OPTIONS = {
    "standard": [],
    "EMA": ["objective.parameters.proxies=ema", "objective.parameters.ema_rate=0.01"],
    "dynamic": ["objective.parameters.scale=dynamic"],
    "EMA + dynamic": [
        "objective.parameters.proxies=ema",
        "objective.parameters.ema_rate=0.01",
        "objective.parameters.scale=dynamic",
    ],
    "MDS": ["objective.parameters.proxies=mds"],
    "MDS + dynamic": ["objective.parameters.proxies=mds", "objective.parameters.scale=dynamic"],
}
"""Training options of article IV; its alpha of 0.001 needs more steps than there are here, its code has 0.01."""
PLAIN = ["training.optimizer=adam", "training.weight_decay=0", "training.proxy_lr_factor=1", "training.patience=null"]
SEEN = ["data.split=items", "data.val_items=0.1", "data.per_class=1", "audit.suites=[hierarchy]"]


@dataclass(frozen=True)
class Task:
    """A data set, how it is learned, and which models learn it.

    Args:
        source: the data, as `open_data` knows it.
        changes: what every recipe changes.
        cells: names to (loss, what else the recipe changes).
        seeds: of the weights, the batches, and the choice of validation items.
        select: which of the data's items take part.
    """

    source: str
    changes: list[str]
    cells: dict[str, tuple[str, list[str]]]
    seeds: tuple[int, ...]
    select: Callable[[Dataset], Dataset] = field(default=lambda dataset: dataset)


def _grid(models: Mapping[str, str], options: tuple[str, ...]) -> dict[str, tuple[str, list[str]]]:
    return {f"{model}, {option}": (loss, OPTIONS[option]) for model, loss in models.items() for option in options}


BOTH = {"NormFace": "normface", "ProxyDR": "proxy-dr"}
CONTROLS = {
    "NormFace, s = 5.794": ("normface", ["objective.parameters.scale=5.794"]),
    "ProxyDR, s = 7.899": ("proxy-dr", ["objective.parameters.scale=7.899"]),
}
"""The scales with which the dynamic ones begin when there are 100 classes."""
FROZEN = [
    "data.hierarchy=cifar100",
    "data.classes_per_batch=32",
    "model.size=128",
    "model.dimension=128",
    "training.lr=1e-3",
    "training.max_steps=3000",
    "training.evaluate_every=300",
    "training.hierarchy_items=30",
]
OMNIGLOT = [
    "data.classes_per_batch=64",
    "data.flip=false",
    "data.crop_scale=[0.8, 1.0]",
    "data.crop_ratio=[0.9, 1.1]",
    "model.backbone=conv4",
    "model.pretrained=false",
    "model.channels=1",
    "model.size=28",
    "model.dimension=128",
    "model.freeze=null",
    "model.cache=false",
    "training.backbone_lr_factor=1",
    "training.lr=1e-3",
    "training.max_steps=800",
    "training.evaluate_every=200",
    "training.hierarchy_items=14",
]
WHITENED = ["model.head_start=whitened", "objective.proxy_start=prototypes", "training.lr=1e-4"]
"""The start of docs/methods/start.md, and of 1e-4, 3e-4 and 1e-3 the rate that validates best from there."""
TASKS = {
    "start": Task(
        "cifar100",
        [*FROZEN, *WHITENED],
        {
            **_grid(BOTH, ("standard", "dynamic", "MDS")),
            "softmax": ("softmax", ["model.space=euclidean"]),
            "CORR, MDS": ("corr", []),
        },
        (0, 1, 2),
    ),
    "cifar": Task(
        "cifar100",
        FROZEN,
        {
            **_grid(BOTH, ("standard", "dynamic")),
            **CONTROLS,
            "softmax": ("softmax", ["model.space=euclidean"]),
            **_grid(BOTH, ("EMA", "EMA + dynamic", "MDS", "MDS + dynamic")),
            "CORR, MDS": ("corr", []),
        },
        (0, 1, 2, 3, 4),
    ),
    "options": Task(
        "cifar100",
        FROZEN,
        {
            **{
                f"{model}, {option}": (loss, [f"objective.{change}" for change in changes])
                for model, loss in BOTH.items()
                for option, changes in {
                    "dynamic, rate 0.003": ["parameters.scale=dynamic", "parameters.scale_rate=0.003"],
                    "from prototypes": ["proxy_start=prototypes"],
                }.items()
            },
            **{
                f"NormFace, {option}": ("normface", [f"objective.parameters={{{given}}}"])
                for option, given in {
                    "MDS of LCS, 41 degrees": "proxies: mds, tree_distance: lcs, layout_angle: 41.41",
                    "MDS of LCS": "proxies: mds, tree_distance: lcs",
                    "cosines": "proxies: cosines",
                    "ranks": "proxies: ranks",
                }.items()
            },
            "CORR, cosines": ("corr", ["objective.parameters.proxies=cosines"]),
            "H-spherical, ranks": ("h-spherical", ["objective.parameters.proxies=ranks"]),
        },
        (0, 1, 2),
    ),
    "omniglot": Task(
        "omniglot",
        OMNIGLOT,
        {
            **_grid(BOTH, ("standard", "dynamic")),
            "softmax": ("softmax", ["model.space=euclidean"]),
            "ProxyDR, MDS": ("proxy-dr", OPTIONS["MDS"]),
            "CORR, MDS": ("corr", []),
        },
        (0, 1, 2),
        lambda dataset: dataset.select(np.flatnonzero(dataset.manifest.mask(split="train"))),
    ),
}
QUICK = ["training.max_steps=20", "training.evaluate_every=10"]
TREE_FILE = Path("alphabets.nwk")
SPACE_SEEDS = (0, 1, 2)
SPACES = (
    "input space",
    "normalised input space",
    "pretrained EfficientNet-Lite0",
    "random ResNet-20 with head, 32 px",
    "random EfficientNet-Lite0 with head, 64 px",
)
"""Where nothing was trained."""


def alphabets(dataset: Dataset) -> Hierarchy:
    """The tree of Omniglot: characters under their alphabets."""
    pairs = zip(dataset.labels, dataset.manifest.column("alphabet"), strict=True)
    return Hierarchy.from_paths({str(label): [str(alphabet)] for label, alphabet in dict(pairs).items()})


def recipe_of(task: Task, name: str, seed: int, tree: Path | None, more: tuple[str, ...] = ()) -> Recipe:
    """The recipe of a cell."""
    loss, changes = task.cells[name]
    own = [] if tree is None else [f"data.hierarchy={tree}"]
    return load_recipe(
        "base", [f"objective.loss={loss}", *PLAIN, *SEEN, *task.changes, *changes, *own, f"training.seed={seed}", *more]
    )


def digest(recipe: Recipe) -> str:
    """Of a recipe, wherever its tree lies."""
    data = recipe.data.model_copy(update={"hierarchy": recipe.data.hierarchy and Path(recipe.data.hierarchy).name})
    return Candidate("cell", recipe.model_copy(update={"data": data})).digest()


def cell(dataset: Dataset, tree: Hierarchy, recipe: Recipe) -> dict[str, Any]:
    """Train one model and judge it on the test items."""
    features = cache_directory() / "features"
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(dataset, recipe, run, source="benchmark", cache_directory=features)
        if result.interrupted:
            raise SystemExit(130)  # a model that was not trained to its end is not kept
        curves = [
            {"step": row["step"], **{name: round(row[name], 5) for name in CURVES if name in row}}
            for row in run.history()
            if any(name in row for name in CURVES)
        ]
    split = resolve_split(dataset.manifest, recipe.data, recipe.training.seed)
    known, asked = dataset.select(split.train), dataset.select(split.test)
    vectors = {
        name: embed_items(result.embedder, part, features, progress=False)
        for name, part in (("known", known), ("asked", asked))
    }
    loss = result.objective.loss
    if not isinstance(loss, ClassVectors):
        raise SystemExit(f"The loss of {recipe.name} has no proxies.")
    names = known.classes
    with torch.no_grad():
        scores = loss.class_scores(torch.from_numpy(vectors["asked"])).numpy()
        proxies = loss.class_vectors().numpy()
    ids = {name: position for position, name in enumerate(names)}
    truth = np.array([ids[label] for label in asked.labels])
    distances = tree.distances(names)
    values = dict(hierarchical_metrics(scores, truth, distances).values)
    # As in the article, distances between items and between classes are those of directions, for softmax too.
    values |= hierarchical_similarity(vectors["asked"], truth, distances).values
    prototypes = class_prototypes(vectors["known"], known.labels).vectors
    for what, points in (("proxies", proxies), ("prototypes", prototypes)):
        between = class_distance_matrix(points)
        values[f"MC {what}"] = mean_correlation(distances, between).value
        values[f"MC {what}, with diagonal"] = mean_correlation(distances, between, diagonal=True).value
    return {
        "seed": recipe.training.seed,
        "recipe": digest(recipe),
        "seconds": result.embedder.card["seconds"],
        "best_step": result.state.best_step,
        "items": {"train": len(known), "val": len(split.val), "test": len(asked)},
        "classes": len(names),
        "values": {name: round(float(value), 5) for name, value in values.items()},
        "curves": curves,
    }


def spaces(dataset: Dataset, tree: Hierarchy, seed: int) -> list[dict[str, Any]]:
    """Mean correlations of prototypes where nothing was trained: the seed's table 2."""
    recipe = recipe_of(TASKS["cifar"], "NormFace, standard", seed, None)
    part = dataset.select(resolve_split(dataset.manifest, recipe.data, seed).train)
    found = []
    for name, vectors in _untrained(recipe, part, seed).items():
        space = Euclidean() if name == SPACES[0] else Sphere()
        names, points = class_prototypes(vectors, part.labels, space)
        between, distances = class_distance_matrix(points, space), tree.distances(names)
        values = {
            "MC prototypes": round(mean_correlation(distances, between).value, 5),
            "MC prototypes, with diagonal": round(mean_correlation(distances, between, diagonal=True).value, 5),
        }
        found.append({"cell": name, "seed": seed, "values": values, "items": {"train": len(part)}})
        print(json.dumps(found[-1]), flush=True)
    return found


def _untrained(recipe: Recipe, part: Dataset, seed: int) -> dict[str, np.ndarray]:
    """Vectors of the items in each of the spaces that nothing was trained in."""
    pixels = np.stack([np.asarray(part.image(row), dtype=np.float32).ravel() / 255 for row in range(len(part))])
    pretrained = build_embedder(load_recipe("pretrained", ["model.size=128"]).model, seed=seed)
    found = [pixels, pixels, embed_items(pretrained, part, cache_directory() / "features", progress=False)]
    for backbone, size in (("resnet20", 32), ("efficientnet-lite0", 64)):
        changes = {"backbone": backbone, "size": size, "pretrained": False, "freeze": None, "cache": False}
        embedder = build_embedder(recipe.model.model_copy(update=changes), seed=seed).eval()
        found.append(embedder.encode(part, progress=False))
    return dict(zip(SPACES, found, strict=True))


def open_task(task: Task, data_root: Path | None, folder: Path) -> tuple[Dataset, Hierarchy, Path | None]:
    """The data, its tree, and the file of the tree where none is shipped."""
    dataset = task.select(open_data(task.source, data_root=data_root))
    if task.source == "cifar100":
        return dataset, load_hierarchy("cifar100"), None
    tree, path = alphabets(dataset), folder / TREE_FILE
    path.write_text(tree.to_newick(), encoding="utf-8")
    return dataset, tree, path


def read_ledger() -> list[dict[str, Any]]:
    """Every finished cell that the recipes of now would make; a line of another recipe is not of these tables."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    return [line for line in lines if line["task"] == "spaces" or _is_current(line)]


def _is_current(line: Mapping[str, Any]) -> bool:
    task = TASKS.get(line["task"])
    if task is None or line["cell"] not in task.cells:
        return False
    tree = None if task.source == "cifar100" else TREE_FILE
    return line["recipe"] == digest(recipe_of(task, line["cell"], line["seed"], tree))


def keep(line: dict[str, Any]) -> None:
    """Add a finished cell to the ledger."""
    with open(LEDGER, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run_task(name: str, data_root: Path | None, only: Sequence[str], seeds: Sequence[int]) -> None:
    """Train every cell of a task that is not in the ledger, seed by seed, so that what is there is comparable."""
    task = TASKS[name]
    done = {(line["cell"], line["seed"], line["recipe"]) for line in read_ledger() if line["task"] == name}
    with tempfile.TemporaryDirectory() as folder:
        dataset, tree, path = open_task(task, data_root, Path(folder))
        for seed in seeds or task.seeds:
            for title in only or task.cells:
                recipe = recipe_of(task, title, seed, path)
                if (title, seed, digest(recipe)) in done:
                    continue
                line = {"task": name, "cell": title, **cell(dataset, tree, recipe)}
                keep(line)
                told = {key: line["values"][key] for key in ("top-1", "MC proxies", "MC prototypes", "HS@250")}
                print(f"{title}, seed {seed}: {told} ({line['seconds']} s)", flush=True)


def run_spaces(data_root: Path | None) -> None:
    """Measure the spaces that nothing was trained in, seed by seed; what is in the ledger is not kept again."""
    done = {(line["cell"], line["seed"]) for line in read_ledger() if line["task"] == "spaces"}
    dataset, tree = open_data("cifar100", data_root=data_root), load_hierarchy("cifar100")
    for seed in SPACE_SEEDS:
        if not {(name, seed) for name in SPACES} <= done:
            for line in spaces(dataset, tree, seed):
                if (line["cell"], seed) not in done:
                    keep({"task": "spaces", **line})


def run_quick(data_root: Path | None) -> None:
    """A few steps of two cells of every task, with a tenth of the classes."""
    for name, task in TASKS.items():
        with tempfile.TemporaryDirectory() as folder:
            dataset, tree, path = open_task(task, data_root, Path(folder))
            few = set(dataset.classes[::10])
            dataset = dataset.select(np.flatnonzero([label in few for label in dataset.labels]))
            for title in ("NormFace, standard", "ProxyDR, dynamic"):
                more = (*QUICK, "data.classes_per_batch=8")
                found = cell(dataset, tree, recipe_of(task, title, 0, path, more))
                print(f"{name}, {title}: {found['values']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", nargs="?", choices=[*TASKS, "spaces"], help="what to run")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these cells")
    parser.add_argument("--seeds", nargs="+", default=[], type=int, help="only these seeds")
    parser.add_argument("--quick", action="store_true", help="a few steps; keeps nothing")
    parser.add_argument("--pages", action="store_true", help="tables and pictures from what is finished")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.quick:
        run_quick(arguments.data_root)
    elif arguments.task == "spaces":
        run_spaces(arguments.data_root)
    elif arguments.task:
        known = TASKS[arguments.task].cells
        if unknown := set(arguments.only) - set(known):
            parser.error(f"{arguments.task} has no cell {min(unknown)!r}: it has {'; '.join(known)}")
        run_task(arguments.task, arguments.data_root, arguments.only, arguments.seeds)
    if arguments.pages:
        from studies.taxonomy.page import write_pages

        write_pages(read_ledger())
    if not (arguments.quick or arguments.task or arguments.pages):
        parser.error("name a task, or give --quick or --pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
