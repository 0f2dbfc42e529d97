"""`nearkin gallery info`, `items`, `duplicates`, `suspects` and `export`: look into a gallery, change nothing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.counting import counted
from nearkin.cli.gallery_options import GalleryPath, Json, Limit, Parameters, Where
from nearkin.cli.options import Quiet

if TYPE_CHECKING:
    from nearkin.gallery.calibration import Calibration
    from nearkin.gallery.values import Stats

_CLASSES_SHOWN = 10
_RATES = (0.01, 0.001)


def info(path: GalleryPath, as_json: Json = False) -> None:
    """Say what is in a gallery, what it is tied to, and what it learned of itself."""
    from nearkin.cli.gallery_arguments import open_gallery
    from nearkin.cli.output import show_facts, show_json, show_table

    with open_gallery(path) as gallery:
        stats, calibration = gallery.stats(), gallery.calibration
    if as_json:
        show_json({"path": path, **vars(stats)})
        return
    show_facts({"gallery": path, **_facts(stats), **({} if calibration is None else _learned(calibration))})
    for note in stats.notes:
        print(f"Note: {note}")
    shown = list(islice(stats.classes.items(), _CLASSES_SHOWN))
    if shown:
        print()
        show_table(("class", "items"), shown, numbers=("items",))
    if len(stats.classes) > len(shown):
        print(f" and {len(stats.classes) - len(shown):,} more; all of them with --json")


def items(
    path: GalleryPath,
    where: Where = None,
    parameters: Parameters = None,
    limit: Limit = 100,
    after: Annotated[str | None, typer.Option("--after", help="Go on after this id, the last one shown.")] = None,
    as_json: Json = False,
) -> None:
    """List items, a page at a time."""
    from nearkin.cli.gallery_arguments import open_gallery, values_of
    from nearkin.cli.output import in_words, show_json, show_table

    bound = values_of(parameters, "--param")
    with open_gallery(path) as gallery:
        page = gallery.items(after=after, limit=limit, where=where, parameters=bound or None)
    following = page[-1].id if len(page) == limit else None
    if as_json:
        show_json({"items": page, "next": following})
        return
    rows = [(item.id, item.label, in_words(item.metadata), item.source, item.added) for item in page]
    show_table(("id", "label", "metadata", "source", "added"), rows)
    if following is not None:
        print(f" go on with  --after {following}")


def duplicates(
    path: GalleryPath,
    distance: Annotated[
        float | None, typer.Option("--distance", min=0.0, help="How near; default: chosen from the gallery.")
    ] = None,
    limit: Limit = 100,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List groups of items that are almost the same."""
    from nearkin.cli.gallery_arguments import open_gallery
    from nearkin.cli.output import show_json, show_table

    with open_gallery(path) as gallery:
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


def suspects(path: GalleryPath, limit: Limit = 100, as_json: Json = False, quiet: Quiet = False) -> None:
    """List items whose neighbours speak for another label, most suspicious first."""
    from nearkin.cli.gallery_arguments import open_gallery
    from nearkin.cli.output import percent, show_json, show_table

    with open_gallery(path) as gallery:
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


def export(
    path: GalleryPath,
    file: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="The file to write.")],
    as_json: Json = False,
) -> None:
    """Write all items with their vectors as one Parquet file."""
    from nearkin.cli.gallery_arguments import open_gallery
    from nearkin.cli.output import show_json

    with open_gallery(path) as gallery:
        count = gallery.export(file)
    if as_json:
        show_json({"exported": count, "path": str(file)})
    else:
        print(f"Wrote {counted(count, 'item')}: {file}")


def show_calibration(calibration: Calibration, *, as_json: bool) -> None:
    """Show what a gallery learned of itself."""
    from nearkin.cli.output import show_facts, show_json

    if as_json:
        show_json(calibration.to_dict())
        return
    show_facts(_learned(calibration))
    for note in calibration.notes:
        print(f"Note: {note}")


def _learned(calibration: Calibration) -> dict[str, object]:
    """What was learned, or why not, in words."""
    named, horizon = calibration.identification, calibration.horizon
    facts: dict[str, object] = {"learned from": counted(calibration.items, "item")}
    facts["identify"] = named.reason or (
        f"names {100 * (named.accuracy or 0):.1f} % of {named.items:,} left-out items rightly; "
        f"confidence and accuracy differ by {100 * (named.ece or 0):.1f} points (ECE)"
    )
    facts["known"] = horizon.reason or (
        f"up to a distance of {horizon.threshold:.4f}, which accepts {100 * calibration.accept:g} % of known queries"
        + ("" if horizon.rejected is None else f" and rejects about {100 * horizon.rejected:.1f} % of unknown ones")
    )
    for rate in _RATES:
        ruling = calibration.judge(0.0, rate)
        facts[f"same at {rate:g}"] = ruling.reason or (
            f"up to a distance of {ruling.threshold:.4f}, which accepts "
            f"{100 * (ruling.true_accept_rate or 0):.1f} % of pairs of one class"
        )
    return facts


def _facts(stats: Stats) -> dict[str, object]:
    from nearkin.gallery.kept_similarity import space_in_words

    settings = stats.settings
    return {
        "made by": settings.name + (f" (model {settings.fingerprint[:12]})" if settings.fingerprint else ""),
        "items": f"{stats.items:,} of {counted(len(stats.classes), 'class')}"
        + (f", {stats.unlabelled:,} without a label" if stats.unlabelled else ""),
        "vectors": f"{settings.dimension} x {settings.dtype}, {space_in_words(settings.space)}",
        "kind": settings.kind,
        "search": stats.index,
        "index": stats.layout,
        "size": None if stats.size is None else f"{stats.size / 1e6:,.1f} MB",
        "writes": stats.generation,
    }
