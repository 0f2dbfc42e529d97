"""Approximate nearest neighbours by faiss, imported when used."""

from nearkin.search.ann.approximate import FaissIndex, faiss

__all__ = ["FaissIndex", "faiss"]
