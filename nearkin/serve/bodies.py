"""From the bytes of a request to what it says, whichever of the two content types it came in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pydantic_core
from fastapi import Request
from pydantic import ValidationError
from python_multipart.multipart import parse_options_header

from nearkin.serve.problems import Problem
from nearkin.serve.schemas import Body

B = TypeVar("B", bound=Body)

_AS_JSON = frozenset({"metadata", "parameters"})
_MOST_PARTS = 64
_MOST_HEADERS = 2048
_LONGEST_BOUNDARY = 256
_SHOWN = 5


async def read_body(request: Request, model: type[B], max_images: int) -> B:
    """What a request says.

    Args:
        request: JSON, or a form if the model has uploads.
        model: what it may say.
        max_images: images or vectors it may bring.

    Raises:
        Problem: if it is of another type, cannot be parsed, or says something else.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"application/json":
        said = _from_json(await request.body(), model)
    elif kind == b"multipart/form-data" and model.uploads:
        said = _from_form(await request.body(), options.get(b"boundary", b""), model)
    else:
        choices = "application/json or multipart/form-data" if model.uploads else "application/json"
        raise Problem("unsupported-media-type", f"Send the body as {choices}.")
    for part in ("images", "vectors"):
        if len(getattr(said, part, None) or ()) > max_images:
            raise Problem("too-many-items", f"A call may bring at most {max_images} {part}.")
    return said


def parse_json(text: bytes | str, name: str) -> Any:
    """The value of a JSON text inside a request.

    Raises:
        Problem: if it is none.
    """
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        raise Problem("malformed-body", f"{name} must be JSON.") from None


def _from_json(raw: bytes, model: type[B]) -> B:
    try:
        return model.model_validate_json(raw, strict=True)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False, include_input=False)) from None


def _from_form(raw: bytes, boundary: bytes, model: type[B]) -> B:
    said: dict[str, Any] = {}
    for name, content in _parts(raw, boundary):
        target = model.uploads.get(name, name)
        if target == "images":
            said.setdefault(target, []).append(content)
        elif target in said:
            raise Problem("invalid-request", "Each field of the form may come once.")
        elif name in model.uploads:
            said[target] = content
        elif name in ("vector", "vectors", "images", "vector_a", "vector_b"):
            raise Problem("invalid-request", "Vectors and lists of images are sent as JSON.")
        else:
            said[target] = _field(name, content)
    try:
        return model.model_validate(said)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False, include_input=False)) from None


def _field(name: str, content: bytes) -> Any:
    if name in _AS_JSON:
        return parse_json(content, name)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Problem("malformed-body", "The fields of a form must be UTF-8.") from None


def _parts(raw: bytes, boundary: bytes) -> list[tuple[str, bytes]]:
    """The names and contents of the parts of a form that is there as a whole: cut at its boundary."""
    if not 1 <= len(boundary) <= _LONGEST_BOUNDARY:
        raise Problem("malformed-body", "The content type must name the boundary of the form.")
    edge = b"--" + boundary
    if raw.count(edge) > _MOST_PARTS + 1:
        raise Problem("too-many-items", f"A form may have at most {_MOST_PARTS} parts.")
    first, *parts = raw.removeprefix(b"\r\n").split(b"\r\n" + edge)
    if not first.startswith(edge):
        raise Problem("malformed-body", "The form must begin with its boundary.")
    parts.insert(0, first.removeprefix(edge))
    if not parts[-1].startswith(b"--"):
        raise Problem("malformed-body", "The form ends before its last boundary.")
    return [_part(part) for part in parts[:-1]]


def _part(part: bytes) -> tuple[str, bytes]:
    """The name and content of what lies between two boundaries."""
    head, gap, content = part.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not gap or lines[0].strip(b" \t") or len(head) > _MOST_HEADERS:
        raise Problem("malformed-body", "A part of the form has no headers, or too long ones.")
    for line in lines[1:]:
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            kind, options = parse_options_header(value.strip())
            if kind == b"form-data" and options.get(b"name"):
                return options[b"name"].decode("utf-8", "replace"), content
    raise Problem("malformed-body", "Every part of a form must have a name.")


def invalid(errors: Iterable[Any]) -> Problem:
    """What is wrong with a request, without repeating what it said."""
    found = list(errors)
    if found and found[0]["type"] == "json_invalid":
        return Problem("malformed-body", "The body is not valid JSON in UTF-8.")
    shown = [
        {
            "at": ".".join(str(part)[:40] for part in error["loc"])[:120],
            "message": str(error["msg"]).removeprefix("Value error, ")[:200],
        }
        for error in found[:_SHOWN]
    ]
    first = shown[0] if shown else {"at": "", "message": "it is not valid"}
    detail = f"{first['at']}: {first['message']}." if first["at"] else f"{first['message']}."
    return Problem("invalid-request", detail, members={"errors": shown})
