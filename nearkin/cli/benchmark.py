"""`nearkin benchmark`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Console

from nearkin.api import open_checked, source_name
from nearkin.cli.options import EXIT_ERROR, EXIT_INTERRUPTED
from nearkin.errors import RecipeError, TrainingError
from nearkin.protocol import Book, Candidate, run_benchmark
from nearkin.protocol.benchmark import check_plan
from nearkin.protocol.candidates import fold_order_named, protocol_named
from nearkin.protocol.tables import Tables
from nearkin.recipe import load_recipe, settings_by_data
from nearkin.report.terminal import text_table
from nearkin.report.values import TextTable
from nearkin.storage import cache_directory
from nearkin.training.ranks import Ranks

_FOLDS = 4


def benchmark_command(
    data: str,
    recipes: str,
    out: Path,
    *,
    folds: int | None,
    fold_order: str | None,
    seeds: int,
    against: str | None,
    overrides: list[str],
    protocol: str,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
    keep_runs: bool,
    jobs: int,
) -> None:
    """Compare recipes and print the tables."""
    if (processes := Ranks.from_environment().world_size) > 1:
        raise TrainingError(f"A benchmark runs in one process, not in {processes}: start it without torchrun.")
    if protocol == "conventional" and folds is not None:
        raise RecipeError("The conventional protocol has no folds: drop --folds, or use --protocol fair.")
    if protocol == "conventional" and fold_order is not None:
        raise RecipeError("The conventional protocol has no folds: drop --fold-order, or use --protocol fair.")
    names = [name.strip() for name in recipes.split(",") if name.strip()]
    source = source_name(data)
    loaded = [load_recipe(name, overrides, source) for name in names]
    if progress:
        _tell_defaults(names, overrides, source)
    candidates = [Candidate(recipe.name, recipe) for recipe in loaded]
    chosen, baselines = protocol_named(protocol), _against(against, [candidate.name for candidate in candidates])
    made = _FOLDS if folds is None else folds
    order = None if fold_order is None else fold_order_named(fold_order)
    check_plan(candidates, chosen, made, seeds)
    Book(out).check_place()
    dataset, notes = open_checked(data, skip_bad=skip_bad, data_root=data_root, progress=progress)
    result = run_benchmark(
        dataset,
        candidates,
        out,
        cache_directory=cache_directory() / "features",
        folds=made,
        seeds=seeds,
        protocol=chosen,
        against=baselines,
        source=source,
        notes=notes,
        keep_runs=keep_runs,
        progress=progress,
        fold_order=order,
        jobs=jobs,
    )
    if result.interrupted:
        missing = result.summary.missing
        print(f"Stopped with {missing} {'cell' if missing == 1 else 'cells'} missing. Resume with the same command.")
    else:
        _show(result.tables)
        print(f"Table: {out / 'table.html'} (also table.md and table.csv); picture: {out / 'comparison.png'}")
    for failure in result.failures:
        print(f"nearkin: {failure}", file=sys.stderr)
    if result.interrupted or result.failures:
        raise typer.Exit(EXIT_INTERRUPTED if result.interrupted else EXIT_ERROR)


def _tell_defaults(names: Sequence[str], overrides: list[str], source: str) -> None:
    """Say which recipes have settings by data set and none for this one."""
    tables = {name: settings_by_data(name, overrides) for name in names}
    lacking = [name for name, table in tables.items() if table and source not in table]
    if lacking:
        known = sorted({data for name in lacking for data in tables[name]})
        print(
            f"{', '.join(lacking)}: settings by data set are known for {', '.join(known)}; for {source} those of CUB "
            "are taken.",
            file=sys.stderr,
        )


def _against(given: str | None, names: Collection[str]) -> str | Mapping[str, str] | None:
    """One baseline, or several as `candidate:baseline` with commas between; a name with a colon stands alone."""
    if given is None or given in names or ":" not in given:
        return given
    pairs: dict[str, str] = {}
    for part in given.split(","):
        name, colon, base = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and base):
            raise RecipeError(f"--against takes one recipe or pairs such as a:b,c:d, not '{given}'.")
        if name in pairs:
            raise RecipeError(f"--against gives '{name}' two baselines: give each recipe one.")
        pairs[name] = base
    return pairs


def _show(tables: Tables) -> None:
    """Print the tables, each with its notes."""
    console = Console(highlight=False, markup=False, emoji=False)
    shown = [TextTable(tables.title, tables.headings(), tables.lines(), tables.notes())]
    if tables.further is not None:
        shown.append(tables.further)
    for place, table in enumerate(shown):
        if place:
            console.print()
        _print(console, table)


def _print(console: Console, table: TextTable) -> None:
    """Print a table with as many columns as fit; to a pipe, all of them."""
    unbounded = console.options.update(max_width=10_000)
    for count in range(len(table.headings), 1, -1):
        fitting = text_table(table.headings[:count], [row[:count] for row in table.rows], title=table.title)
        wanted = console.measure(fitting, options=unbounded).maximum
        if wanted <= console.width or not console.is_terminal:
            console.width = max(console.width, wanted)
            break
    console.print(fitting)
    if left := table.headings[count:]:
        console.print(f"Columns that do not fit: {'; '.join(left)}. The files have all columns.", soft_wrap=True)
    for note in table.notes:
        console.print(note, soft_wrap=True)
