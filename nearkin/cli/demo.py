"""`nearkin demo`: from data to report on a small real data set, in a few minutes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.options import DataRoot, Quiet

if TYPE_CHECKING:
    from rich.console import Console

    from nearkin.data.dataset import Dataset


_ITEMS_PER_CLASS = 1000
_NEXT_STEPS = (
    "`nearkin train photos/ --out runs/mine`: train on your own photos, one folder per class.",
    "`nearkin recipes`: list the other losses; try one with `--set objective.loss=triplet`.",
    "`nearkin data list`: list data sets that can be given by name.",
    "`nearkin compare runs/*`: compare several audited runs.",
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for the run.")] = Path("runs/demo"),
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Download a small real data set, train on some of its classes, and audit on classes it has not seen."""
    from rich.console import Console

    from nearkin.api import fit_run
    from nearkin.cli.audit import audit_run, show_audit, write_audit
    from nearkin.recipe import load_recipe
    from nearkin.training import Run

    console = Console(highlight=False, soft_wrap=True, markup=False)
    began = time.monotonic()
    dataset, recipe_name = _demo_data(data_root, console, not quiet)
    recipe = load_recipe(recipe_name)
    run = Run(out)
    result = fit_run(dataset, recipe, run, progress=not quiet)
    if result.interrupted:
        console.print(f"Stopped at step {result.state.step}. Run the demo again to start over.")
        return
    classes = result.embedder.card.classes
    console.print(f"Trained on: {', '.join(classes.train)}")
    console.print(f"Validated on: {', '.join(classes.val)}")
    console.print(f"Never seen before the audit: {', '.join(classes.test)}\n")
    audit = audit_run(run, dataset, progress=not quiet)
    write_audit(run, audit, run.report_file, run.audit_file, "nearkin demo", _NEXT_STEPS)
    show_audit(audit, console)
    console.print(f"\n{audit.verdict()}")
    console.print(f"Report with pictures: {run.report_file}  ({time.monotonic() - began:.0f} s in all)\n")
    console.print("What to try next:")
    for step in _NEXT_STEPS:
        console.print(f"  {step.replace('`', '')}")


def _demo_data(data_root: Path | None, console: Console, progress: bool) -> tuple[Dataset, str]:
    """Fashion-MNIST from the first available source, else scikit-learn's digits."""
    import numpy as np

    from nearkin.data.catalogue import open_named
    from nearkin.errors import DataError

    try:
        dataset = open_named("fashion-mnist", data_root, progress=progress)
    except DataError as error:
        console.print(f"Fashion-MNIST is not available ({error})")
        console.print("Using the digits that ship with scikit-learn instead.")
        return open_named("digits", data_root), "demo-digits"
    rng = np.random.default_rng(0)
    ids = dataset.class_ids()
    chosen = [rng.permutation(np.flatnonzero(ids == c))[:_ITEMS_PER_CLASS] for c in range(len(dataset.classes))]
    console.print(f"Data: {dataset.name}, {_ITEMS_PER_CLASS} images of each class")
    return dataset.select(np.sort(np.concatenate(chosen))), "demo"
