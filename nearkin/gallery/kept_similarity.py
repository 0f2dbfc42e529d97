"""How the vectors of a gallery are compared, from its settings; a learned similarity comes from the model it keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.errors import ModelError, StorageError
from nearkin.gallery.values import Settings
from nearkin.models import Embedder
from nearkin.models.learned_space import LearnedSpace
from nearkin.models.similarity import SimilaritySides
from nearkin.spaces import Space, make_space


class KeptSimilarity:
    """A learned similarity as a space, read from the gallery's copy of the model when it is first needed.

    Its network is a copy: what is trained later does not reach the gallery.

    Args:
        settings: of the gallery; they name the model and its file.
        directory: where that file is; None: nowhere.
    """

    name: ClassVar[str] = LearnedSpace.name
    similarity: ClassVar[bool] = True

    def __init__(self, settings: Settings, directory: Path | None) -> None:
        self._settings = settings
        self._directory = directory
        self._reading = Lock()
        self._learned: LearnedSpace | None = None
        self._apart: dict[torch.dtype, SimilaritySides] = {}

    def __repr__(self) -> str:
        return f"KeptSimilarity({self._settings.fingerprint})"

    @property
    def base(self) -> Space:
        """Where the points live."""
        return make_space(**self._settings.space["base"])

    @property
    def learned(self) -> LearnedSpace:
        """The space itself.

        Raises:
            StorageError: if the model is not there.
        """
        with self._reading:
            if self._learned is None:
                self._learned = _copied(self._read())
            return self._learned

    def give(self, embedder: Embedder) -> None:
        """Take the similarity of a model that is at hand, if it is the gallery's; nothing need be read then."""
        with self._reading:
            if self._learned is None and isinstance(embedder.space, LearnedSpace):
                self._learned = _copied(embedder.space)

    def project(self, f: Tensor) -> Tensor:
        """Raw embeddings (..., d) to points of the base space (..., d)."""
        return self.base.project(f)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative similarities (..., n, m) of queries (..., n, d) to enrolled points (..., m, d)."""
        wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
        sides = self.sides(wide)
        return sides.scores(sides.of_queries(x), sides.of_enrolled(y)).neg_()

    def mean(self, xs: Tensor) -> Tensor:
        """The mean (..., d) of points (..., n, d) of the base space."""
        return self.base.mean(xs)

    def sides(self, dtype: torch.dtype = torch.float32) -> SimilaritySides:
        """What each side of a pair adds, taken apart once."""
        if dtype not in self._apart:
            self._apart[dtype] = self.learned.sides(dtype)
        return self._apart[dtype]

    def to_dict(self) -> dict[str, Any]:
        """Name and base."""
        return dict(self._settings.space)

    def _read(self) -> LearnedSpace:
        name = self._settings.name
        if self._directory is None or self._settings.model is None:
            raise StorageError(
                f"The similarity that '{name}' has learned is part of that model, which this gallery does not keep: "
                "open it with the model."
            )
        file = self._directory / self._settings.model
        if not file.exists():
            raise StorageError(
                f"{self._directory} has lost its model file {file.name}, and with it the similarity that its items are "
                "compared by: open it with that model."
            )
        space = Embedder.load(file).space
        if not isinstance(space, LearnedSpace):
            raise ModelError(f"{file} holds no learned similarity, which the gallery says it has: rebuild the gallery.")
        return space


def space_of(settings: Settings, directory: Path | None = None) -> Space:
    """How vectors are compared; a learned similarity is not read before it is needed.

    Args:
        settings: of the vectors.
        directory: where the gallery keeps its model.
    """
    return KeptSimilarity(settings, directory) if is_learned(settings.space) else make_space(**settings.space)


def check_space_settings(space: Mapping[str, Any]) -> None:
    """Refuse what describes no space.

    Raises:
        TypeError: if a parameter is not one of the space's.
        NearkinError: if there is no such space.
    """
    if is_learned(space):
        if not isinstance(space.get("base"), Mapping) or set(space) != {"name", "base"}:
            raise TypeError("a learned similarity is described by its name and its base")
        make_space(**space["base"])
    else:
        make_space(**space)


def is_learned(space: Mapping[str, Any]) -> bool:
    """Whether these settings are of a learned similarity."""
    return space.get("name") == LearnedSpace.name


def space_in_words(space: Mapping[str, Any]) -> str:
    """The settings of a space as a reader wants them."""
    return f"learned similarity over {space['base']['name']}" if is_learned(space) else str(space["name"])


def _copied(space: LearnedSpace) -> LearnedSpace:
    """A copy on the CPU that answers, and that no training reaches."""
    network = copy.deepcopy(space.network).cpu().eval().requires_grad_(False)
    return LearnedSpace(space.base, network)
