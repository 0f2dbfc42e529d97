"""What the fields of a request may hold.

Whatever may be long is looked at by one plain function or stops at its first error: a list of a million wrong values
must not make a million errors.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, WithJsonSchema

_LONGEST_TEXT = 1000
_LONGEST_CONDITION = 10_000
_MOST_FACTS = 1000
_MOST_PARAMETERS = 10_000
_MOST_NUMBERS = 65_536
_MOST_IMAGES = 10_000  # the service's own limit is far below, and says so in its own words
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
    """Bytes from base64; bytes, as forms bring them, pass."""
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
                raise ValueError("a whole number must fit into 64 bits")
        elif not isinstance(value, float) or not math.isfinite(value):
            raise ValueError("every value must be a text, a finite number, a truth value or null")


def check_metadata(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts as they came, if they are flat.

    Raises:
        ValueError: if they are not, or very many.
    """
    if len(facts) > _MOST_FACTS:
        raise ValueError(f"may hold at most {_MOST_FACTS} facts")
    if not all(1 <= len(name) <= _LONGEST_TEXT for name in facts):
        raise ValueError(f"every name must have 1 to {_LONGEST_TEXT} characters")
    _check_values(facts.values())
    return facts


def check_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Values of a condition's names as they came, if they are values or lists of them.

    Raises:
        ValueError: if they are not, or very many.
    """
    lists = [value for value in parameters.values() if isinstance(value, list)]
    if len(parameters) > _MOST_FACTS or any(len(one) > _MOST_FACTS for one in lists):
        raise ValueError(f"may hold at most {_MOST_FACTS} values, and a list as many")
    if sum(map(len, lists)) > _MOST_PARAMETERS:
        raise ValueError(f"may hold at most {_MOST_PARAMETERS} values in all lists together")
    _check_values(value for value in parameters.values() if not isinstance(value, list))
    for one in lists:
        _check_values(one)
    return parameters


Image = Annotated[
    bytes,
    BeforeValidator(_decoded, json_schema_input_type=str),
    Field(min_length=1, description="A JPEG, PNG, WebP, GIF, BMP or TIFF file; for audio galleries a recording."),
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
    Field(
        fail_fast=True, min_length=1, max_length=_MOST_NUMBERS, description="For galleries of vectors that you bring."
    ),
]
Vectors = Annotated[list[Vector], Field(fail_fast=True, min_length=1, max_length=_MOST_IMAGES)]
Label = Annotated[str, Field(min_length=1, max_length=_LONGEST_TEXT)]
Where = Annotated[
    str,
    Field(max_length=_LONGEST_CONDITION, description="A condition such as: price < :most and brand = 'Acme'."),
]
