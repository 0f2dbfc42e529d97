"""Checks that estimators, rejectors and sets share, and fits that leave no half-fitted object behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

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
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise DataError(f"`{name}` must lie between 0 and 1, both excluded, not {value!r}.")


def check_whole(value: Any, name: str, least: int) -> None:
    """Refuse what is not a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise DataError(f"`{name}` must be a whole number from {least} on, not {value!r}.")


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
