"""Known or unknown: how far from the nearest enrolled item a query may lie and still be of an enrolled class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nearkin.confidence.ranks import covering_rank, needed_points
from nearkin.gallery.calibration.left_out import LeftOut, present


@dataclass(frozen=True)
class Horizon:
    """The distance beyond which nothing is known.

    Attributes:
        threshold: a query whose nearest labelled item is no farther counts as known; None if that was not learned.
        items: how many left-out items it was learned from, all of classes with two items or more.
        rejected: the share of queries of classes that are not enrolled that it is forecast to reject, by leaving the
            whole class of each item out; None with a single class. Strangers are supposed to lie among the classes as
            these lie among each other: stranger ones are easier to tell.
        reason: why there is no threshold; empty if there is one.
    """

    threshold: float | None = None
    items: int = 0
    rejected: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Horizon:
        """The inverse of `to_dict`; keys of a newer version are left alone."""
        return cls(**{part: plain[part] for part in cls.__dataclass_fields__ if part in plain})


def too_few(items: int, accept: float) -> str:
    """Why so many items with others of their class do not tell known from unknown; empty if they do."""
    needed = needed_points(accept)
    if items >= needed:
        return ""
    return (
        f"To tell known from unknown and accept {accept:.4g} of the known takes {needed:,} items of classes with two "
        f"or more, and the gallery has {items:,}: add more items to the classes."
    )


def fit_horizon(left_out: LeftOut, accept: float) -> Horizon:
    """The threshold that accepts the share `accept` of the items with others of their class, each left out in turn.

    It is the `ceil((n + 1) accept)`-th smallest of their n distances to the nearest other item, whichever its class.
    """
    nearest = left_out.with_mates().distances[:, 0]
    nearest = np.sort(nearest[np.isfinite(nearest)])
    reason = too_few(len(nearest), accept)
    if reason:
        return Horizon(items=len(nearest), reason=reason)
    threshold = float(nearest[covering_rank(len(nearest), accept) - 1])
    return Horizon(threshold, len(nearest), _forecast(left_out, threshold))


def _forecast(left_out: LeftOut, threshold: float) -> float | None:
    """The share of the items that lie beyond the threshold when their whole class is left out.

    Where all neighbours found are of the item's own class, the nearest stranger is at least as far as the last of them:
    such an item counts as rejected only if even that one lies beyond.
    """
    there = present(left_out.distances, left_out.codes)
    other = there & (left_out.codes != left_out.own[:, None])
    some = there.any(axis=1)
    if not other.any():
        return None
    last = np.where(there, left_out.distances, -np.inf).max(axis=1)
    strangers = np.where(other, left_out.distances, np.inf).min(axis=1)
    reach = np.where(np.isfinite(strangers), strangers, last)
    return float((reach[some] > threshold).mean())
