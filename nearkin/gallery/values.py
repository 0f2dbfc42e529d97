"""What a gallery holds and what it answers: plain values that know no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nearkin._moved import renamed

Scalar = str | int | float | bool | None
"""What a metadata value may be."""

Metadata = Mapping[str, Scalar]
"""Facts about an item by name; flat, so that `where` can ask for any of them."""


@dataclass(frozen=True)
class Item:
    """One enrolled item.

    Attributes:
        id: its name in the gallery.
        label: its class; None for an item that can be found but stands for no class.
        metadata: what else is known of it.
        source: the path it was read from; None if it was given as bytes, pixels or a vector.
        added: when it was added, as an ISO time in UTC.
        thumbnail: whether there is a small picture of it.
    """

    id: str
    label: str | None
    metadata: dict[str, Scalar] = field(default_factory=dict)
    source: str | None = None
    added: str = ""
    thumbnail: bool = False


@dataclass(frozen=True)
class Neighbour:
    """An item near a query.

    Attributes:
        item: the item.
        distance: from the query to it, in the gallery's space.
    """

    item: Item
    distance: float


@dataclass(frozen=True)
class LikelyClass:
    """A class that a query may be of, and how probable it is among the enrolled ones."""

    label: str
    probability: float


@dataclass(frozen=True)
class Forecast:
    """What a gallery expects of its answers, from leaving its own items and classes out; classes count alike.

    Attributes:
        enrolled_known: of queries of enrolled classes, the share that will come back as known.
        named_known: the same of those that are named rightly.
        strangers_known: of queries of classes that are not enrolled, the share that will come back as known all the
            same.
        enrolled_unknown: of queries of enrolled classes, the share that will come back as unknown.
        strangers_unknown: the same of queries of classes that are not enrolled.
    """

    enrolled_known: float
    named_known: float
    strangers_known: float
    enrolled_unknown: float
    strangers_unknown: float


@dataclass(frozen=True)
class Match:
    """What a query is.

    Attributes:
        label: the likeliest class, also where the query counts as unknown; None in a gallery without labelled items.
        probability: that it is of this class, given that it is of an enrolled one; None if that cannot be said.
        known: whether it counts as of an enrolled class at all; None if that cannot be told: see `forecast`.
        neighbours: the nearest items, nearest first.
        candidates: the likeliest classes, likeliest first; empty without probabilities.
        reason: why probability or known is None; empty if neither is.
        forecast: how often answers of this gallery are known and unknown, of queries of enrolled classes and of others;
            None where there is too little to tell.
        note: what a reader must know of the answer, such as that the probability is too high; empty if nothing.
    """

    label: str | None
    probability: float | None
    known: bool | None
    neighbours: tuple[Neighbour, ...] = ()
    candidates: tuple[LikelyClass, ...] = ()
    reason: str = ""
    forecast: Forecast | None = None
    note: str = ""


@dataclass(frozen=True)
class Verification:
    """Whether two samples are of one class.

    Attributes:
        same: whether they are nearer than the threshold; None if no threshold can be given.
        probability: that they are, if the share `prior` of all pairs is; None if that cannot be said.
        distance: between the two.
        threshold: the largest distance that counts as the same, at the rate asked for.
        false_accept_rate: the share of pairs of different classes that this threshold takes for the same.
        reason: why something is None; empty if nothing is.
        prior: the share of pairs that are of one class, before anything is known of these two.
        needed: the probability at the threshold: with `same`, no less than this; None without a threshold.
        note: what a reader must know of the answer; empty if nothing.
    """

    same: bool | None
    probability: float | None
    distance: float
    threshold: float | None
    false_accept_rate: float
    reason: str = ""
    prior: float = 0.5
    needed: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Duplicates:
    """Items that are almost the same.

    Attributes:
        items: two or more, in the order they were added.
        distance: the largest distance at which one of them was joined to the others.
    """

    items: tuple[Item, ...]
    distance: float


@dataclass(frozen=True)
class Suspect:
    """An item whose neighbourhood disagrees with its label.

    Attributes:
        item: the item, with the label it has.
        suggested: the label its neighbours speak for.
        probability: of the suggested label, the item itself left out.
        own: the probability of the label it has.
    """

    item: Item
    suggested: str
    probability: float
    own: float


@dataclass(frozen=True)
class MapPoint:
    """An item's place in the plane, both coordinates between 0 and 1."""

    id: str
    label: str | None
    x: float
    y: float


@dataclass(frozen=True)
class Settings:
    """What a gallery is tied to; it never changes but by `rebuild`.

    Attributes:
        name: what made the vectors: a model's name, or what the user calls theirs.
        dimension: size of a vector.
        space: how vectors are compared, as `Space.to_dict` gives it.
        dtype: how vectors are stored: "float32", "float16" or "int8".
        fingerprint: of the model that made the vectors; None for vectors the user brings.
        kind: what the model eats, "image" or "audio"; "vector" for vectors the user brings.
        model: name of the model file beside the store, if it is kept there.
    """

    name: str
    dimension: int
    space: dict[str, Any]
    dtype: str = "float32"
    fingerprint: str | None = None
    kind: str = "vector"
    model: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {part: getattr(self, part) for part in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Settings:
        """The inverse of `to_dict`; keys of a newer version are left alone."""
        return cls(**{part: plain[part] for part in cls.__dataclass_fields__ if part in plain})


@dataclass(frozen=True)
class Stats:
    """What is in a gallery.

    Attributes:
        settings: what it is tied to.
        items: how many items it has.
        unlabelled: how many of them have no label.
        classes: the number of items of each label, largest class first.
        generation: how many writes there were.
        index: how it is searched: "exact", "hnsw" or "remote".
        size: bytes on disk; None where that is not known.
        calibration: what was learned of the gallery itself, as plain values; None if nothing was yet.
        notes: what a reader must know.
        layout: the index it was made with, its parameters and partitions, in words.
    """

    settings: Settings
    items: int
    unlabelled: int
    classes: dict[str, int]
    generation: int
    index: str
    size: int | None
    calibration: dict[str, Any] | None
    notes: Sequence[str] = ()
    layout: str = ""


__getattr__ = renamed(__name__, Candidate="LikelyClass")
