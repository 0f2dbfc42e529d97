"""Softmax over squared distances against distance ratios, by episodes: Omniglot and CUB-200-2011 with Conv4.

    python studies/fewshot/run.py omniglot           Conv4 at 28 px, episodes of 20 classes, tested with 5 and 20
    python studies/fewshot/run.py cub                Conv4 at 84 px, 5 classes an episode; 100 / 50 / 50 classes
    python studies/fewshot/run.py omniglot-long      ProtoNet_DR with one shot, trained longer
    python studies/fewshot/run.py omniglot-scaled    ProtoNet_S with the scale that makes it as sharp at first as DR
    python studies/fewshot/run.py cub-scaled         likewise
    python studies/fewshot/run.py --squares          mean squared distance in an episode before training, for the scales
    python studies/fewshot/run.py --pages            tables and pictures from what is finished

ProtoNet_S and ProtoNet_DR with one shot and with five, 1NN_S and 1NN_DR with five: with one shot 1-NN is the prototype.
Every model is validated every 100 episodes on unseen classes, the best one is tested on others, 600 episodes a figure,
the same episodes for every model. Each finished model is a line of `ledger.jsonl`, with its curves and its dynamics,
and a file `fewshot/NAME.npz` with the share of right answers in every test episode; a run that is stopped begins its
model anew. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
import torch

from nearkin.data.augment import BatchAugment, transform_for
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import Split, resolve_split, split_classes
from nearkin.metrics import DYNAMICS
from nearkin.metrics.fewshot import fewshot_accuracy
from nearkin.objectives.episodic import LOG_RHO
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe
from nearkin.training import Run, train
from nearkin.training.batches import DecodedBatches, make_sampler, whole
from nearkin.training.fit import make_learner
from studies.places import located
from studies.random_start import load_recipe

LEDGER = located("studies/fewshot/ledger.jsonl")
EPISODES = located("studies/fewshot/episodes")
TEST_EPISODES, TEST_QUERIES, TEST_SEED = 600, 15, 9
CURVES = ("accuracy", "loss", "rho", "val_accuracy", *DYNAMICS)


@dataclass(frozen=True)
class Task:
    """A data set and how it is learned.

    Args:
        source: the data, as `open_data` knows it.
        ways: classes in the episodes of the test.
        changes: what the recipe changes, by shots.
        losses: which models, by shots.
    """

    source: str
    ways: tuple[int, ...]
    changes: dict[int, list[str]]
    losses: dict[int, tuple[str, ...]]


_PROTOTYPES = ("protonet-s", "protonet-dr")
_ALL = {1: _PROTOTYPES, 5: (*_PROTOTYPES, "1nn-s", "1nn-dr")}
"""With one shot 1-NN is the prototype."""
_COMMON = ["training.patience=null", "training.log_every=10", "training.evaluate_every=100", "data.workers=0"]
_CHARACTERS = [
    *_COMMON,
    "model.channels=1",
    "model.size=28",
    "data.val_classes=0.15",
    "data.crop_scale=[0.8, 1.0]",
    "data.crop_ratio=[0.9, 1.1]",
    "data.flip=false",
    "data.jitter=0.0",
]


def _characters(shot: int, steps: int) -> list[str]:
    episode = f"{{way: 20, shot: {shot}, query: 5, validation_way: 5, record_every: 10}}"
    return [*_CHARACTERS, f"training.max_steps={steps}", f"training.episodic={episode}"]


def _birds(shot: int, steps: int) -> list[str]:
    episode = f"{{way: 5, shot: {shot}, query: 16, record_every: 10}}"
    return [*_COMMON, f"training.max_steps={steps}", f"training.episodic={episode}"]


def _scaled(square: float) -> str:
    """A scale with which -s d^2 changes as fast with ln d as -rho ln d does: 2 s d^2 = rho.

    Args:
        square: mean squared distance in an episode before training.
    """
    return f"objective.parameters={{scale: {math.exp(LOG_RHO) / (2 * square):.3g}}}"


TASKS = {
    "omniglot": Task("omniglot", (5, 20), {1: _characters(1, 1500), 5: _characters(5, 800)}, _ALL),
    "cub": Task("cub200", (5,), {1: _birds(1, 800), 5: _birds(5, 450)}, _ALL),
    "omniglot-long": Task("omniglot", (5, 20), {1: _characters(1, 4000)}, {1: ("protonet-dr",)}),
    "omniglot-scaled": Task("omniglot", (5, 20), {1: [*_characters(1, 1500), _scaled(45)]}, {1: ("protonet-s",)}),
    "cub-scaled": Task("cub200", (5,), {1: [*_birds(1, 800), _scaled(1750)]}, {1: ("protonet-s",)}),
}


def recipe_of(task: str, loss: str, shot: int) -> Recipe:
    return load_recipe(load_recipe("protonet-s", [f"objective.loss={loss}"]), TASKS[task].changes[shot])


def divide(task: str, dataset: Dataset, recipe: Recipe) -> Split:
    """Omniglot: the published sets, validation classes from the background set. CUB: 100, 50 and 50 of every four.

    The second is the division of Chen et al. 2019: of four species in their order the first and third train, the second
    validates, the fourth tests.
    """
    if TASKS[task].source == "omniglot":
        return resolve_split(dataset.manifest, recipe.data, recipe.training.seed)
    classes = sorted(set(dataset.labels))
    return split_classes(dataset.labels, test=classes[3::4], val=classes[1::4])


def measure(embeddings: np.ndarray, labels: np.ndarray, space: Any, ways: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Share of right answers in every test episode, for each way, number of shots and representation."""
    found = {}
    for way in ways:
        for shot in (1, 5):
            for representation in ("mean",) if shot == 1 else ("mean", "nearest"):
                result = fewshot_accuracy(
                    embeddings,
                    labels,
                    way=way,
                    shot=shot,
                    query=TEST_QUERIES,
                    episodes=TEST_EPISODES,
                    representation=representation,
                    space=space,
                    seed=TEST_SEED,
                )
                found[f"{way}-way {shot}-shot {representation}"] = result.per_episode
    return found


