"""What can be encoded, and how each kind becomes tensors of the size a model takes, decoded ahead in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from nearkin.data.augment import add_size, fitting, margins, transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.decode import check_waveform, decode_audio, decode_image, plain_image
from nearkin.data.inputs import InputSpec
from nearkin.data.sources import open_data
from nearkin.data.stores import is_url
from nearkin.errors import DataError
from nearkin.models.recordings import padded

_AHEAD = 2
"""Batches being decoded or waiting while one is computed."""

_MOST_VALUES = 2**24
"""Numbers in a batch of recordings of different lengths."""


def batches(load: Callable[[int], Tensor], count: int, batch_size: int, workers: int) -> Iterator[Tensor]:
    """Yield load(0), load(1), ... stacked in batches (B, ...), the last one perhaps smaller.

    Recordings of different lengths make a batch only as long as it is not too large: see `nearkin.models.recordings`.

    Args:
        load: gives one sample; called in threads.
        count: how many samples there are.
        batch_size: B.
        workers: threads; 0 decodes between the batches.
    """
    samples = _load_ahead(load, count, batch_size * _AHEAD, workers) if workers else map(load, range(count))
    batch: list[Tensor] = []
    for sample in samples:
        if len(batch) == batch_size or _too_large([*batch, sample]):
            yield stacked(batch)
            batch = []
        batch.append(sample)
    if batch:
        yield stacked(batch)


def _too_large(samples: list[Tensor]) -> bool:
    """Whether samples of different sizes would take more than 64 MB when all are as large as the largest."""
    sizes = [sample.numel() for sample in samples]
    return min(sizes) < max(sizes) and len(sizes) * max(sizes) > _MOST_VALUES


def _load_ahead(load: Callable[[int], Tensor], count: int, ahead: int, workers: int) -> Iterator[Tensor]:
    """Yield the samples in order, keeping `ahead` of them in the making."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        waiting: deque[Future[Tensor]] = deque()
        for index in range(count):
            waiting.append(pool.submit(load, index))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # After an error, or when the caller stops early, nobody wants the rest.
        pool.shutdown(wait=True, cancel_futures=True)


def stacked(samples: list[Tensor]) -> Tensor:
    """Samples (..., C, H, W) as one batch (B, ..., C, H, W), channels innermost in memory if they are in the first.

    Recordings that are shorter than the longest are filled up with NaN, which `nearkin.models.recordings` takes off.
    """
    if len({sample.dtype for sample in samples}) > 1:
        samples = [sample / 255.0 if sample.dtype == torch.uint8 else sample for sample in samples]
    if len({sample.shape[-1] for sample in samples}) > 1:
        samples = padded(samples)
    if samples[0].ndim >= 3 and samples[0].movedim(-3, -1).is_contiguous():
        return torch.stack([sample.movedim(-3, -1) for sample in samples]).movedim(-1, -3)
    return torch.stack(samples)


Item = str | Path | bytes | Image.Image | np.ndarray | Tensor
Items = Dataset | Item | Sequence[Item]

_COLLECTIONS = (".zip", ".csv", ".parquet")
_LUMINANCE = (0.299, 0.587, 0.114)


def several(items: Any) -> Sequence[Any]:
    """What was given as a list of items; one item is a list of one.

    Args:
        items: one item; or a list, an iterator, an array (n, H, W) or (n, H, W, C), or a tensor (n, C, H, W) of items.
    """
    if isinstance(items, str | Path | bytes | bytearray | memoryview | Image.Image):
        return [items]
    if isinstance(items, Tensor):
        return items if items.ndim == 4 else [items]  # type: ignore[return-value]
    if isinstance(items, np.ndarray):
        if items.dtype.kind in "OUS" and items.ndim == 1:
            return list(items)
        single = items.ndim < 3 or (items.ndim == 3 and items.shape[2] in (1, 3))
        return [items] if single else items  # type: ignore[return-value]
    if isinstance(items, Iterable) and not isinstance(items, dict | set | frozenset):
        return items if isinstance(items, list | tuple) else list(items)
    raise DataError(
        f"Pass a folder, a file, a data set, an image or a list of images as items, not a {type(items).__name__}."
    )


