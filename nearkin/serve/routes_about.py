"""What the gallery says of itself: map, suspects, duplicates, model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import FiniteFloat

from nearkin.serve.answer_schemas import DuplicatesAnswer, MapAnswer, ModelAnswer, SuspectsAnswer
from nearkin.serve.answers import item_answer, json_response, plain, stats_answer
from nearkin.serve.copies import find_copies, rounded
from nearkin.serve.documentation import answers
from nearkin.serve.service import Service

T = TypeVar("T")

_POINTS = 2000
_MOST_LISTED = 1000
_DISTANCE = "How near, to two digits, and no more than neighbours usually are; left out: chosen."


def about_routes(service: Service) -> APIRouter:
    """Routes whose answers are made once for each state of the gallery."""
    router = APIRouter(tags=["about"])
    gallery = service.gallery

    @router.get("/v1/map", responses=answers(MapAnswer), response_model=None)
    async def map(limit: Annotated[int, Query(ge=1, le=_POINTS)] = _POINTS) -> Response:
        """The gallery in the plane, like items near each other; of a large one a sample."""
        points = spread(await service.kept("map", gallery.map, _POINTS), limit)
        return json_response({"points": [{"id": one.id, "label": one.label, "x": one.x, "y": one.y} for one in points]})

    @router.get("/v1/suspects", responses=answers(SuspectsAnswer), response_model=None)
    async def suspects(limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100) -> Response:
        """Items whose neighbours speak for another label than they have."""
        found = (await service.kept("suspects", gallery.suspicious_labels, limit=_MOST_LISTED))[:limit]
        return json_response(
            {
                "suspects": [
                    {
                        "item": item_answer(one.item),
                        "suggested": one.suggested,
                        "probability": one.probability,
                        "own": one.own,
                    }
                    for one in found
                ]
            }
        )

    @router.get("/v1/duplicates", responses=answers(DuplicatesAnswer), response_model=None)
    async def duplicates(
        distance: Annotated[
            FiniteFloat | None, Query(ge=0, le=1e9, description="How near, to two digits; left out: chosen.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    ) -> Response:
        """Groups of items that are almost the same."""
        found = (await service.kept("duplicates", find_copies, gallery, rounded(distance)))[:limit]
        return json_response(
            {
                "duplicates": [
                    {
                        "items": [item_answer(item) for item in group.items],
                        "count": group.count,
                        "distance": group.distance,
                    }
                    for group in found
                ]
            }
        )

    @router.get("/v1/model", responses=answers(ModelAnswer), response_model=None)
    async def model(request: Request) -> Response:
        """What the gallery is tied to, what is in it, how reliable it is, and what you may do."""
        about = await service.kept_apart("model", lambda: _about(service))
        writes = request.scope["identity"].role == "write" and not service.settings.read_only
        return json_response({**about, "may": {"read": True, "write": writes}})

    return router


def spread(points: Sequence[T], limit: int) -> list[T]:
    """So many of them, evenly chosen."""
    if len(points) <= limit:
        return list(points)
    return [points[place * len(points) // limit] for place in range(limit)]


def _about(service: Service) -> dict[str, Any]:
    gallery, settings = service.gallery, service.gallery.settings
    stats = gallery.stats()
    return {
        "name": plain(settings.name),
        "dimension": settings.dimension,
        "space": plain(settings.space),
        "kind": settings.kind,
        "fingerprint": settings.fingerprint,
        "card": plain(gallery.card),
        "stats": stats_answer(stats),
        "calibration": plain(stats.calibration),
        "reliability": plain(gallery.reliability()),
    }
