"""What a gallery is tied to: a model, of which a local one keeps a copy, or the name of what the user brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import DataError, ModelError, StorageError
from nearkin.gallery.encoding import open_model
from nearkin.gallery.values import Settings
from nearkin.models import Embedder
from nearkin.spaces import Space, make_space


def settings_of(embedder: Embedder | None, dimension: int | None, name: str | None, space: Any, dtype: str) -> Settings:
    """What a gallery is tied to, from what `create` was given."""
    if dtype not in ("float32", "float16"):
        raise DataError(f"Vectors are stored as 'float32' or 'float16', not {dtype!r}.")
    if embedder is not None:
        if dimension is not None or space is not None:
            raise DataError("The model decides the dimension and the space: leave dimension= and space= out.")
        return Settings(
            name=name or _model_name(embedder),
            dimension=embedder.dimension,
            space=embedder.space.to_dict(),
            dtype=dtype,
            fingerprint=embedder.fingerprint(),
            kind=embedder.spec.kind,
        )
    if dimension is None or not name:
        raise DataError(
            "A gallery is tied to what makes its vectors: give model=, or dimension= and name= for vectors of your own."
        )
    if isinstance(dimension, bool) or not isinstance(dimension, int | np.integer) or not 1 <= dimension <= 65_536:
        raise DataError(f"The dimension must be a whole number from 1 to 65,536, not {dimension!r}.")
    return Settings(name=str(name), dimension=int(dimension), space=_space(space).to_dict(), dtype=dtype)


def _space(given: Any) -> Space:
    if given is None:
        return make_space("sphere")
    if isinstance(given, str):
        return make_space("sphere" if given == "cosine" else given)
    if isinstance(given, Space) and not isinstance(given, type):
        return given
    raise DataError(f"The space must be a name such as 'sphere' or 'euclidean', or a space, not {given!r}.")


def _model_name(embedder: Embedder) -> str:
    recipe = embedder.card.get("recipe", {})
    method = recipe.get("name") if isinstance(recipe, dict) else None
    return embedder.backbone_name if not method else f"{embedder.backbone_name} ({method})"


def keep_model(directory: Path, settings: Settings, embedder: Embedder) -> Settings:
    """Keep a copy of the model in the gallery's directory."""
    name = f"model-{str(settings.fingerprint)[:12]}.safetensors"
    if not (directory / name).exists():
        embedder.save(directory / name)
    return Settings(**{**settings.to_dict(), "model": name})


def forget_other_models(directory: Path, settings: Settings) -> None:
    """Remove copies of models that the gallery is no longer tied to."""
    for file in directory.glob("model-*.safetensors"):
        if file.name != settings.model:
            file.unlink(missing_ok=True)


def matching_model(path: str | Path, settings: Settings, model: Any) -> Embedder | None:
    """The model that a gallery is tied to, if it is at hand."""
    if settings.kind == "vector":
        if model is not None:
            raise ModelError(f"{path} holds vectors that you brought ('{settings.name}'): it takes no model.")
        return None
    if model is None:
        if settings.model is None:
            return None
        file = Path(path) / settings.model
        if not file.exists():
            raise StorageError(f"{path} has lost its model file {settings.model}: open it with model=.")
        embedder = Embedder.load(file)
    else:
        embedder = open_model(model)
    if embedder.fingerprint() != settings.fingerprint:
        raise ModelError(
            f"The vectors of {path} were made by the model {str(settings.fingerprint)[:12]} ({settings.name}) and this "
            f"one is {embedder.fingerprint()[:12]}: give that model, or rebuild the gallery with the new one."
        )
    return embedder
