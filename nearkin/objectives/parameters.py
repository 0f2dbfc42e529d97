"""Parameters of losses, miners and regularisers: the keyword-only arguments of their factories."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from nearkin import parameters
from nearkin.errors import RecipeError
from nearkin.parameters import Count, NonNegative, Positive, Real

__all__ = [
    "AcuteDegrees",
    "Count",
    "LayerSize",
    "NonNegative",
    "Portion",
    "Positive",
    "Real",
    "check_parameters",
    "parameters_of",
]

AcuteDegrees = Annotated[float, Field(gt=0, lt=90)]
Portion = Annotated[float, Field(ge=0, lt=1)]
"""Of a whole that something must be left of."""
LayerSize = Annotated[int, Field(ge=1, le=65_536)]
"""Of a hidden layer: a larger one is a slip, and would only be told by the memory running out."""


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
    names = parameters_of(factory)
    return parameters.check_parameters(factory, given, names=names, owner=owner, key=key, error=RecipeError)
