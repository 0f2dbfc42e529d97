"""What a gallery in Milvus is: its settings, the collection its items are in, and the version of both."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearkin.errors import DataError, StorageError
from nearkin.gallery.layout import Layout
from nearkin.gallery.milvus import items, table
from nearkin.gallery.milvus.connection import Connection, MissingCollectionError
from nearkin.gallery.milvus.documents import Documents
from nearkin.gallery.milvus.indexes import building, check_layout
from nearkin.gallery.milvus.neighbours import metric_of
from nearkin.gallery.rounding import check_dtype
from nearkin.gallery.values import Settings

SCHEMA_VERSION = 2
"""A gallery without partitions says 1, so that a nearkin that knows none can read it."""

_LARGEST_DIMENSION = 32_768


@dataclass(frozen=True)
class Head:
    """What a gallery is.

    Attributes:
        settings: what the vectors are.
        collection: where the items are; it changes when all vectors are replaced.
        layout: by which index they are searched, and how they are partitioned.
    """

    settings: Settings
    collection: str
    layout: Layout = field(default_factory=Layout)

    def is_still(self, plain: Mapping[str, Any]) -> bool:
        """Whether what was read says the same of where the items are and how they are laid out."""
        known = Layout.from_dict(plain.get("layout", {}))
        return bool(plain.get("collection") == self.collection and known == self.layout)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with the version."""
        return {
            "schema": 1 if self.layout.partition is None else SCHEMA_VERSION,
            "settings": self.settings.to_dict(),
            "collection": self.collection,
            "layout": self.layout.to_dict(),
        }


def check_settings(settings: Settings) -> None:
    """Raise DataError unless Milvus can keep and search such vectors."""
    metric_of(settings)
    check_dtype(settings.dtype, settings.space)
    if not 1 <= settings.dimension <= _LARGEST_DIMENSION:
        raise DataError(f"Milvus keeps vectors of 1 to {_LARGEST_DIMENSION:,} dimensions, not {settings.dimension:,}.")


def documents_name(gallery: str) -> str:
    """The collection of a gallery's documents."""
    return f"{gallery}__notes"


def items_prefix(gallery: str) -> str:
    """How the names of a gallery's collections of items begin."""
    return f"{gallery}__items_"


def make_documents(connection: Connection, documents: Documents) -> None:
    """Make the collection beside the items, or take over one that was never finished."""
    if documents.usable():
        if documents.head() is not None:
            shown = connection.address.shown
            raise StorageError(f"There is a gallery at {shown} already: open it, or use another name.")
        return
    if documents.exists():
        connection.call("drop_collection", documents.name)
    documents.make()


def make_items(connection: Connection, settings: Settings, layout: Layout) -> Head:
    """Make an empty collection of items; nobody knows of it until the head is written."""
    check_layout(layout, settings, lite=connection.lite)
    name = items_prefix(connection.address.collection) + secrets.token_hex(4)
    schema = items.schema(settings, lite=connection.lite, partition=layout.partition)
    index = building(layout, settings, lite=connection.lite)
    table.make(connection, name, schema, "vector", index, partitions=layout.partitions)
    return Head(settings, name, layout)


def read_head(connection: Connection, documents: Documents) -> Head:
    """What the gallery at this address is.

    Raises:
        StorageError: there is none, or it is of another version.
    """
    shown = connection.address.shown
    if not documents.exists():
        raise StorageError(f"There is no gallery at {shown}: create it first, or check the name of the collection.")
    plain = documents.head() if documents.usable() else None
    if plain is None:
        raise StorageError(f"The gallery at {shown} was never finished: create it again.")
    if plain.get("schema") not in range(1, SCHEMA_VERSION + 1):
        raise StorageError(
            f"The gallery at {shown} has schema version {plain.get('schema')}, and this version of nearkin reads "
            f"up to {SCHEMA_VERSION}: use the version of nearkin that made it."
        )
    layout = Layout.from_dict(plain.get("layout", {}))
    head = Head(Settings.from_dict(plain["settings"]), str(plain["collection"]), layout)
    try:
        described = connection.call("describe_collection", head.collection)
    except MissingCollectionError as error:
        raise StorageError(f"The items of the gallery at {shown} are gone: restore '{head.collection}'.") from error
    _check_dimension(described, head, shown)
    table.load(connection, head.collection)
    return head


def _check_dimension(described: dict[str, Any], head: Head, shown: str) -> None:
    """Vectors of another size are those of another gallery."""
    sizes = [field["params"].get("dim") for field in described["fields"] if field["name"] == "vector"]
    if not sizes or int(sizes[0]) != head.settings.dimension:
        raise StorageError(
            f"The collection '{head.collection}' at {shown} has vectors of {sizes[0] if sizes else 'no'} dimensions "
            f"and not of {head.settings.dimension}: it is not the one that this gallery made."
        )
