"""The `nearkin` command and its commands on models: train, audit, embed, shorten, explain, compare, geometry and more.

That on drift and those of the gallery come from their own files. Heavy imports wait until a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin._version import __version__
from nearkin.cli import classifying, drift, querying, serving
from nearkin.cli.data import data_app
from nearkin.cli.exits import CODES, GalleryCommand
from nearkin.cli.gallery import gallery_app
from nearkin.cli.hierarchy import hierarchy_app
from nearkin.cli.options import DataRoot, Engine, Quiet, SkipBad
from nearkin.cli.recipes import recipes_app

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
    Path, typer.Argument(help="A run directory, as `nearkin train` makes it; or, with --data, a model file.")
]
DATA_HELP = (
    "A folder with one folder per class, a CSV or Parquet manifest or its URL, a zip, a Hugging Face data set "
    "directory, or a catalogue name (see `nearkin data list`)."
)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def train(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    out: Annotated[Path, typer.Option("--out", help="Directory for the run.")],
    recipe: Annotated[str, typer.Option("--recipe", help="A recipe's name or YAML file.")] = "multi-similarity",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override, e.g. training.max_steps=200; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Train an embedding on some classes of DATA and keep the rest for the audit."""
    from nearkin.cli.training import train_command

    train_command(data, recipe, out, overrides or [], resume, skip_bad, data_root, not quiet)


