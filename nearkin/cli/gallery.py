"""`nearkin gallery`: make a gallery, fill it, change it. Looking into one is in `gallery_views`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli import gallery_scale, gallery_views
from nearkin.cli.counting import counted
from nearkin.cli.exits import GalleryCommand
from nearkin.cli.gallery_options import (
    GalleryPath,
    IndexParameters,
    Items,
    Json,
    Labels,
    Model,
    Only,
    Parameters,
    Vectors,
    Where,
)
from nearkin.cli.gallery_scale import Index
from nearkin.cli.options import Engine, Quiet

if TYPE_CHECKING:
    from nearkin.gallery import Gallery

gallery_app = typer.Typer(
    help="A gallery of enrolled items: make one, fill it, change it, look into it. "
    "Ask it with `nearkin identify`, `verify` and `search`; put it on the network with `nearkin serve`.",
    no_args_is_help=True,
)

Facts = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="NAME=VALUE", help="A fact about the items; may be repeated."),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable files instead of stopping.")]


class Dtype(StrEnum):
    """How vectors are stored."""

    float32 = "float32"
    float16 = "float16"
    int8 = "int8"


class Missing(StrEnum):
    """What to do with items that cannot be read again."""

    error = "error"
    drop = "drop"


@gallery_app.command("create", cls=GalleryCommand)
def create(
    path: Annotated[
        str,
        typer.Argument(
            metavar="GALLERY",
            help="Where to make it: a directory, a Milvus Lite file (.db), or milvus://host:port/collection.",
        ),
    ],
    items: Items = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A run, a model file, or a pretrained backbone's name.")
    ] = None,
    dimension: Annotated[
        int | None, typer.Option("--dimension", min=1, help="Instead of a model: the size of vectors of your own.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What made these vectors, e.g. clip-vit-b32.")] = None,
    vectors: Vectors = None,
    labels: Labels = None,
    only: Only = None,
    space: Annotated[
        str | None, typer.Option("--space", help="How vectors of your own are compared; default: sphere (cosine).")
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="How vectors are stored.")] = Dtype.float32,
    index: Annotated[
        Index,
        typer.Option("--index", help="exact, hnsw (approximate), or auto: hnsw for large ones; the others in Milvus."),
    ] = Index.auto,
    index_parameters: IndexParameters = None,
    partition: Annotated[
        str | None,
        typer.Option("--partition-by", metavar="KEY", help="In Milvus: keep items apart by this fact of theirs."),
    ] = None,
    partitions: Annotated[int | None, typer.Option("--partitions", min=1, help="Into how many; default: 64.")] = None,
    engine: Engine = "torch",
    skip_bad: SkipBad = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a gallery of a model's embeddings, or of vectors of your own, and enrol ITEMS."""
    if (model is None) == (dimension is None):
        raise typer.BadParameter("Give --model, or --dimension for vectors of your own.", param_hint="--model")
    if vectors is not None and model is not None:
        raise typer.BadParameter("A gallery with a model makes its own vectors: leave one out.", param_hint="--vectors")
    from nearkin.cli.gallery_arguments import to_enrol, values_of
    from nearkin.gallery import Gallery

    given = to_enrol(items, vectors, labels, only, of_vectors=model is None)
    with Gallery.create(
        path,
        model,
        **given,
        dimension=dimension,
        name=name,
        space=space,
        dtype=dtype.value,
        index=index.value,
        index_parameters=values_of(index_parameters, "--index-param"),
        partition=partition,
        partitions=partitions,
        engine=engine,
        skip_bad=skip_bad,
        progress=not (quiet or as_json),
    ) as gallery:
        _report(gallery, as_json, f"Created {path}: {_size(gallery)}.", path=path)


