"""Fine-tuning a whole network from JPEG files: our loop beside a bare one, folds side by side, and busy neighbours.

    python benchmarks/fine_tune.py            the table (some ten minutes); writes benchmarks/fine_tune.json
    python benchmarks/fine_tune.py --check    exit code 0 only if every bar holds
    python benchmarks/fine_tune.py --quick    a minute or two: few steps; no bar is checked, nothing is written

The recipe is `fine-tune`, EfficientNet-Lite0, with weights as they are first made: speed does not depend on them. The
files are smooth images of 341 x 256, compressed as cameras do. The bare loop is PyTorch as one would write it who knows
it well: the same tuning (allocator, threads, channels last, fused AdamW), decoding processes that work ahead, the
batch flipped and normalised as a whole. Both start their decoders before the clock, and take turns in one process.

Four folds, each a run of `train` with its validation classes, are trained by two processes of one thread, and by one
process of two threads, one after the other. Processor time of a step is that of this process, decoders aside, alone and
with two busy processes a core; of threads that wait awake, as PyTorch's do unless told otherwise, for comparison.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator, tune_threads

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads
tune_threads()

import numpy as np
import torch
from bars import kept, median_ratio, tell, write
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from nearkin.data.augment import BatchAugment, random_box, transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.samplers import BalancedBatchSampler
from nearkin.data.sources import open_data
from nearkin.data.splits import class_folds
from nearkin.models import Embedder, build_embedder
from nearkin.models.speed import as_channels_last, channels_last
from nearkin.objectives import Objective, make_objective
from nearkin.recipe import Recipe, load_recipe
from nearkin.training import Loop, Run, train
from nearkin.training.batches import DecodedBatches

SEED = 0
CLASSES, PER_CLASS = 32, 8
SIZES = {
    # mode: (steps of a round, rounds, steps of a fold, steps of a measurement beside neighbours, side in pixels)
    "full": (12, 5, 24, 8, 224),
    "quick": (3, 2, 3, 2, 96),
}
WARM = 2
"""Steps that are not counted: decoders and threads start."""
FOLDS = 4
SPINNING = {"OMP_WAIT_POLICY": "active"}
BARS = {
    "loop": ("whole loop from JPEG files / bare loop, images a second", ">=", 0.97),
    "jobs": ("four folds by two jobs / one after the other by two threads, speed", ">=", 1.2),
    "busy": ("processor time of a step, beside busy neighbours / alone", "<=", 2.0),
}
RESULT = kept("fine_tune.json")


def write_photos(folder: Path) -> None:
    """One folder a class, of files worth as much decoding as photographs."""
    rng = np.random.default_rng(SEED)
    for label in range(CLASSES):
        place = folder / f"class{label:02d}"
        place.mkdir(parents=True)
        for item in range(PER_CLASS):
            small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            small.resize((341, 256), Image.Resampling.BICUBIC).save(place / f"{item}.jpg", quality=90)


def recipe_of(size: int, steps: int, *more: str) -> Recipe:
    """The recipe, without ImageNet's weights and what follows from having them."""
    settings = [f"model.size={size}", f"training.max_steps={steps}", f"training.evaluate_every={steps}"]
    settings += [
        "model.pretrained=false",
        "model.head_start=random",
        "training.lr=1e-4",
        "training.head_warmup_steps=0",
    ]
    return load_recipe("fine-tune", [*settings, *more])


def parts_of(recipe: Recipe, classes: int) -> tuple[Embedder, Objective]:
    """Network and objective as a run begins with them."""
    embedder = build_embedder(recipe.model, seed=SEED)
    embedder.freeze(None, frozen_batch_norm=True)
    objective = make_objective(
        recipe.objective, dimension=embedder.dimension, classes=classes, space=embedder.space, seed=SEED
    )
    return embedder, objective


# ---------------------------------------------------------------- the loops


class Clocked:
    """Batches that note when each is asked for."""

    def __init__(self, batches: DecodedBatches, clock: Callable[[], float] = time.perf_counter) -> None:
        self.batches = batches
        self.clock = clock
        self.start = batches.start
        self.times: list[float] = []

    def stream(self, first: int, last: int) -> Iterator[Any]:
        for batch in self.batches.stream(first, last):
            yield batch
            self.times.append(self.clock())  # asked for the next: a step is done

    def plain(self, positions: np.ndarray) -> Any:
        return self.batches.plain(positions)


