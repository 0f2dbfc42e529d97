"""Where a Milvus collection is: `milvus://user:password@host:19530/database/collection`, or a Milvus Lite path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nearkin.errors import DataError

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
