"""The `nearkin` command; heavy imports wait until a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from nearkin._version import __version__
from nearkin.allocator import tune_allocator, tune_threads
from nearkin.cli import model, query, serve
from nearkin.cli.audit import audit
from nearkin.cli.benchmark import benchmark
from nearkin.cli.data import data_app
from nearkin.cli.drift import drift
from nearkin.cli.gallery import gallery_app
from nearkin.cli.hierarchy import hierarchy_app
from nearkin.cli.options import EXIT_CODES, GalleryCommand, JsonFile
from nearkin.cli.recipes import recipes_app
from nearkin.cli.train import demo, train
from nearkin.cli.trials import trials
from nearkin.cli.tune import tune
from nearkin.errors import NearkinError

app = typer.Typer(
    name="nearkin",
    help="Deep metric learning: learn a distance you can trust, and put it to work.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(recipes_app, name="recipes")
app.add_typer(gallery_app, name="gallery")
app.add_typer(hierarchy_app, name="hierarchy")


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Audited runs.")],
    metric: Annotated[str, typer.Option(help="The metric to compare.")] = "MAP@R",
    against: Annotated[Path | None, typer.Option(help="The baseline run of the tests; default: the best run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write an HTML page with pictures.", dir_okay=False)] = None,
) -> None:
    """Compare audited runs, with intervals and paired tests over the classes they share."""
    from nearkin.cli.compare import compare_command

    compare_command(runs, metric, against, out)


def dynamics(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run trained by episodes.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one.")],
    out: Annotated[
        Path | None, typer.Option(help="Also write a page (.html) or only its curves (.png).", dir_okay=False)
    ] = None,
    json: JsonFile = None,
    from_step: Annotated[int | None, typer.Option(min=0, help="First step to include.")] = None,
    to_step: Annotated[int | None, typer.Option(min=0, help="Last step to include.")] = None,
) -> None:
    """Compare the training dynamics of two runs: how far updates moved the embeddings, and in which direction."""
    from nearkin.cli.compare import dynamics_command

    dynamics_command(first, second, out, json, (from_step, to_step))


def geometry(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Three or more runs audited with --suite geometry.")
    ],
    against: Annotated[
        str, typer.Option(help="The metric to correlate the measures with, e.g. 'MC, input l2'.")
    ] = "MAP@R",
    out: Annotated[
        Path | None, typer.Option(help="Also write a page (.html) or only its picture (.png).", dir_okay=False)
    ] = None,
    json: JsonFile = None,
) -> None:
    """Compare the embedding geometry of runs, and correlate its measures with a metric."""
    from nearkin.cli.geometry import geometry_command

    geometry_command(runs, against, out, json)


def correlate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Three or more audited runs.")],
    measure: Annotated[
        list[str],
        typer.Option("--measure", help="A metric of their audits, e.g. 'MC, prototypes'; repeat for two or more."),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write a page (.html).", dir_okay=False)] = None,
    json: JsonFile = None,
) -> None:
    """Correlate any measures of audits with each other over runs, by Spearman's rank correlation."""
    from nearkin.cli.geometry import correlate_command

    correlate_command(runs, measure, out, json)


_OF_RUNS: tuple[Callable[..., None], ...] = (
    train,
    audit,
    trials,
    model.embed,
    model.shorten,
    model.reweight,
    model.export,
    model.explain,
)
_OF_SEVERAL: tuple[Callable[..., None], ...] = (compare, dynamics, geometry, correlate, benchmark, tune, demo)
_OF_GALLERIES: tuple[Callable[..., None], ...] = (query.search, query.classify, serve.serve, serve.key)
for _command in (*_OF_RUNS, *_OF_SEVERAL):
    app.command()(_command)
app.command(cls=GalleryCommand, epilog=f"{EXIT_CODES}, 3 drift, with --fail-on-drift.")(drift)
app.command(cls=GalleryCommand, epilog=f"{EXIT_CODES}, 3 at least one query is unknown or cannot be told.")(
    query.identify
)
app.command(cls=GalleryCommand, epilog=f"{EXIT_CODES}, 3 different or undecided.")(query.verify)
for _command in _OF_GALLERIES:
    app.command(cls=GalleryCommand)(_command)


def main() -> None:
    """Run the command line; our errors become one sentence and exit code 2, never a traceback."""
    tune_allocator()  # before a command imports what starts threads
    tune_threads()
    try:
        app()
    except NearkinError as error:
        print(f"nearkin: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("nearkin: interrupted.", file=sys.stderr)
        sys.exit(130)
