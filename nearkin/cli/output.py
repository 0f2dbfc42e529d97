"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from nearkin.errors import DataError, StorageError
from nearkin.storage import replacing, write_text

_PAGES, _PICTURE = (".html", ".htm"), ".png"

_WIDEST = 100_000
"""Width of a table in a pipe: nothing is cut there."""


def show_json(value: Any) -> None:
    """Print one JSON document; dataclasses become objects."""
    print(json.dumps(value, indent=2, default=_plain))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table; None is shown as a dash, and a column without any value is left out.

    Args:
        columns: the headings.
        rows: the cells; their text is printed verbatim, without markup.
        numbers: headings of right-aligned columns.
        title: a line above the table.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    shown = [i for i in range(len(columns)) if not cells or any(row[i] not in ("-", "") for row in cells)]
    table = Table(box=None, title=title or None, title_justify="left", title_style="")
    for i in shown:
        # Long cells wrap: ids must stay complete to be copied.
        table.add_column(columns[i], justify="right" if columns[i] in numbers else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(row[i]) for i in shown))
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        wanted = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
        console.width = max(console.width, wanted)
    console.print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one per line; None is omitted."""
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            print(f"{name:<{width}}  {printable(str(value))}")


def show_notes(notes: Iterable[str]) -> None:
    """Print notes, one per line."""
    for note in notes:
        print(f"Note: {note}")


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


def check_folder(folder: Path) -> None:
    """Fail early if a folder is not writable, without creating it.

    Raises:
        StorageError: if so.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        named = folder if there == folder.absolute() else there
        raise StorageError(f"{named} is a file, not a folder: choose another place with --out.")
    try:
        # Permissions are not enough: the file system may be read-only.
        writable = os.access(there, os.W_OK | os.X_OK)
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError:
        writable = False
    if not writable:
        raise StorageError(f"Cannot write to {there}: choose another place with --out.")


def directory_names(paths: Sequence[Path]) -> list[str]:
    """The names of directories, or their whole paths where names are ambiguous."""
    names = [path.resolve().name for path in paths]
    return [str(path) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]


def check_ending(out: Path | None) -> None:
    """Fail early unless a file is a page or a picture.

    Raises:
        DataError: if so.
    """
    if out is not None and out.suffix.lower() not in (*_PAGES, _PICTURE):
        raise DataError(f"--out must end in .html or {_PICTURE}, not {out}.")


def write_page_or_picture(out: Path, picture: bytes, page: Callable[[], str], nothing: str) -> None:
    """Write what the ending of a file asks for.

    Args:
        out: where to.
        picture: PNG bytes, or none when there is nothing to draw.
        page: makes the HTML.
        nothing: the reason why there is no picture.
    """
    if out.suffix.lower() != _PICTURE:
        write_text(out, page())
        print(f"Report: {out}")
        return
    if not picture:
        raise DataError(f"Nothing to draw: {nothing}.")
    with replacing(out) as temporary:
        temporary.write_bytes(picture)
    print(f"Picture: {out}")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
