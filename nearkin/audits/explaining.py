"""Where a model looks, on images: from a model and images to maps that can be drawn, saved and put into a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from nearkin.audits.explained_images import Pictures, picture_sources
from nearkin.data.augment import EvalTransform, PadTransform, plain_view
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, ModelError
from nearkin.models import Embedder
from nearkin.models.explanations import explanations, usual_explanation
from nearkin.models.features import Features
from nearkin.models.items import ItemLoader
from nearkin.models.prefetch import batches
from nearkin.progress import Progress
from nearkin.report import Figure
from nearkin.report.heat import HeatScale, PartScale, Scale, ShareScale, SignedScale
from nearkin.report.marks import marked
from nearkin.report.overlays import (
    Box,
    Panel,
    Strip,
    draw_keyed_overlay,
    draw_overlay,
    draw_overlays,
    draw_strips,
)
from nearkin.storage import replacing

_SCALES: dict[str, type[ShareScale] | type[HeatScale] | type[SignedScale] | type[PartScale]] = {
    "attention": ShareScale,
    "weights": ShareScale,
    "contribution": SignedScale,
    "grad-cam": HeatScale,
    "prototypes": PartScale,
}
"""How each kind of map is coloured; a kind that is not listed is drawn as signed values."""

_MOST_STRIPS = 6
"""Rows of a report's picture where each is one image with several maps: a page is no album."""

_READING = {
    "attention": "The brighter, the more of a stage's vector is taken from there; averages would all be alike.",
    "weights": "The brighter, the more of the embedding is taken from there; with average pooling all would be alike.",
    "contribution": "Orange adds to the embedding, blue works against it; where nothing is painted, nothing is added.",
    "grad-cam": "The brighter, the more there is of what the embedding as a whole depends on.",
    "prototypes": "The colour says which prototype a place is most like, its strength how much is taken from there.",
}


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a model looks in one image, or one of its stages does.

    The image itself is opened when it is asked for, so that thousands of explanations fit into memory.

    Attributes:
        name: the image's path, or what else it is called.
        what: the kind of map: "attention", "weights", "contribution", "grad-cam" or "prototypes".
        map: float32 (h, w), one value for each position of the map that is pooled, or of a stage's; for prototypes
            (M, h, w).
        stage: the stage whose map it is; None: the map that is pooled.
    """

    name: str
    what: str
    map: np.ndarray
    stage: str | None
    _open: Callable[[], Image.Image] = field(repr=False)
    _view: EvalTransform | PadTransform = field(repr=False)

    @property
    def image(self) -> Image.Image:
        """The whole image."""
        return self._open()

    @property
    def box(self) -> Box:
        """Left, top, right and bottom of what the model saw, in pixels of the image: where the map lies.

        A model that pads images saw more than the image: its box goes beyond it.
        """
        return self._view.box(*self.image.size)

    def seen(self) -> Image.Image:
        """What the model saw of the image: the centre square, or the image with its padding."""
        picture, box = self._view.frame(self.image)
        return picture.resize(_square(picture), Image.Resampling.LANCZOS, box=box)

    def overlay(self, scale: Scale | None = None) -> Image.Image:
        """The whole image, and its padding, with the map where it belongs; without a scale, on one of its own."""
        picture, box = self._view.frame(self.image)
        return draw_overlay(picture, self.map, scale or common_scale([self]), box)

    def save(self, path: str | os.PathLike[str], scale: Scale | None = None) -> None:
        """Write the overlay with the key of its colours as a PNG file."""
        picture, box = self._view.frame(self.image)
        drawn = draw_keyed_overlay(picture, self.map, scale or common_scale([self]), box)
        with replacing(path) as temporary:
            temporary.write_bytes(marked(drawn))


def explain_images(
    embedder: Embedder, images: Pictures, what: str | None = None, *, batch_size: int = 16, progress: bool = True
) -> list[Explanation]:
    """The maps of images, in the order given, those of an image's stages together; see `nearkin.explain`.

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
    view = plain_view(embedder.spec)
    device = embedder.normalise.mean.device
    found: list[Explanation] = []
    rest = iter(sources)
    with Progress("Explaining", len(sources), progress) as bar:
        for batch in batches(lambda row: sources[row].sample(), len(sources), batch_size, workers=2):
            x = embedder.normalise(batch.to(device))
            if what is None or measure is None:
                what = usual_explanation(embedder, x)
                measure = explanations.get(what)
            maps = _by_stage(measure(embedder, x))
            for row, source in enumerate(islice(rest, len(batch))):
                found += [
                    Explanation(source.name, what, values[row], stage, source.picture, view)
                    for stage, values in maps.items()
                ]
            bar.advance(len(batch))
    return found


