"""Pieces of Milvus's filter language; text only ever enters it as an escaped literal."""

from __future__ import annotations

from collections.abc import Iterable

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def literal(text: str) -> str:
    """Text as a literal in double quotes."""
    return f'"{text.translate(_ESCAPES)}"'


def one_of(name: str, values: Iterable[str]) -> str:
    """`name in [values]`."""
    return f"{name} in [{', '.join(map(literal, values))}]"


def all_of(*parts: str) -> str:
    """What is true where all parts are; empty ones are left out."""
    return " and ".join(f"({part})" for part in parts if part)
