"""Prometheus metrics, and the outermost layer: it times requests, adds security headers and catches failures."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nearkin.serve.problems import App, Message, Problem, Receive, Scope, Send

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 24, 32, 64)


class Metrics:
    """Metrics of one service, in its own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self.requests = Counter(
            "nearkin_requests", "Requests by method, route and status.", labels, registry=self._registry
        )
        self.seconds = Histogram(
            "nearkin_request_seconds", "Time to answer.", ["route"], buckets=_SECONDS, registry=self._registry
        )
        self.batches = Histogram(
            "nearkin_batch_size", "Images per forward pass.", buckets=_SIZES, registry=self._registry
        )
        self.calibrations = Counter(
            "nearkin_calibrations", "Background calibrations by result.", ["result"], registry=self._registry
        )
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read at each scrape."""
        gauge = Gauge(name, meaning, registry=self._registry)
        self._watched.append((gauge, value))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        for gauge, value in self._watched:
            gauge.set(value())
        return generate_latest(self._registry)


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
        clock: a monotonic clock, in seconds.
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
        began, status, headless = self.clock(), 0, scope["method"] == "HEAD"

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), *_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
                message = {**message, "headers": headers}
            elif headless and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # A HEAD is answered as the GET it stands for, without the body; the server keeps its own scope.
        scope = {**scope, "method": "GET" if headless else scope["method"]}
        try:
            await self.app(scope, receive, observed)
        except Exception:
            _LOGGER.exception("a request failed")
            if not status:
                await Problem("internal").response()(scope, receive, observed)
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.observe(method, route, status, self.clock() - began)
