"""Who changed what: one JSON object a line, never a key."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from nearkin.errors import StorageError
from nearkin.serve.security import Identity

_LOGGER = logging.getLogger("nearkin.audit")


class AuditLog:
    """Writes to the logger `nearkin.audit`, and to a file if there is one.

    Args:
        path: the file, appended to; None: no file.
    """

    def __init__(self, path: Path | None) -> None:
        self._handler: logging.Handler | None = None
        if path is not None:
            try:
                self._handler = logging.FileHandler(path, encoding="utf-8")
            except OSError as error:
                raise StorageError(f"The audit log {path} cannot be written ({error.strerror}).") from error

    def write(self, identity: Identity, action: str, ids: Sequence[str], label: str | None = None) -> None:
        """Note that somebody did something.

        Args:
            identity: who.
            action: what: "enrol", "add", "change" or "remove".
            ids: of the items.
            label: that they were given; None if none was.
        """
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "key": identity.name,
            "role": identity.role,
            "action": action,
            "ids": list(ids),
            "label": label,
        }
        record = _LOGGER.makeRecord(_LOGGER.name, logging.INFO, "", 0, json.dumps(entry), (), None)
        if _LOGGER.isEnabledFor(logging.INFO):
            _LOGGER.handle(record)
        if self._handler is not None:
            self._handler.emit(record)
            self._handler.flush()

    def close(self) -> None:
        """Let go of the file."""
        if self._handler is not None:
            self._handler.close()
