"""Moving a gallery: to another model, to other vectors, from a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

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
        missing: "error" stops before anything is done if an item can no longer be read; "drop" removes such items.
        progress: show a progress bar.
    """
    if missing not in _MISSING:
        raise DataError(f"What to do with missing items is 'error' or 'drop', not {missing!r}.")
    if encoder.spec.kind != store.settings.kind:
        raise ModelError(
            f"The gallery holds {store.settings.kind} items and the model takes {encoder.spec.kind}: choose another."
        )
    kept: list[Item] = []
    lost: list[Item] = []
    for items, _ in store.batches():
        for item in items:
            (kept if _readable(store, item) else lost).append(item)
    if lost and missing == "error":
        raise DataError(
            f"{len(lost):,} of {len(kept) + len(lost):,} items can no longer be read (such as {_told(lost[0])}): bring "
            "their files back, or rebuild with missing='drop' to remove them."
        )
    store.replace_vectors(settings, _encoded(store, encoder, kept, progress), drop=[item.id for item in lost])


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
                "gallery of the same model, or create a gallery of your own vectors (dimension=, name=)."
            )
        return
    tie: tuple[Any, Any] = (mine.fingerprint or mine.name, other.fingerprint or other.name)
    if tie[0] != tie[1] or mine.dimension != other.dimension or mine.space != other.space:
        raise ModelError(
            f"The vectors of {path} were made by '{other.name}' ({other.dimension} dimensions, {other.space['name']}) "
            f"and those of the gallery by '{mine.name}' ({mine.dimension}, {mine.space['name']}): they cannot be mixed."
        )


def _encoded(
    store: Store, encoder: QueryEncoder, items: list[Item], progress: bool
) -> Iterator[tuple[list[str], np.ndarray]]:
    rest = iter(items)
    with Progress("Rebuilding", len(items), progress) as bar:
        while batch := list(islice(rest, _BATCH)):
            yield [item.id for item in batch], encoder.encode([_content(store, item) for item in batch])
            bar.advance(len(batch))


def _readable(store: Store, item: Item) -> bool:
    if item.source is not None and Path(item.source).is_file():
        return True
    return store.original(item.id) is not None


def _content(store: Store, item: Item) -> Any:
    """What an item is encoded from: its file, or the bytes it was given as."""
    if item.source is not None and Path(item.source).is_file():
        return item.source
    return store.original(item.id)


def _told(item: Item) -> str:
    return item.source or f"the item '{item.id}', of which only the vector was kept"
