"""Where a model looks: from a model and images to maps that can be drawn, saved and put into a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.augment import EvalTransform, PadTransform, plain_view
from nearkin.data.dataset import Dataset
from nearkin.data.decode import IMAGE_SUFFIXES, decode_image
from nearkin.errors import DataError, ModelError
from nearkin.models import Embedder
from nearkin.models.explanations import explanations, usual_explanation
from nearkin.models.items import ItemLoader, batches
from nearkin.progress import Progress, track
from nearkin.report import Figure
from nearkin.report.overlay import (
    Box,
    ColourScale,
    HeatScale,
    OverlayPanel,
    OverlayStrip,
    PartScale,
    ShareScale,
    SignedScale,
    draw_keyed_overlay,
    draw_overlay,
    draw_overlays,
    draw_strips,
    has_mark,
    mark_png,
)
from nearkin.storage import replacing

Picture = str | Path | bytes | Image.Image | np.ndarray
Pictures = Dataset | Picture | Sequence[Picture]


class PictureSource(NamedTuple):
    """An image by name: as the model takes it, and whole."""

    name: str
    sample: Callable[[], Tensor]
    picture: Callable[[], Image.Image]


class Listing(NamedTuple):
    """Image files, and how many pictures of `nearkin explain` were left out."""

    files: list[Path]
    left_out: int


def list_images(path: Path, out: Path | None = None) -> Listing:
    """The file itself, or the images in a folder and its folders, sorted, without hidden ones and explanations.

    Args:
        path: an image file or a folder.
        out: where explanations will be written; what is there already is left out if it lies inside the folder.
    """
    if not path.is_dir():
        return Listing([path], 0)
    within = None if out is None or path.resolve() not in out.resolve().parents else out.resolve()
    inside = (file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
    files = sorted(file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts))
    kept = [file for file in files if not (has_mark(file) or (within and within in file.resolve().parents))]
    if not kept:
        made = " but what explain made or would write over" if files else ""
        raise DataError(f"The folder {path} holds no images{made}: give one that does, or image files.")
    return Listing(kept, len(files) - len(kept))


def readable_images(files: Sequence[Path], progress: bool = True) -> list[Path]:
    """Those of some image files that can be decoded, in order.

    Raises:
        DataError: none can.
    """

    def trouble(file: Path) -> str | None:
        try:
            decode_image(file.read_bytes(), str(file), 1)
        except (DataError, OSError) as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as pool:
        told = list(track(pool.map(trouble, files), "Checking files", len(files), progress))
    kept = [file for file, problem in zip(files, told, strict=True) if problem is None]
    if files and not kept:
        raise DataError(f"None of the {len(files)} images can be read. For one: {told[0]}")
    return kept


def picture_sources(images: Pictures, loader: ItemLoader) -> list[PictureSource]:
    """All images of what the user gave, in order; see `nearkin.explain` for what that may be."""
    if isinstance(images, Dataset):
        if images.kind != "image":
            raise DataError(f"Explanations are drawn on images, and the data is {images.kind}.")
        return [
            PictureSource(str(path), partial(loader.of_dataset, images, row), partial(images.image, row))
            for row, path in enumerate(images.manifest.paths)
        ]
    listed = images if isinstance(images, Sequence) and not isinstance(images, str | bytes) else [images]
    sources: list[PictureSource] = []
    for place, item in enumerate(listed):
        many = list_images(Path(item)).files if isinstance(item, str | Path) else [item]
        sources += [_source(one, f"Image {place + 1}", loader) for one in many]
    return sources


def _source(item: Picture, name: str, loader: ItemLoader) -> PictureSource:
    if isinstance(item, str | Path):
        name = str(item)
    elif isinstance(item, torch.Tensor) or (isinstance(item, np.ndarray) and item.dtype != np.uint8):
        raise DataError(f"{name} is an array that is not uint8: give pixels, a PIL image or a path.")
    return PictureSource(name, partial(loader, item, name), partial(_whole, loader, item, name))


def _whole(loader: ItemLoader, item: Picture, name: str) -> Image.Image:
    image = loader.decoded(item, name)
    assert isinstance(image, Image.Image)
    return image


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
        side = min(512, *picture.size)
        return picture.resize((side, side), Image.Resampling.LANCZOS, box=box)

    def overlay(self, scale: ColourScale | None = None) -> Image.Image:
        """The whole image, and its padding, with the map where it belongs; without a scale, on one of its own."""
        picture, box = self._view.frame(self.image)
        return draw_overlay(picture, self.map, scale or common_scale([self]), box)

    def save(self, path: str | os.PathLike[str], scale: ColourScale | None = None) -> None:
        """Write the overlay with the key of its colours as a PNG file."""
        picture, box = self._view.frame(self.image)
        drawn = draw_keyed_overlay(picture, self.map, scale or common_scale([self]), box)
        with replacing(path) as temporary:
            temporary.write_bytes(mark_png(drawn))


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
            maps = measure(embedder, x)
            by_stage = [(None, maps)] if isinstance(maps, Tensor) else maps.items()  # None is the map that is pooled
            arrays = {stage: values.float().cpu().numpy() for stage, values in by_stage}
            for row, source in enumerate(islice(rest, len(batch))):
                found += [
                    Explanation(source.name, what, values[row], stage, source.picture, view)
                    for stage, values in arrays.items()
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


def common_scale(found: Sequence[Explanation]) -> ColourScale:
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
        return draw_overlays([OverlayPanel(one.seen(), one.map, line) for (one,), line in named], common_scale(found))
    strips = [OverlayStrip(maps[0].seen(), {str(one.stage): one.map for one in maps}, line) for maps, line in named]
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


def _of_different_classes(labels: np.ndarray, rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """At most `count` of the rows, drawn at random, a second one of a class only after one of each."""
    drawn = np.random.default_rng(seed).permutation(rows)
    _, codes = np.unique(labels[drawn], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], codes[order])
    turn = np.empty(len(drawn), dtype=np.int64)
    turn[order] = np.arange(len(drawn)) - starts
    return drawn[np.argsort(turn, kind="stable")][:count]
