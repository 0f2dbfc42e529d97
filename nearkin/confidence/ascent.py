"""Finding the top of a smooth curve of one number, given its values and derivatives, in few evaluations."""

from __future__ import annotations

from collections.abc import Callable

from scipy.optimize import brentq, minimize_scalar

Curve = Callable[[float], tuple[float, float]]
"""Value and derivative at a place."""

_TOLERANCE = 1e-3  # of the place
_REACH = 0.3
_NEAR = 0.02
_STEPS = 5
"""How far a top may be from where it is expected, and how to get there."""


def end_of_plateau(curve: Curve, places: list[float], least: float) -> float:
    """The last place of the run of places with at least so large a value that begins with the first."""
    inside = places[0]
    for place in places[1:]:
        if curve(place)[0] < least:
            return float(_bisected(curve, inside, place, least))
        inside = place
    return inside


def _bisected(curve: Curve, inside: float, outside: float, least: float) -> float:
    while abs(outside - inside) > _TOLERANCE:
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if curve(middle)[0] >= least else (inside, middle)
    return inside


def bend_at(curve: Curve, place: float) -> float:
    """The second derivative."""
    return (curve(place + _NEAR)[1] - curve(place - _NEAR)[1]) / (2 * _NEAR)


def secant(curve: Curve, start: float, bend: float) -> tuple[float, float] | None:
    """Where the derivative is zero, and the value, by few steps from near the top; None if they lead away from it."""
    before, place = start, start
    for _ in range(_STEPS):
        value, slope = curve(place)
        if place != before:
            bend = (slope - curve(before)[1]) / (place - before)
        if not bend < 0 or abs(slope / bend) > _REACH:
            return None
        before, place = place, place - slope / bend
        if abs(place - before) < _TOLERANCE:
            return place, value - slope**2 / bend / 2  # that of the parabola, at so small a step
    return None


def climb(curve: Curve, top: float, low: float, high: float) -> tuple[float, float]:
    """The top of the hill that a place lies on, near which it should be, and its value."""
    reach = _REACH
    while True:
        left, right = max(low, top - reach), min(high, top + reach)
        rises, falls = curve(left)[1] > 0, curve(right)[1] < 0
        if (rises or left == low) and (falls or right == high):
            found = top_between(curve, left, right)
            return found, curve(found)[0]
        top += reach if rises else -reach
        reach *= 3


def top_between(curve: Curve, left: float, right: float) -> float:
    """The best place between two."""
    if curve(left)[1] > 0 > curve(right)[1]:
        return float(brentq(lambda place: curve(place)[1], left, right, xtol=_TOLERANCE))
    # Where a curve has corners, as a floor under probabilities makes them, its values decide.
    options = {"bounds": (left, right), "method": "bounded", "options": {"xatol": _TOLERANCE}}
    inside = float(minimize_scalar(lambda place: -curve(place)[0], **options).x)
    return max((left, inside, right), key=lambda place: curve(place)[0])
