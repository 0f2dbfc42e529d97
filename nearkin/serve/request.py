"""The request models, and how they are read from JSON or a form, within bounds."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import pydantic_core
from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from python_multipart.multipart import parse_options_header

from nearkin.gallery.condition import Condition, Name, condition
from nearkin.serve.problems import Problem

_LONGEST_TEXT = 1000
_LONGEST_CONDITION = 10_000
_MOST_FACTS = 1000
_MOST_PARAMETERS = 10_000
_MOST_NUMBERS = 65_536
_MOST_IMAGES = 10_000  # the limit of the settings is far below and has its own message
_VALUE: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "boolean"},
        {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**63},
        {"type": "number"},
        {"type": "null"},
    ]
}
_LIST = {"type": "array", "items": _VALUE, "maxItems": _MOST_FACTS}


def _decoded(value: Any) -> Any:
    """Bytes from base64; bytes from a form pass unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64 in the standard alphabet") from None


def _check_values(values: Iterable[Any]) -> None:
    for value in values:
        if value is None or isinstance(value, str | bool):
            continue
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise ValueError("an integer must fit into 64 bits")
        elif not isinstance(value, float) or not math.isfinite(value):
            raise ValueError("every value must be a string, a finite number, a boolean or null")


def check_metadata(facts: dict[str, Any]) -> dict[str, Any]:
    """Metadata unchanged, if it is flat.

    Raises:
        ValueError: if not, or if there is too much of it.
    """
    if len(facts) > _MOST_FACTS:
        raise ValueError(f"may have at most {_MOST_FACTS} entries")
    if not all(1 <= len(name) <= _LONGEST_TEXT for name in facts):
        raise ValueError(f"every name must have 1 to {_LONGEST_TEXT} characters")
    _check_values(facts.values())
    return facts


def check_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a condition unchanged, if they are scalars or lists of scalars.

    Raises:
        ValueError: if not, or if there is too much of it.
    """
    lists = [value for value in parameters.values() if isinstance(value, list)]
    if len(parameters) > _MOST_FACTS or any(len(one) > _MOST_FACTS for one in lists):
        raise ValueError(f"may have at most {_MOST_FACTS} values, and as many per list")
    if sum(map(len, lists)) > _MOST_PARAMETERS:
        raise ValueError(f"may have at most {_MOST_PARAMETERS} values in all lists")
    _check_values(value for value in parameters.values() if not isinstance(value, list))
    for one in lists:
        _check_values(one)
    return parameters


Image = Annotated[
    bytes,
    BeforeValidator(_decoded, json_schema_input_type=str),
    Field(min_length=1, description="A JPEG, PNG, WebP, GIF, BMP or TIFF file, or a recording for an audio gallery."),
]
Images = Annotated[list[Image], Field(fail_fast=True, min_length=1, max_length=_MOST_IMAGES)]
Metadata = Annotated[
    dict[str, Any],
    AfterValidator(check_metadata),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": _VALUE,
            "propertyNames": {"minLength": 1, "maxLength": _LONGEST_TEXT},
            "maxProperties": _MOST_FACTS,
        }
    ),
]
Parameters = Annotated[
    dict[str, Any],
    AfterValidator(check_parameters),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"anyOf": [*_VALUE["anyOf"], _LIST]},
            "maxProperties": _MOST_FACTS,
        }
    ),
]
Vector = Annotated[
    list[FiniteFloat],
    Field(fail_fast=True, min_length=1, max_length=_MOST_NUMBERS, description="For galleries of your own vectors."),
]
Vectors = Annotated[list[Vector], Field(fail_fast=True, min_length=1, max_length=_MOST_IMAGES)]
Label = Annotated[str, Field(min_length=1, max_length=_LONGEST_TEXT)]
Where = Annotated[
    str,
    Field(max_length=_LONGEST_CONDITION, description="A condition, for example: price < :most and brand = 'Acme'."),
]


MOST_NEIGHBOURS = 1000


class Body(BaseModel):
    """A request body; `uploads` maps the file fields of its form to fields of the model."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    uploads: ClassVar[dict[str, str]] = {}


class SampleBody(Body):
    """One image or one vector."""

    uploads: ClassVar[dict[str, str]] = {"image": "image"}

    image: Image | None = None
    vector: Vector | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.image is None) == (self.vector is None):
            raise ValueError("give either image or vector")
        return self


