"""The `nearkin` command; heavy imports wait until a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nearkin._version import __version__
from nearkin.allocator import tune_allocator, tune_threads
from nearkin.cli import model, query, serve
from nearkin.cli.data import data_app
from nearkin.cli.drift import drift
from nearkin.cli.gallery import gallery_app
from nearkin.cli.options import (
    DATA_HELP,
    EXIT_CODES,
    EXIT_NO,
    DataRoot,
    GalleryCommand,
    Overrides,
    Quiet,
    SkipBad,
)
from nearkin.cli.recipes import recipes_app
from nearkin.cli.train import demo, train
from nearkin.errors import NearkinError

hierarchy_app = typer.Typer(help="Class trees: infer one from a run, or check one.", no_args_is_help=True)


@hierarchy_app.command("infer")
def infer_command(
    run: Annotated[Path, typer.Argument(help="A run directory written by `nearkin train`.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="prototypes: class means; proxies: the loss's proxies of the training classes, if it has any; "
            "confusions: which classes are mistaken for each other.",
        ),
    ] = "prototypes",
    method: Annotated[str, typer.Option("--method", help="average (linkage) or neighbour-joining.")] = "average",
    tree: Annotated[
        str | None,
        typer.Option("--tree", help="A known tree to compare with: a file or `cifar100`; default: the run's tree."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Use this data instead of the run's.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="A directory, or a name for the .nwk and .png files; default: the run directory."),
    ] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Infer a class tree from a run; write it as Newick and as a picture, next to the known tree if there is one."""
    from nearkin.cli.hierarchy import infer_tree_command

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


@hierarchy_app.command(
    "check", epilog="Exit codes: 0 the tree has all classes, 3 some are missing, 2 it cannot be read."
)
def check_command(
    file: Annotated[str, typer.Argument(help="A .yaml, .json, .csv or Newick file, or `cifar100`.")],
    data: Annotated[
        str | None,
        typer.Option("--data", help="Data whose classes the tree should have, in any format that `train` accepts."),
    ] = None,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Show what is in a class tree, and which classes of DATA are missing from it."""
    from nearkin.cli.hierarchy import show_tree

    if not show_tree(file, data, data_root, not quiet):
        raise typer.Exit(EXIT_NO)


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

RunArgument = Annotated[
    Path, typer.Argument(help="A run directory written by `nearkin train`; or, with --data, a model file.")
]


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


app.command()(train)


@app.command()
def audit(
    run: RunArgument,
    data: Annotated[str | None, typer.Option("--data", help="Audit on this data instead of the run's.")] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", help="Suites, comma-separated; default: the recipe's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Report file; default: in the run directory.", dir_okay=False)
    ] = None,
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="Re-rank neighbours with average-query-expansion or k-reciprocal.")
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option(
            "--tree", help="Class tree for the hierarchy suite: a file or `cifar100`; default: the run's tree."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting of the audit, e.g. audit.severities=[5]; repeatable."),
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Also measure untrained features, for comparison.")] = True,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Measure a run's model on classes it has not seen; print a table, write the numbers and a report."""
    from nearkin.cli.audit import audit_command

    names = [name.strip() for name in suite.split(",")] if suite else None
    audit_command(
        run,
        data,
        names,
        out,
        rerank=rerank,
        tree=tree,
        overrides=overrides or [],
        baseline=baseline,
        skip_bad=skip_bad,
        data_root=data_root,
        progress=not quiet,
    )


app.command()(model.embed)
app.command()(model.shorten)
app.command()(model.export)
app.command()(model.explain)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Audited runs.")],
    metric: Annotated[str, typer.Option("--metric", help="The metric to compare.")] = "MAP@R",
    against: Annotated[
        Path | None, typer.Option("--against", help="The baseline run of the tests; default: the best run.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write an HTML page with pictures.", dir_okay=False)
    ] = None,
) -> None:
    """Compare audited runs, with intervals and paired tests over the classes they share."""
    from nearkin.cli.compare import compare_command

    compare_command(runs, metric, against, out)


@app.command()
def dynamics(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run trained by episodes.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also write a page (.html) or only its curves (.png).", dir_okay=False),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers as JSON.", dir_okay=False)] = None,
    from_step: Annotated[int | None, typer.Option("--from-step", min=0, help="First step to include.")] = None,
    to_step: Annotated[int | None, typer.Option("--to-step", min=0, help="Last step to include.")] = None,
) -> None:
    """Compare the training dynamics of two runs: how far updates moved the embeddings, and in which direction."""
    from nearkin.cli.compare import dynamics_command

    dynamics_command(first, second, out, json, (from_step, to_step))


@app.command()
def geometry(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Three or more runs audited with --suite geometry.")
    ],
    against: Annotated[
        str, typer.Option("--against", help="The metric to correlate the measures with, e.g. 'MC, input l2'.")
    ] = "MAP@R",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also write a page (.html) or only its picture (.png).", dir_okay=False),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers as JSON.", dir_okay=False)] = None,
) -> None:
    """Compare the embedding geometry of runs, and correlate its measures with a metric."""
    from nearkin.cli.geometry import geometry_command

    geometry_command(runs, against, out, json)


@app.command()
def benchmark(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    recipes: Annotated[str, typer.Option("--recipes", help="Names or YAML files of recipes, comma-separated.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for the results; an existing one is resumed.")],
    folds: Annotated[
        int | None, typer.Option("--folds", help="Class-disjoint folds of the training classes; default: 4.")
    ] = None,
    fold_order: Annotated[
        str | None,
        typer.Option(
            "--fold-order",
            help="contiguous: the sorted classes cut in order, as in the papers; random: drawn. Default: as the book "
            "has it; contiguous in a new one.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds.")] = 3,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="The baseline recipe, or pairs such as a:b,c:d; `untrained` means untrained features. Default: the "
            "first recipe.",
        ),
    ] = None,
    overrides: Overrides = None,
    protocol: Annotated[
        str, typer.Option("--protocol", help="fair, or conventional: select on the test classes, which is optimistic.")
    ] = "fair",
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the run directories of all models.")] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Models trained side by side, each in a process with one thread.")
    ] = 1,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Compare recipes fairly: class-disjoint folds, several seeds, paired tests, one table. Resumable."""
    from nearkin.cli.benchmark import benchmark_command

    benchmark_command(
        data,
        recipes,
        out,
        folds=folds,
        fold_order=fold_order,
        seeds=seeds,
        against=against,
        overrides=overrides or [],
        protocol=protocol,
        skip_bad=skip_bad,
        data_root=data_root,
        progress=not quiet,
        keep_runs=keep_runs,
        jobs=jobs,
    )


app.command()(demo)
app.command(cls=GalleryCommand, epilog=f"{EXIT_CODES}, 3 drift, with --fail-on-drift.")(drift)
app.command(cls=GalleryCommand, epilog=f"{EXIT_CODES}, 3 at least one query is unknown or undecided.")(query.identify)
app.command(cls=GalleryCommand, epilog=f"{EXIT_CODES}, 3 different or undecided.")(query.verify)
app.command(cls=GalleryCommand)(query.search)
app.command(cls=GalleryCommand)(query.classify)
app.command(cls=GalleryCommand)(serve.serve)
app.command(cls=GalleryCommand)(serve.key)


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
