"""What a threshold is chosen for: each target has its rule, and knows which data cannot support it.

A rule looks at operating points, strictest first, of which each accepts `right` correct and `wrong` wrong items; all
of them are the last. A share of nothing counts as 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from string import ascii_lowercase
from typing import Any

import numpy as np

from nearkin.errors import DataError

_OF_EACH_KIND = 10
_SMALLEST = 1e-9  # rate, or what is missing to a precision of 1, that anybody has data for
_NEEDED_ZEROS = 3.0  # rule of three: no event in 3 / r items shows, at 95 %, a rate below r


class Target(ABC):
    """A rule for choosing an operating point."""

    @property
    @abstractmethod
    def text(self) -> str:
        """How the target is written; `as_target` reads it back."""

    @abstractmethod
    def pick(self, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """The index (...,) of the chosen point, -1 where none will do, of cumulative counts (..., u)."""

    @abstractmethod
    def check(self, right: np.ndarray, wrong: np.ndarray) -> None:
        """Refuse cumulative counts (u,) that cannot support this target, and say which data could.

        Raises:
            DataError: if so.
        """


@dataclass(frozen=True)
class Precision(Target):
    """The lowest threshold, and so the largest coverage, at which at least this share of the accepted is correct.

    It needs `3 / (1 - least)` accepted items, without which not even an unbroken row of correct ones would show the
    precision at 95 %.

    Args:
        least: the precision wanted, above 0 and below 1.
    """

    least: float

    def __post_init__(self) -> None:
        _check_share(self.least, "precision")
        if self.least > 1 - _SMALLEST:
            raise DataError("No amount of data can show a precision of 1: ask for less, such as 0.99.")
        if self.least == 0:
            raise DataError("Every threshold has a precision of at least 0: ask for more, such as 0.99.")

    @property
    def text(self) -> str:
        """Such as `precision=0.99`."""
        return f"precision={float(self.least)!r}"

    def pick(self, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """The last point that is precise enough; between it and the strictest there may be others that are not."""
        return _last(right / np.maximum(right + wrong, 1) >= self.least)

    def check(self, right: np.ndarray, wrong: np.ndarray) -> None:
        """Refuse if no point is precise enough, or the chosen one accepts too few items to tell."""
        place, accepted = int(self.pick(right, wrong)), right + wrong
        needed, items = _three_over(1 - self.least), int(accepted[-1])
        if place >= 0 and accepted[place] >= needed:
            return
        wish = f"A precision of {self.least:.12g} cannot be shown"
        takes = f"it takes {needed:,} accepted items even if none of them is wrong"
        instead = self._instead(right, wrong)
        if place >= 0:
            raise DataError(
                f"{wish} with the {accepted[place]:,} of {items:,} items that a threshold reaching it accepts: "
                f"{takes}, about {_about(items * needed / accepted[place])} scored items like these{instead}."
            )
        if items < needed:
            raise DataError(
                f"{wish} with {items:,} scored items: {takes}, so give at least {needed:,}, and more where some must "
                f"be refused{instead}."
            )
        enough = accepted >= needed
        best = float((right[enough] / accepted[enough]).max())
        raise DataError(
            f"No threshold reaches a precision of {self.least:.12g}: the best of those that accept {needed:,} items or "
            f"more is {_floor(best):.12g}, and more items like these would not change it{instead}."
        )

    @staticmethod
    def _instead(right: np.ndarray, wrong: np.ndarray) -> str:
        accepted = right + wrong
        best = _floor(float(np.minimum(right / accepted, 1 - _NEEDED_ZEROS / accepted).max()))
        return f"; these support a precision of up to {best:.12g}" if best > 0 else ""


@dataclass(frozen=True)
class FalseAcceptRate(Target):
    """The lowest threshold, and so the largest recall, that accepts at most this share of the wrong items.

    It needs `3 / most` wrong items, without which not even accepting none of them would show the rate at 95 %.

    Args:
        most: the false accept rate allowed, above 0 and below 1.
    """

    most: float

    def __post_init__(self) -> None:
        _check_share(self.most, "false accept rate")
        if self.most < _SMALLEST:
            raise DataError("No amount of data can show a false accept rate of 0: ask for more, such as 0.001.")
        if self.most == 1:
            raise DataError("Every threshold has a false accept rate of at most 1: ask for less, such as 0.001.")

    @property
    def text(self) -> str:
        """Such as `far=0.001`."""
        return f"far={float(self.most)!r}"

    def pick(self, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """The last point that accepts few enough of the wrong items."""
        return _last(wrong / np.maximum(wrong[..., -1:], 1) <= self.most)

    def check(self, right: np.ndarray, wrong: np.ndarray) -> None:
        """Refuse if there are too few wrong items to tell, or too many of them share the highest score."""
        needed, total, items = _three_over(self.most), int(wrong[-1]), int(right[-1] + wrong[-1])
        rate = _ceil(max(_NEEDED_ZEROS, float(wrong[0])) / total)
        instead = f"; these support a rate of {rate:.12g} or more" if rate < 1 else ""
        if total < needed:
            raise DataError(
                f"A false accept rate of {self.most:.12g} cannot be shown with {total:,} wrong items: it takes "
                f"{needed:,} even if none of them is accepted, about {_about(items * needed / total)} scored items "
                f"like these{instead}."
            )
        if self.pick(right, wrong) < 0:
            raise DataError(
                f"No threshold has a false accept rate of {self.most:.12g} or less: {wrong[0]:,} of {total:,} wrong "
                f"items share the highest score, and more items like these would not change it{instead}."
            )


@dataclass(frozen=True)
class EqualErrorRate(Target):
    """The point at which the share of wrong items accepted and of correct items refused differ least.

    Where two points differ equally little, the one that accepts more. The interpolated rate of `VerificationResult`
    lies between this point and a neighbour of it. Needs 10 items of each kind.
    """

    @property
    def text(self) -> str:
        """`eer`."""
        return "eer"

    def pick(self, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """The last point with the least difference, compared in whole numbers."""
        difference = wrong * right[..., -1:] - (right[..., -1:] - right) * wrong[..., -1:]
        return _last_best(-np.abs(difference))

    def check(self, right: np.ndarray, wrong: np.ndarray) -> None:
        """Refuse too few items of a kind."""
        _check_both(right, wrong, "An equal error rate")


@dataclass(frozen=True)
class FBeta(Target):
    """The point of the largest F-beta, `(1 + b²) P R / (b² P + R)` with precision P and recall R.

    Where two points are equally good, the one that accepts more. Needs 10 items of each kind.

    Args:
        beta: how much more recall counts than precision; 1 weighs them equally, 0.5 favours precision.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.beta, bool) or not isinstance(self.beta, Real) or not 0 < self.beta < 1e6:
            raise DataError(f"The beta of an F score must be a number above 0, such as 1 or 0.5, not {self.beta!r}.")

    @property
    def text(self) -> str:
        """Such as `f1` or `f0.5`."""
        beta = float(self.beta)
        return f"f{int(beta) if beta.is_integer() else beta!r}"

    def pick(self, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """The last point with the largest right / (b² correct + accepted), which is F-beta but for a factor."""
        weighed = self.beta**2 * right[..., -1:] + right + wrong
        return _last_best(right / np.where(weighed == 0, 1, weighed))

    def check(self, right: np.ndarray, wrong: np.ndarray) -> None:
        """Refuse too few items of a kind."""
        _check_both(right, wrong, f"A best F{self.text[1:]} score")


_NAMED = {"precision": Precision, "far": FalseAcceptRate, "f": FBeta}


def as_target(given: Any) -> Target:
    """A target as it is, or of its text: `precision=0.99`, `far=0.001`, `eer`, `f1`, `f0.5`.

    Raises:
        DataError: if it is none of these.
    """
    if isinstance(given, Target):
        return given
    if not isinstance(given, str):
        raise DataError(f"A target must be written like 'precision=0.99', 'far=0.001', 'eer' or 'f1', not {given!r}.")
    text = given.strip().lower()
    if text == "eer":
        return EqualErrorRate()
    rest = text.lstrip(ascii_lowercase)
    number = rest.strip().removeprefix("=")
    try:
        return _NAMED[text.removesuffix(rest)](float(number))
    except (KeyError, ValueError):
        raise DataError(
            f"Unknown target '{given}': use 'precision=0.99', 'far=0.001', 'eer' or 'f1', with shares such as "
            "0.05 for 5 %."
        ) from None


def _last(met: np.ndarray) -> np.ndarray:
    """The last index (...,) at which `met` (..., u) holds, -1 where it never does."""
    return np.where(met.any(axis=-1), _last_best(met), -1)


def _last_best(values: np.ndarray) -> np.ndarray:
    """The last index (...,) of the largest of values (..., u)."""
    return values.shape[-1] - 1 - np.argmax(values[..., ::-1], axis=-1)


def _check_share(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise DataError(f"The {what} wanted must be a number between 0 and 1, not {value!r}.")


def _check_both(right: np.ndarray, wrong: np.ndarray, what: str) -> None:
    counts = int(right[-1]), int(wrong[-1])
    if min(counts) < _OF_EACH_KIND:
        needed = _about(sum(counts) * _OF_EACH_KIND / min(counts))
        raise DataError(
            f"{what} cannot be told from {counts[0]:,} correct and {counts[1]:,} wrong items: it takes at least "
            f"{_OF_EACH_KIND} of each, about {needed} scored items like these."
        )


def _three_over(rate: float) -> int:
    # 1 - 0.9 is a little less than 0.1, which must not ask for 31 items.
    return math.ceil(round(_NEEDED_ZEROS / rate, 6))


def _about(count: float) -> str:
    """A count, rounded up to two digits so that it suffices."""
    size = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return f"{math.ceil(round(count / size, 6)) * size:,}"


def _floor(share: float) -> float:
    """A share that can be asked for as it is shown; what is missing to 1 has two digits."""
    return 1 - _ceil(1 - share)


def _ceil(rate: float) -> float:
    """A rate that can be asked for as it is shown, in two digits."""
    size = 10.0 ** (1 - math.floor(math.log10(rate)))
    return math.ceil(round(rate * size, 9)) / size
