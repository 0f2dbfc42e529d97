"""Checks of numbers that users pass: positive, whole, between two bounds; and fits that leave nothing half-fitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeGuard

import numpy as np

from nearkin.errors import DataError


def check_positive(value: float | None, name: str) -> None:
    """Refuse a fixed parameter that is not a positive number that float32 can work with; None is fitted."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 1e-30 < value < 1e30:
        raise DataError(f"`{name}` must be a positive number (1e-30 to 1e30), or None to fit it, not {value!r}.")


def check_between(value: Any, name: str) -> None:
    """Refuse a share that is not a number between 0 and 1, both excluded."""
    if not is_real(value) or not 0 < value < 1:
        raise DataError(f"`{name}` must lie between 0 and 1, both excluded, not {value!r}.")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number, Python's or NumPy's; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_whole(value: Any, name: str, least: int) -> None:
    """Refuse what is not a whole number from `least` on."""
    if not is_whole(value) or value < least:
        raise DataError(f"`{name}` must be a whole number from {least} on, not {value!r}.")


def check_range(value: Any, name: str, least: int, most: int) -> None:
    """Refuse what is not a whole number from `least` to `most`."""
    if not is_whole(value) or not least <= value <= most:
        raise DataError(f"`{name}` must be a whole number from {least:,} to {most:,}, not {value!r}.")


def is_real(value: Any) -> TypeGuard[float]:
    """Whether a value is a real number, NaN and infinity included; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


@contextmanager
def all_or_nothing(fitting: object) -> Iterator[None]:
    """If the block fails, the attributes of the object are what they were before it."""
    before = dict(vars(fitting))
    try:
        yield
    except BaseException:
        vars(fitting).clear()
        vars(fitting).update(before)
        raise
