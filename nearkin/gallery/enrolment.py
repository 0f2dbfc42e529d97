"""Items and vectors as records ready to be written, and a gallery moved to another model or other vectors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from nearkin.data.stores import UnreadableError
from nearkin.errors import DataError, ModelError, NearkinError, drop_tracebacks
from nearkin.gallery.calibration import is_training_data, note_training_items
from nearkin.gallery.checks import check_ids, labels_of, metadata_of, points_of_space, vector_rows
from nearkin.gallery.items import NewItems, new_items, open_item
from nearkin.gallery.model import GalleryModel, QueryEncoder
from nearkin.gallery.store import GalleryStore, Record
from nearkin.gallery.values import Item, Settings
from nearkin.progress import Progress

_BATCH = 32
_WORKERS = 2


Enrolment = tuple[list[Record], np.ndarray]
"""Records and their vectors float32 (n, d)."""


def enrol(
    model: GalleryModel,
    items: Any,
    labels: Any,
    metadata: Any,
    ids: Sequence[str] | None,
    *,
    skip_bad: bool = False,
    progress: bool = False,
) -> tuple[list[Record], np.ndarray, bool]:
    """Records, their vectors (n, d), and whether they come with the data that trained the model."""
    settings = model.store.settings
    if settings.kind == "vector":
        vectors = points_of_space(model.space, vector_rows(items, settings.dimension))
        return *enrol_vectors(vectors, labels, metadata, ids), False
    given = new_items(items, labels, metadata)
    records, vectors = enrol_items(model.needed_encoder, given, ids, skip_bad=skip_bad, progress=progress)
    return records, vectors, given.dataset is not None and is_training_data(given.dataset, model.card)


def write_enrolled(model: GalleryModel, records: list[Record], vectors: np.ndarray, trained: bool) -> list[str]:
    """Write what `enrol` made; the ids."""
    if records:
        if trained:
            note_training_items(model.store, model.card, {record.added for record in records})
        model.store.write(records, vectors)
    return [record.id for record in records]


def enrol_vectors(vectors: np.ndarray, labels: Any, metadata: Any, ids: Sequence[str] | None) -> Enrolment:
    """Vectors (n, d), points of the space, with what belongs to each."""
    count, now = len(vectors), _now()
    parts = zip(given_or_new_ids(ids, count), labels_of(labels, count), metadata_of(metadata, count), strict=True)
    return [Record(id, label, facts, added=now) for id, label, facts in parts], vectors


def enrol_items(
    encoder: QueryEncoder, items: NewItems, ids: Sequence[str] | None, *, skip_bad: bool, progress: bool
) -> Enrolment:
    """Items encoded, with thumbnails; those that cannot be read are left out or stop everything."""
    if items.kind not in (None, encoder.spec.kind):
        raise DataError(f"The model takes {encoder.spec.kind} and the data is {items.kind}: choose another of the two.")
    chosen, now = given_or_new_ids(ids, len(items)), _now()
    records: list[Record] = []
    vectors: list[np.ndarray] = []

    def prepare(row: int) -> tuple[Record, Tensor]:
        name = items.name(row)
        one = open_item(items.items[row], encoder.spec.kind, name)
        sample, label, facts = encoder.prepare(one.item, name), items.labels[row], items.metadata[row]
        return Record(chosen[row], label, facts, one.source, now, one.picture(), one.original), sample

    with Progress("Enrolling", len(items), progress) as bar:
        for batch in _prepared(prepare, len(items)):
            sound = [outcome for outcome in batch if not isinstance(outcome, NearkinError)]
            if len(sound) < len(batch) and not skip_bad:
                error = next(outcome for outcome in batch if isinstance(outcome, NearkinError))
                if isinstance(error, UnreadableError):
                    advice = "mend it or leave it out, or have items that cannot be read skipped"
                    error = type(error)(error.path, f"{error.reason}: {advice}")
                raise error
            records += [record for record, _ in sound]
            vectors.append(encoder.run([sample for _, sample in sound]))
            bar.advance(len(batch))
    if len(items) and not records:
        raise DataError(
            f"None of the {len(items):,} items could be read: check that they are {encoder.spec.kind} files."
        )
    return records, np.concatenate(vectors) if vectors else np.empty((0, encoder.dimension), np.float32)


def given_or_new_ids(ids: Sequence[str] | None, count: int) -> list[str]:
    """The ids given, checked, or new ones that sort by the time they were made."""
    if ids is not None:
        return check_ids(ids, count)
    start = f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(3)}"
    return [f"{start}{number:06x}" for number in range(count)]


T = TypeVar("T")


def _prepared(prepare: Callable[[int], T], count: int) -> Iterator[list[T | NearkinError]]:
    """What is made of each row, or what is wrong with it, in batches: made ahead in threads, in order."""

    def outcome(row: int) -> T | NearkinError:
        try:
            return prepare(row)
        except NearkinError as error:
            drop_tracebacks(error)
            return error

    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="enrol") as pool:
        rows = iter(range(count))
        # A window of work ahead of the network: a pool's own map would decode everything at once.
        waiting = [pool.submit(outcome, row) for row in islice(rows, 2 * _BATCH)]
        try:
            while waiting:
                batch: list[T | NearkinError] = []
                while waiting and len(batch) < _BATCH:
                    batch.append(waiting.pop(0).result())
                    waiting += [pool.submit(outcome, row) for row in islice(rows, 1)]
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def rebuild(store: GalleryStore, encoder: QueryEncoder, settings: Settings, *, missing: str, progress: bool) -> None:
    """Encode all items anew and swap the vectors at once.

    Args:
        store: where the items are.
        encoder: of the new model.
        settings: of the new vectors.
        missing: "error" stops and leaves everything as it is if an item can no longer be read; "drop" removes such
            items.
        progress: show a progress bar.
    """
    if missing not in ("error", "drop"):
        raise DataError(f"`missing` must be 'error' or 'drop', not {missing!r}.")
    if encoder.spec.kind != store.settings.kind:
        raise ModelError(
            f"The gallery holds {store.settings.kind} items and the model takes {encoder.spec.kind}: use another model."
        )
    kept: list[Item] = []
    lost: list[Item] = []
    for items, _ in store.batches():
        for item in items:
            (kept if any(True for _ in _contents(store, item)) else lost).append(item)
    if lost and missing == "error":
        raise DataError(
            f"{len(lost):,} of {len(kept) + len(lost):,} items can no longer be read (such as {_told(lost[0])}): bring "
            "their files back, or let the rebuild drop what is missing."
        )
    # What turns out to be damaged on the way is added to it, before the store reads it.
    drop = [item.id for item in lost]

    def sample(row: int) -> Tensor:
        """What the network eats of an item, from the first of its contents that can be read."""
        failure = DataError(f"{_told(kept[row])} is gone.")
        for content in _contents(store, kept[row]):
            try:
                return encoder.prepare(content, _told(kept[row]))
            except DataError as error:
                failure = error
        raise failure

    def encoded() -> Iterator[tuple[list[str], np.ndarray]]:
        left = iter(kept)
        with Progress("Rebuilding", len(kept), progress) as bar:
            for batch in _prepared(sample, len(kept)):
                ids, samples = [], []
                for item, outcome in zip(islice(left, len(batch)), batch, strict=True):
                    if not isinstance(outcome, NearkinError):
                        ids.append(item.id)
                        samples.append(outcome)
                    elif not isinstance(outcome, DataError):
                        raise outcome
                    elif missing == "error":
                        raise DataError(
                            f"The item '{item.id}' can no longer be read ({str(outcome).rstrip('.')}): mend its file, "
                            "or let the rebuild drop what is missing."
                        ) from outcome
                    else:
                        drop.append(item.id)
                if ids:
                    yield ids, encoder.run(samples)
                bar.advance(len(batch))

    store.replace_vectors(settings, encoded(), drop=drop)


def replace_vectors(store: GalleryStore, settings: Settings, ids: list[str], vectors: np.ndarray) -> None:
    """Give all items the vectors (n, d), points of the new space, at once."""
    if len(ids) != len(vectors):
        raise DataError(f"There are {len(ids):,} ids and {len(vectors):,} vectors: give one for each.")
    store.replace_vectors(settings, iter([(ids, vectors)]))


def _contents(store: GalleryStore, item: Item) -> Iterator[str | bytes]:
    """What an item can be encoded from: its file, or else the bytes it was given as."""
    if item.source is not None and Path(item.source).is_file():
        yield item.source
    if (original := store.original(item.id)) is not None:
        yield original


def _told(item: Item) -> str:
    return item.source or f"the item '{item.id}', of which only the vector was kept"
