"""Draws the pictures of the method pages, each from a toy and a fixed seed: no data, a minute or two in all.

    python studies/method_pictures/run.py             all of them, into docs/images/methods
    python studies/method_pictures/run.py triplet mmd  only these
    python studies/method_pictures/run.py --list      their names

A loss's picture has three panels. Left: forty points of five classes on the circle (where the recipe's space is the
sphere) or in the plane, with the first move of each (minus the gradient, the longest alike in all pictures). Middle:
the same points after 100 steps of Adam at a rate of 0.02, by the objective of the loss's recipe; boxes are proxies,
which begin at the class means. Right: the loss of a small batch while one of its samples travels from its own class to
another one and past it.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator
from studies.places import REPOSITORY

tune_allocator()

import torch
from PIL import Image

from nearkin.objectives import losses
from nearkin.progress import Progress
from nearkin.storage import replacing
from studies.method_pictures import confidence_toys, embedding_toys, map_toys, robustness_toys
from studies.method_pictures.loss_pictures import draw_loss
from studies.method_pictures.loss_toy import pull, travel

FOLDER = REPOSITORY / "docs" / "images" / "methods"
COLOURS = 64
"""In a picture: so that it stays below 40 KB."""
ELSEWHERE = ("learned-similarity",)
"""Losses whose picture another script draws: similarity_pictures/run.py."""


def loss_picture(loss: str) -> bytes:
    return draw_loss(pull(loss), travel(loss))


PICTURES: dict[str, Callable[[], bytes]] = {
    **{loss: partial(loss_picture, loss) for loss in losses if loss not in ELSEWHERE},
    **embedding_toys.PICTURES,
    **map_toys.PICTURES,
    **confidence_toys.PICTURES,
    **robustness_toys.PICTURES,
}
"""Name of a page to what draws its picture."""


def smaller(png: bytes) -> bytes:
    """The picture in a few colours."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    reduced = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    reduced.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures to draw; default: all")
    parser.add_argument("--list", action="store_true", help="print the names and draw nothing")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in PICTURES]:
        parser.error(f"there is no picture {unknown[0]!r}; --list tells their names")
    if arguments.list:
        print("\n".join(PICTURES))
        return 0
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = arguments.names or list(PICTURES)
    with Progress("drawing", len(wanted)) as progress:
        for name in wanted:
            with replacing(FOLDER / f"{name}.png") as part:
                part.write_bytes(smaller(PICTURES[name]()))
            progress.advance()
    return 0


if __name__ == "__main__":
    sys.exit(main())
