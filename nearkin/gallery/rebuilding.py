"""Moving a gallery: to another model, to other vectors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.errors import DataError, ModelError
from nearkin.gallery.encoding import QueryEncoder
from nearkin.gallery.store import Store
from nearkin.gallery.values import Item, Settings
from nearkin.progress import Progress

_BATCH = 64
_MISSING = ("error", "drop")


def rebuild(store: Store, encoder: QueryEncoder, settings: Settings, *, missing: str, progress: bool) -> None:
    """Encode all items anew and swap the vectors at once.

    Args:
        store: where the items are.
        encoder: of the new model.
        settings: of the new vectors.
        missing: "error" stops and leaves everything as it is if an item can no longer be read; "drop" removes such
            items.
        progress: show a progress bar.
    """
    kept: list[Item] = []
    lost: list[Item] = []
    for items, _ in store.batches():
        for item in items:
            (lost if _content(store, item) is None else kept).append(item)
    if lost and missing == "error":
        raise DataError(
            f"{len(lost):,} of {len(kept) + len(lost):,} items can no longer be read (such as {_told(lost[0])}): bring "
            "their files back, or let the rebuild drop what is missing."
        )
    # What turns out to be damaged on the way is added to it, before the store reads it.
    drop = [item.id for item in lost]
    store.replace_vectors(settings, _encoded(store, encoder, kept, missing, drop, progress), drop=drop)


def check_missing(missing: Any) -> None:
    """Refuse another word than "error" and "drop"."""
    if missing not in _MISSING:
        raise DataError(f"What to do with missing items is 'error' or 'drop', not {missing!r}.")


def check_kind(store: Store, encoder: QueryEncoder) -> None:
    """Refuse a model that takes another kind of items than the store holds."""
    if encoder.spec.kind != store.settings.kind:
        raise ModelError(
            f"The gallery holds {store.settings.kind} items and the model takes {encoder.spec.kind}: choose another."
        )


def replace_vectors(store: Store, settings: Settings, ids: list[str], vectors: np.ndarray) -> None:
    """Give all items the vectors (n, d), points of the new space, at once."""
    if len(ids) != len(vectors):
        raise DataError(f"There are {len(ids):,} ids and {len(vectors):,} vectors: give one for each.")
    store.replace_vectors(settings, iter([(ids, vectors)]))


def _encoded(
    store: Store, encoder: QueryEncoder, items: list[Item], missing: str, drop: list[str], progress: bool
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Ids and vectors of items, a batch at a time; ids of those that turn out to be damaged are added to `drop`."""
    rest = iter(items)
    with Progress("Rebuilding", len(items), progress) as bar:
        while batch := list(islice(rest, _BATCH)):
            try:
                ids, vectors = [item.id for item in batch], encoder.encode([_content(store, item) for item in batch])
            except DataError:
                ids, vectors = _encoded_one_by_one(store, encoder, batch, missing, drop)
            if ids:
                yield ids, vectors
            bar.advance(len(batch))


def _encoded_one_by_one(
    store: Store, encoder: QueryEncoder, items: list[Item], missing: str, drop: list[str]
) -> tuple[list[str], np.ndarray]:
    """The same of one batch in which something is damaged."""
    ids, samples = [], []
    for item in items:
        try:
            samples.append(_sample(store, encoder, item))
            ids.append(item.id)
        except DataError as error:
            if missing == "error":
                raise DataError(
                    f"The item '{item.id}' can no longer be read ({str(error).rstrip('.')}): mend its file, or let the "
                    "rebuild drop what is missing."
                ) from error
            drop.append(item.id)
    return ids, encoder.run(samples)


def _sample(store: Store, encoder: QueryEncoder, item: Item) -> Tensor:
    """What the network eats of an item, from the first of its contents that can be read."""
    failure = DataError(f"{_told(item)} is gone.")
    for content in _contents(store, item):
        try:
            return encoder.prepare(content, _told(item))
        except DataError as error:
            failure = error
    raise failure


def _content(store: Store, item: Item) -> Any:
    """The first of them; None if there is none."""
    return next(_contents(store, item), None)


def _contents(store: Store, item: Item) -> Iterator[str | bytes]:
    """What an item can be encoded from: its file, or else the bytes it was given as."""
    if item.source is not None and Path(item.source).is_file():
        yield item.source
    if (original := store.original(item.id)) is not None:
        yield original


def _told(item: Item) -> str:
    return item.source or f"the item '{item.id}', of which only the vector was kept"
