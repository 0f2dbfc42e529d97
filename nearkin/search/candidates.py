"""True distances of queries to the few gallery items that another search proposes."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.search.blocks.order import settled
from nearkin.search.scorers import Cosine, InnerProduct, Scorer

_ENTRIES = 2**22  # of gathered vectors: 32 MB in double precision
_PLAIN_ROWS = 64


def candidate_distances(space: Scorer, queries: Tensor, gallery: Tensor, candidates: Tensor) -> Tensor:
    """Distances (q, m), float64, of queries (q, d) to the gallery items (n, d) numbered by `candidates` (q, m).

    What differs by rounding only is equal. A space compares each query with its own candidates; a scorer of the user's
    own knows only tables of distances, and gets small ones; they count in single precision, as in every search.
    """
    distances = torch.empty(candidates.shape, dtype=torch.float64, device=queries.device)
    if not candidates.numel():
        return distances
    batched = _is_batched(space)
    step = max(1, _ENTRIES // (candidates.shape[1] * queries.shape[1])) if batched else _PLAIN_ROWS
    for rows in torch.arange(len(queries), device=queries.device).split(step):
        x, near = queries[rows].double(), candidates[rows]
        if batched:
            distances[rows] = settled(space.distance(x.unsqueeze(1), gallery[near].double())[:, 0])
        else:
            items, place = near.unique(return_inverse=True)
            distances[rows] = space.distance(x, gallery[items].double()).gather(1, place).float().double()
    return distances


def all_distances(space: Scorer, queries: Tensor, gallery: Tensor) -> Tensor:
    """Distances (q, n), float64, of queries (q, d) to a whole gallery (n, d); what differs by rounding is equal."""
    step = max(1, _ENTRIES // max(len(queries), queries.shape[1]))
    parts = [space.distance(queries.double(), part.double()) for part in gallery.split(step)]
    distances = torch.cat(parts, dim=1)
    return settled(distances) if _is_batched(space) else distances.float().double()


def _is_batched(space: Scorer) -> bool:
    """Whether it takes leading batch dimensions, as every space does; then it is ours, and exact in float64."""
    return hasattr(space, "project") or isinstance(space, Cosine | InnerProduct)
