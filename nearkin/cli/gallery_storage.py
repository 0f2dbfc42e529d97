"""`nearkin gallery import`, `index` and `precision`, for large galleries."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import nearkin
from nearkin.cli.options import GalleryPath, IndexParameters, Json, Labels, Quiet, parse_assignments
from nearkin.cli.output import printable, show_json, show_table
from nearkin.errors import DataError


def count_text(number: int, thing: str) -> str:
    """A count with its noun: "1 item", "2,000 items", "3 classes"."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing}{'es' if thing.endswith('s') else 's'}"


class Index(StrEnum):
    """Index of a gallery."""

    auto = "auto"
    exact = "exact"
    hnsw = "hnsw"
    hnsw_sq8 = "hnsw-sq8"
    ivf_flat = "ivf-flat"
    ivf_sq8 = "ivf-sq8"
    ivf_pq = "ivf-pq"
    diskann = "diskann"


def import_(
    path: GalleryPath,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="IN.parquet", help="Files or folders written by `nearkin gallery export` or `nearkin embed`."
        ),
    ],
    id_column: Annotated[str | None, typer.Option(help="The column with the item ids; default: id.")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Start over instead of resuming an interrupted import.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Import items with their vectors; existing ids are replaced. Resumable: run the same command again."""
    with nearkin.Gallery.open(path) as gallery:
        done = gallery.import_files(files, id_column=id_column, anew=anew, progress=not (quiet or as_json))
    if as_json:
        show_json({"imported": done.rows, "resumed": done.resumed, "replaced": done.replaced, "items": done.items})
        return
    before = f", {done.resumed:,} of them before the interruption" if done.resumed else ""
    again = f" {count_text(done.replaced, 'item')} replaced." if done.replaced else ""
    print(f"Imported {count_text(done.rows, 'item')}{before}; {count_text(done.items, 'item')} now.{again}")


def index(
    path: GalleryPath,
    wanted: Annotated[Index, typer.Argument(metavar="INDEX", help="The new index.")],
    parameters: IndexParameters = None,
    as_json: Json = False,
) -> None:
    """Change a gallery's index: auto, exact or hnsw; more in Milvus."""
    with nearkin.Gallery.open(path) as gallery:
        gallery.set_index(wanted.value, parse_assignments(parameters, "--index-param"))
        words = gallery.store.layout.in_words()
    if as_json:
        show_json({"path": path, "index": words})
    else:
        print(printable(f"{path} now uses {words}."))


def precision(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Vectors in float32: a gallery, Parquet files or a folder of them, or a .npy file."
        ),
    ],
    labels: Labels = None,
    dtype: Annotated[str, typer.Option(help="Data types to compare, comma-separated.")] = "float16,int8",
    space: Annotated[
        str, typer.Option(help="How the vectors of a file are compared; ignored for a gallery.")
    ] = "sphere",
    queries: Annotated[int, typer.Option(min=1, help="Number of queries.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the choice of queries.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what smaller data types cost: recall of the true neighbours, MAP@R and P@1, and bytes."""
    from nearkin.gallery.precision import NEIGHBOURS, precision_loss

    vectors, names, where = _vectors(source, labels, space)
    forms = [part.strip() for part in dtype.split(",") if part.strip()]
    found = precision_loss(
        vectors, names, space=where, dtypes=forms, queries=queries, seed=seed, progress=not (quiet or as_json)
    )
    if as_json:
        show_json({"precision": found})
        return
    measured = list(found[0].metrics)
    columns = ["stored as", "bytes", *(f"recall@{k}" for k in NEIGHBOURS)]
    columns += [title for name in measured for title in (name, f"change of {name} (95 %)")]
    rows: list[list[object]] = [[one.dtype, one.bytes, *(f"{one.recall[k]:.4f}" for k in NEIGHBOURS)] for one in found]
    for row, one in zip(rows, found, strict=True):
        for change in one.metrics.values():
            row += [f"{change.value:.4f}", f"{change.difference:+.4f} ({change.low:+.4f} to {change.high:+.4f})"]
    show_table(columns, rows, numbers=columns[1:])
    print(f" {found[0].queries:,} queries among {count_text(found[0].items, 'item')}")


def _vectors(source: str, labels: Path | None, space: str) -> tuple[Any, Any, Any]:
    """Vectors (n, d), their labels and their space."""
    from nearkin.cli.gallery_input import read_labelled, read_tables
    from nearkin.gallery.places import is_gallery_place

    if source.endswith(".npy"):
        given = read_labelled(Path(source), labels)
        return given["items"], given.get("labels"), space
    if labels is not None:
        raise typer.BadParameter("--labels requires a .npy file as SOURCE.", param_hint="--labels")
    if not is_gallery_place(source):
        return *read_tables(source), space
    import numpy as np

    with nearkin.Gallery.open(source) as gallery:
        if gallery.settings.dtype != "float32":
            raise DataError(
                f"{source} stores its vectors as {gallery.settings.dtype}, not float32: give the original vectors."
            )
        parts = list(gallery.store.batches())
        if not parts:
            raise DataError(f"{source} has no items to compare.")
        names = [item.label for items, _ in parts for item in items]
        return np.concatenate([rows for _, rows in parts]), names, gallery.space
