"""Conditions on items, written as text: `colour = 'red' and (size > 3 or label in :labels)`.

The text is cut into tokens and parsed into nodes; no part of it ever reaches a database as anything but a bound value.
`Condition.matches` says what each node means, and the compiler in each store's folder is held to it.

Logic has two values: a part is true or false of an item, and `not` turns one into the other. A key that is missing is
null, and of null every comparison is false. Text, numbers and truth values are three kinds that are never equal and
never in order; an integer and a float are both numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.gallery.checks import is_text, scalar
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


class Condition:
    """Something that is true or false of an item."""

    def matches(self, item: Item) -> bool:
        """Whether it is true of an item."""
        match self:
            case Not(part):
                return not part.matches(item)
            case AllOf(parts):
                return all(part.matches(item) for part in parts)
            case AnyOf(parts):
                return any(part.matches(item) for part in parts)
            case IsNull(name):
                return name.value(item) is None
            case Like(name):
                found = name.value(item)
                return isinstance(found, str) and self.expression.fullmatch(found) is not None
            case OneOf(name):
                found = name.value(item)
                return (kind_of_value(found), found) in self.known
            case Compare(name, operator, value):
                return _holds(name.value(item), operator, value)
        raise TypeError(f"{type(self).__name__} is no part of a condition.")


@dataclass(frozen=True)
class Compare(Condition):
    """`name = value` and the like; `!=` is true of every value but an equal one, and false of null."""

    name: Name
    operator: Operator
    value: str | int | float | bool


@dataclass(frozen=True)
class OneOf(Condition):
    """`name in (values)`: equal to one of them."""

    name: Name
    values: tuple[str | int | float | bool, ...]

    @cached_property
    def known(self) -> frozenset[tuple[str, Scalar]]:
        """The values with their kinds."""
        return frozenset((kind_of_value(value), value) for value in self.values)


@dataclass(frozen=True)
class Like(Condition):
    r"""`name like pattern`: `%` is any run of characters, `_` any one, `\` makes the next one plain.

    The letters A to Z match in either case; other letters match only themselves.
    """

    name: Name
    pattern: str

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The pattern as a regular expression."""
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


@dataclass(frozen=True)
class Not(Condition):
    """True where its part is false."""

    part: Condition


@dataclass(frozen=True)
class AllOf(Condition):
    """`a and b and …`"""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf(Condition):
    """`a or b or …`"""

    parts: tuple[Condition, ...]


def like_parts(pattern: str) -> list[str]:
    r"""A pattern in parts: "%", "_", and plain characters as `\` and the character."""
    parts = []
    for part in re.findall(r"\\?.", pattern, re.DOTALL):
        parts.append(part if part in ("%", "_") or len(part) == 2 else f"\\{part}")
    return parts


def _holds(found: Scalar, operator: str, value: Scalar) -> bool:
    if found is None or kind_of_value(found) != kind_of_value(value):
        return found is not None and operator == "!="
    if operator in ("=", "!="):
        return (found == value) == (operator == "=")
    below, equal = found < value, found == value  # type: ignore[operator]
    return {"<": below, "<=": below or equal, ">": not below and not equal, ">=": not below}[operator]


_WORDS = frozenset({"and", "or", "not", "in", "like", "is", "null", "true", "false"})

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
      | (?P<parameter>:[^\W\d]\w*)
      | (?P<name>[^\W\d]\w*)
      | (?P<sign><=|>=|!=|[=<>(),.])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_HINTS = {
    "==": "write = for equal",
    "<>": "write != for not equal",
    "'": "a text must end with '",
    '"': 'a name must end with "',
    ":": "a parameter is written :name",
}


@dataclass(frozen=True)
class Token:
    """One word.

    Attributes:
        kind: "text", "quoted" (a name in double quotes), "number", "parameter", "name", "word", "sign" or "end".
        value: what it says: quotes taken off, keywords in small letters.
        place: its first character, counted from 1.
    """

    kind: str
    value: str
    place: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.value)


def tokens(text: str) -> Iterator[Token]:
    """Cut a condition into words; the last one is of the kind "end"."""
    position = 0
    while True:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        kind = match.lastgroup or "end"
        value, start = match.group(kind), match.start(kind)
        if kind in ("text", "quoted"):
            value = value[1:-1].replace(2 * value[0], value[0])
        elif kind == "name" and value.lower() in _WORDS:
            kind, value = "word", value.lower()
        elif kind == "parameter":
            value = value[1:]
        yield Token(kind, value, start + 1)
        if kind == "end":
            return
        if text[start : start + 2] in _HINTS:
            raise _unreadable(text, start)
        position = match.end()


def _unreadable(text: str, position: int) -> DataError:
    start = position + len(text[position:]) - len(text[position:].lstrip())
    piece = text[start : start + 2]
    hint = _HINTS.get(piece) or _HINTS.get(piece[:1]) or "put a name with such a character in double quotes"
    return DataError(f"The condition cannot be read at character {start + 1} ({text[start : start + 20]!r}): {hint}.")


MAX_CHARACTERS = 10_000
MAX_DEPTH = 50
MAX_TERMS = 1_000
MAX_LISTED = 10_000
MAX_TEXT = 65_536
MAX_PATTERN = 1_000

_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
_Value = str | int | float | bool


def parse(text: str, parameters: Mapping[str, Any] | None = None) -> Condition:
    """Read a condition.

    Args:
        text: comparisons `name op value` with `= != < <= > >=`, `name in (v, …)`, `name like 'a%'`, `name is null`,
            `not` before in, like and null, joined by `and`, `or`, `not` and parentheses. A name is a key of the
            metadata, in double quotes unless it is a plain word; `label`, `id`, `source` and `added` are the item's
            own, and `metadata.label` is the key of that name. A value is 'text', a number, `true`, `false`
            or a `:parameter`.
        parameters: what the `:parameters` stand for; a list only after `in`.

    Raises:
        DataError: the text cannot be read, and where; or a parameter is missing, unused or of no use.
    """
    if not isinstance(text, str):
        raise DataError(f"A condition must be text, not {type(text).__name__}.")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise DataError(f"Parameters are given as a mapping of names to values, not as a {type(parameters).__name__}.")
    if len(text) > MAX_CHARACTERS:
        raise DataError(f"The condition has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed.")
    parser = _Parser(text, dict(parameters or {}))
    found = parser.any()
    if parser.token.kind != "end":
        raise parser.failure("expected `and`, `or` or the end")
    if parser.unused:
        raise DataError(f"The parameter '{min(parser.unused, key=str)}' is not used in the condition: remove it.")
    return found


def condition(
    where: str | Mapping[str, Scalar] | Condition | None, parameters: Mapping[str, Any] | None = None
) -> Condition | None:
    """A condition from any of the ways to give one: text, or a mapping whose entries must all be equal.

    In a mapping None asks for null, and a key is a name as in `parse`, without quotes.
    """
    if isinstance(where, str):
        return parse(where, parameters)
    if parameters:
        raise DataError("Parameters go with a condition that is written as text: none was given.")
    if where is None or isinstance(where, Condition):
        return where
    if not isinstance(where, Mapping):
        raise DataError(f"A condition must be text or a mapping, not {type(where).__name__}.")
    if not where or len(where) > MAX_TERMS:
        raise DataError(f"The condition has {len(where):,} entries: give 1 to {MAX_TERMS:,}, or None for all items.")
    parts = []
    for key, value in where.items():
        if not isinstance(key, str) or not key or not is_text(key):
            raise DataError(f"A condition has the name {key!r}: a name must be a non-empty text.")
        plain = key.removeprefix("metadata.")
        name = Name(plain if plain in OWN_NAMES else key, own=key in OWN_NAMES)
        try:
            parts.append(IsNull(name) if value is None else Compare(name, "=", _checked(value)))
        except ValueError as error:
            raise DataError(f"The value of '{key}' in the condition {error}.") from error
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _checked(value: Any) -> _Value:
    """A value that can be compared with; a `ValueError` says what is wrong with another."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ValueError(f"holds a text of {len(value):,} characters, more than any item has")
    return cast(_Value, scalar(value))


class _Parser:
    """Recursive descent over the tokens of one condition."""

    def __init__(self, text: str, parameters: dict[str, Any]) -> None:
        self.tokens = tokens(text)
        self.token = next(self.tokens)
        self.parameters = parameters
        self.unused = set(parameters)
        self.depth = 0
        self.terms = 0
        self.listed = 0

    def any(self) -> Condition:
        return self.joined("or", self.all, AnyOf)

    def all(self) -> Condition:
        return self.joined("and", self.part, AllOf)

    def joined(self, word: str, part: Callable[[], Condition], join: type[AllOf | AnyOf]) -> Condition:
        parts = [part()]
        while self.took("word", word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else join(tuple(parts))

    def part(self) -> Condition:
        """A comparison, or a whole condition in parentheses or after `not`."""
        if (self.token.kind, self.token.value) not in (("word", "not"), ("sign", "(")):
            return self.comparison()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.failure(f"at most {MAX_DEPTH} levels of parentheses and `not` are allowed")
        if self.took("word", "not"):
            found: Condition = Not(self.part())
        else:
            self.take()
            found = self.any()
            self.expect("sign", ")")
        self.depth -= 1
        return found

    def comparison(self) -> Condition:
        self.terms += 1
        if self.terms > MAX_TERMS:
            raise self.failure(f"at most {MAX_TERMS:,} comparisons are allowed")
        name = self.name()
        if self.took("word", "is"):
            negated = self.took("word", "not")
            self.expect("word", "null")
            return Not(IsNull(name)) if negated else IsNull(name)
        if self.took("word", "not"):
            # `not in` and `not like`, as `!=`, are false of an item that has no such value.
            return AllOf((Not(IsNull(name)), Not(self.listed_or_like(name))))
        if self.token.kind == "word":
            return self.listed_or_like(name)
        if self.token.kind != "sign" or self.token.value not in _OPERATORS:
            raise self.failure("expected one of = != < <= > >= in like is")
        operator, token = cast(Operator, self.take().value), self.token
        value = self.value()
        if isinstance(value, bool) and operator not in ("=", "!="):
            raise self.failure("true and false can be compared with = and != only", token)
        return Compare(name, operator, value)

    def listed_or_like(self, name: Name) -> Condition:
        if self.took("word", "like"):
            token, pattern = self.token, self.value()
            if not isinstance(pattern, str):
                raise self.failure("`like` needs a text such as 'a%'", token)
            if len(pattern) > MAX_PATTERN:
                raise self.failure(f"a pattern may have at most {MAX_PATTERN:,} characters", token)
            if pattern.replace("\\\\", "").replace("\\%", "").replace("\\_", "").count("\\"):
                raise self.failure(r"in a pattern \ must be followed by %, _ or another \ ", token)
            return Like(name, pattern)
        if self.took("word", "in"):
            return OneOf(name, self.values())
        raise self.failure("expected `in` or `like`")

    def name(self) -> Name:
        token = self.take()
        if token.kind not in ("name", "quoted"):
            raise self.failure("expected a name (a key of the metadata, label, id, source or added)", token)
        if (token.kind, token.value) == ("name", "metadata") and self.took("sign", "."):
            key = self.take()
            if key.kind not in ("name", "quoted", "word"):
                raise self.failure("expected a key of the metadata after the dot", key)
            return Name(self.key(key))
        if self.token.value == "." and self.token.kind == "sign":
            raise self.failure("a name with a dot must be in double quotes")
        return Name(self.key(token), own=token.value in OWN_NAMES)

    def key(self, token: Token) -> str:
        if not token.value or not is_text(token.value):
            raise self.failure("a name must not be empty and hold no NUL or half a character", token)
        return token.value

    def value(self) -> _Value:
        token = self.take()
        if token.kind == "parameter":
            return self.checked(self.bound(token), token)
        if token.kind == "text":
            return self.checked(token.value, token)
        if token.kind == "number":
            digits = token.value.lstrip("+-")
            if not digits.isdecimal():
                return self.checked(float(token.value), token)
            # A whole number stays whole, so that large ones are compared exactly.
            return self.checked(int(token.value) if len(digits) < 100 else math.inf, token)
        if token.kind == "word" and token.value in ("true", "false"):
            return token.value == "true"
        if token.kind in ("quoted", "name"):
            raise self.failure("expected a value; a text is written in single quotes", token)
        if token.value == "null":
            raise self.failure("nothing is equal to null: write `is null` or `is not null`", token)
        raise self.failure("expected a value: 'text', a number, true, false or a :parameter", token)

    def values(self) -> tuple[_Value, ...]:
        """What comes after `in`: values in parentheses, or a parameter that holds a list."""
        token = self.token
        if token.kind == "parameter":
            self.take()
            given = self.bound(token)
            given = given.tolist() if isinstance(given, np.ndarray) else given
            if isinstance(given, str) or not isinstance(given, Sequence | set | frozenset):
                raise self.failure(f"the parameter '{token.value}' must be a list after `in`", token)
            found = [self.checked(value, token) for value in given]
        else:
            self.expect("sign", "(")
            found = [self.value()]
            while self.took("sign", ","):
                found.append(self.value())
            self.expect("sign", ")")
        self.listed += len(found)
        if self.listed > MAX_LISTED:
            raise self.failure(f"at most {MAX_LISTED:,} values may be listed", token)
        return tuple(found)

    def bound(self, token: Token) -> Any:
        if token.value not in self.parameters:
            raise DataError(
                f"The condition has a parameter ':{token.value}' at character {token.place} that was not given."
                f"{suggestion(token.value, map(str, self.parameters))}"
            )
        self.unused.discard(token.value)
        return self.parameters[token.value]

    def checked(self, value: Any, token: Token) -> _Value:
        if value is None:
            raise self.failure("nothing is equal to null: write `is null` or `is not null`", token)
        if isinstance(value, list | tuple | set | frozenset | np.ndarray):
            raise self.failure("a list can be given only after `in`", token)
        try:
            return _checked(value)
        except ValueError as error:
            raise DataError(f"The value at character {token.place} of the condition {error}.") from error

    def take(self) -> Token:
        token = self.token
        if token.kind != "end":
            self.token = next(self.tokens)
        return token

    def took(self, kind: str, value: str) -> bool:
        """Take a token if it is this one."""
        if (self.token.kind, self.token.value) != (kind, value):
            return False
        self.take()
        return True

    def expect(self, kind: str, value: str) -> None:
        if not self.took(kind, value):
            raise self.failure(f"expected {value!r}")

    def failure(self, message: str, token: Token | None = None) -> DataError:
        token = token or self.token
        return DataError(f"The condition cannot be read at character {token.place} ({token}): {message.strip()}.")
