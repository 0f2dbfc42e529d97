"""What a loss costs beside a plain one: the value and its gradient for a batch of embeddings, without any network.

    python benchmarks/losses.py            the table (about a minute); writes benchmarks/losses.json
    python benchmarks/losses.py --check    exit code 0 only if the bars hold
    python benchmarks/losses.py --quick    some seconds: fewer rounds, one setting, nothing is written
    python benchmarks/losses.py --json F   writes the result to F instead

Every loss is set up as in its recipe, with embeddings of 128 dimensions, and takes turns with all others in one process
on one thread. The figure is the time of its fastest round, as a millisecond is easily disturbed, divided by that of
`normalized-softmax`: a softmax over cosines, one product of the batch with a matrix of class weights. Batches have four
samples of each class; an episode has one support item and three queries of each. Trees are ten classes to a group.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import torch
from bars import in_turns, kept, tell, write
from torch import Tensor

from nearkin.data.hierarchy import Hierarchy
from nearkin.objectives import Objective, losses, make_objective
from nearkin.spaces import Space
from studies.method_pictures.loss_toy import recipe_of

PEER = "normalized-softmax"
DIMENSION, PER_CLASS, GROUP = 128, 4, 10
SETTINGS = {
    # name: items in a batch, classes
    "batch 64, 100 classes": (64, 100),
    "batch 128, 100 classes": (128, 100),
    "batch 64, 400 classes": (64, 400),
}
ROUNDS, WARM = {"full": 15, "quick": 5}, 2
BARS: dict[str, tuple[str, str, float]] = {
    "proxy-anchor": ("proxy-anchor, the default: loss and gradient / normalized-softmax", "<=", 6.0),
    "normface": ("normface with its choice of proxies / normalized-softmax", "<=", 3.0),
    "multi-similarity": ("multi-similarity, every pair of the batch / normalized-softmax", "<=", 12.0),
}
"""At the first setting."""
RESULT = kept("losses.json")


def objective_of(loss: str, classes: int) -> tuple[Objective, Space]:
    """The objective of the loss's recipe for so many classes."""
    section, space = recipe_of(loss)
    names = [f"class {number}" for number in range(classes)]
    groups = {f"group {start}": names[start : start + GROUP] for start in range(0, classes, GROUP)}
    objective = make_objective(
        section,
        dimension=DIMENSION,
        classes=classes,
        space=space,
        episode=(1, PER_CLASS - 1),
        class_names=names,
        hierarchy=Hierarchy.from_nested(groups) if losses.get(loss).needs_hierarchy else None,
    )
    return objective.train(), space


def step(objective: Objective, embeddings: Tensor, labels: Tensor) -> None:
    """The loss, and its gradient down to embeddings and proxies."""
    embeddings.grad = None
    objective.zero_grad(set_to_none=True)
    value = objective(embeddings, labels)
    if value.requires_grad:
        value.backward()


def contenders(batch: int, classes: int) -> dict[str, Callable[[], None]]:
    """A step of every loss on the same embeddings and labels."""
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(batch, DIMENSION, generator=draw).requires_grad_()
    labels = torch.randperm(classes, generator=draw)[: batch // PER_CLASS].repeat_interleave(PER_CLASS)
    return {loss: partial(step, objective_of(loss, classes)[0], embeddings, labels) for loss in losses}


def measure(setting: str, rounds: int) -> list[dict[str, Any]]:
    """A row a loss: milliseconds of a step, and its ratio to the peer's."""
    times = in_turns(contenders(*SETTINGS[setting]), rounds, WARM)
    peer = min(times[PEER])
    return [
        {
            "loss": loss,
            "setting": setting,
            "milliseconds": float(f"{1e3 * min(seconds):.3g}"),
            "ratio": float(f"{min(seconds) / peer:.3g}"),
        }
        for loss, seconds in times.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the bars hold")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, one setting; nothing is written")
    parser.add_argument("--json", type=Path, default=None, metavar="F", help="where to write the result")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    first, *others = SETTINGS
    rounds = ROUNDS["quick" if arguments.quick else "full"]
    table = [row for setting in (first, *([] if arguments.quick else others)) for row in measure(setting, rounds)]
    print(f"\n{'loss':22} {'setting':24} {'ms':>8} {'x ' + PEER:>22}")
    for row in sorted(table, key=lambda row: (row["setting"] != first, row["setting"], row["ratio"])):
        print(f"{row['loss']:22} {row['setting']:24} {row['milliseconds']:8.3g} {row['ratio']:22.3g}")
    print()
    figures = {row["loss"]: row["ratio"] for row in table if row["setting"] == first and row["loss"] in BARS}
    holds = tell(BARS, figures)
    path = arguments.json or (None if arguments.quick else RESULT)
    if path is not None:
        write(path, BARS, figures, table)
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
