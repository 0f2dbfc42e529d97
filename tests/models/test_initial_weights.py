from __future__ import annotations

import hashlib

import pytest
import torch
from pydantic import ValidationError

from nearkin.errors import CheckpointError, ModelError, RecipeError
from nearkin.models import Embedder, ModelSection, build_embedder


@pytest.fixture
def saved(make_embedder, tmp_path):
    """A Conv4 model of another seed, saved; its batch norms have statistics of their own."""
    path = tmp_path / "start.safetensors"
    make_embedder(seed=7).save(path)
    return path


def section(path, **changes):
    return ModelSection(**{"backbone": "conv4", "size": 16, "dimension": 8, "weights": str(path), **changes})


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_backbone_is_taken_and_nothing_else(saved, tmp_path):
    source = Embedder.load(saved)
    fresh = build_embedder(ModelSection(backbone="conv4", size=16, dimension=8))
    started = build_embedder(section(saved))
    assert same(started.backbone, source.backbone)
    assert not same(fresh.backbone, source.backbone)
    assert same(started.head, fresh.head)
    assert not same(started.head, source.head)


def test_a_model_of_another_size_pooling_and_head_can_start_from_it(saved):
    started = build_embedder(
        section(saved, size=32, pooling="gem", local_dimension=6, dimension=None, freeze="block2"), seed=3
    )
    assert same(started.backbone, Embedder.load(saved).backbone)
    assert started.frozen_stages == ["block1", "block2"]
    assert started.embed(torch.rand(2, 3, 32, 32)).shape == (2, 6)


def test_a_model_that_started_from_a_file_is_loaded_without_it(saved, tmp_path):
    started = build_embedder(section(saved))
    started.save(tmp_path / "trained.safetensors")
    saved.unlink()
    assert Embedder.load(tmp_path / "trained.safetensors").fingerprint() == started.fingerprint()


def test_the_checksum_is_compared(saved):
    right = hashlib.sha256(saved.read_bytes()).hexdigest()
    assert same(build_embedder(section(saved, weights_sha256=right)).backbone, Embedder.load(saved).backbone)
    with pytest.raises(CheckpointError, match=r"model\.weights_sha256"):
        build_embedder(section(saved, weights_sha256="0" * 64))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"backbone": "lenet", "size": 28}, "lenet"),
        ({"channels": 1}, "channels"),
    ],
)
def test_another_backbone_is_refused(saved, changes, word):
    with pytest.raises(ModelError, match=word):
        build_embedder(section(saved, **changes))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="missing"):
        build_embedder(section(tmp_path / "missing.safetensors"))
    (tmp_path / "other.safetensors").write_bytes(b"something else")
    with pytest.raises(CheckpointError, match=r"other\.safetensors"):
        build_embedder(section(tmp_path / "other.safetensors"))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"weights": "a.safetensors", "pretrained": True}, r"model\.pretrained"),
        ({"weights_sha256": "0" * 64}, r"model\.weights_sha256"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, word):
    with pytest.raises(RecipeError, match=word):
        ModelSection(**settings)


def test_a_checksum_must_look_like_one():
    with pytest.raises(ValidationError, match="weights_sha256"):
        ModelSection(weights="a.safetensors", weights_sha256="abc")
