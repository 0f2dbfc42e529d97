"""Galleries as Parquet files: what is written is read again, and tables of others are understood or refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError, StorageError
from nearkin.gallery.parquet import export_items, read_items
from nearkin.gallery.store import Record
from nearkin.gallery.values import Item, Settings

JPEG = b"\xff\xd8\xff\xe0 small"
SETTINGS = Settings("mine", 3, {"name": "sphere"})


class FakeStore:
    """As much of a store as an export needs."""

    def __init__(self, records: list[Record], vectors: np.ndarray, values: Settings = SETTINGS) -> None:
        self.records, self.rows, self.settings = records, vectors, values
        self.by_id = {record.id: record for record in records}

    def batches(self, size: int = 1024) -> Iterator[tuple[list[Item], np.ndarray]]:
        for first in range(0, len(self.records), size):
            some = self.records[first : first + size]
            items = [Item(r.id, r.label, dict(r.metadata), r.source, r.added, r.thumbnail is not None) for r in some]
            yield items, self.rows[first : first + size]

    def thumbnail(self, id: str) -> bytes | None:
        return self.by_id[id].thumbnail

    def original(self, id: str) -> bytes | None:
        return self.by_id[id].original


def read(path: Path) -> tuple[Settings | None, list[Record], np.ndarray]:
    found, batches = read_items(path)
    records, vectors = [], []
    for some, rows in batches:
        records += some
        vectors.append(rows)
    return found, records, np.concatenate(vectors) if vectors else np.empty((0, 0))


plain_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
records = st.builds(
    Record,
    plain_text.filter(lambda text: text not in ("", ".", "..") and "/" not in text),
    st.none() | plain_text.filter(bool),
    st.dictionaries(
        plain_text.filter(bool),
        st.none()
        | plain_text
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False),
        max_size=4,
    ),
    st.none() | plain_text,
    plain_text,
    st.none() | st.just(JPEG),
    st.none() | st.binary(max_size=20),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(records, max_size=5, unique_by=lambda record: record.id), st.integers(0, 100))
def test_what_is_written_is_read_again(tmp_path_factory, some, seed):
    path = tmp_path_factory.mktemp("export") / "a.parquet"
    vectors = np.random.default_rng(seed).standard_normal((len(some), 3)).astype(np.float32)
    assert export_items(FakeStore(some, vectors), path) == len(some)
    found, again, rows = read(path)
    assert (found, again) == (SETTINGS, some)
    assert np.array_equal(rows.reshape(-1, 3), vectors)


def test_columns_and_types(tmp_path):
    export_items(FakeStore([Record("a", "x")], np.ones((1, 3), np.float32)), tmp_path / "a.parquet")
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert schema.names == ["id", "label", "metadata", "source", "added", "thumbnail", "original", "vector"]
    assert schema.field("vector").type == pa.list_(pa.float32(), 3)
    assert schema.metadata[b"nearkin.gallery.format"] == b"1"


def test_an_empty_gallery(tmp_path):
    assert export_items(FakeStore([], np.empty((0, 3), np.float32)), tmp_path / "a.parquet") == 0
    assert read(tmp_path / "a.parquet")[:2] == (SETTINGS, [])


def test_ten_thousand_items_are_streamed(tmp_path):
    count, size = 10_000, 20_000
    records = [Record(f"{n:05}", "x", {"n": n}) for n in range(count)]
    store = FakeStore(records, np.random.default_rng(0).standard_normal((count, 16)).astype(np.float32))
    store.settings = replace(SETTINGS, dimension=16)
    store.original = lambda id: id.encode() * (size // 5)  # 200 MB that nobody may hold at once
    path = tmp_path / "a.parquet"
    tracemalloc.start()
    assert export_items(store, path) == count
    written = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    seen = 0
    for some, rows in read_items(path)[1]:
        assert some[0].original == some[0].id.encode() * (size // 5)
        assert np.array_equal(rows, store.rows[seen : seen + len(some)])
        seen += len(some)
        assert pa.total_allocated_bytes() < 150_000_000
    reading = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == count
    assert max(written, reading) < 90_000_000
    groups = pq.ParquetFile(path).metadata
    assert max(groups.row_group(n).num_rows for n in range(groups.num_row_groups)) <= 1024


def test_large_originals_make_small_groups(tmp_path):
    records = [Record(str(n), None, original=bytes(30 << 20)) for n in range(5)]
    export_items(FakeStore(records, np.ones((5, 3), np.float32)), tmp_path / "a.parquet")
    groups = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [3, 2]


def test_a_failed_export_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"before")
    store = FakeStore([Record("a", None)], np.ones((1, 3), np.float32))
    store.original = lambda id: (_ for _ in ()).throw(StorageError("gone"))
    with pytest.raises(StorageError, match="gone"):
        export_items(store, path)
    assert path.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]


# Tables of others.


def table(tmp_path: Path, **columns) -> Path:
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_what_embed_writes(tmp_path):
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 3)
    path = table(tmp_path, path=["a.png", "b.png"], label=["x", "y"], embedding=lists)
    found, again, rows = read(path)
    assert found is None
    assert [(record.label, record.source) for record in again] == [("x", "a.png"), ("y", "b.png")]
    assert np.array_equal(rows, vectors)
    assert len({record.id for record in again}) == 2
    assert [record.id for record in again] == [record.id for record in read(path)[1]]


def test_other_columns_become_metadata(tmp_path):
    path = table(
        tmp_path,
        id=[7, 8],
        label=[1, None],
        vector=[[1.0, 2.0], [3.0, 4.0]],
        price=[2.5, float("nan")],
        stock=[3, None],
        sold=[True, False],
        name=pa.array(["n", "m"]).dictionary_encode(),
        day=[date(2026, 1, 2), None],
        cost=[Decimal("1.50"), None],
        tags=[["a"], ["b"]],
        __index_level_0__=[0, 1],
    )
    _, again, rows = read(path)
    assert [(record.id, record.label) for record in again] == [("7", "1"), ("8", None)]
    assert again[0].metadata == {
        "price": 2.5,
        "stock": 3,
        "sold": True,
        "name": "n",
        "day": "2026-01-02",
        "cost": 1.5,
    }
    assert {key: value for key, value in again[1].metadata.items() if value is not None} == {"sold": False, "name": "m"}
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float64(), pa.int32()])
def test_numbers_of_any_kind(tmp_path, kind):
    values = np.array([1, 2], dtype=kind.to_pandas_dtype())
    path = table(tmp_path, vector=pa.FixedSizeListArray.from_arrays(pa.array(values), 2))
    assert read(path)[2].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1]}, "embedding"),
        ({"vector": ["a"]}, "lists"),
        ({"vector": [["a"]]}, "lists"),
        ({"vector": [[1.0, 2.0], [1.0]]}, "row 1"),
        ({"vector": pa.array([[]], pa.list_(pa.float32()))}, "row 0"),
        ({"vector": [[1.0], None]}, "row 1"),
        ({"vector": [[1.0, 2.0], [1.0, None]]}, "missing"),
        ({"vector": [[1.0], [float("nan")]]}, "NaN"),
        ({"vector": [[1.0], [2.0]], "id": ["a", None]}, "row 1"),
        ({"vector": [[1.0]], "id": ["a/b"]}, "a/b"),
        ({"vector": [[1.0]], "label": [""]}, "empty"),
        ({"vector": [[1.0]], "label": [["x"]]}, "label"),
        ({"vector": [[1.0]], "metadata": ["[1]"]}, "JSON"),
        ({"vector": [[1.0]], "metadata": ["{"]}, "JSON"),
        ({"vector": [[1.0]], "metadata": ['{"a": {"b": 1}}']}, "dict"),
        ({"vector": [[1.0]], "metadata": ['{"a": NaN}']}, "nan"),
        ({"vector": [[1.0]], "thumbnail": [b"<html>"]}, "JPEG"),
        ({"vector": [[1.0]], "original": ["text"]}, "bytes"),
        ({"vector": [[1.0]], "price": [float("inf")]}, "price"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, columns, message):
    with pytest.raises(DataError, match=message):
        read(table(tmp_path, **columns))


def test_vectors_of_another_length_later_on(tmp_path):
    path = table(tmp_path, vector=[[1.0, 2.0]] * 2000 + [[1.0]])
    with pytest.raises(DataError, match="2000"):
        read(path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"missing\.parquet"):
        read_items(tmp_path / "missing.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match=r"text\.parquet"):
        read_items(tmp_path / "text.parquet")


def test_a_damaged_file(tmp_path):
    path = tmp_path / "a.parquet"
    records = [Record(str(n), "x", original=np.random.default_rng(n).bytes(200)) for n in range(500)]
    export_items(FakeStore(records, np.ones((500, 3), np.float32)), path)
    raw = bytearray(path.read_bytes())
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match=r"a\.parquet"):
        read_items(path)
    raw[1000 : len(raw) // 2] = bytes(len(raw) // 2 - 1000)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"row \d+"):
        read(path)


def test_a_newer_format_and_damaged_settings(tmp_path):
    path = tmp_path / "a.parquet"
    for told, message in [
        ({b"nearkin.gallery": b"{}", b"nearkin.gallery.format": b"1"}, "damaged"),
        ({b"nearkin.gallery": b"no json"}, "damaged"),
        (
            {b"nearkin.gallery": b'{"name": "x", "dimension": 1, "space": {}}', b"nearkin.gallery.format": b"2"},
            "newer",
        ),
    ]:
        pq.write_table(pa.table({"vector": [[1.0]]}).replace_schema_metadata(told), path)
        with pytest.raises(DataError, match=message):
            read_items(path)
