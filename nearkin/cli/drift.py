"""The command `nearkin drift`; heavy imports wait until it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.exits import NO
from nearkin.cli.options import DataRoot, Quiet, SkipBad

_DATA = (
    "a folder with one folder per class, a CSV or Parquet manifest, a zip, a Hugging Face data set directory, or a "
    "catalogue name (see `nearkin data list`)."
)


def drift(
    reference: Annotated[str, typer.Argument(metavar="A", help=f"The reference: {_DATA} Or loose files.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The new data, in any of these forms.")],
    model: Annotated[str, typer.Option("--model", help="A run, a model file, or a pretrained backbone's name.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for numbers, pictures and page.")] = Path("drift"),
    kernel: Annotated[
        str, typer.Option("--kernel", help="learned, gaussian, or auto: learned if the model has a similarity.")
    ] = "auto",
    permutations: Annotated[
        int, typer.Option("--permutations", min=1, help="Random divisions to compare with.")
    ] = 1000,
    alpha: Annotated[float, typer.Option("--alpha", help="The p-value up to which it is called drift.")] = 0.05,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Items of each side that are drawn at the most; 0: all.")
    ] = 2000,
    by_class: Annotated[bool, typer.Option("--by-class", help="Also test each class that both have.")] = False,
    only_a: Annotated[
        list[str] | None, typer.Option("--only-a", help="Take only such rows of A, e.g. domain=photo; repeatable.")
    ] = None,
    only_b: Annotated[list[str] | None, typer.Option("--only-b", help="The same of B.")] = None,
    fail_on_drift: Annotated[bool, typer.Option("--fail-on-drift", help="End with exit code 3 if it drifted.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the items and divisions that are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Test whether data B differs from data A, as a model sees both; list the items of B that are unlike A."""
    from nearkin.cli.drifting import drift_command

    drifted = drift_command(
        reference,
        new,
        model,
        out,
        kernel=kernel,
        permutations=permutations,
        alpha=alpha,
        limit=limit,
        by_class=by_class,
        only=(only_a or [], only_b or []),
        seed=seed,
        skip_bad=skip_bad,
        data_root=data_root,
        as_json=as_json,
        progress=not quiet,
    )
    if fail_on_drift and drifted:
        raise typer.Exit(NO)
