"""A gallery that cannot be made leaves nothing behind, wherever it was to be."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from nearkin.errors import DataError, StorageError
from nearkin.gallery import Gallery, Settings, places
from nearkin.gallery.places import create_store
from nearkin.gallery.sqlite import SqliteStore, database
from nearkin.models import Embedder, ModelSection, build_embedder

WRONG = np.ones((2, 7))
PICTURES = [np.full((8, 8, 3), shade, np.uint8) for shade in (0, 200)]


@pytest.fixture(scope="module")
def model():
    return build_embedder(ModelSection(backbone="conv4", size=32, dimension=16), seed=1).eval()


@pytest.mark.parametrize("there", [False, True])
def test_a_directory_is_as_it_was(tmp_path, model, there):
    place = tmp_path / "x.gallery"
    if there:
        place.mkdir()
    with pytest.raises(DataError, match="vectors"):
        Gallery.create(place, model, [WRONG], progress=False)
    assert place.exists() == there
    assert not there or not list(place.iterdir())
    with Gallery.create(place, dimension=7, name="x", items=WRONG) as made:
        assert len(made) == 2


def test_milvus_is_as_it_was_and_can_be_used_again_at_once(tmp_path):
    pytest.importorskip("milvus_lite")
    place = str(tmp_path / "n.db")
    with pytest.raises(DataError, match=r"\(n, 8\)"):
        Gallery.create(place, items=WRONG, dimension=8, name="x")
    assert not list(tmp_path.iterdir())
    with Gallery.create(f"{place}#first", items=WRONG, dimension=7, name="x") as first:
        with pytest.raises(DataError, match=r"\(n, 8\)"):
            Gallery.create(f"{place}#second", items=WRONG, dimension=8, name="x")
        assert len(first) == 2
        with pytest.raises(StorageError, match="#second"):
            Gallery.open(f"{place}#second")
    with Gallery.open(f"{place}#first") as first:
        assert len(first) == 2


def test_what_another_process_made_meanwhile_is_left_alone(tmp_path, model, monkeypatch):
    place = tmp_path / "x.gallery"

    def overtaken(path, settings, index):
        create_store(path, Settings("theirs", 7, {"name": "sphere"}), index).close()
        return create_store(path, settings, index)

    monkeypatch.setattr("nearkin.gallery.gallery.create_store", overtaken)
    with pytest.raises(StorageError, match=r"x\.gallery"):
        Gallery.create(place, model)
    with Gallery.open(place) as theirs:
        assert theirs.settings.name == "theirs"


@pytest.mark.parametrize("given", [{"labels": ["a"]}, {"metadata": {"a": 1}}, {"ids": ["a"]}])
def test_labels_without_items_are_refused(tmp_path, given):
    with pytest.raises(DataError, match="items"):
        Gallery.create(tmp_path / "x.gallery", dimension=4, name="x", **given)
    assert not (tmp_path / "x.gallery").exists()


def test_a_class_needs_an_example(tmp_path):
    with Gallery.create(tmp_path / "x.gallery", dimension=4, name="x") as gallery:
        with pytest.raises(DataError, match="mug"):
            gallery.enrol("mug", np.empty((0, 4)))
        assert gallery.enrol("mug", np.ones((1, 4)))


def _killed_at(place, model, monkeypatch, owner, name, before):
    """Kill a child that creates a gallery, where it first comes to a function."""
    child = os.fork()
    if child == 0:
        real = getattr(owner, name)

        def last(*given, **named):
            if not before:
                real(*given, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(owner, name, last)
        Gallery.create(place, model, PICTURES, "a", progress=False)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (places, "write_text"),
        (Embedder, "save"),
        (database, "create"),
        (SqliteStore, "create"),
        (SqliteStore, "write"),
        (Path, "unlink"),
    ],
)
def test_a_killed_creation_does_not_block_the_next(tmp_path, model, monkeypatch, owner, name, before, there):
    place = tmp_path / "x.gallery"
    if there:
        place.mkdir()
    _killed_at(place, model, monkeypatch, owner, name, before)
    with suppress(StorageError):  # opened it is whole, or refused
        with Gallery.open(place) as gallery:
            assert len(gallery) == 2
        return
    with Gallery.create(place, model, PICTURES, "a", progress=False) as gallery:
        assert len(gallery) == 2
    assert not [file.name for file in place.iterdir() if "creating" in file.name or file.suffix == ".tmp"]
    with Gallery.open(place) as gallery:
        assert len(gallery) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_files_of_others_are_kept_whatever_lies_beside_them(tmp_path, model, monkeypatch):
    place = tmp_path / "x.gallery"
    _killed_at(place, model, monkeypatch, SqliteStore, "write", True)
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(StorageError, match="exists"):
        Gallery.create(place, model)
    with pytest.raises(StorageError, match="created"):
        Gallery.open(place)
    assert (place / "gallery.sqlite").exists()
    assert (place / "thesis.txt").exists()


def test_a_gallery_that_was_made_while_one_waited_is_left_alone(tmp_path, model, monkeypatch):
    place = tmp_path / "x.gallery"
    real = places.in_turn

    @contextmanager
    def late(file):
        with monkeypatch.context() as inner:
            inner.setattr(places, "in_turn", real)
            Gallery.create(place, dimension=7, name="theirs", items=WRONG).close()
        with real(file):
            yield

    monkeypatch.setattr(places, "in_turn", late)
    with pytest.raises(StorageError, match="exists"):
        Gallery.create(place, model)
    with Gallery.open(place) as theirs:
        assert len(theirs) == 2
