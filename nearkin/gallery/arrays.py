"""Arrays and tensors where images are asked for: which can be one, and which are several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.errors import DataError


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
        f"Items are a folder, a file, a data set, an image or a list of images, not a {type(items).__name__}."
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
