"""NMI and Recall@1 on unseen classes after every epoch: plain, energy confusion, Soft-Adv and Adapt-Adv.

    python studies/adversary_curves/run.py cub                     the paper's figure 12, with a frozen trunk
    python studies/adversary_curves/run.py cifar                   the same on CIFAR-100, a network from scratch
    python studies/adversary_curves/run.py cub --loss proxy-nca    another loss

Each method is trained once on all training classes, and the test classes are measured after every epoch. That is only
to draw the curves: nothing is selected by them, and how methods compare is what adversary/run.py says. Settings are
those of its books, but for the epochs, and for CUB without mirrored and cropped views: its test images need maps too.
Each finished method is a line of `ledger.jsonl`; a run that is stopped goes on where it was. Needs the data:
NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import Split
from nearkin.protocol import Candidate
from nearkin.protocol.candidates import divide
from nearkin.recipe import Recipe
from nearkin.report import draw_metric_curves
from nearkin.report.dynamics import ACCURACY, COEFFICIENT, LOSS
from nearkin.training import Run, train
from studies.adversary.run import CIFAR, CUB, IMAGES, LOSSES, of_loss
from studies.places import located
from studies.random_start import load_recipe

EPOCHS = {"cub": 10, "cifar": 6}
DATA = {"cub": CUB, "cifar": CIFAR}
TITLES = {"cub": "CUB-200-2011", "cifar": "CIFAR-100"}
CHANGES = {"cub": ["model.cache_views={flip: false, crops: 0}"], "cifar": []}
PLAIN = "Base"
METHODS = (PLAIN, "Energy", "Soft-Adv", "Adapt-Adv")
METRICS = ("NMI", "Recall@1")
ADVERSARY = (COEFFICIENT, LOSS, ACCURACY)
"""What the log says of the adversary, every 50 steps; kept beside the curves."""
LEDGER = located("studies/adversary_curves/ledger.jsonl")


def recipes_of(data: str, loss: str) -> dict[str, Recipe]:
    """Method to recipe, in the order of the paper."""
    found = {one.name.partition(" + ")[2] or PLAIN: one.recipe for one in of_loss(DATA[data], loss)}
    return {method: load_recipe(found[method], CHANGES[data]) for method in METHODS}


def run_cell(dataset: Dataset, split: Split, recipe: Recipe, source: str, epochs: int) -> dict[str, Any] | None:
    """Metrics after every epoch of one method; None if it was interrupted."""
    classes = min(recipe.data.classes_per_batch, len(set(dataset.labels[split.train])))
    steps = math.ceil(len(split.train) / (classes * recipe.data.per_class))
    timed = [
        f"training.max_steps={epochs * steps}",
        f"training.evaluate_every={steps}",
        "training.patience=null",
        f"training.validation_metrics={json.dumps(METRICS)}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(
            dataset,
            load_recipe(recipe, timed),
            run,
            source=source,
            cache_directory=cache_directory() / "features",
            split=split,
        )
        history = run.history()
    rows = [row for row in history if f"val_{METRICS[0]}" in row]
    game = [row for row in history if ADVERSARY[0] in row]
    if result.interrupted:
        return None
    curves = {metric: [round(row[f"val_{metric}"], 5) for row in rows] for metric in METRICS}
    played = {key: [round(row[key], 3) for row in game] for key in ADVERSARY} if game else {}
    seconds = round(result.state.seconds, 1)
    return {"epochs": [row["step"] / steps for row in rows], **curves, **played, "seconds": seconds}


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def finish(data: str, loss: str, data_root: Path | None) -> dict[str, dict[str, Any]] | None:
    """Method to its curves, after running those that the ledger does not have; None if interrupted."""
    recipes = recipes_of(data, loss)
    digests = {method: Candidate(method, recipe).digest() for method, recipe in recipes.items()}
    ours = [cell for cell in read_ledger() if (cell["data"], cell["loss"]) == (data, loss)]
    # A line that another recipe made is not of this picture.
    done = {cell["method"]: cell for cell in ours if cell.get("recipe") == digests[cell["method"]]}
    missing = [method for method in recipes if method not in done]
    if missing:
        source = DATA[data].source
        dataset = open_data(source, data_root=data_root)
        # Learns from all training classes and looks at the test classes.
        (split,) = divide(dataset, recipes[PLAIN].data, "conventional", folds=0).splits
        for method in missing:
            print(f"{loss}, {method}", file=sys.stderr, flush=True)
            found = run_cell(dataset, split, recipes[method], source, EPOCHS[data])
            if found is None:
                return None
            done[method] = {"data": data, "loss": loss, "method": method, "recipe": digests[method], **found}
            with open(LEDGER, "a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(done[method]) + "\n")
    return {method: done[method] for method in recipes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", choices=list(DATA))
    parser.add_argument("--loss", choices=list(LOSSES), default="triplet")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    data, loss = arguments.data, arguments.loss
    cells = finish(data, loss, arguments.data_root)
    if cells is None:
        return 130
    series = {metric: {method: (cell["epochs"], cell[metric]) for method, cell in cells.items()} for metric in METRICS}
    suffix = "" if loss == "triplet" else f"-{loss}"
    picture = draw_metric_curves(series, of=f"unseen {TITLES[data]} classes, {loss}")
    (IMAGES / f"adversary-curves-{data}{suffix}.png").write_bytes(picture)
    heads = [f"{metric} {when}" for metric in METRICS for when in ("first", "highest", "last")]
    print(f"| {loss} on {TITLES[data]} | " + " | ".join(heads) + " | seconds |")
    print("|---" * (len(heads) + 2) + "|")
    for method, cell in cells.items():
        values = [value for metric in METRICS for value in (cell[metric][0], max(cell[metric]), cell[metric][-1])]
        print(f"| {method} | " + " | ".join(f"{100 * value:.1f}" for value in values) + f" | {cell['seconds']:.0f} |")
    last = {method: cell["Recall@1"][-1] for method, cell in cells.items()}
    told = ", ".join(f"{method} {100 * value:.1f}" for method, value in last.items())
    print(f"\nRecall@1 on unseen classes after {EPOCHS[data]} epochs, one model each: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
