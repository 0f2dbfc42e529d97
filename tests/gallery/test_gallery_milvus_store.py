"""What is particular to the Milvus store, on Milvus Lite: writes that are cut off, limits, what a reader may find."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nearkin.errors import DataError, StorageError
from nearkin.gallery.milvus import MilvusStore, collection, connection, items
from nearkin.gallery.milvus import store as store_module
from nearkin.gallery.milvus.change import documents_name
from nearkin.gallery.milvus.collection import Documents
from nearkin.gallery.store import ABSENT, Record
from nearkin.gallery.values import Settings
from nearkin.spaces import make_space

pymilvus = pytest.importorskip("pymilvus", exc_type=ImportError)
pytest.importorskip("milvus_lite", exc_type=ImportError)

EUCLIDEAN = Settings("mine", 4, {"name": "euclidean"})
FLAT = {"index_type": "FLAT", "metric_type": "L2"}


@pytest.fixture
def store(address) -> Iterator[MilvusStore]:
    made = MilvusStore.create(address, EUCLIDEAN)
    yield made
    made.close()


def points(n: int, seed: int = 0, dimension: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dimension)).astype(np.float32)


class CutOff:
    """A client whose connection is lost after some calls; with `heard` the next one is still done, but not answered."""

    def __init__(self, client: Any, calls: int, *, heard: bool = False) -> None:
        self._client = client
        self._heard = heard
        self.left = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name == "close":
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                if self.left == -1 and self._heard:
                    method(*args, **kwargs)
                raise pymilvus.MilvusException(65535, "the connection was lost")
            return method(*args, **kwargs)

        return call


def cut_off(store: MilvusStore, calls: int, action: Any, *, heard: bool = False) -> bool:
    """Do something with a connection that is lost after some calls; whether it was done all the same."""
    connection = store._connection
    client = connection._client
    connection._client = CutOff(client, calls, heard=heard)
    try:
        action()
    except StorageError:
        return False
    finally:
        connection._client = client
    return True


# Writes that are cut off.

OLD = [Record(f"i{row}", "old", {"v": 1}, added="1", thumbnail=b"1", original=b"1" * (row + 1)) for row in range(5)]
NEW = [Record(f"i{row}", "new", {"v": 2}, added="2", thumbnail=b"2", original=b"2" * (row + 1)) for row in range(8)]


def whole(store: MilvusStore, record: Record, vector: np.ndarray) -> bool:
    """Whether a record is there with all that belongs to it."""
    [item] = store.get([record.id])
    return (
        item is not None
        and (item.label, item.metadata, item.added) == (record.label, record.metadata, record.added)
        and store.thumbnail(record.id) == record.thumbnail
        and store.original(record.id) == record.original
        and bool((store.vectors([record.id])[0] == vector).all())
    )


def parts_kept(store: MilvusStore) -> int:
    rows = store._documents._table.page(["kind"], where='kind == "part"', limit=1000)
    return len(rows)


def test_a_write_that_was_cut_off_anywhere_leaves_whole_items_and_is_completed_by_calling_again(database, monkeypatch):
    monkeypatch.setattr(collection, "_ROWS_AT_ONCE", 3)
    old, new = points(5, 1), points(8, 2)
    for calls in range(60):
        store = MilvusStore.create(f"{database}#cut{calls}", EUCLIDEAN)
        store.write(OLD, old)
        done = cut_off(store, calls, lambda store=store: store.write(NEW, new))
        for row, record in enumerate(NEW):
            there = store.get([record.id]) != [None]
            before = row < len(OLD) and whole(store, OLD[row], old[row])
            assert whole(store, record, new[row]) or before or (row >= len(OLD) and not there)
        found = store.search(new, 2)
        assert (found.codes[np.isfinite(found.distances)] >= 0).all()
        store.write(NEW, new)
        assert len(store) == 8
        assert all(whole(store, record, vector) for record, vector in zip(NEW, new, strict=True))
        assert store.class_sizes() == {"new": 8}
        assert store.classes() == ["old", "new"]
        store.close()
        if done:
            assert parts_before_closing(database, calls) == 8
            break
    assert calls > 8
    assert done


def parts_before_closing(database: str, calls: int) -> int:
    store = MilvusStore.open(f"{database}#cut{calls}")
    try:
        return parts_kept(store)
    finally:
        store.close()


@pytest.mark.parametrize("heard", [False, True])
def test_new_vectors_that_were_cut_off_anywhere_are_seen_whole_or_not_at_all(database, heard):
    newer = Settings("other", 3, {"name": "sphere"})
    before, after = points(5, 1), make_space("sphere").project(torch.from_numpy(points(5, 3, 3))).numpy()
    ids = [record.id for record in OLD]
    place = f"{database}#swap{heard}"
    store = MilvusStore.create(place, EUCLIDEAN)
    store.write(OLD, before)

    def swap() -> None:
        store.replace_vectors(newer, iter([(ids[:2], after[:2]), (ids[2:], after[2:])]))

    for calls in range(40):
        done = cut_off(store, calls, swap, heard=heard)
        seen = MilvusStore.open(place)
        assert seen.settings in (EUCLIDEAN, newer)
        np.testing.assert_array_equal(seen.vectors(ids), before if seen.settings == EUCLIDEAN else after)
        assert len(seen) == 5
        assert seen.original("i3") == b"1111"
        changed = seen.settings == newer
        seen.close()
        if changed:
            break
    assert calls > 5
    if not done:
        swap()
    mine = [name for name in store._connection.call("list_collections") if name.startswith(f"swap{heard}__items_")]
    assert mine == [store._head.collection]
    store.close()


def test_creating_that_was_cut_off_anywhere_can_be_repeated(database, monkeypatch):
    client = pymilvus.MilvusClient
    for calls in range(40):
        place = f"{database}#made{calls}"
        with monkeypatch.context() as patch:
            patch.setattr(pymilvus, "MilvusClient", _Cutting(client, calls))
            try:
                MilvusStore.create(place, EUCLIDEAN).close()
                break
            except StorageError:
                pass
        with pytest.raises(StorageError, match=f"made{calls}"):
            MilvusStore.open(place)
        store = MilvusStore.create(place, EUCLIDEAN)
        store.write(OLD, points(5))
        assert len(store) == 5
        names = store._connection.call("list_collections")
        assert sum(name.startswith(f"made{calls}__") for name in names) == 2
        store.close()
    assert calls > 5


class _Cutting:
    """Makes clients whose connection is lost after some calls; schemas are made as ever."""

    def __init__(self, client: Any, calls: int) -> None:
        self._client = client
        self._calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> CutOff:
        return CutOff(self._client(*args, **kwargs), self._calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_leftovers_of_a_rebuild_are_dropped_by_the_next(store):
    store.write(OLD, points(5))
    connection = store._connection
    prefix = connection.address.collection + "__items_"
    collection.make_collection(connection, prefix + "0badc0de", items.schema(EUCLIDEAN, lite=True), "vector", FLAT)
    store.replace_vectors(EUCLIDEAN, iter([([record.id for record in OLD], points(5, 9))]))
    mine = [name for name in connection.call("list_collections") if name.startswith(prefix)]
    assert mine == [store._head.collection]


def test_a_reader_follows_when_somebody_else_replaced_the_vectors(address, store):
    store.write(OLD, points(5))
    reader = MilvusStore.open(address)
    newer = replace(EUCLIDEAN, name="newer")
    store.replace_vectors(newer, iter([([record.id for record in OLD], points(5, 9))]))
    np.testing.assert_array_equal(reader.vectors(["i2"])[0], points(5, 9)[2])
    assert reader.settings == newer
    reader.close()


def test_settings_and_notes_are_those_of_now_for_every_reader(address, store):
    store.write(OLD, points(5))
    store.set_note("large", list(range(30_000)))
    reader = MilvusStore.open(address)
    newer = Settings("newer", 7, {"name": "sphere"})
    store.replace_vectors(newer, iter([([record.id for record in OLD[1:]], points(4, 9, 7))]), ["i0"])
    assert reader.settings == newer
    assert reader.note("large") is None
    assert reader.search(points(1, 9, 7), 1).keys[0, 0] == "i1"
    assert parts_kept(store) == 4
    assert store.changes == 10
    reader.close()


def test_a_reader_follows_new_classes_of_another_writer(address, store):
    reader = MilvusStore.open(address)
    assert reader.classes() == []
    store.write(OLD, points(5))
    found = reader.search(points(5)[:1], 1)
    assert found.keys[0, 0] == "i0"
    assert reader.classes()[found.codes[0, 0]] == "old"
    assert reader.generation == store.generation
    reader.close()


def test_threads_may_share_a_store(store):
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(3):
                store.write([Record(f"{number}-{turn}", f"c{number}")], points(1, number))
                assert store.search(points(1, number), 1).keys[0, 0] is not None
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (len(store), store.changes, store.generation) == (12, 12, 12)
    assert sorted(store.classes()) == ["c0", "c1", "c2", "c3"]


# Distances are those of our spaces.


@pytest.mark.parametrize("space", [{"name": "sphere", "metric": "chord"}, {"name": "sphere", "metric": "angle"}])
@pytest.mark.parametrize("apart", [1e-4, 1e-2, 1.0])
def test_distances_on_the_sphere_are_true_ones_however_small(address, space, apart):
    store = MilvusStore.create(address, Settings("mine", 32, space))
    made = make_space(**space)
    centre = points(1, 3, 32)
    around = made.project(torch.from_numpy(centre + apart * points(30, 4, 32))).numpy()
    query = made.project(torch.from_numpy(centre)).numpy()
    store.write([Record(f"i{row:02d}", None) for row in range(30)], around)
    found = store.search(query, 30)
    far = made.distance(torch.from_numpy(query).double(), torch.from_numpy(around).double()).numpy()[0]
    right = np.array([far[int(name[1:])] for name in found.keys[0]])
    np.testing.assert_allclose(found.distances[0], right, atol=1e-6, rtol=1e-4)
    assert (np.diff(found.distances[0]) >= 0).all()
    assert set(found.keys[0]) == {f"i{row:02d}" for row in range(30)}
    store.close()


def test_many_queries_are_asked_in_parts(store, monkeypatch):
    monkeypatch.setitem(store_module._LITE_QUERIES, "L2", 3)
    monkeypatch.setattr(items, "_VALUES_AT_ONCE", 28)
    gallery, queries = points(20, 1), points(11, 2)
    store.write([Record(f"i{row:02d}", None) for row in range(20)], gallery)
    found = store.search(queries, 4)
    far = np.linalg.norm(queries[:, None] - gallery[None], axis=2)
    order = np.argsort(far, axis=1)[:, :4]
    assert found.keys.tolist() == [[f"i{row:02d}" for row in line] for line in order]
    np.testing.assert_allclose(found.distances, np.take_along_axis(far, order, 1), atol=1e-5)


def test_an_item_that_vanishes_during_a_search_leaves_no_hole(store, monkeypatch):
    store.write(OLD, points(5))
    proposals = MilvusStore._proposals

    def meanwhile(*args: Any) -> Any:
        made = proposals(*args)
        store.remove(["i0"])
        return made

    monkeypatch.setattr(MilvusStore, "_proposals", meanwhile)
    found = store.search(points(5)[:1], 5)
    assert "i0" not in found.keys[0].tolist()
    assert np.isfinite(found.distances[0]).tolist() == [True] * 4 + [False]
    assert found.codes[0, 4] == ABSENT
    assert found.keys[0, 4] is None


def test_too_many_neighbours_are_refused(store):
    with pytest.raises(DataError, match="16,385"):
        store.search(points(1), 16_385)
    with pytest.raises(DataError, match="16,383"):
        store.search(points(1), 16_384, exclude=np.array([None]))
    assert store.search(points(1), 16_384).keys.shape == (1, 16_384)


# Paging.


def test_long_pages_are_put_together(store, monkeypatch):
    monkeypatch.setattr(store_module, "LARGEST_ANSWER", 7)
    store.write([Record(f"i{row:02d}", None) for row in np.random.default_rng(0).permutation(30)], points(30))
    assert [item.id for item in store.page(limit=20)] == [f"i{row:02d}" for row in range(20)]
    assert [item.id for item in store.page(after="i20", limit=99)] == [f"i{row:02d}" for row in range(21, 30)]


@pytest.mark.parametrize("size", [1, 7, 10, 30, 31])
def test_pages_of_a_table_cover_it(store, size):
    store.write([Record(f"i{row:02d}", None) for row in range(30)], points(30))
    rows = collection.Collection(store._connection, store._head.collection, "id")
    pages = list(rows.pages([], size=size))
    assert [row["id"] for page in pages for row in page] == [f"i{row:02d}" for row in range(30)]
    assert all(len(page) <= size for page in pages)


@pytest.mark.parametrize("size", [3, 8, 100])
def test_batches_are_cut_from_pages(store, monkeypatch, size):
    monkeypatch.setattr(items, "_VALUES_AT_ONCE", 4 * 8)
    vectors = points(30)
    store.write([Record(f"i{row:02d}", None) for row in range(30)], vectors)
    batches = list(store.batches(size))
    assert [item.id for found, _ in batches for item in found] == [f"i{row:02d}" for row in range(30)]
    np.testing.assert_array_equal(np.concatenate([part for _, part in batches]), vectors)
    assert max(len(found) for found, _ in batches) == min(size, 8)


# What is large.


def test_originals_and_notes_of_many_parts(address, store):
    content = np.random.default_rng(0).bytes(400_000)
    store.write([Record("a", None, original=content), Record("b", None, original=b"")], points(2))
    note = {"numbers": list(range(30_000)), "text": "é" * 20_000}
    store.set_note("large", note)
    assert store.note("large") == note
    assert parts_kept(store) > 8
    store.set_note("large", 1)
    store.write([Record("b", None)], points(1))
    again = MilvusStore.open(address)
    assert again.note("large") == 1
    assert again.original("a") == content
    assert again.original("b") is None
    again.remove(["a"])
    assert parts_kept(again) == 0
    again.close()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (Record("", None), "empty"),
        (Record("é" * 600, None), "1,200"),
        (Record("a", "x" * 9_000), "label"),
        (Record("a", 3), r"\bint\b"),  # type: ignore[arg-type]
        (Record("a", "\ud800"), "character"),
        (Record("a", None, source="x" * 9_000), "source"),
        (Record("a", None, {"k": "x" * 70_000}), "metadata"),
        (Record("a", None, {"k": {"nested": 1}}), "finite"),  # type: ignore[dict-item]
        (Record("a", None, {3: 1}), "finite"),  # type: ignore[dict-item]
        (Record("a", None, thumbnail=b"x" * 60_000), "60,000"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(store, record, said):
    with pytest.raises(DataError, match=said):
        store.write([Record("fine", "new"), record], points(2))
    assert len(store) == 0
    assert store.classes() == []


def test_the_largest_thumbnail_fits(store):
    picture = np.random.default_rng(0).bytes(items.THUMBNAIL_BYTES)
    store.write([Record("a", None, thumbnail=picture)], points(1))
    assert store.thumbnail("a") == picture


def test_notes_must_be_json(store):
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(DataError, match="note"):
            store.set_note("n", value)
    assert store.note("n") is None


# Text is never code.

HOSTILE = ['x"] or id != "', "x'] or id != '", 'a\\" or 1 == 1 or "', "\\", '"', "line\nend\r\t", "{x}", "$meta", "%"]


def test_text_is_never_taken_for_an_expression(store):
    store.write([Record(text, text, {text: text}) for text in ["plain", *HOSTILE]], points(1 + len(HOSTILE)))
    for text in HOSTILE:
        assert store.ids_where(label=text) == [text]
        assert store.get([text])[0].metadata == {text: text}
        assert store.vectors([text]).shape == (1, 4)
    for left, text in zip(range(len(HOSTILE), 0, -1), HOSTILE, strict=True):
        assert store.remove([text]) == 1
        assert len(store) == left
    assert [item.id for item in store.page()] == ["plain"]


# Opening and making.


def test_galleries_of_one_database_are_apart(database):
    first, second = (MilvusStore.create(f"{database}#{name}", EUCLIDEAN) for name in ("one", "one_more"))
    first.write(OLD, points(5))
    second.write(OLD[:1], points(1))
    first.replace_vectors(EUCLIDEAN, iter([([record.id for record in OLD], points(5))]))
    assert (len(first), len(second)) == (5, 1)
    first.close()
    assert len(second) == 1
    second.close()


def test_a_database_is_let_go_of_with_the_last_store(tmp_path):
    path = str(tmp_path / "own.db")
    first = MilvusStore.create(path, EUCLIDEAN)
    first.write(OLD, points(5))
    second = MilvusStore.open(path)
    first.close()
    assert len(second) == 5
    assert second.size() > 0
    second.close()
    assert not connection._lite_users.keys() & {str((tmp_path / "own.db").resolve())}
    third = MilvusStore.open(path)
    assert third.get(["i4"])[0].label == "old"
    third.close()


@pytest.mark.parametrize(
    ("space", "said"),
    [({"name": "poincare-ball"}, "poincare-ball"), ({"name": "none"}, "none")],
)
def test_spaces_that_milvus_cannot_rank_are_refused(tmp_path, space, said):
    with pytest.raises(DataError, match=said):
        MilvusStore.create(str(tmp_path / "x.db"), Settings("mine", 4, space))
    assert list(tmp_path.iterdir()) == []


def test_a_new_space_that_milvus_cannot_rank_changes_nothing(store):
    store.write(OLD, points(5))
    with pytest.raises(DataError, match="poincare"):
        store.replace_vectors(Settings("x", 4, {"name": "poincare-ball"}), iter([]))
    assert store.settings == EUCLIDEAN


def test_there_must_be_a_gallery_to_open_and_none_to_create(database, address, store, tmp_path):
    with pytest.raises(StorageError, match=r"none\.db"):
        MilvusStore.open(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="#nothing"):
        MilvusStore.open(f"{database}#nothing")
    with pytest.raises(StorageError, match="already"):
        MilvusStore.create(address, EUCLIDEAN)
    with pytest.raises(StorageError, match="directory"):
        MilvusStore.create(str(tmp_path / "no" / "x.db"), EUCLIDEAN)


def test_a_database_that_another_process_has_is_told(tmp_path, monkeypatch):
    from milvus_lite.server_manager import server_manager_instance

    monkeypatch.setattr(server_manager_instance, "start_and_get_uri", lambda *_: None)
    with pytest.raises(StorageError, match="process"):
        MilvusStore.create(str(tmp_path / "x.db"), EUCLIDEAN)


def test_a_gallery_that_was_never_finished_is_told_and_can_be_made_again(address, store, monkeypatch):
    head = store._documents.head()
    store._documents._table.delete(["head"])
    with pytest.raises(StorageError, match="finished"):
        MilvusStore.open(address)
    again = MilvusStore.create(address, EUCLIDEAN)
    assert len(again) == 0
    assert head["collection"] not in again._connection.call("list_collections")
    again.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 3}, r"\b3\b"),
        ({"settings": replace(EUCLIDEAN, dimension=5).to_dict()}, "dimensions"),
        ({"collection": "nowhere"}, "gone"),
    ],
)
def test_a_gallery_that_is_not_what_it_says_is_refused(address, store, change, said):
    store._documents.set_head({**store._documents.head(), **change})
    with pytest.raises(StorageError, match=said):
        MilvusStore.open(address)


def test_two_writers_that_number_two_classes_alike_lose_neither(address, store, monkeypatch):
    other = Documents(store._connection, documents_name(store._connection.address.collection))
    monkeypatch.setattr(other, "classes", list)
    store.write([Record("a", "zebra")], points(1))
    other.add_classes(["ant"])
    store.write([Record("b", "ant"), Record("c", "bee")], points(2))
    assert store.classes() == ["ant", "zebra", "bee"]
    found = store.search(points(2)[1:], 1)
    assert store.classes()[found.codes[0, 0]] == "bee"


# Half precision.


def test_halves_come_back_from_bytes_as_a_server_gives_them():
    vectors = points(3)
    half = items.encode(vectors, replace(EUCLIDEAN, dtype="float16"), lite=False)
    assert half.dtype == np.float16
    expected = half.astype(np.float32)
    kind = replace(EUCLIDEAN, dtype="float16")
    np.testing.assert_array_equal(items.decode([[row.tobytes()] for row in half], kind), expected)
    np.testing.assert_array_equal(items.decode([row.tobytes() for row in half], kind), expected)
    np.testing.assert_array_equal(items.encode(vectors, replace(EUCLIDEAN, dtype="float16"), lite=True), expected)
    field = items.schema(replace(EUCLIDEAN, dtype="float16"), lite=False).fields[-1]
    assert field.dtype == pymilvus.DataType.FLOAT16_VECTOR


def test_values_beyond_half_precision_are_refused(database):
    store = MilvusStore.create(f"{database}#half", replace(EUCLIDEAN, dtype="float16"))
    with pytest.raises(DataError, match="float16"):
        store.write([Record("a", None)], np.full((1, 4), 1e6, np.float32))
    assert len(store) == 0
    store.close()
