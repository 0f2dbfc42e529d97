"""The routes: queries, items, what the gallery says of itself, probes, metrics and the web page."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import FiniteFloat

from nearkin.gallery.review import base_neighbours
from nearkin.gallery.store import GalleryStore
from nearkin.gallery.values import Item, Verification
from nearkin.serve.answers import (
    AddAnswer,
    DuplicatesAnswer,
    EnrolAnswer,
    GroupAnswer,
    IdentifyAnswer,
    ItemAnswer,
    ItemsAnswer,
    MapAnswer,
    MayAnswer,
    ModelAnswer,
    NeighbourAnswer,
    PointAnswer,
    SearchAnswer,
    StatusAnswer,
    SuspectAnswer,
    SuspectsAnswer,
    VerifyAnswer,
    plain,
    stats_answer,
)
from nearkin.serve.metrics import MEDIA_TYPE
from nearkin.serve.openapi import docs, problem_docs
from nearkin.serve.problems import Problem
from nearkin.serve.request import (
    ChangeBody,
    EnrolBody,
    IdentifyBody,
    ItemBody,
    SearchBody,
    VerifyBody,
    Where,
    body_of,
    check_parameters,
    checked_condition,
    parse_json,
)
from nearkin.serve.service import Service

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery

queries = APIRouter(tags=["questions"])
items = APIRouter(tags=["items"])
reviews = APIRouter(tags=["about"])
pages = APIRouter(tags=["running"])

_MOST_LISTED = 1000
_POINTS = 2000
_Limit = Annotated[int, Query(ge=1, le=_MOST_LISTED)]
_Text = Annotated[str | None, Query(max_length=10_000)]


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(_service)]


@queries.post("/v1/identify", **docs(IdentifyAnswer, IdentifyBody))
async def identify(asked: Annotated[IdentifyBody, Depends(body_of(IdentifyBody))], service: Serving) -> IdentifyAnswer:
    """Identify an image: its label, the probability, and whether it belongs to an enrolled class at all."""
    vector = await service.vector(asked.image, asked.vector)
    if asked.by == "neighbours":
        match = await service.identify(vector, asked.neighbours)
    else:
        matches = service.gallery.identify_vectors
        match = (await service.read(matches, vector[None], neighbours=asked.neighbours, by=asked.by))[0]
    place = await service.slowly(service.gallery.place, vector) if asked.place and match.neighbours else None
    return IdentifyAnswer.of(match, place)


@queries.post("/v1/search", **docs(SearchAnswer, SearchBody))
async def search(asked: Annotated[SearchBody, Depends(body_of(SearchBody))], service: Serving) -> SearchAnswer:
    """Find the items most like an image, optionally among those that match a condition."""
    where = checked_condition(asked.where, asked.parameters)
    vector = await service.vector(asked.image, asked.vector)
    found = await service.read(service.gallery.search_vectors, vector[None], asked.k, where=where)
    return SearchAnswer(neighbours=[NeighbourAnswer.of(near) for near in found[0]])


@queries.post("/v1/verify", response_model=VerifyAnswer, **docs(VerifyAnswer, VerifyBody))
async def verify(asked: Annotated[VerifyBody, Depends(body_of(VerifyBody))], service: Serving) -> Verification:
    """Decide whether two images belong to the same class, at a false accept rate."""
    a, b = await asyncio.gather(service.vector(asked.a, asked.vector_a), service.vector(asked.b, asked.vector_b))
    return await service.read(
        service.gallery.verify_vectors, a, b, false_accept_rate=asked.false_accept_rate, prior=asked.prior
    )


@items.post("/v1/enrol", **docs(EnrolAnswer, EnrolBody, 201))
async def enrol(
    asked: Annotated[EnrolBody, Depends(body_of(EnrolBody))], service: Serving, request: Request
) -> EnrolAnswer:
    """Add a class from a few examples, or more examples of a class."""
    images = asked.images if asked.image is None else [asked.image]
    examples = await service.examples(images, asked.vectors if asked.vector is None else [asked.vector])
    ids = await service.write(service.gallery.enrol, asked.label, examples, metadata=asked.metadata)
    changed = {"label": asked.label, "metadata": sorted(asked.metadata or {})}
    service.audit.write(request.scope["identity"], "enrol", ids, changed)
    return EnrolAnswer(ids=ids)


@items.post("/v1/items", **docs(AddAnswer, ItemBody, 201))
async def add(asked: Annotated[ItemBody, Depends(body_of(ItemBody))], service: Serving, request: Request) -> AddAnswer:
    """Add an item; an item with the same id is replaced."""
    gallery = service.gallery
    examples = await service.examples(
        None if asked.image is None else [asked.image], None if asked.vector is None else [asked.vector]
    )
    named = None if asked.id is None else [asked.id]

    def write() -> tuple[list[str], bool]:
        replaced = asked.id is not None and asked.id in gallery
        return gallery.add(examples, [asked.label], asked.metadata, ids=named, progress=False), replaced

    ids, replaced = await service.write(write)
    changed = {"label": asked.label, "metadata": sorted(asked.metadata or {})}
    service.audit.write(request.scope["identity"], "replace" if replaced else "add", ids, changed)
    return AddAnswer(id=ids[0])


@items.patch("/v1/items/{id}", **docs(ItemAnswer, ChangeBody))
async def change(
    id: str, asked: Annotated[ChangeBody, Depends(body_of(ChangeBody))], service: Serving, request: Request
) -> ItemAnswer:
    """Change an item's label, its metadata, or both."""
    await _item(service, id)
    new = {name: getattr(asked, name) for name in asked.model_fields_set}
    await service.write(service.gallery.change, id, **new)
    changed = {name: sorted(value) if name == "metadata" else value for name, value in new.items()}
    service.audit.write(request.scope["identity"], "change", [id], changed)
    return ItemAnswer.of(await _item(service, id))


