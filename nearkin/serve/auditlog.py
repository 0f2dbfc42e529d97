"""Who changed what: one JSON object a line, never a key."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from nearkin.errors import StorageError
from nearkin.serve.security import Identity

LOGGER = logging.getLogger("nearkin.audit")
_TROUBLE = logging.getLogger("nearkin.serve")


class _File(WatchedFileHandler):
    """A file that may be moved away by those who rotate logs, and that says when it cannot be written."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise


class AuditLog:
    """Writes to the logger `nearkin.audit`, and to a file if there is one.

    Args:
        path: the file, appended to; None: no file.

    Attributes:
        failures: lines that could not be written to the file; they are in the log of the service instead.
    """

    def __init__(self, path: Path | None) -> None:
        self.failures = 0
        self._file: _File | None = None
        if path is not None:
            try:
                self._file = _File(path, encoding="utf-8")
            except OSError as error:
                raise StorageError(f"The audit log {path} cannot be written ({error.strerror}).") from error

    def write(
        self, identity: Identity, action: str, ids: Sequence[str], changed: Mapping[str, Any] | None = None
    ) -> None:
        """Note that somebody did something.

        Args:
            identity: who.
            action: what: "enrol", "add", "replace", "change" or "remove".
            ids: of the items.
            changed: what they were given: `label`, and the names of `metadata`; what is left out stayed as it was.
        """
        self._note(identity, {"action": action, "ids": list(ids), "changed": dict(changed or {})})

    def refuse(self, identity: Identity, what: str, problem: str) -> None:
        """Note that somebody tried to write who may not.

        Args:
            identity: who.
            what: method and path.
            problem: why, by the end of its type.
        """
        self._note(identity, {"action": "refused", "request": what, "problem": problem})

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _note(self, identity: Identity, what: Mapping[str, Any]) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "key": identity.name, "role": identity.role, **what})
        record = LOGGER.makeRecord(LOGGER.name, logging.INFO, "", 0, line, (), None)
        if LOGGER.isEnabledFor(logging.INFO):
            LOGGER.handle(record)
        if self._file is None:
            return
        try:
            self._file.emit(record)
        except OSError as error:
            self.failures += 1
            _TROUBLE.error("the audit log cannot be written (%s); its line: %s", error.strerror, line)
