"""Losses that are given the tree beside those that are not: CIFAR-100 with its tree, as in taxonomy, whose cells of
the same seeds are what these are compared with.

    python studies/tree_losses/run.py           train what is not in the ledger (some minutes), write tables/losses.md
    python studies/tree_losses/run.py --table   write tables/losses.md from what is finished
    python studies/tree_losses/run.py --quick   a few steps of one cell, to see whether it runs; keeps nothing

Each finished model is a line of `ledger.jsonl`. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from studies.page_tables import table
from studies.paired_seeds import half_width, paired_t
from studies.places import located
from studies.taxonomy.run import FROZEN, QUICK, Task, cell, digest, open_task, recipe_of
from studies.taxonomy.run import LEDGER as OTHERS

LEDGER, TABLE = located("studies/tree_losses/ledger.jsonl"), located("studies/tree_losses/tables/losses.md")
FLAT = ["model.space=euclidean"]
TASK = Task(
    "cifar100",
    FROZEN,
    {
        "H-spherical": ("h-spherical", []),
        "HXE, by height, alpha 0.1": ("hxe", FLAT),
        "HXE, by depth, alpha 0.4": (
            "hxe",
            [*FLAT, "objective.parameters.weighted_by=depth", "objective.parameters.alpha=0.4"],
        ),
        "soft labels, beta 10": ("soft-labels", FLAT),
        "soft labels, beta 30": ("soft-labels", [*FLAT, "objective.parameters.beta=30"]),
        "softmax + distortion": ("softmax", [*FLAT, "objective.regularisers=[{name: distortion, weight: 1.0}]"]),
    },
    (0, 1, 2),
)
BESIDE = {name: "CORR, MDS" if name == "H-spherical" else "softmax" for name in TASK.cells}
"""What each is compared with, a cell of taxonomy/ledger.jsonl."""
MEASURES = {
    "top-1": (100, "top-1 (%)"),
    "AHD@1": (1, "AHD@1 ↓"),
    "AHD@5": (1, "AHD@5 ↓"),
    "severity": (1, "severity ↓"),
    "MC prototypes": (1, "MC prototypes"),
}
"""Measure to what it is multiplied by, and its title."""


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def by_seed(lines: list[dict[str, Any]], name: str, measure: str) -> dict[int, float]:
    """Seed to value of one cell."""
    factor = MEASURES[measure][0]
    return {line["seed"]: factor * line["values"][measure] for line in lines if line["cell"] == name}


def page_table(lines: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """Means with 95 % intervals over seeds, and below each line its difference, seed by seed, to its neighbour."""
    rows = []
    seeds = {line["seed"] for line in lines}
    neighbours = [line for line in others if line["task"] == "cifar" and line["seed"] in seeds]
    for name in dict.fromkeys([*BESIDE.values(), *TASK.cells]):
        source = neighbours if name in BESIDE.values() else lines
        found = {measure: by_seed(source, name, measure) for measure in MEASURES}
        if not all(found.values()):
            continue
        digits = [1 if MEASURES[measure][0] == 100 else 3 for measure in MEASURES]
        values = [np.array(list(some.values())) for some in found.values()]
        told = [f"{v.mean():.{d}f} ± {half_width(v):.{d}f}" for v, d in zip(values, digits, strict=True)]
        rows.append([name, *told])
        if name in BESIDE:
            tests = [paired_t(found[measure], by_seed(neighbours, BESIDE[name], measure)) for measure in MEASURES]
            told = [
                f"{test.mean:+.{d}f} ({test.low:+.{d}f} to {test.high:+.{d}f})" if test else "–"
                for test, d in zip(tests, digits, strict=True)
            ]
            rows.append([f"… minus {BESIDE[name]}", *told])
    return table(["", *(title for _, title in MEASURES.values())], rows)


def run(data_root: Path | None) -> None:
    """Train every cell that is not in the ledger, seed by seed."""
    done = {(line["cell"], line["seed"], line["recipe"]) for line in read(LEDGER)}
    with tempfile.TemporaryDirectory() as folder:
        dataset, tree, path = open_task(TASK, data_root, Path(folder))
        for seed in TASK.seeds:
            for name in TASK.cells:
                recipe = recipe_of(TASK, name, seed, path)
                if (name, seed, digest(recipe)) not in done:
                    line = {"cell": name, **cell(dataset, tree, recipe)}
                    del line["curves"]
                    with open(LEDGER, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    print(f"{name}, seed {seed}: {line['values']['top-1']:.3f} ({line['seconds']} s)", flush=True)


def run_quick(data_root: Path | None) -> None:
    """A few steps of one cell."""
    with tempfile.TemporaryDirectory() as folder:
        dataset, tree, path = open_task(TASK, data_root, Path(folder))
        print(cell(dataset, tree, recipe_of(TASK, "softmax + distortion", 0, path, tuple(QUICK)))["values"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="write the table of what is finished")
    parser.add_argument("--quick", action="store_true", help="a few steps; keeps nothing")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.quick:
        run_quick(arguments.data_root)
        return 0
    if not arguments.table:
        run(arguments.data_root)
    text = page_table(read(LEDGER), read(OTHERS)) if LEDGER.exists() else table([], [])
    TABLE.write_text(f"{text}\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
