"""Columns of texts as values, so that a price in a CSV file can be compared with a number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from nearkin.gallery.values import Scalar

# As JSON writes them: 007 is an article number, not 7.
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_TRUTHS = {"true": True, "True": True, "false": False, "False": False}


def typed(column: Sequence[str]) -> list[Scalar]:
    """The texts of one column as numbers if all of them are, as truth values if all are, else as they are.

    By column, so that an article number 12 stays a text beside 007. An empty text is no value and becomes None.
    """
    for read in (_TRUTHS.get, _number):
        if (values := _read(column, read)) is not None:
            return values
    return [text or None for text in column]


def _read(column: Sequence[str], read: Callable[[str], Scalar]) -> list[Scalar] | None:
    """Each text read; None as soon as one cannot be."""
    values: list[Scalar] = []
    for text in column:
        value = read(text) if text else None
        if text and value is None:
            return None
        values.append(value)
    return values


def _number(text: str) -> int | float | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    # A whole number of nineteen digits or more would lose some of them.
    return value if math.isfinite(value) and not text.lstrip("-").isdigit() else None
