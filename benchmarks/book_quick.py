"""The page of the quick book: figures of now beside those that the committed ledgers have of the same cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from book_studies import Sample
from page_tables import table


def quick_page(samples: Sequence[Sample], now: Path, kept: Path) -> str:
    """What every sample found.

    Args:
        samples: what was asked for.
        now: `benchmarks` of the tree that was made now.
        kept: `benchmarks` of the repository.
    """
    parts = [
        "# The book, quickly",
        "Cells measured now, from nothing, beside the committed ledgers' cells of the same key. Training adds numbers "
        "up in another order on other machines, so trained figures agree closely rather than to the last digit. "
        "(`make book-quick`)",
    ]
    for sample in samples:
        parts += [f"## {sample.study.name}", f"`{sample.study.command}`, for {', '.join(sample.study.documents)}"]
        rows = [row for line in sample.study.lines(now) for row in _rows(sample, line, kept)]
        parts.append(table(("cell", "figure", "now", "kept", "difference"), rows))
    return "\n\n".join(parts) + "\n"


def _rows(sample: Sample, line: Mapping[str, Any], kept: Path) -> Iterator[tuple[str, ...]]:
    key = {name: line[name] for name in sample.key}
    same = [other for other in sample.study.lines(kept) if key.items() <= other.items()]
    cell = ", ".join(f"{name} {value}" for name, value in key.items() if value is not None)
    for place in sample.figures:
        ours = dict(numbers(line, place))
        theirs = dict(numbers(same[-1], place)) if same else {}
        for name, value in ours.items():
            if name in theirs:
                yield cell, name, f"{value:.4g}", f"{theirs[name]:.4g}", f"{value - theirs[name]:+.2g}"
            else:
                yield cell, name, f"{value:.4g}", "none", ""


def numbers(line: Mapping[str, Any], place: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The numbers at a place of a line, each with its name; those of lists and mappings one by one."""
    found: Any = line
    for step in place:
        found = found[step]
    yield from _flat(found, " ".join(place))


def _flat(found: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(found, Mapping):
        for key, value in found.items():
            yield from _flat(value, f"{name} {key}")
    elif isinstance(found, list):
        for number, value in enumerate(found, start=1):
            yield from _flat(value, f"{name} {number}")
    elif isinstance(found, int | float):
        yield name, float(found)