@items.delete(
    "/v1/items/{id}", status_code=204, responses={204: {"description": "The item was removed."}, **problem_docs()}
)
async def remove(id: str, service: Serving, request: Request) -> None:
    """Remove an item."""
    if not await service.write(service.gallery.remove, [id]):
        raise _no_item()
    service.audit.write(request.scope["identity"], "remove", [id])


@items.get("/v1/items", name="items", **docs(ItemsAnswer))
async def list_items(
    service: Serving,
    after: _Text = None,
    limit: _Limit = 100,
    where: Where | None = None,
    parameters: Annotated[_Text, Query(description="Values of the condition's :names, as JSON.")] = None,
) -> ItemsAnswer:
    """List items, one page at a time."""
    values = None if parameters is None else parse_json(parameters, "parameters")
    if values is not None and not isinstance(values, dict):
        raise Problem("invalid-request", "parameters must be a JSON object.")
    try:
        condition = checked_condition(where, None if values is None else check_parameters(values))
    except ValueError as error:
        raise Problem("invalid-request", f"parameters: {error}.") from None
    page = await service.read(service.gallery.items, after=after, limit=limit, where=condition)
    last = page[-1].id if len(page) == limit else None
    return ItemsAnswer(items=[ItemAnswer.of(item) for item in page], next=last)


@items.get("/v1/items/{id}", name="item", **docs(ItemAnswer))
async def get_item(id: str, service: Serving) -> ItemAnswer:
    """Get an item."""
    return ItemAnswer.of(await _item(service, id))


@items.get(
    "/v1/items/{id}/thumbnail",
    responses={200: {"description": "A thumbnail.", "content": {"image/jpeg": {}}}, **problem_docs()},
    response_class=Response,
)
async def thumbnail(id: str, service: Serving) -> Response:
    """Get a thumbnail of an item."""
    picture = await service.read(service.gallery.thumbnail, id)
    if picture is None:
        raise Problem("not-found", "Unknown item, or it has no thumbnail.")
    return Response(picture, media_type="image/jpeg")


async def _item(service: Service, id: str) -> Item:
    found = (await service.read(service.gallery.store.get, [id]))[0]
    if found is None:
        raise _no_item()
    return found


def _no_item() -> Problem:
    return Problem("not-found", "Unknown item.")


@reviews.get("/v1/map", **docs(MapAnswer))
async def map(service: Serving, limit: Annotated[int, Query(ge=1, le=_POINTS)] = _POINTS) -> MapAnswer:
    """Get a two-dimensional map of the gallery, or of a sample of a large one; similar items are close together."""
    points = evenly_chosen(await service.kept("map", service.gallery.map, _POINTS), limit)
    return MapAnswer(points=[PointAnswer(**vars(one)) for one in points])


@reviews.get("/v1/suspects", **docs(SuspectsAnswer))
async def suspects(service: Serving, limit: _Limit = 100) -> SuspectsAnswer:
    """List items whose neighbours suggest another label, most suspicious first."""
    found = await service.kept("suspects", service.gallery.suspicious_labels, limit=_MOST_LISTED)
    return SuspectsAnswer(
        suspects=[SuspectAnswer(**{**vars(one), "item": ItemAnswer.of(one.item)}) for one in found[:limit]]
    )


@reviews.get("/v1/duplicates", **docs(DuplicatesAnswer))
async def duplicates(
    service: Serving,
    distance: Annotated[
        FiniteFloat | None,
        Query(ge=0, le=1e9, description="Largest distance, rounded to two digits; default: chosen automatically."),
    ] = None,
    limit: _Limit = 100,
) -> DuplicatesAnswer:
    """List groups of near duplicates, closest first."""
    found = await service.kept("duplicates", find_duplicate_groups, service.gallery, round_distance(distance))
    return DuplicatesAnswer(duplicates=found[:limit])


