"""What a report shows, as plain values that are checked, and how numbers and names are formatted everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.errors import DataError

MISSING = "–"
LOWER = "↓"  # beside the name of a metric of which less is better


def value_text(value: float, percent: bool) -> str:
    """A metric as text: one decimal of percent for shares, otherwise up to four digits; not finite is an en dash."""
    if not math.isfinite(value):
        return MISSING
    if percent:
        return f"{_decimals(100 * value, 1)} %"
    return _decimals(value, 3) if abs(value) < 100 else f"{value:,.0f}"


def interval_text(low: float, high: float, percent: bool) -> str:
    """An interval as text, `13.1 to 14.5 %`; a bound that is not finite makes the whole an en dash."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    first = value_text(low, percent).removesuffix(" %")
    return f"{first} to {value_text(high, percent)}"


def change_text(value: float, baseline: float | None, percent: bool) -> str:
    """How far a value lies from its baseline, always with a sign; percent means percentage points."""
    if baseline is None or not (math.isfinite(value) and math.isfinite(baseline)):
        return MISSING
    text = value_text(abs(value - baseline), percent).removesuffix(" %")
    if float(text.replace(",", "")) == 0:
        return "±0"
    return f"{'+' if value > baseline else '−'}{text}"


def p_text(p_value: float) -> str:
    """A p-value as text, `0.034` or `0.42`."""
    return f"{p_value:.3f}" if p_value < 0.1 else f"{p_value:.2f}"


def course_text(values: Sequence[float] | np.ndarray, percent: bool = False) -> str:
    """The first and the last of some values as text, `from 0.100 to 0.250`; a single one is `0.100`."""
    first, last = (value_text(float(values[place]), percent) for place in (0, -1))
    return last if len(values) == 1 else f"from {first} to {last}"


def level_text(level: float) -> str:
    """The heading of an interval column, `95 % interval`."""
    return f"{100 * level:g} % interval"


def clean(text: str) -> str:
    """One printable line: file names may hold newlines, control characters or bytes that are not Unicode."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else " " for letter in whole).strip()


def shorten(text: str, limit: int) -> str:
    """A clean line of at most `limit` characters, an ellipsis standing for the rest."""
    line = clean(text)
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _decimals(value: float, digits: int) -> str:
    """Fixed decimals without a negative zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def plain_numbers(values: Any, what: str) -> np.ndarray:
    """Values as float64; masked values become NaN, tensors are detached.

    Raises:
        DataError: if they are not numbers.
    """
    given = values.detach().cpu() if hasattr(values, "detach") else values
    try:
        array = np.ma.asarray(given) if isinstance(given, np.ma.MaskedArray) else np.asarray(given)
    except (TypeError, ValueError):
        array = np.array("ragged")
    if array.dtype.kind not in "biuf":
        raise DataError(f"The {what} must be an array of numbers, but got {shorten(repr(values), 60)}.")
    numbers = array.astype(np.float64)
    return numbers.filled(np.nan) if isinstance(numbers, np.ma.MaskedArray) else numbers


def shaped(values: Any, what: str, *sizes: int | str) -> np.ndarray:
    """Finite numbers of a shape, such as `("m", 3)`, where a letter stands for any size.

    Raises:
        DataError: if they are no numbers, not finite, or of another shape.
    """
    array = plain_numbers(values, what)
    check_shape(array, what, *sizes)
    return array


def check_shape(array: np.ndarray, what: str, *sizes: int | str) -> None:
    """Raise DataError unless an array is finite and of a shape; a letter stands for any size."""
    wanted = tuple(found if isinstance(size, str) else size for size, found in zip(sizes, array.shape, strict=False))
    if len(wanted) < len(sizes) or array.shape != wanted or not np.isfinite(array).all():
        told = f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"
        raise DataError(f"The {what} must be finite and of shape {told}, but got shape {array.shape} or other values.")


def plain_parts(name: str, parts: Sequence[Any], *words: str) -> list[np.ndarray]:
    """The arrays that belong to a name, one for each word that says what it is."""
    if len(parts) != len(words):
        raise DataError(f"'{name}' needs {len(words)} arrays ({', '.join(words)}), but got {len(parts)}.")
    return [plain_numbers(part, f"{word} of '{name}'") for part, word in zip(parts, words, strict=True)]


@dataclass(frozen=True)
class MetricRow:
    """One line of the metric table.

    Args:
        name: the metric, as in the literature: "MAP@R".
        value: its value; NaN is shown as an en dash.
        low: lower end of its interval.
        high: upper end of its interval.
        note: a few words beside it.
        percent: whether the value is a share of 1, shown in percent.
        baseline: the same metric of what this is compared with, if anything.
        lower_is_better: the direction; such a metric is marked with an arrow.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    note: str = ""
    percent: bool = True
    baseline: float | None = None
    lower_is_better: bool = False


@dataclass(frozen=True)
class Figure:
    """A picture with its words; a figure without bytes is left out of the page.

    Args:
        title: heading above the picture.
        caption: how to read it, below the picture.
        png: the picture, twice as many pixels as it shall measure on the page.
        alt: what it shows, for those who cannot see it.
    """

    title: str
    caption: str
    png: bytes
    alt: str


@dataclass(frozen=True)
class TextTable:
    """A table of texts under a heading.

    Args:
        title: the heading.
        headings: the columns.
        rows: for every row its cells, each with its lines of text; the first cell names the row.
        notes: what its reader must know.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Sequence[str]]]
    notes: Sequence[str] = ()


@dataclass
class Report:
    """Everything on the page of one run; empty parts are left out.

    Args:
        title: the name of the run or audit.
        verdict: the one sentence to take away.
        metrics: lines of the metric table.
        sections: pictures, in order.
        recipe_yaml: the resolved recipe.
        notes: what the reader must know: dropped queries, skipped files, where the data came from.
        facts: short pairs: data, classes, items, seconds, versions.
        next_steps: what to try next; `backticks` mark commands.
        baseline_name: heading of the baseline column.
        level: level of the intervals.
    """

    title: str
    verdict: str = ""
    metrics: list[MetricRow] = field(default_factory=list)
    sections: list[Figure] = field(default_factory=list)
    recipe_yaml: str = ""
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    next_steps: list[str] = field(default_factory=list)
    baseline_name: str = "baseline"
    level: float = 0.95
