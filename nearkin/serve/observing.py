"""The outermost layer: counts and times every request, adds the security headers, and keeps failures inside."""

from __future__ import annotations

import logging
from collections.abc import Callable

from nearkin.serve.asgi import App, Message, Receive, Scope, Send
from nearkin.serve.metrics import Metrics
from nearkin.serve.problems import Problem

_LOGGER = logging.getLogger("nearkin.serve")
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"})
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; img-src 'self' blob: data:; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_NO_STORE = (b"cache-control", b"no-store")


class Observer:
    """Pure ASGI layer around everything else.

    Args:
        app: what to watch.
        metrics: where to count.
        clock: seconds that never go back.
    """

    def __init__(self, app: App, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.app = app
        self.metrics = metrics
        self.clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = self.clock()
        answer = _Answer(send, scope["method"] == "HEAD")
        # A HEAD is answered as the GET it stands for, without the body; the server keeps its own scope.
        scope = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        try:
            await self.app(scope, receive, answer.send)
        except Exception:
            _LOGGER.exception("a request failed")
            if not answer.status:
                await Problem("internal").send(answer.send)
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.observe(method, route, answer.status, self.clock() - began)


class _Answer:
    """A response on its way out."""

    def __init__(self, send: Send, headless: bool) -> None:
        self._send = send
        self._headless = headless
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *_HEADERS]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append(_NO_STORE)
            message = {**message, "headers": headers}
        elif self._headless and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)
