"""The few words of ASGI that the service's own layers speak."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header, given in lower case; the first if it was sent twice."""
    for found, value in scope["headers"]:
        if found == name:
            return bytes(value)
    return None


def headers(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header, given in lower case."""
    return [value for found, value in scope["headers"] if found == name]


async def send_response(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """A whole response; its length is added to the headers."""
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})
