"""`nearkin train`."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer
from rich.console import Console

from nearkin.api import fit_run
from nearkin.recipe import load_recipe
from nearkin.training import Run

_INTERRUPTED = 130
"""What shells report for a command that Ctrl-C ended."""


def train_command(
    data: str,
    recipe: str,
    out: Path,
    overrides: list[str],
    resume: bool,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> None:
    """Train and say what came of it."""
    run = Run(out)
    result = fit_run(
        data,
        load_recipe(recipe, overrides),
        run,
        resume=resume,
        skip_bad=skip_bad,
        data_root=data_root,
        progress=progress,
    )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    card, state = result.embedder.card, result.state
    for note in card["data"]["notes"]:
        console.print(f"Note: {note}")
    if result.interrupted:
        console.print(f"Stopped at step {state.step}. Continue with the same command and  --resume")
        raise typer.Exit(_INTERRUPTED)
    sizes = {part: len(names) for part, names in card["classes"].items()}
    console.print(
        f"Trained {state.step} steps in {state.seconds:.0f} s on {sizes['train']} classes "
        f"({sizes['val']} more for validation, {sizes['test']} held out)."
    )
    if card["validation"]:
        shown = ", ".join(f"{name.removeprefix('val_')} {100 * v:.1f} %" for name, v in card["validation"].items())
        console.print(f"Best on the validation classes at step {state.best_step}: {shown}.")
    console.print(f"Model: {run.model_file}")
    if sizes["test"]:
        console.print(f"Next: nearkin audit {shlex.quote(str(out))}")
