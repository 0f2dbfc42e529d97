"""Items in Milvus: the same interface as the local store, for galleries that many machines share.

A call that writes is no transaction here. It goes in batches, each item is written whole or not at all, and a call that
was cut off is completed by calling it again with the same ids. With several writers the last one wins; the counters may
then miss a write. Items are in the order of their ids.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from itertools import chain, islice
from typing import Any, TypeVar, cast

import numpy as np

from nearkin.checks import check_whole
from nearkin.errors import DataError, StorageError
from nearkin.gallery.checks import check_vectors
from nearkin.gallery.condition import Condition
from nearkin.gallery.layout import Layout
from nearkin.gallery.milvus import change, collection
from nearkin.gallery.milvus import items as rows
from nearkin.gallery.milvus.change import GalleryHead, check_settings, read_head
from nearkin.gallery.milvus.collection import LARGEST_ANSWER, Collection, Documents
from nearkin.gallery.milvus.connection import Connection, MissingCollectionError, Sleep, parse_address
from nearkin.gallery.milvus.filter import all_of, literal
from nearkin.gallery.milvus.filter import to_milvus as compile_where
from nearkin.gallery.milvus.layout import check_layout, index_parameters, metric_of, search_parameters
from nearkin.gallery.places import closing_on_error, size_of
from nearkin.gallery.store import Found, Load, Record, Sample
from nearkin.gallery.values import Item, Settings
from nearkin.search.scan import true_distances
from nearkin.spaces import Space, make_space

Method = TypeVar("Method", bound=Callable[..., Any])

_USUAL = Layout()
_HITS_AT_ONCE = 2**16
# For L2, Milvus Lite compares queries with all vectors in one array (queries, items, dimensions).
_LITE_QUERIES = {"COSINE": 256, "L2": 16}
_SERVER_QUERIES = 1_024


def _following(method: Method) -> Method:
    """A method that asks for items; it runs once more if a rebuild by somebody else has replaced their collection."""

    @wraps(method)
    def follow(self: MilvusStore, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except MissingCollectionError:
            self._head = read_head(self._connection, self._documents)
            return method(self, *args, **kwargs)

    return cast(Method, follow)


class MilvusStore:
    """Items in a collection of Milvus 2.5 or newer, or of Milvus Lite; made by `create` or `open`.

    Beside the items there is one small collection for settings, classes, notes and the bytes of originals, in parts.
    Search is exact in Milvus Lite; a server finds nearly all true neighbours, and their distances are always true.
    """

    kind = "remote"

    def __init__(self, connection: Connection, documents: Documents, head: GalleryHead) -> None:
        self._connection = connection
        self._documents = documents
        self._head = head
        self._writing = threading.RLock()

    @classmethod
    def create(
        cls,
        address: str,
        settings: Settings,
        *,
        layout: Layout = _USUAL,
        token: str | None = None,
        sleep: Sleep = time.sleep,
    ) -> MilvusStore:
        """Make an empty gallery.

        Args:
            address: `milvus://[user:password@]host[:port]/[database/]collection`, `milvus+tls://…`, or the path of a
                Milvus Lite database, `something.db` or `something.db#collection`.
            settings: what the vectors are.
            layout: by which index they are searched, and by which metadata key they are partitioned.
            token: "user:password" or an API key.
            sleep: waits between tries.

        Raises:
            DataError: Milvus cannot keep such vectors.
            StorageError: nothing answers there, or there is a gallery already.
        """
        check_settings(settings)
        place = parse_address(address, token)
        check_layout(layout, settings, lite=place.path is not None)
        with closing_on_error(Connection(place, sleep=sleep)) as connection:
            documents = Documents(connection, change.documents_name(place.collection))
            change.make_documents(connection, documents)
            change.drop_others(connection, None)
            head = change.make_items(connection, settings, layout)
            documents.set_head(head.to_dict())
        return cls(connection, documents, head)

    @classmethod
    def open(cls, address: str, *, token: str | None = None, sleep: Sleep = time.sleep) -> MilvusStore:
        """Open a gallery; the arguments are those of `create`.

        Raises:
            StorageError: nothing answers there, or there is no gallery that this version can read.
        """
        place = parse_address(address, token)
        if place.path is not None and not place.path.exists():
            raise StorageError(f"There is no Milvus Lite database '{place.path}': create the gallery first.")
        with closing_on_error(Connection(place, sleep=sleep)) as connection:
            documents = Documents(connection, change.documents_name(place.collection))
            return cls(connection, documents, read_head(connection, documents))

    @property
    def settings(self) -> Settings:
        """What the vectors are; looked up, for somebody else may have replaced them."""
        return self._fresh_head().settings

    @property
    def space(self) -> Space:
        """How the vectors are compared."""
        return make_space(**self.settings.space)

    @property
    def layout(self) -> Layout:
        """By which index they are searched, and how they are partitioned."""
        return self._fresh_head().layout

    @property
    def generation(self) -> int:
        """Grows with every write, by anyone."""
        return self._documents.counters()[0]

    @property
    def changes(self) -> int:
        """How many items were ever added, replaced, removed or relabelled."""
        return self._documents.counters()[1]

    @_following
    def __len__(self) -> int:
        return self._table.count()

    def classes(self) -> list[str]:
        """Names of the classes by code; a class whose items are all gone keeps its code."""
        return self._documents.classes()

    @_following
    def class_sizes(self) -> dict[str | None, int]:
        """The number of items of each label; None counts the unlabelled. All labels are read for it."""
        return dict(Counter(row["label"] for page in self._table.pages(["label"]) for row in page))

    @_following
    def write(self, records: Sequence[Record], vectors: np.ndarray) -> None:
        """Add items with vectors float32 (n, d), in batches; ids that exist are replaced."""
        with self._writing:
            settings = self.settings
            points = check_vectors(vectors, len(records), settings.dimension)
            if records:
                encoded = rows.encode(points, settings, lite=self._connection.lite)
                change.write(self._table, self._documents, records, encoded, self._head.layout.partition)

    @contextmanager
    def loading(self) -> Iterator[Load]:
        """A way to write very many items, batch after batch, that asks less than `write`."""
        with self._writing, change.bulk_load(self._connection, self._documents, self._fresh_head()) as load:
            yield load

    @_following
    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were. Ids that do not exist are left alone."""
        with self._writing:
            return change.remove(self._table, self._documents, ids)

    @_following
    def update(self, ids: Sequence[str], *, label: Any = ..., metadata: Any = ...) -> int:
        """Give items another label (or None), or other metadata, or both; how many there were. `...`: unchanged."""
        with self._writing:
            return change.update(self._table, self._documents, ids, label, metadata, self._head.layout.partition)

    @_following
    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """Items by id, None where there is none."""
        found = self._table.get(ids, rows.ITEM_FIELDS)
        return [rows.to_item(found[id]) if id in found else None for id in ids]

    def items(self, keys: np.ndarray) -> list[Item | None]:
        """Items by the keys (n,) of a search or sample, which are ids; None where there is none (any more)."""
        there = iter(self.get([key for key in keys if key is not None]))
        return [None if key is None else next(there) for key in keys]

    @_following
    def page(self, *, after: str | None = None, limit: int = 100, where: Condition | None = None) -> list[Item]:
        """Items in the order of their ids, those after the id `after`; that item need not exist any more."""
        check_whole(limit, "limit", 1)
        size = min(limit, LARGEST_ANSWER)
        pages = self._table.pages(rows.ITEM_FIELDS, where=self._expression(where), after=after, size=size)
        return [rows.to_item(row) for row in islice(chain.from_iterable(pages), limit)]

    @_following
    def ids_where(self, where: Condition | None = None, *, label: Any = ...) -> list[str]:
        """Ids of all items that fulfil a condition, and have a label if one is given (None: the unlabelled)."""
        of_label = "" if label is ... else "label is null" if label is None else f"label == {literal(label)}"
        expression = all_of(self._expression(where), of_label)
        return [row["id"] for page in self._table.pages([], where=expression) for row in page]

    @_following
    def thumbnail(self, id: str) -> bytes | None:
        """A JPEG, or None."""
        row = self._table.get([id], ["thumbnail"]).get(id)
        return rows.from_text(row["thumbnail"]) if row is not None and row["thumbnail"] is not None else None

    @_following
    def original(self, id: str) -> bytes | None:
        """The bytes an item was given as, or None."""
        row = self._table.get([id], ["original"]).get(id)
        text = self._documents.parts(change.owner(id), row["original"]) if row and row["original"] else None
        return None if text is None else rows.from_text(text)

    @_following
    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Vectors float32 (n, d) of items, as `GalleryStore.vectors` gives them."""
        found = self._rows(ids, "vector")
        missing = next((id for id in ids if id not in found), None)
        if missing is not None:
            raise DataError(f"There is no item '{missing}' in the gallery.")
        return rows.decode([found[id]["vector"] for id in ids], self._head.settings)

    @_following
    def search(
        self,
        queries: np.ndarray,
        k: int,
        *,
        where: Condition | None = None,
        labelled: bool = False,
        exclude: np.ndarray | None = None,
    ) -> Found:
        """The k nearest items, as `GalleryStore.search` gives them.

        Raises:
            DataError: k is larger than Milvus allows, 16,384 (one less with `exclude`).
        """
        check_whole(k, "k", 1)
        settings, lite, wide = self.settings, self._connection.lite, k + (exclude is not None)
        if wide > LARGEST_ANSWER:
            most = LARGEST_ANSWER - (exclude is not None)
            raise DataError(f"Milvus finds at most {most:,} neighbours of a query, not {k:,}: ask for fewer.")
        points = check_vectors(queries, None, settings.dimension)
        expression = all_of(self._expression(where), "label is not null" if labelled else "")
        # A server compares what is of one type; Milvus Lite has float32 alone, and queries need not be rounded there.
        ids, labels = self._proposals(points if lite else rows.encode(points, settings, lite=False), wide, expression)
        if exclude is not None:
            ids[np.equal(ids, np.asarray(exclude, object)[:, None])] = None
        distances = self._true_distances(points, ids)
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        distances, ids, labels = (np.take_along_axis(values, order, 1) for values in (distances, ids, labels))
        gone = np.isinf(distances)
        ids[gone] = labels[gone] = None
        return Found(distances, ids, self._documents.codes(labels, present=~gone))

    def _proposals(self, queries: np.ndarray, k: int, where: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels (q, k), objects, of what Milvus finds for encoded queries; None beyond the last."""
        ids = np.full((len(queries), k), None, object)
        labels = np.full((len(queries), k), None, object)
        effort = search_parameters(self._head.layout, k)
        at_once = _LITE_QUERIES[metric_of(self._head.settings)] if self._connection.lite else _SERVER_QUERIES
        step = max(1, min(_HITS_AT_ONCE // k, at_once))
        for start in range(0, len(queries), step):
            found = self._connection.call(
                "search",
                self._head.collection,
                data=list(queries[start : start + step]),
                anns_field="vector",
                limit=k,
                filter=where,
                output_fields=["label"],
                consistency_level="Strong",
                **({"search_params": {"params": effort}} if effort else {}),
            )
            for row, hits in enumerate(found, start):
                ids[row, : len(hits)] = [hit["id"] for hit in hits]
                labels[row, : len(hits)] = [hit["entity"]["label"] for hit in hits]
        return ids, labels

    def _true_distances(self, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Distances float32 (q, k) to the items with these ids (q, k); infinite where there is none (any more)."""
        found = self._rows([name for name in ids.ravel() if name is not None], "vector")
        if not found:
            return np.full(ids.shape, np.inf, np.float32)
        settings, places = self._head.settings, {name: place for place, name in enumerate(found)}
        vectors = rows.decode([row["vector"] for row in found.values()], settings)
        slots = np.array([places.get(name, -1) for name in ids.ravel()], np.int64).reshape(ids.shape)
        far = true_distances(make_space(**settings.space), queries, vectors, np.maximum(slots, 0))
        return np.where(slots >= 0, far, np.inf).astype(np.float32)

    @_following
    def sample(self, n: int, seed: int, *, labelled: bool = False) -> Sample:
        """At most n items, drawn at random without replacement, in the order of their ids. All ids are read for it."""
        expression = "label is not null" if labelled else ""
        ids = [row["id"] for page in self._table.pages([], where=expression) for row in page]
        if len(ids) > n:
            places = np.random.default_rng(seed).choice(len(ids), n, replace=False)
            ids = [ids[place] for place in np.sort(places)]
        found = self._rows(ids, "label", "vector")
        kept = [id for id in ids if id in found]
        labels = np.array([found[id]["label"] for id in kept], object)
        vectors = rows.decode([found[id]["vector"] for id in kept], self._head.settings)
        codes = self._documents.codes(labels, present=np.ones(len(kept), bool))
        return Sample(np.array(kept, object), vectors, codes)

    def batches(self, size: int = 1024) -> Iterator[tuple[list[Item], np.ndarray]]:
        """All items in the order of their ids with their vectors, at most `size` at a time."""
        after: str | None = None
        # A page costs Milvus Lite a look at everything, so pages are as large as a message carries.
        while page := self._rows_after(after):
            for start in range(0, len(page), size):
                part = page[start : start + size]
                vectors = rows.decode([row["vector"] for row in part], self._head.settings)
                yield [rows.to_item(row) for row in part], vectors
            after = page[-1]["id"]

    def note(self, name: str) -> Any:
        """A small JSON document kept under a name; None if there is none, or it is damaged."""
        return self._documents.note(self._fresh_head().collection, name)

    def set_note(self, name: str, value: Any) -> None:
        """Keep a small JSON document; it is no change of the items."""
        with self._writing:
            self._documents.set_note(self._fresh_head().collection, name, value)

    def replace_vectors(
        self, settings: Settings, batches: Iterator[tuple[list[str], np.ndarray]], drop: Sequence[str] = ()
    ) -> None:
        """Give all items new vectors, as `GalleryStore.replace_vectors` says.

        What others write meanwhile is refused as incomplete, or lost: let nobody write during a rebuild.
        """
        check_settings(settings)
        with self._writing:
            self._head = change.replace_vectors(
                self._connection, self._documents, self._fresh_head(), settings, batches, drop
            )

    def set_layout(self, layout: Layout) -> None:
        """Have the items searched by another index, which is built from now on; partitions stay as they are.

        Raises:
            DataError: Milvus has no such index for these vectors.
        """
        with self._writing:
            head = replace(self._fresh_head(), layout=layout)
            check_layout(layout, head.settings, lite=self._connection.lite)
            index = index_parameters(layout, head.settings, lite=self._connection.lite)
            # Said first: if what follows is cut off, doing it again completes it.
            self._documents.set_head(head.to_dict())
            collection.rebuild_index(self._connection, head.collection, "vector", index)
            self._head = head

    def size(self) -> int | None:
        """Bytes of a Milvus Lite database, all its galleries together; None for a server."""
        path = self._connection.address.path
        return None if path is None else size_of(path)

    def discard(self) -> bool:
        """Drop the gallery with all that it holds, and let go of the connection; whether nothing else is there."""
        try:
            self._connection.call("drop_collection", self._documents.name)
            change.drop_others(self._connection, None)
            return not self._connection.call("list_collections")
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the connection; a second time does nothing."""
        self._connection.close()

    @_following
    def _rows_after(self, after: str | None) -> list[dict[str, Any]]:
        size = rows.at_once(self._head.settings.dimension)
        return self._table.page([*rows.ITEM_FIELDS, "vector"], after=after, limit=size)

    def _rows(self, ids: Sequence[str], *fields: str) -> dict[str, dict[str, Any]]:
        return self._table.get(ids, fields, at_once=rows.at_once(self._head.settings.dimension))

    @property
    def _table(self) -> Collection:
        return Collection(self._connection, self._head.collection, "id")

    def _expression(self, where: Condition | None) -> str:
        return "" if where is None else compile_where(where, self._head.layout.partition)

    def _fresh_head(self) -> GalleryHead:
        plain = self._documents.head() or {}
        layout = Layout.from_dict(plain.get("layout", {}))
        if (plain.get("collection"), layout) != (self._head.collection, self._head.layout):
            self._head = read_head(self._connection, self._documents)
        return self._head
