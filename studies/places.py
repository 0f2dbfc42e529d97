"""Where studies keep what they measure and draw: in the repository, or in a tree of its own.

    NEARKIN_BOOK=DIR python studies/ccp_toy/run.py    begins DIR/studies/ccp_toy/ledger.jsonl, draws to DIR/docs/images

Nothing in the repository is touched then. `studies/book/run.py --fresh DIR` does this for every study. Trees made
before 0.2.0 kept ledgers in DIR/benchmarks: a file that is only there is read and continued there.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "NEARKIN_BOOK"
REPOSITORY = Path(__file__).resolve().parents[1]
PLACE = Path(os.environ.get(VARIABLE) or REPOSITORY).resolve()
DOCS = PLACE / "docs"
IMAGES = DOCS / "images"

BOOKS = {
    "rates": "ccp",
    "cub": "ccp",
    "omniglot": "ccp",
    "ablation": "ccp",
    "gsp-cub": "gsp",
    "gsp-settings": "gsp",
    "collage": "gsp_collage",
    "adversary-cub": "adversary",
    "adversary-cifar": "adversary",
    "adversary-forms": "adversary",
}
"""Books of `nearkin benchmark` and the study whose folder has them."""

if PLACE != REPOSITORY:
    for folder in (IMAGES, DOCS / "results", DOCS / "book"):
        folder.mkdir(parents=True, exist_ok=True)


def located(path: str, root: Path = PLACE) -> Path:
    """A file or folder of a study, such as "studies/ccp_toy/ledger.jsonl"; its folder is made in a tree of its own.

    Args:
        path: from the root of the tree.
        root: of the tree.
    """
    now, before = root / path, root / _before(path)
    if before.exists() and not now.exists():
        return before
    if root != REPOSITORY:
        now.parent.mkdir(parents=True, exist_ok=True)
    return now


def book_folder(name: str) -> Path:
    """The folder of a book of `nearkin benchmark`."""
    return located(f"studies/{BOOKS.get(name, 'books')}/{name}")


def models() -> Path:
    """Where trained models wait to be used again: the user's cache, or the tree of its own."""
    from nearkin.data.catalogue import cache_directory

    return cache_directory() if PLACE == REPOSITORY else PLACE / "models"


def _before(path: str) -> str:
    """Where trees made before 0.2.0 have a file."""
    top, *inner = path.split("/")
    if top != "studies" or len(inner) < 2:
        return path
    study, *rest = inner
    if BOOKS.get(rest[0]) == study:
        return "/".join(["benchmarks", "books", *rest])
    names = {"ledger.jsonl": f"{study}.jsonl", "result.json": f"{study}.json", "rates.jsonl": f"{study}_rates.jsonl"}
    inside = rest[1:] if rest[0] in ("tables", "episodes") else rest
    return "/".join(["benchmarks", names.get(rest[0]) or "/".join([study, *inside])])
