"""`nearkin gallery import`, `index` and `precision`: what large galleries need."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.counting import counted
from nearkin.cli.gallery_options import GalleryPath, IndexParameters, Json, Labels
from nearkin.cli.options import Quiet

if TYPE_CHECKING:
    from nearkin.gallery.precision import Change


class Index(StrEnum):
    """How a gallery is searched."""

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
            metavar="IN.parquet", help="What `nearkin gallery export` or `nearkin embed` wrote: files or folders."
        ),
    ],
    id_column: Annotated[
        str | None, typer.Option("--id-column", help="The column that names the items; default: id.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Write everything again, also what an import that was cut off has written.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add items with their vectors as they are; ids that exist are replaced. Cut off, the same command goes on."""
    from nearkin.cli.gallery_arguments import open_gallery
    from nearkin.cli.output import show_json

    with open_gallery(path) as gallery:
        done = gallery.import_files(files, id_column=id_column, anew=anew, progress=not (quiet or as_json))
    if as_json:
        show_json({"imported": done.rows, "resumed": done.resumed, "replaced": done.replaced, "items": done.items})
        return
    before = f", {done.resumed:,} of them before it was cut off" if done.resumed else ""
    again = f" {counted(done.replaced, 'item')} had been there and were replaced." if done.replaced else ""
    print(f"Imported {counted(done.rows, 'item')}{before}; {counted(done.items, 'item')} now.{again}")


def index(
    path: GalleryPath,
    wanted: Annotated[Index, typer.Argument(metavar="INDEX", help="How to search it from now on.")],
    parameters: IndexParameters = None,
    as_json: Json = False,
) -> None:
    """Have a gallery searched by another index: auto, exact or hnsw, in Milvus also others."""
    from nearkin.cli.gallery_arguments import open_gallery, values_of
    from nearkin.cli.output import printable, show_json

    with open_gallery(path) as gallery:
        gallery.set_index(wanted.value, values_of(parameters, "--index-param"))
        words = gallery.store.layout.in_words()
    if as_json:
        show_json({"path": path, "index": words})
    else:
        print(printable(f"{path} is searched by {words} from now on."))


def precision(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Vectors in float32: a gallery, Parquet files or their folder, or a .npy."
        ),
    ],
    labels: Labels = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Which forms, with commas.")] = "float16,int8",
    space: Annotated[
        str, typer.Option("--space", help="How the vectors of a file are compared; a gallery knows itself.")
    ] = "sphere",
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="How many items to ask for their neighbours.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Which ones.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what storing vectors in a smaller form costs: recall of the true neighbours, MAP@R and P@1, and bytes."""
    from nearkin.cli.output import show_json, show_table
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
    rows = [
        (one.dtype, one.bytes, *(f"{one.recall[k]:.4f}" for k in NEIGHBOURS), *_cells(one.metrics)) for one in found
    ]
    show_table(columns, rows, numbers=columns[1:])
    print(f" {found[0].queries:,} queries among {counted(found[0].items, 'item')}")


def _cells(metrics: dict[str, Change]) -> list[str]:
    texts = (
        (f"{one.value:.4f}", f"{one.difference:+.4f} ({one.low:+.4f} to {one.high:+.4f})") for one in metrics.values()
    )
    return [text for pair in texts for text in pair]


def _vectors(source: str, labels: Path | None, space: str) -> tuple[Any, Any, Any]:
    """Vectors (n, d), their labels and their space."""
    from nearkin.cli.own_vectors import read_labelled, read_tables
    from nearkin.gallery.places import is_gallery_place

    if source.endswith(".npy"):
        given = read_labelled(Path(source), labels)
        return given["items"], given.get("labels"), space
    if labels is not None:
        raise typer.BadParameter("It says what the vectors of a .npy file are.", param_hint="--labels")
    if is_gallery_place(source):
        return _of_gallery(source)
    return *read_tables(source), space


def _of_gallery(path: str) -> tuple[Any, Any, Any]:
    import numpy as np

    from nearkin.cli.gallery_arguments import open_gallery
    from nearkin.errors import DataError

    with open_gallery(path) as gallery:
        if gallery.settings.dtype != "float32":
            raise DataError(
                f"{path} keeps its vectors as {gallery.settings.dtype}, and what they were before is gone: give the "
                "vectors that went into it."
            )
        parts = list(gallery.store.batches())
        if not parts:
            raise DataError(f"{path} has no items to compare.")
        names = [item.label for items, _ in parts for item in items]
        return np.concatenate([rows for _, rows in parts]), names, gallery.space
