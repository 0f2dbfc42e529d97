"""The application: routes inside, layers that count, guard and limit around them, and uvicorn to run it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from nearkin.errors import NearkinError
from nearkin.serve.answers import ProblemAnswer
from nearkin.serve.metrics import Observer
from nearkin.serve.problems import Problem
from nearkin.serve.request import invalid
from nearkin.serve.routes import items, pages, queries, reviews
from nearkin.serve.security import Admission, Guard
from nearkin.serve.service import Service, as_problem
from nearkin.serve.settings import ServeSettings, is_loopback

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery


_VERBS = ("GET", "POST", "PATCH", "DELETE")
_VERSION = "1"  # of the interface, as in /v1; the version of the software is not shown
_SUMMARY = "What is this, what is it like, are these two the same: a gallery of images over HTTP."


def create_app(
    gallery: Gallery, settings: ServeSettings | None = None, *, clock: Callable[[], float] = monotonic
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        gallery: an open gallery; the caller closes it. Its `auto_recalibrate` is turned off, because the service
            recalibrates in the background.
        settings: limits, keys and names; default: for this machine only.
        clock: a monotonic clock, in seconds.

    Example:
        >>> app = create_app(Gallery.open("shop.gallery"))    # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    service = Service(gallery, settings)
    app = FastAPI(
        title="nearkin",
        version=_VERSION,
        summary=_SUMMARY,
        lifespan=_lifespan(service),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for router in (queries, items, reviews, pages):
        app.include_router(router)
    _document(app)
    _handle_errors(app)
    # Added from the inside out.
    app.add_middleware(Admission, settings=settings, stopping=partial(getattr, service, "stopping"))
    app.add_middleware(Guard, settings=settings, clock=clock, refused=service.audit.refuse)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=list(_VERBS),
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    app.add_middleware(Observer, metrics=service.metrics, clock=clock)
    return app


def _lifespan(service: Service) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    return lifespan


def _document(app: FastAPI) -> None:
    """Add the schema of problems, and how keys are sent, to the OpenAPI document."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            components = make().setdefault("components", {})
            components.setdefault("schemas", {})["ProblemAnswer"] = ProblemAnswer.model_json_schema()
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            }
            make()["security"] = [{}, {"bearer": []}, {"key": []}]
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return error.response()

    @app.exception_handler(NearkinError)
    @app.exception_handler(OSError)
    async def ours(request: Request, error: NearkinError | OSError) -> Response:
        return as_problem(error).response()

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        return invalid(error.errors()).response()

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Problem("malformed-body", "The body ended early.").response()

    @app.exception_handler(HTTPException)
    async def by_routing(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return Problem("not-found", "There is nothing at this address.").response()
        if error.status_code == 405:
            return _by_method(app, request)
        return Problem("malformed-body").response()


def _by_method(app: FastAPI, request: Request) -> Response:
    """The answer to a method that a path does not have; OPTIONS gets the methods it has."""
    found = [
        verb
        for verb in _VERBS
        if any(route.matches({**request.scope, "method": verb})[0] == Match.FULL for route in app.routes)
    ]
    allowed = ", ".join([*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"])
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"allow": allowed})
    return Problem("method-not-allowed", f"Use one of: {allowed}.", headers={"allow": allowed}).response()


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
