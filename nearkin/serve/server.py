"""uvicorn, told to be quiet and to stop gracefully."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from nearkin.serve.connections import bounded_protocol

_GRACE_SECONDS = 50


class Server(uvicorn.Server):
    """Runs an application until SIGINT or SIGTERM, finishes what was accepted, and returns to its caller.

    Args:
        app: what `create_app` made.
    """

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,  # anybody can write them, and rates go by the client's address
                http=bounded_protocol(app.state.service.settings.connections),
                ws="none",
                lifespan="on",
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._service = app.state.service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take no more requests; a second SIGINT does not wait for those under way."""
        self._service.stopping = True
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Heed signals while serving; uvicorn's own would end the process before the gallery is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
