"""The images that are to be explained: what the user may give, and what of a folder is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.data.decode import IMAGE_SUFFIXES, decode_image
from nearkin.errors import DataError
from nearkin.models.items import ItemLoader
from nearkin.progress import track
from nearkin.report.marks import is_marked

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
    kept = [file for file in files if not (is_marked(file) or (within and within in file.resolve().parents))]
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
