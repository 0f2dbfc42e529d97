"""What a gallery is tied to: a model, of which a local one keeps a copy, or the name of what the user brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import DataError, ModelError, StorageError
from nearkin.gallery.encoding import open_model
from nearkin.gallery.places import is_local
from nearkin.gallery.rounding import check_dtype
from nearkin.gallery.values import Settings
from nearkin.models import Embedder
from nearkin.models.learned_space import LearnedSpace
from nearkin.spaces import Space, make_space

_LONGEST_NAME = 200


def settings_of(embedder: Embedder | None, dimension: int | None, name: str | None, space: Any, dtype: str) -> Settings:
    """What a gallery is tied to, from what `create` was given."""
    check_dtype(dtype, {})
    if embedder is not None:
        if dimension is not None or space is not None:
            raise DataError("The model decides the dimension and the space: leave both out.")
        return Settings(
            name=_model_name(embedder) if name is None else _checked_name(name),
            dimension=embedder.dimension,
            space=embedder.space.to_dict(),
            dtype=dtype,
            fingerprint=embedder.fingerprint(),
            kind=embedder.spec.kind,
        )
    if dimension is None or name is None:
        raise DataError(
            "A gallery is tied to what makes its vectors: give a model, or a dimension and a name for vectors of your "
            "own."
        )
    if isinstance(dimension, bool) or not isinstance(dimension, int | np.integer) or not 1 <= dimension <= 65_536:
        raise DataError(f"The dimension must be a whole number from 1 to 65,536, not {dimension!r}.")
    return Settings(name=_checked_name(name), dimension=int(dimension), space=_space(space).to_dict(), dtype=dtype)


def _space(given: Any) -> Space:
    if given is None:
        return make_space("sphere")
    if isinstance(given, str):
        return make_space("sphere" if given == "cosine" else given)
    if isinstance(given, LearnedSpace):
        raise DataError(
            "A learned similarity is part of the model that learned it: create the gallery with that model, and add "
            "items instead of vectors."
        )
    if isinstance(given, Space) and not isinstance(given, type):
        return given
    raise DataError(f"The space must be a name such as 'sphere' or 'euclidean', or a space, not {given!r}.")


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        shown = repr(name[:40]) if isinstance(name, str) else f"a {type(name).__name__}"
        raise DataError(
            f"The name of what makes the vectors is a text of 1 to {_LONGEST_NAME} printable characters, not {shown}."
        )
    return str(name)


def _model_name(embedder: Embedder) -> str:
    recipe = embedder.card.get("recipe", {})
    method = recipe.get("name") if isinstance(recipe, dict) else None
    return embedder.backbone_name if not method else f"{embedder.backbone_name} ({method})"


def keep_model(directory: Path, settings: Settings, embedder: Embedder) -> Settings:
    """Keep a copy of the model in the gallery's directory."""
    name = _file_name(settings)
    if not (directory / name).exists():
        embedder.save(directory / name)
    return Settings(**{**settings.to_dict(), "model": name})


@contextmanager
def model_kept_on_success(path: str | Path, settings: Settings, embedder: Embedder) -> Iterator[Settings]:
    """Settings that name the copy of a model kept where the store can; if the block fails, a new copy is removed."""
    if not is_local(path):
        yield settings
        return
    copy = Path(path) / _file_name(settings)
    there = copy.exists()
    try:
        yield keep_model(Path(path), settings, embedder)
    except BaseException:
        if not there:
            copy.unlink(missing_ok=True)
        raise


def _file_name(settings: Settings) -> str:
    return f"model-{str(settings.fingerprint)[:12]}.safetensors"


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
            raise StorageError(f"{path} has lost its model file {settings.model}: open it with that model.")
        embedder = Embedder.load(file)
    else:
        embedder = open_model(model)
    if embedder.fingerprint() != settings.fingerprint:
        raise ModelError(
            f"The vectors of {path} were made by the model {str(settings.fingerprint)[:12]} ({settings.name}) and this "
            f"one is {embedder.fingerprint()[:12]}: give that model, or rebuild the gallery with the new one."
        )
    return embedder
