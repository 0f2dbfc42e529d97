"""Parameters of a recipe, checked against the signature of the factory that takes them.

A factory is `def loss(shape, *, margin: NonNegative = 0.1)`: its keyword-only arguments are the parameters, their
annotations the types and ranges. Nothing about a parameter is written twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from nearkin.errors import RecipeError, suggestion

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
AcuteDegrees = Annotated[float, Field(gt=0, lt=90)]


def parameters_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters a factory declares: its keyword-only arguments."""
    signature = inspect.signature(factory)
    return {name: p for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_parameters(factory: Callable[..., Any], given: Mapping[str, Any], *, owner: str, key: str) -> dict[str, Any]:
    """Return `given` with its values converted to the declared types.

    Args:
        factory: whose signature declares the parameters.
        given: parameters as a recipe gives them.
        owner: who takes them, for messages: "loss 'triplet'".
        key: where the recipe has them, for messages: "objective.parameters".

    Raises:
        RecipeError: a parameter that is not declared, or a value of the wrong type or out of range.
    """
    declared = parameters_of(factory)
    checked = {}
    for name, value in given.items():
        if name not in declared:
            known = suggestion(str(name), declared) or " It has none."
            raise RecipeError(f"The {owner} has no parameter '{name}' ({key}.{name}).{known}")
        checked[name] = _convert(factory, name, value, owner, key)
    return checked


def _convert(factory: Callable[..., Any], name: str, value: Any, owner: str, key: str) -> Any:
    hint = _hints(factory)[name]
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(value, bool) and kind in (int, float):
        raise RecipeError(f"The {owner} needs a number as {key}.{name}, not {str(value).lower()}.")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Input ")
        raise RecipeError(f"The {owner} cannot take {key}.{name}={value!r}: it {message}.") from None


@cache
def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(factory, include_extras=True)
