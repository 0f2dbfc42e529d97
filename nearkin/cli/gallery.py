"""`nearkin gallery`: create, fill, change and inspect a gallery."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin
from nearkin.cli import gallery_storage
from nearkin.cli.gallery_storage import Index, count_text
from nearkin.cli.options import (
    Engine,
    GalleryCommand,
    GalleryPath,
    IndexParameters,
    Items,
    Json,
    Labels,
    Limit,
    Model,
    Only,
    Parameters,
    Quiet,
    SkipUnreadable,
    Vectors,
    Where,
    parse_assignments,
)
from nearkin.cli.output import in_words, percent, printable, show_facts, show_json, show_notes, show_table

if TYPE_CHECKING:
    from nearkin.gallery import Gallery
    from nearkin.gallery.calibration import Calibration
    from nearkin.gallery.values import Stats


gallery_app = typer.Typer(
    help="Galleries of enrolled items: create, fill, change and inspect one. "
    "Query it with `nearkin identify`, `verify` and `search`; serve it with `nearkin serve`.",
    no_args_is_help=True,
)

Facts = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="NAME=VALUE", help="Metadata of the items; repeatable."),
]


Dtype = StrEnum("Dtype", ["float32", "float16", "int8"])
Missing = StrEnum("Missing", ["error", "drop"])
_CLASSES_SHOWN = 10
_RATES = (0.01, 0.001)


@gallery_app.command("create", cls=GalleryCommand)
def create(
    path: Annotated[
        str,
        typer.Argument(
            metavar="GALLERY",
            help="Where to create it: a directory, a Milvus Lite file (.db), or milvus://host:port/collection.",
        ),
    ],
    items: Items = None,
    model: Annotated[str | None, typer.Option(help="A run, a model file, or a pretrained backbone's name.")] = None,
    dimension: Annotated[
        int | None, typer.Option(min=1, help="For your own vectors, instead of --model: their dimension.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="For your own vectors: the name of their model, e.g. clip-vit-b32.")
    ] = None,
    vectors: Vectors = None,
    labels: Labels = None,
    only: Only = None,
    space: Annotated[
        str | None, typer.Option(help="For your own vectors: how they are compared; default: sphere (cosine).")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="How vectors are stored.")] = Dtype.float32,
    index: Annotated[
        Index,
        typer.Option(help="exact, hnsw (approximate), or auto: hnsw for large galleries. The others require Milvus."),
    ] = Index.auto,
    index_parameters: IndexParameters = None,
    partition: Annotated[
        str | None,
        typer.Option("--partition-by", metavar="KEY", help="Milvus only: partition items by this metadata key."),
    ] = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="Number of partitions; default: 64.")] = None,
    engine: Engine = "torch",
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="SCORE",
            help="For a model with a learned similarity: compare by sim, cosine, cosine+sim or raw-sum; default: what "
            "the model's validation found best on unseen classes.",
        ),
    ] = None,
    skip_bad: SkipUnreadable = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Create a gallery of a model's embeddings, or of your own vectors, and add ITEMS."""
    if (model is None) == (dimension is None):
        raise typer.BadParameter("Give either --model, or --dimension for your own vectors.", param_hint="--model")
    if vectors is not None and model is not None:
        raise typer.BadParameter("--vectors and --model exclude each other: drop one of them.", param_hint="--vectors")
    from nearkin.cli.gallery_input import items_to_add

    given = items_to_add(items, vectors, labels, only, of_vectors=model is None)
    with nearkin.Gallery.create(
        path,
        model,
        **given,
        dimension=dimension,
        name=name,
        space=space,
        dtype=dtype.value,
        index=index.value,
        index_parameters=parse_assignments(index_parameters, "--index-param"),
        partition=partition,
        partitions=partitions,
        engine=engine,
        skip_bad=skip_bad,
        progress=not (quiet or as_json),
        compare=compare,
    ) as gallery:
        _report(gallery, as_json, f"Created {path}: {_size(gallery)}.", path=path)
        if gallery.comparison and not as_json:
            print(gallery.comparison)