class IdentifyBody(SampleBody):
    """A sample to identify."""

    neighbours: int = Field(default=10, ge=1, le=MOST_NEIGHBOURS)
    place: bool = Field(default=False, description="Also give its position in the map.")
    by: Literal["neighbours", "prototypes"] = Field(
        default="neighbours", description="What names the class: nearest items, or the mean of each class's (few-shot)."
    )


class SearchBody(SampleBody):
    """A sample to search for."""

    k: int = Field(default=10, ge=1, le=MOST_NEIGHBOURS)
    where: Where | None = None
    parameters: Parameters | None = None


class VerifyBody(Body):
    """Two samples to compare."""

    uploads: ClassVar[dict[str, str]] = {"a": "a", "b": "b"}

    a: Image | None = None
    b: Image | None = None
    vector_a: Vector | None = None
    vector_b: Vector | None = None
    false_accept_rate: float = Field(default=0.001, gt=0, lt=1)
    prior: float = Field(default=0.5, gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        images = (self.a is not None) + (self.b is not None)
        vectors = (self.vector_a is not None) + (self.vector_b is not None)
        if (images, vectors) not in ((2, 0), (0, 2)):
            raise ValueError("give either a and b, or vector_a and vector_b")
        return self


class EnrolBody(Body):
    """A few examples of a class."""

    uploads: ClassVar[dict[str, str]] = {"image": "images"}

    label: Label
    image: Image | None = None
    images: Images | None = None
    vector: Vector | None = None
    vectors: Vectors | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = (self.image, self.images, self.vector, self.vectors)
        if sum(part is not None for part in given) != 1:
            raise ValueError("give exactly one of image, images, vector and vectors")
        return self


class ItemBody(SampleBody):
    """One new item."""

    label: Label | None = None
    id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    metadata: Metadata | None = None


class ChangeBody(Body):
    """Changes to an item; a label of null removes it."""

    label: Label | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_fields_set or ("metadata" in self.model_fields_set and self.metadata is None):
            raise ValueError("give label, metadata (an object) or both")
        return self


B = TypeVar("B", bound=Body)

_AS_JSON = frozenset({"metadata", "parameters"})
_MOST_PARTS = 64
_MOST_HEADERS = 2048
_LONGEST_BOUNDARY = 256
_SHOWN = 5
_MOST_VALUES = 50_000
_MOST_TEXT = 2_000_000
_NUMBER = 32
"""Most bytes per number of a vector."""
_QUICK = 65_536
"""Bodies up to this size are parsed without a thread."""


@dataclass(frozen=True)
class Bounds:
    """Limits of a body.

    Attributes:
        items: most images or vectors.
        numbers: most numbers in all vectors; 0 for a gallery of images.
    """

    items: int
    numbers: int = 0


def body_of(model: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency: the body of a request, which is JSON, or a form if the model has uploads.

    Raises:
        Problem: if it has another type, cannot be parsed, or does not fit the model.
    """

    async def read(request: Request) -> B:
        bounds: Bounds = request.app.state.service.bounds
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind == b"application/json":
            raw = await request.body()
            if len(raw) <= _QUICK:
                return _from_json(raw, model, bounds)
            return await asyncio.to_thread(_from_json, raw, model, bounds)
        if kind == b"multipart/form-data" and model.uploads:
            return _from_form(await request.body(), options.get(b"boundary", b""), model, bounds)
        choices = "application/json or multipart/form-data" if model.uploads else "application/json"
        raise Problem("unsupported-media-type", f"Send the body as {choices}.")

    return read


def _check_items(said: Mapping[str, Any], bounds: Bounds) -> None:
    for part in ("images", "vectors"):
        if isinstance(said.get(part), list) and len(said[part]) > bounds.items:
            raise Problem("too-many-items", f"A request may have at most {bounds.items} {part}.")


def parse_json(text: bytes | str, name: str) -> Any:
    """Parse a JSON text inside a request.

    Raises:
        Problem: if it is not JSON.
    """
    _check_count(text if isinstance(text, bytes) else text.encode(), _MOST_VALUES)
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        raise Problem("malformed-body", f"{name} must be valid JSON.") from None


def _from_json(raw: bytes, model: type[B], bounds: Bounds) -> B:
    """The body from JSON; its size is checked before its values."""
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
            raise Problem("invalid-request", f"{name[:40]}: unknown field.")
    _check_items(said, bounds)
    return _validated(said, model, strict=True)


def _check_count(raw: bytes, most: int) -> None:
    """Refuse JSON with too many values before parsing: an empty list takes twenty times its bytes in memory."""
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > most:
        raise Problem("too-many-items", f"A body may have at most {most} values.")


def _validated(said: dict[str, Any], model: type[B], *, strict: bool) -> B:
    try:
        return model.model_validate(said, strict=strict)
    except ValidationError as error:
        # Few errors: unknown fields were refused before, and each field stops at its first error.
        raise invalid(error.errors(include_url=False, include_context=False, include_input=False)) from None


def _from_form(raw: bytes, boundary: bytes, model: type[B], bounds: Bounds) -> B:
    said: dict[str, Any] = {}
    for name, content in _parts(raw, boundary):
        target = model.uploads.get(name, name)
        if target == "images":
            said.setdefault(target, []).append(content)
        elif target in said:
            raise Problem("invalid-request", "Each form field may appear only once.")
        elif name in model.uploads:
            said[target] = content
        elif name in ("vector", "vectors", "images", "vector_a", "vector_b"):
            raise Problem("invalid-request", "Send vectors and lists of images as JSON.")
        elif name in _AS_JSON:
            said[target] = parse_json(content, name)
        else:
            try:
                said[target] = content.decode()
            except UnicodeDecodeError:
                raise Problem("malformed-body", "Form fields must be UTF-8.") from None
    _check_items(said, bounds)
    return _validated(said, model, strict=False)


def _parts(raw: bytes, boundary: bytes) -> list[tuple[str, bytes]]:
    """The names and contents of the parts of a whole form.

    Not Starlette's `request.form()`: that drops the parts of a form that ends early, and decodes what is not UTF-8 as
    Latin-1 (see tests/serve/test_request.py).
    """
    if not 1 <= len(boundary) <= _LONGEST_BOUNDARY:
        raise Problem("malformed-body", "The Content-Type header must name the form's boundary.")
    edge = b"--" + boundary
    if raw.count(edge) > _MOST_PARTS + 1:
        raise Problem("too-many-items", f"A form may have at most {_MOST_PARTS} parts.")
    first, *parts = raw.removeprefix(b"\r\n").split(b"\r\n" + edge)
    if not first.startswith(edge):
        raise Problem("malformed-body", "The form must begin with its boundary.")
    parts.insert(0, first.removeprefix(edge))
    if not parts[-1].startswith(b"--"):
        raise Problem("malformed-body", "The form ends before its final boundary.")
    return [_part(part) for part in parts[:-1]]


def _part(part: bytes) -> tuple[str, bytes]:
    """The name and content of one part."""
    head, gap, content = part.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not gap or lines[0].strip(b" \t") or len(head) > _MOST_HEADERS:
        raise Problem("malformed-body", "A part of the form has no headers, or they are too long.")
    for line in lines[1:]:
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            kind, options = parse_options_header(value.strip())
            if kind == b"form-data" and options.get(b"name"):
                return options[b"name"].decode("utf-8", "replace"), content
    raise Problem("malformed-body", "Every part of a form must have a name.")


def invalid(errors: Iterable[Any]) -> Problem:
    """The validation errors of a request, without quoting its values."""
    found = list(errors)
    shown = [
        {
            "at": ".".join(str(part)[:40] for part in error["loc"])[:120],
            "message": str(error["msg"]).removeprefix("Value error, ")[:200],
        }
        for error in found[:_SHOWN]
    ]
    first = shown[0] if shown else {"at": "", "message": "not valid"}
    detail = f"{first['at']}: {first['message']}." if first["at"] else f"{first['message']}."
    return Problem("invalid-request", detail, members={"errors": shown})


def checked_condition(where: str | None, parameters: Mapping[str, Any] | None) -> Condition | None:
    """A condition allowed over HTTP: anything but `source`, which would reveal paths of the server.

    Raises:
        Problem: if it uses `source`.
        DataError: if it is not valid.
    """
    parsed = condition(where, parameters)
    if parsed is not None and any(name.own and name.key == "source" for name in _names(parsed)):
        raise Problem("invalid-request", "Conditions on source are not allowed over HTTP.")
    return parsed


def _names(part: Any) -> Iterator[Name]:
    if (name := getattr(part, "name", None)) is not None:
        yield name
    for inner in (*getattr(part, "parts", ()), *filter(None, [getattr(part, "part", None)])):
        yield from _names(inner)
