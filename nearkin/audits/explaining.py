"""Where a model looks, on images: from a model and images to maps that can be drawn, saved and put into a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from nearkin.audits.explained_images import Pictures, picture_sources
from nearkin.data.augment import EvalTransform
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, ModelError
from nearkin.models import Embedder
from nearkin.models.explanations import explanations, usual_explanation
from nearkin.models.items import ItemLoader
from nearkin.models.prefetch import batches
from nearkin.progress import Progress
from nearkin.report import Figure
from nearkin.report.heat import PartScale, Scale, ShareScale, SignedScale
from nearkin.report.marks import marked
from nearkin.report.overlays import Box, Panel, draw_keyed_overlay, draw_overlay, draw_overlays
from nearkin.storage import replacing

_SCALES: dict[str, type[ShareScale] | type[SignedScale] | type[PartScale]] = {
    "weights": ShareScale,
    "contribution": SignedScale,
    "prototypes": PartScale,
}
"""How each kind of map is coloured; a kind that is not listed is drawn as signed values."""

_READING = {
    "weights": "The brighter, the more of the embedding is taken from there; with average pooling all would be alike.",
    "contribution": "Orange adds to the embedding, blue works against it; where nothing is painted, nothing is added.",
    "prototypes": "The colour says which prototype a place is most like, its strength how much is taken from there.",
}


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a model looks in one image.

    The image itself is opened when it is asked for, so that thousands of explanations fit into memory.

    Attributes:
        name: the image's path, or what else it is called.
        what: the kind of map: "weights", "contribution" or "prototypes".
        map: float32 (h, w), one value for each position of the pooled map; for prototypes (M, h, w).
    """

    name: str
    what: str
    map: np.ndarray
    _open: Callable[[], Image.Image] = field(repr=False)
    _transform: EvalTransform = field(repr=False)

    @property
    def image(self) -> Image.Image:
        """The whole image."""
        return self._open()

    @property
    def box(self) -> Box:
        """Left, top, right and bottom of what the model saw, in pixels of the image: where the map lies."""
        return self._transform.box(*self.image.size)

    def seen(self) -> Image.Image:
        """What the model saw of the image: the centre square."""
        image = self.image
        return image.resize(_square(image), Image.Resampling.LANCZOS, box=self._transform.box(*image.size))

    def overlay(self, scale: Scale | None = None) -> Image.Image:
        """The whole image with the map where it belongs; without a scale, on one of its own."""
        image = self.image
        return draw_overlay(image, self.map, scale or common_scale([self]), self._transform.box(*image.size))

    def save(self, path: str | os.PathLike[str], scale: Scale | None = None) -> None:
        """Write the overlay with the key of its colours as a PNG file."""
        image = self.image
        box = self._transform.box(*image.size)
        picture = draw_keyed_overlay(image, self.map, scale or common_scale([self]), box)
        with replacing(path) as temporary:
            temporary.write_bytes(marked(picture))


def explain_images(
    embedder: Embedder, images: Pictures, what: str | None = None, *, batch_size: int = 16, progress: bool = True
) -> list[Explanation]:
    """The maps of images, in the order given; see `nearkin.explain`, which also opens the model.

    Without `what`, the first batch decides for all.
    """
    if embedder.spec.kind != "image":
        raise ModelError(f"Explanations are drawn on images, and this model takes {embedder.spec.kind}.")
    measure = None if what is None else explanations.get(what)
    loader = ItemLoader(embedder.spec)
    sources = picture_sources(images, loader)
    if not sources:
        raise DataError("There is no image to explain: give at least one.")
    if batch_size < 1:
        raise ModelError(f"Explaining needs a batch size of at least 1, not {batch_size}.")
    transform = EvalTransform(embedder.spec)
    device = embedder.normalise.mean.device
    found: list[Explanation] = []
    with Progress("Explaining", len(sources), progress) as bar:
        for batch in batches(lambda row: sources[row].sample(), len(sources), batch_size, workers=2):
            x = embedder.normalise(batch.to(device))
            if what is None or measure is None:
                what = usual_explanation(embedder, x)
                measure = explanations.get(what)
            for values in measure(embedder, x).float().cpu().numpy():
                source = sources[len(found)]
                found.append(Explanation(source.name, what, values, source.picture, transform))
            bar.advance(len(batch))
    return found


def common_scale(found: Sequence[Explanation]) -> Scale:
    """One scale for explanations of one kind, so that a colour means the same in each of their pictures."""
    return _SCALES.get(found[0].what, SignedScale).over([one.map for one in found])


def draw_overview(found: Sequence[Explanation], captions: Sequence[str] | None = None) -> bytes:
    """A grid of what the model saw, each image beside its overlay, as PNG bytes.

    Args:
        found: explanations of one kind.
        captions: a line for each; None: the names of the files.
    """
    lines = [Path(one.name).name for one in found] if captions is None else captions
    panels = [Panel(one.seen(), one.map, line) for one, line in zip(found, lines, strict=True)]
    return draw_overlays(panels, common_scale(found)) if panels else b""


def draw_looks(
    embedder: Embedder,
    dataset: Dataset,
    rows: np.ndarray | Sequence[int] | None = None,
    *,
    what: str | None = None,
    count: int = 12,
    seed: int = 0,
) -> Figure:
    """A picture for reports: some images of different classes, and where the model looks in them.

    Args:
        embedder: the model.
        dataset: the images; anything else gives a figure without bytes, which a report leaves out.
        rows: the items to choose among; None: all.
        what: the kind of map; None: as of `nearkin.explain`.
        count: how many images to show; of one class only where there are fewer classes.
        seed: the same seed chooses the same images.
    """
    title, alt = "Where the model looks", "Grid of images, each beside the same image with a heat map over it"
    rows = np.arange(len(dataset)) if rows is None else np.asarray(rows, dtype=np.int64)
    if dataset.kind != "image" or not len(rows) or count < 1:
        return Figure(title, "", b"", alt)
    chosen = dataset.select(_of_different_classes(dataset.labels, rows, count, seed))
    found = explain_images(embedder, chosen, what, progress=False)
    kind = found[0].what
    caption = (
        f"{len(found)} audited images as the model sees them, and the {kind} of their places on the "
        f"{found[0].map.shape[-2]} x {found[0].map.shape[-1]} map that is pooled. {_READING.get(kind, '')}"
    )
    return Figure(title, caption.strip(), draw_overview(found, [str(label) for label in chosen.labels]), alt)


def _of_different_classes(labels: np.ndarray, rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """At most `count` of the rows, drawn at random, a second one of a class only after one of each."""
    drawn = np.random.default_rng(seed).permutation(rows)
    _, codes = np.unique(labels[drawn], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], codes[order])
    turn = np.empty(len(drawn), dtype=np.int64)
    turn[order] = np.arange(len(drawn)) - starts
    return drawn[np.argsort(turn, kind="stable")][:count]


def _square(image: Image.Image) -> tuple[int, int]:
    side = min(512, *image.size)
    return side, side
