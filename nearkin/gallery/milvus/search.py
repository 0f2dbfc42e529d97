"""Search in Milvus: an index proposes, true distances decide."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.layout import BUILDING, SEARCHING, Layout
from nearkin.gallery.milvus import items
from nearkin.gallery.milvus.collection import LARGEST_ANSWER, Collection
from nearkin.gallery.milvus.connection import Connection
from nearkin.gallery.milvus.items import at_once, decode
from nearkin.gallery.values import Settings
from nearkin.search.scan import true_distances
from nearkin.spaces import make_space

_METRICS = {"sphere": "COSINE", "euclidean": "L2", "lipschitz-ball": "L2"}
_HITS_AT_ONCE = 2**16
# For L2, Milvus Lite compares queries with all vectors in one array (queries, items, dimensions).
_LITE_QUERIES = {"COSINE": 256, "L2": 16}
_SERVER_QUERIES = 1_024


def metric_of(settings: Settings) -> str:
    """The metric of Milvus that ranks as the space does.

    Raises:
        DataError: there is none.
    """
    name = str(settings.space.get("name"))
    if name == "learned":
        raise DataError(
            "Milvus cannot search by a learned similarity, which only the model can compute: use a local gallery, such "
            "as 'shop.gallery'."
        )
    if name not in _METRICS:
        raise DataError(
            f"Milvus cannot search the space '{name}': use one of {', '.join(sorted(_METRICS))}, or a local gallery."
        )
    return _METRICS[name]


def search(
    connection: Connection,
    table: Collection,
    settings: Settings,
    queries: np.ndarray,
    k: int,
    where: str,
    exclude: np.ndarray | None,
    effort: dict[str, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k nearest rows that fulfil an expression, without the id that `exclude` (q,) gives for each query.

    `effort` is what the index is searched with.

    Returns:
        Distances float32 (q, k), infinite beyond the last; ids (q, k) and labels (q, k), objects, None there.

    Raises:
        DataError: k is larger than Milvus allows.
    """
    most = LARGEST_ANSWER - (exclude is not None)
    if k > most:
        raise DataError(f"Milvus finds at most {most:,} neighbours of a query, not {k:,}: ask for fewer.")
    step = _LITE_QUERIES[metric_of(settings)] if connection.lite else _SERVER_QUERIES
    # A server compares what is of one type; Milvus Lite has float32 alone, and queries need not be rounded there.
    asked = queries if connection.lite else items.encode(queries, settings, lite=False)
    ids, labels = _proposals(connection, table, asked, k + (exclude is not None), where, step, effort)
    if exclude is not None:
        ids[np.equal(ids, np.asarray(exclude, object)[:, None])] = None
    distances = _true_distances(table, settings, queries, ids)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    distances, ids, labels = (np.take_along_axis(values, order, 1) for values in (distances, ids, labels))
    gone = np.isinf(distances)
    ids[gone] = labels[gone] = None
    return distances, ids, labels


