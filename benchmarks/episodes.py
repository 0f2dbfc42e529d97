"""What episodes cost: testing on 600 of them against a loop over episodes, and a training episode against bare PyTorch.

    python benchmarks/episodes.py            the table (about three minutes); writes benchmarks/episodes.json
    python benchmarks/episodes.py --check    exit code 0 only if both bars hold
    python benchmarks/episodes.py --quick    under a minute: fewer rounds, nothing is written
    python benchmarks/episodes.py --json F   writes the result to F instead

Testing: both sides are given embeddings and labels, draw 600 5-way 1-shot episodes with 16 queries a class and give the
accuracy with its interval. The loop is what few-shot code commonly does, well written: numpy draws an episode,
torch.cdist compares, argmin decides. The figure is the ratio of the fastest rounds, as a few milliseconds are easily
disturbed. Training: an episode of 5 classes, 1 + 16 images of 28 px, through Conv4 with Adam. Ours is the product's
own loop with all it does beside: learning rates, the log, the accuracy of episodes and one record of the training
dynamics in 100 episodes. The bare one is a ProtoNet written out in PyTorch, with the same network, inputs, memory
format and fused Adam; the figure is the median of the rounds' ratios. Contenders take turns in one process. Needs the
extra `train`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch
from bars import in_turns, kept, tell, write
from torch import Tensor
from torch.nn import functional

from nearkin.metrics import fewshot_accuracy
from nearkin.models import Embedder, build_embedder
from nearkin.models.section import ModelSection
from nearkin.models.speed import as_channels_last, channels_last
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import TrainingSection
from nearkin.training import Loop, Run
from nearkin.training.strategies import Episodic

SEED = 0
WAY, SHOT, QUERY, EPISODES = 5, 1, 16, 600
TESTS = {
    # name: classes, items of each, dimensions
    "Omniglot's unseen characters, 64 numbers": (659, 20, 64),
    "CUB's unseen species, 1600 numbers": (50, 60, 1600),
}
BARRED = next(iter(TESTS))
TEST_ROUNDS = {"full": 25, "quick": 8}
TRAIN_ROUNDS = {"full": 9, "quick": 2}
STEPS, WARM_STEPS = 110, 10
"""Of a round of training: the rest has one record of the dynamics."""
EPISODES_HELD = 8
NETWORK = ModelSection(
    backbone="conv4", pretrained=False, channels=1, size=28, pooling="flatten", dimension=None, space="euclidean"
)
TRAINING = "training episode, Conv4 at 28 px"
BARS: dict[str, tuple[str, str, float]] = {
    BARRED: (f"{EPISODES} 5-way 1-shot episodes, 64 numbers: loop over episodes / ours", ">=", 20.0),
    TRAINING: ("training episode, Conv4 at 28 px: ours / bare PyTorch ProtoNet", "<=", 1.05),
}
RESULT = kept("episodes.json")


# ---------------------------------------------------------------- testing


def embeddings(classes: int, items: int, dimensions: int) -> tuple[Tensor, np.ndarray]:
    """Vectors (n, d) of overlapping classes, and labels."""
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(classes, 1, dimensions)) * 0.5
    points = centres + rng.normal(size=(classes, items, dimensions))
    return torch.from_numpy(points.reshape(-1, dimensions).astype(np.float32)), np.repeat(np.arange(classes), items)


def our_test(points: Tensor, labels: np.ndarray) -> tuple[float, float]:
    result = fewshot_accuracy(
        points, labels, way=WAY, shot=SHOT, query=QUERY, episodes=EPISODES, space="euclidean", seed=SEED
    )
    return result.accuracy, result.interval[1] - result.accuracy


@torch.no_grad()
def looped_test(points: Tensor, labels: np.ndarray) -> tuple[float, float]:
    rng = np.random.default_rng(SEED)
    members = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    members = [items for items in members if len(items) >= SHOT + QUERY]
    truth = torch.arange(WAY).repeat_interleave(QUERY)
    found = np.empty(EPISODES)
    for episode in range(EPISODES):
        classes = rng.choice(len(members), WAY, replace=False)
        drawn = torch.from_numpy(np.stack([rng.permutation(members[one])[: SHOT + QUERY] for one in classes]))
        prototypes = points[drawn[:, :SHOT]].mean(dim=1)
        distances = torch.cdist(points[drawn[:, SHOT:].reshape(-1)], prototypes)
        found[episode] = (distances.argmin(dim=1) == truth).float().mean().item()
    return float(found.mean()), float(1.96 * found.std(ddof=1) / np.sqrt(EPISODES))


def measure_tests(rounds: int, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    for case, shape in TESTS.items():
        points, labels = embeddings(*shape)
        contenders = {"ours": partial(our_test, points, labels), "loop": partial(looped_test, points, labels)}
        accuracies = {name: run() for name, run in contenders.items()}
        (ours, error), (looped, other_error) = accuracies.values()
        if abs(ours - looped) > 2 * (error + other_error):
            raise SystemExit(f"The two sides do not measure the same: {ours:.4f} and {looped:.4f} on {case}.")
        times = in_turns(contenders, rounds, warm=2)
        # Ours takes a few milliseconds, in which another program's turn weighs much: the fastest round of each.
        figures[case] = min(times["loop"]) / min(times["ours"])
        for name, seconds in times.items():
            table.append({"case": case, "contender": name, "milliseconds": 1e3 * min(seconds)})


# ---------------------------------------------------------------- training


class Held:
    """A few episodes over and over, noting when each is asked for."""

    start: str | None = None

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(SEED)
        images = torch.randn(EPISODES_HELD, WAY * (SHOT + QUERY), 1, 28, 28, generator=generator)
        self.inputs = [as_channels_last(episode) for episode in images]
        self.labels = torch.arange(WAY).repeat_interleave(SHOT + QUERY)
        self.times: list[float] = []

    def stream(self, first: int, last: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(first, last + 1):
            self.times.append(time.perf_counter())
            yield self.inputs[step % EPISODES_HELD], self.labels

    def seconds(self) -> float:
        """Of an episode, after the first few, which warm up."""
        return (self.times[-1] - self.times[WARM_STEPS]) / (len(self.times) - 1 - WARM_STEPS)


def our_training() -> float:
    section = TrainingSection(
        max_steps=STEPS,
        evaluate_every=STEPS,
        patience=None,
        lr=1e-3,
        backbone_lr_factor=1.0,
        weight_decay=0.0,
        schedule="episodic",
        episodic={"way": WAY, "shot": SHOT, "query": QUERY},
    )
    embedder = build_embedder(NETWORK, seed=SEED)
    objective = make_objective(
        ObjectiveSection(loss="protonet-s"),
        dimension=embedder.dimension,
        classes=100,
        space=embedder.space,
        episode=(SHOT, QUERY),
    )
    held = Held()
    schedule = Episodic(section.episodic, embedder.space)
    with tempfile.TemporaryDirectory() as folder:
        Loop(embedder, objective, held, section, Run(folder), None, schedule, progress=False).train()
    return held.seconds()


def bare_training() -> float:
    network: Embedder = channels_last(build_embedder(NETWORK, seed=SEED))
    optimiser = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=1e-3, fused=True)
    truth = torch.arange(WAY).repeat_interleave(QUERY)
    network.train()
    held = Held()
    for inputs, _ in held.stream(1, STEPS):
        points = network(inputs).unflatten(0, (WAY, SHOT + QUERY))
        prototypes, queries = points[:, :SHOT].mean(dim=1), points[:, SHOT:].flatten(0, 1)
        loss = functional.cross_entropy(-torch.cdist(queries, prototypes).square(), truth)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return held.seconds()


def measure_training(rounds: int, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    contenders = {"ours": our_training, "bare PyTorch": bare_training}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        # Every other round goes backwards, so that a drift of the machine's speed favours nobody.
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            times[name].append(contenders[name]())
    pairs = zip(times["ours"], times["bare PyTorch"], strict=True)
    figures[TRAINING] = median(ours / bare for ours, bare in pairs)
    for name, seconds in times.items():
        table.append({"case": TRAINING, "contender": name, "milliseconds": 1e3 * median(seconds)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless both bars hold")
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds, nothing is written")
    parser.add_argument("--json", type=Path, default=None, metavar="F", help="where to write the result")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    measure_tests(TEST_ROUNDS[mode], figures, table)
    measure_training(TRAIN_ROUNDS[mode], figures, table)
    print(f"\n{'case':44} {'contender':14} {'':>12}")
    for row in table:
        print(f"{row['case']:44} {row['contender']:14} {row['milliseconds']:9.2f} ms")
    print()
    holds = tell(BARS, figures)
    path = arguments.json or (None if arguments.quick else RESULT)
    if path is not None:
        write(path, BARS, figures, table)
    print(
        f"\nTesting is {figures[BARRED]:.1f} x as fast as a loop; training takes {figures[TRAINING]:.3f} x bare PyTorch"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
