"""Access control: hosts, origins, keys, roles, rate and size limits, and the audit log."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from nearkin.errors import StorageError
from nearkin.serve.problems import App, Message, Problem, Receive, Scope, Send
from nearkin.serve.settings import Key, ServeSettings

_PROBES = frozenset({"/healthz", "/readyz"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ASKING = frozenset({"/v1/identify", "/v1/search", "/v1/verify"})
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_NAME_AND_PORT = re.compile(r"([^:\[\]]+|\[[^\[\]]+\]):[0-9]{1,5}")
_MOST_BUCKETS = 10_000
_LONGEST_NOTE = 250


@dataclass(frozen=True)
class Identity:
    """Who asks.

    Attributes:
        role: "read" or "write".
        name: of the key, "" without keys.
    """

    role: str
    name: str


ANONYMOUS = Identity("write", "")


class Guard:
    """Pure ASGI layer: refuses unauthorised requests before reading them.

    Args:
        app: what to protect.
        settings: hosts, origins, keys and rates.
        clock: a monotonic clock, in seconds.
        refused: called for each forbidden write: who, what, and which problem.
    """

    def __init__(
        self,
        app: App,
        settings: ServeSettings,
        clock: Callable[[], float],
        refused: Callable[[Identity, str, str], None] = lambda identity, what, slug: None,
    ) -> None:
        self.app = app
        self.settings = settings
        self.refused = refused
        self.names = allowed_names(settings)
        self.rates = RateLimit(settings.rate, settings.burst, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] == "http":
            try:
                scope["identity"] = self._admit(scope)
            except Problem as problem:
                await problem.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope) -> Identity:
        path = scope["path"]
        if path in _PROBES:
            return ANONYMOUS
        host = check_host(scope, self.names)
        check_origin(scope, host, self.settings.origins)
        if not is_guarded(scope):
            return ANONYMOUS
        return self._authorise(scope)

    def _authorise(self, scope: Scope) -> Identity:
        identity = authenticate(scope, self.settings.keys) if self.settings.keys else ANONYMOUS
        client = scope.get("client") or ("", 0)
        wait = self.rates.take(identity.name if identity and identity.name else str(client[0]))
        if wait > 0:
            raise Problem(
                "rate-limited",
                f"Send at most {self.settings.rate:g} requests per second.",
                headers={"retry-after": str(math.ceil(wait))},
            )
        if identity is None:
            raise Problem(
                "key-required",
                "Send a key as 'Authorization: Bearer <key>' or as 'X-API-Key'.",
                headers={"www-authenticate": 'Bearer realm="nearkin"'},
            )
        if is_write(scope):
            problem = None
            if self.settings.read_only:
                problem = Problem("read-only", "This service is read-only.")
            elif identity.role != "write":
                problem = Problem("role-required", "This needs a key with the role 'write'.")
            if problem is not None:
                self.refused(identity, f"{scope['method']} {scope['path']}"[:_LONGEST_NOTE], problem.slug)
                raise problem
        return identity


def is_write(scope: Scope) -> bool:
    """Whether a request would change the gallery."""
    return scope["method"] not in _SAFE_METHODS and scope["path"] not in _ASKING


def allowed_names(settings: ServeSettings) -> frozenset[str]:
    """What the Host header may be: `name:port` for this port, `name` for any."""
    own = set(_LOOPBACK_NAMES)
    if settings.host not in ("0.0.0.0", "::", ""):
        own.add(f"[{settings.host}]" if ":" in settings.host else settings.host.lower())
    ports = [f":{settings.port}"] + (["", ":80"] if settings.port == 80 else [])
    return frozenset(name + port for name in own for port in ports) | {name.lower() for name in settings.hosts}


def check_host(scope: Scope, names: frozenset[str]) -> str:
    """The host a request is for; catches DNS rebinding.

    Raises:
        Problem: if it is none of the names.
    """
    given = Headers(scope=scope).getlist("host")
    host = given[0].lower() if len(given) == 1 else ""
    found = _NAME_AND_PORT.fullmatch(host)
    if host in names or (found and found[1] in names):
        return host
    raise Problem("host-refused", "Unknown host name: add it with --allow-host.")


def check_origin(scope: Scope, host: str, allowed: tuple[str, ...]) -> None:
    """Refuse requests that a page of another site makes a browser send.

    Raises:
        Problem: if it is one.
    """
    sent = Headers(scope=scope)
    given = sent.getlist("origin")
    if given:
        own = (f"http://{host}", f"https://{host}")
        refused = len(given) > 1 or not (given[0].lower() in own or given[0] in allowed)
    else:
        by_other = sent.get("sec-fetch-site") not in (None, "same-origin", "none")
        # A link elsewhere may lead to the page, but must not make the service work.
        refused = by_other and (is_guarded(scope) or sent.get("sec-fetch-mode") != "navigate")
    if refused:
        raise Problem("origin-refused", "This origin is not allowed: add it with --cors.")


def is_guarded(scope: Scope) -> bool:
    """Whether a request is for the API or the metrics, rather than the page or the probes."""
    return scope["path"].startswith("/v1/") or scope["path"] == "/metrics"


def authenticate(scope: Scope, keys: tuple[Key, ...]) -> Identity | None:
    """Whose key came with a request, compared in constant time; None if unknown."""
    sent = Headers(scope=scope)
    bearer, plain = sent.getlist("authorization"), sent.getlist("x-api-key")
    if len(bearer) + len(plain) != 1:
        return None
    scheme, _, sent_key = bearer[0].partition(" ") if bearer else ("bearer", "", plain[0])
    presented = sent_key.strip() if bearer else sent_key
    if scheme.lower() != "bearer" or not presented:
        return None
    digest = hashlib.sha256(presented.encode("latin-1")).hexdigest()
    found = None
    for key in keys:
        if hmac.compare_digest(digest, key.digest) and (found is None or key.role == "write"):
            found = key
    return None if found is None else Identity(found.role, found.name)


class RateLimit:
    """A token bucket per caller; the least recently seen callers are forgotten first.

    Args:
        rate: tokens a second; 0: no limit.
        burst: tokens of a full bucket.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.burst = burst
        self.clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take a token: 0, or the seconds to wait for one."""
        if not self.rate:
            return 0.0
        now = self.clock()
        tokens, since = self._buckets.get(caller, (float(self.burst), now))
        tokens = min(float(self.burst), tokens + (now - since) * self.rate)
        wait = 0.0 if tokens >= 1.0 else (1.0 - tokens) / self.rate
        self._buckets[caller] = (tokens if wait else tokens - 1.0, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return wait


_FIRST_SECONDS = 5.0
_LEAST_RATE = 4096
"""Bytes per second that a body must bring after the first seconds."""


class Admission:
    """Pure ASGI layer: limits concurrent requests and the bytes they send.

    Args:
        app: what to protect.
        settings: the limits.
        stopping: whether the service is shutting down.
    """

    def __init__(self, app: App, settings: ServeSettings, stopping: Callable[[], bool]) -> None:
        self.app = app
        self.settings = settings
        self.stopping = stopping
        self.requests = 0
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        began = asyncio.get_running_loop().time()
        size, complete = 0, False

        async def bounded() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            # Every byte earns time, up to the timeout.
            patience = min(self.settings.timeout, _FIRST_SECONDS + size / _LEAST_RATE)
            try:
                async with asyncio.timeout_at(began + patience):
                    message = await receive()
            except TimeoutError:
                headers = {"connection": "close"}
                raise Problem("body-too-slow", "The body did not arrive in time.", headers=headers) from None
            if message["type"] == "http.request":
                count = len(message.get("body", b""))
                size += count
                complete = not message.get("more_body", False)
                self.hold(count, size)
            return message

        self.requests += 1
        try:
            await self.app(scope, bounded, send)
        finally:
            self.requests -= 1
            self.held -= size

    def _admit(self, scope: Scope) -> None:
        if self.stopping():
            raise Problem("stopping", "The service is shutting down.")
        if self.requests >= self.settings.queue:
            raise Problem("busy", "Too many requests in progress: try again in a moment.")
        sent = Headers(scope=scope)
        if sent.get("content-encoding", "identity") != "identity":
            raise Problem("unsupported-media-type", "The body must not be compressed.")
        length = sent.get("content-length")
        if length is None:
            return
        if not (length.isascii() and length.isdigit()):
            raise Problem("malformed-body", "The Content-Length header must be a number.")
        if len(length) > 15 or int(length) > self.settings.max_body:
            raise _too_large(self.settings)

    def hold(self, count: int, size: int) -> None:
        """Count bytes received; `size` is that of the whole body so far."""
        self.held += count
        if size > self.settings.max_body:
            raise _too_large(self.settings)
        if self.held > self.settings.memory:
            raise Problem("busy", "Too many large requests in progress: try again in a moment.")


def _too_large(settings: ServeSettings) -> Problem:
    return Problem("body-too-large", f"The body may have at most {settings.max_body} bytes.")


LOGGER = logging.getLogger("nearkin.audit")
_TROUBLE = logging.getLogger("nearkin.serve")


class _AuditFile(WatchedFileHandler):
    """A log file that may be rotated, and that raises when it cannot be written."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise


