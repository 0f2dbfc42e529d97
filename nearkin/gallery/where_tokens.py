"""The words of a condition: text cut into tokens, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nearkin.errors import DataError

WORDS = frozenset({"and", "or", "not", "in", "like", "is", "null", "true", "false"})

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
        value, place = match.group(kind), match.start(kind) + 1
        yield _token(kind, value, place)
        if kind == "end":
            return
        if text[match.start(kind) : match.start(kind) + 2] in _HINTS:
            raise _unreadable(text, match.start(kind))
        position = match.end()


def number(text: str) -> int | float:
    """A number as written; a whole one stays whole, so that large ones are compared exactly."""
    digits = text.lstrip("+-")
    if digits.isdecimal():
        return int(text) if len(digits) < 100 else float("inf")
    return float(text)


def _token(kind: str, value: str, place: int) -> Token:
    if kind in ("text", "quoted"):
        mark = value[0]
        return Token(kind, value[1:-1].replace(2 * mark, mark), place)
    if kind == "name" and value.lower() in WORDS:
        return Token("word", value.lower(), place)
    return Token(kind, value[1:] if kind == "parameter" else value, place)


def _unreadable(text: str, position: int) -> DataError:
    start = position + len(text[position:]) - len(text[position:].lstrip())
    piece = text[start : start + 2]
    hint = _HINTS.get(piece) or _HINTS.get(piece[:1]) or "put a name with such a character in double quotes"
    return DataError(f"The condition cannot be read at character {start + 1} ({text[start : start + 20]!r}): {hint}.")
