"""`nearkin tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.options import DATA_HELP, EXIT_INTERRUPTED, DataRoot, Overrides, Quiet, SkipBad
from nearkin.errors import TrainingError

if TYPE_CHECKING:
    from nearkin.protocol.search_space import SearchSpace
    from nearkin.protocol.tune import TuningResult

_SHOWN = 5
"""Trials that are printed at the end."""


def tune(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    space: Annotated[
        str,
        typer.Option(
            help="Keys to search, comma-separated: a range, as in 'training.lr=1e-5..1e-3 log' (whole numbers if both "
            "ends are), or a list, as in 'objective.loss=triplet|contrastive'.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory of the search; an existing one is resumed.")],
    recipe: Annotated[str, typer.Option(help="Name or YAML file of a recipe.")] = "multi-similarity",
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, those of earlier calls included.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="Models of each trial, whose mean counts.")] = 1,
    sampler: Annotated[
        str,
        typer.Option(
            help="tpe or gp (Bayesian, from the trials so far), random, or grid (all combinations of lists; needs no "
            "extra package).",
        ),
    ] = "tpe",
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is proposed.")] = 0,
    overrides: Overrides = None,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the run directories of all trials.")] = False,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Search for settings of a recipe that validate best; the test classes are not looked at. Resumable."""
    from nearkin.api import open_checked, source_name
    from nearkin.protocol.search_space import parse_space
    from nearkin.protocol.tune import run_tuning, sampler_named
    from nearkin.storage import cache_directory
    from nearkin.training.ranks import Ranks

    if (processes := Ranks.from_environment().world_size) > 1:
        raise TrainingError(f"A search runs in one process, not in {processes}: start it without torchrun.")
    keys, chosen = parse_space(space), sampler_named(sampler)
    dataset, notes = open_checked(data, skip_bad=skip_bad, data_root=data_root, progress=not quiet)
    result = run_tuning(
        dataset,
        recipe,
        keys,
        out,
        cache_directory=cache_directory() / "features",
        trials=trials,
        seeds=seeds,
        sampler=chosen,
        seed=seed,
        overrides=overrides or [],
        source=source_name(data),
        notes=notes,
        keep_runs=keep_runs,
        progress=not quiet,
    )
    if result.interrupted:
        print(f"Stopped after {len(result.trials)} trials. Resume with the same command.")
        raise typer.Exit(EXIT_INTERRUPTED)
    _show(result, keys, out)


def _show(result: TuningResult, space: SearchSpace, out: Path) -> None:
    """Print the best trials, and where the rest is."""
    from rich.console import Console

    from nearkin.report.terminal import text_table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    scored = sorted((one for one in result.trials if one.score is not None), key=lambda one: -(one.score or 0.0))
    rows = [
        [[text] for text in (str(one.number), *(_told(one.values[key.key]) for key in space), _share(one.score))]
        for one in scored[:_SHOWN]
    ]
    title = f"The best of {len(result.trials)} trials, by {result.metric} on the validation classes"
    console.print(text_table(["trial", *(key.key for key in space), result.metric], rows, title=title))
    tied = sum(one.score == scored[0].score for one in scored)
    if tied > 1:
        print(
            f"{tied} trials tie at the best score, as trials do whose training never beat their start: train longer, "
            "or give more validation classes."
        )
    if failed := len(result.trials) - len(scored):
        console.print(f"{failed} {'trial' if failed == 1 else 'trials'} failed; {out / 'trials.csv'} says why.")
    console.print(f"Table: {out / 'trials.csv'}; picture: {out / 'trials.png'}")
    console.print(f"Next: nearkin train ... --recipe {out / 'best.yaml'}")


def _share(score: float | None) -> str:
    return "" if score is None else f"{100 * score:.2f} %"


def _told(value: object) -> str:
    """A value as the space has it, with fewer digits."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
