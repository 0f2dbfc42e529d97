"""What can be encoded, and how each kind becomes tensors of the size a model eats."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from nearkin.data.augment import transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.decode import decode_audio, decode_image
from nearkin.data.inputs import InputSpec
from nearkin.data.padding import fitting, margins
from nearkin.data.sources import open_data
from nearkin.data.urls import is_url
from nearkin.errors import DataError
from nearkin.models.prefetch import batches

Item = str | Path | bytes | Image.Image | np.ndarray | Tensor
Items = Dataset | Item | Sequence[Item]

_COLLECTIONS = (".zip", ".csv", ".parquet")
_LUMINANCE = (0.299, 0.587, 0.114)


class Samples(Protocol):
    """Items on their way into a model."""

    def __len__(self) -> int: ...

    def batches(self, batch_size: int, workers: int) -> Iterator[Tensor]:
        """Yield (B, C, H, W), uint8 or float in [0, 1], for audio log-mel values; not normalised."""
        ...


def opened(items: Items) -> Items:
    """A folder, zip or manifest as the data set it is, a URL as that of a manifest; anything else as it was given."""
    if isinstance(items, str) and is_url(items):
        return open_data(items, progress=False)
    if isinstance(items, str | Path) and (Path(items).is_dir() or Path(items).suffix.lower() in _COLLECTIONS):
        return open_data(items, progress=False)
    return items


def open_items(items: Items, spec: InputSpec) -> Samples:
    """Recognise what the user gave; see `Embedder.encode` for what may be given."""
    items = opened(items)
    if isinstance(items, Dataset):
        if items.kind != spec.kind:
            raise DataError(f"The model takes {spec.kind} and the data is {items.kind}: choose another of the two.")
        return _Listed(spec, items)
    if isinstance(items, np.ndarray):
        return _open_array(items, spec)
    if isinstance(items, Tensor):
        return _Tensors(items if items.ndim == 4 else items[None], spec, "The tensor")
    if isinstance(items, Sequence) and not isinstance(items, str | bytes):
        return _Listed(spec, items)
    return _Listed(spec, [items])


class ItemLoader:
    """Turns one item into the sample (C, H, W) that a model eats; safe to call in threads.

    Args:
        spec: what the model eats.
    """

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec
        self.transform = transform_for(spec, None, train=False)
        self.hint = self.transform.hint

    def __call__(self, item: Item, name: str) -> Tensor:
        """The sample of a path, the bytes of a file, an image, an array or a tensor; `name` is told in errors."""
        if isinstance(item, Tensor) or (isinstance(item, np.ndarray) and _is_float_image(item, self.spec)):
            if isinstance(item, np.ndarray) and item.ndim not in (2, 3):
                raise DataError(f"{name} must be an image (H, W) or (H, W, C), not an array {item.shape}.")
            tensor = item if isinstance(item, Tensor) else _channels_first(item[None])[0]
            return _fitted(tensor[None], self.spec, name)[0]
        return self.transform(self.decoded(item, name, self.hint))

    def of_dataset(self, dataset: Dataset, index: int) -> Tensor:
        """The sample of one item of a data set."""
        return self.transform(dataset.load(index, self.hint))

    def decoded(self, item: Any, name: str, hint: int | None = None) -> Image.Image | np.ndarray:
        """The image of a path, the bytes of a file, an image or an array of pixels; for audio the waveform.

        Args:
            item: what is to be decoded.
            name: what to call it in errors; a path is called by itself.
            hint: the short side needed, as of `decode_image`; None: decode at full size.
        """
        if isinstance(item, str | Path):
            return self._from_file(_read(Path(item)), str(item), hint)
        if isinstance(item, bytes):
            return self._from_file(item, name, hint)
        if self.spec.kind == "audio":
            if isinstance(item, np.ndarray) and item.ndim == 1 and np.issubdtype(item.dtype, np.floating):
                return item
            raise DataError(f"{name} must be the path of an audio file or a waveform, float (n,) at 16 kHz.")
        if isinstance(item, np.ndarray):
            return decode_image(item, name)
        if isinstance(item, Image.Image):
            return _plain(item, name)
        raise DataError(f"{name} is a {type(item).__name__}: give a path, a PIL image, an array of pixels or a tensor.")

    def _from_file(self, raw: bytes, name: str, hint: int | None) -> Image.Image | np.ndarray:
        return decode_audio(raw, name) if self.spec.kind == "audio" else decode_image(raw, name, hint)


class _Listed:
    """Items loaded one by one in threads: a data set, or a list of paths, images, arrays or tensors."""

    def __init__(self, spec: InputSpec, items: Dataset | Sequence[Item] | np.ndarray) -> None:
        self.items = items
        self.loader = ItemLoader(spec)

    def __len__(self) -> int:
        return len(self.items)

    def batches(self, batch_size: int, workers: int) -> Iterator[Tensor]:
        return batches(self.load, len(self), batch_size, workers)

    def load(self, index: int) -> Tensor:
        """The sample (C, H, W) of one item."""
        if isinstance(self.items, Dataset):
            return self.loader.of_dataset(self.items, index)
        return self.loader(self.items[index], f"Item {index}")


class _Tensors:
    """Samples (n, C, H, W) that are there already."""

    def __init__(self, tensor: Tensor, spec: InputSpec, name: str) -> None:
        if tensor.ndim != 4:
            raise DataError(f"{name} must have the shape (n, C, H, W) or (C, H, W), not {tuple(tensor.shape)}.")
        self.tensor = tensor
        self.spec = spec
        self.name = name

    def __len__(self) -> int:
        return len(self.tensor)

    def batches(self, batch_size: int, workers: int) -> Iterator[Tensor]:
        fit = partial(_fitted, spec=self.spec, name=self.name)
        return (fit(self.tensor[first : first + batch_size]) for first in range(0, len(self), batch_size))


def _open_array(array: np.ndarray, spec: InputSpec) -> Samples:
    """One or several images, or for audio waveforms, in an array."""
    if spec.kind == "audio":
        return _Listed(spec, array if array.ndim == 2 else [array])
    single = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    stack = array[None] if single else array
    if stack.ndim not in (3, 4):
        raise DataError(
            f"An array of images must have the shape (H, W), (H, W, 3), (n, H, W) or (n, H, W, 3), not {array.shape}."
        )
    if _is_float_image(stack, spec):
        return _Tensors(_channels_first(stack), spec, "The array")
    return _Listed(spec, stack)


def _is_float_image(array: np.ndarray, spec: InputSpec) -> bool:
    return spec.kind == "image" and bool(np.issubdtype(array.dtype, np.floating))


def _channels_first(images: np.ndarray) -> Tensor:
    """Images (n, H, W) or (n, H, W, C) as a tensor (n, C, H, W)."""
    tensor = torch.from_numpy(np.ascontiguousarray(images))
    return tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)


def _fitted(batch: Tensor, spec: InputSpec, name: str) -> Tensor:
    """A batch (B, C, H, W) with the channels and the size of the spec, in [0, 1] or uint8."""
    if batch.ndim != 4:
        raise DataError(f"{name} must have the shape (C, H, W), not {tuple(batch.shape[1:])}.")
    if spec.kind == "audio":
        if batch.shape[1:3] != (1, spec.size) or not batch.is_floating_point():
            raise DataError(f"{name} must hold log-mel values (1, {spec.size}, frames), not {tuple(batch.shape[1:])}.")
        return batch.float()
    if not batch.numel():
        raise DataError(f"{name} has no pixels.")
    if batch.dtype != torch.uint8:
        batch = _checked_range(batch, name)
    if batch.shape[1] != spec.channels:
        batch = _with_channels(batch, spec.channels, name)
    if batch.shape[2:] != (spec.size, spec.size):
        if spec.fit == "pad":
            return _padded(batch, spec.size)
        batch = _resized(batch if batch.is_floating_point() else batch / 255.0, spec.size)
    return batch


def _checked_range(batch: Tensor, name: str) -> Tensor:
    if not batch.is_floating_point():
        raise DataError(f"{name} holds {str(batch.dtype).removeprefix('torch.')}: give uint8, or float in [0, 1].")
    low, high = (float(value) for value in batch.aminmax())
    if not (low >= 0.0 and high <= 1.0):
        raise DataError(
            f"{name} holds values from {low:g} to {high:g}: give uint8, or float in [0, 1], not normalised."
        )
    return batch.float()


def _with_channels(batch: Tensor, channels: int, name: str) -> Tensor:
    if batch.shape[1] == 1:
        return batch.expand(-1, channels, -1, -1)
    if batch.shape[1] != 3:
        raise DataError(f"{name} has {batch.shape[1]} channels: give 1 (grey) or 3 (colour).")
    unit = batch if batch.is_floating_point() else batch / 255.0
    return torch.einsum("bchw,c->bhw", unit, unit.new_tensor(_LUMINANCE))[:, None]


def _resized(batch: Tensor, size: int) -> Tensor:
    """The centre square of each image (B, C, H, W), resized to (B, C, size, size)."""
    side = min(batch.shape[2:])
    top, left = (batch.shape[2] - side) // 2, (batch.shape[3] - side) // 2
    square = batch[:, :, top : top + side, left : left + side]
    return F.interpolate(square, size=(size, size), mode="bilinear", antialias=True)


def _padded(batch: Tensor, size: int) -> Tensor:
    """The images (B, C, H, W), each whole in the middle of (C, size, size) as `padded` puts it there."""
    width, height = fitting(batch.shape[3], batch.shape[2], size)
    if (height, width) != batch.shape[2:]:
        unit = batch if batch.is_floating_point() else batch / 255.0
        batch = F.interpolate(unit, size=(height, width), mode="bilinear", antialias=True)
    rows, inner = batch[:, :, :: max(1, height - 1)], batch[:, :, 1:-1]
    border = torch.cat([rows.flatten(2), inner[..., :: max(1, width - 1)].flatten(2)], dim=2)
    # Of an even number of values torch takes the lower middle one, as `border_colour` does.
    square = border.median(dim=2).values[:, :, None, None].repeat(1, 1, size, size)
    left, top = margins(width, height, size)
    square[:, :, top : top + height, left : left + width] = batch
    return square


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a path with a NUL is a value that cannot be one
        shown, reason = str(path), getattr(error, "strerror", None) or error
        raise DataError(
            f"{shown if shown.isprintable() else repr(shown)} could not be read ({reason}): check the path."
        ) from error


def _plain(image: Image.Image, name: str) -> Image.Image:
    """A PIL image of any mode as the decoder would have given it: upright, L or RGB."""
    try:
        image = ImageOps.exif_transpose(image)
        if image.mode in ("L", "RGB") and not image.has_transparency_data:
            image.load()
            return image
        if image.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
            return image.convert("RGB")
        # Rare modes go the way of a file, so that there is one rule for alpha, palettes and 16-bit greys.
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise DataError(f"{name} is an image that could not be decoded ({error}).") from error
    return decode_image(buffer.getvalue(), name)
