"""Decoding ahead, in order, in threads: Pillow and soundfile release the interpreter's lock while they decode."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

# Batches being decoded or waiting while one is computed.
_AHEAD = 2


def batches(load: Callable[[int], Tensor], count: int, batch_size: int, workers: int) -> Iterator[Tensor]:
    """Yield load(0), load(1), ... stacked in batches (B, ...), the last one perhaps smaller.

    Args:
        load: gives one sample; called in threads.
        count: how many samples there are.
        batch_size: B.
        workers: threads; 0 decodes between the batches.
    """
    samples = _ahead(load, count, batch_size * _AHEAD, workers) if workers else map(load, range(count))
    while batch := list(islice(samples, batch_size)):
        yield stacked(batch)


def _ahead(load: Callable[[int], Tensor], count: int, ahead: int, workers: int) -> Iterator[Tensor]:
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
    """Samples (..., C, H, W) as one batch (B, ..., C, H, W), channels innermost in memory if they are in the first."""
    if len({sample.dtype for sample in samples}) > 1:
        samples = [sample / 255.0 if sample.dtype == torch.uint8 else sample for sample in samples]
    if samples[0].ndim >= 3 and samples[0].movedim(-3, -1).is_contiguous():
        return torch.stack([sample.movedim(-3, -1) for sample in samples]).movedim(-1, -3)
    return torch.stack(samples)
