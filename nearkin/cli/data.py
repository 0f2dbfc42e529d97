"""`nearkin data`: inspect and prepare data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.options import DataRoot, Quiet, SkipBad
from nearkin.cli.output import show_notes, show_table

data_app = typer.Typer(help="Data sets: list the catalogue, inspect, import and split.", no_args_is_help=True)

Source = Annotated[str, typer.Argument(help="Data in any format that `nearkin train` accepts.")]
Out = Annotated[Path, typer.Argument(help="A .zip for manifest and files, or a .csv/.parquet for the manifest only.")]


@data_app.command("list")
def list_command(
    everything: Annotated[bool, typer.Option("--all", help="Also show how each is split and where to get it.")] = False,
) -> None:
    """List the catalogue: data sets that can be given by name."""
    from nearkin.data.catalogue import catalogue_table

    rows = catalogue_table()
    shown = list(rows[0]) if everything else ["name", "title", "classes", "items", "tested"]
    show_table(shown, [[row[column] for column in shown] for row in rows])
    if not everything:
        print("\nFor splits and sources: nearkin data list --all")


@data_app.command("info")
def info_command(data: Source, data_root: DataRoot = None, quiet: Quiet = False) -> None:
    """Show what is in a data set: classes, items, splits, and unreadable files."""
    from nearkin.data.dataset import find_bad
    from nearkin.data.export import summary_lines
    from nearkin.data.sources import open_data

    dataset = open_data(data, data_root=data_root, progress=not quiet)
    for line in summary_lines(dataset):
        print(line)
    bad = find_bad(dataset, progress=not quiet)
    print(f"unreadable: {len(bad)}")
    for item in bad[:20]:
        print(f"  {item.path} {item.reason}")
    if len(bad) > 20:
        print(f"  and {len(bad) - 20} more")


@data_app.command("import")
def import_command(
    data: Source, out: Out, skip_bad: SkipBad = False, data_root: DataRoot = None, quiet: Quiet = False
) -> None:
    """Convert any data to a manifest, alone or with its files in a zip."""
    from nearkin.api import open_readable
    from nearkin.data.export import export_dataset

    dataset, notes = open_readable(data, skip_bad=skip_bad, data_root=data_root, progress=not quiet)
    export_dataset(dataset, out, progress=not quiet)
    print(f"Wrote {len(dataset)} items of {len(dataset.classes)} classes: {out}")
    show_notes(notes)


@data_app.command("split")
def split_command(
    data: Source,
    out: Out,
    by: Annotated[str, typer.Option(help="auto, column, halves, fraction, or items (no held-out classes).")] = "auto",
    test: Annotated[
        float,
        typer.Option(min=0.0, max=0.99, help="Share of the classes, or of each class's items, held out for the audit."),
    ] = 0.3,
    val: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Share of the training classes, or items, for validation.")
    ] = 0.15,
    folds: Annotated[int, typer.Option(min=0, help="Also assign the training classes to this many folds.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Split the classes into train, val and test, and write them to a manifest."""
    from nearkin.data.export import export_dataset, summary_lines, with_split
    from nearkin.data.sources import open_data

    dataset = open_data(data, data_root=data_root, progress=not quiet)
    divided = with_split(dataset, by=by, test=test, val=val, folds=folds, seed=seed)
    export_dataset(divided, out, progress=not quiet)
    for line in summary_lines(divided):
        print(line)
    print(f"Wrote {out}")
