"""Pages as their readers see them: fenced blocks with language, place and what stands before them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

RUN = ("python", "sh", "bash")
"""Languages of what is run."""

LANGUAGES = (*RUN, "yaml", "json", "csv", "text", "nginx", "ini")
"""Languages that a block may have."""

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    follows: bool
    """Whether nothing stands between it and the block before, as between a command and what it prints."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def opening(self) -> str:
        """Its first line, by which lists name it."""
        return self.text.partition("\n")[0].rstrip()


def pages() -> list[str]:
    """README, the first page of the site and the guides, relative to the repository."""
    return [
        "README.md",
        "docs/index.md",
        *sorted(path.relative_to(ROOT).as_posix() for path in (DOCS / "guide").rglob("*.md")),
    ]


def read_blocks(text: str, page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks: list[Block] = []
    lines = text.splitlines()
    number = after = 0
    while number < len(lines):
        found = _FENCE.match(lines[number])
        number += 1
        if not found:
            continue
        indent, fence, language = found.groups()
        first = number
        while number < len(lines) and lines[number].strip() != fence:
            number += 1
        if number == len(lines):
            raise AssertionError(f"{page}:{first}: the block is never closed")
        inside = "".join(f"{line.removeprefix(indent)}\n" for line in lines[first:number])
        follows = bool(blocks) and not "".join(lines[after : first - 1]).strip()
        number += 1
        after = number
        blocks.append(Block(page, first, language, inside, follows))
    return blocks


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page of this repository."""
    return read_blocks((ROOT / page).read_text(encoding="utf-8"), page)
