"""Search: Milvus proposes, true distances decide.

Milvus gives scores, of which a cosine loses half its digits near one. So the vectors of what it found are fetched, each
once, and distances are those of our own spaces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.gallery.milvus import items
from nearkin.gallery.milvus.connection import Connection
from nearkin.gallery.milvus.items import at_once, decode
from nearkin.gallery.milvus.table import LARGEST_ANSWER, Table
from nearkin.gallery.values import Settings
from nearkin.spaces import Space, make_space

_METRICS = {"sphere": "COSINE", "euclidean": "L2", "lipschitz-ball": "L2"}
_VALUES_AT_ONCE = 2**24
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
    table: Table,
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
    table: Table,
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
        for row, hits in enumerate(_hits(connection, table.name, part, k, where, effort), start):
            ids[row, : len(hits)] = [hit["id"] for hit in hits]
            labels[row, : len(hits)] = [hit["entity"]["label"] for hit in hits]
    return ids, labels


def _hits(connection: Connection, name: str, queries: np.ndarray, k: int, where: str, effort: dict[str, int]) -> Any:
    chosen = {"search_params": {"params": effort}} if effort else {}
    return connection.call(
        "search",
        name,
        data=list(queries),
        anns_field="vector",
        limit=k,
        filter=where,
        output_fields=["label"],
        consistency_level="Strong",
        **chosen,
    )


def _true_distances(table: Table, settings: Settings, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Distances float32 (q, k) to the items with these ids (q, k); infinite where there is none (any more)."""
    names = list(dict.fromkeys(name for name in ids.ravel() if name is not None))
    found = table.get(names, ["vector"], at_once=at_once(settings.dimension))
    names = [name for name in names if name in found]
    vectors = decode([found[name]["vector"] for name in names], settings)
    places = {name: place for place, name in enumerate(names)}
    slots = np.array([places.get(name, -1) for name in ids.ravel()], np.int64).reshape(ids.shape)
    distances = np.full(ids.shape, np.inf, np.float32)
    if not len(names):
        return distances
    space = make_space(**settings.space)
    step = max(1, _VALUES_AT_ONCE // (ids.shape[1] * settings.dimension))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        far = _distances(space, queries[rows], vectors[slots[rows]])
        distances[rows] = np.where(slots[rows] >= 0, far, np.inf)
    return distances


def _distances(space: Space, queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Distances (q, k) of queries (q, d) to vectors (q, k, d), each query to its own."""
    far = space.distance(torch.from_numpy(queries)[:, None], torch.from_numpy(vectors))
    made: np.ndarray = far[:, 0].float().numpy()
    return made