@app.command()
def audit(
    run: RunArgument,
    data: Annotated[str | None, typer.Option("--data", help="Audit on this data instead of the run's own.")] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", help="Suites, comma-separated; default: the recipe's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Report file; default: in the run directory.", dir_okay=False)
    ] = None,
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="Re-rank neighbours: average-query-expansion or k-reciprocal.")
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option("--tree", help="Class tree of the suite hierarchy: a file or `cifar100`; default: the run's own."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override of the audit's settings, e.g. audit.severities=[5]; may be repeated."),
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Also measure untrained features for comparison.")] = True,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Measure a run's model on classes it has not seen; print the table, write numbers and report."""
    from nearkin.cli.auditing import audit_command

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


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(help="A run directory, a model file, or an .onnx file of `nearkin export`.")],
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="A .parquet (path, label, embedding), .npz or .npy file; with --shards a folder or its URL. Default: "
            "embeddings.parquet, or the folder embeddings.",
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, help="Divide the data into so many parts, each a file of --out.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            help="Embed this part alone, counted from 0, or `auto`: the task number that Slurm, Kubernetes or AWS "
            "Batch gives. Default: every part that is missing.",
        ),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Only tell which parts are there; exit code 3 unless all are.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace parts of another model or other data instead of refusing.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Items encoded at once.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Threads that read and decode.")] = 2,
    engine: Engine = "torch",
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Turn DATA into vectors with a run's model: into one file, or, of much data, into parts by any number of workers.

    A part that was interrupted goes on where it stopped, and one that is there is left alone: give the same command
    again.
    """
    from nearkin.cli import embedding

    choices = embedding.Choices(batch_size, workers, engine, skip_bad, data_root, not quiet)
    if shards is not None:
        embedding.shards_command(
            run, data, out or "embeddings", choices, embedding.Shards(shards, shard, status, overwrite)
        )
    elif shard is not None or status or overwrite:
        raise typer.BadParameter("--shard, --status and --overwrite are of parts: say of how many with --shards.")
    else:
        embedding.file_command(run, data, out or "embeddings.parquet", choices)


@app.command()
def shorten(
    run: Annotated[Path, typer.Argument(help="A run directory, or a model file.")],
    dimension: Annotated[int, typer.Option("--dimension", help="How many dimensions are left.")],
    out: Annotated[Path, typer.Option("--out", help="The .safetensors file of the shorter model.", dir_okay=False)],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="pca: principal components of the items that trained; prefix: the first dimensions, for models that "
            "were trained with objective.prefixes.",
        ),
    ] = "pca",
    data: Annotated[
        str | None, typer.Option("--data", help="For pca: data with the training classes; default: the run's own.")
    ] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Write a copy of a run's model that gives shorter embeddings; `nearkin audit RUN --suite size` tells how short."""
    from nearkin.cli.shortening import shorten_command

    shorten_command(run, dimension, out, method, data, skip_bad, data_root, not quiet)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run directory, or a model file.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="An .onnx file; default: model.onnx, or model.int8.onnx, in the run directory."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="In 8 bits: smaller and faster; what that costs is measured.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", help="With --int8: data to calibrate and to measure on; default: the run's own."),
    ] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Write a run's model as an ONNX file, for other languages and ONNX Runtime, and check that it gives the same."""
    from nearkin.cli.exporting import export_command

    export_command(run, out, int8, data, skip_bad, data_root, not quiet)


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="A run directory, or a model file.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images, or folders of images.")],
    what: Annotated[
        str | None,
        typer.Option(
            "--what",
            help="attention: of each attended stage; weights: the pooling's own; contribution: what each place adds to "
            "the embedding; grad-cam: where the channels are that it depends on; prototypes: which one each place is "
            "like. Default: attention if it differs between places, else such weights, else contribution.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory for the pictures; default: explanations/RUN.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out unreadable files instead of stopping.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Draw where a run's model looks: a heat map over each image, one a stage for attention, and an overview."""
    from nearkin.cli.explaining import explain_command

    explain_command(run, images, what, out, skip_bad, not quiet)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Audited runs.")],
    metric: Annotated[str, typer.Option("--metric", help="The metric to judge by.")] = "MAP@R",
    against: Annotated[
        Path | None, typer.Option("--against", help="The run the others are tested against; default: the best.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write a page with pictures.", dir_okay=False)] = None,
) -> None:
    """Put audited runs side by side, with intervals and paired tests over the classes they share."""
    from nearkin.cli.comparing import compare_command

    compare_command(runs, metric, against, out)


@app.command()
def dynamics(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run that was trained by episodes.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Also write a page with curves (.html), or the curves alone (.png).", dir_okay=False
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers.", dir_okay=False)] = None,
    from_step: Annotated[int | None, typer.Option("--from-step", min=0, help="The first step to count.")] = None,
    to_step: Annotated[int | None, typer.Option("--to-step", min=0, help="The last step to count.")] = None,
) -> None:
    """Compare how two runs learned: did their updates move the points, or only scale them, and which way."""
    from nearkin.cli.dynamics import dynamics_command

    dynamics_command(first, second, out, json, (from_step, to_step))


@app.command()
def geometry(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Three or more runs with a geometry audit.")],
    against: Annotated[
        str, typer.Option("--against", help="The metric that measures are correlated with, such as 'MC, input l2'.")
    ] = "MAP@R",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Also write a page with a picture (.html), or the picture alone (.png).", dir_okay=False
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers.", dir_okay=False)] = None,
) -> None:
    """Put the embedding geometry of runs side by side, and tell which measures go with a metric over these runs."""
    from nearkin.cli.geometry import geometry_command

    geometry_command(runs, against, out, json)


@app.command()
def benchmark(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    recipes: Annotated[str, typer.Option("--recipes", help="Recipes' names or YAML files, comma-separated.")],
    out: Annotated[Path, typer.Option("--out", help="Directory of the results; one that exists goes on.")],
    folds: Annotated[
        int | None, typer.Option("--folds", help="Class-disjoint folds of the training classes; default: 4.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds to train with.")] = 3,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="The recipe the others are tested against, or pairs such as a:b,c:d; `untrained` stands for untrained "
            "features. Default: the first recipe.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override in all recipes, e.g. training.max_steps=200; repeatable."),
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", help="fair, or conventional: select on the test classes, which is optimistic.")
    ] = "fair",
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the run directory of every model.")] = False,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Compare recipes fairly: class-disjoint folds, several seeds, paired tests, one table. Stopped, it can go on."""
    from nearkin.cli.benchmarking import benchmark_command

    benchmark_command(
        data,
        recipes,
        out,
        folds=folds,
        seeds=seeds,
        against=against,
        overrides=overrides or [],
        protocol=protocol,
        skip_bad=skip_bad,
        data_root=data_root,
        progress=not quiet,
        keep_runs=keep_runs,
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for the run.")] = Path("runs/demo"),
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Fetch a small real data set, train on some of its classes, prove it on classes it has not seen."""
    from nearkin.cli.demo import demo_command

    demo_command(out, data_root, not quiet)


app.command(cls=GalleryCommand, epilog=f"{CODES}, 3 with --fail-on-drift, if it drifted.")(drift.drift)
app.command(cls=GalleryCommand, epilog=f"{CODES}, 3 at least one query is unknown, or that cannot be said.")(
    querying.identify
)
app.command(cls=GalleryCommand, epilog=f"{CODES}, 3 not the same, or that cannot be said.")(querying.verify)
app.command(cls=GalleryCommand)(querying.search)
app.command(cls=GalleryCommand)(classifying.classify)
app.command(cls=GalleryCommand)(serving.serve)
app.command(cls=GalleryCommand)(serving.key)
