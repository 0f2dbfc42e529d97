"""What a backbone takes: the shape and the statistics of one input."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal

from nearkin.errors import DataError, suggestion

MEL_BANDS = 40
"""Mel bands of an audio input unless its backbone asks for another number."""

_MOST_PIXELS, _MOST_BANDS, _MOST_FRAMES = 8192, 1024, 1_000_000
"""Bounds of an input, far beyond those of any model: a file that asks for more is damaged, and would hang."""


@dataclass(frozen=True)
class InputSpec:
    """Shape and statistics of one input of a model; plain values, so that it can be saved with the weights.

    Args:
        channels: 3 (colour) or 1 (grey) for images, 1 for audio.
        size: side of the square image in pixels; for audio the number of mel bands.
        mean: what normalisation subtracts from inputs in [0, 1], one value a channel; for audio from log-mel values,
            one value for all bands or one a band.
        std: what normalisation divides by, as many values.
        kind: "image" or "audio".
        frames: length of an audio crop in frames of 10 ms; None leaves it to `audio_seconds` of the recipe.
        fit: how an image of another shape becomes the square: "crop" cuts its centre out, "pad" fills what it leaves.
        resize: with "crop", pixels that the short side of an image is brought to before; None: 1.143 times the size.
        bands: how log-mel bands become comparable. "standardised": recordings are brought to one level, `mean` and
            `std` are those of each band in the training set, and the whole recording counts. "centred", as models had
            it before there was a choice: each band of the middle `frames` is centred over time.
        trim: decibels below the loudest part of a recording from which on a part is silence and left out; None: none.
        size_feature: whether a sample also says how large its image was, and where that is known from: "pixels" of the
            image itself, or two columns of the manifest, width and height. See `planes`.
    """

    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    kind: Literal["image", "audio"] = "image"
    frames: int | None = None
    fit: Literal["crop", "pad"] = "crop"
    resize: int | None = None
    bands: Literal["centred", "standardised"] = "centred"
    trim: float | None = None
    size_feature: str | tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if self.size_feature is not None:
            if not isinstance(self.size_feature, str):
                object.__setattr__(self, "size_feature", tuple(self.size_feature))
            if self.kind == "audio":
                raise DataError("Only images have a width and a height: leave model.size_feature out for audio.")
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        if self.kind not in ("image", "audio"):
            raise DataError(f"An input is of kind 'image' or 'audio', not '{self.kind}'.")
        if self.fit not in ("crop", "pad"):
            raise DataError(f"An image is brought to the input's square by 'crop' or 'pad', not '{self.fit}'.")
        if self.kind == "audio" and self.fit == "pad":
            raise DataError("Only images are padded to a square: leave model.fit at 'crop' for audio.")
        if self.resize is not None and (self.kind == "audio" or self.fit == "pad"):
            raise DataError("Only images whose centre is cut out are resized before: leave model.resize out.")
        if self.resize is not None and self.resize < self.size:
            raise DataError(
                f"An image whose short side is {self.resize} has no centre square of {self.size} pixels: raise "
                "model.resize, or lower model.size."
            )
        if self.channels not in ((1, 3) if self.kind == "image" else (1,)):
            raise DataError(f"An {self.kind} input cannot have {self.channels} channels: use 1, or 3 for colour.")
        if self.size < 1 or (self.frames is not None and self.frames < 1):
            raise DataError(f"The size and the frames of an input must be positive, not {self.size} and {self.frames}.")
        self._check_bounds()
        self._check_statistics()
        if self.bands not in ("centred", "standardised"):
            raise DataError(f"Log-mel bands are 'centred' or 'standardised', not '{self.bands}'.")
        if self.kind == "image" and (self.bands != "centred" or self.trim is not None):
            raise DataError("Only recordings have bands and silence: leave `bands` and `trim` out for images.")
        if self.trim is not None and (self.bands == "centred" or not 0 < self.trim < inf):
            raise DataError(
                f"Silence lies a positive number of decibels below the loudest part, not {self.trim}, and is left out "
                "with standardised bands only."
            )

    def _check_bounds(self) -> None:
        side = ("pixels a side", _MOST_PIXELS) if self.kind == "image" else ("mel bands", _MOST_BANDS)
        asked = ((self.size, *side), (self.resize or 0, *side), (self.frames or 0, "frames", _MOST_FRAMES))
        for value, unit, most in asked:
            if value > most:
                raise DataError(f"An input of {value} {unit} is too large to work with: give at most {most:,}.")

    def _check_statistics(self) -> None:
        counts = {self.channels, self.size} if self.kind == "audio" else {self.channels}
        if len(self.mean) != len(self.std) or len(self.mean) not in counts:
            each = "mel band, or one for all" if self.kind == "audio" else f"of the {self.channels} channels"
            raise DataError(f"Give mean and std one value for each {each}.")
        if min(self.std) <= 0:
            raise DataError(f"The std of an input must be positive, got {self.std}.")

    @property
    def planes(self) -> int:
        """Channels of a sample: those of the image, and two more where it says its size.

        These two are the same number everywhere, ln width and ln height, so that the size goes wherever a sample goes:
        through batches, crops, caches and galleries. Nothing normalises or augments them.
        """
        return self.channels + (0 if self.size_feature is None else 2)

    @classmethod
    def audio(
        cls,
        mels: int = MEL_BANDS,
        frames: int | None = None,
        bands: Literal["centred", "standardised"] = "centred",
        trim: float | None = None,
    ) -> InputSpec:
        """An input of log-mel frames without statistics: none are needed where bands are centred over a recording."""
        return cls(1, mels, (0.0,), (1.0,), "audio", frames, bands=bands, trim=trim)

    @property
    def is_measured(self) -> bool:
        """Whether the statistics of each mel band are known."""
        return self.kind == "audio" and len(self.mean) > 1

    @property
    def note(self) -> str:
        """What a user of the model must know of its input; empty: nothing."""
        if self.kind != "audio" or self.bands != "centred":
            return ""
        seconds = "" if self.frames is None else f" {self.frames / 100:g} s"
        return (
            f"The model has the old audio features: it hears the middle{seconds} of a recording only, each band "
            "centred. Train it again to use whole recordings."
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-safe values."""
        fields = asdict(self)
        # Models made before there was a choice keep their fingerprints.
        if self.fit == "crop":
            del fields["fit"]
        if self.resize is None:
            del fields["resize"]
        if self.bands == "centred":
            del fields["bands"]
        if self.trim is None:
            del fields["trim"]
        if self.size_feature is None:
            del fields["size_feature"]
        elif not isinstance(self.size_feature, str):
            fields["size_feature"] = list(self.size_feature)
        return {**fields, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> InputSpec:
        """Rebuild what `to_dict` gave."""
        for name in fields:
            if name not in cls.__dataclass_fields__:
                raise DataError(f"An input has no field '{name}'.{suggestion(name, cls.__dataclass_fields__)}")
        missing = [name for name in ("channels", "size", "mean", "std") if name not in fields]
        if missing:
            raise DataError(f"The description of an input lacks {', '.join(missing)}.")
        return cls(**fields)
