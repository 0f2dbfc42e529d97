"""The model of a gallery: opened, made ready for queries, kept beside the items, exchanged, and its similarity."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_range
from nearkin.errors import DataError, ModelError, StorageError, suggestion
from nearkin.gallery.checks import points_of_space, vector_rows
from nearkin.gallery.dtypes import check_dtype
from nearkin.gallery.places import is_local
from nearkin.gallery.store import GalleryStore
from nearkin.gallery.values import Settings
from nearkin.models import Embedder, ModelSection, build_embedder, list_backbones
from nearkin.models.card import Card
from nearkin.models.engines import TORCH, make_encoder
from nearkin.models.items import Item, ItemLoader, batches, check_pixels, several
from nearkin.models.similarity import LearnedSpace, PairSimilarity
from nearkin.models.similarity_sides import PairScore
from nearkin.search.scorers import Sides
from nearkin.search.workers import lone_threads
from nearkin.spaces import Space, Sphere, make_space

WAYS = get_args(PairScore)
"""How items can be compared where the model has a learned similarity."""


class StoredSimilarity(LearnedSpace):
    """A learned similarity as a space, read from the gallery's copy of the model when it is first needed.

    Its network is a copy: what is trained later does not reach the gallery.

    Args:
        settings: of the gallery; they name the model and its file.
        directory: where that file is; None: nowhere.
    """

    def __init__(self, settings: Settings, directory: Path | None) -> None:
        self.base = make_space(**settings.space["base"])
        self.by = settings.space.get("by", "sim")
        self._settings = settings
        self._directory = directory
        self._reading = Lock()
        self._network: PairSimilarity | None = None
        self._apart: dict[torch.dtype, Sides] = {}

    def __repr__(self) -> str:
        return f"StoredSimilarity({self._settings.fingerprint})"

    @property
    def network(self) -> PairSimilarity:  # type: ignore[override]
        """What compares points.

        Raises:
            StorageError: if the model is not there.
        """
        with self._reading:
            if self._network is None:
                self._network = _copied(self._read())
            return self._network

    def give(self, embedder: Embedder) -> None:
        """Take the similarity of a model that is at hand, if it is the gallery's; nothing need be read then."""
        with self._reading:
            if self._network is None and isinstance(embedder.space, LearnedSpace):
                self._network = _copied(embedder.space)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative similarities (..., n, m) of queries (..., n, d) to enrolled points (..., m, d)."""
        wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
        sides = self.sides(wide)
        return sides.scores(sides.of_queries(x), sides.of_enrolled(y)).neg_()

    def sides(self, dtype: torch.dtype = torch.float32) -> Sides:
        """What each side of a pair adds, taken apart once."""
        if dtype not in self._apart:
            self._apart[dtype] = super().sides(dtype)
        return self._apart[dtype]

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


def _copied(space: LearnedSpace) -> PairSimilarity:
    """A copy of the network on the CPU that answers, and that no training reaches."""
    return copy.deepcopy(space.network).cpu().eval().requires_grad_(False)


def space_of(settings: Settings, directory: Path | None = None) -> Space:
    """How vectors are compared; a learned similarity is not read before it is needed.

    Args:
        settings: of the vectors.
        directory: where the gallery keeps its model.
    """
    return StoredSimilarity(settings, directory) if is_learned(settings.space) else make_space(**settings.space)


def check_space_settings(space: Mapping[str, Any]) -> None:
    """Refuse what describes no space.

    Raises:
        TypeError: if a parameter is not one of the space's.
        NearkinError: if there is no such space.
    """
    if is_learned(space):
        if not isinstance(space.get("base"), Mapping) or set(space) - {"by"} != {"name", "base"}:
            raise TypeError("a learned similarity is described by its name, its base and the score of a pair")
        if space.get("by", "sim") not in WAYS:
            raise TypeError(f"a pair is not scored by {space['by']!r}")
        make_space(**space["base"])
    else:
        make_space(**space)


def is_learned(space: Mapping[str, Any]) -> bool:
    """Whether these settings are of a learned similarity."""
    return space.get("name") == LearnedSpace.name


def space_in_words(space: Mapping[str, Any]) -> str:
    """The settings of a space as a reader wants them."""
    if not is_learned(space):
        return str(space["name"])
    by = "" if space.get("by", "sim") == "sim" else f" ({space['by']})"
    return f"learned similarity over {space['base']['name']}{by}"


_MODEL_FILE = "model.safetensors"

_SHARE = 16
"""Samples that one thread takes at a time: with fewer a network is slower, with more threads wait longer at the end."""


class QueryEncoder:
    """A model made ready for many small questions; safe to call from several threads.

    Args:
        embedder: the model; later training does not reach this copy.
        engine: what runs it: "torch" or "onnx".
    """

    def __init__(self, embedder: Embedder, engine: str = TORCH) -> None:
        self.embedder = embedder
        self.engine = engine
        self.spec = embedder.spec
        self.dimension = embedder.dimension
        self._encoder = make_encoder(embedder, engine)
        self._load = ItemLoader(embedder.spec)
        # Two batches at once would fight over the cores and take longer than one after the other.
        self._network = Lock()
        self._threads: ThreadPoolExecutor | None = None

    def prepare(self, item: Item, name: str = "The query") -> Tensor:
        """Decode one item to the sample (C, H, W) that the network eats.

        Args:
            item: a path, the bytes of a file, an image, an array or a tensor.
            name: what errors call it.
        """
        return self._load(item, name)

    def run(self, samples: Sequence[Tensor]) -> np.ndarray:
        """Vectors float32 (n, d) of samples (C, H, W) each, in one pass of the network unless some are long."""
        if not len(samples):
            return np.empty((0, self.dimension), np.float32)
        parts = batches(samples.__getitem__, len(samples), len(samples), workers=0)
        return np.concatenate([self._through(batch) for batch in parts])

    def encode(self, items: Sequence[Item], *, batch_size: int = 32, workers: int = 2) -> np.ndarray:
        """Vectors float32 (n, d) of items, decoded ahead in threads."""
        if not len(items):
            return np.empty((0, self.dimension), np.float32)
        samples = batches(lambda index: self.prepare(items[index], f"Item {index}"), len(items), batch_size, workers)
        return np.concatenate([self._through(batch) for batch in samples])

    def _through(self, batch: Tensor) -> np.ndarray:
        """Vectors (B, d) of a batch, with torch a share of it in each of as many threads as torch has.

        Within one batch torch's threads wait for each other after every layer, and all of them for one whose core does
        something else meanwhile: decoding, or answering. Shares wait for each other once.
        """
        with self._network:
            count = torch.get_num_threads()
            if count == 1 or len(batch) < 2 * count or not self._encoder.divides:
                return self._encoder(batch).float().cpu().numpy()
            if self._threads is None:
                self._threads = lone_threads(count, "nearkin-encode")
            shares = batch.chunk(max(count, -(-len(batch) // _SHARE)))
            return np.concatenate([part.float().numpy() for part in self._threads.map(self._encoder, shares)])


def open_model(model: Any) -> Embedder:
    """A model from a model, the path of a run or of a model file, or the name of a pretrained backbone.

    Raises:
        ModelError: if it is none of these.
    """
    if isinstance(model, Embedder):
        return model
    if not isinstance(model, str | Path):
        raise ModelError(
            f"A gallery needs a model, the path of one, or the name of a backbone, not a {type(model).__name__}."
        )
    path = Path(model)
    if path.is_dir():
        return Embedder.load(path / _MODEL_FILE)
    if path.suffix == ".onnx":
        raise ModelError(
            f"A gallery keeps a model that can be loaded again, which {path} cannot: give the run or model file it was "
            "exported from, with the engine 'onnx'."
        )
    if path.exists():
        return Embedder.load(path)
    names = list_backbones()
    if str(model) in names:
        return pretrained(str(model))
    raise ModelError(f"There is no run, model file or backbone '{model}'.{suggestion(str(model), names)}")


def pretrained(backbone: str) -> Embedder:
    """A backbone as it comes, with pretrained weights and average pooling, on the sphere: a model nobody trained."""
    section = ModelSection(backbone=backbone, pretrained=True, pooling="gap", dimension=None, space="sphere")
    embedder = build_embedder(section)
    embedder.card = Card(name=backbone, note="Pretrained features, not trained on your data.")
    return embedder.eval()


_LONGEST_NAME = 200


def settings_of(
    embedder: Embedder | None,
    dimension: int | None,
    name: str | None,
    space: Any,
    dtype: str,
    compare: str | None = None,
) -> Settings:
    """What a gallery is tied to, from what `create` was given."""
    check_dtype(dtype, {})
    if compare is not None and (embedder is None or not isinstance(embedder.space, LearnedSpace)):
        raise DataError(
            "compare= chooses among the scores of a learned similarity, and there is none: leave it out, or give a "
            "model that the recipe learned-similarity has trained."
        )
    if embedder is not None:
        if dimension is not None or space is not None:
            raise DataError("The model sets the dimension and the space: leave both out.")
        method = embedder.card.recipe.get("name")
        usual = embedder.backbone_name if not method else f"{embedder.backbone_name} ({method})"
        return Settings(
            name=usual if name is None else _checked_name(name),
            dimension=embedder.dimension,
            space=_space_of_model(embedder, compare).to_dict(),
            dtype=dtype,
            fingerprint=embedder.fingerprint(),
            kind=embedder.spec.kind,
        )
    if dimension is None or name is None:
        raise DataError("A gallery needs a model, or a dimension and a name for vectors of your own.")
    check_range(dimension, "dimension", 1, 65_536)
    return Settings(name=_checked_name(name), dimension=int(dimension), space=_space(space).to_dict(), dtype=dtype)


def _space_of_model(embedder: Embedder, compare: str | None) -> Space:
    """How a model's embeddings are compared: as asked, else as its validation on unseen classes found best, or by S."""
    space = embedder.space
    if not isinstance(space, LearnedSpace):
        return space
    way: Any = (embedder.card.compared or {}).get("best", "sim") if compare is None else compare
    if way not in WAYS:
        raise DataError(f"Items cannot be compared by '{way}'.{suggestion(str(way), WAYS)}")
    return Sphere() if way == "cosine" else LearnedSpace(space.base, space.network, way)


