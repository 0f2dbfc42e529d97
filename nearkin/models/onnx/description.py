"""What an ONNX file of ours says of itself, and the steps from a file to its input, as plain values.

Whatever is stated here is what `nearkin.data` does; docs/guide/export.md explains each value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nearkin.data.audio import (
    ACTIVE,
    CENTRED_FLOOR,
    FFT,
    FLOOR,
    HANGOVER,
    HOP,
    LEVEL,
    WINDOW,
    LogMelTransform,
)
from nearkin.data.augment import REDUCING_GAP, EvalTransform
from nearkin.data.dataset import SAMPLE_RATE
from nearkin.data.inputs import InputSpec
from nearkin.errors import CheckpointError, ModelError
from nearkin.models.embedder import Embedder, check_version
from nearkin.models.recordings import WINDOW_FRAMES
from nearkin.models.similarity_model import SimilarityModel


def preprocessing(spec: InputSpec) -> dict[str, Any]:
    """The steps from a file to a sample, in order, JSON-safe."""
    steps = _audio(spec) if spec.kind == "audio" else _image(spec)
    return steps | {"dtype": "float32", "in_graph": {"mean": list(spec.mean), "std": list(spec.std)}}


def _image(spec: InputSpec) -> dict[str, Any]:
    short = EvalTransform(spec).hint if spec.fit == "crop" else spec.size
    return {
        "kind": "image",
        "decode": {
            "orientation": "exif",
            "frame": 0,
            "alpha": "over white",
            "sixteen_bit": "round(value / 257)",
            "jpeg_shrink_to_at_least": short,
        },
        "colour": "L" if spec.channels == 1 else "RGB",
        "fit": spec.fit,
        "short_side": short,
        "size": spec.size,
        "resample": {"filter": "bilinear", "antialias": True, "reducing_gap": REDUCING_GAP},
        "padding": "median of the border" if spec.fit == "pad" else None,
        "divide_by": 255,
        "layout": "NCHW",
    }


def _audio(spec: InputSpec) -> dict[str, Any]:
    whole = spec.bands == "standardised"
    frames = 1 if whole else LogMelTransform(spec).frames
    return {
        "kind": "audio",
        "sample_rate": SAMPLE_RATE,
        "channels": "mean",
        **({"silence": _silence(spec.trim), "level": _LEVEL} if whole else {}),
        "samples": (frames - 1) * HOP + FFT,
        "shorter": "repeat from the start",
        "longer": {"window": WINDOW_FRAMES, "hop": WINDOW_FRAMES // 2, "vector": "mean"} if whole else "centre",
        "window": {"name": "hann", "periodic": True, "length": WINDOW, "centred_in": FFT},
        "hop": HOP,
        "fft": FFT,
        "spectrum": "power",
        "mel": {"bands": spec.size, "scale": "slaney", "area": 1, "low": 0, "high": SAMPLE_RATE / 2},
        "log": {"base": "e", "add": FLOOR if whole else CENTRED_FLOOR},
        "centre": None if whole else "each band over time",
        "frames": None if whole else frames,
        "layout": "(batch, 1, bands, frames)",
    }


_LEVEL = {"rms": LEVEL, "of": "windows", "length": WINDOW, "within_decibels": ACTIVE}


def _silence(decibels: float | None) -> dict[str, Any] | None:
    """What of a recording is left out, if anything."""
    return None if decibels is None else {"below_loudest": decibels, "length": HOP, "kept_around": HANGOVER}


FORMAT = "nearkin.onnx"
VERSION = 1
_PREFIX = "nearkin."


@dataclass(frozen=True)
class Description:
    """What a reader of the file must know.

    Attributes:
        name: of the model: backbone and recipe.
        fingerprint: of the model that was exported; None for one that cannot be saved, and so has none.
        precision: "float32", whose vectors are the model's, or "int8", whose vectors are another model's in effect.
        dimension: size of an embedding.
        space: where embeddings are compared.
        input: what the model takes.
        preprocessing: what to do to a file first.
        left_out: what the model has and the file has not.
    """

    name: str
    fingerprint: str | None
    precision: str
    dimension: int
    space: dict[str, Any]
    input: dict[str, Any]
    preprocessing: dict[str, Any]
    left_out: str | None = None

    @property
    def spec(self) -> InputSpec:
        """What the model takes."""
        return InputSpec.from_dict(self.input)

    def to_dict(self) -> dict[str, Any]:
        """Everything, with format and version, as JSON-safe values."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def properties(self) -> dict[str, str]:
        """The same as texts by name: texts as they are, all else as JSON."""
        return {
            _PREFIX + key: value if isinstance(value, str) else json.dumps(value)
            for key, value in self.to_dict().items()
        }


def describe(embedder: Embedder) -> Description:
    """What the file of a model says of itself."""
    space, left_out = embedder.space, None
    if isinstance(embedder, SimilarityModel):
        space, left_out = embedder.base, "the learned similarity, its prototypes and its dense layer"
    method = embedder.card.recipe.get("name")
    return Description(
        name=f"{embedder.backbone_name} ({method})" if method else embedder.backbone_name,
        fingerprint=fingerprint_of(embedder),
        precision="float32",
        dimension=embedder.dimension,
        space=space.to_dict(),
        input=embedder.spec.to_dict(),
        preprocessing=preprocessing(embedder.spec),
        left_out=left_out,
    )


def described(path: str | Path, properties: Mapping[str, str]) -> Description:
    """What the metadata of a file say.

    Raises:
        CheckpointError: it is not one of ours, of another version, or damaged.
    """
    if properties.get(f"{_PREFIX}format") != FORMAT:
        raise CheckpointError(f"{path} is an ONNX file, but not one that `nearkin export` wrote.")
    check_version(path, properties.get(f"{_PREFIX}version", ""), VERSION, "export the model again")
    try:
        fields = {name: _value(name, properties) for name in Description.__dataclass_fields__}
        description = Description(**fields)
        description.spec  # noqa: B018  (raises where it is damaged)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} has damaged metadata ({error}): export the model again.") from error
    return description


def _value(name: str, properties: Mapping[str, str]) -> Any:
    text = properties[_PREFIX + name]
    if name in ("name", "precision") or (name in ("fingerprint", "left_out") and text != "null"):
        return text
    return json.loads(text)


def fingerprint_of(embedder: Embedder) -> str | None:
    """The fingerprint of a model; None for one that cannot be saved."""
    try:
        return embedder.fingerprint()
    except ModelError:
        return None
