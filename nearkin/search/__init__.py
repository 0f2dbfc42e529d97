"""Nearest neighbours: every search answers (distances, indices)."""

from nearkin.search.ann import FaissIndex, faiss
from nearkin.search.exact import exact
from nearkin.search.rerank import AverageQueryExpansion, KReciprocal, Reranker, as_reranker, make_reranker, rerankers
from nearkin.search.scorers import (
    Cosine,
    InnerProduct,
    Scorer,
    as_exclude,
    as_pair,
    as_scorer,
    as_vectors,
    memory_bytes,
)

__all__ = [
    "AverageQueryExpansion",
    "Cosine",
    "FaissIndex",
    "InnerProduct",
    "KReciprocal",
    "Reranker",
    "Scorer",
    "as_exclude",
    "as_pair",
    "as_reranker",
    "as_scorer",
    "as_vectors",
    "exact",
    "faiss",
    "make_reranker",
    "memory_bytes",
    "rerankers",
]
