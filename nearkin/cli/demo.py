"""`nearkin demo`: the whole way on a small real data set, in a few minutes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.console import Console

from nearkin.api import fit_run
from nearkin.cli.auditing import audit_run, show_audit, write_audit
from nearkin.data.catalogue import open_named
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.recipe import load_recipe
from nearkin.training import Run

_ITEMS_PER_CLASS = 1000
_NEXT_STEPS = (
    "`nearkin train photos/ --out runs/mine`: train on your own photos, a folder per class.",
    "`nearkin recipes`: see the other losses; `--set objective.loss=triplet` tries one on the spot.",
    "`nearkin data list`: data sets that can be named instead of a folder.",
    "`nearkin compare runs/*`: put several audited runs side by side.",
)


def demo_command(out: Path, data_root: Path | None, progress: bool) -> None:
    """Fetch, train, prove, draw, and say what to try next."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    began = time.monotonic()
    dataset, recipe_name = _demo_data(data_root, console, progress)
    recipe = load_recipe(recipe_name)
    run = Run(out)
    result = fit_run(dataset, recipe, run, progress=progress)
    if result.interrupted:
        console.print(f"Stopped at step {result.state.step}: run the demo again to start over.")
        return
    classes = result.embedder.card["classes"]
    console.print(f"Trained on: {', '.join(classes['train'])}")
    console.print(f"Chose the best weights on: {', '.join(classes['val'])}")
    console.print(f"Never seen before the audit: {', '.join(classes['test'])}\n")
    audit = audit_run(run, dataset, progress=progress)
    write_audit(run, audit, run.report_file, run.audit_file, "nearkin demo", _NEXT_STEPS)
    show_audit(audit, console)
    console.print(f"\n{audit.verdict()}")
    console.print(f"Report with pictures: {run.report_file}  ({time.monotonic() - began:.0f} s in all)\n")
    console.print("What to try next:")
    for step in _NEXT_STEPS:
        console.print(f"  {step.replace('`', '')}")


def _demo_data(data_root: Path | None, console: Console, progress: bool) -> tuple[Dataset, str]:
    """Fashion-MNIST from whichever source answers, else the digits that come with scikit-learn."""
    try:
        dataset = open_named("fashion-mnist", data_root, progress=progress)
    except DataError as error:
        console.print(f"Fashion-MNIST is not to be had ({error})")
        console.print("Using the digits that ship with scikit-learn instead.")
        return open_named("digits", data_root), "demo-digits"
    rng = np.random.default_rng(0)
    ids = dataset.class_ids()
    chosen = [rng.permutation(np.flatnonzero(ids == c))[:_ITEMS_PER_CLASS] for c in range(len(dataset.classes))]
    console.print(f"Data: {dataset.name}, {_ITEMS_PER_CLASS} images of each class")
    return dataset.select(np.sort(np.concatenate(chosen))), "demo"
