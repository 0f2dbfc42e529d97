"""A connection that tries again: what fails for a moment is repeated, what fails for good is said in one sentence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from nearkin.errors import StorageError, require
from nearkin.gallery.milvus import lite
from nearkin.gallery.milvus.address import Address

TRIES = 3
CONNECT_SECONDS = 2.0
CALL_SECONDS = 15.0

_FIRST_PAUSE = 0.1
_TRANSIENT_NAMES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
# Codes of Milvus: the service is not there yet, or asks to slow down.
_TRANSIENT_CODES = (2, 8)
_NO_COLLECTION = 100

Sleep = Callable[[float], None]


class MissingCollectionError(StorageError):
    """There is no collection of that name."""


class Connection:
    """Calls of a `pymilvus.MilvusClient`, each with a time-out and a few tries.

    Args:
        address: where to connect to.
        sleep: waits between tries.

    Raises:
        StorageError: nothing answers there.
    """

    def __init__(self, address: Address, *, sleep: Sleep = time.sleep) -> None:
        self.address = address
        self._sleep = sleep
        self._client: Any = self._connect()

    @property
    def lite(self) -> bool:
        """Whether it is a Milvus Lite database."""
        return self.address.path is not None

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client.

        Raises:
            MissingCollectionError: the collection does not exist.
            StorageError: it cannot be done, or nobody answered in time.
        """
        if self._client is None:
            raise StorageError(f"The gallery at {self.address.shown} is closed: open it again.")
        function = getattr(self._client, method)
        try:
            return self._repeated(lambda: function(*args, **{"timeout": CALL_SECONDS, **kwargs}))
        except Exception as error:
            raise self._told(method, error) from error

    def close(self) -> None:
        """Let go of the connection; a second time does nothing."""
        client, self._client = self._client, None
        if client is None:
            return
        client.close()
        if self.address.path is not None:
            lite.release(self.address.path)

    def _connect(self) -> Any:
        client = require("pymilvus", "milvus").MilvusClient
        quiet()
        address = self.address
        uri = lite.acquire(address.path) if address.path is not None else address.uri
        try:
            return self._repeated(
                lambda: client(
                    uri, token=address.token, db_name=address.database, timeout=CONNECT_SECONDS, dedicated=True
                )
            )
        except Exception as error:
            if address.path is not None:
                lite.release(address.path)
            raise StorageError(
                f"Milvus at {address.shown} cannot be reached ({_reason(error)}): check that it runs, the address, "
                "and user and password."
            ) from error

    def _repeated(self, action: Callable[[], Any]) -> Any:
        """Do something at most `TRIES` times, with longer and longer pauses."""
        for tried in range(1, TRIES):
            try:
                return action()
            except Exception as error:
                if not _is_transient(error):
                    raise
                self._sleep(_FIRST_PAUSE * 2**tried)
        return action()

    def _told(self, method: str, error: Exception) -> StorageError:
        shown = self.address.shown
        if _is_transient(error):
            return StorageError(
                f"Milvus at {shown} did not answer '{method}' in {TRIES} tries ({_reason(error)}): call again when it "
                "is reachable; what was half done is then completed."
            )
        if getattr(error, "code", None) == _NO_COLLECTION:
            return MissingCollectionError(f"Milvus at {shown} does not have what it should ({_reason(error)}).")
        return StorageError(f"Milvus at {shown} refused '{method}' ({_reason(error)}).")


def quiet() -> None:
    """Keep the packages from printing tracebacks of what we tell in a sentence, unless somebody set their level."""
    for name in ("pymilvus.decorators", "pymilvus.client.connection_manager", "milvus_lite.server_manager"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)


def _is_transient(error: Exception) -> bool:
    code = getattr(error, "code", None)
    if callable(code):  # grpc.RpcError
        code = code()
    return code in _TRANSIENT_CODES or getattr(code, "name", None) in _TRANSIENT_NAMES


def _reason(error: Exception) -> str:
    """The first line of what went wrong, without a final stop."""
    details = getattr(error, "details", None)
    text = getattr(error, "message", None) or (details() if callable(details) else None) or str(error)
    return (str(text).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(". ")
