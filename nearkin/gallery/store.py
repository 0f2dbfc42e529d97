"""What a store of items must do; SQLite and Milvus both do it, and the contract tests hold both to it.

A store knows vectors, labels and small documents. How sure an answer is, and how an image becomes a vector, is none of
its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nearkin._moved import renamed
from nearkin.gallery.condition import Condition
from nearkin.gallery.layout import Layout
from nearkin.gallery.values import Item, Metadata, Settings
from nearkin.spaces import Space

UNLABELLED = -1
"""Code of an item without a label."""

ABSENT = -2
"""Code where there is no item: a slot whose item was removed, or a place beyond the last neighbour."""


@dataclass(frozen=True)
class Record:
    """An item on its way into a store.

    Attributes:
        id: its name; an item of that name is replaced.
        label: its class, or None.
        metadata: flat facts.
        source: the path it was read from, or None.
        added: ISO time in UTC.
        thumbnail: a JPEG of at most 160 pixels a side, or None.
        original: the bytes it was given as, kept where no path can be read again; or None.
    """

    id: str
    label: str | None
    metadata: Metadata = field(default_factory=dict)
    source: str | None = None
    added: str = ""
    thumbnail: bytes | None = None
    original: bytes | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """Neighbours of q queries, nearest first; equal distances in the order of adding where the store can tell.

    Attributes:
        distances: float32 (q, k); infinite beyond the last one.
        keys: which items, (q, k), opaque: `GalleryStore.items` turns them into items.
        codes: their classes, int32 (q, k), as indices into `GalleryStore.classes()`; `UNLABELLED` or `ABSENT` else.
    """

    distances: np.ndarray
    keys: np.ndarray
    codes: np.ndarray


@dataclass(frozen=True, eq=False)
class Sample:
    """Some items with their vectors.

    Attributes:
        keys: which (n,), opaque as in `Found`.
        vectors: float32 (n, d).
        codes: int32 (n,), as in `Found`.
    """

    keys: np.ndarray
    vectors: np.ndarray
    codes: np.ndarray


Load = Callable[[Sequence[Record], np.ndarray], None]
"""What writes a batch: `GalleryStore.write`, or something like it."""


class GalleryStore(Protocol):
    """Where items live.

    A local store does every call that writes in one transaction: all of it happens, or nothing. Milvus has none: there
    a call goes in batches, each item is written whole or not at all, and a call that was cut off is completed by
    calling it again with the same ids. `replace_vectors` happens in one moment in both.
    """

    @property
    def kind(self) -> str:
        """How it is searched: "exact", "hnsw" or "remote"."""

    @property
    def settings(self) -> Settings:
        """What the vectors are, now: another process may have replaced them."""

    @property
    def space(self) -> Space:
        """How the vectors are compared, now."""

    @property
    def layout(self) -> Layout:
        """By which index they are searched, and how they are partitioned."""

    @property
    def generation(self) -> int:
        """Grows with every write, by anyone."""

    @property
    def changes(self) -> int:
        """How many items were ever added, replaced, removed or relabelled."""

    def __len__(self) -> int: ...

    def classes(self) -> list[str]:
        """Names of the classes by code; a class whose items are all gone keeps its code."""

    def class_sizes(self) -> dict[str | None, int]:
        """The number of items of each label, labels without items left out; None counts the unlabelled."""

    def write(self, records: Sequence[Record], vectors: np.ndarray) -> None:
        """Add items with vectors float32 (n, d), points of the space; ids that exist are replaced."""

    def loading(self) -> AbstractContextManager[Load]:
        """A way to write very many items, batch after batch; each batch is as durable as a `write`."""

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were. Ids that do not exist are left alone."""

    def update(self, ids: Sequence[str], *, label: Any = ..., metadata: Any = ...) -> int:
        """Give items another label (or None), or other metadata, or both; how many there were. `...`: unchanged."""

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """Items by id, None where there is none."""

    def items(self, keys: np.ndarray) -> list[Item | None]:
        """Items by the keys (n,) of a search or sample; None if it was removed since, or the key is that of no item."""

    def page(self, *, after: str | None = None, limit: int = 100, where: Condition | None = None) -> list[Item]:
        """Items in a fixed order, those after the item `after`; that item need not exist any more."""

    def ids_where(self, where: Condition | None = None, *, label: Any = ...) -> list[str]:
        """Ids of all items that fulfil a condition, and have a label if one is given (None: the unlabelled)."""

    def thumbnail(self, id: str) -> bytes | None:
        """A JPEG, or None."""

    def original(self, id: str) -> bytes | None:
        """The bytes an item was given as, or None."""

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Vectors float32 (n, d) of items.

        Raises:
            DataError: if there is no such item; it names the first.
        """

    def search(
        self,
        queries: np.ndarray,
        k: int,
        *,
        where: Condition | None = None,
        labelled: bool = False,
        exclude: np.ndarray | None = None,
    ) -> Found:
        """The k nearest items of queries float32 (q, d).

        Args:
            queries: points of the space.
            k: how many; if there are fewer the rest is padded. Of a k beyond a thousand and beyond the number of items
                a store may leave out columns that are all padding.
            where: only among items that fulfil this.
            labelled: only among items with a label.
            exclude: keys (q,) of items that are not to be found, one for each query.
        """

    def sample(self, n: int, seed: int, *, labelled: bool = False) -> Sample:
        """At most n items, drawn at random without replacement; all of them, in order, if there are no more."""

    def batches(self, size: int = 1024) -> Iterator[tuple[list[Item], np.ndarray]]:
        """All items in order with their vectors, `size` at a time."""

    def note(self, name: str) -> Any:
        """A small JSON document kept under a name; None if there is none, or it is damaged."""

    def set_note(self, name: str, value: Any) -> None:
        """Keep a small JSON document; it is no change of the items."""

    def replace_vectors(
        self, settings: Settings, batches: Iterator[tuple[list[str], np.ndarray]], drop: Sequence[str] = ()
    ) -> None:
        """Give all items new vectors, in a new space if need be; others see the old ones until the last is there.

        Notes are forgotten in the same moment, since they were learned from the old vectors, and every item counts as
        changed.

        Args:
            settings: of the new vectors; they replace the old settings in the same moment.
            batches: ids and vectors (n, d), each id once; every item must come but those dropped.
            drop: ids of items that are removed in the same moment; read after the last batch, so that whoever makes
                the batches may add to them.
        """

    def set_layout(self, layout: Layout) -> None:
        """Have the items searched by another index; partitions stay as they are.

        Raises:
            DataError: the store has no such index for these vectors.
        """

    def size(self) -> int | None:
        """Bytes on disk, if that is known."""

    def close(self) -> None:
        """Let go of files and connections; a second time does nothing."""


__getattr__ = renamed(__name__, Store="GalleryStore")
