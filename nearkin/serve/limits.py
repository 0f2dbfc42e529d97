"""How much one request, and all of them together, may ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nearkin.serve.asgi import App, Message, Receive, Scope, Send, header
from nearkin.serve.problems import Problem
from nearkin.serve.settings import ServeSettings

_FIRST_SECONDS = 5.0
_LEAST_RATE = 4096
"""Bytes a second that a body must bring after the first seconds."""


class Admission:
    """Pure ASGI layer: lets a bounded number of requests in, and counts the bytes they send.

    Args:
        app: what to protect.
        settings: the limits.
        stopping: whether the service is about to end.
    """

    def __init__(self, app: App, settings: ServeSettings, stopping: Callable[[], bool]) -> None:
        self.app = app
        self.settings = settings
        self.stopping = stopping
        self.requests = 0
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or say why not."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except Problem as problem:
            await problem.send(send)
            return
        body = _Body(self, receive)
        self.requests += 1
        try:
            await self.app(scope, body.receive, send)
        finally:
            self.requests -= 1
            self.held -= body.size

    def _admit(self, scope: Scope) -> None:
        if self.stopping():
            raise Problem("stopping", "The service is about to end and takes no more requests.")
        if self.requests >= self.settings.queue:
            raise Problem("busy", "Too many requests are under way: try again in a moment.")
        if header(scope, b"content-encoding") not in (None, b"identity"):
            raise Problem("unsupported-media-type", "The body must not be compressed.")
        length = header(scope, b"content-length")
        if length is None:
            return
        if not length.isdigit():
            raise Problem("malformed-body", "The content length must be a number.")
        if len(length) > 15 or int(length) > self.settings.max_body:
            raise _too_large(self.settings)

    def hold(self, count: int, size: int) -> None:
        """Take note of bytes that came, for a body that is now so large."""
        self.held += count
        if size > self.settings.max_body:
            raise _too_large(self.settings)
        if self.held > self.settings.memory:
            raise Problem("busy", "Too many large requests are under way: try again in a moment.")


class _Body:
    """The body of a request on its way in."""

    def __init__(self, admission: Admission, receive: Receive) -> None:
        self.admission = admission
        self.size = 0
        self.complete = False
        self._receive = receive
        self._began = asyncio.get_running_loop().time()

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._began + self._patience()):
                message = await self._receive()
        except TimeoutError:
            raise Problem("body-too-slow", "The body did not come in time.", headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            count = len(message.get("body", b""))
            self.size += count
            self.complete = not message.get("more_body", False)
            self.admission.hold(count, self.size)
        return message

    def _patience(self) -> float:
        """Seconds from the beginning that the next bytes may take: one bound for all, and bytes earn time below it."""
        return min(self.admission.settings.timeout, _FIRST_SECONDS + self.size / _LEAST_RATE)


def _too_large(settings: ServeSettings) -> Problem:
    return Problem("body-too-large", f"The body may have at most {settings.max_body} bytes.")
