"""The application: routes inside, and around them the layers that count, guard and limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from nearkin.errors import NearkinError
from nearkin.serve.answer_schemas import ProblemAnswer
from nearkin.serve.bodies import invalid
from nearkin.serve.limits import Admission
from nearkin.serve.observing import Observer
from nearkin.serve.problems import Problem
from nearkin.serve.routes_about import about_routes
from nearkin.serve.routes_asking import asking_routes
from nearkin.serve.routes_items import item_routes
from nearkin.serve.routes_running import running_routes
from nearkin.serve.security import Guard
from nearkin.serve.service import Service, as_problem
from nearkin.serve.settings import ServeSettings

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery

_VERBS = ("GET", "POST", "PATCH", "DELETE")
_VERSION = "1"  # of the interface, as in /v1; what runs here is nobody's business
_SUMMARY = "What is this, what is it like, are these two the same: a gallery of images over HTTP."


def create_app(
    gallery: Gallery, settings: ServeSettings | None = None, *, clock: Callable[[], float] = monotonic
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        gallery: an open gallery; whoever opened it closes it. Its `auto_recalibrate` is turned off: the service learns
            anew in the background.
        settings: limits, keys and names; None: those for this machine alone.
        clock: seconds that never go back, for rates and times.

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
    for router in (
        asking_routes(service),
        item_routes(service),
        about_routes(service),
        running_routes(service),
    ):
        app.include_router(router)
    _document(app)
    _handle_errors(app)
    # Added from the inside out.
    app.add_middleware(Admission, settings=settings, stopping=lambda: service.stopping)
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
    """Let the OpenAPI document know the schema of problems, and how keys are sent."""
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
        return _response(error)

    @app.exception_handler(NearkinError)
    @app.exception_handler(OSError)
    async def ours(request: Request, error: NearkinError | OSError) -> Response:
        return _response(as_problem(error))

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        return _response(invalid(error.errors()))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return _response(Problem("malformed-body", "The body ended early."))

    @app.exception_handler(HTTPException)
    async def by_routing(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return _response(Problem("not-found", "There is nothing at this address."))
        if error.status_code == 405:
            return _by_method(app, request)
        return _response(Problem("malformed-body"))


def _by_method(app: FastAPI, request: Request) -> Response:
    """The answer to a method that a path does not have; OPTIONS is told which it has."""
    scope = dict(request.scope)
    found = [
        verb
        for verb in _VERBS
        if any(route.matches({**scope, "method": verb})[0] == Match.FULL for route in app.routes)
    ]
    allowed = ", ".join([*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"])
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"allow": allowed})
    return _response(Problem("method-not-allowed", f"Use one of: {allowed}.", headers={"allow": allowed}))


def _response(problem: Problem) -> Response:
    response = Response(problem.body(), problem.status)
    response.raw_headers.extend(problem.raw_headers())
    return response
