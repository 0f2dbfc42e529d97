"""What requests may say, and what answers look like."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

MOST_NEIGHBOURS = 1000
_LONGEST_TEXT = 1000
_LONGEST_CONDITION = 10_000
_MOST_FACTS = 1000
_MOST_NUMBERS = 65_536
_MOST_IMAGES = 10_000  # the service's own limit is far below, and says so in its own words


def _decoded(value: Any) -> Any:
    """Bytes from base64; bytes, as forms bring them, pass."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64 in the standard alphabet") from None


Image = Annotated[
    bytes,
    BeforeValidator(_decoded, json_schema_input_type=str),
    Field(min_length=1, description="A JPEG, PNG, WebP, GIF, BMP or TIFF file; for audio galleries a recording."),
]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Value = str | bool | Whole | FiniteFloat | None
Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=_LONGEST_TEXT)], Value], Field(max_length=_MOST_FACTS)
]
Parameters = Annotated[
    dict[str, Value | Annotated[list[Value], Field(max_length=_MOST_FACTS)]], Field(max_length=_MOST_FACTS)
]
Vector = Annotated[
    list[FiniteFloat],
    Field(min_length=1, max_length=_MOST_NUMBERS, description="For galleries of vectors that you bring."),
]
Label = Annotated[str, Field(min_length=1, max_length=_LONGEST_TEXT)]
Where = Annotated[
    str,
    Field(max_length=_LONGEST_CONDITION, description="A condition such as: price < :most and brand = 'Acme'."),
]


class Body(BaseModel):
    """What a request says; `uploads` are the file fields of its form and where they go."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    uploads: ClassVar[dict[str, str]] = {}


class Query(Body):
    """One image or one vector."""

    uploads: ClassVar[dict[str, str]] = {"image": "image"}

    image: Image | None = None
    vector: Vector | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.image is None) == (self.vector is None):
            raise ValueError("give either image or vector")
        return self


class IdentifyBody(Query):
    """What is it?"""

    neighbours: int = Field(default=10, ge=1, le=MOST_NEIGHBOURS)
    place: bool = Field(default=False, description="Also say where it lies in the map.")


class SearchBody(Query):
    """What is like it?"""

    k: int = Field(default=10, ge=1, le=MOST_NEIGHBOURS)
    where: Where | None = None
    parameters: Parameters | None = None


class VerifyBody(Body):
    """Are they of one class?"""

    uploads: ClassVar[dict[str, str]] = {"a": "a", "b": "b"}

    a: Image | None = None
    b: Image | None = None
    vector_a: Vector | None = None
    vector_b: Vector | None = None
    false_accept_rate: float = Field(default=0.001, gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        images = (self.a is not None) + (self.b is not None)
        vectors = (self.vector_a is not None) + (self.vector_b is not None)
        if (images, vectors) not in ((2, 0), (0, 2)):
            raise ValueError("give either a and b, or vector_a and vector_b")
        return self


class EnrolBody(Body):
    """A class, by a handful of examples."""

    uploads: ClassVar[dict[str, str]] = {"image": "images"}

    label: Label
    image: Image | None = None
    images: Annotated[list[Image], Field(min_length=1, max_length=_MOST_IMAGES)] | None = None
    vector: Vector | None = None
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=_MOST_IMAGES)] | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = (self.image, self.images, self.vector, self.vectors)
        if sum(part is not None for part in given) != 1:
            raise ValueError("give one of image, images, vector and vectors")
        return self

    def all_images(self) -> list[bytes] | None:
        """The images, however many."""
        return self.images if self.image is None else [self.image]

    def all_vectors(self) -> list[list[float]] | None:
        """The vectors, however many."""
        return self.vectors if self.vector is None else [self.vector]


class ItemBody(Query):
    """One new item."""

    label: Label | None = None
    id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    metadata: Metadata | None = None


class ChangeBody(Body):
    """What changes of an item; a label of null takes it away."""

    label: Label | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_fields_set or ("metadata" in self.model_fields_set and self.metadata is None):
            raise ValueError("give label, metadata (an object) or both")
        return self


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

    items: list[ItemAnswer]
    distance: float


class DuplicatesAnswer(BaseModel):
    """Closest first."""

    duplicates: list[GroupAnswer]


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


class ProblemAnswer(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str | None = None
