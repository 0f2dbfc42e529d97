"""Fills the generated parts of the docs: tables that come from the code, so that they cannot go stale.

A page asks for one with a comment line such as `<!-- generated: catalogue -->`; `generators` has their makers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # mkdocs loads this file by its path

from generators import benchmarks, books, code, methods, peers, studies, written

_MARK = re.compile(r"<!-- generated: (\w+) -->")
_PARTS = (code, benchmarks, studies, written, books, peers, methods)
_TABLES = {mark: make for part in _PARTS for mark, make in part.TABLES.items()}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this with every page."""
    return _MARK.sub(lambda match: _TABLES[match[1]](), markdown)