def comparison_in_words(settings: Settings, card: Card) -> str | None:
    """By which score a gallery of a model with a learned similarity compares, and what its validation found."""
    if card.compared is None:
        return None
    way = settings.space.get("by", "sim") if is_learned(settings.space) else "cosine"
    found = ", ".join(f"{100 * value:.1f} by {name}" for name, value in card.compared["MAP@R"].items())
    best = card.compared["best"]
    told = "which was best" if way == best else f"where {best} was best"
    return f"Compared by {way}, {told} on the model's validation classes (MAP@R in %: {found})."


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
        raise DataError(f"`name` must be a text of 1 to {_LONGEST_NAME} printable characters, not {shown}.")
    return str(name)


@contextmanager
def model_kept(path: str | Path, settings: Settings, embedder: Embedder | None) -> Iterator[Settings]:
    """Settings that name the copy of a model kept where the store can; if the block fails, a new copy is removed."""
    if embedder is None or not is_local(path):
        yield settings
        return
    file = Path(path) / f"model-{str(settings.fingerprint)[:12]}.safetensors"
    there = file.exists()
    try:
        if not there:
            embedder.save(file)
        yield replace(settings, model=file.name)
    except BaseException:
        if not there:
            file.unlink(missing_ok=True)
        raise


def matching_encoder(path: str | Path, settings: Settings, model: Any, engine: str) -> QueryEncoder | None:
    """What turns items into vectors by the model that a gallery is tied to, if that is at hand."""
    if settings.kind == "vector":
        if model is not None:
            raise ModelError(f"{path} holds your own vectors ('{settings.name}'): it takes no model.")
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
    return QueryEncoder(embedder, engine)


