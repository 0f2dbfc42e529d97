"""Pieces of Milvus's filter language; text only ever enters it as an escaped literal."""

from __future__ import annotations

from collections.abc import Iterable

from nearkin.gallery.where_milvus import literal


def one_of(name: str, values: Iterable[str]) -> str:
    """`name in [values]`."""
    return f"{name} in [{', '.join(map(literal, values))}]"


def all_of(*parts: str) -> str:
    """What is true where all parts are; empty ones are left out."""
    return " and ".join(f"({part})" for part in parts if part)
