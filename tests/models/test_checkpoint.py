from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nearkin.errors import CheckpointError, StorageError
from nearkin.models import Embedder, ModelSection, build_embedder

CARD = {"recipe": {"name": "test"}, "classes": {"train": ["Ünal", "b"], "val": [], "test": []}, "steps": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dimension": None, "channels": 1},
        {"pooling": "gem", "pooling_parameters": {"p": 2.0, "learn_p": False}, "size": 20},
        {"space": "poincare-ball", "space_parameters": {"curvature": 0.5}, "freeze": "block3"},
        {"backbone": "lenet", "size": 28, "pooling": "gap+gmp", "freeze": "all", "frozen_batch_norm": True},
    ],
)
def test_round_trip(make_embedder, tmp_path, changes):
    embedder = make_embedder(seed=3, **changes)
    embedder.card = dict(CARD)
    path = tmp_path / "new folder" / "model.safetensors"
    embedder.save(path)
    loaded = Embedder.load(path)
    assert loaded.architecture() == embedder.architecture()
    assert loaded.card == CARD
    assert loaded.fingerprint() == embedder.fingerprint()
    assert not loaded.training
    images = np.random.default_rng(0).integers(0, 256, (4, 30, 24, 3), dtype=np.uint8)
    assert np.array_equal(loaded.encode(images, progress=False), embedder.encode(images, progress=False))


def test_the_length_of_audio_crops_is_kept(tmp_path):
    section = ModelSection(backbone="tdnn", size=8, pooling="stats", dimension=4)
    embedder = build_embedder(section, audio_seconds=0.3)
    assert embedder.spec.frames == 30
    embedder.save(tmp_path / "model.safetensors")
    assert Embedder.load(tmp_path / "model.safetensors").spec == embedder.spec


def test_memory_format_and_shared_weights_are_no_obstacle(make_embedder, tmp_path):
    embedder = make_embedder().to(memory_format=torch.channels_last)
    embedder.save(tmp_path / "model.safetensors")
    assert Embedder.load(tmp_path / "model.safetensors").fingerprint() == embedder.fingerprint()


def test_the_fingerprint_sees_weights_and_architecture_only(make_embedder):
    embedder = make_embedder()
    before = embedder.fingerprint()
    embedder.card = dict(CARD)
    embedder.freeze("all")
    assert embedder.fingerprint() == before
    assert make_embedder(space="euclidean").fingerprint() != before
    with torch.no_grad():
        embedder.head.bias[0] += 1e-3
    assert embedder.fingerprint() != before


def rewrite(path, **metadata):
    """The same file with other metadata."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        kept = file.metadata()
    save_file(tensors, path, {**kept, **metadata})


@pytest.fixture
def saved(make_embedder, tmp_path):
    path = tmp_path / "model.safetensors"
    make_embedder().save(path)
    return path


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.safetensors"):
        Embedder.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\xff" * 100])
def test_not_safetensors(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Embedder.load(path)


def test_a_truncated_file(saved):
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=saved.name):
        Embedder.load(saved)


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"format": "pt"}, "nearkin"),
        ({"version": "2"}, "newer"),
        ({"version": "one"}, "version"),
        ({"architecture": "{}"}, "architecture"),
        ({"architecture": "{"}, "architecture"),
        ({"architecture": "[]"}, "architecture"),
    ],
)
def test_other_metadata(saved, metadata, word):
    rewrite(saved, **metadata)
    with pytest.raises(CheckpointError, match=word):
        Embedder.load(saved)


def test_tensors_that_do_not_fit(saved, make_embedder):
    rewrite(saved, architecture=json.dumps(make_embedder(dimension=9).architecture()))
    with pytest.raises(CheckpointError, match="tensors"):
        Embedder.load(saved)
    unknown = make_embedder().architecture()
    unknown["backbone"]["name"] = "conv5"
    rewrite(saved, architecture=json.dumps(unknown))
    with pytest.raises(CheckpointError, match="conv5"):
        Embedder.load(saved)


@pytest.mark.parametrize("value", [10**6, 10**12, 10**30])
@pytest.mark.parametrize(
    ("part", "key"), [("input", "size"), ("input", "resize"), ("backbone", "size"), (None, "dimension")]
)
def test_absurd_sizes_in_a_header_are_refused_at_once(saved, make_embedder, part, key, value):
    absurd = make_embedder().architecture()
    (absurd if part is None else absurd[part])[key] = value
    rewrite(saved, architecture=json.dumps(absurd))
    with pytest.raises(CheckpointError, match=str(value)):
        Embedder.load(saved)


def test_a_card_must_be_plain(make_embedder, tmp_path):
    embedder = make_embedder()
    embedder.card = {"metric": float("nan")}
    with pytest.raises(CheckpointError, match="JSON"):
        embedder.save(tmp_path / "model.safetensors")


def test_a_failed_write_keeps_what_was_there(saved, make_embedder, monkeypatch):
    before = saved.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nearkin.models.embedder.save_file", full)
    with pytest.raises(StorageError, match="space"):
        make_embedder(seed=1).save(saved)
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]
