"""The `data` section of a recipe: how classes are split, how batches are made and how samples are varied."""

from __future__ import annotations

from math import inf
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


class AudioSection(BaseModel):
    """What a model takes of recordings, and how they are varied in training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bands: Literal["centred", "standardised"] = Field(
        default="centred",
        description="standardised: recordings at one level, each mel band by its statistics in the training set, and "
        "the whole recording in use; centred: as before 0.2.0, each band of a crop centred, and its middle in use.",
    )
    trim: float | None = Field(
        default=None,
        gt=0,
        le=120,
        description="Decibels below the loudest part of a recording from which on a part is silence and left out, in "
        "training and use; null: nothing is.",
    )
    speeds: list[float] = Field(
        default=[],
        description="Speeds of copies of every training recording, e.g. [0.9, 1.1]; the copies of a class are classes "
        "of their own.",
    )
    noise: float = Field(default=0.0, ge=0, le=1, description="Share of the crops that noise is added to.")
    noise_kinds: list[Literal["white", "pink", "recording"]] = Field(
        default=["white", "pink", "recording"],
        min_length=1,
        description="What the noise may be; recording: another training recording.",
    )
    noise_decibels: tuple[float, float] = Field(
        default=(5.0, 25.0), description="Least and largest ratio of the crop's power to the noise's, in decibels."
    )
    reverberation: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of crops that are heard in a room, by a synthetic impulse response.",
    )
    reverberation_seconds: tuple[float, float] = Field(
        default=(0.1, 0.5), description="Shortest and longest time in which such a room's sound falls by 60 decibels."
    )
    gain: float = Field(default=0.0, ge=0, le=40, description="Largest change of a crop's level, in decibels.")
    band_mask: int = Field(
        default=0, ge=0, description="Most neighbouring mel bands that are hidden in a crop: as many as are drawn."
    )
    time_mask: int = Field(default=0, ge=0, description="Most frames of 10 ms in a row that are hidden in a crop.")

    @property
    def augments(self) -> bool:
        """Whether crops are varied."""
        return any((self.noise, self.reverberation, self.gain, self.band_mask, self.time_mask))

    @field_validator("speeds")
    @classmethod
    def _check_speeds(cls, value: list[float]) -> list[float]:
        if any(not 0.5 <= speed <= 2.0 or speed == 1.0 for speed in value) or len(set(value)) < len(value):
            raise ValueError(f"must be different speeds from 0.5 to 2 without 1, which is always there, not {value}")
        return value

    @field_validator("noise_decibels", "reverberation_seconds")
    @classmethod
    def _check_range(cls, value: tuple[float, float], info: ValidationInfo) -> tuple[float, float]:
        low, high = value
        if not low <= high or (info.field_name == "reverberation_seconds" and not 0 < low <= high <= 3):
            raise ValueError(f"must be two ascending numbers (of seconds: above 0, at most 3), not {low:g}, {high:g}")
        return value

    @model_validator(mode="after")
    def _check(self) -> AudioSection:
        if self.bands == "centred" and (self.trim is not None or self.augments):
            raise ValueError("centred bands have neither trim nor augmentation: set bands to standardised")
        return self


class DataSection(BaseModel):
    """How a data set is split by classes, batched and augmented."""

    # YAML reads a class called 7 as a number; names stay names.
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    split: Literal["auto", "column", "halves", "fraction", "items", "domains"] = Field(
        default="auto",
        description="How classes are divided: the manifest's split column, the first half of the sorted classes for "
        "training, a seeded fraction, or auto, which picks what the data supports; items: not at all, every class "
        "trains and other items of it validate and test; domains: the same, but whole domains test.",
    )
    test_classes: float | list[str] = Field(
        default=0.3, description="Classes held out for the audit: a share of all classes in [0, 1), or their names."
    )
    val_classes: float | list[str] = Field(
        default=0.15,
        description="Classes held out for validation: a share of the training classes in [0, 1), or their names.",
    )
    test_items: float = Field(
        default=0.2,
        ge=0.0,
        lt=1.0,
        description="With split=items: share of each class's items for the audit, unless the split column says which.",
    )
    val_items: float = Field(
        default=0.1,
        ge=0.0,
        lt=1.0,
        description="With split=items: share of each class's items for validation, of those that are not for the audit "
        "where the split column says which these are; with split=domains: of each class's items in each other domain.",
    )
    test_domains: list[str] = Field(
        default=[], description="With split=domains: names of the domains held out for the audit, or a single one."
    )
    hierarchy: str | None = Field(
        default=None,
        description="Tree over the classes: a file (nested YAML or JSON, CSV of paths, Newick) or a shipped name.",
    )
    classes_per_batch: int = Field(default=8, ge=2, description="Distinct classes in a batch.")
    per_class: int = Field(default=4, ge=1, description="Samples of each class in a batch.")
    crop: Literal["random", "centre"] = Field(
        default="random",
        description="Random resized crops in training, or what evaluation sees: the centre crop, or the padded image "
        "where model.fit is pad.",
    )
    crop_scale: tuple[float, float] = Field(
        default=(0.4, 1.0), description="Smallest and largest share of the image's area that a random crop keeps."
    )
    crop_ratio: tuple[float, float] = Field(
        default=(3 / 4, 4 / 3), description="Narrowest and widest aspect ratio (width / height) of a random crop."
    )
    flip: bool = Field(default=True, description="Mirror half of the training images left to right.")
    jitter: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Strength of brightness, contrast and saturation changes; hue gets a quarter.",
    )
    colour: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Strength of saturation changes, hue gets a quarter, where it is not that of jitter; null: as "
        "jitter.",
    )
    rotation: float = Field(
        default=0.0,
        ge=0.0,
        le=180.0,
        description="Largest angle in degrees that a training image is turned by, to either side; corners that this "
        "leaves empty mirror the image.",
    )
    erase: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Random erasing: share of the training images of which a rectangle, 2 to 33 % of the image, is "
        "replaced by the mean colour.",
    )
    workers: int = Field(
        default=2, ge=0, description="Processes that decode samples; 0 decodes in the training process."
    )
    audio_seconds: float = Field(
        default=1.0, gt=0.0, description="Length of the crops of recordings that training sees, in seconds."
    )
    audio: AudioSection = Field(
        default_factory=lambda: AudioSection(),
        description="Features of recordings, and how training varies them.",
    )

    @property
    def classes_are_seen(self) -> bool:
        """Whether every class trains, so that the others of its items validate and test."""
        return self.split in ("items", "domains")

    @field_validator("test_domains", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else [value]

    @field_validator("test_classes", "val_classes")
    @classmethod
    def _check_share(cls, value: float | list[str]) -> float | list[str]:
        if isinstance(value, float) and not 0.0 <= value < 1.0:
            raise ValueError(f"must be a share in [0, 1) or a list of class names, not {value:g}")
        return value

    @field_validator("crop_scale", "crop_ratio")
    @classmethod
    def _check_ascending(cls, value: tuple[float, float], info: ValidationInfo) -> tuple[float, float]:
        most, numbers = (1.0, "shares in (0, 1]") if info.field_name == "crop_scale" else (inf, "positive numbers")
        if not 0.0 < value[0] <= value[1] <= most:
            raise ValueError(f"must be two ascending {numbers}, not {value[0]:g}, {value[1]:g}")
        return value
