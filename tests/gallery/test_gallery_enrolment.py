"""Rebuilding where files are gone or damaged, and where it fails: all as before, or only what can be read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError, ModelError, StorageError
from nearkin.gallery import Gallery
from nearkin.gallery.store import Record
from nearkin.models import ModelSection, build_embedder


def build(dimension, seed):
    return build_embedder(ModelSection(backbone="conv4", size=32, dimension=dimension), seed=seed).eval()


OLD, NEW = build(16, 1), build(8, 2)


def png(seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(params=["x.gallery", "x.db"])
def gallery(tmp_path, request):
    """Six items: four files, of which the second is damaged now, and two that came as bytes."""
    if request.param.endswith(".db"):
        pytest.importorskip("milvus_lite")
    files = []
    for number in range(4):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(png(number))
    path = str(tmp_path / request.param)
    with Gallery.create(path, OLD, [*files, png(8), png(9)], labels=list("aabbcc"), ids=list("uvwxyz")) as made:
        files[1].write_bytes(b"no image any more")
        yield made


def copies(gallery):
    return sorted(file.name for file in Path(gallery.path).glob("model-*"))


def test_a_damaged_file_stops_it_and_is_named(gallery):
    before, models = gallery.embed([png(0)]), copies(gallery)
    with pytest.raises(DataError, match=r"\b1\.png"):
        gallery.rebuild(NEW, progress=False)
    assert len(gallery) == 6
    assert gallery.settings.dimension == 16
    assert copies(gallery) == models
    np.testing.assert_array_equal(gallery.embed([png(0)]), before)
    assert gallery.search(png(9), k=1)[0].item.id == "z"


def test_a_damaged_file_can_be_dropped(gallery):
    gallery.rebuild(NEW, missing="drop", progress=False)
    assert [item.id for item in gallery.items()] == list("uwxyz")
    assert gallery.settings.dimension == 8
    for id, seed in (("u", 0), ("w", 2), ("z", 9)):
        near = gallery.search(png(seed), k=1)[0]
        assert near.item.id == id
        assert near.distance == pytest.approx(0, abs=1e-3)


def test_the_bytes_serve_where_a_file_is_damaged(gallery, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    both = Record("both", "d", source=str(tmp_path / "broken.png"), original=png(20))
    gallery.store.write([both], gallery.embed([png(20)]))
    gallery.rebuild(NEW, missing="drop", progress=False)
    near = gallery.search(png(20), k=1)[0]
    assert near.item.id == "both"
    assert near.distance == pytest.approx(0, abs=1e-3)
    assert "v" not in gallery


def test_all_may_be_damaged(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(png(0))
    with Gallery.create(tmp_path / "x.gallery", OLD, [file], progress=False) as made:
        file.write_bytes(b"gone")
        made.rebuild(NEW, missing="drop", progress=False)
        assert len(made) == 0
        assert made.settings.dimension == 8


@pytest.fixture
def local(tmp_path):
    with Gallery.create(tmp_path / "l.gallery", OLD, [png(0), png(1)], progress=False) as made:
        yield made


def test_what_is_wrong_at_the_start_leaves_no_model_behind(local):
    models = copies(local)
    with pytest.raises(DataError, match="drop"):
        local.rebuild(NEW, missing="maybe", progress=False)
    with pytest.raises(ModelError, match="audio"):
        local.rebuild(build_embedder(ModelSection(backbone="tdnn", dimension=8)), progress=False)
    assert copies(local) == models


def test_a_rebuild_that_fails_in_the_end_leaves_no_model_behind(local, monkeypatch):
    models = copies(local)

    def full(*_, **__):
        raise StorageError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(local.store, "replace_vectors", full)
        with pytest.raises(StorageError, match="full"):
            local.rebuild(NEW, progress=False)
        assert copies(local) == models
        with pytest.raises(StorageError, match="full"):
            local.rebuild(OLD, progress=False)
        assert copies(local) == models
    local.rebuild(NEW, progress=False)
    assert len(copies(local)) == 1
    assert copies(local) != models
