"""Nearest neighbours: every search answers (distances, indices)."""

from nearkin.search.approximate import FaissIndex, faiss
from nearkin.search.exact import exact
from nearkin.search.nearest import search_candidates, untangle
from nearkin.search.order import Order
from nearkin.search.ranks import first_ranks
from nearkin.search.rerank import AverageQueryExpansion, KReciprocal, Reranker, make_reranker, rerankers
from nearkin.search.reservoir import EMPTY, key_indices, key_scores
from nearkin.search.scorers import Cosine, InnerProduct, Scorer, as_scorer
from nearkin.search.vectors import as_exclude, as_pair, as_vectors, memory_bytes

__all__ = [
    "EMPTY",
    "AverageQueryExpansion",
    "Cosine",
    "FaissIndex",
    "InnerProduct",
    "KReciprocal",
    "Order",
    "Reranker",
    "Scorer",
    "as_exclude",
    "as_pair",
    "as_scorer",
    "as_vectors",
    "exact",
    "faiss",
    "first_ranks",
    "key_indices",
    "key_scores",
    "make_reranker",
    "memory_bytes",
    "rerankers",
    "search_candidates",
    "untangle",
]
