"""The claims of each seed document, one file each, in the order of `docs/book`.

A file exports `DOCUMENT`. To add a document, add its name here; to add a claim, add it to the document's list.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from studies.claims.claim import Document

ORDER = ("distance", "prototypes", "generalize", "adversary", "confidence")


def documents() -> list[Document]:
    """The documents that are there, in their order."""
    there = [name for name in ORDER if Path(__file__).with_name(f"{name}.py").exists()]
    return [importlib.import_module(f"studies.claims.{name}").DOCUMENT for name in there]
