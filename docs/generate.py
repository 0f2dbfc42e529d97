"""Fills the generated parts of the docs, so that they cannot go stale: tables, and the pages of the book.

A page asks for a table with a comment line such as `<!-- generated: catalogue -->`; `generators` has their makers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # mkdocs loads this file by its path

from generators import benchmarks, book, books, code, coverage, methods, peers, studies, written

_MARK = re.compile(r"<!-- generated: (\w+) -->")
_PARTS = (code, benchmarks, studies, written, books, peers, methods, coverage)
_TABLES = {mark: make for part in _PARTS for mark, make in part.TABLES.items()}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """mkdocs calls this with all files of the docs; the pages of the book are added."""
    from mkdocs.structure.files import File

    for path, content in book.made().items():
        if there := files.get_file_from_path(path):
            files.remove(there)
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this with every page."""
    return _MARK.sub(lambda match: _TABLES[match[1]](), markdown)
