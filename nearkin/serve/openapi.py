"""What the OpenAPI document adds to the models: examples, errors, and bodies as JSON or a form."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from nearkin.serve import answers, request
from nearkin.serve.problems import MEDIA_TYPE, list_problems
from nearkin.serve.request import Body

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
_ITEM = {
    "id": "019a-7f3c",
    "label": "robin",
    "metadata": {"place": "garden"},
    "added": "2025-05-01T08:00:00+00:00",
    "thumbnail": "/v1/items/019a-7f3c/thumbnail",
}
_NEIGHBOUR = {key: value for key, value in _ITEM.items() if key != "added"} | {"distance": 0.31}
_ASKED: dict[type[Body], dict[str, Any]] = {
    request.IdentifyBody: {"image": _PIXEL, "neighbours": 5},
    request.SearchBody: {"image": _PIXEL, "k": 5, "where": "place = :place", "parameters": {"place": "garden"}},
    request.VerifyBody: {"a": _PIXEL, "b": _PIXEL, "false_accept_rate": 0.001, "prior": 0.5},
    request.EnrolBody: {"label": "robin", "images": [_PIXEL], "metadata": {"place": "garden"}},
    request.ItemBody: {"image": _PIXEL, "label": "robin", "id": "robin-1"},
    request.ChangeBody: {"label": "wren", "metadata": {"place": "wood"}},
}
_ANSWERED: dict[type[BaseModel], dict[str, Any]] = {
    answers.IdentifyAnswer: {
        "label": "robin",
        "probability": 0.94,
        "known": True,
        "reason": "",
        "note": "",
        "forecast": {
            "enrolled_known": 0.61,
            "named_known": 0.7,
            "strangers_known": 0.06,
            "enrolled_unknown": 0.05,
            "strangers_unknown": 0.4,
        },
        "candidates": [{"label": "robin", "probability": 0.94}, {"label": "wren", "probability": 0.06}],
        "neighbours": [_NEIGHBOUR],
        "place": None,
    },
    answers.SearchAnswer: {"neighbours": [_NEIGHBOUR]},
    answers.VerifyAnswer: {
        "same": True,
        "probability": 0.98,
        "distance": 0.31,
        "threshold": 0.55,
        "false_accept_rate": 0.001,
        "reason": "",
        "prior": 0.5,
        "needed": 0.95,
        "note": "",
    },
    answers.EnrolAnswer: {"ids": ["019a-7f3c"]},
    answers.AddAnswer: {"id": "robin-1"},
    answers.ItemAnswer: _ITEM,
    answers.ItemsAnswer: {"items": [_ITEM], "next": None},
    answers.MapAnswer: {"points": [{"id": "019a-7f3c", "label": "robin", "x": 0.2, "y": 0.7}]},
    answers.SuspectsAnswer: {"suspects": [{"item": _ITEM, "suggested": "wren", "probability": 0.97, "own": 0.01}]},
    answers.DuplicatesAnswer: {"duplicates": [{"items": [_ITEM, _ITEM], "count": 2, "distance": 0.02}]},
    answers.StatusAnswer: {"status": "ready"},
}
_REFUSALS = {
    400: ("malformed-body", "The body is not valid JSON in UTF-8."),
    401: ("key-required", "Send a key as 'Authorization: Bearer <key>' or as 'X-API-Key'."),
    403: ("role-required", "This needs a key with the role 'write'."),
    404: ("not-found", "Unknown item."),
    405: ("method-not-allowed", "Use one of: GET, HEAD, OPTIONS."),
    408: ("body-too-slow", "The body did not arrive in time."),
    413: ("body-too-large", "The body may have at most 20000000 bytes."),
    415: ("unsupported-media-type", "Send the body as application/json or multipart/form-data."),
    421: ("host-refused", "Unknown host name: add it with --allow-host."),
    422: ("invalid-request", "neighbours: Input should be less than or equal to 1000."),
    429: ("rate-limited", "Send at most 200 requests per second."),
    500: ("internal", ""),
    503: ("busy", "Too many requests in progress: try again in a moment."),
}


def docs(answer: type[BaseModel], body: type[Body] | None = None, status: int = 200) -> dict[str, Any]:
    """What a route's decorator says of its answer, its body and its errors."""
    content = {"application/json": {"example": _ANSWERED[answer]}} if answer in _ANSWERED else {}
    described = {"description": (answer.__doc__ or "").strip(), "content": content}
    request = {} if body is None else {"openapi_extra": body_docs(body)}
    return {"status_code": status, "responses": {status: described, **problem_docs()}, **request}


def body_docs(model: type[Body]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads JSON or a form, for which FastAPI has no declaration."""
    schema = model.model_json_schema()
    for name in {*model.uploads, *model.uploads.values()} & schema["properties"].keys():
        schema["properties"][name]["description"] = "The file in base64, or a list of files."
    content = {"application/json": {"schema": schema, "example": _ASKED[model]}}
    if model.uploads:
        content["multipart/form-data"] = {"schema": _form_schema(model)}
    return {"requestBody": {"required": True, "content": content}}


def problem_docs() -> dict[int | str, dict[str, Any]]:
    """The errors any route may answer with."""
    titles = list_problems()
    return {
        status: {
            "description": titles[slug][1],
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/ProblemAnswer"},
                    "example": {
                        "type": f"urn:nearkin:problem:{slug}",
                        "title": titles[slug][1],
                        "status": status,
                    }
                    | ({"detail": detail} if detail else {}),
                }
            },
        }
        for status, (slug, detail) in _REFUSALS.items()
    }


def _form_schema(model: type[Body]) -> dict[str, Any]:
    """The same as a form: files as binary parts, metadata and parameters as JSON text, no vectors."""
    schema = model.model_json_schema()
    lists = [name for name in schema["properties"] if name.startswith("vector") or name == "images"]
    properties = {name: part for name, part in schema["properties"].items() if name not in lists}
    for name, target in model.uploads.items():
        file = {"type": "string", "format": "binary"}
        properties[name] = {"type": "array", "items": file, "minItems": 1} if target == "images" else file
    for name in ("metadata", "parameters"):
        if name in properties:
            properties[name] = {"type": "string", "contentMediaType": "application/json"}
    required = [*schema.get("required", []), *model.uploads]
    return {**schema, "properties": properties, "required": required}