def check_pixels(item: Any, kind: str, name: str) -> None:
    """Refuse an array or tensor that is no image, or might as well be something else; other items pass.

    Args:
        item: what is to be encoded.
        kind: what the model takes; only "image" is looked at.
        name: what errors call it.
    """
    if isinstance(item, Tensor) and (item.layout != torch.strided or item.is_quantized or item.is_meta):
        raise DataError(f"{name} is a tensor that is not dense, or holds no values: give an ordinary one.")
    if kind != "image" or not isinstance(item, np.ndarray) or item.dtype.kind != "f" or item.ndim == 3:
        return
    if item.ndim == 2:
        raise DataError(
            f"{name} is a matrix {item.shape} of real numbers, which may be an image of greys or vectors: give an "
            "image as uint8 (H, W) or float (H, W, 1), and vectors to a gallery of vectors; this one makes its own."
        )
    raise DataError(
        f"{name} is an array {item.shape} of real numbers, which is no image (H, W, C): give an image, and vectors to "
        "a gallery of vectors; this one makes its own."
    )


def open_collection(items: Items) -> Items:
    """A folder, zip or manifest as the data set it is, a URL as that of a manifest; anything else as it was given."""
    if isinstance(items, str) and is_url(items):
        return open_data(items, progress=False)
    if isinstance(items, str | Path) and (Path(items).is_dir() or Path(items).suffix.lower() in _COLLECTIONS):
        return open_data(items, progress=False)
    return items


def check_kind(dataset: Dataset, spec: InputSpec) -> None:
    """Refuse data of another kind than a model takes."""
    if dataset.kind != spec.kind:
        raise DataError(
            f"The model takes {spec.kind}, but the data is {dataset.kind}: use other data or another model."
        )


def open_items(items: Items, spec: InputSpec) -> _ItemList | _Tensors:
    """Recognise what the user gave; see `Embedder.encode` for what may be given.

    Both kinds have a length, and `batches` of (B, C, H, W), uint8 or float in [0, 1], for audio log-mel values; not
    normalised.
    """
    items = open_collection(items)
    if isinstance(items, Dataset):
        check_kind(items, spec)
        return _ItemList(spec, items)
    if isinstance(items, np.ndarray):
        if spec.kind == "audio":
            return _ItemList(spec, items if items.ndim == 2 else [items])
        stack = items[None] if items.ndim == 2 or (items.ndim == 3 and items.shape[2] == 3) else items
        if stack.ndim not in (3, 4):
            raise DataError(
                "An array of images must have the shape (H, W), (H, W, 3), (n, H, W) or (n, H, W, 3), not "
                f"{items.shape}."
            )
        if _is_float_image(stack, spec):
            return _Tensors(_channels_first(stack), spec, "The array")
        return _ItemList(spec, stack)
    if isinstance(items, Tensor):
        if items.ndim not in (3, 4):
            raise DataError(f"The tensor must have the shape (n, C, H, W) or (C, H, W), not {tuple(items.shape)}.")
        return _Tensors(items if items.ndim == 4 else items[None], spec, "The tensor")
    return _ItemList(spec, several(items))


class ItemLoader:
    """Turns one item into the sample (C, H, W) that a model takes; safe to call in threads.

    Args:
        spec: what the model takes.
    """

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec
        self.transform = transform_for(spec, None, train=False)
        self.hint = self.transform.hint

    def __call__(self, item: Item, name: str) -> Tensor:
        """The sample of a path, the bytes of a file, an image, an array or a tensor; `name` is for errors."""
        if isinstance(item, np.ndarray) and _is_float_image(item, self.spec):
            if item.ndim not in (2, 3):
                raise DataError(f"{name} must be an image (H, W) or (H, W, C), not an array {item.shape}.")
            item = _channels_first(item[None])[0]
        if isinstance(item, Tensor):
            return _fitted(item[None], self.spec, name)[0]
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
            return self.decoded(read_file(Path(item)), str(item), hint)
        if isinstance(item, bytes):
            return decode_audio(item, name) if self.spec.kind == "audio" else decode_image(item, name, hint)
        if self.spec.kind == "audio":
            if isinstance(item, np.ndarray) and item.ndim == 1 and np.issubdtype(item.dtype, np.floating):
                check_waveform(item, name)
                return item
            raise DataError(f"{name} must be the path of an audio file or a waveform, float (n,) at 16 kHz.")
        if isinstance(item, np.ndarray):
            return decode_image(item, name)
        if isinstance(item, Image.Image):
            try:
                return plain_image(item, name)
            except (OSError, ValueError, SyntaxError) as error:
                raise DataError(f"{name} is an image that could not be decoded ({error}).") from error
        raise DataError(f"{name} is a {type(item).__name__}: give a path, a PIL image, an array of pixels or a tensor.")


