"""`nearkin train`, and `nearkin demo`: from data to report on a small real data set, in a few minutes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.options import DATA_HELP, EXIT_INTERRUPTED, DataRoot, Overrides, Quiet, SkipBad
from nearkin.errors import DataError, LostProcessError, NearkinError

if TYPE_CHECKING:
    from rich.console import Console

    from nearkin.data.dataset import Dataset
    from nearkin.training.ranks import Ranks


_FIRST_SPEAKS = 10.0
"""Seconds that the first process has to hit the same error and report it."""


def train(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    out: Annotated[Path, typer.Option(help="Directory for the run.")],
    recipe: Annotated[str, typer.Option(help="Name or YAML file of a recipe.")] = "multi-similarity",
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Train an embedding on some classes of DATA; the other classes are held out for the audit."""
    from rich.console import Console

    from nearkin.api import fit_run, source_name
    from nearkin.recipe import load_recipe
    from nearkin.training import Run
    from nearkin.training.ranks import Ranks
    from nearkin.training.start import random_start_line, rate_note, start_lines, suggestion
    from nearkin.training.strategies.chance_constrained import RADIUS

    run = Run(out)
    ranks = Ranks.from_environment()
    with _one_voice(ranks):
        result = fit_run(
            data,
            load_recipe(recipe, overrides or [], source_name(data)),
            run,
            resume=resume,
            skip_bad=skip_bad,
            data_root=data_root,
            progress=not quiet,
        )
    if not ranks.is_first:
        # Also when interrupted: torchrun would take another exit code for a failure and kill the first process.
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    card, state = result.embedder.card, result.state
    for note in card.data.notes:
        console.print(f"Note: {note}")
    if result.interrupted:
        console.print(f"Stopped at step {state.step}. To continue, add --resume to the same command.")
        raise typer.Exit(EXIT_INTERRUPTED)
    sizes = {part: len(names) for part, names in vars(card.classes).items()}
    resolved = run.recipe()
    section, training = resolved.data, resolved.training
    seen = section.classes_are_seen
    others = f"{sizes['val']} more for validation, {sizes['test']} held out"
    if seen:
        others = "other items of them for validation and test"
    if card.domains is not None and section.split == "domains":
        others = f"other items of them for validation; domain {' and '.join(card.domains.test)} held out"
    console.print(f"Trained {state.step} steps in {state.seconds:.0f} s on {sizes['train']} classes ({others}).")
    if not any(parameter.requires_grad for parameter in result.embedder.parameters()):
        console.print(
            "Note: nothing in this model can learn, so it is the backbone as it was: it is frozen (model.freeze) and "
            "has no head (model.dimension is null)."
        )
    elif line := random_start_line(resolved.model):
        console.print(line)
    if card.start is not None:
        for line in start_lines(card.start):
            console.print(line)
        if rate := rate_note(card.start, training.lr):
            console.print(f"  Note: {rate}")
    if result.gain is not None:
        console.print("On the validation items:" if seen else f"On the {sizes['val']} validation classes:")
        for line in result.gain.lines():
            console.print(f"  {line}")
    elif card.validation:
        shares = {name: value for name, value in card.validation.items() if name != RADIUS}
        shown = ", ".join(f"{name.removeprefix('val_')} {100 * value:.1f} %" for name, value in shares.items())
        console.print(f"Best on the validation {'items' if seen else 'classes'} at step {state.best_step}: {shown}.")
    if state.averaged is not None:
        kept = f"the mean of the last {state.averaged} best weights, which validated better than the best of them"
        alone = "the best weights themselves, which validated no worse than the mean of the last of them"
        console.print(f"Kept: {kept if state.averaged else alone}.")
    if training.schedule == "cross-batch-memory" and state.best_step <= training.cross_batch_memory.warmup_steps:
        console.print(
            f"Note: the best weights are from before the memory was used (it starts after "
            f"{training.cross_batch_memory.warmup_steps} steps): lower training.cross_batch_memory.warmup_steps, or "
            "raise training.patience."
        )
    if result.gain is not None:
        advice = suggestion(result.gain, resolved, card.start, last_step=state.step, classes=sizes["train"])
        console.print(f"To try next: {advice}")
    console.print(f"Model: {run.model_file}")
    if sizes["test"]:
        console.print(f"Next: nearkin audit {shlex.quote(str(out))}")


@contextmanager
def _one_voice(ranks: Ranks) -> Iterator[None]:
    """Let the first of several processes report an error for all.

    If it has the same error, it exits and torchrun ends the others, which wait meanwhile; an error of this process only
    is reported after the wait.
    """
    try:
        yield
    except LostProcessError:
        raise  # the first process may be the lost one
    except NearkinError:
        if not ranks.is_first:
            time.sleep(_FIRST_SPEAKS)
        raise


_ITEMS_PER_CLASS = 1000
_NEXT_STEPS = (
    "`nearkin train photos/ --out runs/mine`: train on your own photos, one folder per class.",
    "`nearkin recipes`: list the other losses; try one with `--set objective.loss=triplet`.",
    "`nearkin data list`: list data sets that can be given by name.",
    "`nearkin compare runs/*`: compare several audited runs.",
)


def demo(
    out: Annotated[Path, typer.Option(help="Directory for the run.")] = Path("runs/demo"),
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
