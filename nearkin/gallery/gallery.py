"""The gallery: enrolled items that say what a query is, what it is like, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearkin.errors import DataError, ModelError
from nearkin.gallery.bulk import Imported, import_files
from nearkin.gallery.creation import undone_on_error
from nearkin.gallery.encoding import QueryEncoder, open_model
from nearkin.gallery.enrolment import Enrolment, enrol_items, enrol_vectors
from nearkin.gallery.inputs import check_label, check_metadata, listed, vector_rows
from nearkin.gallery.layout import Layout, layout_of
from nearkin.gallery.parquet import export_items
from nearkin.gallery.places import check_free, check_place, create_store, is_local, open_store
from nearkin.gallery.projecting import projected
from nearkin.gallery.questions import ids_of
from nearkin.gallery.reading import GalleryReader, Where
from nearkin.gallery.rebuilding import check_kind, check_missing, rebuild, replace_vectors
from nearkin.gallery.shards import Given, parquet_files
from nearkin.gallery.tie import forget_other_models, keep_model, matching_model, model_kept_on_success, settings_of
from nearkin.gallery.where import condition
from nearkin.models import Embedder
from nearkin.models.engines import TORCH, check_engine
from nearkin.spaces import Space, make_space


class Gallery(GalleryReader):
    """Items with vectors, labels, metadata and thumbnails, tied to the model that made the vectors.

    Make one with `Gallery.create`, and come back to it with `Gallery.open`. In a local gallery every call that writes
    happens in full or not at all. In Milvus each item does, and a call that was cut off is completed by calling it
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
        auto_recalibrate: whether `identify` and `verify` first learn anew when a tenth of the items has changed.
    """

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
    ) -> Gallery:
        """Make a gallery, with its first items if there are any.

        Args:
            path: a directory to be made, such as "shop.gallery"; "milvus://host:19530/collection"; or a Milvus Lite
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
                server thinks best. Milvus also has "hnsw-sq8", "ivf-flat", "ivf-sq8", "ivf-pq" and "diskann".
            index_parameters: of an index of Milvus, such as {"M": 16, "ef": 64}.
            partition: in Milvus, a metadata key by whose value, a text that every item must have, items are kept apart:
                a condition on it then searches its partition alone.
            partitions: into how many partitions the values are sorted; None: 64.
            engine: what runs the model until the gallery is closed: "torch", or "onnx" for ONNX Runtime.
            skip_bad: leave out items that cannot be read instead of stopping.
            progress: show a progress bar.
        """
        check_free(path)
        check_engine(engine)
        if items is None and any(given is not None for given in (labels, metadata, ids)):
            raise DataError("There are labels, metadata or ids and no items that they are of: give the items too.")
        embedder = None if model is None else open_model(model)
        layout = layout_of(index, index_parameters, partition, partitions)
        settings = settings_of(embedder, dimension, name, space, dtype)
        encoder = None if embedder is None else QueryEncoder(embedder, engine)
        with undone_on_error(path) as making:
            if embedder is not None and is_local(path):
                settings = keep_model(Path(path), settings, embedder)
            making.store = create_store(path, settings, layout)
            gallery = cls(path, making.store, encoder)
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
        """Come back to a gallery.

        Args:
            path: as in `create`.
            model: the model it was made with, where the store does not keep it (Milvus): needed to ask with images.
            index: search in another way than the gallery was made for: "exact", "hnsw" or "auto".
            engine: what runs the model: "torch", or "onnx" for ONNX Runtime.
        """
        check_engine(engine)
        store = open_store(path, index)
        try:
            embedder = matching_model(path, store.settings, model)
            return cls(path, store, None if embedder is None else QueryEncoder(embedder, engine))
        except BaseException:
            store.close()
            raise

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
        return self._enrolment(items, labels, metadata, ids, skip_bad, progress).write(self.store)

    def _enrolment(
        self, items: Any, labels: Any, metadata: Any, ids: Sequence[str] | None, skip_bad: bool, progress: bool
    ) -> Enrolment:
        if self.settings.kind == "vector":
            vectors = self._points(vector_rows(items, self.settings.dimension))
            return enrol_vectors(vectors, labels, metadata, ids)
        given = listed(items, labels, metadata)
        return enrol_items(self._asked_encoder(), given, ids, skip_bad=skip_bad, progress=progress)

    def enrol(self, label: str, items: Any, *, metadata: Any = None) -> list[str]:
        """Add a class from a handful of examples, or more examples of one; nothing is trained. Returns their ids.

        Raises:
            DataError: if there are no examples, or one cannot be read.
        """
        enrolment = self._enrolment(items, check_label(label), metadata, None, False, False)
        if not enrolment.records:
            raise DataError(f"There are no examples of '{label}': give at least one.")
        return enrolment.write(self.store)

    def remove(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        label: str | None = None,
        where: Where = None,
        parameters: Mapping[str, Any] | None = None,
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
            raise DataError("Say which items to remove: by their ids, by a label or by a condition.")
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
        """Replace what is known of an item."""
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
        """Embed all items anew with another model; the old vectors serve until the last new one is there.

        Args:
            model: as in `create`.
            missing: what to do with items whose file is gone or damaged: "error" stops and leaves everything as it
                is, "drop" removes them.
            progress: show a progress bar.
        """
        if self.settings.kind == "vector":
            raise ModelError(
                "This gallery holds vectors you brought, which no model can make anew: bring new vectors for its items "
                "(`Gallery.replace_vectors`)."
            )
        check_missing(missing)
        embedder = open_model(model)
        encoder = QueryEncoder(embedder, self._engine)
        check_kind(self.store, encoder)
        settings = settings_of(embedder, None, None, None, self.settings.dtype)
        with model_kept_on_success(self.path, settings, embedder) as settings:
            rebuild(self.store, encoder, settings, missing=missing, progress=progress)
        self._take(encoder)
        if is_local(self.path):
            forget_other_models(Path(self.path), settings)

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
            raise ModelError("The vectors of this gallery are made by its model: use rebuild with another one.")
        rows = vector_rows(vectors, None)
        kind = self.space if space is None else space
        called = self.settings.name if name is None else name
        settings = settings_of(None, rows.shape[1], called, kind, self.settings.dtype)
        replace_vectors(self.store, settings, ids_of(ids), projected(make_space(**settings.space), rows))

    def set_index(self, index: str, parameters: Mapping[str, int] | None = None) -> None:
        """Have the gallery searched by another index, from now on and by whoever opens it; as in `create`."""
        before = self.store.layout
        self.store.set_layout(replace(layout_of(index, parameters), **_shelves(before)))

    def export(self, path: str | Path) -> int:
        """Write all items with vectors and thumbnails as one Parquet file; how many there were."""
        check_place(path)
        return export_items(self.store, path)

    def import_(self, path: Given) -> int:
        """`import_files` of files that `export` or `nearkin embed` wrote; how many rows they have."""
        return self.import_files(path).rows

    def import_files(
        self, path: Given, *, id_column: str | None = None, anew: bool = False, progress: bool = False
    ) -> Imported:
        """Add the items of Parquet files that `export` or `nearkin embed` wrote, or that hold vectors of your own.

        Items whose id is there already are replaced. Vectors of another model are refused. Only some rows are held in
        memory at a time; if it is cut off, the same call again goes on where it stopped, on whichever machine.

        Args:
            path: a file, a folder of them, a pattern such as "vectors/part-*.parquet", or several of these.
            id_column: which column names the items; None: the column id. Without it, items of several files are named
                by their path, and those of one file by path, row and vector.
            anew: write everything again, also what an import that was cut off has written.
            progress: show a progress bar.
        """
        files = parquet_files(path)
        return import_files(self.store, self.space, files, id_column=id_column, anew=anew, progress=progress)


def _shelves(layout: Layout) -> dict[str, Any]:
    return {"partition": layout.partition, "partitions": layout.partitions}
