"""`nearkin identify`, `verify`, `search` and `classify`: look files up in a gallery, or classify them with a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.options import (
    EXIT_NO,
    GalleryPath,
    Json,
    Model,
    Parameters,
    Quiet,
    RunOrModel,
    Where,
    parse_assignments,
)
from nearkin.cli.output import in_words, percent, printable, show_facts, show_json, show_table
from nearkin.errors import DataError, ModelError

if TYPE_CHECKING:
    from nearkin.gallery.values import Forecast, Match, Neighbour


_NAMED_BY = ("neighbours", "prototypes")
_ASKED = "an image or recording, or a .npy file for a gallery of vectors"


def identify(
    path: GalleryPath,
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help=f"What to identify: {_ASKED}.")],
    neighbours: Annotated[
        int, typer.Option("--neighbours", "-n", min=0, max=1000, help="Also show this many nearest items.")
    ] = 0,
    by: Annotated[
        str,
        typer.Option(
            help="What names the class: the nearest neighbours, or prototypes, the means of the classes' items."
        ),
    ] = "neighbours",
    model: Model = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Identify files: the label, its probability, and whether the class is known, unknown, or neither can be told."""
    if by not in _NAMED_BY:
        raise typer.BadParameter(f"Choose {_NAMED_BY[0]} or {_NAMED_BY[1]}, not '{by}'.", param_hint="--by")
    from nearkin.cli.gallery_input import embed_queries
    from nearkin.gallery import Gallery

    with Gallery.open(path, model) as gallery:
        names, vectors = embed_queries(gallery, files)
        matches = gallery.identify_vectors(
            vectors,
            neighbours=max(neighbours, 1),
            progress=not (quiet or as_json),
            by="prototypes" if by == "prototypes" else "neighbours",
        )
    if as_json:
        told = [
            {
                "query": name,
                **{
                    fact: getattr(match, fact)
                    for fact in ("label", "probability", "known", "reason", "note", "forecast")
                },
                "candidates": list(match.candidates),
                "neighbours": [_neighbour(one) for one in match.neighbours[:neighbours]],
            }
            for name, match in zip(names, matches, strict=True)
        ]
        show_json({"matches": told})
    else:
        _show_matches(names, matches, neighbours)
    if not all(match.known for match in matches):
        raise typer.Exit(EXIT_NO)