class _ItemList:
    """Items loaded one by one in threads: a data set, or a list of paths, images, arrays or tensors."""

    def __init__(self, spec: InputSpec, items: Dataset | Sequence[Item] | np.ndarray) -> None:
        self.items = items
        self.loader = ItemLoader(spec)

    def __len__(self) -> int:
        return len(self.items)

    def batches(self, batch_size: int, workers: int) -> Iterator[Tensor]:
        return batches(self._load, len(self), batch_size, workers)

    def _load(self, index: int) -> Tensor:
        if isinstance(self.items, Dataset):
            return self.loader.of_dataset(self.items, index)
        return self.loader(self.items[index], f"Item {index}")


@dataclass(frozen=True)
class _Tensors:
    """Samples (n, C, H, W) that are there already."""

    tensor: Tensor
    spec: InputSpec
    name: str

    def __len__(self) -> int:
        return len(self.tensor)

    def batches(self, batch_size: int, workers: int) -> Iterator[Tensor]:
        starts = range(0, len(self), batch_size)
        return (_fitted(self.tensor[first : first + batch_size], self.spec, self.name) for first in starts)


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
    if spec.size_feature is not None:
        return _sized(batch, spec, name)
    if batch.dtype != torch.uint8:
        batch = _checked_range(batch, name)
    if batch.shape[1] != spec.channels:
        batch = _with_channels(batch, spec.channels, name)
    if batch.shape[2:] != (spec.size, spec.size):
        if spec.fit == "pad":
            return _padded(batch, spec.size)
        return _resized(_as_unit(batch), spec.size)
    return batch


def _sized(batch: Tensor, spec: InputSpec, name: str) -> Tensor:
    """A batch with its sizes: as it is if it has them, as samples of a data set do, else with its own shape."""
    if batch.shape[1] == spec.planes and batch.is_floating_point():
        return batch.float()
    if spec.size_feature != "pixels":
        raise DataError(
            f"{name} has no manifest to know its size from, as the model does: give a data set, or train with "
            "model.size_feature: pixels."
        )
    pixels = _as_unit(_fitted(batch, replace(spec, size_feature=None), name))
    return add_size(pixels, (batch.shape[3], batch.shape[2]))


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
    unit = _as_unit(batch)
    return torch.einsum("bchw,c->bhw", unit, unit.new_tensor(_LUMINANCE))[:, None]


def _as_unit(batch: Tensor) -> Tensor:
    return batch if batch.is_floating_point() else batch / 255.0


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
        batch = F.interpolate(_as_unit(batch), size=(height, width), mode="bilinear", antialias=True)
    rows, inner = batch[:, :, :: max(1, height - 1)], batch[:, :, 1:-1]
    border = torch.cat([rows.flatten(2), inner[..., :: max(1, width - 1)].flatten(2)], dim=2)
    # Of an even number of values torch takes the lower middle one, as `border_colour` does.
    square = border.median(dim=2).values[:, :, None, None].repeat(1, 1, size, size)
    left, top = margins(width, height, size)
    square[:, :, top : top + height, left : left + width] = batch
    return square


def read_file(path: Path) -> bytes:
    """The bytes of an item's file."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a path with a NUL is a value that cannot be one
        shown, reason = str(path), getattr(error, "strerror", None) or error
        raise DataError(
            f"{shown if shown.isprintable() else repr(shown)} could not be read ({reason}): check the path."
        ) from error