class GalleryModel:
    """The model that a gallery is tied to now: what it makes of queries, and how their vectors are compared.

    Args:
        path: where the gallery is.
        store: what holds its items.
        encoder: what turns an item into a vector; None if the user brings vectors, or the model is not at hand.

    Attributes:
        card_in_use: of the encoder that was used last; `card` looks whether there is another by now.
    """

    def __init__(self, path: str, store: GalleryStore, encoder: QueryEncoder | None) -> None:
        self.path = path
        self.store = store
        self._engine = TORCH if encoder is None else encoder.engine
        self._take(encoder)

    def _take(self, encoder: QueryEncoder | None) -> None:
        """Go by the model that the store is tied to now, and let the store compare by it."""
        self._tied, self._encoder = self.store.settings, encoder
        self.card_in_use = Card() if encoder is None else encoder.embedder.card
        space = self.store.space
        if encoder is not None and isinstance(space, StoredSimilarity):
            space.give(encoder.embedder)

    @property
    def encoder(self) -> QueryEncoder | None:
        """As `Gallery.encoder`."""
        settings = self.store.settings
        if settings.fingerprint != self._tied.fingerprint:
            self._take(matching_encoder(self.path, settings, None, self._engine))
        return self._encoder

    @property
    def needed_encoder(self) -> QueryEncoder:
        """The same, where there must be one."""
        encoder = self.encoder
        if encoder is None:
            raise ModelError(
                f"This gallery does not keep the model '{self.store.settings.name}' that made its vectors: open it "
                "with that model to pass images."
            )
        return encoder

    @property
    def card(self) -> Card:
        """What is known of the model; empty for vectors of the user's."""
        encoder = self.encoder
        return Card() if encoder is None else encoder.embedder.card

    @property
    def space(self) -> Space:
        """How vectors are compared; by the learned similarity of the model where it has one."""
        space = self.store.space
        return LearnedSpace(space.base, space.network, space.by) if isinstance(space, StoredSimilarity) else space

    def embed(self, queries: Any) -> np.ndarray:
        """Vectors float32 (q, d), points of the space, of images or vectors as `Gallery.embed` takes them."""
        settings = self.store.settings
        if settings.kind == "vector":
            return points_of_space(self.space, vector_rows(queries, settings.dimension))
        encoder, items = self.needed_encoder, several(queries)
        for number, item in enumerate(items):
            check_pixels(item, encoder.spec.kind, "The query" if len(items) == 1 else f"Query {number}")
        return encoder.encode(items)

    def single(self, query: Any) -> Any:
        """One query in a form that `embed` takes for one."""
        if self.store.settings.kind != "vector":
            return [query]
        rows = vector_rows(query, self.store.settings.dimension)
        if len(rows) == 1:
            return rows
        raise DataError(f"Expected one query vector, not {len(rows)}: use `identify_many` or `search_many` for more.")

    @contextmanager
    def exchanged(self, model: Any) -> Iterator[tuple[QueryEncoder, Settings]]:
        """Another model, made ready and kept, by which the block embeds all items; then the gallery is tied to it."""
        if self.store.settings.kind == "vector":
            raise ModelError(
                "This gallery holds your own vectors, which no model can compute again: pass new ones to "
                "`Gallery.replace_vectors`."
            )
        embedder = open_model(model)
        encoder = QueryEncoder(embedder, self._engine)
        settings = settings_of(embedder, None, None, None, self.store.settings.dtype)
        with model_kept(self.path, settings, embedder) as settings:
            yield encoder, settings
        self._take(encoder)
        for file in Path(self.path).glob("model-*.safetensors") if is_local(self.path) else ():
            if file.name != settings.model:
                file.unlink(missing_ok=True)
