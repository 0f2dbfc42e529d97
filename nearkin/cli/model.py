"""Commands on one trained model: `nearkin embed`, `shorten`, `reweight`, `export` and `explain`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.audit import data_of
from nearkin.cli.options import DATA_HELP, EXIT_NO, DataRoot, Engine, Quiet, RunOrModel, SkipBad, SkipUnreadable
from nearkin.cli.output import check_folder, show_notes, show_table
from nearkin.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from nearkin.data.dataset import Dataset
    from nearkin.models import Embedder
    from nearkin.models.bulk import ShardState
    from nearkin.models.onnx import Description

_SUFFIXES = (".parquet", ".npz", ".npy")

SCHEDULERS = {
    "SLURM_ARRAY_TASK_ID": "Slurm",
    "JOB_COMPLETION_INDEX": "Kubernetes",
    "AWS_BATCH_JOB_ARRAY_INDEX": "AWS Batch",
}
"""Environment variables with the array task number, counted from 0."""


def embed(
    run: Annotated[
        Path, typer.Argument(help="A run directory, a model file, or an .onnx file written by `nearkin export`.")
    ],
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    out: Annotated[
        str | None,
        typer.Option(
            help="A .parquet (path, label, embedding), .npz or .npy file; with --shards, a folder or URL. Default: "
            "embeddings.parquet, or with --shards the folder embeddings.",
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Split the data into this many shards, each a file in --out.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            help="Embed only this shard, counted from 0; `auto`: the array task number from Slurm, Kubernetes or AWS "
            "Batch. Default: all missing shards.",
        ),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Only show which shards are done; exit code 3 unless all are.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite shards made by another model or from other data.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Number of threads that read and decode.")] = 2,
    engine: Engine = "torch",
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Embed DATA with a run's model: into one file, or, for large data, into shards by any number of workers.

    Resumable: run the same command again. Interrupted shards continue, finished ones are skipped.
    """
    if shards is None and (shard is not None or status or overwrite):
        raise typer.BadParameter("--shard, --status and --overwrite require --shards.")
    from nearkin import api
    from nearkin.data.sources import open_data
    from nearkin.data.stores import is_url
    from nearkin.models.bulk import embed_shards, shard_states
    from nearkin.models.bulk.folders import check_shard
    from nearkin.models.engines import check_engine, make_encoder
    from nearkin.models.onnx import OnnxEncoder

    options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "progress": not quiet}
    if shards is None:
        file = Path(out or "embeddings.parquet")
        if is_url(str(out)) or file.suffix not in _SUFFIXES:
            raise DataError(
                f"Unknown file type {out}: use {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}, or write to a "
                "folder with --shards."
            )
        check_engine(engine)
        encoder = OnnxEncoder(run) if run.suffix == ".onnx" else make_encoder(api.load(run), engine)
        dataset, notes = api.open_readable(data, skip_bad=skip_bad, data_root=data_root, progress=not quiet)
        embeddings = encoder.encode(dataset, **options)
        write_embeddings(embeddings, dataset, file)
        show_notes(notes)
        print(f"Wrote {len(embeddings)} embeddings of {embeddings.shape[1]} dimensions: {file}")
        return
    folder = out or "embeddings"
    if Path(folder).suffix in _SUFFIXES:
        raise DataError(f"With --shards, --out must be a folder, not the file {folder}.")
    only = None if shard is None else [_shard_number(shard, os.environ)]
    check_engine(engine)
    for number in only or []:
        check_shard(number, shards)
    if run.suffix == ".onnx":
        raise DataError(f"--shards cannot use the ONNX export {run}: give the run, with --engine onnx.")
    model = api.load(run)
    dataset = open_data(data, data_root=data_root, progress=not quiet)
    if status:
        _show_shards(list(shard_states(model, dataset, folder, shards=shards)), only)
        return
    options |= {"encoder": make_encoder(model, engine), "name": api.source_name(data)}
    options |= {"skip_bad": skip_bad, "overwrite": overwrite}
    for report in embed_shards(model, dataset, folder, shards=shards, only=only, **options):
        if report.left_out:
            print(f"Note: {len(report.left_out)} unreadable items were skipped: {report.left_out[0]}, …")
        done = "Wrote" if report.written else "Skipped, already done:"
        print(f"{done} {report.rows} embeddings of {model.dimension} dimensions: {report.place}")


