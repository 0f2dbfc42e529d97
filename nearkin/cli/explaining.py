"""`nearkin explain`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from nearkin import api
from nearkin.audits.explaining import common_scale, draw_overview, list_images
from nearkin.errors import DataError
from nearkin.models.explanations import explanations
from nearkin.storage import replacing, storing

_OVERVIEW = 24
"""Images in the overview at the most."""

_LETTERS = 80
"""Of an image's name in that of its overlay: file systems have a limit."""

_TOLD = {
    "weights": "the weights that the pooling gives to places",
    "contribution": "what each place adds to the embedding",
    "prototypes": "the prototypes that places are most like",
}
_WHY = {"contribution": ", because the pooling gives places no weights of their own, or all the same"}


def explain_command(model: Path, images: Sequence[Path], what: str | None, out: Path, progress: bool) -> None:
    """Draw where a model looks in images, one file an image, and an overview."""
    if what is not None:
        explanations.get(what)  # told before a model is read
    for path in images:
        if not path.exists():
            raise DataError(f"There is no image {path}: check the path.")
    # A file that is named twice, or alone and with its folder, is drawn once.
    files = list({file.resolve(): file for path in images for file in list_images(path)}.values())
    embedder = api.load(model)
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
    found = api.explain(embedder, files, what=what, progress=progress)
    kind = found[0].what
    if what is None:
        print(f"Shown: {_TOLD[kind]} (--what {kind}){_WHY.get(kind, '')}.")
    names = _Names(out, files)
    scale = common_scale(found)
    for one in found:
        one.save(names.free(f"{Path(one.name).stem[:_LETTERS]}-{kind}"), scale)
    shown = found[:_OVERVIEW]
    overview = names.free(f"overview-{kind}")
    with replacing(overview) as temporary:
        temporary.write_bytes(draw_overview(shown))
    some = f" of the first {len(shown)}" if len(shown) < len(found) else ""
    print(f"Wrote {len(found)} overlay{'s' if len(found) > 1 else ''} to {out}; overview{some}: {overview}")


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
