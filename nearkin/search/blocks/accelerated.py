"""Neighbours on an accelerator: blocks of whole rows, and the device's own selection."""

from __future__ import annotations

import numpy as np
import torch

from nearkin.search.blocks.order import Order
from nearkin.search.blocks.preparation import Consume, hide
from nearkin.search.blocks.reservoir import EMPTY, to_keys

_ROWS = 4096


def search_rows(
    order: Order, rows: np.ndarray, depth: np.ndarray, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    """Find the nearest items of the queries `rows`, best by ascending depth; arguments as for `search_strips`."""
    device, size = order.queries.device, len(order.gallery)
    height = max(1, min(_ROWS, memory // (size * 24)))  # scores, and the selection's values, indices and scratch
    right = order.right(slice(0, size))
    buffer = torch.empty(min(height, len(rows)) * size, device=device)
    for start in range(0, len(rows), height):
        some, deep = rows[start : start + height], depth[start : start + height]
        on_device = torch.from_numpy(some).to(device)
        scores = order.scores(order.left(on_device), right, buffer[: len(some) * size].view(len(some), size))
        if exclude is not None:
            hide(scores, exclude[some])
        tolerance = order.tolerance(on_device)
        wanted = min(size, int(deep.max()) + int(deep.max()) // 4 + 16)
        values, indices = scores.topk(wanted, dim=1)
        last = values.gather(1, torch.from_numpy(deep).to(device).unsqueeze(1) - 1)[:, 0]
        doubtful = (values[:, -1] >= last - 2 * tolerance).cpu().numpy() & (wanted < size)
        consume(some[~doubtful], _keys(values, indices)[~doubtful])
        for row in np.flatnonzero(doubtful):  # rows full of ties, in whole
            values, indices = scores[row : row + 1].sort(dim=1, descending=True)
            consume(some[row : row + 1], _keys(values, indices))


def _keys(values: torch.Tensor, indices: torch.Tensor) -> np.ndarray:
    scores = values.cpu().numpy()
    keys = to_keys(scores, indices.cpu().numpy())
    keys[scores == -np.inf] = EMPTY  # hidden, not far
    keys.sort(axis=1)
    return keys
