"""Brute force that is bound by the matrix product: scores pass in blocks, and only what may be needed is kept.

`search_candidates` picks the way: tiles for few neighbours, a sieve for many, whole strips of rows for the rest.
"""

from nearkin.search.blocks.nearest import search_candidates, true_order, untangle
from nearkin.search.blocks.order import Order
from nearkin.search.blocks.ranks import first_ranks
from nearkin.search.blocks.reservoir import EMPTY, key_indices, key_scores

__all__ = [
    "EMPTY",
    "Order",
    "first_ranks",
    "key_indices",
    "key_scores",
    "search_candidates",
    "true_order",
    "untangle",
]