def write_embeddings(embeddings: np.ndarray, dataset: Dataset, out: Path) -> None:
    """Write vectors (n, d): Parquet and NPZ with path and label, NPY alone."""
    import numpy as np

    from nearkin.storage import replacing

    paths, labels = dataset.manifest.paths.astype(str), dataset.labels.astype(str)
    with replacing(out) as temporary:
        if out.suffix == ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1])
            table = pa.table({"path": pa.array(paths), "label": pa.array(labels), "embedding": vectors})
            parquet.write_table(table, temporary)
            return
        with open(temporary, "wb") as handle:
            if out.suffix == ".npz":
                np.savez(handle, embeddings=embeddings, labels=labels, paths=paths)
            else:
                np.save(handle, embeddings)


def _shard_number(text: str, environment: Mapping[str, str]) -> int:
    """The number of a shard, as given or, for "auto", from the scheduler."""
    if text != "auto":
        if not text.isascii() or not text.isdecimal():
            raise typer.BadParameter(f"--shard must be a number from 0, or auto, not {text!r}.")
        return int(text)
    found = {name: environment[name] for name in SCHEDULERS if environment.get(name)}
    if not found:
        raise DataError(f"--shard auto requires one of {', '.join(SCHEDULERS)} to be set: give a number.")
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name}={value}" for name, value in found.items())
        raise DataError(f"--shard auto is ambiguous ({told}): give a number.")
    (name, value), *_ = found.items()
    if not value.isascii() or not value.isdecimal():
        raise DataError(f"--shard auto found {name}={value!r}, which is not a number: give one.")
    return int(value)


def _show_shards(states: list[ShardState], only: list[int] | None) -> None:
    """Print the state of each shard; exit code 3 unless all are finished."""
    chosen = [state for state in states if only is None or state.shard in only]
    rows = [
        (state.shard, state.state, state.rows or None, len(state.left_out) or None, state.reason) for state in chosen
    ]
    show_table(("shard", "state", "embeddings", "left out", "why"), rows, numbers=("shard", "embeddings", "left out"))
    finished = sum(state.state == "finished" for state in chosen)
    print(f"{finished} of {len(chosen)} shards are finished, with {sum(state.rows for state in chosen)} embeddings.")
    if finished < len(chosen):
        raise typer.Exit(EXIT_NO)


_MODEL_SUFFIX = ".safetensors"


