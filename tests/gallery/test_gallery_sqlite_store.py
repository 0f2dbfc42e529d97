"""What only the local store does: blocks, schema, squeezing out removed rows, the graph, damage."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError, StorageError
from nearkin.gallery.sqlite import SqliteStore, change, database, mirror
from nearkin.gallery.sqlite.mirror import VectorBlocks
from nearkin.gallery.store import ABSENT, Record
from nearkin.gallery.values import Settings

DIMENSION = 8


def settings_of(**other) -> Settings:
    return Settings(**{"name": "mine", "dimension": DIMENSION, "space": {"name": "euclidean"}, **other})


def vectors_of(n: int, seed: int = 0, dimension: int = DIMENSION) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dimension)).astype(np.float32)


def records_of(n: int, start: int = 0) -> list[Record]:
    return [Record(f"i{row:05d}", f"c{row % 3}", {"row": row}) for row in range(start, start + n)]


@pytest.fixture
def small(monkeypatch) -> None:
    """Blocks of 16 rows; removed rows are squeezed out early."""
    monkeypatch.setattr(mirror, "_BYTES", 16 * DIMENSION * 4)
    monkeypatch.setattr(change, "_LEAST_ROWS", 20)


# Blocks.


@pytest.mark.parametrize(
    ("dimension", "dtype"), [(1, "float16"), (128, "float32"), (100, "float16"), (10**6, "float32")]
)
def test_blocks_are_about_a_megabyte(dimension, dtype):
    made = VectorBlocks(None, settings_of(dimension=dimension, dtype=dtype), 1)
    assert made.rows & (made.rows - 1) == 0
    assert made.rows == 1 or made.rows * made.width <= 2**20
    assert made.rows == 2**14 or 2 * made.rows * made.width > 2**20


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), changed=st.sets(st.integers(0, 30)))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_hold_what_was_appended(small, sizes, changed):
    connection = sqlite3.connect(":memory:", isolation_level=None)
    database.migrate(connection)
    made = VectorBlocks(connection, settings_of(), 7)
    points, codes = vectors_of(sum(sizes)), np.arange(sum(sizes), dtype=np.int32)
    done = 0
    for generation, size in enumerate(sizes):
        made.append(generation, done, points[done : done + size], codes[done : done + size])
        done += size
    rows = np.array(sorted(row for row in changed if row < done), np.int64)
    made.set_codes(99, rows[::-1], -rows[::-1])
    codes[rows] = -rows
    np.testing.assert_array_equal(np.concatenate(list(made.points(0, done))), points)
    np.testing.assert_array_equal(np.concatenate(list(made.points(done // 2, done))), points[done // 2 :])
    held = np.concatenate([part for _, part in made.newer(-1)])
    np.testing.assert_array_equal(held[:done], codes)
    assert (held[done:] == ABSENT).all()
    assert {number for number, _ in made.newer(98)} == set((rows // 16).tolist())
    connection.close()


def test_scattered_rows_are_written_in_place(small):
    connection = sqlite3.connect(":memory:", isolation_level=None)
    database.migrate(connection)
    made, points = VectorBlocks(connection, settings_of(dtype="float16"), 1), vectors_of(100)
    order = np.random.default_rng(1).permutation(100)
    for part in np.split(order, 5):
        made.scatter(part, made.stored(points[part]))
    held = np.concatenate(list(made.points(0, 100)))
    np.testing.assert_array_equal(held, points.astype(np.float16))
    connection.close()


def test_numbers_beyond_half_precision_are_refused(tmp_path):
    store = SqliteStore.create(tmp_path / "g", settings_of(dtype="float16"))
    with pytest.raises(DataError, match="float16"):
        store.write(records_of(1), np.full((1, DIMENSION), 1e5, np.float32))
    assert len(store) == 0
    store.close()
    wide = SqliteStore.create(tmp_path / "h", settings_of())
    with pytest.raises(DataError, match="float32"):
        wide.write(records_of(1), np.full((1, DIMENSION), 1e300))
    wide.close()


# Squeezing out removed rows.


@given(steps=st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 60), min_size=1)), min_size=2, max_size=10))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_squeezing_out_changes_no_answer_and_no_key(small, tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("squeeze")
    store, reader = SqliteStore.create(root / "g", settings_of()), SqliteStore.open(root / "g")
    held: dict[str, np.ndarray] = {}
    keys: dict[int, str] = {}
    for seed, (adds, rows) in enumerate(steps):
        ids = [f"i{row:05d}" for row in sorted(rows)]
        if adds:
            points = vectors_of(len(ids), seed)
            store.write([Record(name, name) for name in ids], points)
            held.update(zip(ids, points, strict=True))
        else:
            store.remove(ids)
            held = {name: point for name, point in held.items() if name not in ids}
        for opened in (store, reader):
            every = opened.sample(1000, 0)
            names = [item.id for item in opened.items(every.keys)]
            assert sorted(names) == sorted(held)
            classes = opened.classes()
            assert [classes[code] for code in every.codes] == names
            keys.update(zip(every.keys.tolist(), names, strict=True))
            if held:
                np.testing.assert_array_equal(every.vectors, np.stack([held[name] for name in names]))
                np.testing.assert_array_equal(opened.search(every.vectors, 1).keys[:, 0], every.keys)
                np.testing.assert_array_equal(opened.vectors(names), every.vectors)
        # A key is one item's for ever, or nobody's.
        known = store.items(np.array(list(keys)))
        assert all(item is None or item.id == name for item, name in zip(known, keys.values(), strict=True))
    reader.close()
    store.close()


def test_removed_rows_do_not_pile_up(small, tmp_path):
    store = SqliteStore.create(tmp_path / "g", settings_of())
    store.write(records_of(5), vectors_of(5))
    for turn in range(60):
        store.write(records_of(5), vectors_of(5, turn))
    found = store.search(vectors_of(5, 59), 2)
    assert [store.items(line)[0].id for line in found.keys] == [record.id for record in records_of(5)]
    assert store._mirror.state.rows <= 30
    assert store._connection.execute("SELECT count(*) FROM blocks").fetchone()[0] <= 2
    store.close()


def test_equal_distances_go_by_the_order_of_adding(tmp_path):
    store = SqliteStore.create(tmp_path / "g", settings_of())
    store.write([Record(name, "x") for name in "zyxa"], np.zeros((4, DIMENSION)))
    store.write([Record("y", "x")], np.zeros((1, DIMENSION)))
    found = store.search(np.ones((1, DIMENSION)), 4)
    assert [item.id for item in store.items(found.keys[0])] == ["z", "x", "a", "y"]
    store.close()


# Schema.


def _first_version(directory: Path) -> None:
    """A gallery as the first version of the tables held it, written by hand."""
    directory.mkdir()
    connection = sqlite3.connect(directory / "gallery.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for statement in database._FIRST:
        connection.execute(statement)
    points, codes = np.zeros((2**14, 2), "<f4"), np.full(2**14, ABSENT, "<i4")
    points[:2], codes[:2] = [[1, 2], [3, 4]], [0, -1]
    connection.execute("INSERT INTO blocks VALUES (1, 1, 0, 1, ?)", (codes.tobytes(),))
    connection.execute("INSERT INTO vectors VALUES (1, ?)", (points.tobytes(),))
    connection.execute("INSERT INTO labels VALUES (0, 'ant')")
    connection.execute(
        """INSERT INTO items VALUES (0, 'a', 0, '{"n":1}', NULL, '2024'), (1, 'b', NULL, '{}', 's', '')"""
    )
    connection.execute("INSERT INTO thumbnails VALUES (1, x'ff')")
    settings = '{"name": "old", "dimension": 2, "space": {"name": "euclidean"}, "dtype": "float32"}'
    state = '{"generation": 1, "changes": 2, "version": 1, "slots": 2, "rows": 2, "items": 2}'
    for pair in (("settings", settings), ("state", state), ("index", '"exact"')):
        connection.execute("INSERT INTO meta VALUES (?, ?)", pair)
    connection.execute(f"PRAGMA application_id = {database.APPLICATION}")
    connection.execute("PRAGMA user_version = 1")
    connection.close()


def test_an_older_gallery_is_migrated_when_opened(tmp_path):
    _first_version(tmp_path / "g")
    for _ in range(2):
        store = SqliteStore.open(tmp_path / "g")
        assert database.version_of(store._connection) == database.VERSION
        a, b = store.get(["a", "b"])
        assert (a.label, a.metadata, a.added, a.thumbnail) == ("ant", {"n": 1}, "2024", False)
        assert (b.label, b.source, b.thumbnail) == (None, "s", True)
        np.testing.assert_array_equal(store.vectors(["b", "a"]), [[3, 4], [1, 2]])
        store.write([Record("c", "ant", original=b"bytes")], np.ones((1, 2)))
        assert store.original("c") == b"bytes"
        assert store.original("a") is None
        assert len(store) == 3
        store.close()


def test_a_migration_that_fails_leaves_the_old_version(tmp_path, monkeypatch):
    _first_version(tmp_path / "g")

    fails = ("CREATE TABLE half (x)", "INSERT INTO spent VALUES (1)")
    monkeypatch.setattr(database, "STEPS", (*database.STEPS[:1], fails))
    with pytest.raises(StorageError, match="spent"):
        SqliteStore.open(tmp_path / "g")
    connection = sqlite3.connect(tmp_path / "g" / "gallery.sqlite")
    assert database.version_of(connection) == 1
    assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchall()
    connection.close()


def test_every_version_has_the_tables_of_a_new_gallery(tmp_path):
    _first_version(tmp_path / "old")
    SqliteStore.open(tmp_path / "old").close()
    SqliteStore.create(tmp_path / "new", settings_of()).close()
    tables = []
    for name in ("old", "new"):
        connection = sqlite3.connect(tmp_path / name / "gallery.sqlite")
        tables.append(connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())
        connection.close()
    assert tables[0] == tables[1]


def test_a_newer_gallery_is_refused(tmp_path):
    SqliteStore.create(tmp_path / "g", settings_of()).close()
    connection = sqlite3.connect(tmp_path / "g" / "gallery.sqlite")
    connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    connection.close()
    with pytest.raises(StorageError, match="newer"):
        SqliteStore.open(tmp_path / "g")


def test_a_new_gallery_writes_durably(tmp_path):
    store = SqliteStore.create(tmp_path / "g", settings_of())
    pragmas = {
        name: store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    store.close()


# Places that cannot be used.


def test_creating_where_a_gallery_is_is_refused_and_leaves_it(tmp_path):
    store = SqliteStore.create(tmp_path / "g", settings_of())
    store.write(records_of(2), vectors_of(2))
    with pytest.raises(StorageError, match="already"):
        SqliteStore.create(tmp_path / "g", settings_of(name="other"))
    assert len(store) == 2
    store.close()


def test_a_directory_with_other_files_may_become_a_gallery(tmp_path):
    (tmp_path / "model-123.safetensors").write_bytes(b"model")
    store = SqliteStore.create(tmp_path, settings_of())
    assert store.size() > 4096
    store.close()


def test_a_creation_that_was_cut_short_may_be_repeated(tmp_path):
    (tmp_path / "gallery.sqlite").touch()
    with pytest.raises(StorageError, match=tmp_path.name):
        SqliteStore.open(tmp_path)
    SqliteStore.create(tmp_path, settings_of()).close()
    SqliteStore.open(tmp_path).close()


@pytest.mark.parametrize("name", ["none", "file/below"])
def test_opening_nothing_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=name):
        SqliteStore.open(tmp_path / name)
    with pytest.raises(StorageError, match="file/below"):
        SqliteStore.create(tmp_path / "file" / "below", settings_of())


def test_other_databases_and_other_files_are_no_gallery(tmp_path):
    (tmp_path / "gallery.sqlite").write_text("not a database at all" * 100)
    with pytest.raises(StorageError, match=r"gallery\.sqlite"):
        SqliteStore.open(tmp_path)
    with pytest.raises(StorageError, match=r"gallery\.sqlite"):
        SqliteStore.create(tmp_path, settings_of())
    (tmp_path / "gallery.sqlite").unlink()
    connection = sqlite3.connect(tmp_path / "gallery.sqlite")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StorageError, match="program"):
        SqliteStore.open(tmp_path)
    with pytest.raises(StorageError, match="already"):
        SqliteStore.create(tmp_path, settings_of())


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM meta WHERE key = 'state'",
        "UPDATE meta SET value = '{' WHERE key = 'settings'",
        "DELETE FROM vectors",
        "DELETE FROM blocks",
        "UPDATE blocks SET codes = x'00'",
        "UPDATE vectors SET points = x'00'",
        "DROP TABLE labels",
    ],
)
def test_missing_parts_are_one_clear_error(tmp_path, harm):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(records_of(3), vectors_of(3))
    store.close()
    connection = sqlite3.connect(tmp_path / "gallery.sqlite", isolation_level=None)
    connection.execute(harm)
    connection.close()
    with pytest.raises(StorageError) as caught:
        SqliteStore.open(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_gives_no_traceback_of_sqlite(tmp_path, seed):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(records_of(500), vectors_of(500))
    store.close()
    path, rng = tmp_path / "gallery.sqlite", np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    for _ in range(40):
        start = int(rng.integers(100, len(content) - 3000))
        content[start : start + 3000] = rng.bytes(3000)
    path.write_bytes(content[: int(rng.integers(len(content) // 2, len(content)))])
    # Nothing but a StorageError may come out; what is not damaged may still be read.
    with suppress(StorageError):
        opened = SqliteStore.open(tmp_path)
        for ask in (opened.classes, lambda: opened.page(limit=1000), lambda: opened.remove(["i00003"])):
            with suppress(StorageError):
                ask()
        opened.close()


def test_a_full_disk_undoes_the_call(tmp_path):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(records_of(10), vectors_of(10))
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    many = [Record(f"n{row}", "new", {"t": "x" * 500}) for row in range(500)]
    with pytest.raises(StorageError, match="full"):
        store.write(many, vectors_of(500))
    assert len(store) == 10
    assert store.classes() == ["c0", "c1", "c2"]
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.write(many, vectors_of(500))
    assert len(store) == 510
    store.close()


def test_a_read_only_gallery_can_be_read(tmp_path, monkeypatch):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(records_of(3), vectors_of(3))
    store.close()
    before = sorted(path.name for path in tmp_path.iterdir())
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    reader = SqliteStore.open(tmp_path)
    assert len(reader.page()) == 3
    with pytest.raises(StorageError, match="read-only"):
        reader.remove(["i00000"])
    assert len(reader) == 3
    reader.close()
    assert set(before) <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("bad", "match"),
    [({"dtype": "float64"}, "float64"), ({"dimension": 0}, "dimension"), ({"dimension": True}, "dimension")],
)
def test_settings_that_cannot_be_stored_are_refused(tmp_path, bad, match):
    with pytest.raises(DataError, match=match):
        SqliteStore.create(tmp_path / "g", settings_of(**bad))
    assert not (tmp_path / "g").exists()
    with pytest.raises(DataError, match="hnsw"):
        SqliteStore.create(tmp_path / "g", settings_of(), index="hsnw")


@pytest.mark.parametrize(
    "record",
    [Record(3, "x"), Record("a", 3), Record("a", "x", source=Path("p")), Record("\ud800", "x"), Record("a", "\ud800")],
)
def test_values_of_the_wrong_kind_are_refused(tmp_path, record):
    store = SqliteStore.create(tmp_path, settings_of())
    with pytest.raises(DataError):
        store.write([record], vectors_of(1))
    assert len(store) == 0
    store.close()


def test_many_ids_at_once(tmp_path):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(records_of(3500), vectors_of(3500))
    ids = [record.id for record in records_of(3500)]
    assert [item.id for item in store.get(ids[::-1])] == ids[::-1]
    assert store.vectors(ids).shape == (3500, DIMENSION)
    assert store.update(ids, label="one") == 3500
    assert store.class_sizes() == {"one": 3500}
    assert store.remove([*ids, *ids]) == 3500
    assert store.sample(10, 0).keys.shape == (0,)
    store.close()


def test_the_leftovers_of_a_rebuild_are_deleted_by_the_next_writer(small, tmp_path):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(records_of(40), vectors_of(40))
    with store._connected() as connection:
        made = VectorBlocks(connection, settings_of(), 2)
        made.scatter(np.arange(40), vectors_of(40, 5))
    assert len(store) == 40
    store.remove(["i00000"])
    for table in ("blocks", "vectors"):
        assert store._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 3
    store.close()


# The graph.


def test_a_graph_is_built_kept_and_taken_up_again(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    points = vectors_of(3000)
    store = SqliteStore.create(tmp_path, settings_of(), index="hnsw")
    assert store.kind == "exact"
    store.write(records_of(2900), points[:2900])
    store.write(records_of(100, 2900), points[2900:])
    assert store.kind == "hnsw"
    assert store._graph.of(store._mirror).covered == 2900
    queries = vectors_of(50, 9)
    exact = store._mirror.index.search(queries, 10)[1]
    found = store.search(queries, 10).keys
    assert np.mean([len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True)]) > 9.5
    store.remove([f"i{row:05d}" for row in exact[0]])
    assert not set(store.search(queries[:1], 10).keys[0]) & set(exact[0])
    other = SqliteStore.open(tmp_path)
    monkeypatch.setattr(mirror.HnswIndex, "extend", lambda *_: pytest.fail("the graph was built again"))
    assert other.kind == SqliteStore.open(tmp_path).kind == "hnsw"
    assert SqliteStore.open(tmp_path, index="exact").kind == "exact"
    monkeypatch.undo()
    newer = vectors_of(3000, 4, 5)
    names = [item.id for item in store.page(limit=5000)]
    store.replace_vectors(settings_of(dimension=5), iter([(names, newer[: len(names)])]))
    for opened in (store, other):
        assert opened.kind == "hnsw"
        assert opened.items(opened.search(newer[:1], 1).keys[0])[0].id == names[0]
    assert len(list(tmp_path.glob("hnsw-*.faiss"))) == 1
    other.close()
    store.close()


def test_auto_is_exact_until_there_are_many(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(mirror, "_MANY", 500)
    store = SqliteStore.create(tmp_path / "g", settings_of())
    store.write(records_of(500), vectors_of(500))
    assert store.kind == "exact"
    store.write(records_of(100, 500), vectors_of(100, 1))
    assert store.kind == "hnsw"
    store.close()
    curved = SqliteStore.create(tmp_path / "h", settings_of(space={"name": "poincare-ball"}))
    curved.write(records_of(600), vectors_of(600) / 100)
    assert curved.kind == "exact"
    curved.close()


def test_a_space_without_a_graph_is_refused_if_one_was_asked_for(tmp_path):
    pytest.importorskip("faiss")
    curved = {"name": "poincare-ball"}
    with pytest.raises(DataError, match="poincare"):
        SqliteStore.create(tmp_path / "h", settings_of(space=curved), index="hnsw")
    assert not (tmp_path / "h").exists()
    store = SqliteStore.create(tmp_path / "g", settings_of(), index="hnsw")
    store.write(records_of(2), vectors_of(2))
    with pytest.raises(DataError, match="poincare"):
        store.replace_vectors(settings_of(space=curved), iter([(["i00000", "i00001"], vectors_of(2))]))
    assert store.settings == settings_of()
    store.close()


def test_new_vectors_of_an_empty_gallery_change_its_settings(tmp_path):
    store = SqliteStore.create(tmp_path, settings_of())
    store.replace_vectors(settings_of(dimension=3), iter([]))
    assert store.settings.dimension == 3
    store.write(records_of(2), vectors_of(2, dimension=3))
    assert len(store) == 2
    store.close()
