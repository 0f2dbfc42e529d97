"""The response models, and how they are made from the gallery's values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote

from pydantic import BaseModel, Field

from nearkin.gallery.values import Item, Match, Neighbour, Stats


class ItemAnswer(BaseModel):
    """An item."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    added: str
    thumbnail: str | None = Field(description="Address of a thumbnail.")

    @classmethod
    def of(cls, item: Item) -> Self:
        """An item without its source, which may be a path of the server."""
        return cls(**_shown(item), added=item.added)


class NeighbourAnswer(BaseModel):
    """An item near a query."""

    id: str
    label: str | None
    distance: float
    metadata: dict[str, Any]
    thumbnail: str | None

    @classmethod
    def of(cls, near: Neighbour) -> Self:
        """A neighbour without its source."""
        return cls(**_shown(near.item), distance=near.distance)


class CandidateAnswer(BaseModel):
    """A candidate class."""

    label: str
    probability: float


class PlaceAnswer(BaseModel):
    """A position in the map; both coordinates are roughly between 0 and 1."""

    x: float
    y: float


class ForecastAnswer(BaseModel):
    """How often answers of this gallery are known and unknown, learned by leaving its items and classes out."""

    enrolled_known: float = Field(description="Share of queries of enrolled classes that come back as known.")
    named_known: float = Field(description="The same of those that are named rightly.")
    strangers_known: float = Field(description="Share of queries of other classes that come back as known.")
    enrolled_unknown: float = Field(description="Share of queries of enrolled classes that come back as unknown.")
    strangers_unknown: float = Field(description="Share of queries of other classes that come back as unknown.")


class IdentifyAnswer(BaseModel):
    """What a query is."""

    label: str | None
    probability: float | None = Field(description="Probability of this label; null if unknown.")
    known: bool | None = Field(
        description="Whether it belongs to an enrolled class at all; null if that cannot be told, see forecast."
    )
    reason: str = Field(description="Why something is null.")
    note: str = Field(description="What to know of the answer; empty if nothing.")
    forecast: ForecastAnswer | None = Field(description="Null where there is too little to tell.")
    candidates: list[CandidateAnswer]
    neighbours: list[NeighbourAnswer]
    place: PlaceAnswer | None

    @classmethod
    def of(cls, match: Match, place: tuple[float, float] | None) -> Self:
        """A match, and where it lies in the map."""
        found: dict[str, Any] = {
            "candidates": [CandidateAnswer(**vars(one)) for one in match.candidates],
            "neighbours": [NeighbourAnswer.of(near) for near in match.neighbours],
            "place": None if place is None else PlaceAnswer(x=place[0], y=place[1]),
            "forecast": None if match.forecast is None else ForecastAnswer(**vars(match.forecast)),
        }
        return cls(**{**vars(match), **found})


class SearchAnswer(BaseModel):
    """The items most like a query, nearest first."""

    neighbours: list[NeighbourAnswer]


class VerifyAnswer(BaseModel):
    """Whether two samples are of one class."""

    same: bool | None
    probability: float | None = Field(description="That they are, if the share prior of all pairs is.")
    distance: float
    threshold: float | None
    false_accept_rate: float
    reason: str
    prior: float = Field(description="Share of pairs that are of one class, before these two are looked at.")
    needed: float | None = Field(description="The probability at the threshold.")
    note: str = Field(description="What to know of the answer; empty if nothing.")


class EnrolAnswer(BaseModel):
    """Ids of the new items."""

    ids: list[str]


class AddAnswer(BaseModel):
    """Id of the new item."""

    id: str


class ItemsAnswer(BaseModel):
    """A page of items."""

    items: list[ItemAnswer]
    next: str | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


class PointAnswer(BaseModel):
    """An item in the map."""

    id: str
    label: str | None
    x: float
    y: float


class MapAnswer(BaseModel):
    """The gallery as a two-dimensional map."""

    points: list[PointAnswer]


class SuspectAnswer(BaseModel):
    """An item whose neighbours disagree with its label."""

    item: ItemAnswer
    suggested: str
    probability: float
    own: float


class SuspectsAnswer(BaseModel):
    """Most suspicious first."""

    suspects: list[SuspectAnswer]


class GroupAnswer(BaseModel):
    """A group of near duplicates."""

    items: list[ItemAnswer] = Field(description="The first items of the group.")
    count: int = Field(description="Size of the group.")
    distance: float


class DuplicatesAnswer(BaseModel):
    """Closest first."""

    duplicates: list[GroupAnswer]


class MayAnswer(BaseModel):
    """What the caller is allowed to do."""

    read: bool
    write: bool


class ModelAnswer(BaseModel):
    """The gallery, the model it is tied to, and what is known of both."""

    name: str
    dimension: int
    space: dict[str, Any]
    kind: str
    fingerprint: str | None
    card: dict[str, Any]
    comparison: str | None = Field(description="By which score items are compared, where the model has several.")
    stats: dict[str, Any]
    calibration: dict[str, Any] | None
    reliability: dict[str, Any]
    may: MayAnswer


class StatusAnswer(BaseModel):
    """State of the service."""

    status: str


class ProblemAnswer(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str | None = None


# A path from the root, the home, the folder above or a drive, a share, or a file address; not the slash of a fraction
# or of a web address.
_PATH = re.compile(
    r"""
    (?: file:/*
      | (?<![\w.~/\\:]) (?: ~\w* | \.{1,2} )? /+
      | (?<=:) / (?!/)
      | (?<![\w.~/\\]) (?: [A-Za-z]: [\\/] | \\\\ | (?: ~\w* | \.{1,2} ) \\ )
    )
    [^\s'",;<>()\[\]{}|]+
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MOST_CLASSES = 1000


def _shown(item: Item) -> dict[str, Any]:
    thumbnail = f"/v1/items/{quote(item.id, safe='')}/thumbnail" if item.thumbnail else None
    return {"id": item.id, "label": item.label, "metadata": item.metadata, "thumbnail": thumbnail}


def stats_answer(stats: Stats) -> dict[str, Any]:
    """Statistics of the gallery, with at most 1,000 classes, the largest first."""
    plainly = {name: getattr(stats, name) for name in ("items", "unlabelled", "generation", "index", "size")}
    classes = dict(list(stats.classes.items())[:_MOST_CLASSES])
    return {**plainly, "classes": classes, "class_count": len(stats.classes), "notes": plain(stats.notes)}


def plain(value: Any) -> Any:
    """A document in plain JSON types: non-finite numbers become null, and paths are cut to their last name."""
    if isinstance(value, Mapping):
        return {_pathless(str(key)): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, str):
        return _pathless(value)
    if value is None or isinstance(value, bool | int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return plain(str(value))
    return number if math.isfinite(number) else None


def _pathless(text: str) -> str:
    """A text whose paths are cut to their last name; a text that begins with a path counts as one path."""
    if _PATH.match(text):
        return _last_name(text)
    return _PATH.sub(lambda found: _last_name(found[0]), text)


def _last_name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
