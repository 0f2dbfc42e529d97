"""What a gallery answers: items, neighbours, what a query is, and what the gallery says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from nearkin.errors import DataError, ModelError
from nearkin.gallery.answers import Answers
from nearkin.gallery.arrays import check_pixels, several
from nearkin.gallery.calibration import Calibration
from nearkin.gallery.checks import vector_rows
from nearkin.gallery.duplicates import find_duplicates
from nearkin.gallery.encoding import QueryEncoder
from nearkin.gallery.kept_similarity import KeptSimilarity
from nearkin.gallery.landscape import Landscape
from nearkin.gallery.projecting import projected
from nearkin.gallery.questions import check_id, how_many, is_id
from nearkin.gallery.store import Store
from nearkin.gallery.suspects import suspicious_labels
from nearkin.gallery.tie import matching_model
from nearkin.gallery.values import Duplicates, Item, MapPoint, Match, Neighbour, Settings, Stats, Suspect, Verification
from nearkin.gallery.where import condition
from nearkin.models.engines import TORCH
from nearkin.spaces import Space

Where = str | Mapping[str, Any] | None


class GalleryReader:
    """A gallery as those who ask see it; `Gallery` adds what changes it.

    Args:
        path: where it is.
        store: what holds its items.
        encoder: what turns an item into a vector; None if the user brings vectors, or the model is not at hand.
    """

    def __init__(self, path: str | Path, store: Store, encoder: QueryEncoder | None) -> None:
        self.path = str(path)
        self.store = store
        self._answers = Answers(store)
        self._landscape = Landscape(store)
        self._engine = TORCH if encoder is None else encoder.engine
        self._take(encoder)

    @property
    def encoder(self) -> QueryEncoder | None:
        """What turns an item into a vector; None if the user brings vectors, or the model is not at hand.

        If another process has rebuilt the gallery with another model, it is the copy of that one.
        """
        settings = self.store.settings
        if settings.fingerprint != self._tied.fingerprint:
            embedder = matching_model(self.path, settings, None)
            self._take(None if embedder is None else QueryEncoder(embedder, self._engine))
        return self._encoder

    def _take(self, encoder: QueryEncoder | None) -> None:
        """Go by the model that the store is tied to now, and let the store compare by it."""
        self._tied, self._encoder = self.store.settings, encoder
        space = self.store.space
        if encoder is not None and isinstance(space, KeptSimilarity):
            space.give(encoder.embedder)

    @property
    def space(self) -> Space:
        """How vectors are compared; by the learned similarity of the model where it has one."""
        space = self.store.space
        return space.learned if isinstance(space, KeptSimilarity) else space

    def close(self) -> None:
        """Let go of files and connections."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.store)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and is_id(id) and self.store.get([id])[0] is not None

    def __repr__(self) -> str:
        return f"Gallery({self.path!r}, {len(self):,} items of {self.settings.name})"

    @property
    def settings(self) -> Settings:
        """What the gallery is tied to."""
        return self.store.settings

    @property
    def card(self) -> dict[str, Any]:
        """What is known of the model; empty for vectors you bring."""
        encoder = self.encoder
        return {} if encoder is None else encoder.embedder.card

    def get(self, id: str) -> Item:
        """An item by its id.

        Raises:
            DataError: if there is none.
        """
        item = self.store.get([id])[0] if is_id(id) else None
        if item is None:
            raise DataError(f"There is no item {str(id)[:200]!r} in the gallery: `items` lists them.")
        return item

    def items(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        where: Where = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> list[Item]:
        """A page of items, ordered by id.

        Args:
            after: those after this id, the last one of the page before.
            limit: how many.
            where: a condition on label, id, source, added and metadata, such as "price < 20 and brand = 'Acme'", or a
                mapping of names to the values they must have. docs/guide/gallery.md has the grammar.
            parameters: values of `:name` in the condition.
        """
        start = None if after is None else check_id(after)
        return self.store.page(after=start, limit=how_many(limit, "limit"), where=condition(where, parameters))

    def thumbnail(self, id: str) -> bytes | None:
        """A JPEG of at most 160 pixels a side; None if the item has none."""
        return self.store.thumbnail(check_id(id))

    def embed(self, queries: Any) -> np.ndarray:
        """Vectors float32 (q, d), points of the space: of images, or of vectors you bring.

        Args:
            queries: one image as in `identify` or several: a list, an array (q, H, W, 3), or anything else that gives
                one after the other; or vectors (q, d).
        """
        if self.settings.kind == "vector":
            return self._points(vector_rows(queries, self.settings.dimension))
        encoder, items = self._asked_encoder(), several(queries)
        for number, item in enumerate(items):
            check_pixels(item, encoder.spec.kind, "The query" if len(items) == 1 else f"Query {number}")
        return encoder.encode(items)

    def identify(self, query: Any, *, neighbours: int = 10) -> Match:
        """Say what a query is: the likeliest class, how sure that is, whether it is of any enrolled class at all.

        Args:
            query: an image (path, bytes, PIL image, array of pixels), or a vector (d,) you bring.
            neighbours: how many of the nearest items to show.
        """
        return self.identify_vectors(self.embed(self._single(query)), neighbours=neighbours)[0]

    def identify_many(self, queries: Any, *, neighbours: int = 10) -> list[Match]:
        """`identify` for several images, as `embed` takes them, or vectors (q, d)."""
        return self.identify_vectors(self.embed(queries), neighbours=neighbours)

    def identify_vectors(self, vectors: np.ndarray, *, neighbours: int = 10, progress: bool = False) -> list[Match]:
        """`identify` for vectors (q, d) that `embed` gave.

        Args:
            vectors: the queries.
            neighbours: how many of the nearest items to show.
            progress: show a progress bar if the gallery must be learned from first.
        """
        return self._answers.identify(self._checked(vectors), how_many(neighbours, "neighbours"), progress)

    def search(
        self, query: Any, k: int = 10, *, where: Where = None, parameters: Mapping[str, Any] | None = None
    ) -> list[Neighbour]:
        """The k items most like a query, nearest first.

        Args:
            query: as in `identify`.
            k: how many.
            where: only among items that fulfil this, as in `items`.
            parameters: values of `:name` in the condition.
        """
        return self.search_vectors(self.embed(self._single(query)), k, where=where, parameters=parameters)[0]

    def search_many(
        self, queries: Any, k: int = 10, *, where: Where = None, parameters: Mapping[str, Any] | None = None
    ) -> list[list[Neighbour]]:
        """`search` for several images, as `embed` takes them, or vectors (q, d)."""
        return self.search_vectors(self.embed(queries), k, where=where, parameters=parameters)

    def search_vectors(
        self, vectors: np.ndarray, k: int = 10, *, where: Where = None, parameters: Mapping[str, Any] | None = None
    ) -> list[list[Neighbour]]:
        """`search` for vectors (q, d) that `embed` gave."""
        return self._answers.search(self._checked(vectors), how_many(k, "k"), condition(where, parameters))

    def verify(self, a: Any, b: Any, *, false_accept_rate: float = 0.001) -> Verification:
        """Say whether two samples are of one class.

        Args:
            a: an image, or a vector you bring; the enrolled one where a learned similarity is not symmetric.
            b: another; the query there.
            false_accept_rate: the share of pairs of different classes that may be taken for the same.
        """
        x, y = (self.embed(self._single(one))[0] for one in (a, b))
        return self.verify_vectors(x, y, false_accept_rate=false_accept_rate)

    def verify_vectors(
        self, a: np.ndarray, b: np.ndarray, *, false_accept_rate: float = 0.001, progress: bool = False
    ) -> Verification:
        """`verify` for vectors (d,) that `embed` gave; `progress` as in `identify_vectors`."""
        return self._answers.verify(self._checked(a)[0], self._checked(b)[0], false_accept_rate, progress)

    # What the gallery says of itself.

    def find_duplicates(
        self, distance: float | None = None, *, limit: int = 1000, progress: bool = False
    ) -> list[Duplicates]:
        """Groups of items that are almost the same, closest first.

        Args:
            distance: how near two items must be; None chooses by the gallery's own distances.
            limit: how many groups.
            progress: show a progress bar.
        """
        return find_duplicates(self.store, distance=distance, limit=how_many(limit, "limit"), progress=progress)

    def suspicious_labels(self, *, limit: int = 100, progress: bool = False) -> list[Suspect]:
        """Items whose neighbours speak for another label than they have, most suspicious first.

        Args:
            limit: how many.
            progress: show a progress bar.
        """
        most = how_many(limit, "limit")
        return suspicious_labels(self.store, self._answers.calibrated(progress), limit=most, progress=progress)

    def stats(self) -> Stats:
        """What is in the gallery."""
        sizes = dict(self.store.class_sizes())
        unlabelled = sizes.pop(None, 0)
        named = {str(name): count for name, count in sizes.items()}
        fitted = self.calibration
        return Stats(
            settings=self.settings,
            items=len(self.store),
            unlabelled=unlabelled,
            classes=dict(sorted(named.items(), key=lambda pair: (-pair[1], pair[0]))),
            generation=self.store.generation,
            index=self.store.kind,
            size=self.store.size(),
            calibration=None if fitted is None else fitted.to_dict(),
            notes=() if fitted is None else tuple(fitted.notes),
            layout=self.store.layout.in_words(),
        )

    def map(self, limit: int = 2000) -> list[MapPoint]:
        """Items in the plane, like ones near each other; of more than `limit` items a sample."""
        return self._landscape.points(how_many(limit, "limit"))

    def place(self, vector: np.ndarray, limit: int = 2000) -> tuple[float, float]:
        """Where a vector (d,) that `embed` gave lies in that map, about."""
        return self._landscape.place(self._checked(vector)[0], how_many(limit, "limit"))

    @property
    def auto_recalibrate(self) -> bool:
        """Whether questions first learn anew when that is due; else they go by what was learned last."""
        return self._answers.auto

    @auto_recalibrate.setter
    def auto_recalibrate(self, value: bool) -> None:
        self._answers.auto = value

    @property
    def calibration(self) -> Calibration | None:
        """What was learned last of the gallery itself: temperature and thresholds; None if nothing was yet."""
        return self._answers.current()

    @property
    def calibration_due(self) -> bool:
        """Whether nothing was learned yet, or a tenth of the items has changed since."""
        return self._answers.due()

    def recalibrate(self, *, accept: float | None = None, progress: bool = False) -> Calibration:
        """Learn temperature and thresholds anew from the gallery as it is.

        Args:
            accept: the share of queries of enrolled classes that is to count as known; None: as before, at first 0.95.
            progress: show a progress bar.
        """
        return self._answers.refit(accept, progress)

    def reliability(self) -> dict[str, Any]:
        """How often the gallery is right about its own items, each left out in turn, by how sure it was."""
        return self._answers.calibrated().reliability()

    def _asked_encoder(self) -> QueryEncoder:
        encoder = self.encoder
        if encoder is None:
            raise ModelError(
                f"This gallery does not keep the model '{self.settings.name}' that made its vectors: open it with that "
                "model to use images."
            )
        return encoder

    def _single(self, query: Any) -> Any:
        """One query in a form that `embed` takes for one."""
        if self.settings.kind != "vector":
            return [query]
        rows = vector_rows(query, self.settings.dimension)
        if len(rows) != 1:
            raise DataError(
                f"One query is one vector, not {len(rows)}: ask about one at a time, or about many at once."
            )
        return rows

    def _points(self, rows: np.ndarray) -> np.ndarray:
        return projected(self.space, rows)

    def _checked(self, vectors: Any) -> np.ndarray:
        return vector_rows(vectors, self.settings.dimension)
