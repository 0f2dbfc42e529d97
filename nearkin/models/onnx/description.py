"""What an ONNX file of ours says of itself: in its metadata, and once more in a JSON file beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearkin.data.inputs import InputSpec
from nearkin.errors import CheckpointError, ModelError
from nearkin.models.onnx.preprocessing import preprocessing
from nearkin.models.similarity_model import SimilarityModel

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder

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
        input: what the model eats.
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
        """What the model eats."""
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
    learned = isinstance(embedder, SimilarityModel)
    recipe = embedder.card.get("recipe", {})
    method = recipe.get("name") if isinstance(recipe, dict) else None
    return Description(
        name=f"{embedder.backbone_name} ({method})" if method else embedder.backbone_name,
        fingerprint=fingerprint_of(embedder),
        precision="float32",
        dimension=embedder.dimension,
        space=(embedder.base if isinstance(embedder, SimilarityModel) else embedder.space).to_dict(),
        input=embedder.spec.to_dict(),
        preprocessing=preprocessing(embedder.spec),
        left_out="the learned similarity, its prototypes and its dense layer" if learned else None,
    )


def described(path: str | Path, properties: Mapping[str, str]) -> Description:
    """What the metadata of a file say.

    Raises:
        CheckpointError: it is not one of ours, of another version, or damaged.
    """
    if properties.get(f"{_PREFIX}format") != FORMAT:
        raise CheckpointError(f"{path} is an ONNX file, but not one that `nearkin export` wrote.")
    version = properties.get(f"{_PREFIX}version", "")
    if version != str(VERSION):
        newer = version.isdecimal() and int(version) > VERSION
        advice = "upgrade nearkin to read it" if newer else "export the model again"
        raise CheckpointError(
            f"{path} has the format {version or 'nothing'} and this nearkin reads {VERSION}: {advice}."
        )
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
