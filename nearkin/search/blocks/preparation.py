"""What the ways of searching share: sides of the product in one piece, and items put out of sight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nearkin.search.blocks.order import Order

_CHUNK = 4096
_CHUNK_ENTRIES = 2**21

Consume = Callable[[np.ndarray, np.ndarray], None]
"""Takes queries (b,) and the keys of their candidates (b, c), nearest first, EMPTY where there are fewer."""


def prepared(side: Callable[[slice], Tensor], size: int, pad: int = 16) -> Tensor:
    """One side of the product (size padded, width), filled up with copies of the last point: any scorer can take it."""
    first = side(slice(0, 1))
    whole = torch.empty(-(-size // pad) * pad, first.shape[1], dtype=first.dtype, device=first.device)
    step = min(_CHUNK, max(1, _CHUNK_ENTRIES // first.shape[1]))
    for start in range(0, size, step):
        whole[start : min(start + step, size)] = side(slice(start, min(start + step, size)))
    whole[size:] = whole[size - 1]
    return whole


def prepared_gallery(order: Order, memory: int, pad: int = 16) -> Tensor | None:
    """The right side of the product in one piece, or None if it takes more memory than given."""
    size = len(order.gallery)
    return None if (size + pad) * order.width * 4 > memory else prepared(order.right, size, pad)


def padded(points: Tensor, pad: int = 16) -> Tensor:
    """Points (m, d) with copies of the last up to a multiple of `pad`."""
    missing = -len(points) % pad
    return torch.cat([points, points[-1:].expand(missing, -1)]) if missing else points


def hide(scores: Tensor, columns: np.ndarray) -> None:
    """Put the column (b,) of every row out of sight, where it is one of (b, m)."""
    row = np.flatnonzero((columns >= 0) & (columns < scores.shape[1]))
    if len(row):
        scores[torch.from_numpy(row), torch.from_numpy(columns[row])] = -torch.inf
