"""Questions: identify, search, verify."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from nearkin.serve.answer_schemas import IdentifyAnswer, SearchAnswer, VerifyAnswer
from nearkin.serve.answers import json_response, match_answer, neighbour_answers, verification_answer
from nearkin.serve.bodies import read_body
from nearkin.serve.conditions import outside_condition
from nearkin.serve.documentation import answers, asks
from nearkin.serve.schemas import IdentifyBody, SearchBody, VerifyBody
from nearkin.serve.service import Service


def asking_routes(service: Service) -> APIRouter:
    """Routes that ask the gallery and change nothing."""
    router = APIRouter(tags=["questions"])
    gallery = service.gallery

    @router.post(
        "/v1/identify", responses=answers(IdentifyAnswer), openapi_extra=asks(IdentifyBody), response_model=None
    )
    async def identify(request: Request) -> Response:
        """Say what an image is: its label, how sure that is, and whether it is of any enrolled class."""
        asked = await read_body(request, IdentifyBody, service.bounds)
        vector = await service.vector(asked.image, asked.vector)
        match = await service.identify(vector, asked.neighbours)
        place = await service.slowly(gallery.place, vector) if asked.place and match.neighbours else None
        return json_response(match_answer(match, place))

    @router.post("/v1/search", responses=answers(SearchAnswer), openapi_extra=asks(SearchBody), response_model=None)
    async def search(request: Request) -> Response:
        """Find the items most like an image, perhaps only among those that fulfil a condition."""
        asked = await read_body(request, SearchBody, service.bounds)
        where = outside_condition(asked.where, asked.parameters)
        vector = await service.vector(asked.image, asked.vector)
        found = await service.read(gallery.search_vectors, vector[None], asked.k, where=where)
        return json_response({"neighbours": neighbour_answers(found[0])})

    @router.post("/v1/verify", responses=answers(VerifyAnswer), openapi_extra=asks(VerifyBody), response_model=None)
    async def verify(request: Request) -> Response:
        """Say whether two images are of one class, at a false accept rate."""
        asked = await read_body(request, VerifyBody, service.bounds)
        a, b = await asyncio.gather(service.vector(asked.a, asked.vector_a), service.vector(asked.b, asked.vector_b))
        found = await service.read(gallery.verify_vectors, a, b, false_accept_rate=asked.false_accept_rate)
        return json_response(verification_answer(found))

    return router
