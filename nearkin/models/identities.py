"""Which items are the same file, so that a query is not found among the items it is looked for in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearkin.data.dataset import Dataset
from nearkin.data.stores import FolderStore, ZipStore


def files_of(items: Any) -> list[str] | None:
    """What tells files apart, one for each item; None where items are no files."""
    if isinstance(items, Dataset):
        store = items.store
        if isinstance(store, FolderStore):
            return [os.path.realpath(store.root / path) for path in items.manifest.paths]
        if isinstance(store, ZipStore):
            return [f"{os.path.realpath(store.path)}!{store.prefix}{path}" for path in items.manifest.paths]
        return [f"{id(store)}!{path}" for path in items.manifest.paths]
    if isinstance(items, str | Path):
        items = [items]
    if isinstance(items, Sequence) and all(isinstance(item, str | Path) for item in items):
        return [os.path.realpath(item) for item in items]
    return None


def places_of_same(queries: Any, gallery: Any) -> list[list[int]] | None:
    """The places in the gallery that hold the same file as each query; None where either are no files."""
    asked, there = files_of(queries), files_of(gallery)
    if asked is None or there is None:
        return None
    places: dict[str, list[int]] = {}
    for place, file in enumerate(there):
        places.setdefault(file, []).append(place)
    return [places.get(file, []) for file in asked]