def verify(
    path: GalleryPath,
    a: Annotated[Path, typer.Argument(metavar="A", help=f"One sample: {_ASKED}.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other sample.")],
    rate: Annotated[
        float,
        typer.Option(
            "--far", help="False accept rate: share of pairs of different classes that are accepted as the same."
        ),
    ] = 0.001,
    prior: Annotated[
        float, typer.Option(help="Share of such pairs that are of one class; the probability depends on it.")
    ] = 0.5,
    model: Model = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Decide whether two files belong to the same class, at a false accept rate; neither needs to be enrolled."""
    for value, option in ((rate, "--far"), (prior, "--prior")):
        if not 0 < value < 1:
            raise typer.BadParameter(f"{value:g} is not between 0 and 1.", param_hint=option)
    from nearkin.cli.gallery_input import embed_queries
    from nearkin.gallery import Gallery

    with Gallery.open(path, model) as gallery:
        _, vectors = embed_queries(gallery, [a, b])
        if len(vectors) != 2:
            raise DataError(f"A and B must contain one vector each, not {len(vectors)} in total.")
        found = gallery.verify_vectors(
            vectors[0], vectors[1], false_accept_rate=rate, prior=prior, progress=not (quiet or as_json)
        )
    if as_json:
        show_json(found)
    else:
        show_facts(
            {
                "same": "undecided" if found.same is None else "yes" if found.same else "no",
                "probability": percent(found.probability),
                "prior": None if found.probability is None else f"{100 * found.prior:g} % of such pairs are the same",
                "needed": None if found.needed is None else f"{percent(found.needed)} for this false accept rate",
                "distance": f"{found.distance:.4f}",
                "threshold": None if found.threshold is None else f"{found.threshold:.4f}",
                "false accept rate": f"{found.false_accept_rate:g}",
                "note": " ".join(filter(None, (found.reason, found.note))) or None,
            }
        )
    if not found.same:
        raise typer.Exit(EXIT_NO)


def search(
    path: GalleryPath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"What to look for: {_ASKED}.")],
    k: Annotated[int, typer.Option("-k", min=1, max=10_000, help="Number of items.")] = 10,
    where: Where = None,
    parameters: Parameters = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Find the items most like a file, nearest first."""
    from nearkin.cli.gallery_input import embed_queries
    from nearkin.gallery import Gallery

    bound = parse_assignments(parameters, "--param")
    with Gallery.open(path, model) as gallery:
        _, vectors = embed_queries(gallery, [file])
        if len(vectors) != 1:
            raise DataError(f"{file} contains {len(vectors)} vectors: give a file with one.")
        found = gallery.search_vectors(vectors, k, where=where, parameters=bound or None)[0]
    if as_json:
        show_json({"neighbours": [_neighbour(one) for one in found]})
    else:
        _show_neighbours(found)


def _neighbour(one: Neighbour) -> dict[str, Any]:
    item = one.item
    facts = {"id": item.id, "label": item.label, "distance": one.distance}
    return {**facts, "metadata": item.metadata, "source": item.source}


_KNOWN = {True: "known", False: "unknown", None: "cannot tell"}


def _told_forecast(forecast: Forecast) -> str:
    return (
        f"known are {percent(forecast.enrolled_known)} of queries of enrolled classes and "
        f"{percent(forecast.strangers_known)} of others; unknown are {percent(forecast.enrolled_unknown)} and "
        f"{percent(forecast.strangers_unknown)}; of the rest it cannot be told."
    )


def _show_matches(names: Sequence[str], matches: Sequence[Match], neighbours: int) -> None:
    rows = [
        (
            name,
            match.label,
            percent(match.probability),
            _KNOWN[match.known],
            f"{match.neighbours[0].distance:.4f}" if match.neighbours else None,
        )
        for name, match in zip(names, matches, strict=True)
    ]
    show_table(("query", "label", "probability", "known", "nearest"), rows, numbers=("probability", "nearest"))
    for text in dict.fromkeys(text for match in matches for text in (match.note, match.reason) if text):
        print(f"Note: {printable(text)}")
    for forecast in dict.fromkeys(match.forecast for match in matches if match.forecast):
        print(f"Forecast: {_told_forecast(forecast)}")
    for name, match in zip(names, matches, strict=True):
        if neighbours:
            print(f"\nNearest to {printable(name)}:")
            _show_neighbours(match.neighbours[:neighbours])


def _show_neighbours(found: Sequence[Neighbour]) -> None:

    if not found:
        print("Nothing found.")
        return
    rows = [
        (f"{one.distance:.4f}", one.item.label, one.item.id, in_words(one.item.metadata), one.item.source)
        for one in found
    ]
    show_table(("distance", "label", "id", "metadata", "source"), rows, numbers=("distance",))


_BY = ("sim", "dol")


def classify(
    run: RunOrModel,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Images or recordings.")],
    by: Annotated[
        str, typer.Option(help="sim: by the most similar prototype; dol: by the dense output layer.")
    ] = "sim",
    support: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Classes of your own in place of the training classes: a few examples each, in one folder per class.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Classify files among a model's training classes, or those of a few examples, with probabilities."""
    if by not in _BY:
        raise typer.BadParameter(f"Choose {_BY[0]} or {_BY[1]}, not '{by}'.", param_hint="--by")
    from nearkin import api
    from nearkin.cli.gallery_input import queries_from
    from nearkin.data.sources import open_data
    from nearkin.gallery.places import is_gallery
    from nearkin.models.similarity_model import SimilarityModel

    if is_gallery(run):
        raise ModelError(f"{run} is a gallery: use `nearkin identify`.")
    model = api.load(run)
    if not isinstance(model, SimilarityModel):
        raise ModelError(
            f"{run} has no learned similarity, so it cannot classify: train with --recipe learned-similarity, or "
            "query a gallery with `nearkin identify`."
        )
    if support is not None:
        model = model.few_shot(open_data(str(support), progress=False))
    names, items = queries_from(files, of_vectors=False)
    found = model.classify(items, "dol" if by == "dol" else "sim")
    rows = [
        {"file": name, "label": str(label), "probability": float(shares.max()), "probabilities": shares.tolist()}
        for name, label, shares in zip(names, found.labels, found.probabilities, strict=True)
    ]
    if as_json:
        show_json({"by": by, "classes": list(found.classes), "files": rows})
        return
    shown = [(row["file"], row["label"], percent(row["probability"])) for row in rows]
    show_table(("file", "label", "probability"), shown, numbers=("probability",))
