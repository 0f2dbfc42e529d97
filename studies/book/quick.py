"""The page of the quick book: figures of now beside those that the committed ledgers have of the same cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.book.catalogue import Sample
from studies.page_tables import table


def quick_page(samples: Sequence[Sample], now: Path, kept: Path) -> str:
    """What every sample found.

    Args:
        samples: what was asked for.
        now: the tree that was made now.
        kept: the repository.
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
        theirs = dict(numbers(same[-1], place)) if same else {}
        for name, values in numbers(line, place):
            yield cell, name, _told(values), _told(theirs.get(name, [])), _apart(values, theirs.get(name, []))


def _told(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values) or "none"


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The difference that is farthest from zero; nothing where they cannot be compared."""
    if len(ours) != len(theirs):
        return ""
    return f"{max((a - b for a, b in zip(ours, theirs, strict=True)), key=abs):+.2g}"


def numbers(line: Mapping[str, Any], place: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    """The numbers at a place of a line, alone or in a list, with their name; those of mappings one by one."""
    found: Any = line
    for step in place:
        found = found[step]
    yield from _flat(found, " ".join(place))


def _flat(found: Any, name: str) -> Iterator[tuple[str, list[float]]]:
    if isinstance(found, Mapping):
        for key, value in found.items():
            yield from _flat(value, f"{name} {key}")
    else:
        values = found if isinstance(found, list) else [found]
        if values and all(isinstance(value, int | float) for value in values):
            yield name, [float(value) for value in values]
