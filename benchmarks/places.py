"""Where studies keep what they measure and draw: in the repository, or in a tree of its own.

    NEARKIN_BOOK=DIR python benchmarks/ccp_toy.py    begins DIR/benchmarks/ccp_toy.jsonl, and draws to DIR/docs/images

Nothing in the repository is touched then. `book.py --fresh DIR` does this for every study.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "NEARKIN_BOOK"
REPOSITORY = Path(__file__).resolve().parents[1]
PLACE = Path(os.environ.get(VARIABLE) or REPOSITORY).resolve()
BENCHMARKS = PLACE / "benchmarks"
"""Ledgers, books and tables."""
DOCS = PLACE / "docs"
IMAGES = DOCS / "images"

if PLACE != REPOSITORY:
    for folder in (BENCHMARKS, IMAGES, DOCS / "results", DOCS / "book"):
        folder.mkdir(parents=True, exist_ok=True)


def models() -> Path:
    """Where trained models wait to be used again: the user's cache, or the tree of its own."""
    from nearkin.data.catalogue import cache_directory

    return cache_directory() if PLACE == REPOSITORY else PLACE / "models"
