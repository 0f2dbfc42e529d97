"""Exact nearest neighbours by brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError, suggestion
from nearkin.search.brute_force import search_candidates, true_order
from nearkin.search.order import Order
from nearkin.search.rerank import Reranker, as_reranker
from nearkin.search.scorers import Scorer, as_exclude, as_pair, as_scorer, as_vectors, check_k, memory_bytes
from nearkin.spaces import Sphere

_SPHERE = Sphere()
_STORAGES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def exact(
    queries: Any,
    gallery: Any | None = None,
    k: int = 10,
    *,
    space: Any = _SPHERE,
    exclude: Any | None = None,
    rerank: Reranker | str | None = None,
    storage: str | torch.dtype | None = None,
    memory_mb: float = 512,
) -> tuple[Tensor, Tensor]:
    """The k nearest gallery items of every query: (distances, indices), each (q, k), nearest first.

    Distances are float32; their order is that of float64 (with a distance of your own: as it gives them), and equal
    ones go by the lower index. The score matrix is never held: it passes in blocks, on all threads of torch.

    Args:
        queries: points of the space (q, d), array or tensor.
        gallery: points (n, d); None searches the queries among themselves, where a query never finds itself but does
            find its exact copies.
        k: how many neighbours.
        space: a space, its name, "cosine", "inner-product" (distance `-x.y`), or any object with a `distance(x, y)`
            that gives the distances (n, m) between (n, d) and (m, d).
        exclude: the index (q,) of the gallery item that a query must not find, -1 for none.
        rerank: how to put the neighbours into a better order, such as `KReciprocal()` or its name.
        storage: "float16" or "bfloat16" rounds the gallery and keeps it in half the memory; halves that are given stay
            halves in any case.
        memory_mb: how much memory the search may take beside its inputs and results, in MB (2^20 bytes).
    """
    scorer, memory = as_scorer(space), memory_bytes(memory_mb)
    reranker = None if rerank is None else as_reranker(rerank)
    x, y = as_pair(queries, gallery)
    if storage is not None:
        storage = str(storage).removeprefix("torch.")
        if storage not in _STORAGES:
            raise DataError(f"Vectors cannot be stored as '{storage}'.{suggestion(storage, _STORAGES)}")
        y = as_vectors((x if y is None else y).to(_STORAGES[storage]), f"vectors, stored as {storage},", halves=True)
    points = x if y is None else y
    hidden = as_exclude(exclude, len(x), len(points), leave_one_out=gallery is None)
    check_k(k, len(points) - (hidden is not None and bool((hidden >= 0).any())))
    if reranker is None:
        return _search(x, points, k, hidden, scorer, memory)

    def search(left: Tensor, right: Tensor, k: int, exclude: Any) -> tuple[Tensor, Tensor]:
        return _search(left, right, k, None if exclude is None else np.asarray(exclude), scorer, memory)

    skip = None if hidden is None else torch.from_numpy(hidden)
    return reranker.rank(search, x, points, k, exclude=skip, space=scorer)


@torch.no_grad()
def _search(
    x: Tensor, y: Tensor, k: int, exclude: np.ndarray | None, scorer: Scorer, memory: int
) -> tuple[Tensor, Tensor]:
    distances = np.empty((len(x), k), np.float32)
    indices = np.empty((len(x), k), np.int64)
    if len(x):
        order = Order(x, y, scorer)

        def write(rows: np.ndarray, keys: np.ndarray) -> None:
            true, near = true_order(order, rows, keys, np.full(len(rows), k))
            distances[rows], indices[rows] = true[:, :k], near[:, :k]

        search_candidates(order, np.arange(len(x)), np.full(len(x), k), exclude, write, memory)
    return torch.from_numpy(distances).to(x.device), torch.from_numpy(indices).to(x.device)