@gallery_app.command("add", cls=GalleryCommand)
def add(
    path: GalleryPath,
    items: Items = None,
    vectors: Vectors = None,
    labels: Labels = None,
    only: Only = None,
    model: Model = None,
    engine: Engine = "torch",
    skip_bad: SkipBad = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add ITEMS with the labels they come with."""
    if items is None and vectors is None:
        raise typer.BadParameter("Say what to add: ITEMS or --vectors.", param_hint="ITEMS")
    from nearkin.cli.gallery_arguments import open_gallery, to_enrol

    with open_gallery(path, model, engine) as gallery:
        given = to_enrol(items, vectors, labels, only, of_vectors=gallery.settings.kind == "vector")
        ids = gallery.add(**given, skip_bad=skip_bad, progress=not (quiet or as_json))
        _report(gallery, as_json, f"Added {counted(len(ids), 'item')}; {_size(gallery)} now.", ids=ids)


@gallery_app.command("enrol", cls=GalleryCommand)
def enrol(
    path: GalleryPath,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="The class, new or known.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES", help="A handful of files; .npy files for a gallery of vectors.")
    ],
    facts: Facts = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Teach the gallery a class from a few files, without training."""
    from nearkin.cli.gallery_arguments import open_gallery, to_ask, values_of

    metadata = values_of(facts, "--metadata")
    with open_gallery(path, model) as gallery:
        given = to_ask(files, of_vectors=gallery.settings.kind == "vector")
        examples = given.items if given.vectors is None else given.vectors
        ids = gallery.enrol(label, examples, metadata=metadata or None)
        done = f"Enrolled {counted(len(ids), 'item')}; {_size(gallery)} now."
        _report(gallery, as_json, done, label=label, ids=ids)


@gallery_app.command("remove", cls=GalleryCommand)
def remove(
    path: GalleryPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="IDS", help="Ids of items.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="All items with this label.")] = None,
    where: Where = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Remove items by id, by label, or by what is known of them; given together, all of it must hold."""
    if not ids and label is None and where is None:
        raise typer.BadParameter("Say what to remove: IDS, --label or --where.", param_hint="IDS")
    from nearkin.cli.gallery_arguments import open_gallery, values_of

    chosen = {} if label is None else {"label": label}
    bound = values_of(parameters, "--param")
    with open_gallery(path) as gallery:
        named = set(ids or ())
        there = sum(id in gallery for id in named)
        removed = gallery.remove(ids or None, **chosen, where=where, parameters=bound or None)
        missing = f" {there} of {counted(len(named), 'id')} were in the gallery." if there < len(named) else ""
        done = f"Removed {counted(removed, 'item')}; {_size(gallery)} left.{missing}"
        _report(gallery, as_json, done, removed=removed)


@gallery_app.command("relabel", cls=GalleryCommand)
def relabel(
    path: GalleryPath,
    words: Annotated[list[str], typer.Argument(metavar="LABEL IDS", help="The right class, then ids of items.")],
    none: Annotated[bool, typer.Option("--none", help="Take their label away; LABEL is left out then.")] = False,
    as_json: Json = False,
) -> None:
    """Give items another label, or none."""
    label, ids = (None, words) if none else (words[0], words[1:])
    if not ids:
        raise typer.BadParameter("Say which items: LABEL, then their ids.", param_hint="LABEL IDS")
    from nearkin.cli.gallery_arguments import open_gallery

    with open_gallery(path) as gallery:
        for id in ids:
            gallery.get(id)
        changed = gallery.relabel(ids, label)
        _report(gallery, as_json, f"Relabelled {counted(changed, 'item')}.", label=label, relabelled=changed)


@gallery_app.command("rebuild", cls=GalleryCommand)
def rebuild(
    path: GalleryPath,
    model: Annotated[str, typer.Option("--model", help="The new model: a run, a model file, or a backbone's name.")],
    missing: Annotated[
        Missing,
        typer.Option("--missing", help="Items whose files are gone or damaged: stop with an error, or drop them."),
    ] = Missing.error,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed all items again with another model; the old vectors serve until the last new one is there."""
    from nearkin.cli.gallery_arguments import open_gallery

    with open_gallery(path) as gallery:
        before = len(gallery)
        gallery.rebuild(model, missing=missing.value, progress=not (quiet or as_json))
        dropped = before - len(gallery)
        lost = f", {dropped} dropped" if dropped else ""
        _report(
            gallery, as_json, f"Rebuilt {path} with {gallery.settings.name}: {_size(gallery)}{lost}.", dropped=dropped
        )


@gallery_app.command("recalibrate", cls=GalleryCommand)
def recalibrate(
    path: GalleryPath,
    accept: Annotated[
        float | None, typer.Option("--accept", help="Share of known queries to call known, between 0 and 1.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn probabilities and thresholds from the gallery again; otherwise done after it has grown by a tenth."""
    if accept is not None and not 0 < accept < 1:
        raise typer.BadParameter(f"{accept:g} is not between 0 and 1.", param_hint="--accept")
    from nearkin.cli.gallery_arguments import open_gallery

    with open_gallery(path) as gallery:
        calibration = gallery.recalibrate(accept=accept, progress=not (quiet or as_json))
    gallery_views.show_calibration(calibration, as_json=as_json)


def _size(gallery: Gallery) -> str:
    return f"{counted(len(gallery), 'item')} of {counted(len(gallery.stats().classes), 'class')}"


def _report(gallery: Gallery, as_json: bool, sentence: str, **facts: Any) -> None:
    """Say what was done: in a sentence, or as JSON with the number of items there are now."""
    from nearkin.cli.output import printable, show_json

    if as_json:
        show_json({**facts, "items": len(gallery)})
    else:
        print(printable(sentence))


gallery_app.command("import", cls=GalleryCommand)(gallery_scale.import_)
gallery_app.command("index", cls=GalleryCommand)(gallery_scale.index)
gallery_app.command("precision", cls=GalleryCommand)(gallery_scale.precision)
gallery_app.command("info", cls=GalleryCommand)(gallery_views.info)
gallery_app.command("items", cls=GalleryCommand)(gallery_views.items)
gallery_app.command("duplicates", cls=GalleryCommand)(gallery_views.duplicates)
gallery_app.command("suspects", cls=GalleryCommand)(gallery_views.suspects)
gallery_app.command("export", cls=GalleryCommand)(gallery_views.export)
