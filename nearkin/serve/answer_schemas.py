"""What answers look like."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ItemAnswer(BaseModel):
    """An item."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    added: str
    thumbnail: str | None = Field(description="Address of a small picture.")


class NeighbourAnswer(BaseModel):
    """An item near a query."""

    id: str
    label: str | None
    distance: float
    metadata: dict[str, Any]
    thumbnail: str | None


class CandidateAnswer(BaseModel):
    """A class it may be of."""

    label: str
    probability: float


class PlaceAnswer(BaseModel):
    """A place in the map, both coordinates about between 0 and 1."""

    x: float
    y: float


class IdentifyAnswer(BaseModel):
    """What a query is."""

    label: str | None
    probability: float | None = Field(description="That it is of this class; null if that cannot be said.")
    known: bool | None = Field(description="Whether it counts as of an enrolled class at all.")
    reason: str = Field(description="Why something is null.")
    candidates: list[CandidateAnswer]
    neighbours: list[NeighbourAnswer]
    place: PlaceAnswer | None


class SearchAnswer(BaseModel):
    """What is like a query, nearest first."""

    neighbours: list[NeighbourAnswer]


class VerifyAnswer(BaseModel):
    """Whether two samples are of one class."""

    same: bool | None
    probability: float | None
    distance: float
    threshold: float | None
    false_accept_rate: float
    reason: str


class EnrolAnswer(BaseModel):
    """The new items."""

    ids: list[str]


class AddAnswer(BaseModel):
    """The new item."""

    id: str


class ItemsAnswer(BaseModel):
    """A page of items."""

    items: list[ItemAnswer]
    next: str | None = Field(description="The `after` of the next page; null on the last.")


class PointAnswer(BaseModel):
    """An item in the map."""

    id: str
    label: str | None
    x: float
    y: float


class MapAnswer(BaseModel):
    """The gallery in the plane."""

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
    """Items that are almost the same."""

    items: list[ItemAnswer] = Field(description="The first of them.")
    count: int = Field(description="How many there are.")
    distance: float


class DuplicatesAnswer(BaseModel):
    """Closest first."""

    duplicates: list[GroupAnswer]


class MayAnswer(BaseModel):
    """What the caller may do."""

    read: bool
    write: bool


class ModelAnswer(BaseModel):
    """What the gallery is tied to and what is known of it."""

    name: str
    dimension: int
    space: dict[str, Any]
    kind: str
    fingerprint: str | None
    card: dict[str, Any]
    stats: dict[str, Any]
    calibration: dict[str, Any] | None
    reliability: dict[str, Any]
    may: MayAnswer


class StatusAnswer(BaseModel):
    """How the service is."""

    status: str


class ProblemAnswer(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str | None = None
