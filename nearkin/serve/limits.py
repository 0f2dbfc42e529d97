"""How much one request, and all of them together, may ask for."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

from PIL import Image

from nearkin.errors import require
from nearkin.serve.asgi import App, Message, Receive, Scope, Send, header
from nearkin.serve.problems import Problem
from nearkin.serve.settings import ServeSettings

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_LONGEST_SIDE = 65_535


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

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self.admission.settings.timeout):
                message = await self._receive()
        except TimeoutError:
            raise Problem("body-too-slow", "The body did not come in time.", headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            count = len(message.get("body", b""))
            self.size += count
            self.complete = not message.get("more_body", False)
            self.admission.hold(count, self.size)
        return message


def _too_large(settings: ServeSettings) -> Problem:
    return Problem("body-too-large", f"The body may have at most {settings.max_body} bytes.")


def check_image(raw: bytes, max_pixels: int) -> None:
    """Refuse what is no image of a known format, or has too many pixels; only the header is read.

    Raises:
        Problem: if so.
    """
    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(max_pixels) from None
    except Exception:  # a decoder given hostile bytes may raise anything
        raise Problem(
            "unreadable-item", "The image must be a JPEG, PNG, WebP, GIF, BMP or TIFF file, whole and undamaged."
        ) from None
    if width * height > max_pixels or max(width, height) > _LONGEST_SIDE:
        raise _too_many_pixels(max_pixels)


def _too_many_pixels(max_pixels: int) -> Problem:
    return Problem(
        "item-too-large", f"An image may have at most {max_pixels} pixels, and {_LONGEST_SIDE} on its longer side."
    )


def check_recording(raw: bytes, max_samples: int) -> None:
    """Refuse what is no recording, or has too many samples; only the header is read.

    Raises:
        Problem: if so.
    """
    soundfile = require("soundfile", "audio")
    try:
        facts = soundfile.info(io.BytesIO(raw))
        samples = int(facts.frames) * int(facts.channels)
    except Exception:  # a decoder given hostile bytes may raise anything
        raise Problem("unreadable-item", "The recording must be a WAV, FLAC, OGG or MP3 file.") from None
    if samples > max_samples:
        raise Problem("item-too-large", f"A recording may have at most {max_samples} samples.")
