"""`nearkin benchmark`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.options import DATA_HELP, EXIT_ERROR, EXIT_INTERRUPTED, DataRoot, Overrides, Quiet, SkipBad
from nearkin.errors import RecipeError, TrainingError

if TYPE_CHECKING:
    from nearkin.protocol.tables import Tables

_FOLDS = 4


def benchmark(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    recipes: Annotated[str, typer.Option(help="Names or YAML files of recipes, comma-separated.")],
    out: Annotated[Path, typer.Option(help="Directory for the results; an existing one is resumed.")],
    folds: Annotated[int | None, typer.Option(help="Class-disjoint folds of the training classes; default: 4.")] = None,
    fold_order: Annotated[
        str | None,
        typer.Option(
            help="contiguous: the sorted classes cut in order, as in the papers; random: drawn. Default: as the book "
            "has it; contiguous in a new one.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 3,
    against: Annotated[
        str | None,
        typer.Option(
            help="The baseline recipe, or pairs such as a:b,c:d; `untrained` means untrained features. Default: the "
            "first recipe.",
        ),
    ] = None,
    overrides: Overrides = None,
    protocol: Annotated[
        str, typer.Option(help="fair, or conventional: select on the test classes, which is optimistic.")
    ] = "fair",
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the run directories of all models.")] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Models trained side by side, each in a process with one thread.")
    ] = 1,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Compare recipes fairly: class-disjoint folds, several seeds, paired tests, one table. Resumable."""
    from nearkin.api import open_checked, source_name
    from nearkin.protocol import Book, Candidate, run_benchmark
    from nearkin.protocol.benchmark import check_plan
    from nearkin.protocol.candidates import fold_order_named, protocol_named
    from nearkin.recipe import load_recipe
    from nearkin.storage import cache_directory
    from nearkin.training.ranks import Ranks

    if (processes := Ranks.from_environment().world_size) > 1:
        raise TrainingError(f"A benchmark runs in one process, not in {processes}: start it without torchrun.")
    for option, value in (("--folds", folds), ("--fold-order", fold_order)):
        if protocol == "conventional" and value is not None:
            raise RecipeError(f"The conventional protocol has no folds: drop {option}, or use --protocol fair.")
    names = [name.strip() for name in recipes.split(",") if name.strip()]
    source = source_name(data)
    loaded = [load_recipe(name, overrides or [], source) for name in names]
    if not quiet:
        _tell_defaults(names, overrides or [], source)
    candidates = [Candidate(recipe.name, recipe) for recipe in loaded]
    chosen, baselines = protocol_named(protocol), _against(against, [candidate.name for candidate in candidates])
    made = _FOLDS if folds is None else folds
    order = None if fold_order is None else fold_order_named(fold_order)
    check_plan(candidates, chosen, made, seeds)
    Book(out).check_place()
    dataset, notes = open_checked(data, skip_bad=skip_bad, data_root=data_root, progress=not quiet)
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
        progress=not quiet,
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
    from nearkin.recipe import settings_by_data

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
    from rich.console import Console

    from nearkin.report.terminal import text_table
    from nearkin.report.values import TextTable

    console = Console(highlight=False, markup=False, emoji=False)
    shown = [TextTable(tables.title, tables.headings(), tables.lines(), tables.notes())]
    if tables.further is not None:
        shown.append(tables.further)
    unbounded = console.options.update(max_width=10_000)
    for place, table in enumerate(shown):
        if place:
            console.print()
        # As many columns as fit; to a pipe, all of them.
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
