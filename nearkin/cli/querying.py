"""`nearkin identify`, `nearkin verify` and `nearkin search`: ask a gallery."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.exits import NO
from nearkin.cli.gallery_options import GalleryPath, Json, Model, Parameters, Where
from nearkin.cli.options import Quiet

if TYPE_CHECKING:
    from nearkin.gallery.values import Match, Neighbour

_ASKED = "an image or recording; for a gallery of vectors a .npy file"


def identify(
    path: GalleryPath,
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help=f"What to identify: {_ASKED}.")],
    neighbours: Annotated[
        int, typer.Option("--neighbours", "-n", min=0, max=1000, help="Also show so many of the nearest items.")
    ] = 0,
    model: Model = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what each file is, how sure that is, and whether it is of an enrolled class at all."""
    from nearkin.cli.gallery_arguments import open_gallery, to_ask
    from nearkin.cli.output import show_json

    with open_gallery(path, model) as gallery:
        asked = to_ask(files, of_vectors=gallery.settings.kind == "vector")
        vectors = gallery.embed(asked.items if asked.vectors is None else asked.vectors)
        matches = gallery.identify_vectors(vectors, neighbours=max(neighbours, 1), progress=not (quiet or as_json))
    if as_json:
        show_json({"matches": [_match(name, m, neighbours) for name, m in zip(asked.names, matches, strict=True)]})
    else:
        _show_matches(asked.names, matches, neighbours)
    if not all(match.known for match in matches):
        raise typer.Exit(NO)


def verify(
    path: GalleryPath,
    a: Annotated[Path, typer.Argument(metavar="A", help=f"One sample: {_ASKED}.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other one.")],
    rate: Annotated[
        float,
        typer.Option("--far", help="False accept rate: the share of pairs of two classes that may pass as one."),
    ] = 0.001,
    model: Model = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether two files are of one class, at a false accept rate; neither need be enrolled."""
    if not 0 < rate < 1:
        raise typer.BadParameter(f"{rate:g} is not between 0 and 1.", param_hint="--far")
    from nearkin.cli.gallery_arguments import open_gallery, to_ask
    from nearkin.cli.output import percent, show_facts, show_json
    from nearkin.errors import DataError

    with open_gallery(path, model) as gallery:
        asked = to_ask([a, b], of_vectors=gallery.settings.kind == "vector")
        vectors = gallery.embed(asked.items if asked.vectors is None else asked.vectors)
        if len(vectors) != 2:
            raise DataError(f"A and B must hold one vector each; together they hold {len(vectors)}.")
        found = gallery.verify_vectors(vectors[0], vectors[1], false_accept_rate=rate, progress=not (quiet or as_json))
    if as_json:
        show_json(found)
    else:
        show_facts(
            {
                "same": "cannot be said" if found.same is None else "yes" if found.same else "no",
                "probability": percent(found.probability),
                "distance": f"{found.distance:.4f}",
                "threshold": None if found.threshold is None else f"{found.threshold:.4f}",
                "false accept rate": f"{found.false_accept_rate:g}",
                "note": found.reason or None,
            }
        )
    if not found.same:
        raise typer.Exit(NO)


def search(
    path: GalleryPath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"What to look for: {_ASKED}.")],
    k: Annotated[int, typer.Option("-k", min=1, max=10_000, help="How many.")] = 10,
    where: Where = None,
    parameters: Parameters = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """List the items most like a file, nearest first."""
    from nearkin.cli.gallery_arguments import open_gallery, to_ask, values_of
    from nearkin.cli.output import show_json
    from nearkin.errors import DataError

    bound = values_of(parameters, "--param")
    with open_gallery(path, model) as gallery:
        asked = to_ask([file], of_vectors=gallery.settings.kind == "vector")
        vectors = gallery.embed(asked.items if asked.vectors is None else asked.vectors)
        if len(vectors) != 1:
            raise DataError(f"{file} holds {len(vectors)} vectors: search for one at a time.")
        found = gallery.search_vectors(vectors, k, where=where, parameters=bound or None)[0]
    if as_json:
        show_json({"neighbours": [_neighbour(one) for one in found]})
    else:
        _show_neighbours(found)


def _match(name: str, match: Match, neighbours: int) -> dict[str, Any]:
    return {
        "query": name,
        "label": match.label,
        "probability": match.probability,
        "known": match.known,
        "reason": match.reason,
        "candidates": list(match.candidates),
        "neighbours": [_neighbour(one) for one in match.neighbours[:neighbours]],
    }


def _neighbour(one: Neighbour) -> dict[str, Any]:
    item = one.item
    return {
        "id": item.id,
        "label": item.label,
        "distance": one.distance,
        "metadata": item.metadata,
        "source": item.source,
    }


def _show_matches(names: Sequence[str], matches: Sequence[Match], neighbours: int) -> None:
    from nearkin.cli.output import percent, printable, show_table

    rows = [
        (name, match.label, percent(match.probability), _known(match), _nearest(match))
        for name, match in zip(names, matches, strict=True)
    ]
    show_table(("query", "label", "probability", "known", "nearest"), rows, numbers=("probability", "nearest"))
    for reason in dict.fromkeys(match.reason for match in matches if match.reason):
        print(f"Note: {printable(reason)}")
    for name, match in zip(names, matches, strict=True):
        if neighbours:
            print(f"\nNearest to {printable(name)}:")
            _show_neighbours(match.neighbours[:neighbours])


def _show_neighbours(found: Sequence[Neighbour]) -> None:
    from nearkin.cli.output import in_words, show_table

    if not found:
        print("Nothing found.")
        return
    rows = [
        (f"{one.distance:.4f}", one.item.label, one.item.id, in_words(one.item.metadata), one.item.source)
        for one in found
    ]
    show_table(("distance", "label", "id", "metadata", "source"), rows, numbers=("distance",))


def _known(match: Match) -> str | None:
    return None if match.known is None else "known" if match.known else "unknown"


def _nearest(match: Match) -> str | None:
    return f"{match.neighbours[0].distance:.4f}" if match.neighbours else None
