"""The gallery: enrolled items that say what a query is, what it is like, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from nearkin.checks import check_between
from nearkin.errors import DataError, ModelError
from nearkin.gallery.answers import Answers, IdentifyBy
from nearkin.gallery.bulk_import import Imported, ParquetPaths, import_files, parquet_files
from nearkin.gallery.calibration import Calibration, Calibrator, note_training_items, training_classes
from nearkin.gallery.checks import (
    check_id,
    check_label,
    check_metadata,
    how_many,
    ids_of,
    is_id,
    points_of_space,
    vector_rows,
)
from nearkin.gallery.condition import condition
from nearkin.gallery.enrolment import enrol, rebuild, replace_vectors, write_enrolled
from nearkin.gallery.layout import layout_of
from nearkin.gallery.map import GalleryMap
from nearkin.gallery.model import (
    GalleryModel,
    QueryEncoder,
    comparison_in_words,
    matching_encoder,
    model_kept,
    open_model,
    settings_of,
)
from nearkin.gallery.parquet import export_items
from nearkin.gallery.places import check_free, check_place, closing_on_error, create_store, open_store, removed_on_error
from nearkin.gallery.review import find_duplicates, stats_of, suspicious_labels
from nearkin.gallery.store import GalleryStore
from nearkin.gallery.values import Duplicates, Item, MapPoint, Match, Neighbour, Settings, Stats, Suspect, Verification
from nearkin.models import Embedder
from nearkin.models.card import Card
from nearkin.models.engines import TORCH, check_engine
from nearkin.spaces import Space, make_space

FilterLike = str | Mapping[str, Any] | None
Parameters = Mapping[str, Any] | None


class Gallery:
    """Items with vectors, labels, metadata and thumbnails, tied to the model that made the vectors.

    Make one with `Gallery.create`, and come back to it with `Gallery.open`. In a local gallery every call that writes
    happens in full or not at all. In Milvus each item does, and an interrupted call is completed by calling it
    again with the same ids. Several threads may use one gallery, and several processes may read it while one writes.

    Example:
        >>> import numpy as np, tempfile
        >>> from nearkin.gallery import Gallery
        >>> folder = tempfile.mkdtemp()
        >>> gallery = Gallery.create(f"{folder}/colours.gallery", dimension=3, name="rgb")
        >>> _ = gallery.add(np.eye(3), labels=["red", "green", "blue"])
        >>> gallery.identify([0.9, 0.1, 0.0]).label
        'red'

    Attributes:
        path: where it is.
        store: what holds its items.
        space: how vectors are compared.
        encoder: what turns an item into a vector; None if the user brings vectors, or the model is not at hand.
        auto_recalibrate: whether `identify` and `verify` recalibrate first when a tenth of the items has changed.
    """

    def __init__(self, path: str | Path, store: GalleryStore, encoder: QueryEncoder | None) -> None:
        self.path = str(path)
        self.store = store
        self._model = GalleryModel(self.path, store, encoder)
        self._calibrator = Calibrator(store, self._model)
        self._answers = Answers(store, self._model, self._calibrator)
        self._map = GalleryMap(store)

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: Embedder | str | Path | None = None,
        items: Any = None,
        labels: Any = None,
        metadata: Any = None,
        *,
        ids: Sequence[str] | None = None,
        dimension: int | None = None,
        name: str | None = None,
        space: str | Space | None = None,
        dtype: str = "float32",
        index: str = "auto",
        index_parameters: Mapping[str, int] | None = None,
        partition: str | None = None,
        partitions: int | None = None,
        engine: str = TORCH,
        skip_bad: bool = False,
        progress: bool = True,
        compare: str | None = None,
    ) -> Gallery:
        """Create a gallery, with its first items if you pass any.

        Args:
            path: a directory to create, such as "shop.gallery"; "milvus://host:19530/collection"; or a Milvus Lite
                file, "shop.db".
            model: what makes the vectors: a model, the path of a run or model file, or the name of a pretrained
                backbone such as "efficientnet-lite0". A local gallery keeps a copy. None: you bring vectors.
            items: the first items, as in `add`.
            labels: as in `add`.
            metadata: as in `add`.
            ids: as in `add`.
            dimension: size of the vectors you bring.
            name: what made these vectors, such as "clip-vit-b32"; for a model a name of your own.
            space: how vectors you bring are compared: "sphere" (by angle, the default), "euclidean", or a space.
            dtype: how vectors are stored: "float32", "float16" for half of the disk, or "int8" for a quarter of disk
                and memory; `precision_loss` says what that costs.
            index: how the gallery is searched: "exact", "hnsw", or "auto": exact up to 500,000 items, in Milvus as the
                server decides. Milvus also has "hnsw-sq8", "ivf-flat", "ivf-sq8", "ivf-pq" and "diskann".
            index_parameters: of an index of Milvus, such as {"M": 16, "ef": 64}.
            partition: in Milvus, a metadata key by whose value, a text that every item must have, items are kept apart:
                a condition on it then searches its partition alone.
            partitions: into how many partitions the values are sorted; None: 64.
            engine: what runs the model until the gallery is closed: "torch", or "onnx" for ONNX Runtime.
            skip_bad: leave out items that cannot be read instead of stopping.
            progress: show a progress bar.
            compare: of a model with a learned similarity: by "sim", "cosine", "cosine+sim" or "raw-sum"; None: by what
                its validation found best on classes that did not train, or "sim" where there were none. `comparison`
                says which.
        """
        check_free(path)
        check_engine(engine)
        if items is None and any(given is not None for given in (labels, metadata, ids)):
            raise DataError("You passed labels, metadata or ids but no items: pass the items too.")
        embedder = None if model is None else open_model(model)
        layout = layout_of(index, index_parameters, partition, partitions)
        settings = settings_of(embedder, dimension, name, space, dtype, compare)
        encoder = None if embedder is None else QueryEncoder(embedder, engine)
        with removed_on_error(path) as making, model_kept(path, settings, embedder) as settings:
            making.append(create_store(path, settings, layout))
            gallery = cls(path, making[0], encoder)
            if training_classes(gallery.card):
                note_training_items(gallery.store, gallery.card)
            if items is not None:
                gallery.add(items, labels, metadata, ids=ids, skip_bad=skip_bad, progress=progress)
        return gallery

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: Embedder | str | Path | None = None,
        *,
        index: str | None = None,
        engine: str = TORCH,
    ) -> Gallery:
        """Open a gallery.

        Args:
            path: as in `create`.
            model: the model it was made with, where the store does not keep it (Milvus): needed to query with images.
            index: search by another index this time: "exact", "hnsw" or "auto".
            engine: what runs the model: "torch", or "onnx" for ONNX Runtime.
        """
        check_engine(engine)
        with closing_on_error(open_store(path, index)) as store:
            return cls(path, store, matching_encoder(path, store.settings, model, engine))

    @property
    def encoder(self) -> QueryEncoder | None:
        """What turns an item into a vector; None if the user brings vectors, or the model is not at hand.

        If another process has rebuilt the gallery with another model, it is the copy of that one.
        """
        return self._model.encoder

    @property
    def space(self) -> Space:
        """How vectors are compared; by the learned similarity of the model where it has one."""
        return self._model.space

    @property
    def comparison(self) -> str | None:
        """Which score compares items, and what the model's validation found of each; None where there is no choice."""
        return comparison_in_words(self.settings, self.card)

    def close(self) -> None:
        """Close files and connections."""
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
    def card(self) -> Card:
        """What is known of the model; empty for vectors you bring."""
        return self._model.card

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
        self, *, after: str | None = None, limit: int = 100, where: FilterLike = None, parameters: Parameters = None
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
        return self._model.embed(queries)

    def identify(self, query: Any, *, neighbours: int = 10, by: IdentifyBy = "neighbours") -> Match:
        """Identify a query: the likeliest class, how sure that is, and whether it is of any enrolled class at all.

        Args:
            query: an image (path, bytes, PIL image, array of pixels), or a vector (d,) you bring.
            neighbours: how many of the nearest items to show.
            by: what names the class: the nearest "neighbours", or "prototypes", the means of the classes' items;
                whether the query is known at all is said by its neighbours.
        """
        return self.identify_vectors(self.embed(self._model.single(query)), neighbours=neighbours, by=by)[0]

    def identify_many(self, queries: Any, *, neighbours: int = 10, by: IdentifyBy = "neighbours") -> list[Match]:
        """`identify` for several images, as `embed` takes them, or vectors (q, d)."""
        return self.identify_vectors(self.embed(queries), neighbours=neighbours, by=by)

    def identify_vectors(
        self, vectors: np.ndarray, *, neighbours: int = 10, progress: bool = False, by: IdentifyBy = "neighbours"
    ) -> list[Match]:
        """`identify` for vectors (q, d) that `embed` gave.

        Args:
            vectors: the queries.
            neighbours: how many of the nearest items to show.
            progress: show a progress bar if the gallery must be calibrated first.
            by: as in `identify`.
        """
        return self._answers.identify(vectors, neighbours, by, progress)

    def search(
        self, query: Any, k: int = 10, *, where: FilterLike = None, parameters: Parameters = None
    ) -> list[Neighbour]:
        """The k items most like a query, nearest first.

        Args:
            query: as in `identify`.
            k: how many.
            where: only among items that fulfil this, as in `items`.
            parameters: values of `:name` in the condition.
        """
        return self.search_vectors(self.embed(self._model.single(query)), k, where=where, parameters=parameters)[0]

    def search_many(
        self, queries: Any, k: int = 10, *, where: FilterLike = None, parameters: Parameters = None
    ) -> list[list[Neighbour]]:
        """`search` for several images, as `embed` takes them, or vectors (q, d)."""
        return self.search_vectors(self.embed(queries), k, where=where, parameters=parameters)

    def search_vectors(
        self, vectors: np.ndarray, k: int = 10, *, where: FilterLike = None, parameters: Parameters = None
    ) -> list[list[Neighbour]]:
        """`search` for vectors (q, d) that `embed` gave."""
        return self._answers.nearest(vectors, k, where, parameters)

    def verify(self, a: Any, b: Any, *, false_accept_rate: float = 0.001, prior: float = 0.5) -> Verification:
        """Tell whether two samples are of the same class.

        Args:
            a: an image, or a vector you bring; the enrolled one where a learned similarity is not symmetric.
            b: another; the query there.
            false_accept_rate: the share of pairs of different classes that may be taken for the same.
            prior: the share of such pairs that are of one class, before anything is known of these two. The probability
                depends on it, the decision does not.
        """
        check_between(prior, "prior")
        x, y = (self.embed(self._model.single(one))[0] for one in (a, b))
        return self.verify_vectors(x, y, false_accept_rate=false_accept_rate, prior=prior)

    def verify_vectors(
        self,
        a: np.ndarray,
        b: np.ndarray,
        *,
        false_accept_rate: float = 0.001,
        prior: float = 0.5,
        progress: bool = False,
    ) -> Verification:
        """`verify` for vectors (d,) that `embed` gave; `progress` as in `identify_vectors`."""
        return self._answers.verify(a, b, false_accept_rate, prior, progress)

    def find_duplicates(
        self, distance: float | None = None, *, limit: int = 1000, progress: bool = False
    ) -> list[Duplicates]:
        """Groups of near duplicates, closest first.

        Args:
            distance: how near two items must be; None chooses by the gallery's own distances.
            limit: how many groups.
            progress: show a progress bar.
        """
        return find_duplicates(self.store, distance=distance, limit=how_many(limit, "limit"), progress=progress)

    def suspicious_labels(self, *, limit: int = 100, progress: bool = False) -> list[Suspect]:
        """Items whose neighbours suggest another label, most suspicious first.

        Args:
            limit: how many.
            progress: show a progress bar.
        """
        most = how_many(limit, "limit")
        return suspicious_labels(self.store, self._calibrator.calibrated(progress), limit=most, progress=progress)

    def stats(self) -> Stats:
        """What is in the gallery."""
        return stats_of(self.store, self.calibration)

    def map(self, limit: int = 2000) -> list[MapPoint]:
        """Items in the plane, like ones near each other; of more than `limit` items a sample."""
        return self._map.made(how_many(limit, "limit"))[0]

    def place(self, vector: np.ndarray, limit: int = 2000) -> tuple[float, float]:
        """Where a vector (d,) that `embed` gave lies in that map, about."""
        return self._map.made(how_many(limit, "limit"))[1].place(vector_rows(vector, self.settings.dimension)[0])

    @property
    def auto_recalibrate(self) -> bool:
        """Whether queries recalibrate first when that is due; else they use the last calibration."""
        return self._calibrator.auto

    @auto_recalibrate.setter
    def auto_recalibrate(self, value: bool) -> None:
        self._calibrator.auto = value

    @property
    def calibration(self) -> Calibration | None:
        """The last calibration: temperature and thresholds; None if there was none yet."""
        return self._calibrator.current()

    @property
    def calibration_due(self) -> bool:
        """Whether there was no calibration yet, or a tenth of the items has changed since."""
        return self._calibrator.due()

    def recalibrate(
        self, *, accept: float | None = None, strangers: float | None = None, progress: bool = False
    ) -> Calibration:
        """Fit temperature and thresholds to the gallery as it is now.

        Args:
            accept: the share of queries of enrolled classes not to count as unknown; None: as before (default: 0.95).
            strangers: the largest share of queries of classes that are not enrolled that may count as known, up to 1;
                None: as before (default: 0.1).
            progress: show a progress bar.
        """
        return self._calibrator.refit(accept, strangers, progress)

    def reliability(self) -> dict[str, Any]:
        """How often the gallery is right about its own items, each left out in turn, by how sure it was."""
        return self._calibrator.calibrated().reliability()

    def add(
        self,
        items: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        ids: Sequence[str] | None = None,
        skip_bad: bool = False,
        progress: bool = True,
    ) -> list[str]:
        """Add items: all of them, or none if anything is wrong with what is given. Returns their ids.

        Everything is held in memory until it is written: add very many images in parts.

        Args:
            items: a folder (one folder per class, or flat), zip, manifest, catalogue name or `Dataset`; an image or a
                list of images (paths, bytes of files, PIL images, arrays of pixels); or vectors (n, d) you bring.
            labels: a label for all, or one for each, None for an item without; left out: those of the folder.
            metadata: facts for all, or for each: a mapping of names to texts, numbers, truth values or None.
            ids: a name for each; an item that has it already is replaced. Left out: new names, in order of time.
            skip_bad: leave out items that cannot be read instead of stopping.
            progress: show a progress bar.
        """
        given = enrol(self._model, items, labels, metadata, ids, skip_bad=skip_bad, progress=progress)
        return write_enrolled(self._model, *given)

    def enrol(self, label: str, items: Any, *, metadata: Any = None) -> list[str]:
        """Add a class from a handful of examples, or more examples of one; nothing is trained. Returns their ids.

        Raises:
            DataError: if there are no examples, or one cannot be read.
        """
        records, vectors, trained = enrol(self._model, items, check_label(label), metadata, None)
        if not records:
            raise DataError(f"There are no examples of '{label}': give at least one.")
        return write_enrolled(self._model, records, vectors, trained)

    def remove(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        label: str | None = None,
        where: FilterLike = None,
        parameters: Parameters = None,
    ) -> int:
        """Remove items by id, or all of a label, or all that fulfil a condition; how many there were.

        Given together they narrow each other down: an item is removed if all that is given holds of it.

        Args:
            ids: one, or several; those that no item has are left alone.
            label: only items of this label.
            where: only items that fulfil this, as in `items`.
            parameters: values of `:name` in the condition.

        Raises:
            DataError: if nothing says which.
        """
        if ids is None and label is None and where is None:
            raise DataError("Pass ids, a label or a condition to say which items to remove.")
        chosen = [] if ids is None else ids_of(ids)
        if label is not None or where is not None:
            wanted = {} if label is None else {"label": check_label(label)}
            among = self.store.ids_where(condition(where, parameters), **wanted)
            chosen = among if ids is None else [id for id in among if id in set(chosen)]
        return self.store.remove(chosen)

    def relabel(self, ids: str | Sequence[str], label: str | None) -> int:
        """Give items another label, or none; how many there were."""
        return self.store.update(ids_of(ids), label=None if label is None else check_label(label))

    def describe(self, id: str, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of an item."""
        self.change(id, metadata=metadata)

    def change(self, id: str, *, label: Any = ..., metadata: Any = ...) -> None:
        """Give an item another label (None: none), other metadata, or both at once; `...` leaves one as it is.

        Raises:
            DataError: if there is no such item, or something is wrong with what is given; nothing is changed then.
        """
        new: dict[str, Any] = {}
        if label is not ...:
            new["label"] = None if label is None else check_label(label)
        if metadata is not ...:
            new["metadata"] = check_metadata(metadata)
        self.get(id)
        if new and not self.store.update([id], **new):
            self.get(id)  # it was removed in between: say so

    def rebuild(self, model: Embedder | str | Path, *, missing: str = "error", progress: bool = True) -> None:
        """Embed all items again with another model; the old vectors stay in use until the last new one is there.

        How they are compared is chosen anew, as `create` does.

        Args:
            model: as in `create`.
            missing: what to do with items whose file is gone or damaged: "error" stops and leaves everything as it
                is, "drop" removes them.
            progress: show a progress bar.
        """
        with self._model.exchanged(model) as (encoder, settings):
            rebuild(self.store, encoder, settings, missing=missing, progress=progress)

    def replace_vectors(
        self, ids: Sequence[str], vectors: Any, *, name: str | None = None, space: str | Space | None = None
    ) -> None:
        """Give all items of a gallery of your own vectors new ones, perhaps of another kind, at once.

        Args:
            ids: all items, each once, in the order of `vectors`.
            vectors: (n, d); d may differ from before.
            name: what made them; None: as before.
            space: how they are compared; None: as before.
        """
        if self.settings.kind != "vector":
            raise ModelError("The vectors of this gallery come from its model: use `rebuild` with another model.")
        rows = vector_rows(vectors, None)
        kind, called = self.space if space is None else space, self.settings.name if name is None else name
        settings = settings_of(None, rows.shape[1], called, kind, self.settings.dtype)
        replace_vectors(self.store, settings, ids_of(ids), points_of_space(make_space(**settings.space), rows))

    def set_index(self, index: str, parameters: Mapping[str, int] | None = None) -> None:
        """Search the gallery by another index, from now on and for everybody who opens it; as in `create`."""
        before = self.store.layout
        made = layout_of(index, parameters)
        self.store.set_layout(replace(made, partition=before.partition, partitions=before.partitions))

    def export(self, path: str | Path) -> int:
        """Write all items with vectors and thumbnails as one Parquet file; how many there were."""
        check_place(path)
        return export_items(self.store, path)

    def import_(self, path: ParquetPaths) -> int:
        """`import_files` of files that `export` or `nearkin embed` wrote; how many rows they have."""
        return self.import_files(path).rows

    def import_files(
        self, path: ParquetPaths, *, id_column: str | None = None, anew: bool = False, progress: bool = False
    ) -> Imported:
        """Add the items of Parquet files that `export` or `nearkin embed` wrote, or that hold vectors of your own.

        Items whose id is there already are replaced. Vectors of another model are refused. Only some rows are held in
        memory at a time; if it is interrupted, the same call resumes where it stopped, on any machine.

        Args:
            path: a file, a folder of them, a pattern such as "vectors/part-*.parquet", or several of these.
            id_column: which column names the items; None: the column id. Without it, items of several files are named
                by their path, and those of one file by path, row and vector.
            anew: write everything again, also what an interrupted import has written.
            progress: show a progress bar.
        """
        files = parquet_files(path)
        if training_classes(self.card):  # nobody knows what their vectors were made of
            note_training_items(self.store, self.card, None)
        return import_files(self.store, self.space, files, id_column=id_column, anew=anew, progress=progress)
