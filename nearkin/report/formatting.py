"""How numbers and names are written, the same on a page, in a picture and on a terminal."""

from __future__ import annotations

import math

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
