"""The vectors of a gallery in memory, and how they are searched: all of them, or a graph of them.

- `VectorIndex`: every vector is compared; nothing is missed. By a learned similarity too, with its sides kept.
- `HnswIndex`: a graph over a `VectorIndex` for galleries too large for that (faiss extra).
"""

from nearkin.gallery.index.hnsw import HnswIndex
from nearkin.gallery.index.vectors import VectorIndex

__all__ = ["HnswIndex", "VectorIndex"]
