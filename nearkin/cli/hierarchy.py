"""`nearkin hierarchy`: infer a tree of classes from a run, and check one of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.exits import NO
from nearkin.cli.options import DataRoot, Quiet, SkipBad

hierarchy_app = typer.Typer(help="Class trees: infer one from a run, check one.", no_args_is_help=True)


@hierarchy_app.command("infer")
def infer_command(
    run: Annotated[Path, typer.Argument(help="A run directory, as `nearkin train` makes it.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="prototypes: means of items of each class; proxies: the training classes' own, if the loss had any; "
            "confusions: what items are taken for.",
        ),
    ] = "prototypes",
    method: Annotated[str, typer.Option("--method", help="average (linkage), or neighbour-joining.")] = "average",
    tree: Annotated[
        str | None,
        typer.Option("--tree", help="A known tree to compare with: a file or `cifar100`; default: the run's own."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Take this data instead of the run's own.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="A directory, or where to write .nwk and .png; default: in the run directory."),
    ] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Infer a tree of a run's classes; write it as Newick and as a picture, beside the known tree if there is one."""
    from nearkin.cli.inferring import infer_tree_command

    infer_tree_command(
        run,
        source,
        method,
        tree=tree,
        data=data,
        out=out,
        skip_bad=skip_bad,
        data_root=data_root,
        progress=not quiet,
    )


@hierarchy_app.command("check", epilog="Exit codes: 0 the tree has all classes, 3 it lacks some, 2 it cannot be read.")
def check_command(
    file: Annotated[str, typer.Argument(help="A .yaml, .json, .csv or Newick file, or `cifar100`.")],
    data: Annotated[
        str | None, typer.Option("--data", help="Data whose classes the tree should have, in any form `train` takes.")
    ] = None,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Read a class tree and say what is in it, and which classes of DATA it lacks."""
    from nearkin.cli.inferring import show_tree

    if not show_tree(file, data, data_root, not quiet):
        raise typer.Exit(NO)
