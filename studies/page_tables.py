"""What result pages share: tables in Markdown, and p-values in words."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, or that there is none yet."""
    if not rows:
        return "Not measured yet."
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def p_text(value: float) -> str:
    """A p-value with as many digits as matter."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
