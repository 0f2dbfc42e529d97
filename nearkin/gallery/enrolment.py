"""From what a user adds to records and vectors, ready to be written in one transaction."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.data.stores import UnreadableError
from nearkin.errors import DataError, NearkinError
from nearkin.gallery.encoding import QueryEncoder
from nearkin.gallery.inputs import Listed, check_ids, given, labels_of, metadata_of
from nearkin.gallery.store import Record, Store
from nearkin.progress import Progress

_BATCH = 32
_WORKERS = 2


@dataclass(frozen=True, eq=False)
class Enrolment:
    """Records and their vectors float32 (n, d)."""

    records: list[Record]
    vectors: np.ndarray

    def write(self, store: Store) -> list[str]:
        """Write them in one transaction; their ids."""
        if self.records:
            store.write(self.records, self.vectors)
        return [record.id for record in self.records]


def enrol_vectors(vectors: np.ndarray, labels: Any, metadata: Any, ids: Sequence[str] | None) -> Enrolment:
    """Vectors (n, d), points of the space, with what belongs to each."""
    count, now = len(vectors), _now()
    parts = zip(names(ids, count), labels_of(labels, count), metadata_of(metadata, count), strict=True)
    return Enrolment([Record(id, label, facts, added=now) for id, label, facts in parts], vectors)


def enrol_items(
    encoder: QueryEncoder, items: Listed, ids: Sequence[str] | None, *, skip_bad: bool, progress: bool
) -> Enrolment:
    """Items encoded, with thumbnails; those that cannot be read are left out or stop everything."""
    if items.kind not in (None, encoder.spec.kind):
        raise DataError(f"The model takes {encoder.spec.kind} and the data is {items.kind}: choose another of the two.")
    chosen, now = names(ids, len(items)), _now()
    records: list[Record] = []
    vectors: list[np.ndarray] = []
    with Progress("Enrolling", len(items), progress) as bar:
        for batch in _batches(_prepared(encoder, items)):
            sound = []
            for row, outcome in batch:
                if isinstance(outcome, NearkinError):
                    if not skip_bad:
                        raise _with_advice(outcome)
                    continue
                record, sample = outcome
                label, facts = items.labels[row], items.metadata[row]
                sound.append((replace(record, id=chosen[row], label=label, metadata=facts, added=now), sample))
            records += [record for record, _ in sound]
            vectors.append(encoder.run([sample for _, sample in sound]))
            bar.advance(len(batch))
    if len(items) and not records:
        raise DataError(
            f"None of the {len(items):,} items could be read: check that they are {encoder.spec.kind} files."
        )
    return Enrolment(records, np.concatenate(vectors) if vectors else np.empty((0, encoder.dimension), np.float32))


def names(ids: Sequence[str] | None, count: int) -> list[str]:
    """The ids given, checked, or new ones that sort by the time they were made."""
    if ids is not None:
        return check_ids(ids, count)
    start = f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(3)}"
    return [f"{start}{number:06x}" for number in range(count)]


def _with_advice(error: NearkinError) -> NearkinError:
    """What is wrong with an item, with what to do about it where that is not said."""
    if not isinstance(error, UnreadableError):
        return error
    advice = "mend it or leave it out, or have items that cannot be read skipped"
    return UnreadableError(error.path, f"{error.reason}: {advice}")


Outcome = tuple[Record, Tensor] | NearkinError


def _prepared(encoder: QueryEncoder, items: Listed) -> Iterator[tuple[int, Outcome]]:
    """Each item's row with its record and sample, or with what is wrong with it; made ahead in threads, in order."""

    def prepare(row: int) -> Outcome:
        try:
            name = items.name(row)
            one = given(items.items[row], encoder.spec.kind, name)
            sample = encoder.prepare(one.item, name)
            return Record("", None, source=one.source, thumbnail=one.picture(), original=one.original), sample
        except NearkinError as error:
            return error

    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="enrol") as pool:
        rows = iter(range(len(items)))
        # A window of work ahead of the network: a pool's own map would decode everything at once.
        waiting = [(row, pool.submit(prepare, row)) for row in islice(rows, 2 * _BATCH)]
        try:
            while waiting:
                row, outcome = waiting.pop(0)
                yield row, outcome.result()
                waiting += [(later, pool.submit(prepare, later)) for later in islice(rows, 1)]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _batches(outcomes: Iterator[tuple[int, Outcome]]) -> Iterator[list[tuple[int, Outcome]]]:
    while batch := list(islice(outcomes, _BATCH)):
        yield batch


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
