"""Neighbours of every query among the other queries, by half of the product and a sieve.

A tile of the score matrix and its mirror image hold the same scores, so a tile serves its rows and its columns. All
thresholds must be known first, and what passes them stays until the end: this is for as many items as fit the memory.
"""

from __future__ import annotations

import numpy as np
import torch

from nearkin.search.blocks.order import Order
from nearkin.search.blocks.preparation import Consume, prepared
from nearkin.search.blocks.sieve import PAD, TILE, Shuffled, Table, table_width, told_limits
from nearkin.search.blocks.workers import Queue, run_workers, worker_count


def fits_mirror(order: Order, depth: int, memory: int) -> bool:
    """Whether all that `search_mirror` keeps fits, if the queries look for so many items."""
    size = len(order.queries)
    a_row = 8 * table_width(size, depth, min(size, TILE)) + (1 if order.one_side else 2) * order.width * 4 + 64
    return order.symmetric and size * a_row + worker_count(order.queries.device) * TILE * TILE * 8 <= memory // 2


def search_mirror(order: Order, rows: np.ndarray, depth: np.ndarray, consume: Consume) -> np.ndarray:
    """Find the nearest others of the queries `rows` (r,), and return those (s,) that this way could not serve.

    Args:
        order: what scores; queries and gallery are the same.
        rows: which queries (r,); all others are looked at as items only.
        depth: how many items (r,) each needs.
        consume: called by the workers with queries and their keys.
    """
    size, device = len(order.queries), order.queries.device
    items = Shuffled(order, TILE, 0).items
    deep = np.zeros(size, np.int64)
    deep[rows] = depth
    deep = deep[items]
    right = prepared(lambda part: order.right(torch.from_numpy(items[part])), size, PAD)
    left = right if order.one_side else prepared(lambda part: order.left(torch.from_numpy(items[part])), size, PAD)
    strips = [slice(first, min(first + TILE, size)) for first in range(0, size, TILE)]
    limit, sure = np.empty(size, np.float32), np.empty(size, np.float32)
    table = Table(size, table_width(size, int(depth.max()), min(size, TILE)))

    def look(down: int, across: int, buffer: torch.Tensor) -> None:
        """Compare the queries of strip `down` with those of strip `across`, each way."""
        queries, others = strips[down], strips[across]
        tile = right[others.start : others.start + TILE]
        scores = buffer[: (queries.stop - queries.start) * len(tile)].view(-1, len(tile))
        order.scores(left[queries], tile, scores)
        scores[:, others.stop - others.start :] = -torch.inf
        if down == across:
            scores.fill_diagonal_(-torch.inf)
        if across == 0:
            limit[queries], sure[queries] = told_limits(order, items[queries], deep[queries], scores, size)
        values = scores.numpy()
        table.keep(queries, values, limit[queries], items[others])
        if down != across:
            table.keep_mirrored(others, values[:, : others.stop - others.start], limit[others], items[queries])

    def tell(_: int) -> None:
        buffer = torch.empty(TILE * TILE)
        for down in to_tell:
            look(down, 0, buffer)

    def compare(_: int) -> None:
        buffer = torch.empty(TILE * TILE)
        for down, across in to_compare:
            look(down, across, buffer)

    def finish(_: int) -> None:
        for strip in to_finish:
            queries = strips[strip]
            unserved.append(table.hand_over(queries, items[queries], deep[queries], sure[queries], consume))

    unserved: list[np.ndarray] = []
    number = len(strips)
    to_tell, to_finish = Queue(range(1, number)), Queue(range(number))
    to_compare = Queue((down, across) for across in range(1, number) for down in range(across, number))
    look(0, 0, torch.empty(TILE * TILE))  # its limits come first: the others' tiles serve its queries too
    for phase in (tell, compare, finish):
        run_workers(phase, device)
    return np.sort(np.concatenate(unserved))
