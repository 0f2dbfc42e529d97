"""What a search may change: keys of a recipe, each with a range or a list of values, read from one line.

    training.lr=1e-5..1e-3 log, training.chance_constrained.proxies=1..16, objective.loss=triplet|contrastive

Ends without a point or an exponent are whole numbers; `log` draws evenly between the logarithms of the ends.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from nearkin.errors import RecipeError

_FORM = "write it as 'training.lr=1e-5..1e-3 log' or 'objective.loss=triplet|contrastive'"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WHOLE = re.compile(r"[-+]?\d+")

Value = str | int | float | bool | None
"""What a key of a recipe may be set to here."""


@dataclass(frozen=True)
class NumberRange:
    """A key that takes any number between two ends.

    Args:
        key: of the recipe, such as "training.lr".
        low: the smallest value.
        high: the largest.
        log: whether values are drawn evenly between the logarithms of the ends.
        whole: whether only whole numbers are taken.
    """

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise RecipeError(
                f"The space of {self.key} goes from {self.low:g} to {self.high:g}: give two different numbers, the "
                "smaller one first."
            )
        if self.log and self.low <= 0:
            raise RecipeError(
                f"The space of {self.key} begins at {self.low:g}, which has no logarithm: begin above 0, or drop log."
            )

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values whose recipes are checked before anything is trained."""
        return self.low, self.high


@dataclass(frozen=True)
class ValueList:
    """A key that takes one of some values.

    Args:
        key: of the recipe.
        values: two or more.
    """

    key: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(set(map(repr, self.values))) < max(2, len(self.values)):
            raise RecipeError(f"The space of {self.key} needs at least two values, each of them once.")

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values whose recipes are checked before anything is trained."""
        return self.values


SearchSpace = tuple[NumberRange | ValueList, ...]
"""The keys of a search."""


def parse_space(text: str) -> SearchSpace:
    """Read a space from one line, with commas between its keys.

    Raises:
        RecipeError: if it is not written as a space is.
    """
    found = tuple(_parse_key(part.strip()) for part in text.split(",") if part.strip())
    if not found:
        raise RecipeError(f"The space of the search is empty: {_FORM}.")
    keys = [one.key for one in found]
    for key in keys:
        if keys.count(key) > 1:
            raise RecipeError(f"The space names {key} twice: name it once.")
    return found


def _parse_key(text: str) -> NumberRange | ValueList:
    key, equals, given = (piece.strip() for piece in text.partition("="))
    if not (key and equals and given):
        raise RecipeError(f"'{text}' is no space of a key: {_FORM}.")
    if "|" in given:
        return ValueList(key, tuple(_value(key, one.strip()) for one in given.split("|")))
    ends, _, scale = given.partition(" ")
    low, dots, high = ends.partition("..")
    if not (dots and _NUMBER.fullmatch(low) and _NUMBER.fullmatch(high)) or scale.strip() not in ("", "log"):
        raise RecipeError(f"'{text}' is no space of a key: {_FORM}.")
    whole = bool(_WHOLE.fullmatch(low) and _WHOLE.fullmatch(high))
    first, last = (int(low), int(high)) if whole else (float(low), float(high))
    return NumberRange(key, first, last, log=bool(scale.strip()), whole=whole)


def _value(key: str, text: str) -> Value:
    if _NUMBER.fullmatch(text):
        return int(text) if _WHOLE.fullmatch(text) else float(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if not isinstance(value, str | int | float | bool | None) or text == "":
        raise RecipeError(f"The space of {key} has the value '{text}': give names, numbers, true, false or null.")
    return value


def all_values(space: SearchSpace) -> Iterator[dict[str, Value]]:
    """Every combination of the values, for a search of a grid.

    Raises:
        RecipeError: if a key has a range, which no list exhausts.
    """
    for one in space:
        if isinstance(one, NumberRange):
            raise RecipeError(
                f"A grid needs lists of values, and {one.key} has a range: write its values, as in {one.key}="
                f"{one.low:g}|{one.high:g}."
            )
    lists = [one.values for one in space if isinstance(one, ValueList)]
    for values in itertools.product(*lists):
        yield {one.key: value for one, value in zip(space, values, strict=True)}


def assignments(values: Mapping[str, Value]) -> list[str]:
    """Values as the overrides that `load_recipe` takes."""
    return [f"{key}={_text(value)}" for key, value in values.items()]


def _text(value: Value) -> str:
    if isinstance(value, float):
        return repr(value)
    text: str = yaml.safe_dump(value, default_flow_style=True)
    return text.removesuffix("\n").removesuffix("...").strip()


def as_written(space: SearchSpace) -> dict[str, Any]:
    """The space as JSON can hold it, to be compared with that of a search that is resumed."""
    return {
        one.key: list(one.values)
        if isinstance(one, ValueList)
        else {"low": one.low, "high": one.high, "log": one.log, "whole": one.whole}
        for one in space
    }