def _proposals(
    connection: Connection,
    table: Collection,
    queries: np.ndarray,
    k: int,
    where: str,
    at_once: int,
    effort: dict[str, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and labels (q, k), objects, of what Milvus finds, asked for `at_once` queries; None beyond the last."""
    ids = np.full((len(queries), k), None, object)
    labels = np.full((len(queries), k), None, object)
    step = max(1, min(_HITS_AT_ONCE // k, at_once))
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        hits_of = connection.call(
            "search",
            table.name,
            data=list(part),
            anns_field="vector",
            limit=k,
            filter=where,
            output_fields=["label"],
            consistency_level="Strong",
            **({"search_params": {"params": effort}} if effort else {}),
        )
        for row, hits in enumerate(hits_of, start):
            ids[row, : len(hits)] = [hit["id"] for hit in hits]
            labels[row, : len(hits)] = [hit["entity"]["label"] for hit in hits]
    return ids, labels


def _true_distances(table: Collection, settings: Settings, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Distances float32 (q, k) to the items with these ids (q, k); infinite where there is none (any more)."""
    names = list(dict.fromkeys(name for name in ids.ravel() if name is not None))
    found = table.get(names, ["vector"], at_once=at_once(settings.dimension))
    names = [name for name in names if name in found]
    vectors = decode([found[name]["vector"] for name in names], settings)
    places = {name: place for place, name in enumerate(names)}
    slots = np.array([places.get(name, -1) for name in ids.ravel()], np.int64).reshape(ids.shape)
    if not len(names):
        return np.full(ids.shape, np.inf, np.float32)
    space = make_space(**settings.space)
    far = true_distances(space, queries, vectors, np.maximum(slots, 0))
    return np.where(slots >= 0, far, np.inf).astype(np.float32)


_NAMES = {
    "exact": "FLAT",
    "hnsw": "HNSW",
    "hnsw-sq8": "HNSW_SQ",
    "ivf-flat": "IVF_FLAT",
    "ivf-sq8": "IVF_SQ8",
    "ivf-pq": "IVF_PQ",
    "diskann": "DISKANN",
}
_NOT_LITE = ("ivf-pq", "diskann")
_OF_INT8 = ("auto", "hnsw")
_AT_LEAST_K = ("ef", "search_list")


def check_layout(layout: Layout, settings: Settings, *, lite: bool) -> None:
    """Refuse an index that this Milvus does not have for such vectors.

    Raises:
        DataError: if so.
    """
    if lite and layout.index in _NOT_LITE:
        there = ", ".join(name for name in BUILDING if name not in _NOT_LITE)
        raise DataError(f"Milvus Lite has no index '{layout.index}': choose {there}, or a server.")
    if settings.dtype == "int8" and not lite:
        if metric_of(settings) != "COSINE":
            raise DataError(
                "Milvus compares int8 vectors without their scales, by which only angles stay what they were: use "
                "float16, or an index that is int8 itself, such as 'hnsw-sq8'."
            )
        if layout.index not in _OF_INT8:
            raise DataError(f"Milvus searches int8 vectors by 'hnsw' alone, not by '{layout.index}'.")
    if layout.index == "ivf-pq" and settings.dimension % _codes(layout, settings):
        raise DataError(
            f"'m' of the index 'ivf-pq' must divide the dimension, {settings.dimension}: give another than "
            f"{_codes(layout, settings)}."
        )


def index_parameters(layout: Layout, settings: Settings, *, lite: bool) -> dict[str, Any]:
    """What `add_index` of pymilvus takes beside the field."""
    index = layout.index
    if index == "auto":
        # Exact in Milvus Lite, as the server thinks best elsewhere.
        index = "exact" if lite else "hnsw" if settings.dtype == "int8" else index
    chosen = Layout(index, layout.parameters)
    made: dict[str, Any] = {name: chosen.value(name) for name in BUILDING[index]}
    if index == "ivf-pq":
        made["m"] = _codes(layout, settings)
    if index == "hnsw-sq8":
        made["sq_type"] = "SQ8"
    # Milvus Lite reads parameters as one document, a server one by one.
    told = {"params": {"params": made} if lite else made} if made else {}
    return {"index_type": _NAMES.get(index, "AUTOINDEX"), "metric_type": metric_of(settings), **told}


def search_parameters(layout: Layout, k: int) -> dict[str, Any]:
    """What a search for k neighbours gives the index; some numbers may not be below k."""
    names = SEARCHING.get(layout.index, {})
    values = {name: layout.value(name) for name in names}
    return {name: max(value, k) if name in _AT_LEAST_K else value for name, value in values.items()}


def _codes(layout: Layout, settings: Settings) -> int:
    """Into how many parts product quantisation cuts a vector: of four numbers each, unless told otherwise."""
    return layout.value("m") or max(1, settings.dimension // 4)
