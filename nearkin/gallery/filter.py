"""What a condition on items is made of; `matches` says what each part means, and every store is held to it.

Logic has two values: a part is true or false of an item, and `not` turns one into the other. A key that is missing is
null, and of null every comparison is false. Text, numbers and truth values are three kinds that are never equal and
never in order; an integer and a float are both numbers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nearkin.gallery.values import Item, Scalar

Operator = Literal["=", "!=", "<", "<=", ">", ">="]

OWN_NAMES = ("label", "id", "source", "added")
"""Names that mean an item's own columns, all of them text."""


def kind_of_value(value: Scalar) -> str:
    """The kind of a value: "text", "number", "bool" or "null"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


@dataclass(frozen=True)
class Name:
    """What is asked for: a key of the metadata, or one of `OWN_NAMES`.

    Attributes:
        key: the key or the name.
        own: whether it is one of the item's own columns.
    """

    key: str
    own: bool = False

    def value(self, item: Item) -> Scalar:
        """What an item has there; None if nothing."""
        found: Scalar = getattr(item, self.key) if self.own else item.metadata.get(self.key)
        return found


class Condition(ABC):
    """Something that is true or false of an item."""

    @abstractmethod
    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""


@dataclass(frozen=True)
class Compare(Condition):
    """`name = value` and the like; `!=` is true of every value but an equal one, and false of null."""

    name: Name
    operator: Operator
    value: str | int | float | bool

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        found = self.name.value(item)
        if found is None:
            return False
        same = kind_of_value(found) == kind_of_value(self.value)
        if self.operator == "!=":
            return not same or found != self.value
        return same and _holds(found, self.operator, self.value)


@dataclass(frozen=True)
class OneOf(Condition):
    """`name in (values)`: equal to one of them."""

    name: Name
    values: tuple[str | int | float | bool, ...]

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        found = self.name.value(item)
        return (kind_of_value(found), found) in self._known

    @cached_property
    def _known(self) -> frozenset[tuple[str, Scalar]]:
        return frozenset((kind_of_value(value), value) for value in self.values)


@dataclass(frozen=True)
class Like(Condition):
    r"""`name like pattern`: `%` is any run of characters, `_` any one, `\` makes the next one plain.

    The letters A to Z match in either case; other letters match only themselves.
    """

    name: Name
    pattern: str

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        found = self.name.value(item)
        return isinstance(found, str) and self._expression.fullmatch(found) is not None

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        pieces = [""]
        for part in like_parts(self.pattern):
            if part == "%":
                pieces.append("")
            else:
                pieces[-1] += "." if part == "_" else re.escape(part[-1])
        # Each inner piece may be taken where it first fits, for good: without this, many % would take forever.
        inner = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1])
        last = f".*{pieces[-1]}" if len(pieces) > 1 else ""
        return re.compile(pieces[0] + inner + last, re.IGNORECASE | re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class IsNull(Condition):
    """`name is null`: there is no such key, or its value is null."""

    name: Name

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        return self.name.value(item) is None


@dataclass(frozen=True)
class Not(Condition):
    """True where its part is false."""

    part: Condition

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        return not self.part.matches(item)


@dataclass(frozen=True)
class AllOf(Condition):
    """`a and b and …`"""

    parts: tuple[Condition, ...]

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        return all(part.matches(item) for part in self.parts)


@dataclass(frozen=True)
class AnyOf(Condition):
    """`a or b or …`"""

    parts: tuple[Condition, ...]

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        return any(part.matches(item) for part in self.parts)


def like_parts(pattern: str) -> list[str]:
    r"""A pattern in parts: "%", "_", and plain characters as `\` and the character."""
    parts = []
    for part in re.findall(r"\\?.", pattern, re.DOTALL):
        parts.append(part if part in ("%", "_") or len(part) == 2 else f"\\{part}")
    return parts


def _holds(found: Scalar, operator: str, value: Scalar) -> bool:
    """A comparison of two values of one kind."""
    if operator == "=":
        return found == value
    below, equal = found < value, found == value  # type: ignore[operator]
    return {"<": below, "<=": below or equal, ">": not below and not equal, ">=": not below}[operator]
