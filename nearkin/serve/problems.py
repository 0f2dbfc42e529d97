"""Errors as clients see them: application/problem+json with a stable type.

Nothing of the server (paths, code) is in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.responses import Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KINDS: dict[str, tuple[int, str]] = {
    "invalid-request": (422, "The request is not valid"),
    "malformed-body": (400, "The body cannot be parsed"),
    "unreadable-item": (422, "The image or recording cannot be read"),
    "item-too-large": (413, "The image or recording is too large"),
    "too-many-items": (413, "Too many items in one request"),
    "body-too-large": (413, "The body is too large"),
    "body-too-slow": (408, "The body arrived too slowly"),
    "unsupported-media-type": (415, "The content type is not supported"),
    "key-required": (401, "A valid key is required"),
    "role-required": (403, "The key does not allow this"),
    "read-only": (403, "The service is read-only"),
    "origin-refused": (403, "The origin is not allowed"),
    "host-refused": (421, "The host name is not allowed"),
    "not-found": (404, "Not found"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "rate-limited": (429, "Too many requests"),
    "busy": (503, "The service is busy"),
    "timed-out": (503, "The request timed out"),
    "stopping": (503, "The service is stopping"),
    "storage": (503, "The gallery is unavailable"),
    "internal": (500, "Something went wrong"),
}
MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1
_LONGEST = 500
# An absolute path, a file address or an object's address: of the server, or not worth repeating.
_PRIVATE = re.compile(r"(^|[\s'\"(=<])(/[^\s/]+/|~/|[A-Za-z]:\\|file:)|0x[0-9a-fA-F]{6,}|\.py\b|site-packages")


class Problem(Exception):
    """An answer that is an error.

    Args:
        slug: which one, of the fixed table; it is the end of the `type`.
        detail: one sentence on this occurrence.
        headers: headers of the answer.
        members: further members of the document.
    """

    def __init__(
        self,
        slug: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(slug)
        self.slug = slug
        self.status, self.title = _KINDS[slug]
        self.detail = presentable(detail)
        self.members = dict(members or {})
        self.headers = dict(headers or {})
        if self.status == 503:
            self.headers.setdefault("retry-after", str(RETRY_SECONDS))

    def body(self) -> bytes:
        """The document."""
        document = {"type": f"urn:nearkin:problem:{self.slug}", "title": self.title, "status": self.status}
        if self.detail:
            document["detail"] = self.detail
        return json.dumps({**document, **self.members}).encode()

    def response(self) -> Response:
        """The response, which is an ASGI application too."""
        return Response(self.body(), self.status, self.headers, MEDIA_TYPE)


def presentable(detail: str) -> str:
    """A detail that may be shown: short, and empty if it seems to name something of the server."""
    if _PRIVATE.search(detail):
        return ""
    return detail if len(detail) <= _LONGEST else detail[: _LONGEST - 1] + "…"


def list_problems() -> dict[str, tuple[int, str]]:
    """Status and title of every type, by the end of the type."""
    return dict(_KINDS)