class AuditLog:
    """Writes to the logger `nearkin.audit`, and to a file if there is one.

    Args:
        path: the file, appended to; None: no file.

    Attributes:
        failures: lines that could not be written to the file; they go to the service's log instead.
    """

    def __init__(self, path: Path | None) -> None:
        self.failures = 0
        self._file: _AuditFile | None = None
        if path is not None:
            try:
                self._file = _AuditFile(path, encoding="utf-8")
            except OSError as error:
                raise StorageError(f"Cannot write the audit log {path} ({error.strerror}): choose another.") from error

    def write(
        self, identity: Identity, action: str, ids: Sequence[str], changed: Mapping[str, Any] | None = None
    ) -> None:
        """Log a change.

        Args:
            identity: who.
            action: what: "enrol", "add", "replace", "change" or "remove".
            ids: of the items.
            changed: what they were given: `label`, and the names of `metadata`; what is left out stayed as it was.
        """
        self._note(identity, {"action": action, "ids": list(ids), "changed": dict(changed or {})})

    def refuse(self, identity: Identity, what: str, problem: str) -> None:
        """Log a forbidden write.

        Args:
            identity: who.
            what: method and path.
            problem: why, by the end of its type.
        """
        self._note(identity, {"action": "refused", "request": what, "problem": problem})

    def close(self) -> None:
        """Close the file."""
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
            _TROUBLE.error("cannot write the audit log (%s); the line was: %s", error.strerror, line)
