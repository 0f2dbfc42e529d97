"""What can be enrolled: data sets, folders, files, bytes, images and arrays; opened here, decoded only when needed.

With it go thumbnails, and columns of a table read as numbers and truth values.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.data.decode import AUDIO_SUFFIXES, IMAGE_SUFFIXES, MAX_PIXELS, decode_audio, decode_image, plain_image
from nearkin.data.sources import MANIFEST_NAMES, kind_of, open_data
from nearkin.data.stores import MAX_ITEM_BYTES, FolderStore, redacted
from nearkin.errors import DataError
from nearkin.gallery.checks import check_metadata, labels_of, metadata_of
from nearkin.gallery.values import Scalar
from nearkin.models.items import check_pixels, read_file, several

# As JSON writes them: 007 is an article number, not 7.
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_TRUTHS = {"true": True, "True": True, "false": False, "False": False}


def typed_column(column: Sequence[str]) -> list[Scalar]:
    """The texts of one column as numbers if all of them are, as truth values if all are, else as they are.

    By column, so that an article number 12 stays a text beside 007. An empty text is no value and becomes None.
    """
    for read in (_TRUTHS.get, _number):
        if all(not text or read(text) is not None for text in column):
            return [read(text) if text else None for text in column]
    return [text or None for text in column]


def _number(text: str) -> int | float | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    # A whole number of nineteen digits or more would lose some of them.
    return value if math.isfinite(value) and not text.lstrip("-").isdigit() else None


MAX_SIDE = 160
_QUALITY = 80


def thumbnail(image: Image.Image) -> bytes:
    """A JPEG of an image, at most `MAX_SIDE` pixels a side.

    It is upright, in RGB on white, and holds nothing but the picture: no EXIF, place, colour profile or comment.
    The image itself is left as it is.
    """
    if not image.width or not image.height:
        raise DataError(f"An image of {image.width} x {image.height} pixels has no thumbnail.")
    try:
        small = plain_image(image, "The image").convert("RGB")
        small.thumbnail((MAX_SIDE, MAX_SIDE))
        small.info.clear()
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=_QUALITY)
    except (OSError, ValueError) as error:
        raise DataError(f"An image of mode {image.mode} could not be made small ({error}).") from error
    return buffer.getvalue()


_COLLECTIONS = (".zip", ".csv", ".parquet")
_MEDIA = AUDIO_SUFFIXES | IMAGE_SUFFIXES
_PRINTED = ("CMYK", "YCbCr", "LAB", "HSV")
_PNG_EFFORT = 3


@dataclass(frozen=True)
class OpenedItem:
    """One item on its way into a gallery.

    Attributes:
        item: what a model can encode.
        source: the absolute path of a file that can be read again, or None.
        original: what to keep where there is no such file: the bytes it came as, or a PNG of its pixels; or None.
        picture: makes its thumbnail, None for audio.
    """

    item: Any
    source: str | None
    original: bytes | None
    picture: Callable[[], bytes | None]


@dataclass(frozen=True, eq=False)
class NewItems:
    """Items with what belongs to each.

    Attributes:
        items: n items for `open_item`; each is read when it is taken out.
        labels: the label of each, or None.
        metadata: the facts of each.
        names: what errors call each; None: by number.
        kind: "image" or "audio" if the data says so.
        dataset: the data set they are, if they are one.
    """

    items: Sequence[Any]
    labels: list[str | None]
    metadata: list[dict[str, Scalar]]
    names: Sequence[str] | None = None
    kind: str | None = None
    dataset: Dataset | None = None

    def __len__(self) -> int:
        return len(self.items)

    def name(self, row: int) -> str:
        """What errors call an item: its path, or "Item 3"."""
        if self.names is not None:
            return redacted(str(self.names[row]))
        item = self.items[row]
        return str(item) if isinstance(item, str | Path) else f"Item {row}"


def open_item(item: Any, kind: str, name: str) -> OpenedItem:
    """Make one item ready.

    Args:
        item: a path; the bytes of a file, recognised by their content; for images also a PIL image, pixels uint8
            (H, W) or (H, W, 3), float in [0, 1] (H, W, 1) or (H, W, 3), or a tensor (C, H, W); for audio also a
            waveform, float (n,) at 16 kHz.
        kind: what the model takes, "image" or "audio".
        name: what errors call it.

    Raises:
        DataError: it is missing, damaged, far too large or nothing of the kind.
    """
    if isinstance(item, str | Path):
        return _given_path(item, kind)
    if isinstance(item, bytes | bytearray | memoryview):
        return _given_bytes(bytes(item), kind, name)
    if kind == "audio":
        return OpenedItem(_waveform(item, name), None, None, lambda: None)
    if isinstance(item, Image.Image):
        return _given_image(item, name)
    if isinstance(item, np.ndarray | Tensor):
        check_pixels(item, kind, name)
        return _given_pixels(item, name)
    raise DataError(f"{name} is a {type(item).__name__}: give a path, bytes, a PIL image, an array or a tensor.")


def new_items(items: Any, labels: Any = None, metadata: Any = None) -> NewItems:
    """List what is to be added; nothing is decoded yet.

    Args:
        items: a `Dataset`; a folder with a folder for each class, or one of loose files that have no labels; a
            manifest, a zip or a name of the catalogue; one item as in `open_item`; a list of items, or an array
            (n, H, W, 3) or tensor (n, C, H, W) of them.
        labels: None: those of the data; one for all; or one for each, None for an item without.
        metadata: None, one mapping for all, or one for each; added to what a manifest says in its other columns.
    """
    if isinstance(items, str | Path):
        opened = _opened(items)
        if isinstance(opened, list):
            kind = kind_of(opened, items) if len(opened) > 1 else None
            paths = [Path(path) for path in opened]
            return NewItems(paths, labels_of(labels, len(paths)), metadata_of(metadata, len(paths)), None, kind)
        items = opened
    if isinstance(items, Dataset):
        return _listed_dataset(items, labels, metadata)
    found = several(items)
    return NewItems(found, labels_of(labels, len(found)), metadata_of(metadata, len(found)))


def _given_path(path: str | Path, kind: str) -> OpenedItem:
    place = os.path.abspath(os.path.expanduser(path))
    try:
        size = os.stat(place).st_size if os.path.isfile(place) else None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from error
    if size is None:
        raise DataError(f"There is no file {path}: check the path.")
    if place.encode("utf-8", "replace").decode() != place:
        raise DataError(f"The name of {place!r} is not valid Unicode: rename the file.")
    if size > MAX_ITEM_BYTES:
        raise DataError(f"{path} is larger than 1 GiB, too large for one item.")

    def picture() -> bytes:
        return thumbnail(decode_image(read_file(Path(place)), str(path), MAX_SIDE))

    return OpenedItem(place, place, None, picture if kind == "image" else lambda: None)


def _given_bytes(raw: bytes, kind: str, name: str) -> OpenedItem:
    if kind == "audio":
        return OpenedItem(decode_audio(raw, name), None, raw, lambda: None)
    small = thumbnail(decode_image(raw, name, MAX_SIDE))  # now, so that damaged bytes are refused here
    return OpenedItem(raw, None, raw, lambda: small)


def _given_image(image: Image.Image, name: str) -> OpenedItem:
    if image.width * image.height > MAX_PIXELS:
        raise DataError(f"{name} is too large ({image.width} x {image.height} pixels).")
    try:
        upright = ImageOps.exif_transpose(image)
        plain = upright.convert("RGB") if upright.mode in _PRINTED else upright
        buffer = io.BytesIO()
        plain.save(buffer, "PNG", compress_level=_PNG_EFFORT)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{name} is an image that could not be decoded ({error}).") from error
    return OpenedItem(plain, None, buffer.getvalue(), lambda: thumbnail(plain))


def _given_pixels(pixels: np.ndarray | Tensor, name: str) -> OpenedItem:
    """An image from an array (H, W) or (H, W, C), or a tensor (C, H, W); floats are kept as vectors only."""
    if isinstance(pixels, Tensor):
        pixels = pixels.detach().cpu()
        array = pixels.movedim(0, -1).numpy() if pixels.ndim == 3 and pixels.dtype != torch.bfloat16 else None
    else:
        array = pixels
    if array is not None and array.dtype == np.uint8:
        return _given_image(decode_image(array, name), name)
    return OpenedItem(pixels, None, None, lambda: None if array is None else _float_picture(array))


def _float_picture(array: np.ndarray) -> bytes | None:
    """A thumbnail of values in [0, 1], (H, W, 1) or (H, W, 3); None of anything else."""
    values = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    colours = values.ndim == 3 and values.shape[2] == 3
    if not (colours or values.ndim == 2) or not values.size or not np.issubdtype(values.dtype, np.floating):
        return None
    shades = np.nan_to_num(np.clip(values, 0, 1)) * 255
    return thumbnail(Image.fromarray(np.ascontiguousarray(shades.round().astype(np.uint8))))


def _waveform(item: Any, name: str) -> Any:
    wave = item.detach().cpu() if isinstance(item, Tensor) else item
    if isinstance(wave, Tensor) and wave.ndim == 1 and wave.is_floating_point():
        wave = wave.float().numpy()
    if isinstance(wave, Tensor) and wave.ndim == 3:
        return wave  # log-mel values, which the model checks
    if not (isinstance(wave, np.ndarray) and wave.ndim == 1 and np.issubdtype(wave.dtype, np.floating)):
        raise DataError(f"{name} must be the path or the bytes of an audio file, or a waveform, float (n,) at 16 kHz.")
    if not wave.size or not np.isfinite(wave).all():
        raise DataError(f"{name} is a waveform that is empty, or holds values that are not finite.")
    return wave.astype(np.float32, copy=False)


def _opened(source: str | Path) -> Dataset | list[str]:
    """A data set, or the paths of files without labels."""
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return _loose_files(path) or open_data(path, progress=False)
        if path.is_file() and path.suffix.lower() not in _COLLECTIONS:
            return [str(path)]
    except (OSError, ValueError) as error:
        raise DataError(f"{source} cannot be read ({error}).") from error
    return open_data(source)


def _loose_files(folder: Path) -> list[str]:
    """The images or recordings of a folder that has no folders in it, sorted; empty if it is of another form."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() != "__macosx"]
    if any(entry.is_dir() or entry.name in MANIFEST_NAMES for entry in shown):
        return []
    return sorted(entry.path for entry in shown if os.path.splitext(entry.name)[1].lower() in _MEDIA)


def _listed_dataset(dataset: Dataset, labels: Any, metadata: Any) -> NewItems:
    manifest, count = dataset.manifest, len(dataset)
    more = metadata_of(metadata, count)
    columns = {
        name: typed_column(list(values)) for name, values in manifest.columns.items() if name not in ("path", "label")
    }
    if columns:
        rows = zip(*columns.values(), strict=True)
        known = [{name: value for name, value in zip(columns, row, strict=True) if value is not None} for row in rows]
        more = [check_metadata({**facts, **extra}) for facts, extra in zip(known, more, strict=True)]
    own = labels_of(manifest.labels if labels is None else labels, count)
    return NewItems(_DatasetItems(dataset), own, more, manifest.paths.tolist(), dataset.kind, dataset)


class _DatasetItems(Sequence[Any]):
    """The items of a data set: paths where there are files, bytes or pixels read when taken out elsewhere."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: Any) -> Any:
        path, store = self.dataset.manifest.paths[row], self.dataset.store
        if isinstance(store, FolderStore):
            store.check([path])
            return Path(store.root) / path
        return store.read(path)
