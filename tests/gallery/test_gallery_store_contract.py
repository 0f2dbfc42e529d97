"""What every store must do: the same tests for SQLite and for Milvus Lite, against a plain dictionary as the oracle."""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError, StorageError
from nearkin.gallery.condition import parse
from nearkin.gallery.store import ABSENT, UNLABELLED, GalleryStore, Record
from nearkin.gallery.values import Item, Settings
from nearkin.spaces import make_space

DIMENSION = 6


class StoreFactory:
    """Makes stores of one kind under a directory and opens them again."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self._store, _, self._dtype = kind.partition(" ")
        self._root = root
        self._made = 0
        self._open: list[GalleryStore] = []
        self._places: dict[int, Any] = {}
        self.shared: tuple[GalleryStore, list[Record], np.ndarray] | None = None

    def create(self, values: Settings | None = None) -> GalleryStore:
        self._made += 1
        place, made = self._root / f"{self._made}", values or euclidean()
        if self._dtype and made.dtype == "float32":
            made = replace(made, dtype=self._dtype)
        if self._store == "sqlite":
            from nearkin.gallery.sqlite import SqliteStore

            return self._keep(place, SqliteStore.create(place, made))
        from nearkin.gallery.milvus import MilvusStore

        name = str(place.with_suffix(".db"))
        return self._keep(name, MilvusStore.create(name, made))

    def reopen(self, store: GalleryStore) -> GalleryStore:
        """Close a store and open what it left on disk."""
        place = self._places[id(store)]
        store.close()
        if self._store == "sqlite":
            from nearkin.gallery.sqlite import SqliteStore

            return self._keep(place, SqliteStore.open(place))
        from nearkin.gallery.milvus import MilvusStore

        return self._keep(place, MilvusStore.open(place))

    def _keep(self, place: Any, store: GalleryStore) -> GalleryStore:
        self._open.append(store)
        self._places[id(store)] = place
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()
        gc.collect()


@pytest.fixture(scope="module", params=["sqlite", "sqlite int8", "milvus"])
def store_factory(request, tmp_path_factory) -> Iterator[StoreFactory]:
    if request.param.startswith("milvus"):
        for module in ("pymilvus", "milvus_lite"):
            pytest.importorskip(module, exc_type=ImportError)
        if importlib.util.find_spec("nearkin.gallery.milvus") is None:
            pytest.skip("there is no Milvus store")
    factory = StoreFactory(request.param, tmp_path_factory.mktemp(request.param.replace(" ", "-")))
    yield factory
    factory.close()


def euclidean(**other: Any) -> Settings:
    return Settings(**{"name": "mine", "dimension": DIMENSION, "space": {"name": "euclidean"}, **other})


def vectors_of(n: int, seed: int = 0, dimension: int = DIMENSION) -> np.ndarray:
    """Vectors that every dtype keeps as they are: whole numbers over 64, with one of 127 in each row."""
    rng = np.random.default_rng(seed)
    whole = np.clip(np.rint(40 * rng.normal(size=(n, dimension))), -126, 126)
    whole[np.arange(n), rng.integers(dimension, size=n)] = 127
    return (whole / 64).astype(np.float32)


def records_of(n: int, start: int = 0, **other: Any) -> list[Record]:
    """Items of three labels and none, in turn."""
    labels = ["ant", "bee", 'cat\'s "paw"', None]
    return [
        Record(
            id=f"id{row:04d}",
            label=labels[row % 4],
            metadata={"row": row, "even": row % 2 == 0, "name": f"n{row % 5}", "weight": row / 4, "nothing": None},
            source=f"photos/{row}.jpg" if row % 3 else None,
            added=f"2024-01-01T00:00:{row % 60:02d}Z",
            **other,
        )
        for row in range(start, start + n)
    ]


def filled(store_factory: StoreFactory, n: int = 40, **kind: Any) -> tuple[GalleryStore, list[Record], np.ndarray]:
    values = euclidean(**kind)
    store, records = store_factory.create(values), records_of(n)
    points = make_space(**values.space).project(torch.from_numpy(vectors_of(n))).numpy()
    store.write(records, points)
    return store, records, points


def now_and_later(store_factory: StoreFactory, store: GalleryStore) -> Iterator[GalleryStore]:
    """The store itself, then what it left on disk."""
    yield store
    yield store_factory.reopen(store)


def item_of(record: Record) -> Item:
    return Item(
        record.id,
        record.label,
        dict(record.metadata),
        record.source,
        record.added,
        thumbnail=record.thumbnail is not None,
    )


def oracle(
    space: dict[str, Any], queries: np.ndarray, points: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, list[list[int]]]:
    """Distances (q, k) and rows of the k nearest, by sorting all distances."""
    made = make_space(**space)
    distances = made.distance(torch.from_numpy(queries).double(), torch.from_numpy(points).double()).numpy().copy()
    if allowed is not None:
        distances[:, ~allowed] = np.inf
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(distances, order, 1)
    rows = [
        [int(row) for row, d in zip(line, far, strict=True) if np.isfinite(d)]
        for line, far in zip(order, best, strict=True)
    ]
    return best, rows


def found_ids(store: GalleryStore, keys: np.ndarray) -> list[list[str]]:
    return [[item.id for item in store.items(line) if item is not None] for line in keys]


# What is written can be read.


def test_an_empty_store_answers(store_factory):
    store = store_factory.create()
    assert len(store) == 0
    assert store.classes() == []
    assert store.class_sizes() == {}
    assert store.page() == []
    assert store.ids_where() == []
    assert list(store.batches()) == []
    assert store.changes == 0
    assert store.sample(3, 0).vectors.shape == (0, DIMENSION)
    found = store.search(vectors_of(2), 3)
    assert found.distances.shape == found.keys.shape == found.codes.shape == (2, 3)
    assert np.isinf(found.distances).all()
    assert (found.codes == ABSENT).all()
    assert store.items(found.keys[0]) == [None, None, None]


def test_items_come_back_as_they_were_given_also_after_reopening(store_factory):
    store, records, points = filled(store_factory)
    for opened in now_and_later(store_factory, store):
        assert len(opened) == 40
        assert opened.settings == euclidean(dtype=opened.settings.dtype)
        assert opened.get([record.id for record in records]) == [item_of(record) for record in records]
        np.testing.assert_array_equal(opened.vectors([record.id for record in records]), points)
        assert opened.get(["no such", "id0003"]) == [None, item_of(records[3])]
        assert opened.get([]) == []


def test_pictures_and_originals_are_kept_and_replaced_with_their_item(store_factory):
    store = store_factory.create()
    store.write([Record("a", "x", thumbnail=b"\xff\xd8a", original=b"\x00raw" * 900), Record("b", "x")], vectors_of(2))
    assert store.thumbnail("a") == b"\xff\xd8a"
    assert store.original("a") == b"\x00raw" * 900
    assert store.get(["a"])[0].thumbnail
    assert store.thumbnail("b") is store.original("b") is store.thumbnail("none") is store.original("none") is None
    assert not store.get(["b"])[0].thumbnail
    store.write([Record("a", "x"), Record("b", "x", thumbnail=b"b")], vectors_of(2))
    assert store.thumbnail("a") is store.original("a") is None
    assert store.thumbnail("b") == b"b"


@pytest.mark.parametrize("text", ["", " ", "'; drop table items; --", "%_\\", "naïve ☃ 猫", "a" * 200, '"q"', "null"])
def test_labels_and_metadata_hold_any_text(store_factory, text):
    store = store_factory.create()
    item = Item(f"x{text}", text, {text or "empty": text, "n": 1.5, "whole": 2**40}, text or None, "2024")
    store.write([Record(item.id, item.label, item.metadata, item.source, item.added)], vectors_of(1))
    assert store.get([item.id]) == [item]
    assert store.class_sizes() == {text: 1}
    assert store.ids_where(label=text) == [item.id]
    assert store.page(after="") == [item]


def test_writing_an_id_again_replaces_the_item(store_factory):
    store, records, points = filled(store_factory, 12)
    newer = [replace(record, label="new", metadata={"v": 2}) for record in records[4:8]]
    store.write(newer, -points[4:8])
    assert len(store) == 12
    assert store.get([record.id for record in newer]) == [item_of(record) for record in newer]
    np.testing.assert_array_equal(store.vectors([record.id for record in newer]), -points[4:8])
    found = store.search(-points[5:6], 1)
    assert found_ids(store, found.keys) == [["id0005"]]
    assert store.class_sizes()["new"] == 4


def test_writing_the_same_twice_changes_nothing(store_factory):
    store, records, points = filled(store_factory, 12)
    before = store.page(), store.class_sizes(), store.classes()
    store.write(records, points)
    assert (store.page(), store.class_sizes(), store.classes()) == before


def test_generation_grows_with_writes_and_changes_count_items(store_factory):
    store, records, points = filled(store_factory, 10)
    seen = [store.generation]
    assert store.changes == 10
    for write, changes in [
        (lambda: store.write(records[:3], points[:3]), 13),
        (lambda: store.remove(["id0000", "id0001", "none"]), 15),
        (lambda: store.update(["id0004", "none"], label="dog"), 16),
    ]:
        write()
        seen.append(store.generation)
        assert store.changes == changes
    assert sorted(set(seen)) == seen
    store.set_note("n", 1)
    assert store.changes == 16


def test_removed_items_are_gone_from_everywhere(store_factory):
    store, records, points = filled(store_factory)
    gone = [record.id for record in records[::3]]
    assert store.remove([*gone, "none"]) == len(gone)
    assert store.remove(gone) == 0
    assert store.remove([]) == 0
    for opened in now_and_later(store_factory, store):
        assert len(opened) == 40 - len(gone)
        assert opened.get(gone) == [None] * len(gone)
        assert {item.id for item in opened.page()} == {record.id for record in records} - set(gone)
        found = opened.search(points, 40)
        assert not set(gone) & {name for line in found_ids(opened, found.keys) for name in line}
        assert (np.isfinite(found.distances).sum(1) == 40 - len(gone)).all()


def test_keys_of_removed_items_give_none(store_factory):
    store, _, points = filled(store_factory, 8)
    found = store.search(points[:1], 2)
    store.remove(["id0000"])
    first, second = store.items(found.keys[0])
    assert first is None
    assert second is not None


def test_update_gives_label_or_metadata_or_both(store_factory):
    store, records, _ = filled(store_factory, 8)
    assert store.update(["id0000", "id0001", "none"], label="dog") == 2
    assert store.update(["id0001"], metadata={"k": True}) == 1
    assert store.update(["id0002"], label=None, metadata={}) == 1
    assert store.update([], label="x") == 0
    for opened in now_and_later(store_factory, store):
        a, b, c, d = opened.get(["id0000", "id0001", "id0002", "id0003"])
        assert (a.label, a.metadata) == ("dog", dict(records[0].metadata))
        assert (b.label, b.metadata) == ("dog", {"k": True})
        assert b.metadata["k"] is True
        assert (c.label, c.metadata) == (None, {})
        assert d == item_of(records[3])
        assert a.source == records[0].source
        sizes = opened.class_sizes()
        assert sizes["dog"] == 2
        codes = opened.search(opened.vectors(["id0000", "id0002"]), 1).codes[:, 0]
        assert opened.classes()[codes[0]] == "dog"
        assert codes[1] == UNLABELLED


# Classes.


def test_classes_keep_their_codes(store_factory):
    store, _, points = filled(store_factory)
    before = store.classes()
    assert set(before) == {"ant", "bee", 'cat\'s "paw"'}
    assert store.class_sizes() == {"ant": 10, "bee": 10, 'cat\'s "paw"': 10, None: 10}
    store.remove(store.ids_where(label="bee"))
    store.write([Record("z", "new")], points[:1])
    for opened in now_and_later(store_factory, store):
        assert opened.classes()[:3] == before
        assert opened.classes()[3:] == ["new"]
        assert opened.class_sizes() == {"ant": 10, 'cat\'s "paw"': 10, "new": 1, None: 10}


def test_codes_are_indices_into_the_classes(store_factory):
    store, records, points = filled(store_factory)
    found = store.search(points, 1)
    classes = store.classes()
    for record, code in zip(records, found.codes[:, 0], strict=True):
        assert (None if code == UNLABELLED else classes[code]) == record.label


# Pages and conditions.


def test_pages_cover_all_items_once_in_a_fixed_order(store_factory):
    store, records, _ = filled(store_factory, 25)
    seen: list[Item] = []
    while part := store.page(after=seen[-1].id if seen else None, limit=7):
        assert len(part) <= 7
        seen += part
    assert [item.id for item in seen] == sorted(record.id for record in records)
    assert seen == store.page(limit=25)


def test_a_page_goes_on_after_an_item_that_was_removed(store_factory):
    store, _, _ = filled(store_factory, 12)
    first = store.page(limit=5)
    store.remove([first[-1].id])
    assert [item.id for item in store.page(after=first[-1].id, limit=3)] == ["id0005", "id0006", "id0007"]


CONDITIONS = [
    "row < 10",
    "row >= 5 and even = true",
    "name = 'n3' or weight > 8.5",
    "name in ('n1', 'n2') and not (row > 20)",
    "name like 'N%'",
    "label = 'ant'",
    "label is null",
    "label in ('bee', 'cat''s \"paw\"')",
    "id = 'id0007'",
    "nothing is null",
    "nothing is not null",
    "missing is null",
    "missing = 1",
    "not (missing = 1)",
    "name != 'n1'",
    "source is null",
    "row = '3'",
    "even = 1",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions_choose_the_items_that_match(store_factory, text):
    store, records, points = _shared(store_factory)
    condition = parse(text)
    right = [record.id for record in records if condition.matches(item_of(record))]
    assert sorted(store.ids_where(condition)) == right
    assert [item.id for item in store.page(where=condition)] == right
    allowed = np.array([record.id in right for record in records])
    queries = vectors_of(5, seed=9)
    found = store.search(queries, 4, where=condition)
    far, rows = oracle({"name": "euclidean"}, queries, points, 4, allowed)
    assert found_ids(store, found.keys) == [[records[row].id for row in line] for line in rows]
    np.testing.assert_allclose(found.distances, far, rtol=1e-3, atol=1e-3)


def _shared(store_factory: StoreFactory) -> tuple[GalleryStore, list[Record], np.ndarray]:
    """One store for the tests that only read."""
    if store_factory.shared is None:
        store_factory.shared = filled(store_factory)
    return store_factory.shared


def test_ids_where_takes_a_label_and_a_condition(store_factory):
    store, records, _ = _shared(store_factory)
    assert sorted(store.ids_where(label=None)) == [record.id for record in records if record.label is None]
    assert sorted(store.ids_where(parse("row < 9"), label="ant")) == ["id0000", "id0004", "id0008"]
    assert store.ids_where(label="no such") == []
    assert sorted(store.ids_where()) == [record.id for record in records]


# Search.


@pytest.mark.parametrize("space", ["euclidean", "sphere"])
@pytest.mark.parametrize("k", [1, 5, 40, 55])
def test_search_is_brute_force(store_factory, space, k):
    store, records, points = filled(store_factory, 40, space={"name": space})
    queries = make_space(space).project(torch.from_numpy(vectors_of(7, seed=1))).numpy()
    found = store.search(queries, k)
    far, rows = oracle({"name": space}, queries, points, k)
    assert found.distances.shape == found.keys.shape == found.codes.shape == (7, k)
    assert found.distances.dtype == np.float32
    assert found.codes.dtype == np.int32
    assert found_ids(store, found.keys) == [[records[row].id for row in line] for line in rows]
    np.testing.assert_allclose(found.distances[:, : far.shape[1]], far, rtol=1e-3, atol=1e-3)
    assert np.isinf(found.distances[:, 40:]).all()
    assert (found.codes[:, 40:] == ABSENT).all()
    assert all(item is None for item in store.items(found.keys[0, 40:]))


def test_search_among_the_labelled_only(store_factory):
    store, records, points = _shared(store_factory)
    labelled = np.array([record.label is not None for record in records])
    found = store.search(points, 30, labelled=True)
    _, rows = oracle({"name": "euclidean"}, points, points, 30, labelled)
    assert found_ids(store, found.keys) == [[records[row].id for row in line] for line in rows]
    assert (found.codes >= 0).all()


def test_excluded_items_are_not_found(store_factory):
    store, records, points = _shared(store_factory)
    nearest = store.search(points, 3)
    others = store.search(points, 2, exclude=nearest.keys[:, 0])
    np.testing.assert_array_equal(others.keys, nearest.keys[:, 1:])
    np.testing.assert_array_equal(others.codes, nearest.codes[:, 1:])
    among = store.search(points, 2, exclude=nearest.keys[:, 0], where=parse("row < 20"), labelled=True)
    for row, line in enumerate(found_ids(store, among.keys)):
        assert records[row].id not in line
        assert all(int(name[2:]) < 20 and int(name[2:]) % 4 != 3 for name in line)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_smaller_forms_are_within_their_rounding(store_factory, dtype):
    store, records, _ = filled(store_factory, 40, dtype=dtype)
    points = np.random.default_rng(5).normal(size=(40, DIMENSION)).astype(np.float32)
    store.write(records, points)
    for opened in now_and_later(store_factory, store):
        stored = opened.vectors([record.id for record in records])
        assert stored.dtype == np.float32
        np.testing.assert_allclose(stored, points, rtol=2e-3, atol=1e-3 if dtype == "float16" else 2e-2)
        found = opened.search(points, 1)
        assert found_ids(opened, found.keys) == [[record.id] for record in records]


# Samples and batches.


def test_samples_are_drawn_without_replacement_and_repeat_with_the_seed(store_factory):
    store, records, points = _shared(store_factory)
    drawn, again, other = store.sample(15, 3), store.sample(15, 3), store.sample(15, 4)
    ids = [item.id for item in store.items(drawn.keys)]
    assert len(set(ids)) == 15
    np.testing.assert_array_equal(drawn.vectors, points[[int(name[2:]) for name in ids]])
    classes = store.classes()
    assert [None if code == UNLABELLED else classes[code] for code in drawn.codes] == [
        records[int(name[2:])].label for name in ids
    ]
    np.testing.assert_array_equal(drawn.keys, again.keys)
    assert sorted(ids) != sorted(item.id for item in store.items(other.keys))
    every = store.sample(400, 0)
    assert sorted(item.id for item in store.items(every.keys)) == [record.id for record in records]
    some = store.sample(25, 0, labelled=True)
    assert len(some.keys) == 25
    assert (some.codes >= 0).all()
    assert len(store.sample(100, 0, labelled=True).keys) == 30


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_batches_hold_every_item_once_with_its_vector(store_factory, size):
    store, records, points = _shared(store_factory)
    seen: dict[str, np.ndarray] = {}
    for items, vectors in store.batches(size):
        assert 0 < len(items) <= size
        assert vectors.shape == (len(items), DIMENSION)
        for item, vector in zip(items, vectors, strict=True):
            assert item == item_of(records[int(item.id[2:])])
            seen[item.id] = vector
    assert sorted(seen) == [record.id for record in records]
    np.testing.assert_array_equal(np.stack([seen[record.id] for record in records]), points)


def test_notes_are_json_and_outlive_the_store(store_factory):
    store = store_factory.create()
    assert store.note("calibration") is None
    value = {"a": [1, 2.5, None, True], "b": {"c": "é"}}
    store.set_note("calibration", value)
    store.set_note("other", "text")
    store.set_note("other", "newer")
    for opened in now_and_later(store_factory, store):
        assert opened.note("calibration") == value
        assert opened.note("other") == "newer"


# New vectors for all.


def test_new_vectors_replace_all_and_bring_their_settings(store_factory):
    store, records, _ = filled(store_factory, 30)
    newer = Settings("other", 9, {"name": "sphere"}, fingerprint="abc", kind="image")
    points = make_space("sphere").project(torch.from_numpy(vectors_of(30, 5, 9))).numpy()
    before = store.generation
    drop = ["id0004", "id0011"]
    keep = [row for row in range(30) if records[row].id not in drop]
    order = np.random.default_rng(0).permutation(keep)
    parts = [order[:11], order[11:12], order[12:]]
    store.replace_vectors(newer, iter([([records[row].id for row in part], points[part]) for part in parts]), drop)
    for opened in now_and_later(store_factory, store):
        assert opened.settings == newer
        assert opened.generation > before
        assert [item.id for item in opened.page()] == [records[row].id for row in keep]
        assert opened.get(["id0003", *drop]) == [item_of(records[3]), None, None]
        np.testing.assert_allclose(opened.vectors([records[row].id for row in keep]), points[keep], atol=1e-6)
        queries = make_space("sphere").project(torch.from_numpy(vectors_of(4, 8, 9))).numpy()
        found = opened.search(queries, 5)
        _, rows = oracle({"name": "sphere"}, queries, points[keep], 5)
        assert found_ids(opened, found.keys) == [[records[keep[row]].id for row in line] for line in rows]
        labelled = opened.class_sizes()
        assert sum(labelled.values()) == 28


def test_pictures_survive_new_vectors_and_notes_do_not(store_factory):
    store = store_factory.create()
    store.write([Record("a", "x", thumbnail=b"t", original=b"o")], vectors_of(1))
    store.set_note("calibration", {"learned": "from old vectors"})
    store.replace_vectors(euclidean(name="b"), iter([(["a"], vectors_of(1, 2))]))
    assert (store.thumbnail("a"), store.original("a")) == (b"t", b"o")
    assert store.note("calibration") is None
    assert store.changes == 2


def _broken(points: np.ndarray) -> Iterator[tuple[list[str], np.ndarray]]:
    yield ["id0000"], points[:1]
    raise RuntimeError("the encoder failed")


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        (lambda points: iter([(["id0000", "id0001"], points[:2])]), DataError),
        (lambda points: iter([(["id0000", "id0001", "id0002", "id0000"], points[[0, 1, 2, 0]])]), DataError),
        (lambda points: iter([(["id0000", "id0001", "id0002", "none"], points[[0, 1, 2, 0]])]), DataError),
        (lambda points: iter([(["id0000", "id0001", "id0002"], points[:3, :4])]), DataError),
        (lambda points: iter([(["id0000", "id0001", "id0002"], points[:3] * np.nan)]), DataError),
        (_broken, RuntimeError),
    ],
    ids=["missing", "twice", "unknown", "dimension", "nan", "encoder"],
)
def test_new_vectors_that_are_not_all_there_change_nothing(store_factory, batches, error):
    store, records, points = filled(store_factory, 3)
    with pytest.raises(error):
        store.replace_vectors(euclidean(name="other"), batches(points))
    for opened in now_and_later(store_factory, store):
        assert opened.settings.name == "mine"
        np.testing.assert_array_equal(opened.vectors([record.id for record in records]), points)


# What is refused.


@pytest.mark.parametrize(
    ("records", "vectors"),
    [
        (lambda: records_of(3), lambda: vectors_of(2)),
        (lambda: records_of(2), lambda: vectors_of(2, dimension=5)),
        (lambda: records_of(2), lambda: vectors_of(2) * np.nan),
        (lambda: records_of(2), lambda: vectors_of(2) * np.inf),
        (lambda: records_of(1), lambda: vectors_of(1)[0]),
        (lambda: [*records_of(1), *records_of(1)], lambda: vectors_of(2)),
        (lambda: [Record("a", "x", {"n": float("nan")})], lambda: vectors_of(1)),
        (lambda: [Record("a", "x", {"n": [1, 2]})], lambda: vectors_of(1)),
        (lambda: [Record("a", "x", {"n": object()})], lambda: vectors_of(1)),
    ],
    ids=["count", "dimension", "nan", "inf", "one row", "twice", "nan metadata", "list metadata", "strange metadata"],
)
def test_what_cannot_be_written_is_refused_whole(store_factory, records, vectors):
    store = _SHARED_EMPTY.setdefault(store_factory.kind, None) or store_factory.create()
    _SHARED_EMPTY[store_factory.kind] = store
    with pytest.raises(DataError) as caught:
        store.write(records(), vectors())
    assert len(str(caught.value).split("\n")) == 1
    assert len(store) == 0
    assert store.changes == 0


_SHARED_EMPTY: dict[str, Any] = {}


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.search(vectors_of(1, dimension=5), 1),
        lambda store: store.search(vectors_of(1) * np.nan, 1),
        lambda store: store.search(vectors_of(1), 0),
        lambda store: store.page(limit=0),
        lambda store: store.vectors(["id0000", "none"]),
        lambda store: store.update(["id0000"], metadata={"n": float("inf")}),
    ],
    ids=["dimension", "nan", "k", "limit", "vectors", "metadata"],
)
def test_questions_that_make_no_sense_are_refused(store_factory, call):
    store, _, _ = _shared(store_factory)
    with pytest.raises(DataError):
        call(store)


def test_vectors_names_the_first_id_that_is_missing(store_factory):
    store, _, _ = _shared(store_factory)
    with pytest.raises(DataError, match="no-1"):
        store.vectors(["id0000", "no-1", "no-2"])
    assert store.vectors([]).shape == (0, DIMENSION)


def test_writing_nothing_is_allowed(store_factory):
    store = store_factory.create()
    store.write([], np.zeros((0, DIMENSION), np.float32))
    assert len(store) == 0


def test_closing_twice_does_nothing_and_a_closed_store_says_so(store_factory):
    store, _, points = filled(store_factory, 3)
    assert store.size() is None or store.size() > 0
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.search(points, 1)


# Any order of writes.

Step = tuple[str, list[int], int]
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "remove", "label", "metadata"]),
        st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True),
        st.integers(0, 3),
    ),
    max_size=8,
)


def _apply(store: GalleryStore, kept: dict[str, tuple[Record, np.ndarray]], step: Step, seed: int) -> None:
    """Do a step to the store and to a dictionary."""
    what, rows, value = step
    ids = [f"i{row:02d}" for row in rows]
    there = [name for name in ids if name in kept]
    if what == "write":
        records = [Record(name, [None, "a", "b", "c"][value], {"v": value}, added="2024") for name in ids]
        points = vectors_of(len(ids), seed)
        store.write(records, points)
        kept.update({record.id: (record, point) for record, point in zip(records, points, strict=True)})
    elif what == "remove":
        assert store.remove(ids) == len(there)
        for name in there:
            del kept[name]
    else:
        change: dict[str, Any] = {"label": f"l{value}"} if what == "label" else {"metadata": {"m": value}}
        assert store.update(ids, **change) == len(there)
        for name in there:
            kept[name] = (replace(kept[name][0], **change), kept[name][1])


@given(steps=_STEPS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_writes_equals_a_dictionary(store_factory, steps):
    store = store_factory.create()
    kept: dict[str, tuple[Record, np.ndarray]] = {}
    for seed, step in enumerate(steps):
        _apply(store, kept, step, seed)
    names = sorted(kept)
    for opened in now_and_later(store_factory, store):
        assert opened.page() == [item_of(kept[name][0]) for name in names]
        assert len(opened) == len(names)
        sizes: dict[str | None, int] = {}
        for record, _ in kept.values():
            sizes[record.label] = sizes.get(record.label, 0) + 1
        assert opened.class_sizes() == sizes
        if names:
            points = np.stack([kept[name][1] for name in names])
            np.testing.assert_array_equal(opened.vectors(names), points)
            found = opened.search(points, 2)
            assert [line[0] for line in found_ids(opened, found.keys)] == names
    opened.close()


def test_metadata_is_kept_as_json_kinds(store_factory):
    store = store_factory.create()
    metadata: dict[str, Any] = {"t": True, "f": False, "n": None, "i": -3, "x": 0.1, "s": "1"}
    store.write([Record("a", None, metadata)], vectors_of(1))
    back = store.get(["a"])[0].metadata
    assert json.dumps(back, sort_keys=True) == json.dumps(metadata, sort_keys=True)
