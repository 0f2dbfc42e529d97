"""`nearkin explain`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from nearkin import api
from nearkin.audits.explained_images import list_images, readable_images
from nearkin.audits.explaining import by_image, common_scale, draw_overview
from nearkin.errors import DataError, StorageError
from nearkin.models import Embedder
from nearkin.models.explanations import explanations
from nearkin.report.marks import marked
from nearkin.storage import replacing

_OVERVIEW = 24
"""Images in the overview at the most."""

_LETTERS = 80
"""Of an image's name in that of its overlay: file systems have a limit."""

_TOLD = {
    "attention": "the weights that each attended stage gives to places",
    "weights": "the weights that the pooling gives to places",
    "contribution": "what each place adds to the embedding",
}
"""What may be shown if nobody says what."""


def explain_command(
    model: Path, images: Sequence[Path], what: str | None, out: Path | None, skip_bad: bool, progress: bool
) -> None:
    """Draw where a model looks in images, one file an image (and stage), and an overview."""
    out = _usual_folder(model) if out is None else out
    if what is not None:
        explanations.get(what)  # told before a model is read
    for path in images:
        if not path.exists():
            raise DataError(f"There is no image {path}: check the path.")
    check_folder(out)
    embedder = api.load(model)
    files, notes = _files(images, out, skip_bad, progress)
    found = api.explain(embedder, files, what=what, progress=progress)
    kind = found[0].what
    for note in notes:
        print(f"Note: {note}")
    if what is None:
        print(f"Shown: {_TOLD[kind]} (--what {kind}){_why(embedder, kind)}.")
    names = _Names(out, files)
    scale = common_scale(found)
    for one in found:
        stage = "" if one.stage is None else f"-{one.stage}"
        one.save(names.free(f"{Path(one.name).stem[:_LETTERS]}-{kind}{stage}"), scale)
    explained = by_image(found)
    shown = explained[:_OVERVIEW]
    overview = names.free(f"overview-{kind}")
    with replacing(overview) as temporary:
        temporary.write_bytes(marked(draw_overview([one for maps in shown for one in maps])))
    written = f"{len(found)} overlay{'s' if len(found) > 1 else ''}"
    each = f", {len(shown[0])} of each image," if len(found) > len(explained) > 1 else ""
    some = f" of the first {len(shown)}" if len(shown) < len(explained) else ""
    print(f"Wrote {written}{each} to {out}; overview{some}: {overview}")


def _why(embedder: Embedder, kind: str) -> str:
    """Why a kind of map was chosen that has one before it."""
    if kind == "attention":
        return ""
    reasons = [] if embedder.attention is None else ["the attention is the same everywhere"]
    if kind == "contribution":
        reasons.append("the pooling gives places no weights of their own, or all the same")
    return f", because {', and '.join(reasons)}" if reasons else ""


def _usual_folder(model: Path) -> Path:
    """A folder of its own for each model: one model's pictures do not replace another's."""
    whole = model.resolve()
    return Path("explanations") / ((whole.name if whole.is_dir() else whole.stem) or "model")


def check_folder(out: Path) -> None:
    """Refuse a folder that cannot be written to before any work, and without leaving a trace."""
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not there.is_dir():
        named = out if there == out.absolute() else there
        raise StorageError(f"{named} is a file, not a folder: choose another place with --out.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"Nothing may be written to {there}: choose another place with --out.")


def _files(images: Sequence[Path], out: Path, skip_bad: bool, progress: bool) -> tuple[list[Path], list[str]]:
    """The files to explain, and what to say of those that are left out."""
    listings = [list_images(path, out) for path in images]
    # A file that is named twice, or alone and with its folder, is drawn once.
    files = list({file.resolve(): file for listing in listings for file in listing.files}.values())
    notes = []
    if left_out := sum(listing.left_out for listing in listings):
        notes.append(f"{left_out} pictures that explain made, or that lie in {out}, were left out.")
    if skip_bad:
        whole = readable_images(files, progress)
        if len(whole) < len(files):
            notes.append(f"{len(files) - len(whole)} files could not be read and were left out.")
        files = whole
    return files, notes


class _Names:
    """Files to write in a folder: no two of the same name, and none over one of the images that are explained.

    Args:
        folder: where they go.
        images: files that must stay as they are.
    """

    def __init__(self, folder: Path, images: Sequence[Path]) -> None:
        self.folder = folder
        self._taken = {_key(image) for image in images}

    def free(self, stem: str) -> Path:
        """A PNG file named after the stem, with a number where that is taken."""
        for number in count(1):
            path = self.folder / f"{stem}{'' if number == 1 else f'-{number}'}.png"
            if _key(path) not in self._taken:
                break
        self._taken.add(_key(path))
        return path


def _key(path: Path) -> str:
    # Some file systems do not tell capitals apart.
    return str(path.resolve()).casefold()
