"""`nearkin classify`: which of its classes a model takes files for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.gallery_options import Json

if TYPE_CHECKING:
    from nearkin.models.similarity_model import Classification

_BY = ("sim", "dol")


def classify(
    run: Annotated[Path, typer.Argument(help="A run directory, or a model file.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Images or recordings.")],
    by: Annotated[
        str,
        typer.Option("--by", help="sim: the class whose prototype is most similar; dol: the dense output layer."),
    ] = "sim",
    as_json: Json = False,
) -> None:
    """Say which of the classes that it was trained on a model takes each file for, and how sure it is of that."""
    if by not in _BY:
        raise typer.BadParameter(f"'{by}' is neither {_BY[0]} nor {_BY[1]}.", param_hint="--by")
    from nearkin import api
    from nearkin.cli.gallery_arguments import to_ask
    from nearkin.cli.output import percent, show_json, show_table
    from nearkin.errors import ModelError
    from nearkin.gallery.creation import is_gallery
    from nearkin.models.similarity_model import SimilarityModel

    if is_gallery(run):
        raise ModelError(f"{run} is a gallery: ask it with `nearkin identify`.")
    model = api.load(run)
    if not isinstance(model, SimilarityModel):
        raise ModelError(
            f"{run} has no learned similarity and so no classes of its own: train with --recipe learned-similarity, or "
            "ask a gallery with `nearkin identify`."
        )
    asked = to_ask(files, of_vectors=False)
    found = model.classify(asked.items, "dol" if by == "dol" else "sim")
    if as_json:
        show_json({"by": by, "classes": list(found.classes), "files": _rows(asked.names, found)})
        return
    rows = [(row["file"], row["label"], percent(row["probability"])) for row in _rows(asked.names, found)]
    show_table(("file", "label", "probability"), rows, numbers=("probability",))


def _rows(names: list[str], found: Classification) -> list[dict[str, Any]]:
    """One object a file, with the probabilities of all classes in their order."""
    return [
        {
            "file": name,
            "label": str(label),
            "probability": float(probabilities.max()),
            "probabilities": [float(one) for one in probabilities],
        }
        for name, label, probabilities in zip(names, found.labels, found.probabilities, strict=True)
    ]
