"""Importing shards: all rows, each once, in any store, and on from wherever it was cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearkin.errors import DataError, ModelError, StorageError
from nearkin.gallery import Gallery, bulk_import, parquet
from nearkin.gallery.bulk_import import parquet_files
from nearkin.gallery.milvus.collection import Collection

DIMENSION = 5
ROWS = 90


def rows_of(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIMENSION)).astype(np.float32)


def write_shard(file: Path, vectors: np.ndarray, group: int = 7, **columns: Any) -> Path:
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    pq.write_table(pa.table({**columns, "embedding": flat}), file, row_group_size=group)
    return file


@pytest.fixture
def small(monkeypatch) -> None:
    """Batches of twenty rows, read ten at a time."""
    monkeypatch.setattr(bulk_import, "_ROWS", 20)
    monkeypatch.setattr(parquet, "_ROWS", 10)


@pytest.fixture
def shards(tmp_path) -> tuple[Path, np.ndarray]:
    """Three shards as `nearkin embed` writes them, with a column more."""
    folder, vectors = tmp_path / "vectors", rows_of(ROWS)
    folder.mkdir()
    for shard, rows in enumerate(np.split(np.arange(ROWS), [40, 65])):
        columns = {"path": [f"photos/{row}.jpg" for row in rows], "label": [f"c{row % 4}" for row in rows]}
        write_shard(folder / f"part-{shard:05d}-of-00003.parquet", vectors[rows], **columns, price=rows / 4)
    return folder, vectors


def place(kind: str, request, tmp_path: Path) -> str:
    if kind == "sqlite":
        return str(tmp_path / "g.gallery")
    return str(request.getfixturevalue("address"))


def created(path: str, **other: Any) -> Gallery:
    return Gallery.create(path, dimension=DIMENSION, name="mine", space="euclidean", **other)


def check_whole(gallery: Gallery, vectors: np.ndarray) -> None:
    """Every row is there once, with all that belongs to it."""
    items = gallery.items(limit=10 * ROWS)
    assert len(items) == len(gallery) == ROWS
    by_row = sorted(items, key=lambda item: int(str(item.source)[7:-4]))
    assert [item.source for item in by_row] == [f"photos/{row}.jpg" for row in range(ROWS)]
    assert [item.label for item in by_row] == [f"c{row % 4}" for row in range(ROWS)]
    assert [item.metadata for item in by_row] == [{"price": row / 4} for row in range(ROWS)]
    np.testing.assert_array_equal(gallery.store.vectors([item.id for item in by_row]), vectors)


class Power:
    """Lets a store fail at its n-th call, before or after the call has taken effect."""

    def __init__(self, store: Any, at: int, *, heard: bool) -> None:
        self._left = at
        self._heard = heard
        for name in ("write", "set_note"):
            setattr(store, name, self._wrapped(getattr(store, name)))

    def _wrapped(self, method: Any) -> Any:
        def call(*args: Any) -> None:
            self._left -= 1
            if self._left == 0 and not self._heard:
                raise StorageError("The disk is gone.")
            method(*args)
            if self._left == 0:
                raise StorageError("The disk is gone.")

        return call


def cut_off(path: Path, folder: Path, after: int) -> None:
    """Make a gallery whose import is lost after some calls."""
    with created(str(path)) as gallery:
        Power(gallery.store, after, heard=True)
        with pytest.raises(StorageError):
            gallery.import_files(folder)


class Line:
    """A client of Milvus that counts its calls, and is lost at the n-th: before it is done, or after."""

    def __init__(self, client: Any, at: int = 10**9, *, heard: bool = False) -> None:
        self._client, self._at, self._heard = client, at, heard
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls > self._at or (self.calls == self._at and not self._heard):
                raise ConnectionError("the line was lost")
            answer = method(*args, **kwargs)
            if self.calls == self._at:
                raise ConnectionError("the line was lost")
            return answer

        return call


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 6, 9, 10, 11])
def test_a_local_import_goes_on_wherever_it_was_cut_off(tmp_path, shards, small, at, heard):
    folder, vectors = shards
    path = str(tmp_path / "g.gallery")
    with created(path) as gallery:
        Power(gallery.store, at, heard=heard)
        with pytest.raises(StorageError, match="again"):
            gallery.import_files(folder)
    with Gallery.open(path) as again:
        written = len(again)
        done = again.import_files(folder)
        assert (done.rows, done.items) == (ROWS, ROWS)
        # Only the last batch may have been written and not noted.
        assert written - 20 <= done.resumed <= written
        assert done.replaced == written - done.resumed
        check_whole(again, vectors)


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.7, 0.95, 1.0])
def test_an_import_into_milvus_goes_on_whichever_call_was_lost(request, tmp_path, shards, small, share, heard):
    folder, vectors = shards
    path = place("milvus", request, tmp_path)
    with created(path) as gallery:
        connection = gallery.store._connection
        client = connection._client
        gallery.import_files(folder)  # so that the classes are known to both of the following
        gallery.remove([item.id for item in gallery.items(limit=ROWS)])
        connection._client = whole = Line(client)
        gallery.import_files(folder)
        connection._client = client
        gallery.remove([item.id for item in gallery.items(limit=ROWS)])

        connection._client = Line(client, 1 + int(share * (whole.calls - 1)), heard=heard)
        with pytest.raises(StorageError):
            gallery.import_files(folder)
        connection._client = client
        assert gallery.import_files(folder).items == ROWS
        check_whole(gallery, vectors)


@pytest.mark.parametrize("kind", ["sqlite", "milvus"])
def test_a_finished_import_leaves_no_journal_and_can_be_repeated(request, tmp_path, shards, small, kind):
    folder, vectors = shards
    with created(place(kind, request, tmp_path)) as gallery:
        assert gallery.import_files(folder).replaced == 0
        gallery.remove([item.id for item in gallery.items(limit=30)])
        done = gallery.import_files(folder)
        assert (done.resumed, done.replaced, done.items) == (0, ROWS - 30, ROWS)
        check_whole(gallery, vectors)


def test_a_file_that_was_changed_is_imported_anew(tmp_path, shards, small):
    folder, vectors = shards
    cut_off(tmp_path / "g.gallery", folder, after=8)
    changed = rows_of(40, seed=9)
    columns = {"path": [f"photos/{row}.jpg" for row in range(40)], "label": [f"c{row % 4}" for row in range(40)]}
    write_shard(folder / "part-00000-of-00003.parquet", changed, **columns, price=np.arange(40) / 4)
    with Gallery.open(tmp_path / "g.gallery") as again:
        assert again.import_files(folder).resumed < 40
        check_whole(again, np.concatenate([changed, vectors[40:]]))


def test_anew_writes_everything(tmp_path, shards, small):
    folder, vectors = shards
    cut_off(tmp_path / "g.gallery", folder, after=4)
    with Gallery.open(tmp_path / "g.gallery") as again:
        assert again.import_files(folder, anew=True).resumed == 0
        check_whole(again, vectors)


@pytest.mark.parametrize("first", [0, 1, 6, 7, 8, 13, 14, 39, 40])
def test_reading_begins_at_any_row(shards, monkeypatch, first):
    monkeypatch.setattr(parquet, "_ROWS", 10)
    folder, vectors = shards
    table = parquet.open_table(folder / "part-00000-of-00003.parquet")
    parts = list(table.read(first))
    sources = [record.source for records, _ in parts for record in records]
    assert sources == [f"photos/{row}.jpg" for row in range(first, 40)]
    rows = np.concatenate([np.empty((0, DIMENSION), np.float32), *(part for _, part in parts)])
    np.testing.assert_array_equal(rows, vectors[first:40])
    whole = [record.id for records, _ in table.read() for record in records]
    assert [record.id for records, _ in parts for record in records] == whole[first:]


def test_ids_come_from_the_column_that_is_named(tmp_path):
    file = write_shard(tmp_path / "a.parquet", rows_of(3), name=["a", "b/c", "d"], number=[7, 8, 9])
    with created(str(tmp_path / "g.gallery")) as gallery:
        gallery.import_files(file, id_column="name")
        ids = {item.id for item in gallery.items()}
        assert {"a", "d"} < ids
        assert all("/" not in id for id in ids)
        gallery.import_files(file, id_column="number")
        assert {"7", "8", "9"} < {item.id for item in gallery.items()}
        assert len(gallery) == 6
        with pytest.raises(DataError, match="nothing"):
            gallery.import_files(file, id_column="nothing")


def test_shards_made_anew_in_another_number_replace_the_same_items(tmp_path, shards):
    folder, vectors = shards
    other = tmp_path / "other"
    other.mkdir()
    for shard, rows in enumerate(np.split(np.arange(ROWS)[::-1], 2)):
        columns = {"path": [f"photos/{row}.jpg" for row in rows], "label": [f"c{row % 4}" for row in rows]}
        write_shard(other / f"part-{shard}-of-2.parquet", -vectors[rows], **columns, price=rows / 4)
    with created(str(tmp_path / "g.gallery")) as gallery:
        gallery.import_files(folder)
        assert gallery.import_files(other).replaced == ROWS
        check_whole(gallery, -vectors)


def test_two_rows_of_one_name_are_told_by_their_path(tmp_path):
    files = [
        write_shard(tmp_path / f"{number}.parquet", rows_of(3, number), path=["a/1", "a/2", f"a/{number}"])
        for number in (3, 2)
    ]
    with created(str(tmp_path / "g.gallery")) as gallery:
        with pytest.raises(DataError, match="a/2"):
            gallery.import_files(files)
        assert len(gallery) == 3


def test_files_are_found_in_folders_and_by_patterns(shards, tmp_path):
    folder, _ = shards
    names = [folder / f"part-{shard:05d}-of-00003.parquet" for shard in range(3)]
    (folder / ".part-00000-of-00003.parquet.tmp").touch()
    (folder / "_notes.parquet").touch()
    assert parquet_files(folder) == parquet_files(str(folder / "part-*.parquet")) == parquet_files(names) == names
    assert parquet_files([names[1], folder]) == [names[1], names[0], names[2]]


def test_bad_imports_are_told_before_anything_is_written(tmp_path, shards):
    folder, _ = shards
    empty = tmp_path / "empty"
    empty.mkdir()
    nameless = [write_shard(tmp_path / f"n{number}.parquet", rows_of(3, number)) for number in range(2)]
    wide = write_shard(tmp_path / "wide.parquet", np.ones((3, DIMENSION + 1), np.float32), id=["x", "y", "z"])
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes((folder / "part-00000-of-00003.parquet").read_bytes()[:-9])
    with created(str(tmp_path / "g.gallery")) as gallery:
        for given, told in (
            (empty, "empty"),
            (tmp_path / "*.nothing", r"\*\.nothing"),
            (tmp_path / "nowhere.parquet", r"nowhere\.parquet"),
            ([], "import"),
            (nameless, r"\bpath\b"),
            ([folder, wide], "dimensions"),
            ([folder, damaged], r"damaged\.parquet"),
        ):
            with pytest.raises(DataError, match=told):
                gallery.import_files(given)
        (folder / "part-00001-of-00003.parquet").unlink()
        with pytest.raises(DataError, match=r"1 of .*3"):
            gallery.import_files(folder)
        assert len(gallery) == 0
        gallery.export(tmp_path / "mine.parquet")
    other = Gallery.create(tmp_path / "o.gallery", dimension=DIMENSION, name="other", space="euclidean")
    with other, pytest.raises(ModelError, match="other"):
        other.import_files(tmp_path / "mine.parquet")


def test_originals_and_thumbnails_come_along_and_what_they_replace_is_forgotten(request, tmp_path):
    jpeg = b"\xff\xd8\xff" + b"0" * 10
    first = write_shard(
        tmp_path / "a.parquet", rows_of(2), id=["a", "b"], original=[b"1", b"2"], thumbnail=[jpeg, None]
    )
    second = write_shard(tmp_path / "b.parquet", rows_of(2, 1), id=["a", "c"])
    with created(place("milvus", request, tmp_path)) as gallery:
        gallery.import_files(first)
        assert (gallery.store.original("a"), gallery.thumbnail("a")) == (b"1", jpeg)
        gallery.import_files(second)
        assert [gallery.store.original(id) for id in "abc"] == [None, b"2", None]
        beside = Collection(gallery.store._connection, gallery.store._documents.name, "key")
        assert len(beside.page([], where='kind == "part"', limit=10)) == 1
        assert len(gallery) == 3
