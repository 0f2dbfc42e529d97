"""`nearkin train`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from nearkin.api import fit_run
from nearkin.cli.exits import INTERRUPTED
from nearkin.errors import LostProcessError, NearkinError
from nearkin.models.section import AUTO
from nearkin.recipe import load_recipe
from nearkin.training import Run
from nearkin.training.gain import suggestion
from nearkin.training.ranks import Ranks
from nearkin.training.schedules.chance_constrained import RADIUS
from nearkin.training.start import start_lines

_FIRST_SPEAKS = 10.0
"""Seconds that the first process has to meet the same error and say so."""


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
    ranks = Ranks.from_environment()
    with _one_voice(ranks):
        result = fit_run(
            data,
            load_recipe(recipe, overrides),
            run,
            resume=resume,
            skip_bad=skip_bad,
            data_root=data_root,
            progress=progress,
        )
    if not ranks.is_first:
        # Also after a stop: torchrun would take another code for a failure, and end the first while it speaks.
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    card, state = result.embedder.card, result.state
    for note in card["data"]["notes"]:
        console.print(f"Note: {note}")
    if result.interrupted:
        console.print(f"Stopped at step {state.step}. Continue with the same command and  --resume")
        raise typer.Exit(INTERRUPTED)
    sizes = {part: len(names) for part, names in card["classes"].items()}
    section, training = run.recipe().data, run.recipe().training
    seen = section.classes_are_seen
    others = f"{sizes['val']} more for validation, {sizes['test']} held out"
    if seen:
        others = "other items of them validate and test"
    if section.split == "domains":
        others = f"other items of them validate, those of {' and '.join(card['domains']['test'])} are held out"
    console.print(f"Trained {state.step} steps in {state.seconds:.0f} s on {sizes['train']} classes ({others}).")
    lowered = card.get("start", {}).get("lr", training.lr) < 0.5 * training.lr
    if "start" in card:
        for line in start_lines(card["start"]):
            console.print(line)
        if lowered:
            console.print(
                f"  Note: the learning rate is lowered from {training.lr:.2g} to {card['start']['lr']:.2g} for "
                f"{sizes['train']} classes (training.full_rate_classes, training.full_rate_items)."
            )
    if result.gain is not None:
        console.print("On the validation items:" if seen else f"On the {sizes['val']} validation classes:")
        for line in result.gain.lines():
            console.print(f"  {line}")
    elif card["validation"]:
        shares = {name: value for name, value in card["validation"].items() if name != RADIUS}
        shown = ", ".join(f"{name.removeprefix('val_')} {100 * value:.1f} %" for name, value in shares.items())
        console.print(f"Best on the validation {'items' if seen else 'classes'} at step {state.best_step}: {shown}.")
    if training.schedule == "cross-batch-memory" and state.best_step <= training.cross_batch_memory.warmup_steps:
        console.print(
            f"Note: the best weights are from before the memory was used, which is after "
            f"{training.cross_batch_memory.warmup_steps} steps: lower training.cross_batch_memory.warmup_steps, or "
            "raise training.patience."
        )
    if result.gain is not None:
        advice = suggestion(
            result.gain,
            last_step=state.step,
            max_steps=training.max_steps,
            lr=training.lr,
            classes=sizes["train"],
            lowered=lowered,
            chosen_size=run.recipe().model.dimension == AUTO,
        )
        console.print(f"To try next: {advice}")
    console.print(f"Model: {run.model_file}")
    if sizes["test"]:
        console.print(f"Next: nearkin audit {shlex.quote(str(out))}")


@contextmanager
def _one_voice(ranks: Ranks) -> Iterator[None]:
    """Let the first of several processes say what is wrong for all.

    What is wrong for it too ends it, and torchrun then ends the others, which wait meanwhile; what is wrong only here
    is said after the wait.
    """
    try:
        yield
    except LostProcessError:
        raise  # the first may be the one that is lost
    except NearkinError:
        if not ranks.is_first:
            time.sleep(_FIRST_SPEAKS)
        raise