def shorten(
    run: RunOrModel,
    dimension: Annotated[int, typer.Option(help="Number of dimensions to keep.")],
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.", dir_okay=False)],
    method: Annotated[
        str,
        typer.Option(
            help="pca: principal components of the training items; prefix: the first dimensions, for models "
            "trained with objective.prefixes.",
        ),
    ] = "pca",
    data: Annotated[
        str | None, typer.Option(help="For pca: data with the training classes; default: the run's data.")
    ] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Write a copy of a run's model with shorter embeddings; `nearkin audit RUN --suite size` helps to choose one."""
    from nearkin import api

    _check_model_file(out, run)
    if method == "prefix" and data is not None:
        raise DataError("--method prefix takes no data: drop --data, or use --method pca.")
    model = api.load(run)
    shorter = api.shorten(
        model, dimension, method, data=data, skip_bad=skip_bad, data_root=data_root, progress=not quiet
    )
    shorter.save(out)
    facts = shorter.card.shortened or {}
    kept = ""
    if "kept" in facts:
        kept = (
            f", principal components that keep {100 * facts['kept']:.1f} % of the variance, fitted on "
            f"{facts['items']:,} {facts['fitted_on']}"
        )
    prefixes = model.card.recipe.get("objective", {}).get("prefixes", [])
    if method == "prefix" and dimension not in prefixes:
        print(f"Note: the model was not trained with a prefix of {dimension} dimensions; --method pca may be better.")
    print(f"Wrote a model of {dimension} of {model.dimension} dimensions{kept}: {out}")


def reweight(
    run: RunOrModel,
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.", dir_okay=False)],
    power: Annotated[
        str,
        typer.Option(
            help="How far directions are made alike: 0 centres only, 1 whitens, below 0 strengthens the strongest; "
            "auto: the best of 0 to 1 on the validation classes.",
        ),
    ] = "auto",
    data: Annotated[str | None, typer.Option(help="Data with the training classes; default: the run's data.")] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Write a copy of a run's model with its principal directions re-weighted; galleries take it by `rebuild`."""
    from nearkin import api

    _check_model_file(out, run)
    try:
        chosen: Any = power if power == "auto" else float(power)
    except ValueError:
        raise DataError(f"--power must be a number such as 0.5, or auto, not '{power}'.") from None
    changed = api.reweight(run, chosen, data=data, skip_bad=skip_bad, data_root=data_root, progress=not quiet)
    changed.save(out)
    facts = changed.card.reweighted or {}
    told = f"fitted on {facts['items']:,} {facts['fitted_on']}"
    if "chosen_on" in facts:
        told += (
            f", chosen by MAP@R of {facts['chosen_on']}: {100 * facts['MAP@R']:.1f} %, "
            f"{100 * facts['unchanged']:.1f} % before"
        )
    print(f"Wrote a model re-weighted by the power {facts['power']:g}, {told}: {out}")


def _check_model_file(out: Path, run: Path) -> None:
    """Refuse to write anything but a model file, or over the model that it is made from."""
    if out.suffix != _MODEL_SUFFIX:
        raise DataError(f"Unknown file type {out}: --out must end in {_MODEL_SUFFIX}.")
    if out.resolve() in (run.resolve(), (run / f"model{_MODEL_SUFFIX}").resolve()):
        raise DataError(f"--out {out} would overwrite the model it is made from: choose another file.")


def export(
    run: RunOrModel,
    out: Annotated[
        Path | None,
        typer.Option(help="The .onnx file to write; default: model.onnx or model.int8.onnx in the run directory."),
    ] = None,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Quantise to 8 bits, which is smaller and faster; the loss of accuracy is measured."
        ),
    ] = False,
    data: Annotated[
        str | None, typer.Option(help="With --int8: data for calibration and measurement; default: the run's data.")
    ] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Export a run's model to ONNX, for ONNX Runtime and other languages, and check that embeddings agree."""
    from nearkin import api
    from nearkin.models.onnx import export as export_onnx
    from nearkin.models.onnx.file import onnx_path, sidecar

    if data is not None and not int8:
        raise DataError("--data requires --int8: add it, or drop --data.")
    if out is None:  # in the run, or beside the model file
        stem = run / "model" if run.is_dir() else run.with_suffix("")
        out = stem.with_name(f"{stem.name}.int8.onnx" if int8 else f"{stem.name}.onnx")
    path = onnx_path(out)
    model = api.load(run)
    if int8:
        source, _ = data_of(run, model.card, data, skip_bad)
        description = _export_int8(model, path, str(source), skip_bad or data is None, data_root, not quiet)
    else:
        exported = export_onnx(model, path)
        print(f"Largest difference from the model's embeddings: {exported.difference:.1e}")
        description = exported.description
    if description.left_out is not None:
        print(f"Note: the file contains only the embedding, without {description.left_out}.")
    print(f"Wrote {path}, and its preprocessing: {sidecar(path)}")


def _export_int8(
    model: Embedder, path: Path, source: str, skip_bad: bool, data_root: Path | None, progress: bool
) -> Description:
    """Write the model in 8 bits, and print what that costs and gains."""
    from nearkin import api
    from nearkin.audits.quantisation import calibration_batches, compare_quantised, divide_for_int8
    from nearkin.models.onnx.file import check_parity, quantise, serialised, sidecar
    from nearkin.storage import replacing, write_json

    dataset, notes = api.open_readable(source, skip_bad=skip_bad, data_root=data_root, progress=progress)
    division = divide_for_int8(dataset, model.card)
    content, description = serialised(model)
    check_parity(model, content)
    small, told = quantise(content, description, calibration_batches(dataset, division, model))
    result = compare_quantised(model, (content, small), dataset, division, progress=progress)
    with replacing(path) as temporary:
        temporary.write_bytes(small)
    write_json(sidecar(path), {**told.to_dict(), "int8": result.to_dict()})
    show_notes([*notes, *result.notes])
    flags = " ".join(result.processor["flags"]) or "no flags known"
    print(f"MAP@R of {result.items:,} items of {result.classes} classes not used for calibration:")
    print(f"  float32 {result.float32:.4f}, int8 {result.int8:.4f}, difference {result.difference:+.4f}")
    print(f"  95 % interval of the difference, by classes: {result.low:+.4f} to {result.high:+.4f}")
    print(f"Speed: {result.speed:.2f} x float32 in ONNX Runtime ({result.processor['name']}; {flags})")
    print(f"Size: {result.int8_bytes / 1e6:.1f} MB instead of {result.float32_bytes / 1e6:.1f} MB")
    return told


_OVERVIEW = 24
"""Maximum number of images in the overview."""

_LETTERS = 80
"""Characters of an image's name in its overlay's name: file systems have a limit."""

_TOLD = {
    "attention": "the attention of each attended stage",
    "weights": "the weights of the pooling",
    "contribution": "the contribution of each position to the embedding",
}
"""What may be chosen by default."""


def explain(
    run: RunOrModel,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images, or folders of images.")],
    what: Annotated[
        str | None,
        typer.Option(
            help="attention: of each attended stage; weights: of the pooling; contribution: of each position to the "
            "embedding; grad-cam: by gradients of the channels; prototypes: the most similar one at each "
            "position. Default: attention or pooling weights if they vary, else contribution.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the pictures; default: explanations/RUN.")] = None,
    skip_bad: SkipUnreadable = False,
    quiet: Quiet = False,
) -> None:
    """Draw where a run's model looks: a heat map per image (for attention, per stage), and an overview."""
    from nearkin import api
    from nearkin.audits.explanation import by_image, common_scale, draw_overview
    from nearkin.models.explanations import explanations
    from nearkin.report.overlay import mark_png
    from nearkin.storage import replacing

    if out is None:
        whole = run.resolve()
        out = Path("explanations") / ((whole.name if whole.is_dir() else whole.stem) or "model")
    if what is not None:
        explanations.get(what)  # fails early
    for path in images:
        if not path.exists():
            raise DataError(f"No such image: {path}. Check the path.")
    check_folder(out)
    embedder = api.load(run)
    files, notes = _files_to_explain(images, out, skip_bad, not quiet)
    found = api.explain(embedder, files, what=what, progress=not quiet)
    kind = found[0].what
    show_notes(notes)
    if what is None:
        skipped = ["the attention is uniform"] if embedder.attention is not None and kind != "attention" else []
        if kind == "contribution":
            skipped.append("the pooling has no weights, or uniform ones")
        why = f", because {', and '.join(skipped)}" if skipped else ""
        print(f"Shown: {_TOLD[kind]} (--what {kind}){why}.")
    taken = {_key(file) for file in files}
    scale = common_scale(found)
    for one in found:
        stage = "" if one.stage is None else f"-{one.stage}"
        one.save(_free_name(out, f"{Path(one.name).stem[:_LETTERS]}-{kind}{stage}", taken), scale)
    explained = by_image(found)
    shown = explained[:_OVERVIEW]
    overview = _free_name(out, f"overview-{kind}", taken)
    with replacing(overview) as temporary:
        temporary.write_bytes(mark_png(draw_overview([one for maps in shown for one in maps])))
    written = f"{len(found)} overlay{'s' if len(found) > 1 else ''}"
    each = f", {len(shown[0])} of each image," if len(found) > len(explained) > 1 else ""
    some = f" of the first {len(shown)}" if len(shown) < len(explained) else ""
    print(f"Wrote {written}{each} to {out}; overview{some}: {overview}")


def _files_to_explain(
    images: Sequence[Path], out: Path, skip_bad: bool, progress: bool
) -> tuple[list[Path], list[str]]:
    """The files to explain, and notes on those that are skipped."""
    from nearkin.audits.explanation import list_images, readable_images

    listings = [list_images(path, out) for path in images]
    # A file given twice, or also through its folder, is drawn once.
    files = list({file.resolve(): file for listing in listings for file in listing.files}.values())
    notes = []
    if left_out := sum(listing.left_out for listing in listings):
        notes.append(f"{left_out} pictures made by explain, or in {out}, were skipped.")
    if skip_bad:
        whole = readable_images(files, progress)
        if len(whole) < len(files):
            notes.append(f"{len(files) - len(whole)} unreadable files were skipped.")
        files = whole
    return files, notes


def _free_name(folder: Path, stem: str, taken: set[str]) -> Path:
    """A PNG file named after the stem, numbered if that name is taken; it is taken from now on."""
    numbered = (folder / f"{stem}{'' if number == 1 else f'-{number}'}.png" for number in count(1))
    path = next(path for path in numbered if _key(path) not in taken)
    taken.add(_key(path))
    return path


def _key(path: Path) -> str:
    # Some file systems ignore case.
    return str(path.resolve()).casefold()
