"""A connection to Milvus or Milvus Lite: its address, and calls that retry what fails for a moment."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from nearkin.errors import DataError, StorageError, require

DEFAULT_PORT = 19530
DEFAULT_COLLECTION = "gallery"

_FORM = "milvus://[user:password@]host[:port]/[database/]collection"
# Two underscores in a row are kept for the collections that belong to one gallery.
_NAME = re.compile(r"(?!.*__)[A-Za-z][A-Za-z0-9_]{0,149}")


@dataclass(frozen=True)
class Address:
    """Where a gallery is.

    Attributes:
        uri: what the client connects to: "http://host:port", or the path of a Milvus Lite database.
        collection: name of the gallery there.
        database: name of the database; empty for the default one.
        path: the Milvus Lite database; None for a server.
        shown: the address as it may be shown: without password.
        token: "user:password" or an API key; empty if none is needed.
    """

    uri: str
    collection: str
    database: str = ""
    path: Path | None = None
    shown: str = ""
    token: str = field(default="", repr=False)


def parse_address(text: str, token: str | None = None) -> Address:
    """Read an address.

    Args:
        text: `milvus://…`, `milvus+tls://…`, `something.db` or `something.db#collection`.
        token: "user:password" or an API key; it goes before what the address says.

    Raises:
        DataError: it is none of these.
    """
    if text.startswith(("milvus://", "milvus+tls://")):
        return _server(text, token)
    path, _, collection = text.partition("#")
    if not path.endswith(".db"):
        raise DataError(f"'{_without_password(text)}' is no address of Milvus: write {_FORM}, or a path ending in .db.")
    name = _checked(collection or DEFAULT_COLLECTION, text)
    return Address(path, name, path=Path(path), shown=text)


def _server(text: str, token: str | None) -> Address:
    shown = _without_password(text)
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise DataError(f"The address '{shown}' cannot be read ({error}): write {_FORM}.") from error
    steps = [unquote(step) for step in parts.path.split("/") if step]
    if not parts.hostname or len(steps) not in (1, 2) or parts.query or parts.fragment:
        raise DataError(f"The address '{shown}' must have the form {_FORM}.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    scheme = "https" if parts.scheme == "milvus+tls" else "http"
    given = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}" if parts.username else ""
    database = steps[0] if len(steps) == 2 else ""
    return Address(f"{scheme}://{host}:{port}", _checked(steps[-1], shown), database, shown=shown, token=token or given)


def _checked(collection: str, shown: str) -> str:
    if not _NAME.fullmatch(collection):
        raise DataError(
            f"'{collection}' in '{shown}' cannot name a collection: use a letter, then at most 149 letters, digits "
            "and single underscores."
        )
    return collection


def _without_password(text: str) -> str:
    """The text without what lies between `//` and the last `@` of the host part."""
    return re.sub(r"(?<=//)[^/]*@", "", text)


# A process has one server for a database, whoever asks for it; it is stopped when the last one is done, so that
# another process may open the database.
_lite_users: Counter[str] = Counter()
_lite_lock = threading.Lock()


def start_lite(path: Path) -> str:
    """Serve a database, made if there is none; the address it is served at. To be followed by `stop_lite`.

    Raises:
        StorageError: it cannot be opened.
    """
    manager = require("milvus_lite.server_manager", "milvus").server_manager_instance
    where = str(path.resolve())
    if not path.resolve().parent.is_dir():
        raise StorageError(f"The directory of '{path}' does not exist: make it first.")
    with _lite_lock:
        uri = manager.start_and_get_uri(where)
        if uri is None:
            raise StorageError(
                f"The Milvus Lite database '{path}' cannot be opened: another process may have it open (one at a time "
                "may), or it is damaged."
            )
        _lite_users[where] += 1
    return str(uri)


def stop_lite(path: Path) -> None:
    """Say that a database is not used any more."""
    where = str(path.resolve())
    with _lite_lock:
        _lite_users[where] -= 1
        if _lite_users[where] <= 0:
            del _lite_users[where]
            require("milvus_lite.server_manager", "milvus").server_manager_instance.release_server(where)


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
            stop_lite(self.address.path)

    def _connect(self) -> Any:
        client = require("pymilvus", "milvus").MilvusClient
        quiet()
        address = self.address
        uri = start_lite(address.path) if address.path is not None else address.uri
        try:
            return self._repeated(
                lambda: client(
                    uri, token=address.token, db_name=address.database, timeout=CONNECT_SECONDS, dedicated=True
                )
            )
        except Exception as error:
            if address.path is not None:
                stop_lite(address.path)
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
