"""Moving a gallery: to another model, to other vectors, from a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.errors import DataError, ModelError
from nearkin.gallery.encoding import QueryEncoder
from nearkin.gallery.inputs import vector_rows
from nearkin.gallery.parquet import read_items
from nearkin.gallery.projecting import projected
from nearkin.gallery.store import Record, Store
from nearkin.gallery.values import Item, Settings
from nearkin.progress import Progress
from nearkin.spaces import Space

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


def import_items(store: Store, space: Space, path: str | Path) -> int:
    """Add the items of a Parquet file in one transaction; how many there were."""
    settings, batches = read_items(path)
    _check_same(store.settings, settings, path)
    records: list[Record] = []
    vectors: list[np.ndarray] = []
    for some, rows in batches:
        records += some
        vectors.append(vector_rows(rows, store.settings.dimension))
    if not records:
        return 0
    rows = np.concatenate(vectors)
    # What a gallery exported lies in the space already; projected once more it would come back a little different.
    store.write(records, rows if settings is not None else projected(space, rows))
    return len(records)


def _check_same(mine: Settings, other: Settings | None, path: str | Path) -> None:
    """Refuse vectors that another model made."""
    if other is None:
        if mine.kind != "vector":
            raise ModelError(
                f"{path} does not say which model made its vectors, and this gallery is tied to one: export it from a "
                "gallery of the same model, or create a gallery of your own vectors, with a dimension and a name."
            )
        return
    tie: tuple[Any, Any] = (mine.fingerprint or mine.name, other.fingerprint or other.name)
    if tie[0] != tie[1] or mine.dimension != other.dimension or mine.space != other.space:
        raise ModelError(
            f"The vectors of {path} were made by '{other.name}' ({other.dimension} dimensions, {other.space['name']}) "
            f"and those of the gallery by '{mine.name}' ({mine.dimension}, {mine.space['name']}), and distances "
            "between them mean nothing: take them into a gallery of their own."
        )


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