def by_image(found: Sequence[Explanation]) -> list[list[Explanation]]:
    """Explanations, in their order, with those of one image's stages together."""
    images: list[list[Explanation]] = []
    for one in found:
        last = images[-1] if images else []
        # The same image may be given twice: then its stages come again.
        new = one.stage is None or not last or last[0].name != one.name or one.stage in [other.stage for other in last]
        images += [[]] if new else []
        images[-1].append(one)
    return images


def common_scale(found: Sequence[Explanation]) -> Scale:
    """One scale for explanations of one kind, so that a colour means the same in each of their pictures.

    Shares count by the positions of their own map, so stages of different sizes are on one scale too.
    """
    return _SCALES.get(found[0].what, SignedScale).over([one.map for one in found])


def draw_overview(found: Sequence[Explanation], captions: Sequence[str] | None = None) -> bytes:
    """A grid of what the model saw, each image beside its overlay or those of its stages, as PNG bytes.

    Args:
        found: explanations of one kind.
        captions: a line for each image; None: the names of the files.
    """
    if not found:
        return b""
    images = by_image(found)
    lines = [Path(first.name).name for first, *_ in images] if captions is None else captions
    named = list(zip(images, lines, strict=True))
    if found[0].stage is None:
        return draw_overlays([Panel(one.seen(), one.map, line) for (one,), line in named], common_scale(found))
    strips = [Strip(maps[0].seen(), {str(one.stage): one.map for one in maps}, line) for maps, line in named]
    return draw_strips(strips, common_scale(found))


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
        count: how many images to show, of one class only where there are fewer classes; six at most where there are
            maps of several stages.
        seed: the same seed chooses the same images.
    """
    title, alt = "Where the model looks", "Grid of images, each beside the same image with a heat map over it"
    rows = np.arange(len(dataset)) if rows is None else np.asarray(rows, dtype=np.int64)
    if dataset.kind != "image" or not len(rows) or count < 1:
        return Figure(title, "", b"", alt)
    chosen = dataset.select(_of_different_classes(dataset.labels, rows, count, seed))
    images = by_image(explain_images(embedder, chosen, what, progress=False))
    images = images if images[0][0].stage is None else images[:_MOST_STRIPS]
    found = [one for maps in images for one in maps]
    caption = f"{len(images)} audited images as the model sees them, and {_told(images[0])}"
    return Figure(title, caption, draw_overview(found, [str(label) for label in chosen.labels[: len(images)]]), alt)


def _told(maps: Sequence[Explanation]) -> str:
    """What the maps of one image are, and how to read them."""
    kind, reading = maps[0].what, _READING.get(maps[0].what, "")
    if maps[0].stage is None:
        grid = f"the {kind} of their places on the {maps[0].map.shape[-2]} x {maps[0].map.shape[-1]} map that is pooled"
    else:
        grid = f"the {kind} of {', '.join(str(one.stage) for one in maps)} to their places, each on a map of its own"
    return f"{grid}. {reading}".strip()


def _by_stage(maps: Features) -> dict[str | None, np.ndarray]:
    """Maps as float32 arrays (B, ...) by stage; None is the map that is pooled."""
    named = [(None, maps)] if isinstance(maps, Tensor) else maps.items()
    return {stage: values.float().cpu().numpy() for stage, values in named}


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
