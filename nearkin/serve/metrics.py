"""What the service counts, in the words of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 24, 32, 64)


class Metrics:
    """Counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "nearkin_requests", "Requests by route and status.", ["method", "route", "status"], registry=self._registry
        )
        self.seconds = Histogram(
            "nearkin_request_seconds", "Time to answer.", ["route"], buckets=_SECONDS, registry=self._registry
        )
        self.batches = Histogram(
            "nearkin_batch_size",
            "Images that went through the network at once.",
            buckets=_SIZES,
            registry=self._registry,
        )
        self.calibrations = Counter(
            "nearkin_calibrations", "Calibrations made in the background.", ["result"], registry=self._registry
        )
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Report a value as it is when asked."""
        gauge = Gauge(name, meaning, registry=self._registry)
        self._watched.append((gauge, value))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All of it."""
        for gauge, value in self._watched:
            gauge.set(value())
        return generate_latest(self._registry)
