"""What the gallery says of itself: map, suspects, duplicates, model."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import FiniteFloat

from nearkin.serve.answers import item_answer, json_response, plain, stats_answer
from nearkin.serve.documentation import answers
from nearkin.serve.schemas import DuplicatesAnswer, MapAnswer, ModelAnswer, SuspectsAnswer
from nearkin.serve.service import Service

_MOST_POINTS = 5000
_MOST_LISTED = 1000


def about_routes(service: Service) -> APIRouter:
    """Routes whose answers are made once for each state of the gallery."""
    router = APIRouter(tags=["about"])
    gallery = service.gallery

    @router.get("/v1/map", responses=answers(MapAnswer), response_model=None)
    async def map(limit: Annotated[int, Query(ge=1, le=_MOST_POINTS)] = 2000) -> Response:
        """The gallery in the plane, like items near each other; of a large one a sample."""
        points = await service.kept("map", gallery.map, limit)
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
        distance: Annotated[FiniteFloat | None, Query(ge=0, le=1e9, description="How near; left out: chosen.")] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    ) -> Response:
        """Groups of items that are almost the same."""
        found = (await service.kept("duplicates", gallery.find_duplicates, distance, limit=_MOST_LISTED))[:limit]
        return json_response(
            {
                "duplicates": [
                    {"items": [item_answer(item) for item in group.items], "distance": group.distance}
                    for group in found
                ]
            }
        )

    @router.get("/v1/model", responses=answers(ModelAnswer), response_model=None)
    async def model() -> Response:
        """What the gallery is tied to, what is in it, and how reliable it is."""
        return json_response(await service.kept("model", _about, service))

    return router


def _about(service: Service) -> dict[str, Any]:
    gallery, settings = service.gallery, service.gallery.settings
    stats = gallery.stats()
    return {
        "name": settings.name,
        "dimension": settings.dimension,
        "space": plain(settings.space),
        "kind": settings.kind,
        "fingerprint": settings.fingerprint,
        "card": plain(gallery.card),
        "stats": plain(stats_answer(stats)),
        "calibration": plain(stats.calibration),
        "reliability": plain(gallery.reliability()),
    }
