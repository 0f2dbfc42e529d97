"""From the bytes of a request to what it says, whichever of the two content types it came in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
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
_MOST_VALUES = 50_000
_MOST_TEXT = 2_000_000
_NUMBER = 32
"""Bytes that a number of a vector may take."""
_QUICK = 65_536
"""Bytes that are parsed at once: a thread would cost more."""


@dataclass(frozen=True)
class Bounds:
    """How much a body may say.

    Attributes:
        items: images or vectors of a call.
        numbers: of all its vectors together; 0 where it brings images.
    """

    items: int
    numbers: int = 0


async def read_body(request: Request, model: type[B], bounds: Bounds) -> B:
    """What a request says.

    Args:
        request: JSON, or a form if the model has uploads.
        model: what it may say.
        bounds: how much.

    Raises:
        Problem: if it is of another type, cannot be parsed, or says something else.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"application/json":
        raw = await request.body()
        if len(raw) <= _QUICK:
            said = _from_json(raw, model, bounds)
        else:
            said = await asyncio.to_thread(_from_json, raw, model, bounds)
    elif kind == b"multipart/form-data" and model.uploads:
        said = _from_form(await request.body(), options.get(b"boundary", b""), model)
    else:
        choices = "application/json or multipart/form-data" if model.uploads else "application/json"
        raise Problem("unsupported-media-type", f"Send the body as {choices}.")
    for part in ("images", "vectors"):
        if len(getattr(said, part, None) or ()) > bounds.items:
            raise _too_many(bounds, part)
    return said


def _too_many(bounds: Bounds, part: str) -> Problem:
    return Problem("too-many-items", f"A call may bring at most {bounds.items} {part}.")


def parse_json(text: bytes | str, name: str) -> Any:
    """The value of a JSON text inside a request.

    Raises:
        Problem: if it is none.
    """
    _check_count(text if isinstance(text, bytes) else text.encode(), _MOST_VALUES)
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        raise Problem("malformed-body", f"{name} must be JSON.") from None


def _from_json(raw: bytes, model: type[B], bounds: Bounds) -> B:
    """What a JSON text says; how much it says is looked at before its values are."""
    brings_images = bool(model.uploads) and not bounds.numbers
    most = _MOST_TEXT + _NUMBER * bounds.numbers
    if not brings_images and len(raw) > most:
        raise Problem("body-too-large", f"A body without images may have at most {most} bytes.")
    _check_count(raw, _MOST_VALUES + bounds.numbers)
    try:
        said = pydantic_core.from_json(raw)
    except ValueError:
        raise Problem("malformed-body", "The body is not valid JSON in UTF-8.") from None
    if not isinstance(said, dict):
        raise Problem("invalid-request", "The body must be a JSON object.")
    for name in said:
        if name not in model.model_fields:
            raise Problem("invalid-request", f"{name[:40]}: this request has no such field.")
    for part in ("images", "vectors"):
        if isinstance(said.get(part), list) and len(said[part]) > bounds.items:
            raise _too_many(bounds, part)
    return _validated(said, model, strict=True)


def _check_count(raw: bytes, most: int) -> None:
    """Refuse JSON of very many values before it is parsed: an empty list takes twenty times its bytes in memory."""
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > most:
        raise Problem("too-many-items", f"A body may hold at most {most} values.")


def _validated(said: dict[str, Any], model: type[B], *, strict: bool) -> B:
    try:
        return model.model_validate(said, strict=strict)
    except ValidationError as error:
        # Few: there are no fields but the model's, and each stops at its first error.
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
    return _validated(said, model, strict=False)


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
