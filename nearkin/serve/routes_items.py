"""Items: enrol, list, read, change, remove."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from nearkin.serve.answer_schemas import AddAnswer, EnrolAnswer, ItemAnswer, ItemsAnswer
from nearkin.serve.answers import item_answer, json_response
from nearkin.serve.bodies import parse_json, read_body
from nearkin.serve.conditions import outside_condition
from nearkin.serve.documentation import answers, asks, refusals
from nearkin.serve.fields import Where, check_parameters
from nearkin.serve.problems import Problem
from nearkin.serve.schemas import ChangeBody, EnrolBody, ItemBody
from nearkin.serve.service import Service

_MOST_LISTED = 1000
_Text = Annotated[str | None, Query(max_length=10_000)]


def item_routes(service: Service) -> APIRouter:
    """Routes that read and change items."""
    router = APIRouter(tags=["items"])
    _add_writes(router, service)
    _add_reads(router, service)
    return router


def _add_writes(router: APIRouter, service: Service) -> None:
    gallery = service.gallery

    @router.post(
        "/v1/enrol",
        status_code=201,
        responses=answers(EnrolAnswer, 201),
        openapi_extra=asks(EnrolBody),
        response_model=None,
    )
    async def enrol(request: Request) -> Response:
        """Add a class from a handful of examples, or more examples of one."""
        asked = await read_body(request, EnrolBody, service.bounds)
        examples = await service.examples(asked.all_images(), asked.all_vectors())
        ids = await service.write(gallery.enrol, asked.label, examples, metadata=asked.metadata)
        changed = {"label": asked.label, "metadata": sorted(asked.metadata or {})}
        service.audit.write(request.scope["identity"], "enrol", ids, changed)
        return json_response({"ids": ids}, 201)

    @router.post(
        "/v1/items",
        status_code=201,
        responses=answers(AddAnswer, 201),
        openapi_extra=asks(ItemBody),
        response_model=None,
    )
    async def add(request: Request) -> Response:
        """Add an item; one that has this id already is replaced."""
        asked = await read_body(request, ItemBody, service.bounds)
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
        return json_response({"id": ids[0]}, 201)

    @router.patch("/v1/items/{id}", responses=answers(ItemAnswer), openapi_extra=asks(ChangeBody), response_model=None)
    async def change(request: Request, id: str) -> Response:
        """Give an item another label, other metadata, or both."""
        asked = await read_body(request, ChangeBody, service.bounds)
        await _item(service, id)
        new = {name: getattr(asked, name) for name in asked.model_fields_set}
        await service.write(gallery.change, id, **new)
        changed = {name: sorted(value) if name == "metadata" else value for name, value in new.items()}
        service.audit.write(request.scope["identity"], "change", [id], changed)
        return json_response(item_answer(await _item(service, id)))

    @router.delete(
        "/v1/items/{id}",
        status_code=204,
        responses={204: {"description": "It is gone."}, **refusals()},
        response_model=None,
    )
    async def remove(request: Request, id: str) -> Response:
        """Remove an item."""
        if not await service.write(gallery.remove, [id]):
            raise _no_item()
        service.audit.write(request.scope["identity"], "remove", [id])
        return Response(status_code=204)


def _add_reads(router: APIRouter, service: Service) -> None:
    gallery = service.gallery

    @router.get("/v1/items", responses=answers(ItemsAnswer), response_model=None)
    async def items(
        after: _Text = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
        where: Where | None = None,
        parameters: Annotated[_Text, Query(description="Values of the condition's :names, as JSON.")] = None,
    ) -> Response:
        """List items, a page at a time."""
        values = None if parameters is None else parse_json(parameters, "parameters")
        if values is not None and not isinstance(values, dict):
            raise Problem("invalid-request", "parameters must be a JSON object.")
        try:
            condition = outside_condition(where, None if values is None else check_parameters(values))
        except ValueError as error:
            raise Problem("invalid-request", f"parameters: {error}.") from None
        page = await service.read(gallery.items, after=after, limit=limit, where=condition)
        last = page[-1].id if len(page) == limit else None
        return json_response({"items": [item_answer(item) for item in page], "next": last})

    @router.get("/v1/items/{id}", responses=answers(ItemAnswer), response_model=None)
    async def item(id: str) -> Response:
        """An item."""
        return json_response(item_answer(await _item(service, id)))

    @router.get(
        "/v1/items/{id}/thumbnail",
        responses={200: {"description": "A small picture.", "content": {"image/jpeg": {}}}, **refusals()},
        response_model=None,
    )
    async def thumbnail(id: str) -> Response:
        """A small picture of an item."""
        picture = await service.read(gallery.thumbnail, id)
        if picture is None:
            raise Problem("not-found", "There is no such item, or no picture of it.")
        return Response(picture, media_type="image/jpeg")


async def _item(service: Service, id: str) -> Any:
    found = (await service.read(service.gallery.store.get, [id]))[0]
    if found is None:
        raise _no_item()
    return found


def _no_item() -> Problem:
    return Problem("not-found", "There is no such item.")
