"""uvicorn with graceful shutdown and limits on connections."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from nearkin.serve.settings import is_loopback

_SHARE = 4
_HEADER_SECONDS = 10.0


def bounded_protocol(connections: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol with at most so many open connections, a quarter of them per address.

    A loopback address may have all of them: it may be a proxy for many clients. A connection is closed when no complete
    request header arrives for ten seconds.
    """
    base: Any = AutoHTTPProtocol
    addresses: Counter[str] = Counter()

    class Bounded(base):
        _header_timer: asyncio.TimerHandle | None = None
        _address: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            address = str((transport.get_extra_info("peername") or ("",))[0])
            most = connections if is_loopback(address) or not address else max(1, connections // _SHARE)
            super().connection_made(transport)
            if addresses.total() >= connections or addresses[address] >= most:
                transport.abort()
                return
            self._address = address
            addresses[address] += 1
            self._expect_header()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._address is not None:
                addresses[self._address] -= 1
                if not addresses[self._address]:
                    del addresses[self._address]
                self._address = None
            self._forget_header()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._expect_header()
            super().on_response_complete()

        def _expect_header(self) -> None:
            self._forget_header()
            self._header_timer = self.loop.call_later(_HEADER_SECONDS, self._give_up)

        def _forget_header(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def _give_up(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return Bounded


_GRACE_SECONDS = 50


class Server(uvicorn.Server):
    """Runs an application until SIGINT or SIGTERM, finishes the accepted requests, and returns.

    Args:
        app: from `create_app`.
    """

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,  # they can be forged, and rate limits go by the client's address
                http=bounded_protocol(app.state.service.settings.connections),
                ws="none",
                lifespan="on",
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._service = app.state.service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting requests; a second SIGINT does not wait for those in progress."""
        self._service.stopping = True
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; uvicorn's own handling would end the process before the gallery is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
