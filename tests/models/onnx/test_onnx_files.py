"""The file: what it says of itself, how it is read, and what is refused."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import nearkin.models.onnx.file as files
from nearkin.errors import CheckpointError, MissingExtraError, ModelError, StorageError, UnknownNameError
from nearkin.models import ModelSection, build_embedder
from nearkin.models.engines import list_engines, make_encoder
from nearkin.models.onnx import OnnxEncoder, export


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (7, 30, 26, 3), dtype=np.uint8)


@pytest.fixture
def exported(small, small_file, tmp_path, monkeypatch):
    """The file of the small model, whose content is made once for all tests."""
    with monkeypatch.context() as patch:
        patch.setattr(files, "serialised", lambda _: small_file)
        return export(small, tmp_path / "new" / "model.onnx")


def test_a_file_encodes_what_the_model_encodes(small, exported, pixels):
    assert 0 < exported.difference < 1e-5
    encoder = OnnxEncoder(exported.path)
    assert (encoder.spec, encoder.dimension, encoder.fingerprint) == (small.spec, 8, small.fingerprint())
    expected = small.encode(pixels, progress=False)
    for batch_size, workers in ((3, 2), (64, 0)):
        found = encoder.encode(pixels, batch_size=batch_size, workers=workers, progress=False)
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < 1e-5
    assert encoder.encode([], progress=False).shape == (0, 8)
    with pytest.raises(ModelError, match="batch"):
        encoder.encode(pixels, batch_size=0)
    with pytest.raises(ModelError, match="2, 3, 9, 9"):
        encoder(torch.rand(2, 3, 9, 9))


def test_the_file_says_what_a_stranger_must_know(small, exported, tmp_path):
    path = exported.path
    told = json.loads(path.with_name("model.onnx.json").read_text())
    model = onnx.load(path)
    onnx.checker.check_model(model)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(properties["nearkin.preprocessing"]) == told["preprocessing"]
    assert properties["nearkin.fingerprint"] == told["fingerprint"] == small.fingerprint()
    assert told["preprocessing"]["in_graph"] == {"mean": list(small.spec.mean), "std": list(small.spec.std)}
    assert (told["dimension"], told["space"], told["left_out"]) == (8, small.space.to_dict(), None)
    (given,), (taken,) = model.graph.output, model.graph.input
    assert (taken.name, given.name) == ("samples", "embeddings")
    assert [size.dim_param or size.dim_value for size in taken.type.tensor_type.shape.dim] == ["batch", 3, 24, 24]
    assert b"site-packages" not in path.read_bytes()
    assert str(tmp_path).encode() not in path.read_bytes()
    assert any(node.name.startswith("backbone.stages.") for node in model.graph.node)


def test_the_engine_translates_once(small, small_file, pixels, own_cache, monkeypatch):
    translated = []

    def translate(embedder):
        translated.append(embedder.fingerprint())
        return small_file

    monkeypatch.setattr("nearkin.models.onnx.file.serialised", translate)
    expected = small.encode(pixels, progress=False)
    for _ in range(2):
        assert np.abs(small.encode(pixels, engine="onnx", progress=False) - expected).max() < 1e-5
    assert translated == [small.fingerprint()]
    (kept,) = own_cache.iterdir()
    assert small.fingerprint() in kept.name
    kept.write_bytes(kept.read_bytes()[:1000])
    assert np.abs(small.encode(pixels, engine="onnx", progress=False) - expected).max() < 1e-5
    assert len(translated) == 2
    assert len(OnnxEncoder(kept).encode(pixels, progress=False)) == 7
    other = build_embedder(ModelSection(backbone="conv4", size=24, dimension=8), seed=3)
    with pytest.raises(ModelError, match="differ"):  # what is kept for one model is not taken for another
        other.encode(pixels, engine="onnx", progress=False)
    assert list(own_cache.iterdir()) == [kept]


def test_engines_by_name(small, pixels):
    assert list_engines() == ["onnx", "torch"]
    with pytest.raises(UnknownNameError, match="onnx"):
        small.encode(pixels, engine="onx")
    with pytest.raises(ModelError, match="compile"):
        small.encode(pixels, engine="onnx", compile=True)


class Undecided(nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > 0 else -x


def test_a_layer_that_cannot_be_exported_is_named(tmp_path, capfd):
    embedder = build_embedder(ModelSection(backbone="conv4", size=16))
    embedder.head = nn.Sequential(nn.Identity(), Undecided())
    with pytest.raises(ModelError, match=r"head\.1") as caught:
        export(embedder, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.onnx*"))
    assert capfd.readouterr() == ("", "")


def test_the_pooling_that_cannot_be_exported_is_named(tmp_path):
    embedder = build_embedder(ModelSection(backbone="conv4", size=16, pooling="generalized-max"))
    with pytest.raises(ModelError, match="GeneralizedMaxPooling"):
        export(embedder, tmp_path / "model.onnx")


def test_a_model_of_own_layers_can_be_exported_without_a_fingerprint(pixels, own_cache):
    embedder = build_embedder(ModelSection(backbone="conv4", size=16))
    embedder.head = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    encoder = make_encoder(embedder, "onnx")
    assert encoder.fingerprint is None
    assert np.abs(encoder.encode(pixels, progress=False) - embedder.encode(pixels, progress=False)).max() < 1e-5
    assert not own_cache.exists()


def test_other_vectors_are_not_written(small, small_file, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_text("before")
    wrong = build_embedder(ModelSection(backbone="conv4", size=24, dimension=8), seed=5)
    monkeypatch.setattr(files, "serialised", lambda _: small_file)
    with pytest.raises(ModelError, match="differ"):
        export(wrong, path)
    assert path.read_text() == "before"
    assert list(tmp_path.glob("*onnx*")) == [path]


def test_bad_places(small, small_file, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"\.onnx"):
        export(small, tmp_path / "model.pt")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(files, "serialised", lambda _: small_file)
    with pytest.raises(StorageError, match=r"model\.onnx"):
        export(small, tmp_path / "file" / "model.onnx")


def foreign(**properties):
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value], [other])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    onnx.helper.set_model_props(model, {f"nearkin.{name}": value for name, value in properties.items()})
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "model.onnx"),
        (b"hello", "model.onnx"),
        (foreign(), "export"),
        (foreign(format="nearkin.onnx", version="2"), r"\b2\b"),
        (foreign(format="nearkin.onnx"), "format"),
        (foreign(format="nearkin.onnx", version="1"), "metadata"),
    ],
)
def test_files_that_are_not_ours(content, word, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=word) as caught:
        OnnxEncoder(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_cut_or_missing(small_file, tmp_path):
    (tmp_path / "cut.onnx").write_bytes(small_file[0][: len(small_file[0]) // 2])
    with pytest.raises(CheckpointError, match=r"cut\.onnx"):
        OnnxEncoder(tmp_path / "cut.onnx")
    with pytest.raises(CheckpointError, match=r"missing\.onnx"):
        OnnxEncoder(tmp_path / "missing.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(package, small, small_file, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"\b{package}\b"):
        export(small, tmp_path / "model.onnx")
    assert not list(tmp_path.glob("*.onnx*"))
    if package == "onnxruntime":
        with pytest.raises(MissingExtraError, match=r"nearkin\[onnx\]"):
            OnnxEncoder(small_file[0])


def test_packages_are_imported_only_where_they_are_used():
    """`threshold.py` is read by onnxscript, and itself imported where a model is exported."""
    imported = {}
    for path in Path(files.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported.setdefault(path.name, set()).update(name.partition(".")[0] for name in names)
    optional = {"onnx", "onnxruntime", "onnxscript"}
    assert {name for name, found in imported.items() if found & optional} == {"threshold.py"}
    assert not any("threshold" in str(name) for found in imported.values() for name in found)