def our_batches(dataset: Dataset, recipe: Recipe, embedder: Embedder) -> DecodedBatches:
    data, ids = recipe.data, dataset.class_ids()
    return DecodedBatches(
        dataset,
        ids,
        transform_for(embedder.spec, data, train=True),
        BatchAugment.for_section(embedder.spec, data, SEED),
        transform_for(embedder.spec, data, train=False),
        BalancedBatchSampler(ids, data.classes_per_batch, data.per_class, SEED),
        SEED,
        data.workers,
    )


def our_loop(dataset: Dataset, recipe: Recipe, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Times at which steps were done."""
    embedder, objective = parts_of(recipe, CLASSES)
    batches = Clocked(our_batches(dataset, recipe, embedder), clock)
    with tempfile.TemporaryDirectory() as folder:
        Loop(embedder, objective, batches, recipe.training, Run(folder), None, progress=False).train()
    return batches.times


class Crops(torch.utils.data.Dataset):
    """Random crops of files, uint8 (size, size, 3)."""

    def __init__(self, paths: list[Path], labels: list[int], size: int, scale: tuple[float, float]) -> None:
        self.paths, self.labels, self.size, self.scale = paths, labels, size, scale

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        index, seed = key
        with Image.open(self.paths[index]) as image:
            box = random_box(*image.size, self.scale, (3 / 4, 4 / 3), np.random.default_rng(seed))
            crop = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        return torch.from_numpy(np.array(crop)), self.labels[index]


def bare_loop(folder: Path, recipe: Recipe) -> list[float]:
    """Times at which steps were done."""
    files = sorted(folder.glob("*/*.jpg"))
    names = sorted({path.parent.name for path in files})
    labels = [names.index(path.parent.name) for path in files]
    rng, of_class = np.random.default_rng(SEED), np.array(labels)
    embedder, objective = parts_of(recipe, CLASSES)
    channels_last(embedder).train()
    keys = []
    for step in range(recipe.training.max_steps):
        classes = rng.permutation(CLASSES)[: recipe.data.classes_per_batch]
        chosen = [rng.permutation(np.flatnonzero(of_class == label))[: recipe.data.per_class] for label in classes]
        keys.append([(int(index), int(place + 1000 * step)) for place, index in enumerate(np.concatenate(chosen))])
    crops = Crops(files, labels, recipe.model.size or 224, recipe.data.crop_scale)
    parameters = [parameter for parameter in embedder.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=recipe.training.lr, fused=True)
    mean, std = (value.view(1, 3, 1, 1) for value in (embedder.normalise.mean, embedder.normalise.std))
    times = []
    for pixels, classes in DataLoader(crops, batch_sampler=keys, num_workers=recipe.data.workers):
        inputs = pixels.permute(0, 3, 1, 2)  # channels last, as it was stacked
        turned = torch.rand(len(inputs)) < 0.5
        inputs = torch.where(turned[:, None, None, None], inputs.flip(3), inputs)
        inputs = as_channels_last(torch.addcmul(-mean / std, inputs.float(), 1 / (255 * std)))
        optimiser.zero_grad(set_to_none=True)
        objective(embedder(inputs), classes).backward()
        optimiser.step()
        times.append(time.perf_counter())
    return times


def a_step(times: list[float]) -> float:
    """Seconds of a step after those that warm up."""
    return (times[-1] - times[WARM - 1]) / (len(times) - WARM)


def measure_loops(folder: Path, dataset: Dataset, mode: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Figures and rows of the table."""
    steps, rounds, _, _, size = SIZES[mode]
    recipe = recipe_of(size, steps + WARM)
    contenders = {"bare PyTorch": partial(bare_loop, folder, recipe), "nearkin": partial(our_loop, dataset, recipe)}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(1 + rounds):
        for name, run in list(contenders.items())[:: 1 if turn % 2 == 0 else -1]:
            step = a_step(run())
            if turn:
                seconds[name].append(step)
    items = recipe.data.classes_per_batch * recipe.data.per_class
    ratio, low, high = median_ratio(seconds["bare PyTorch"], seconds["nearkin"])
    rows: list[dict[str, Any]] = [
        {"case": f"{size} px, batch {items}", "contender": name, "images a second": items / median(of)}
        for name, of in seconds.items()
    ]
    rows[-1] |= {"ratio": ratio, "interval": [low, high]}
    return {"loop": ratio}, rows


# ---------------------------------------------------------------- folds


def train_folds(folder: Path, folds: list[int], size: int, steps: int) -> None:
    """Train some of the four folds, one after the other, in this process."""
    dataset = open_data(folder)
    recipe = recipe_of(size, steps, "model.frozen_batch_norm=false")
    splits = class_folds(dataset.labels, FOLDS, SEED)
    for fold in folds:
        with tempfile.TemporaryDirectory() as place:
            here = Path(place)
            train(
                dataset, recipe, Run(here / "run"), source="", cache_directory=here, split=splits[fold], progress=False
            )


def seconds_of_folds(folder: Path, groups: list[list[int]], threads: int, size: int, steps: int) -> float:
    """Wall seconds until the processes, one a group, have trained their folds."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--photos", str(folder), "--size", str(size), "--steps", str(steps)]
    began = time.perf_counter()
    started = [
        subprocess.Popen([*command, "--folds", *map(str, group)], env=environment, stdout=subprocess.DEVNULL)
        for group in groups
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("A process that trains folds has failed.")
    return time.perf_counter() - began


def measure_jobs(folder: Path, mode: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Figures and rows of the table."""
    _, _, steps, _, size = SIZES[mode]
    arguments = {
        "one after the other, two threads": ([list(range(FOLDS))], 2),
        "two jobs of one thread": ([[0, 2], [1, 3]], 1),
    }
    seconds = {
        name: seconds_of_folds(folder, groups, threads, size, steps) for name, (groups, threads) in arguments.items()
    }
    rows = [
        {"case": f"four folds, {steps} steps each", "contender": name, "seconds": of} for name, of in seconds.items()
    ]
    alone, side_by_side = seconds.values()
    return {"jobs": alone / side_by_side}, rows


# ---------------------------------------------------------------- neighbours


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_neighbours() -> Iterator[None]:
    """Two busy processes a core."""
    context = mp.get_context("spawn")
    spinning = [context.Process(target=_spin, daemon=True) for _ in range(2 * (os.cpu_count() or 1))]
    for process in spinning:
        process.start()
    time.sleep(2.0)
    try:
        yield
    finally:
        for process in spinning:
            process.terminate()
            process.join()


def processor_seconds(folder: Path, size: int, steps: int, environment: dict[str, str]) -> float:
    """Processor seconds of a step, of a process of its own."""
    command = [sys.executable, __file__, "--photos", str(folder), "--size", str(size), "--steps", str(steps), "--clock"]
    done = subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def measure_neighbours(folder: Path, mode: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Figures and rows of the table."""
    _, _, _, steps, size = SIZES[mode]
    asleep = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    awake = asleep | SPINNING
    found = {}
    for place, around in (("alone", None), ("beside busy neighbours", busy_neighbours)):
        for how, environment in (("", asleep), (", threads wait awake", awake)):
            if how and mode == "quick":
                continue
            if around is None:
                found[place + how] = processor_seconds(folder, size, steps, environment)
            else:
                with around():
                    found[place + how] = processor_seconds(folder, size, steps, environment)
    rows = [{"case": "a step", "contender": name, "processor seconds": of} for name, of in found.items()]
    return {"busy": found["beside busy neighbours"] / found["alone"]}, rows


# ---------------------------------------------------------------- telling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="few steps: no bar is checked, nothing is written")
    for name, kind in (("--photos", Path), ("--size", int), ("--steps", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)  # of the processes that this one starts
    parser.add_argument("--folds", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--clock", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folds is not None:
        train_folds(arguments.photos, arguments.folds, arguments.size, arguments.steps)
        return 0
    if arguments.clock:
        recipe = recipe_of(arguments.size, arguments.steps + WARM)
        print(a_step(our_loop(open_data(arguments.photos), recipe, time.process_time)))
        return 0
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "photos"
        write_photos(folder)
        for found, rows in (
            measure_loops(folder, open_data(folder), mode),
            measure_jobs(folder, mode),
            measure_neighbours(folder, mode),
        ):
            figures |= found
            table += rows
    for row in table:
        print(json.dumps(row))
    print()
    holds = tell(BARS, {} if arguments.quick else figures)
    if not arguments.quick:
        write(RESULT, BARS, figures, table)
    print(
        f"\nThe loop makes {figures['loop']:.2f} x the images of bare PyTorch, two jobs are {figures['jobs']:.2f} x as "
        f"fast, busy neighbours cost {figures['busy']:.2f} x the processor time"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
