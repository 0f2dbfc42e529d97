"""`nearkin embed`: into one file, or in shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from nearkin import api
from nearkin.cli.exits import NO
from nearkin.cli.output import show_table
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.urls import is_url
from nearkin.errors import DataError
from nearkin.models.bulk import ShardState, embed_shards, shard_states
from nearkin.models.bulk.shards import check_shard
from nearkin.models.engines import check_engine, make_encoder
from nearkin.models.onnx import OnnxEncoder
from nearkin.storage import replacing

_SUFFIXES = (".parquet", ".npz", ".npy")

SCHEDULERS = {
    "SLURM_ARRAY_TASK_ID": "Slurm",
    "JOB_COMPLETION_INDEX": "Kubernetes",
    "AWS_BATCH_JOB_ARRAY_INDEX": "AWS Batch",
}
"""Where schedulers say which task of a job this is, counted from 0."""


@dataclass(frozen=True)
class Choices:
    """How to embed.

    Args:
        batch_size: items encoded at once.
        workers: threads that read and decode.
        engine: what runs the model.
        skip_bad: leave out files that cannot be read.
        data_root: where catalogue data is found.
        progress: draw bars.
    """

    batch_size: int
    workers: int
    engine: str
    skip_bad: bool
    data_root: Path | None
    progress: bool


@dataclass(frozen=True)
class Shards:
    """Which parts of how many.

    Args:
        count: how many there are.
        one: the only one to do, or "auto"; None: all.
        status: tell how far they are instead of doing them.
        overwrite: replace those of another model or other data.
    """

    count: int
    one: str | None
    status: bool
    overwrite: bool


def file_command(run: Path, data: str, out: str, choices: Choices) -> None:
    """Encode data and write the vectors into one file."""
    file = Path(out)
    if is_url(out) or file.suffix not in _SUFFIXES:
        raise DataError(
            f"{out} has an unknown ending: write to a {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} file, or into a "
            "folder with --shards."
        )
    check_engine(choices.engine)
    encoder = OnnxEncoder(run) if run.suffix == ".onnx" else make_encoder(api.load(run), choices.engine)
    dataset, notes = api.open_readable(
        data, skip_bad=choices.skip_bad, data_root=choices.data_root, progress=choices.progress
    )
    embeddings = encoder.encode(
        dataset, batch_size=choices.batch_size, workers=choices.workers, progress=choices.progress
    )
    write_embeddings(embeddings, dataset, file)
    for note in notes:
        print(f"Note: {note}")
    print(f"Wrote {len(embeddings)} embeddings of {embeddings.shape[1]} dimensions: {file}")


def shards_command(run: Path, data: str, out: str, choices: Choices, shards: Shards) -> None:
    """Encode some shards of the data, or tell how far they are."""
    if Path(out).suffix in _SUFFIXES:
        raise DataError(f"With --shards, --out is the folder of the parts, not a file such as {out}.")
    only = None if shards.one is None else [_number(shards.one, os.environ)]
    check_engine(choices.engine)
    for number in only or []:
        check_shard(number, shards.count)
    if run.suffix == ".onnx":
        raise DataError(
            f"Parts are tied to a model, which {run} is only a translation of: give the run, and --engine onnx."
        )
    model = api.load(run)
    dataset = open_data(data, data_root=choices.data_root, progress=choices.progress)
    if shards.status:
        _tell(list(shard_states(model, dataset, out, shards=shards.count)), only)
        return
    reports = embed_shards(
        model,
        dataset,
        out,
        shards=shards.count,
        only=only,
        encoder=make_encoder(model, choices.engine),
        name=api.source_name(data),
        batch_size=choices.batch_size,
        workers=choices.workers,
        skip_bad=choices.skip_bad,
        overwrite=shards.overwrite,
        progress=choices.progress,
    )
    for report in reports:
        if report.left_out:
            print(f"Note: {len(report.left_out)} items could not be read and were left out: {report.left_out[0]}, …")
        done = "Wrote" if report.written else "There already:"
        print(f"{done} {report.rows} embeddings of {model.dimension} dimensions: {report.place}")


def write_embeddings(embeddings: np.ndarray, dataset: Dataset, out: Path) -> None:
    """Write vectors (n, d): Parquet and NPZ with path and label, NPY alone."""
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


def _number(text: str, environment: Mapping[str, str]) -> int:
    """The number of a shard: as given, or, for "auto", what the scheduler says."""
    if text != "auto":
        if not text.isascii() or not text.isdecimal():
            raise typer.BadParameter(f"--shard is a number counted from 0, or auto, not {text!r}.")
        return int(text)
    found = {name: environment[name] for name in SCHEDULERS if environment.get(name)}
    if not found:
        raise DataError(f"--shard auto needs a scheduler that sets one of {', '.join(SCHEDULERS)}: give a number.")
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name}={value}" for name, value in found.items())
        raise DataError(f"--shard auto finds several numbers ({told}): give the one that is meant.")
    (name, value), *_ = found.items()
    if not value.isascii() or not value.isdecimal():
        raise DataError(f"--shard auto finds {name}={value!r}, which is no number: give one.")
    return int(value)


def _tell(states: list[ShardState], only: list[int] | None) -> None:
    """Print how far each shard is; the exit code tells whether all are finished."""
    chosen = [state for state in states if only is None or state.shard in only]
    rows = [
        (state.shard, state.state, state.rows or None, len(state.left_out) or None, state.reason) for state in chosen
    ]
    show_table(("shard", "state", "embeddings", "left out", "why"), rows, numbers=("shard", "embeddings", "left out"))
    finished = sum(state.state == "finished" for state in chosen)
    print(f"{finished} of {len(chosen)} shards are finished, with {sum(state.rows for state in chosen)} embeddings.")
    if finished < len(chosen):
        raise typer.Exit(NO)