@reviews.get("/v1/model", **docs(ModelAnswer))
async def model(service: Serving, request: Request) -> ModelAnswer:
    """Describe the gallery: its model, its contents, its reliability, and what you are allowed to do."""
    gallery = service.gallery

    def describe() -> dict[str, Any]:
        settings, stats = gallery.settings, gallery.stats()
        return {
            "name": plain(settings.name),
            "dimension": settings.dimension,
            "space": plain(settings.space),
            "kind": settings.kind,
            "fingerprint": settings.fingerprint,
            "card": plain(gallery.card.to_dict()),
            "comparison": gallery.comparison,
            "stats": stats_answer(stats),
            "calibration": plain(stats.calibration),
            "reliability": plain(gallery.reliability()),
        }

    about = await service.kept_apart("model", describe)
    writes = request.scope["identity"].role == "write" and not service.settings.read_only
    return ModelAnswer(**about, may=MayAnswer(read=True, write=writes))


T = TypeVar("T")


def evenly_chosen(points: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the points, evenly spaced."""
    if len(points) <= limit:
        return list(points)
    return [points[place * len(points) // limit] for place in range(limit)]


MOST_GROUPS = 1000
_MOST_SHOWN = 100
_MOST_ITEMS = 5000
_SAMPLE = 500
_USUAL_SHARE = 0.9  # not the median: half of a gallery may be copies
_ROUNDING = 1.05  # by which rounding may increase a distance
_SEED = 0


def round_distance(distance: float | None) -> float | None:
    """A distance rounded to two digits, so that similar requests share a cached answer."""
    return None if distance is None else float(f"{distance:.1e}")


def find_duplicate_groups(gallery: Gallery, distance: float | None) -> list[GroupAnswer]:
    """Groups of duplicates, closest first, at most 1,000 of them and 5,000 items in all.

    Args:
        gallery: where to look.
        distance: the largest distance between duplicates; None: chosen automatically.

    Raises:
        Problem: if it exceeds the nearest-neighbour distance of nine items out of ten: nearly all of the gallery would
            be duplicates.
    """
    if distance:
        most = _usual_distance(gallery.store)
        if distance > _ROUNDING * most:
            raise Problem(
                "invalid-request", f"distance may be at most {most:.3g}, as most items have a neighbour that close."
            )
    groups, total = [], 0
    for group in gallery.find_duplicates(distance, limit=MOST_GROUPS):
        shown = group.items[:_MOST_SHOWN]
        total += len(shown)
        if total > _MOST_ITEMS:
            break
        items = [ItemAnswer.of(item) for item in shown]
        groups.append(GroupAnswer(items=items, count=len(group.items), distance=group.distance))
    return groups


def _usual_distance(store: GalleryStore) -> float:
    """The nearest-neighbour distance that nine items out of ten do not exceed."""
    if len(store) < 2:
        return 0.0
    sample = store.sample(_SAMPLE, _SEED)
    nearest = base_neighbours(store).search(sample.vectors, 1, exclude=sample.keys).distances[:, 0]
    nearest = nearest[np.isfinite(nearest)]
    return float(np.quantile(nearest, _USUAL_SHARE)) if len(nearest) else 0.0


@pages.get("/healthz", **docs(StatusAnswer))
async def healthz() -> StatusAnswer:
    """Check that the service is alive."""
    return StatusAnswer(status="alive")


@pages.get("/readyz", **docs(StatusAnswer))
async def readyz(service: Serving) -> StatusAnswer:
    """Check that the service is ready: it has started, is not stopping, and reaches its gallery."""
    if service.stopping:
        raise Problem("stopping", "The service is shutting down.")
    if not service.ready:
        raise Problem("busy", "The service is starting.")
    await service.look()
    return StatusAnswer(status="ready")


@pages.get(
    "/metrics",
    responses={200: {"description": "Metrics for Prometheus.", "content": {"text/plain": {}}}, **problem_docs()},
    response_class=Response,
)
async def metrics(service: Serving) -> Response:
    """Get the metrics in the Prometheus text format."""
    return Response(await service.read(service.metrics.text), headers={"content-type": MEDIA_TYPE})


_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


def _read_page() -> dict[str, tuple[bytes, dict[str, str]]]:
    """The content and headers of the web page's files by name."""
    folder = files("nearkin.serve") / "page"
    found = {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None and entry.is_file():
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[entry.name] = content, {"cache-control": "no-cache", "etag": tag, "content-type": kind}
    return found


_PAGE = _read_page()  # once: no request reads the disk


@pages.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """The web page."""
    return await static(request, "index.html")


@pages.get("/static/{name}", include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    """A file of the web page."""
    if name not in _PAGE:
        raise Problem("not-found", "Unknown file.")
    content, headers = _PAGE[name]
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
