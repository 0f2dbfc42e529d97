"""The two data sets of a comparison: opened, chosen, drawn and checked before either is embedded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearkin.audits.drift_classes import LEAST_ITEMS, shared_classes
from nearkin.audits.drift_result import Side
from nearkin.data.catalogue import cache_directory
from nearkin.data.checking import drop_bad
from nearkin.data.dataset import Dataset
from nearkin.data.decode import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.sources import kind_of, open_data
from nearkin.data.stores import FolderStore, UnreadableError
from nearkin.errors import DataError
from nearkin.search import exact

Source = str | Path | Dataset
Only = tuple[Mapping[str, str], Mapping[str, str]]

_NAMES = ("reference", "new data")
_ALIKE = 1e-3
"""Share of the usual distance to the nearest reference item within which embeddings are those of one item."""


@dataclass(frozen=True)
class Choice:
    """Which items are compared.

    Args:
        only: column to value of the items to take, of the reference and of the new data.
        limit: items of each side that are drawn at the most; None: all.
        by_class: whether classes are tested too, and so must be known and shared.
        seed: of the items that are drawn.
        skip_bad: leave out files that cannot be read.
    """

    only: Only = ({}, {})
    limit: int | None = None
    by_class: bool = False
    seed: int = 0
    skip_bad: bool = False


def open_side(source: Source, data_root: str | Path | None, progress: bool, labelled: bool) -> Dataset:
    """Open data in any form; unless labels are needed also a folder of loose files, all of one label."""
    try:
        return open_data(source, data_root=Path(data_root) if data_root else None, progress=progress)
    except DataError:
        loose = None if labelled or isinstance(source, Dataset) else _loose(Path(source).expanduser())
        if loose is None:
            raise
        return loose


def choose_items(
    opened: Sequence[Dataset], choice: Choice, kind: str, progress: bool
) -> tuple[list[Dataset], list[str]]:
    """The items of both sides that are compared, and what a reader must know of them.

    Args:
        opened: the reference and the new data.
        choice: which items.
        kind: what the model takes, "image" or "audio".
        progress: whether to show progress bars.
    """
    notes, sides = [], []
    for place, (name, dataset) in enumerate(zip(_NAMES, opened, strict=True)):
        if dataset.kind != kind:
            raise DataError(f"The model takes {kind} and the {name} is {dataset.kind}: choose another of the two.")
        chosen = _only(dataset, choice.only[place], name)
        drawn = _drawn(chosen, choice.limit, (choice.seed, place))
        if len(drawn) < len(chosen):
            notes.append(f"Of the {name}, {len(drawn):,} of {len(chosen):,} items were drawn.")
        sides.append(drawn)
    _check_sizes(sides, choice.by_class)
    for place, name in enumerate(_NAMES):
        whole, bad = drop_bad(sides[place], choice.skip_bad, progress, memory=cache_directory() / "checked")
        if bad:
            notes.append(f"Of the {name}, {len(bad)} files could not be read and were left out.")
        sides[place] = _titled(whole, choice.only[place])
    _check_sizes(sides, choice.by_class)
    return sides, notes


def count_copies(reference: Side, new: Side) -> int:
    """How many new items are in the reference too, by the content of their files.

    Where the one side has files and the other decoded images, by embeddings that hardly differ: how a batch was made
    up changes the last digits.
    """
    known, asked = _contents(reference.dataset), _contents(new.dataset)
    if {kind for kind, _ in known} != {kind for kind, _ in asked}:
        return _alike(reference.embeddings, new.embeddings)
    there = set(known)
    return sum(content in there for content in asked)


def _contents(dataset: Dataset) -> list[tuple[str, bytes]]:
    """Of each item what its store gives, "file" or the type and shape of an array, and a hash of it."""
    found = []
    for path in dataset.manifest.paths:
        raw = dataset.store.read(path)
        kind = "file" if isinstance(raw, bytes) else "pixels"
        shape = b"" if isinstance(raw, bytes) else str(raw.shape).encode("ascii")
        content = raw if isinstance(raw, bytes) else np.ascontiguousarray(raw).tobytes()
        found.append((kind, hashlib.sha256(shape + content).digest()))
    return found


def _alike(reference: np.ndarray, new: np.ndarray) -> int:
    """How many new points are nearly one of the reference, against how far these usually are from each other."""
    others = exact(reference, k=1, space="euclidean")[1][:, 0].cpu().numpy()
    nearest = exact(new, reference, 1, space="euclidean")[1][:, 0].cpu().numpy()
    # Of the pairs once more: a search by products is not exact to the digits that count here.
    usual = np.linalg.norm(reference.astype(np.float64) - reference[others], axis=1)
    away = np.linalg.norm(new.astype(np.float64) - reference[nearest], axis=1)
    return int((away <= _ALIKE * np.median(usual)).sum())


def _loose(folder: Path) -> Dataset | None:
    """A folder of media files without any folder in it; None if it is something else."""
    if not folder.is_dir():
        return None
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    paths = [entry.name for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES | AUDIO_SUFFIXES]
    if not paths or any(entry.is_dir() for entry in entries):
        return None
    store, name = FolderStore(folder), folder.resolve().name
    for path in paths:
        with suppress(UnreadableError):  # a broken file is for the check to name; a link that leaves is refused here
            store.check([path])
    return Dataset(Manifest.from_rows(paths, [name] * len(paths)), store, kind_of(paths, folder), name)


def _check_sizes(sides: Sequence[Dataset], by_class: bool) -> None:
    for name, side in zip(_NAMES, sides, strict=True):
        if len(side) < LEAST_ITEMS:
            raise DataError(f"The {name} has {len(side)} items, and a test needs two or more: give more.")
    if by_class:
        shared_classes(sides[0].labels, sides[1].labels)


def _only(dataset: Dataset, wanted: Mapping[str, str], name: str) -> Dataset:
    if not wanted:
        return dataset
    chosen = dataset.where(**wanted)
    if not len(chosen):
        raise DataError(f"No item of the {name} has {_words(wanted)}: check the columns of its manifest.")
    return chosen


def _drawn(dataset: Dataset, limit: int | None, seed: tuple[int, int]) -> Dataset:
    """At most `limit` items, in their order; the two sides draw apart from each other."""
    if limit is None or len(dataset) <= limit:
        return dataset
    return dataset.select(np.sort(np.random.default_rng(seed).choice(len(dataset), limit, replace=False)))


def _titled(dataset: Dataset, only: Mapping[str, str]) -> Dataset:
    """The data set under a name that says what of it was taken."""
    name = f"{dataset.name} ({_words(only)})" if only else dataset.name
    return Dataset(dataset.manifest, dataset.store, dataset.kind, name)


def _words(only: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in only.items())
