"""The application: routes inside, and around them the layers that count, guard and limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from nearkin.errors import NearkinError
from nearkin.serve.answers import ProblemAnswer
from nearkin.serve.metrics import Observer
from nearkin.serve.problems import Problem
from nearkin.serve.request import invalid
from nearkin.serve.routes import items, pages, queries, reviews
from nearkin.serve.security import Admission, Guard
from nearkin.serve.service import Service, as_problem
from nearkin.serve.settings import ServeSettings

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
