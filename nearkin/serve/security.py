"""Who may ask: host names and origins, keys and roles, and how often."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from nearkin.serve.asgi import App, Receive, Scope, Send, header, headers
from nearkin.serve.problems import Problem
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


ANYBODY = Identity("write", "")


class Guard:
    """Pure ASGI layer: refuses strangers before anything of the request is read.

    Args:
        app: what to protect.
        settings: hosts, origins, keys and rates.
        clock: seconds that never go back.
        refused: told of writes that a caller may not do: who, what, and which problem.
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
        """Serve a request, or say why not."""
        if scope["type"] == "http":
            try:
                scope["identity"] = self._admit(scope)
            except Problem as problem:
                await problem.send(send)
                return
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope) -> Identity:
        path = scope["path"]
        if path in _PROBES:
            return ANYBODY
        host = check_host(scope, self.names)
        check_origin(scope, host, self.settings.origins)
        if not is_guarded(scope):
            return ANYBODY
        return self._authorise(scope)

    def _authorise(self, scope: Scope) -> Identity:
        identity = authenticate(scope, self.settings.keys) if self.settings.keys else ANYBODY
        client = scope.get("client") or ("", 0)
        wait = self.rates.take(identity.name if identity and identity.name else str(client[0]))
        if wait > 0:
            raise Problem(
                "rate-limited",
                f"Send at most {self.settings.rate:g} requests a second.",
                headers={"retry-after": str(math.ceil(wait))},
            )
        if identity is None:
            raise Problem(
                "key-required",
                "Send a key as 'Authorization: Bearer <key>' or as 'X-API-Key'.",
                headers={"www-authenticate": 'Bearer realm="nearkin"'},
            )
        if is_write(scope):
            self._check_may_write(identity, f"{scope['method']} {scope['path']}"[:_LONGEST_NOTE])
        return identity

    def _check_may_write(self, identity: Identity, what: str) -> None:
        problem = None
        if self.settings.read_only:
            problem = Problem("read-only", "This service takes no writes.")
        elif identity.role != "write":
            problem = Problem("role-required", "This needs a key with the role 'write'.")
        if problem is not None:
            self.refused(identity, what, problem.slug)
            raise problem


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
    """The host a request is for; a page elsewhere that rebinds its name to this address is found out here.

    Raises:
        Problem: if it is none of the names.
    """
    given = headers(scope, b"host")
    host = given[0].decode("latin-1").lower() if len(given) == 1 else ""
    if host in names or _without_port(host) in names:
        return host
    raise Problem("host-refused", "The service does not go by this name: add it to the allowed hosts.")


def _without_port(host: str) -> str:
    found = _NAME_AND_PORT.fullmatch(host)
    return found[1] if found else host


def check_origin(scope: Scope, host: str, allowed: tuple[str, ...]) -> None:
    """Refuse requests that a page of another site makes a browser send.

    Raises:
        Problem: if it is one.
    """
    refused = Problem("origin-refused", "Pages of this origin may not use the service.")
    given = headers(scope, b"origin")
    if given:
        origin = given[0].decode("latin-1")
        own = (f"http://{host}", f"https://{host}")
        if len(given) > 1 or not (origin.lower() in own or origin in allowed):
            raise refused
        return
    by_other = header(scope, b"sec-fetch-site") not in (None, b"same-origin", b"none")
    # A link elsewhere may lead to the page, but must not make the service work.
    if by_other and (is_guarded(scope) or header(scope, b"sec-fetch-mode") != b"navigate"):
        raise refused


def is_guarded(scope: Scope) -> bool:
    """Whether a request is for more than the page, its description and the probes."""
    return scope["path"].startswith("/v1/") or scope["path"] == "/metrics"


def authenticate(scope: Scope, keys: tuple[Key, ...]) -> Identity | None:
    """Whose key came with a request, every key compared in constant time; None if nobody's."""
    presented = _presented(scope)
    if not presented:
        return None
    digest = hashlib.sha256(presented).hexdigest()
    found = None
    for key in keys:
        if hmac.compare_digest(digest, key.digest) and (found is None or key.role == "write"):
            found = key
    return None if found is None else Identity(found.role, found.name)


def _presented(scope: Scope) -> bytes | None:
    bearer, plain = headers(scope, b"authorization"), headers(scope, b"x-api-key")
    if len(bearer) + len(plain) != 1:
        return None
    if plain:
        return plain[0]
    scheme, _, key = bearer[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


class RateLimit:
    """A token bucket for each caller; the callers heard from longest ago are forgotten first.

    Args:
        rate: tokens a second; 0: no limit.
        burst: tokens of a full bucket.
        clock: seconds that never go back.
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
