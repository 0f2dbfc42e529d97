"""Numbers of things in a sentence."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """A number of things: "1 item", "2,000 items", "3 classes"."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing}{'es' if thing.endswith('s') else 's'}"
