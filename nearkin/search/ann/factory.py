"""What a faiss factory string asks of a gallery: how many points its codebooks need for training.

A string such as `OPQ16,IVF256,PQ16` names its parts in order. Cells (IVF) and product quantisers (PQ, OPQ) are
codebooks that k-means learns; fewer than 39 points a centroid give poor ones, more than 256 add nothing but time.
"""

from __future__ import annotations

import re

from nearkin.errors import DataError

_FEWEST, _MOST = 39, 256  # points a centroid
_DEFAULT_BITS = 8
_UNITS = {"": 1, "k": 1024, "M": 1024**2}
_CELLS = re.compile(r"^IVF(\d+)([kM]?)")
_GRID = re.compile(r"^IMI\d+x(\d+)")
_CODES = re.compile(r"(?:(?<![A-Z])PQ|RQ|LSQ)\d+(?:x(\d+))?")


def centroids(factory: str) -> int:
    """The size of the largest codebook of a factory string; 0 if it learns none."""
    return max(map(_centroids, factory.split(",")))


def compresses(factory: str) -> bool:
    """Whether the index holds less than the vectors, so that its own order is an estimate."""
    return re.search(r"[PSR]Q|PCA|LSH|ITQ|RaBitQ", factory) is not None


def training_size(factory: str, size: int) -> int:
    """How many of `size` points to train on: all, or as many as its codebooks can use."""
    return min(size, _MOST * (centroids(factory) or 2**_DEFAULT_BITS))


def check_size(factory: str, size: int) -> None:
    """Refuse a gallery too small to train this factory string, and propose a string that suits it."""
    needed = _FEWEST * centroids(factory)
    if size < needed:
        raise DataError(
            f"'{factory}' needs at least {needed} items to train on, {_FEWEST} for each of {needed // _FEWEST} "
            f"centroids, and the gallery has {size}: use '{smaller(factory, size)}'."
        )


def smaller(factory: str, size: int) -> str:
    """The string nearest to `factory` that a gallery of `size` points can train."""
    kept: list[str] = []
    for part in factory.split(","):
        if _FEWEST * _centroids(part) <= size:
            kept.append(part)
        elif _CELLS.match(part):
            fitting = 2 ** ((size // _FEWEST).bit_length() - 1) if size >= 4 * _FEWEST else 0
            kept.extend([_CELLS.sub(f"IVF{fitting}", part)] if fitting else [])
        elif part.startswith("HNSW"):
            kept.append(part.partition("_")[0])
        elif not part.startswith(("OPQ", "IMI")):
            kept.append("Flat" if any(map(_CELLS.match, kept)) else "SQ8")
    last_is_cells = bool(kept and _CELLS.match(kept[-1]))
    return ",".join([*kept, "Flat"] if last_is_cells or not kept else kept)


def _centroids(part: str) -> int:
    """The size of the codebook that one part of a string learns."""
    if cells := _CELLS.match(part):
        return int(cells[1]) * _UNITS[cells[2]]
    if grid := _GRID.match(part):
        return 2 ** int(grid[1])
    if part.startswith("OPQ"):
        return 2**_DEFAULT_BITS
    codes = _CODES.search(part)
    return 2 ** int(codes[1] or _DEFAULT_BITS) if codes else 0
