"""What a command shows: a table for people, or one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDEST = 100_000
"""Columns a table may take where nobody looks at it: a pipe has no edge, and a cut id finds nothing."""


def show_json(value: Any) -> None:
    """Print one JSON document; dataclasses become objects."""
    print(json.dumps(value, indent=2, default=_plain))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table; None is shown as a dash, and a column without any value is left out.

    Args:
        columns: the headings.
        rows: the cells; any text is shown as it is, never read as markup.
        numbers: headings of the columns to be set flush right.
        title: a line above the table.
    """
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    shown = [i for i in range(len(columns)) if not cells or any(row[i] not in ("-", "") for row in cells)]
    table = Table(box=None, title=title or None, title_justify="left", title_style="")
    for i in shown:
        # Too long for a terminal, a cell goes on in the next line: ids are there to be copied.
        table.add_column(columns[i], justify="right" if columns[i] in numbers else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(row[i]) for i in shown))
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        wanted = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
        console.width = max(console.width, wanted)
    console.print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one a line; None is left out."""
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            print(f"{name:<{width}}  {printable(str(value))}")


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters are written as escapes."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def percent(share: float | None) -> str | None:
    """A share in percent, or None."""
    return None if share is None else f"{100 * share:.1f} %"


def in_words(metadata: Mapping[str, object]) -> str:
    """Metadata in one line."""
    return ", ".join(f"{name}={value}" for name, value in metadata.items())


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
