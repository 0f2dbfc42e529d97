"""How far distances hold under attack: what Kim 2023, Karpusha et al. and the learned similarity's paper claim.

    python studies/robustness/run.py toy       article III's figure: regions of SAA and VAA, and 1-NN on real images
    python studies/robustness/run.py fashion   LeNet on Fashion-MNIST: softmax, DOL, SIM, and with AT, at 0.1 and 0.3
    python studies/robustness/run.py cifar     20 classes of CIFAR-100: geometry of standard and adversarial training
    python studies/robustness/run.py cub       NED and votes on 200 images of unseen birds under FGSM, BIM and PGD
    python studies/robustness/run.py trades    both readings of TRADES on Fashion-MNIST, one seed
    python studies/robustness/run.py --smoke   a few steps of one cell of each trained part; keeps nothing
    python studies/robustness/run.py --pages   tables and pictures from what is finished

Each finished model is a line of `ledger.jsonl`; a run that is stopped begins its model anew. Networks are small, so
one thread trains them. Needs the data: NEARKIN_DATA or --data-root; Fashion-MNIST comes from the catalogue.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator
from studies.places import located

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import torch

from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import resolve_split
from nearkin.training import Run, train
from studies.robustness.measures import geometry_of, under_attack
from studies.robustness.parts import CELLS, SOURCES, Cell, cells_of, chosen

LEDGER = located("studies/robustness/ledger.jsonl")
MEASURES = {"fashion": under_attack, "trades": under_attack, "cifar": geometry_of}
SMOKE = ["training.max_steps=4", "training.evaluate_every=2"]


def read_ledger() -> list[dict[str, Any]]:
    """Every finished line that the recipes of now would make."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    wanted = {part: [cell.key() for cell in cells_of(part)] for part in CELLS}
    return [
        line
        for line in lines
        if line["part"] not in CELLS or any(key.items() <= line.items() for key in wanted[line["part"]])
    ]


def keep(line: dict[str, Any]) -> None:
    """Add a line to the ledger."""
    with open(LEDGER, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run_part(part: str, data_root: Path | None, seeds: Sequence[int]) -> None:
    """Train and judge every cell of a part that is not in the ledger."""
    dataset = chosen(part, open_data(SOURCES[part], data_root=data_root))
    for cell in cells_of(part):
        done = any(cell.key().items() <= line.items() for line in read_ledger())
        if done or (seeds and cell.seed not in seeds):
            continue
        line = {**cell.key(), **run_cell(dataset, cell)}
        keep(line)
        told = {name: value for name, value in line["values"].items() if "Square" not in name}
        print(f"{part} {cell.name}, seed {cell.seed} ({line['seconds']} s): {told}", flush=True)


def run_cell(
    dataset: Dataset, cell: Cell, more: Sequence[str] = (), measure: Callable[..., dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Train one model and judge it, as its part does unless another measure is given."""
    torch.set_num_threads(1)
    recipe = cell.recipe(more)
    split = resolve_split(dataset.manifest, recipe.data, recipe.training.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        cache = cache_directory() / "features"
        result = train(dataset, recipe, run, source="benchmark", cache_directory=cache, split=split, progress=False)
    if result.interrupted:
        raise SystemExit(130)
    known, asked = dataset.select(split.train), dataset.select(split.test)
    began = time.perf_counter()
    measure = measure or MEASURES[cell.part]
    found = measure(result.embedder.eval(), result.objective.loss, asked, known, tuple(known.classes))
    return {
        "seconds": round(result.state.seconds, 1),
        "measuring_seconds": round(time.perf_counter() - began, 1),
        "best_step": result.state.best_step,
        "items": {"train": len(known), "val": len(split.val), "test": len(asked)},
        **found,
        "values": {name: round(float(value), 5) for name, value in found["values"].items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=["toy", "fashion", "cifar", "cub", "trades"], help="what to measure")
    parser.add_argument("--seeds", nargs="+", default=[], type=int, help="only these seeds")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of the toy: only these cells")
    parser.add_argument("--smoke", action="store_true", help="a few steps; keeps nothing")
    parser.add_argument("--pages", action="store_true", help="tables and pictures from what is finished")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.smoke:
        for part in CELLS:
            dataset = chosen(part, open_data(SOURCES[part], data_root=arguments.data_root))
            name = list(CELLS[part])[-1]
            print(part, name, run_cell(dataset, Cell(part, name, 0), SMOKE)["values"], flush=True)
    elif arguments.part in CELLS:
        run_part(arguments.part, arguments.data_root, arguments.seeds)
    elif arguments.part == "cub":
        from studies.robustness.cub import run_cub

        run_cub(arguments.data_root, read_ledger(), keep)
    elif arguments.part == "toy":
        from studies.robustness.toy import TOYS, run_toy

        if unknown := set(arguments.only) - set(TOYS):
            parser.error(f"toy has no cell {min(unknown)!r}: it has {'; '.join(TOYS)}")
        run_toy(arguments.data_root, read_ledger(), keep, arguments.only)
    if arguments.pages:
        from studies.robustness.page import write_pages

        write_pages(read_ledger())
    if not (arguments.smoke or arguments.part or arguments.pages):
        parser.error("say what to measure, or --smoke, or --pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
