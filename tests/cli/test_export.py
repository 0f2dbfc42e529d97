"""`nearkin export`, and `nearkin embed` with what it writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nearkin.models import ModelSection, build_embedder

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)


@pytest.fixture
def model(tmp_path, photos):
    """A model file whose card says which classes of the photos trained it."""
    embedder = build_embedder(ModelSection(backbone="conv4", size=16, dimension=8))
    names = sorted(folder.name for folder in photos.iterdir())
    embedder.card = {"classes": {"train": names[:5], "val": [], "test": names[5:]}, "data": {"source": str(photos)}}
    path = tmp_path / "run" / "best.safetensors"
    embedder.save(path)
    return path


def test_exporting_and_embedding_by_the_file(nearkin, model, photos, tmp_path):
    code, out, err = nearkin("export", model)
    assert (code, err) == (0, "")
    file = model.with_suffix(".onnx")
    assert "difference" in out
    assert str(file) in out
    assert json.loads((tmp_path / "run" / "best.onnx.json").read_text())["precision"] == "float32"
    vectors = {}
    for name, arguments in {"torch": [model], "onnx": [model, "--engine", "onnx"], "file": [file]}.items():
        target = tmp_path / f"{name}.npy"
        assert nearkin("embed", *arguments, photos, "--out", target, "-q")[0] == 0
        vectors[name] = np.load(target)
    assert vectors["torch"].shape == (48, 8)
    assert 0 < np.abs(vectors["torch"] - vectors["onnx"]).max() < 1e-4
    assert np.array_equal(vectors["onnx"], vectors["file"])


def test_eight_bits_tell_what_they_cost(nearkin, model, photos, tmp_path):
    code, out, _ = nearkin("export", model, "--int8", "-q")  # on the data that the model was trained on
    assert code == 0
    told = json.loads((tmp_path / "run" / "best.int8.onnx.json").read_text())
    assert told["precision"] == "int8"
    assert told["int8"]["classes"] == 3
    assert f"{told['int8']['float32']:.4f}" in out
    assert f"{told['int8']['int8']:.4f}" in out
    assert "95 %" in out
    assert "Speed" in out
    assert nearkin("embed", model.with_name("best.int8.onnx"), photos, "--out", tmp_path / "a.npy", "-q")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "model.pt"], ".onnx"),
        (["--data", "photos"], "data"),
        (["--int8", "--data", "nowhere"], "nowhere"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(nearkin, model, arguments, message):
    before = sorted(model.parent.iterdir())
    code, _, err = nearkin("export", model, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(model.parent.iterdir()) == before


def test_an_exported_file_is_only_run(nearkin, model, photos, tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"no")
    assert "a.onnx" in nearkin("export", tmp_path / "a.onnx")[2]
    assert "a.onnx" in nearkin("embed", tmp_path / "a.onnx", photos, "--out", tmp_path / "a.npy")[2]
    code, _, err = nearkin("embed", model, photos, "--out", tmp_path / "a.npy", "--engine", "onyx")
    assert (code, "onnx" in err) == (2, True)
    assert not (tmp_path / "a.npy").exists()
