"""How tables and differences are written."""

from __future__ import annotations

from collections.abc import Iterable


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as markdown has it."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def difference_in_points(mean: float, low: float, high: float, p: float) -> str:
    """A difference of shares in points, with its interval and p."""
    told = "< 0.001" if p < 0.001 else f"= {p:.2g}"
    return f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}), p {told}"
