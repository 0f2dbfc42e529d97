"""A gallery that cannot be made leaves nothing behind, wherever it was to be."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError, StorageError
from nearkin.gallery import Gallery, Settings
from nearkin.gallery.places import create_store
from nearkin.models import ModelSection, build_embedder

WRONG = np.ones((2, 7))


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
