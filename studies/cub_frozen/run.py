"""Losses on the unseen birds of CUB-200-2011, from the cached features of a frozen EfficientNet-Lite0: all but those
that need a tree over the classes or episodes.

    python studies/cub_frozen/run.py            finish the grid, print the table
    python studies/cub_frozen/run.py --check    exit code 0 only if the bars hold
    python studies/cub_frozen/run.py --only sphereface   these losses, such as one that the grid does not have yet
    python studies/cub_frozen/run.py --quick    one loss, one seed; the ledger is not touched

Classes 1-100 train (20 of them, drawn by the seed, choose the weights), classes 101-200 test. Each finished cell is a
line of `ledger.jsonl`; a run that is stopped goes on where it was. Needs the data: NEARKIN_DATA or --data-root.
Losses are ranked by their validation classes; the test classes only report.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.api import fit_run
from nearkin.audits import subject_of_model
from nearkin.audits.subject import Subject
from nearkin.data.catalogue import cache_directory
from nearkin.data.sources import open_data
from nearkin.metrics import class_bootstrap, retrieval_metrics
from nearkin.objectives import losses
from nearkin.training import Run
from studies.places import located
from studies.random_start import load_recipe

SEEDS = (0, 1, 2)
SETTINGS = [
    "data.split=column",
    "data.val_classes=0.2",
    "model.dimension=128",
    "model.cache_views={flip: true, crops: 2, crop_scale: [0.4, 1.0]}",
]
LEDGER = located("studies/cub_frozen/ledger.jsonl")
LATER = ("sphereface",)
"""Losses that are younger than the grid: `--only sphereface` trains them, which the cached features make quick."""
LOSSES = [
    name
    for name in losses
    if losses.get(name).family != "episodes" and not losses.get(name).needs_hierarchy and name not in LATER
]
"""All but those, those that want episodes, whose recipes have a network of their own, or a tree over the classes."""
LONGEST_TRAINING = 300.0
"""Seconds: training one model takes minutes, not hours, after the cache is built."""


def run_cell(dataset: Any, loss: str, seed: int) -> dict[str, Any]:
    """Train one model and measure it on the unseen classes, beside the raw features."""
    recipe = load_recipe(loss, [*SETTINGS, f"training.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        result = fit_run(dataset, recipe, Run(Path(folder) / "run"), progress=True)
        if result.interrupted:
            raise SystemExit(130)  # a model that was not trained to its end is not kept
        seconds = time.monotonic() - began
    subject = subject_of_model(result.embedder, dataset, cache_directory=cache_directory() / "features")
    values, gain = compare(subject)
    return {
        "loss": loss,
        "seed": seed,
        "validation MAP@R": round(result.embedder.card["validation"]["val_MAP@R"], 5),
        **values,
        "gain per class": gain,
        "steps": result.state.step,
        "training seconds": round(result.state.seconds, 1),
        "seconds": round(seconds, 1),
    }


def compare(subject: Subject) -> tuple[dict[str, float], dict[str, float]]:
    """Values of the embeddings and of the raw features, and the gain in MAP@R of each class."""
    ours = retrieval_metrics(subject.embeddings, subject.labels, space=subject.space)
    raw = retrieval_metrics(subject.baseline, subject.labels)
    values = {name: round(ours.values[name], 5) for name in ("MAP@R", "R-precision", "P@1")}
    values |= {f"raw {name}": round(raw.values[name], 5) for name in ("MAP@R", "R-precision", "P@1")}
    before = raw.per_class("MAP@R")
    return values, {name: round(value - before[name], 5) for name, value in ours.per_class("MAP@R").items()}


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def summarise(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a loss, best on the validation classes first."""
    rows = []
    for loss in dict.fromkeys(cell["loss"] for cell in cells):
        mine = [cell for cell in cells if cell["loss"] == loss]
        classes = sorted(mine[0]["gain per class"])
        gains = np.mean([[cell["gain per class"][name] for name in classes] for cell in mine], axis=0)
        # One value a class, averaged over seeds: resampling the classes is all there is to resample.
        low, high = class_bootstrap(gains, np.array(classes))
        means = {key: float(np.mean([cell[key] for cell in mine])) for key in ("validation MAP@R", "MAP@R", "P@1")}
        spread = float(np.std([cell["MAP@R"] for cell in mine]))
        slowest = max(cell["training seconds"] for cell in mine)
        rows.append({"loss": loss, "seeds": len(mine), **means, "spread": spread, "gain": float(gains.mean()),
                     "low": low, "high": high, "slowest": slowest})  # fmt: skip
    return sorted(rows, key=lambda row: -row["validation MAP@R"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the bars hold")
    parser.add_argument("--quick", action="store_true", help="one loss, one seed; once the cache is built, seconds")
    parser.add_argument("--only", nargs="+", choices=[*LOSSES, *LATER], metavar="LOSS", help="only these losses")
    parser.add_argument("--data-root", type=Path, help="where cub200.zip is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    dataset = open_data("cub200", data_root=arguments.data_root)
    cells = [] if arguments.quick else read_ledger()
    wanted = (
        [("proxy-anchor", 0)]
        if arguments.quick
        else [(loss, seed) for seed in SEEDS for loss in arguments.only or LOSSES]
    )
    done = {(cell["loss"], cell["seed"]) for cell in cells}
    for loss, seed in wanted:
        if (loss, seed) not in done:
            cells.append(run_cell(dataset, loss, seed))
            if not arguments.quick:
                with open(LEDGER, "a", encoding="utf-8") as ledger:
                    ledger.write(json.dumps(cells[-1]) + "\n")
    rows = summarise(cells)
    print("\n| loss | MAP@R unseen | gain over raw features (95 %) | P@1 unseen | MAP@R validation | seconds |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        gain = f"{100 * row['gain']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
        print(
            f"| {row['loss']} | {100 * row['MAP@R']:.1f} ± {100 * row['spread']:.1f} | {gain} | {100 * row['P@1']:.1f} "
            f"| {100 * row['validation MAP@R']:.1f} | {row['slowest']:.0f} |"
        )
    best, raw = rows[0], cells[0]
    slowest = max(row["slowest"] for row in rows)
    print(f"\nraw 1280-d features: MAP@R {100 * raw['raw MAP@R']:.1f}, P@1 {100 * raw['raw P@1']:.1f}")
    beats = best["MAP@R"] > raw["raw MAP@R"]
    not_checked = " (one loss, one seed: the grid's bar is not checked)" if arguments.quick else ""
    print(
        f"best on validation: {best['loss']}, MAP@R {100 * best['MAP@R']:.1f} on unseen classes against "
        f"{100 * raw['raw MAP@R']:.1f} raw{not_checked}; slowest training {slowest:.0f} s"
    )
    holds = slowest <= LONGEST_TRAINING and (arguments.quick or beats)
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
