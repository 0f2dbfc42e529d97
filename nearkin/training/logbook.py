"""What a run writes down while it trains: JSON lines, and TensorBoard events when that is installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nearkin.errors import RunError
from nearkin.storage import storing, write_text


class Logbook:
    """Rows of numbers by step, appended to a JSON-lines file.

    Args:
        path: the file; rows after `keep_to` are dropped from an existing one, so a resumed run repeats nothing. None
            keeps the rows in memory only.
        keep_to: the last step that still counts.
        events: folder for TensorBoard events; None writes none.
    """

    def __init__(self, path: Path | None, keep_to: int = 0, events: Path | None = None) -> None:
        self.path = path
        self.rows = [row for row in read_rows(path) if row["step"] <= keep_to] if path is not None else []
        if path is not None:
            write_text(path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._writer = _event_writer(events, keep_to) if events is not None else None

    def add(self, step: int, **values: float) -> None:
        """Append one row."""
        row = {"step": step, **values}
        self.rows.append(row)
        if self.path is not None:
            with storing(self.path), open(self.path, "a", encoding="utf-8") as handle:
                handle.write(json.dumps(row) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish the event file."""
        if self._writer is not None:
            self._writer.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line cut short by a crash is left out.

    Raises:
        RunError: if another line is no row, so that nothing is lost in silence.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    rows = [_row(line) for line in lines]
    if rows[-1] is None:
        rows.pop()
    if None in rows:
        raise RunError(
            f"{path}, line {rows.index(None) + 1}, is damaged, it is no row of a training log: delete or correct that "
            "line, or bring back the file as it was."
        )
    return [row for row in rows if row is not None]


def _row(line: str) -> dict[str, Any] | None:
    """The row that a line holds, None if it holds none."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int | float) else None


def _event_writer(folder: Path, keep_to: int) -> Any:
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=keep_to + 1)
