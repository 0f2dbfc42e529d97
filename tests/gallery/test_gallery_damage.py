"""Galleries that were damaged, moved away or made by another version: told in a sentence, mended where that can be."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3

import numpy as np
import pytest

from nearkin.errors import StorageError
from nearkin.gallery import Gallery
from nearkin.gallery.sqlite import database


@pytest.fixture
def place(tmp_path):
    """A gallery that has learned from itself."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(6), 15)
    rows = rng.normal(size=(6, 12))[codes] + 0.3 * rng.normal(size=(90, 12))
    with Gallery.create(tmp_path / "v.gallery", dimension=12, name="x") as made:
        made.add(rows, [f"class {code}" for code in codes])
        made.recalibrate(accept=0.8)
    return tmp_path / "v.gallery"


def change(place, statement, *values):
    with sqlite3.connect(place / "gallery.sqlite") as connection:
        connection.execute(statement, values)
    connection.close()


def kept(place):
    with sqlite3.connect(place / "gallery.sqlite") as connection:
        return json.loads(connection.execute("SELECT value FROM notes").fetchone()[0])


def spoiled(note, **parts):
    return json.dumps({**note, **parts})


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: "{}",
        lambda note: "[1]",
        lambda note: "5",
        lambda note: "no JSON {",
        lambda note: spoiled(note, format=7),
        lambda note: spoiled(note, key=3),
        lambda note: spoiled(note, k="many"),
        lambda note: spoiled(note, items="90"),
        lambda note: spoiled(note, pairs={"thresholds": 5}),
        lambda note: json.dumps({name: part for name, part in note.items() if name != "key"}),
    ],
)
def test_a_calibration_that_cannot_be_read_is_learned_again(place, damage):
    change(place, "UPDATE notes SET value = ?", damage(kept(place)))
    with Gallery.open(place) as gallery:
        assert gallery.calibration is None
        assert gallery.calibration_due
        assert gallery.stats().calibration is None
        match = gallery.identify(np.ones(12))
        assert match.probability is not None
        assert gallery.calibration.accept == 0.95
        assert gallery.recalibrate(accept=0.9).accept == 0.9
    assert kept(place)["accept"] == 0.9


def test_a_sound_calibration_is_not_learned_again(place):
    with Gallery.open(place) as gallery:
        assert gallery.calibration.accept == 0.8
        assert not gallery.calibration_due


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state", "[]"),
        ("state", '{"generation": "x"}'),
        ("state", '{"strange": 1}'),
        ("settings", "[]"),
        ("settings", '{"name": "x"}'),
        ("settings", '{"name": "x", "dimension": "12", "space": {"name": "sphere"}}'),
        ("settings", '{"name": "x", "dimension": 12, "space": {"name": "sphere"}, "dtype": "int4"}'),
        ("settings", '{"name": "x", "dimension": 12, "space": "sphere"}'),
        ("index", "[1]"),
        ("index", '"fast"'),
    ],
)
def test_damaged_settings_are_told(place, key, value):
    change(place, "UPDATE meta SET value = ? WHERE key = ?", value, key)
    with pytest.raises(StorageError, match=rf"\b{key}\b"):
        Gallery.open(place)


@pytest.mark.parametrize("metadata", ["{no", "[]", "5"])
def test_damaged_metadata_are_told(place, metadata):
    change(place, "UPDATE items SET metadata = ? WHERE slot = 3", metadata)
    with Gallery.open(place) as gallery:
        with pytest.raises(StorageError, match="metadata"):
            gallery.items()
        with pytest.raises(StorageError, match="metadata"):
            gallery.search(np.ones(12), k=90)


def test_a_question_that_sqlite_refuses_is_no_damage(place):
    with Gallery.open(place) as gallery, pytest.raises(StorageError) as told:
        gallery.store.thumbnail(["a"])
    assert "damaged" not in str(told.value)


def test_a_gallery_that_was_deleted_is_told(place):
    with Gallery.open(place) as gallery:
        shutil.rmtree(place)
        with pytest.raises(StorageError, match=r"v\.gallery"):
            gallery.stats()


def test_an_older_gallery_in_a_read_only_place_says_what_to_do(place, monkeypatch):
    change(place, "DROP TABLE originals")
    change(place, "PRAGMA user_version = 1")
    monkeypatch.setattr(database.os, "access", lambda *_: False)
    with pytest.raises(StorageError, match="written"):
        Gallery.open(place)
    monkeypatch.undo()
    with Gallery.open(place) as gallery:
        assert len(gallery) == 90
    monkeypatch.setattr(database.os, "access", lambda *_: False)
    with Gallery.open(place) as gallery:
        assert len(gallery) == 90


def test_a_note_in_milvus_that_cannot_be_read_is_none(tmp_path, monkeypatch):
    pytest.importorskip("milvus_lite")
    from nearkin.gallery.milvus import collection

    with Gallery.create(str(tmp_path / "v.db"), dimension=4, name="x", items=np.eye(4), labels=list("aabb")) as gallery:
        with monkeypatch.context() as patch:
            patch.setattr(collection.json, "dumps", lambda *_, **__: "no JSON {")
            gallery.store.set_note("calibration", {})
        assert gallery.calibration is None
        assert gallery.recalibrate(accept=0.9).accept == 0.9
        assert gallery.calibration.accept == 0.9


def test_a_writer_that_has_not_said_its_number_yet_is_another_process(place):
    with (place / "writer.lock").open("w") as other, Gallery.open(place) as gallery:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="process"):
            gallery.remove(label="class 0")
        other.write("17")
        other.flush()
        with pytest.raises(StorageError, match="17"):
            gallery.remove(label="class 0")


def test_a_full_disk_leaves_a_gallery_readable(place, full_disk):
    with Gallery.open(place) as gallery:
        first = gallery.items()[0].id
        vector = gallery.store.vectors([first])[0]
    full_disk(10_000)
    with Gallery.open(place) as gallery:
        assert len(gallery) == 90
        assert gallery.search(vector, 1)[0].item.id == first
        with pytest.raises(StorageError, match="room"):
            gallery.remove(first)
        full_disk(10_000_000)
        with Gallery.open(place) as other:
            other.relabel(first, "new")
        assert gallery.get(first).label == "new"
        assert gallery.remove(first) == 1
