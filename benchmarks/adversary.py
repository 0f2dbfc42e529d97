"""What attended stages and a class adversary cost: a training step with both against the plain one.

    python benchmarks/adversary.py            the table (about five minutes); writes benchmarks/adversary.json
    python benchmarks/adversary.py --check    exit code 0 only if the bar holds
    python benchmarks/adversary.py --quick    under a minute: base, both parts, and cached maps; nothing is written

A step is the product's own: forward, semi-hard triplets, backward and Adam's update. At 224 px the whole
EfficientNet-Lite0 learns, and batches have 32 images. With cached maps the network is frozen and batches have the
seed's 64 images: the plain step then has vectors of 1280 numbers to map to 64, and the attended one the maps of three
stages beside them, so their ratio only tells what to expect. Every time is a ratio of contenders that take turns in one
process, by the medians of single rounds. Needs the extra `train`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import torch
from bars import in_turns, kept, tell, write
from torch import Tensor

from nearkin.models import build_embedder, cache_point
from nearkin.models.embedder import Features
from nearkin.models.section import ModelSection
from nearkin.models.speed import as_channels_last
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import TrainingSection
from nearkin.training import Loop, Run

SEED = 0
CLASSES, PER_CLASS, SIZE, DIMENSION = 100, 4, 224, 64
EPOCH_STEPS = 92
"""Of CUB's 5864 training images in batches of 64."""
BATCHES = {"224 px": 32, "cached maps": 64}
ROUNDS = {"full": {"224 px": 12, "cached maps": 30}, "quick": {"224 px": 6, "cached maps": 8}}
WARM = 2
BASE, BOTH = "base", "GDFL + adversary"
BARS: dict[str, tuple[str, str, float]] = {
    f"{BOTH}, 224 px": (f"training step of EfficientNet-Lite0 at 224 px, batch 32: {BOTH} / base", "<=", 1.25),
}
RESULT = kept("adversary.json")


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Args:
        attention: settings of the attention beside those of the paper; None: none.
        adversary: parameters of the class adversary; None: none.
    """

    attention: Mapping[str, Any] | None = None
    adversary: Mapping[str, Any] | None = None

    @property
    def attention_section(self) -> dict[str, Any] | None:
        return None if self.attention is None else {"append": False, **self.attention}

    @property
    def regularisers(self) -> list[dict[str, Any]]:
        if self.adversary is None:
            return []
        return [{"name": "class-adversary", "weight": 0.5, "parameters": dict(self.adversary)}]


CONTENDERS = {
    BASE: Contender(),
    BOTH: Contender(attention={}, adversary={}),
    "GDFL": Contender(attention={}),
    "adversary": Contender(adversary={}),
    "GDFL, multiplicative": Contender(attention={"score": "multiplicative"}),
    "GDFL, multi-dimensional": Contender(attention={"score": "multi-dimensional"}),
    "GDFL, two matrices": Contender(attention={"matrices": 2}),
    "GDFL, two matrices to 128": Contender(attention={"matrices": 2, "hidden": 128}),
}
QUICK = (BASE, BOTH)


@dataclass
class Items:
    """One batch, held in memory, and where it enters the network."""

    inputs: Features
    labels: Tensor
    start: str | None = None


def ready_loop(contender: Contender, case: str, folder: Path) -> tuple[Loop, Items]:
    """Our loop, set up for single steps, and its batch."""
    cached = case == "cached maps"
    section = ModelSection(
        backbone="efficientnet-lite0",
        dimension=DIMENSION,
        attention=contender.attention_section,
        freeze="all" if cached else None,
    )
    embedder = build_embedder(section, seed=SEED)
    terms = contender.regularisers
    if cached and contender.attention is None:
        # Nothing before the head learns, so the adversary could change nothing there.
        terms = [{**term, "parameters": {**term["parameters"], "vectors": "embeddings"}} for term in terms]
    objective = make_objective(
        ObjectiveSection(loss="triplet", parameters={"margin": 0.01}, miner="semi-hard", regularisers=terms),
        dimension=DIMENSION,
        classes=CLASSES,
        space=embedder.space,
        features=embedder.feature_size,
        epoch_steps=EPOCH_STEPS,
    )
    labels = torch.arange(BATCHES[case] // PER_CLASS).repeat_interleave(PER_CLASS)
    images = torch.randn(len(labels), 3, SIZE, SIZE, generator=torch.Generator().manual_seed(SEED))
    items = Items(as_channels_last(images), labels)
    if cached:
        items.start = cache_point(embedder)
        with torch.inference_mode():
            maps = embedder.cut(items.inputs, items.start)
        maps = {name: map_.clone() for name, map_ in maps.items()}
        items.inputs = maps if len(maps) > 1 else maps[items.start]
    loop = Loop(embedder, objective, items, TrainingSection(lr=1e-4), Run(folder), None, progress=False)
    loop._set_up()
    loop.module.train()
    return loop, items


def measure(case: str, mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    names = QUICK if mode == "quick" else tuple(CONTENDERS)
    with tempfile.TemporaryDirectory() as folder:
        made = {name: ready_loop(CONTENDERS[name], case, Path(folder)) for name in names}
        steps = {name: partial(loop._step, items.inputs, items.labels) for name, (loop, items) in made.items()}
        times = in_turns(steps, ROUNDS[mode][case], WARM)
    middle = {name: median(values) for name, values in times.items()}
    for name, seconds in middle.items():
        if name != BASE:
            figures[f"{name}, {case}"] = seconds / middle[BASE]
        table.append({"case": f"step, {case}, batch {BATCHES[case]}", "contender": name, "milliseconds": 1e3 * seconds})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the bar holds")
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds, nothing is written")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    for case in BATCHES:
        measure(case, mode, figures, table)
    print(f"\n{'case':32} {'contender':28} {'':>12} {'of base':>8}")
    for row in table:
        base = next(other for other in table if other["case"] == row["case"])
        ratio = row["milliseconds"] / base["milliseconds"]
        print(f"{row['case']:32} {row['contender']:28} {row['milliseconds']:9.1f} ms {ratio:8.3f}")
    print()
    holds = tell(BARS, figures)
    if not arguments.quick:
        write(RESULT, BARS, figures, table)
    print(f"\nA step with attended stages and the adversary takes {figures[f'{BOTH}, 224 px']:.3f} x a plain one")
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
