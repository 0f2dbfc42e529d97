"""Recordings of any length through a network: several lengths in one batch, long ones in overlapping windows.

A batch (B, 1, mels, T) is as long as its longest recording, and where a shorter one has ended it is NaN. A recording of
more than 20 s goes through in windows of 20 s, a new one every 10 s, and its vector is the mean of theirs: memory does
not grow with the recording, and every frame counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.errors import DataError

WINDOW_FRAMES = 2000
"""Frames of 10 ms that go through a network at once."""

_WINDOWS = 8
"""Windows of one recording that go through together."""


def padded(samples: list[Tensor]) -> list[Tensor]:
    """Samples (1, mels, T) of several lengths, all as long as the longest: what they lack is NaN."""
    longest = max(sample.shape[-1] for sample in samples)
    return [F.pad(sample, (0, longest - sample.shape[-1]), value=torch.nan) for sample in samples]


def by_length(batch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (b,) of a batch (B, 1, mels, T), and these recordings (b, 1, mels, t) of one length without what is NaN."""
    lengths = (~batch[:, 0, 0].isnan()).sum(dim=1)
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        part = batch[rows][..., :length]
        if not length or not part.isfinite().all():
            raise DataError("Some log-mel values are not finite numbers: give recordings, or values without NaN.")
        yield rows, part


def embed_recordings(batch: Tensor, run: Callable[[Tensor], Tensor], mean: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Vectors (B, d) of recordings (B, 1, mels, T) of one length or several.

    Args:
        batch: the recordings.
        run: from recordings of one length to their vectors; or to their maps, which must then have one size.
        mean: the mean (d,) of the vectors (n, d) of a long recording's windows; None: no windows are cut.
    """
    found: list[Tensor] = [torch.empty(0)] * len(batch)
    for rows, part in by_length(batch):
        if mean is None or part.shape[-1] <= WINDOW_FRAMES:
            vectors = list(run(part))
        else:
            vectors = [mean(_of_windows(one, run)) for one in part]
        for row, vector in zip(rows.tolist(), vectors, strict=True):
            found[row] = vector
    if len({vector.shape for vector in found}) > 1:
        raise DataError("Recordings of different lengths have maps of different sizes: cut them to one length.")
    return torch.stack(found)


def _of_windows(recording: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Vectors (n, d) of the windows of a recording (1, mels, T); the last one ends where the recording does."""
    room = recording.shape[-1] - WINDOW_FRAMES
    starts = [*range(0, room, WINDOW_FRAMES // 2), room]
    parts = [
        run(torch.stack([recording[..., start : start + WINDOW_FRAMES] for start in starts[first : first + _WINDOWS]]))
        for first in range(0, len(starts), _WINDOWS)
    ]
    return torch.cat(parts)
