"""Nearest neighbours: every search answers (distances, indices)."""

from nearkin.search.exact import exact
from nearkin.search.ranking import Ranking, smallest
from nearkin.search.vectors import as_pair, as_vectors

__all__ = ["Ranking", "as_pair", "as_vectors", "exact", "smallest"]
