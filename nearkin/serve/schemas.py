"""What requests may say."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nearkin.serve.fields import Image, Images, Label, Metadata, Parameters, Vector, Vectors, Where

MOST_NEIGHBOURS = 1000


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
    images: Images | None = None
    vector: Vector | None = None
    vectors: Vectors | None = None
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