def run_cell(task: str, dataset: Dataset, recipe: Recipe) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Train and test one model; None if it was interrupted."""
    split = divide(task, dataset, recipe)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(
            dataset,
            recipe,
            run,
            source=TASKS[task].source,
            cache_directory=cache_directory() / "features",
            split=split,
        )
        history = run.history()
    if result.interrupted:
        return None
    test = dataset.select(split.test)
    embeddings = result.embedder.encode(test)
    episodes = measure(embeddings, np.asarray(test.labels), result.embedder.space, TASKS[task].ways)
    curves = {key: [[row["step"], float(f"{row[key]:.6g}")] for row in history if key in row] for key in CURVES}
    return {
        "test": {name: round(float(values.mean()), 5) for name, values in episodes.items()},
        "best_step": result.state.best_step,
        "seconds": round(result.state.seconds, 1),
        "curves": {key: values for key, values in curves.items() if values},
    }, episodes


def first_square(task: str, data_root: Path | None) -> float:
    """Mean squared distance of two items of the first one-shot episode, by the network before training."""
    recipe, dataset = recipe_of(task, "protonet-dr", 1), open_data(TASKS[task].source, data_root=data_root)
    items = dataset.select(divide(task, dataset, recipe).train)
    embedder, _, classes = make_learner(recipe, dataset.kind, len(items.classes), validated=True)
    sampler = make_sampler(recipe, items.class_ids(), classes)
    transform, view = (transform_for(embedder.spec, recipe.data, train=train) for train in (True, False))
    augment = BatchAugment.for_section(embedder.spec, recipe.data, recipe.training.seed)
    batches = DecodedBatches(items, items.class_ids(), transform, augment, view, sampler, recipe.training.seed, 0)
    inputs, _ = next(iter(batches.stream(1, 1)))
    with torch.no_grad():
        return float(torch.pdist(embedder.train()(whole(inputs))).square().mean())


def name_of(task: str, loss: str, shot: int) -> str:
    return f"{task}-{loss}-{shot}shot"


def read_ledger() -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    return {cell["name"]: cell for cell in lines}


def finish(task: str, data_root: Path | None) -> bool:
    """Run the cells that the ledger does not have; whether all are there."""
    dataset = None
    for shot, losses in TASKS[task].losses.items():
        for loss in losses:
            name, recipe = name_of(task, loss, shot), recipe_of(task, loss, shot)
            digest = Candidate(name, recipe).digest()
            if read_ledger().get(name, {}).get("recipe") == digest:
                continue
            dataset = dataset or open_data(TASKS[task].source, data_root=data_root)
            print(name, file=sys.stderr, flush=True)
            found = run_cell(task, dataset, recipe)
            if found is None:
                return False
            line, episodes = found
            EPISODES.mkdir(exist_ok=True)
            np.savez_compressed(
                EPISODES / f"{name}.npz", **{key: values.astype(np.float32) for key, values in episodes.items()}
            )
            with open(LEDGER, "a", encoding="utf-8") as ledger:
                cell = {"name": name, "task": task, "loss": loss, "shot": shot, "recipe": digest, **line}
                ledger.write(json.dumps(cell) + "\n")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", nargs="?", choices=list(TASKS))
    parser.add_argument("--pages", action="store_true", help="only tables and pictures")
    parser.add_argument("--squares", action="store_true", help="only the squared distances before training")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if [arguments.task is not None, arguments.pages, arguments.squares].count(True) != 1:
        parser.error("name a task, or give --pages or --squares")
    if arguments.squares:
        found = {task: round(first_square(task, arguments.data_root), 1) for task in ("omniglot", "cub")}
        (EPISODES / "squares.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
        print(found)
        return 0
    if arguments.task is not None and not finish(arguments.task, arguments.data_root):
        return 130
    from studies.fewshot.page import write_pages

    write_pages(read_ledger())
    return 0


if __name__ == "__main__":
    sys.exit(main())
