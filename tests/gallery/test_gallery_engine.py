"""Galleries whose model is run by ONNX Runtime: the same vectors, the same tie."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import ModelError, UnknownNameError
from nearkin.gallery import Gallery
from nearkin.models import ModelSection, build_embedder

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model():
    return build_embedder(ModelSection(backbone="conv4", size=16, dimension=8)).eval()


def test_engines_share_a_gallery(model, patterns, tmp_path):
    path = tmp_path / "shop.gallery"
    first, second = patterns.select(np.arange(40)), patterns.select(np.arange(40, 80))
    with Gallery.create(path, model, first, engine="onnx", progress=False) as gallery:
        assert gallery.encoder.engine == "onnx"
        made = gallery.encoder.run([gallery.encoder.prepare(first.load(0))])
        assert 0 < np.abs(made - model.encode([first.load(0)], progress=False)).max() < 1e-5
    with Gallery.open(path) as gallery:  # the same fingerprint: any engine may go on
        assert gallery.encoder.engine == "torch"
        gallery.add(second, progress=False)
        expected = gallery.search(patterns.load(3), k=5)
    with Gallery.open(path, engine="onnx") as gallery:
        found = gallery.search(patterns.load(3), k=5)
        assert [n.item.id for n in found] == [n.item.id for n in expected]
        assert [n.distance for n in found] == pytest.approx([n.distance for n in expected], abs=1e-5)
        assert found[0].distance == pytest.approx(0, abs=1e-3)
        assert len(gallery.encoder.encode([patterns.load(row) for row in range(5)], batch_size=2)) == 5


def test_bad_engines_and_models(model, tmp_path):
    with pytest.raises(UnknownNameError, match="onnx"):
        Gallery.create(tmp_path / "a.gallery", model, engine="onyx")
    assert not (tmp_path / "a.gallery").exists()
    Gallery.create(tmp_path / "b.gallery", dimension=3, name="own").close()
    with pytest.raises(UnknownNameError, match="onyx"):
        Gallery.open(tmp_path / "b.gallery", engine="onyx")
    with pytest.raises(ModelError, match="engine"):
        Gallery.create(tmp_path / "c.gallery", tmp_path / "model.onnx")
