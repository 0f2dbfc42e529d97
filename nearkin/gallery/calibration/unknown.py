"""Known or unknown: how far from the nearest enrolled item a query may lie and still be of an enrolled class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nearkin.confidence.ranks import needed_points
from nearkin.gallery.calibration.left_out import LeftOut, present


@dataclass(frozen=True)
class Horizon:
    """The distance beyond which nothing is known.

    Attributes:
        threshold: a query whose nearest labelled item is no farther counts as known; None if that was not learned.
        items: how many left-out items it was learned from, all of classes with two items or more.
        rejected: the share of queries of classes that are not enrolled that it is forecast to reject, by leaving the
            whole class of each item out, classes counting alike; None with a single class. Strangers are supposed to
            lie among the classes as these lie among each other: stranger ones are easier to tell.
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
    """The threshold that accepts the share `accept` of queries of enrolled classes, each class as likely as any other.

    Items with others of their class are left out in turn, and those of one class share one vote, so that a large class
    does not decide for the small ones. Where all classes are of one size, the threshold is the
    `ceil((n + 1) accept)`-th smallest of the n distances to the nearest other item, whichever its class.
    """
    tried = left_out.with_mates()
    there = np.isfinite(tried.distances[:, 0])
    nearest = tried.distances[there, 0]
    reason = too_few(len(nearest), accept)
    if reason:
        return Horizon(items=len(nearest), reason=reason)
    threshold = _quantile(nearest, _votes(tried.own[there]), accept)
    return Horizon(threshold, len(nearest), _forecast(left_out, threshold))


def _votes(own: np.ndarray) -> np.ndarray:
    """What each item (n,) counts, so that every class counts 1."""
    return 1.0 / np.bincount(own)[own]


def _quantile(values: np.ndarray, votes: np.ndarray, share: float) -> float:
    """The least of the values (n,) that as much of the votes (n,) stay below, one more of the usual weight among them.

    With equal votes it is the `covering_rank`-th smallest.
    """
    order = np.argsort(values, kind="stable")
    total = votes.sum()
    usual = np.square(votes).sum() / total
    # 0.55 * 20 is a little more than 11, which must not ask for 12.
    enough = np.flatnonzero(np.cumsum(votes[order]) / usual >= round(share * (total / usual + 1), 9) - 1e-9)
    return float(values[order[enough[0] if len(enough) else -1]])


def _forecast(left_out: LeftOut, threshold: float) -> float | None:
    """The share of the items that lie beyond the threshold when their whole class is left out, classes counting alike.

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
    return float(np.average(reach[some] > threshold, weights=_votes(left_out.own[some])))
