"""The `model` section of a recipe: backbone, pooling, head and space, what is frozen and what is cached."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from nearkin.checks import is_whole
from nearkin.errors import RecipeError
from nearkin.models.attention import Fusion, Score, check_options
from nearkin.models.backbones.base import check_backbone_name
from nearkin.models.pooling.base import check_pooling
from nearkin.models.similarity import Form, Symmetric, check_similarity_options
from nearkin.spaces import make_space

AUTO: Literal["auto"] = "auto"
RANDOM: Literal["random"] = "random"
KEPT: Literal["kept"] = "kept"
DEFAULT_DIMENSION = 128
"""Size of an embedding where nothing tells a better one."""

_POINCARE = "poincare-ball"
_MOST_DIMENSIONS = 65536
_ALWAYS_SAVED = ("channels", "size", "pooling_parameters", "space_parameters", "frozen_batch_norm", "cache_dtype")
"""Saved recipes have every key. One with all of these and no `head_start` is from before there was a choice."""


class CacheViews(BaseModel):
    """Which views of an item a feature cache holds besides the plain one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flip: bool = Field(
        default=False, description="Also the mirrored image; random crops are then mirrored half of the time."
    )
    crops: int = Field(default=0, ge=0, le=64, description="How many random resized crops of each image.")
    crop_scale: tuple[float, float] = Field(
        default=(0.4, 1.0), description="Smallest and largest share of the image's area that a random crop keeps."
    )

    @field_validator("crop_scale")
    @classmethod
    def _check_scale(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0.0 < value[0] <= value[1] <= 1.0:
            raise ValueError(f"must be two ascending shares in (0, 1], not {value[0]:g}, {value[1]:g}")
        return value

    @property
    def count(self) -> int:
        """Views of one item."""
        return 1 + int(self.flip) + self.crops


class AttentionSection(BaseModel):
    """How earlier stages of the backbone are attended to its last vector."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    score: Score = Field(
        default="additive",
        description="How a vector of an earlier map is compared with the last vector; average: not at all.",
    )
    matrices: Literal[1, 2] = Field(
        default=1, description="1: the map's vectors are brought to the last one's space; 2: both to a common one."
    )
    stages: list[str] | None = Field(default=None, description="The attended stages; null: the three before the last.")
    fusion: Fusion = Field(
        default="concatenate",
        description="concatenate: attended vectors side by side; sum: each brought to the size of the last vector.",
    )
    append: bool = Field(default=True, description="Whether the last vector itself is one of those that are fused.")
    hidden: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="With two matrices: size of the common space; null: that of the last vector.",
    )
    normalise: bool = Field(
        default=False,
        description="Bring every vector to mean 0 and variance 1 before the fusion; the paper does not.",
    )

    @model_validator(mode="after")
    def _check(self) -> AttentionSection:
        check_options(self.score, self.matrices, self.hidden)
        stages = self.stages or []
        if self.stages is not None and not stages:
            raise RecipeError("model.attention.stages is empty: name stages before the last, or set it to null.")
        if twice := [name for name in stages if stages.count(name) > 1]:
            raise RecipeError(f"The stage '{twice[0]}' is named twice in model.attention.stages: keep one.")
        return self


class SimilaritySection(BaseModel):
    """The network that compares two embeddings; the loss 'learned-similarity' teaches it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden: int = Field(default=512, ge=1, le=65536, description="Units of its hidden layer.")
    slope: float = Field(default=0.1, ge=0.0, le=1.0, description="Slope of its LeakyReLU below zero.")
    dropout: float = Field(
        default=0.25, ge=0.0, lt=1.0, description="Share of the hidden units that a training step leaves out."
    )
    symmetric: Symmetric | None = Field(
        default=None,
        description="max or mean of the similarities of both orders of a pair; null: S(enrolled, query) as it is.",
    )
    form: Form = Field(
        default="concatenation",
        description="concatenation: a network on [a; b], the paper's; difference: on |g(a) - g(b)| and g(a) * g(b), "
        "the same in either order, for classes that it has never seen.",
    )
    depth: int = Field(
        default=1,
        description="Hidden layers, 1 to 8. Further ones of a difference are in g, computed once an item; those of a "
        "concatenation take every pair, which makes searches several times as slow.",
    )

    @model_validator(mode="after")
    def _check(self) -> SimilaritySection:
        check_similarity_options(self.form, self.symmetric, self.depth)
        return self


class ModelSection(BaseModel):
    """How a sample becomes a vector."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backbone: str = Field(
        default="efficientnet-lite0", description="Name of the backbone, or timm/<name> for any timm model."
    )
    pretrained: bool = Field(default=False, description="Start from ImageNet weights; not every backbone has them.")
    weights: str | None = Field(
        default=None,
        description="Run or saved model to take the backbone's first weights from; it must stay until training is "
        "finished. Null: none.",
    )
    start: str | None = Field(
        default=None,
        description="Run or saved model to go on from: backbone, 1x1 convolution, pooling, attention and head, which "
        "must be shaped as the recipe says; takes the place of pretrained, and must stay until training is finished. "
        "Null: none.",
    )
    weights_sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="The sha256 that the file of `weights` or `start` must have; null: any.",
    )
    channels: Literal[1, 3] | None = Field(
        default=None, description="Colour channels: 1 grey, 3 colour; null: what the backbone is made for."
    )
    size: int | None = Field(
        default=None, ge=1, description="Side of the input in pixels (audio: mel bands); null: the backbone's own."
    )
    fit: Literal["crop", "pad"] = Field(
        default="crop",
        description="How an image becomes the square input. crop: its short side is brought to size and the centre cut "
        "out; pad: all of it is kept, scaled down if it is larger and never up, and the rest gets the colour of its "
        "border.",
    )
    resize: int | None = Field(
        default=None,
        ge=1,
        description="With fit=crop: pixels that the short side of an image is brought to before its centre is cut out, "
        "in evaluation and use; null: 1.143 times size, or size where that is at most 64.",
    )
    local_dimension: int | None = Field(
        default=None,
        ge=1,
        description="Size that a 1x1 convolution brings each vector of the feature map to, before the pooling; null: "
        "none.",
    )
    pooling: str = Field(default="gap", description="How a feature map becomes one vector.")
    pooling_parameters: dict[str, Any] = Field(default_factory=dict, description="Parameters of the pooling.")
    attention: AttentionSection | None = Field(
        default=None,
        description="Attention of earlier stages to the pooled vector; null: the pooled vector is all the head sees.",
    )
    size_feature: Literal["pixels"] | tuple[str, str] | None = Field(
        default=None,
        description="Also give the head the size of the image: a linear map of ln width and ln height is added to what "
        "it takes. pixels: of the image as it was saved; two names: columns of the manifest, such as [width_um, "
        "height_um]; null: no size.",
    )
    dimension: Annotated[int, Field(ge=1, le=_MOST_DIMENSIONS)] | Literal["auto"] | None = Field(
        default=AUTO,
        description="Size of the embedding. auto: of 64, 128, 256, 512 (no more than there are classes, nor than a "
        "quarter of the items) and all, the smallest that costs less than half a point on training classes left out, "
        "or 128 where the head starts at random; null: no head, the pooled features are the embedding.",
    )
    head_start: Literal["whitened", "pca", "random", "kept"] | None = Field(
        default=None,
        description="First weights of the head, or of the 1x1 convolution where there is no head. whitened: training "
        "features whitened within classes, then their principal components; pca: the components alone; kept: those of "
        "model.start, always where there is one; null: whitened where the backbone is pretrained, else random.",
    )
    space: str = Field(default="sphere", description="The space embeddings live in.")
    space_parameters: dict[str, Any] = Field(default_factory=dict, description="Parameters of the space.")
    similarity: SimilaritySection | None = Field(
        default=None,
        description="A learned similarity in place of the space's own distance; {}: with the usual settings; null: "
        "none.",
    )
    freeze: str | None = Field(
        default=None,
        description="Freeze the backbone up to and including this stage; all: the whole of it; null: nothing.",
    )
    frozen_batch_norm: bool = Field(
        default=False, description="Keep the running statistics of all batch norms of the backbone as they are."
    )
    drop_path: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Stochastic depth: share of the samples for which a training step leaves the last residual block "
        "out; earlier blocks are left out less, the first never. EfficientNet-Lite and ResNet.",
    )
    cache: bool = Field(
        default=False, description="Compute the frozen part once, keep its output on disk and train on that."
    )
    cache_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="Precision of the cached features."
    )
    cache_views: CacheViews = Field(
        default_factory=lambda: CacheViews(), description="Views of each item in the cache."
    )

    @field_validator("attention", "similarity", mode="before")
    @classmethod
    def _check_settings(cls, value: Any, field: ValidationInfo) -> Any:
        if value is None or isinstance(value, dict | AttentionSection | SimilaritySection):
            return value
        example = "score: additive" if field.field_name == "attention" else "hidden: 512"
        raise RecipeError(
            f"model.{field.field_name} is a set of settings, such as {{{example}}}, {{}} for the defaults or null for "
            f"none, not {value!r}."
        )

    @field_validator("dimension", mode="before")
    @classmethod
    def _check_dimension(cls, value: Any) -> Any:
        if value is None or value == AUTO or (is_whole(value) and 1 <= value <= _MOST_DIMENSIONS):
            return value
        raise RecipeError(
            f"model.dimension must be a whole number from 1 to {_MOST_DIMENSIONS}, auto or null, not {value!r}."
        )

    @field_validator("size_feature", mode="before")
    @classmethod
    def _check_size_feature(cls, value: Any) -> Any:
        two = isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(name, str) for name in value)
        if value is None or value == "pixels" or two:
            return value
        raise RecipeError(
            f"model.size_feature must be pixels, two columns of the manifest such as [width_um, height_um], or null, "
            f"not {value!r}."
        )

    @property
    def knows_something(self) -> bool:
        """Whether the backbone begins with weights that were trained before."""
        return self.pretrained or self.weights is not None or self.start is not None

    @model_validator(mode="before")
    @classmethod
    def _read_old_starts(cls, given: Any) -> Any:
        if isinstance(given, dict) and "head_start" not in given and all(key in given for key in _ALWAYS_SAVED):
            return {**given, "head_start": RANDOM}
        return given

    @model_validator(mode="after")
    def _settle_start(self) -> ModelSection:
        """Say what the usual start is here, so that a saved recipe tells."""
        layered = self.dimension is not None or self.local_dimension is not None
        if self.start is not None:
            # A shipped recipe says how a new model starts; this one is none.
            object.__setattr__(self, "pretrained", False)
            object.__setattr__(self, "head_start", KEPT)
        elif self.head_start == KEPT:
            raise RecipeError("model.head_start is kept, but there is no head to keep: set model.start.")
        elif self.head_start is None:
            known = self.knows_something and layered and self.space != _POINCARE
            object.__setattr__(self, "head_start", "whitened" if known else RANDOM)
        elif self.head_start != RANDOM and not layered:
            raise RecipeError(
                f"There is no layer to start '{self.head_start}': set model.dimension, or remove model.head_start."
            )
        elif self.head_start != RANDOM and self.space == _POINCARE:
            raise RecipeError(
                f"A head cannot start '{self.head_start}' in the space '{_POINCARE}', whose distances are not those of "
                "a linear map: set model.head_start to random, or choose another space."
            )
        if self.dimension == AUTO and (self.head_start == RANDOM or self.similarity is not None):
            object.__setattr__(self, "dimension", DEFAULT_DIMENSION)
        return self

    @model_validator(mode="after")
    def _check(self) -> ModelSection:
        check_backbone_name(self.backbone)
        check_pooling(self.pooling, self.pooling_parameters)
        make_space(self.space, **self.space_parameters)
        if self.weights is not None and self.pretrained:
            raise RecipeError(
                f"The backbone can start from one place only: set model.pretrained to false to start from "
                f"{self.weights}, or model.weights to null."
            )
        if self.weights is not None and self.start is not None:
            raise RecipeError(
                "model.weights takes the backbone of a model and model.start all of it: set one of them to null."
            )
        if self.start is not None and self.similarity is not None:
            raise RecipeError(
                "A learned similarity cannot go on from model.start: set model.weights, which takes the backbone alone."
            )
        if self.weights_sha256 is not None and self.weights is None and self.start is None:
            raise RecipeError(
                "model.weights_sha256 is set, but there is no file to check: set model.weights, or remove it."
            )
        if self.resize is not None and self.fit == "pad":
            raise RecipeError(
                "model.resize is set, and padded images are not cut: set model.fit to crop, or remove it."
            )
        if self.drop_path and self.freeze == "all":
            raise RecipeError(
                "model.drop_path is set, and a backbone that is frozen has no blocks that learn: freeze less "
                "(model.freeze), or set it to 0."
            )
        if self.cache and self.freeze is None:
            raise RecipeError(
                "A feature cache needs a frozen part of the backbone: set model.freeze to 'all' or to a "
                "stage, or set model.cache to false."
            )
        return self
