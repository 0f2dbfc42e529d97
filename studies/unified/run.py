"""One model for classification, changed domains, verification, retrieval and few-shot: what its paper claims.

    python studies/unified/run.py fashion     LeNet from random weights on Fashion-MNIST, against softmax
    python studies/unified/run.py cifar       head on frozen EfficientNet-Lite0 features, 100 classes of CIFAR-100
    python studies/unified/run.py pacs        the same, each of four domains left out in turn
    python studies/unified/run.py speakers    TDNN from random weights, pairs of 20 unseen speakers of AudioMNIST
    python studies/unified/run.py cub         head on frozen features, unseen birds of CUB-200-2011
    python studies/unified/run.py omniglot    Conv4 from random weights, episodes of unseen alphabets
    python studies/unified/run.py pacs --only softmax "learned similarity" --seeds 0
    python studies/unified/run.py --smoke     a few steps of one cell of every part; keeps nothing
    python studies/unified/run.py --pages     tables and pictures from what is finished

Every method of a part has the same backbone, embedding size, batches, steps, optimiser and choice of weights by
validation; where a part has a grid of learning rates, each method takes the one that validated best on a seed of its
own. Each finished model is a line of `ledger.jsonl`; a run that is stopped begins its model anew. Comparisons that
decide come first, ablations last. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator
from studies.places import located

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from studies.unified.measures import run_cell, run_untrained
from studies.unified.parts import LEARNED, PARTS, SOFTMAX, UNTRAINED, Cell, cells_of, rate_cells

LEDGER = located("studies/unified/ledger.jsonl")
SMOKE = ["training.max_steps=4", "training.evaluate_every=2"]


def chosen_rates(name: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """The rate of every cell, that of the best validation; ablations have that of the whole loss.

    None where the choice cannot be made yet, empty where there is none.
    """
    if not PARTS[name].rates:
        return {}
    keys = [cell.key() for cell in rate_cells(name)]
    found = {(line["cell"], line["rate"]): line for line in lines if _is_one(line, keys)}
    if len(found) < len(keys):
        return None
    # Of equal ones the lower.
    best = {
        cell: max(sorted(PARTS[name].rates), key=lambda rate: found[cell, rate]["values"]["validation accuracy"])
        for cell in (SOFTMAX, LEARNED)
    }
    return {cell: best.get(cell, best[LEARNED]) for cell in PARTS[name].cells}


def _is_one(line: Mapping[str, Any], keys: Sequence[Mapping[str, Any]]) -> bool:
    return any(all(line.get(name) == value for name, value in key.items()) for key in keys)


def read_ledger() -> list[dict[str, Any]]:
    """Every finished cell that the recipes of now would make; a line of another recipe is not of these tables."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    current = []
    for name in PARTS:
        own = [line for line in lines if line["part"] == name]
        rates = chosen_rates(name, own) if own else None
        wanted = [cell.key() for cell in (*rate_cells(name), *cells_of(name, rates or {}))] if own else []
        current += [line for line in own if _is_one(line, wanted)]
    return current


def run_part(name: str, data_root: Path | None, only: Sequence[str], seeds: Sequence[int]) -> None:
    """Train every cell of a part that is not in the ledger."""
    dataset = PARTS[name].select(open_data(PARTS[name].source, data_root=data_root))
    _finish(dataset, rate_cells(name))
    rates = chosen_rates(name, read_ledger())
    if rates is None:
        raise SystemExit(f"The learning rates of {name} were not chosen: run again.")
    wanted = [cell for cell in cells_of(name, rates) if not only or cell.name in only or cell.case in only]
    _finish(dataset, [cell for cell in wanted if not seeds or cell.seed in seeds])


def _finish(dataset: Dataset, cells: Sequence[Cell]) -> None:
    """Train those of the cells that are not in the ledger, and keep each."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    for cell in cells:
        key = cell.key()
        if any(_is_one(line, [key]) for line in lines):
            continue
        line = {**key, **_measured(dataset, cell)}
        with open(LEDGER, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        rate = "" if cell.rate is None else f", rate {cell.rate:g}"
        told = {name: value for name, value in line["values"].items() if "@2" not in name and "@4" not in name}
        print(f"{cell.part} {cell.case} {cell.name}, seed {cell.seed}{rate}: {told} ({line['seconds']} s)", flush=True)


def _measured(dataset: Dataset, cell: Cell, more: Sequence[str] = ()) -> dict[str, Any]:
    part = PARTS[cell.part]
    if cell.name == UNTRAINED:
        return run_untrained(dataset, cell.recipe(), part.measure)
    return run_cell(dataset, cell.recipe(more), part.measure)


def run_smoke(data_root: Path | None, parts: Sequence[str]) -> None:
    """A few steps of the two methods of every part, on some of the data, for how long a step takes."""
    for name in parts:
        dataset = PARTS[name].select(open_data(PARTS[name].source, data_root=data_root))
        few = set(dataset.classes[:: max(1, len(dataset.classes) // 60)])
        chosen = np.flatnonzero([label in few for label in dataset.labels])
        dataset = dataset.select(chosen[:: 1 if len(chosen) < 1300 else len(chosen) // 800])
        for cell in (SOFTMAX, LEARNED):
            found = _measured(dataset, Cell(name, cell, 0, PARTS[name].cases[0]), SMOKE)
            print(f"{name}, {cell}, {len(dataset)} items: {found['values']} ({found['seconds']} s)", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=list(PARTS), help="what to train")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cells or left out domains")
    parser.add_argument("--seeds", nargs="+", default=[], type=int, help="only these seeds")
    parser.add_argument("--smoke", action="store_true", help="a few steps; keeps nothing")
    parser.add_argument("--pages", action="store_true", help="tables and pictures from what is finished")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.smoke:
        run_smoke(arguments.data_root, [arguments.part] if arguments.part else list(PARTS))
    elif arguments.part:
        run_part(arguments.part, arguments.data_root, arguments.only, arguments.seeds)
    if arguments.pages:
        from studies.unified.page import write_pages

        write_pages(read_ledger())
    if not (arguments.smoke or arguments.part or arguments.pages):
        parser.error("name a part, or give --smoke or --pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
