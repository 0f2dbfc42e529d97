"""The service itself: probes, metrics and the web page."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from nearkin.serve.answer_schemas import StatusAnswer
from nearkin.serve.answers import json_response
from nearkin.serve.documentation import answers, refusals
from nearkin.serve.metrics import MEDIA_TYPE
from nearkin.serve.problems import Problem
from nearkin.serve.service import Service

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the web page, as it is sent."""

    content: bytes
    media_type: str
    tag: str


def read_page() -> dict[str, PageFile]:
    """The files of the page by name, read once: no request ever reaches the disk."""
    folder = files("nearkin.serve") / "page"
    found = {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None and entry.is_file():
            content = entry.read_bytes()
            found[entry.name] = PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


def running_routes(service: Service) -> APIRouter:
    """Routes that work without a key, but for the metrics."""
    router = APIRouter(tags=["running"])
    page = read_page()

    @router.get("/healthz", responses=answers(StatusAnswer), response_model=None)
    async def healthz() -> Response:
        """Whether it is alive."""
        return json_response({"status": "alive"})

    @router.get("/readyz", responses=answers(StatusAnswer), response_model=None)
    async def readyz() -> Response:
        """Whether it can answer: it has started, does not end, and reaches its gallery."""
        if service.stopping:
            raise Problem("stopping", "The service is about to end.")
        if not service.ready:
            raise Problem("busy", "The service is starting.")
        await service.look()
        return json_response({"status": "ready"})

    @router.get(
        "/metrics",
        responses={200: {"description": "Figures for Prometheus.", "content": {"text/plain": {}}}, **refusals()},
        response_model=None,
    )
    async def metrics() -> Response:
        """What it has counted."""
        return Response(await service.read(service.metrics.text), headers={"content-type": MEDIA_TYPE})

    @router.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return _file(request, page.get("index.html"))

    @router.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return _file(request, page.get(name))

    return router


def _file(request: Request, file: PageFile | None) -> Response:
    if file is None:
        raise Problem("not-found", "There is no such file.")
    headers = {"cache-control": "no-cache", "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "content-type": file.media_type})