@gallery_app.command("add", cls=GalleryCommand)
def add(
    path: GalleryPath,
    items: Items = None,
    vectors: Vectors = None,
    labels: Labels = None,
    only: Only = None,
    model: Model = None,
    engine: Engine = "torch",
    skip_bad: SkipUnreadable = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add ITEMS with their labels."""
    if items is None and vectors is None:
        raise typer.BadParameter("Nothing to add: give ITEMS or --vectors.", param_hint="ITEMS")
    from nearkin.cli.gallery_input import items_to_add

    with nearkin.Gallery.open(path, model, engine=engine) as gallery:
        given = items_to_add(items, vectors, labels, only, of_vectors=gallery.settings.kind == "vector")
        ids = gallery.add(**given, skip_bad=skip_bad, progress=not (quiet or as_json))
        _report(gallery, as_json, f"Added {count_text(len(ids), 'item')}; {_size(gallery)} now.", ids=ids)


@gallery_app.command("enrol", cls=GalleryCommand)
def enrol(
    path: GalleryPath,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="The class, new or known.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES", help="A few files; .npy files for a gallery of vectors.")
    ],
    facts: Facts = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Add a class from a few files, without training."""
    from nearkin.cli.gallery_input import queries_from

    metadata = parse_assignments(facts, "--metadata")
    with nearkin.Gallery.open(path, model) as gallery:
        _, examples = queries_from(files, of_vectors=gallery.settings.kind == "vector")
        ids = gallery.enrol(label, examples, metadata=metadata or None)
        done = f"Enrolled {count_text(len(ids), 'item')}; {_size(gallery)} now."
        _report(gallery, as_json, done, label=label, ids=ids)


@gallery_app.command("remove", cls=GalleryCommand)
def remove(
    path: GalleryPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="IDS", help="Ids of items.")] = None,
    label: Annotated[str | None, typer.Option(help="All items with this label.")] = None,
    where: Where = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Remove items by id, label or condition; if several are given, items must match all of them."""
    if not ids and label is None and where is None:
        raise typer.BadParameter("Nothing to remove: give IDS, --label or --where.", param_hint="IDS")
    chosen = {} if label is None else {"label": label}
    bound = parse_assignments(parameters, "--param")
    with nearkin.Gallery.open(path) as gallery:
        named = set(ids or ())
        there = sum(id in gallery for id in named)
        removed = gallery.remove(ids or None, **chosen, where=where, parameters=bound or None)
        missing = f" {there} of {count_text(len(named), 'id')} were in the gallery." if there < len(named) else ""
        done = f"Removed {count_text(removed, 'item')}; {_size(gallery)} left.{missing}"
        _report(gallery, as_json, done, removed=removed)


@gallery_app.command("relabel", cls=GalleryCommand)
def relabel(
    path: GalleryPath,
    words: Annotated[
        list[str], typer.Argument(metavar="LABEL IDS", help="The correct label, then the ids of the items.")
    ],
    none: Annotated[bool, typer.Option("--none", help="Remove the label; omit LABEL then.")] = False,
    as_json: Json = False,
) -> None:
    """Change or remove the label of items."""
    label, ids = (None, words) if none else (words[0], words[1:])
    if not ids:
        raise typer.BadParameter("Nothing to relabel: give LABEL, then the ids of the items.", param_hint="LABEL IDS")
    with nearkin.Gallery.open(path) as gallery:
        for id in ids:
            gallery.get(id)
        changed = gallery.relabel(ids, label)
        _report(gallery, as_json, f"Relabelled {count_text(changed, 'item')}.", label=label, relabelled=changed)


@gallery_app.command("rebuild", cls=GalleryCommand)
def rebuild(
    path: GalleryPath,
    model: Annotated[str, typer.Option(help="The new model: a run, a model file, or a backbone's name.")],
    missing: Annotated[
        Missing, typer.Option(help="Items whose files are missing or damaged: stop with an error, or drop them.")
    ] = Missing.error,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed all items again with another model; the old vectors are used until all new ones are ready."""
    with nearkin.Gallery.open(path) as gallery:
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
        float | None,
        typer.Option(help="Share of queries of enrolled classes that are not to count as unknown, between 0 and 1."),
    ] = None,
    strangers: Annotated[
        float | None,
        typer.Option(help="Largest share of queries of other classes that may count as known, up to 1."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recalibrate probabilities and thresholds now; this is otherwise done when the gallery has grown by a tenth."""
    if accept is not None and not 0 < accept < 1:
        raise typer.BadParameter(f"{accept:g} is not between 0 and 1.", param_hint="--accept")
    if strangers is not None and not 0 < strangers <= 1:
        raise typer.BadParameter(f"{strangers:g} is not above 0 and at most 1.", param_hint="--strangers")
    with nearkin.Gallery.open(path) as gallery:
        calibration = gallery.recalibrate(accept=accept, strangers=strangers, progress=not (quiet or as_json))
    if as_json:
        show_json(calibration.to_dict())
        return
    show_facts(_learned(calibration))
    show_notes(calibration.notes)


def _size(gallery: Gallery) -> str:
    return f"{count_text(len(gallery), 'item')} of {count_text(len(gallery.stats().classes), 'class')}"


def _report(gallery: Gallery, as_json: bool, sentence: str, **facts: Any) -> None:
    """Print what was done, as a sentence, or as JSON with the new number of items."""
    if as_json:
        show_json({**facts, "items": len(gallery)})
    else:
        print(printable(sentence))


@gallery_app.command("info", cls=GalleryCommand)
def info(path: GalleryPath, as_json: Json = False) -> None:
    """Show a gallery's contents, model and calibration."""
    with nearkin.Gallery.open(path) as gallery:
        stats, calibration, compared = gallery.stats(), gallery.calibration, gallery.comparison
        of_input = "" if gallery.encoder is None else gallery.encoder.spec.note
    if as_json:
        show_json({"path": path, **vars(stats), **({} if compared is None else {"comparison": compared})})
        return
    show_facts({"gallery": path, **_facts(stats), **({} if calibration is None else _learned(calibration))})
    show_notes([*stats.notes, *filter(None, [compared, of_input])])
    shown = list(islice(stats.classes.items(), _CLASSES_SHOWN))
    if shown:
        print()
        show_table(("class", "items"), shown, numbers=("items",))
    if len(stats.classes) > len(shown):
        print(f" and {len(stats.classes) - len(shown):,} more; use --json to see all")


@gallery_app.command("items", cls=GalleryCommand)
def items(
    path: GalleryPath,
    where: Where = None,
    parameters: Parameters = None,
    limit: Limit = 100,
    after: Annotated[str | None, typer.Option(help="Continue after this id, the last one shown.")] = None,
    as_json: Json = False,
) -> None:
    """List items, one page at a time."""
    bound = parse_assignments(parameters, "--param")
    with nearkin.Gallery.open(path) as gallery:
        page = gallery.items(after=after, limit=limit, where=where, parameters=bound or None)
    following = page[-1].id if len(page) == limit else None
    if as_json:
        show_json({"items": page, "next": following})
        return
    rows = [(item.id, item.label, in_words(item.metadata), item.source, item.added) for item in page]
    show_table(("id", "label", "metadata", "source", "added"), rows)
    if following is not None:
        print(f" next page: --after {following}")


@gallery_app.command("duplicates", cls=GalleryCommand)
def duplicates(
    path: GalleryPath,
    distance: Annotated[
        float | None, typer.Option(min=0.0, help="Maximum distance; default: chosen automatically.")
    ] = None,
    limit: Limit = 100,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List groups of near duplicates."""
    with nearkin.Gallery.open(path) as gallery:
        groups = gallery.find_duplicates(distance, limit=limit, progress=not (quiet or as_json))
    if as_json:
        show_json({"duplicates": groups})
        return
    if not groups:
        print("No duplicates.")
        return
    rows = [
        (number, f"{group.distance:.4f}", item.id, item.label, item.source)
        for number, group in enumerate(groups, 1)
        for item in group.items
    ]
    show_table(("group", "distance", "id", "label", "source"), rows, numbers=("group", "distance"))


@gallery_app.command("suspects", cls=GalleryCommand)
def suspects(path: GalleryPath, limit: Limit = 100, as_json: Json = False, quiet: Quiet = False) -> None:
    """List items whose neighbours suggest another label, most suspicious first."""
    with nearkin.Gallery.open(path) as gallery:
        found = gallery.suspicious_labels(limit=limit, progress=not (quiet or as_json))
    if as_json:
        show_json({"suspects": found})
        return
    if not found:
        print("No suspicious labels.")
        return
    rows = [
        (one.item.id, one.item.label, percent(one.own), one.suggested, percent(one.probability), one.item.source)
        for one in found
    ]
    columns = ("id", "label", "its probability", "suggested", "probability", "source")
    show_table(columns, rows, numbers=("its probability", "probability"))


@gallery_app.command("export", cls=GalleryCommand)
def export(
    path: GalleryPath,
    file: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="The file to write.")],
    as_json: Json = False,
) -> None:
    """Export all items and their vectors to one Parquet file."""
    with nearkin.Gallery.open(path) as gallery:
        count = gallery.export(file)
    if as_json:
        show_json({"exported": count, "path": str(file)})
    else:
        print(f"Wrote {count_text(count, 'item')}: {file}")


def _learned(calibration: Calibration) -> dict[str, object]:
    """A calibration in words, or why there is none."""
    named, horizon = calibration.identification, calibration.horizon
    facts: dict[str, object] = {"calibrated on": count_text(calibration.items, "item")}
    facts["identify"] = named.reason or (
        f"{100 * (named.accuracy or 0):.1f} % of {named.items:,} left-out items are correct; "
        f"calibration error (ECE) {100 * (named.ece or 0):.1f} points; fitted {named.fitted_by}"
    )
    facts["unknown"] = horizon.reason or (
        f"beyond a distance of {horizon.threshold:.4f}; {100 * calibration.accept:g} % of queries of enrolled classes "
        "lie within"
        + ("" if horizon.rejected is None else f", and about {100 - 100 * horizon.rejected:.1f} % of others")
    )
    if horizon.forecast is not None and horizon.line is not None:
        facts["known"] = (
            f"by {horizon.score}: about {percent(horizon.forecast.enrolled_known)} of queries of enrolled classes, "
            f"{percent(horizon.forecast.named_known)} of those named rightly, and "
            f"{percent(horizon.forecast.strangers_known)} of others (at most {percent(horizon.strangers)}); between "
            "known and unknown it cannot be told"
        )
    for rate in _RATES:
        ruling = calibration.judge(0.0, rate)
        facts[f"same at {rate:g}"] = ruling.reason or (
            f"up to a distance of {ruling.threshold:.4f}, which accepts "
            f"{100 * (ruling.true_accept_rate or 0):.1f} % of pairs of one class"
        )
    return facts


def _facts(stats: Stats) -> dict[str, object]:
    from nearkin.gallery.model import space_in_words

    settings = stats.settings
    return {
        "made by": settings.name + (f" (model {settings.fingerprint[:12]})" if settings.fingerprint else ""),
        "items": f"{stats.items:,} of {count_text(len(stats.classes), 'class')}"
        + (f", {stats.unlabelled:,} without a label" if stats.unlabelled else ""),
        "vectors": f"{settings.dimension} x {settings.dtype}, {space_in_words(settings.space)}",
        "kind": settings.kind,
        "search": stats.index,
        "index": stats.layout,
        "size": None if stats.size is None else f"{stats.size / 1e6:,.1f} MB",
        "writes": stats.generation,
    }


gallery_app.command("import", cls=GalleryCommand)(gallery_storage.import_)
gallery_app.command("index", cls=GalleryCommand)(gallery_storage.index)
gallery_app.command("precision", cls=GalleryCommand)(gallery_storage.precision)
