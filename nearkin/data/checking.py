"""Checking data before it is used: decode everything once and name what cannot be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.stores import RemoteStore, UnreadableError
from nearkin.data.urls import shown
from nearkin.errors import DataError
from nearkin.progress import track
from nearkin.storage import write_text

_NAMED = 5


@dataclass(frozen=True)
class BadFile:
    """An item that cannot be used.

    Args:
        path: as the manifest names it.
        reason: what is wrong, to be read after the path.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.path)} {self.reason}"


def find_bad(dataset: Dataset, progress: bool = True, workers: int | None = None) -> list[BadFile]:
    """Decode every item in a pool of threads and return those that cannot be, in the manifest's order.

    Args:
        dataset: what to check.
        progress: show a bar.
        workers: threads; None: two, and more where they mostly wait for items that are far away.
    """
    if workers is None:
        workers = 16 if isinstance(dataset.store, RemoteStore) else 2

    def check(index: int) -> BadFile | None:
        try:
            dataset.load(index, hint=1)  # the smallest JPEG scale: all bytes are still read, fewer pixels made
        except UnreadableError as error:
            return BadFile(error.path, error.reason)
        return None

    with ThreadPoolExecutor(max(workers, 1)) as pool:
        found = pool.map(check, range(len(dataset)))
        return [bad for bad in track(found, "Checking files", len(dataset), progress) if bad is not None]


def drop_bad(
    dataset: Dataset, skip_bad: bool, progress: bool = True, memory: Path | None = None
) -> tuple[Dataset, list[BadFile]]:
    """Return the data set without the items that cannot be read, and those items.

    Args:
        dataset: what to check.
        skip_bad: leave such items out instead of raising.
        progress: show a bar.
        memory: a folder that remembers which data sets, by fingerprint, were found to be whole.

    Raises:
        DataError: there are such items and `skip_bad` is False, or nothing would be left.
    """
    try:
        whole = memory / dataset.fingerprint() if memory is not None else None
    except UnreadableError:  # an item is missing, and the check names it
        whole = None
    if whole is not None and whole.exists():
        return dataset, []
    bad = find_bad(dataset, progress)
    if not bad:
        if whole is not None:
            write_text(whole, "")
        return dataset, []
    if not skip_bad:
        named = "; ".join(str(item) for item in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise DataError(
            f"{len(bad)} of {len(dataset)} files cannot be used: {named}{more}. "
            "Repair or remove them, or leave them out with --skip-bad."
        )
    if len(bad) == len(dataset):
        raise DataError(f"None of the {len(dataset)} files can be used: {bad[0]}, for one.")
    dropped = {item.path for item in bad}
    return dataset.select(np.array([path not in dropped for path in dataset.manifest.paths])), bad
