from __future__ import annotations

import hashlib

import pytest
import torch
from pydantic import ValidationError

from nearkin.errors import CheckpointError, DataError, ModelError, RecipeError
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


# ---------------------------------------------------------------- model.start


def whole(path, **changes):
    return ModelSection(**{"backbone": "conv4", "size": 16, "start": str(path), **changes})


@pytest.fixture
def make_saved(make_embedder, tmp_path):
    """Saves a Conv4 model of another seed; keyword arguments go into the section."""

    def make(**changes):
        path = tmp_path / "whole.safetensors"
        embedder = make_embedder(seed=7, **changes)
        embedder.card = {"classes": {"train": ["a", "b"]}, "started_from": {"file": "older", "classes": ["b", "c"]}}
        embedder.save(path)
        return path

    return make


SHAPES = {
    "head": {"dimension": 8},
    "no head": {"dimension": None},
    "1x1 convolution and a pooling that learns": {
        "dimension": 8,
        "local_dimension": 6,
        "pooling": "gsp",
        "pooling_parameters": {"prototypes": 4},
    },
    "attention": {"dimension": 8, "attention": {}},
}


@pytest.mark.parametrize("name", SHAPES)
def test_all_of_a_model_comes_along(name, make_saved):
    path = make_saved(**SHAPES[name])
    started = build_embedder(whole(path, **SHAPES[name]), seed=3)
    assert same(started, Embedder.load(path))
    assert started.card.started_from == {
        "file": str(path),
        "classes": ["a", "b", "c"],
        "parts": ["backbone", "local", "pooling", "attention", "size_feature", "head"],
    }


def test_a_start_decides_what_a_recipe_leaves_open(make_saved):
    path = make_saved(dimension=8)
    section = whole(path, pretrained=True, head_start="random")
    assert (section.pretrained, section.head_start, section.dimension) == (False, "kept", "auto")
    assert build_embedder(section).dimension == 8
    assert same(build_embedder(section), Embedder.load(path))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"dimension": 4}, r"model\.dimension to 8"),
        ({"dimension": None}, r"model\.dimension to 8"),
        ({"dimension": 8, "pooling": "gsp", "pooling_parameters": {"prototypes": 4}}, r"model\.pooling"),
        ({"dimension": 8, "local_dimension": 6}, r"model\.local_dimension"),
        ({"dimension": 8, "attention": {}}, r"model\.attention"),
        ({"backbone": "lenet", "size": 28}, "lenet"),
        ({"weights_sha256": "0" * 64}, r"model\.weights_sha256"),
    ],
)
def test_a_part_of_another_shape_is_refused(changes, word, make_saved):
    with pytest.raises((ModelError, CheckpointError), match=word) as refusal:
        build_embedder(whole(make_saved(dimension=8), **changes))
    assert str(refusal.value).count(". ") == 0  # one sentence


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"weights": "a.safetensors", "start": "b.safetensors"}, r"model\.start"),
        ({"start": "a.safetensors", "similarity": {}}, r"model\.weights"),
        ({"head_start": "kept"}, r"model\.start"),
        ({"resize": 256, "fit": "pad"}, r"model\.fit"),
    ],
)
def test_settings_of_a_start_that_contradict_each_other_are_refused(settings, word):
    with pytest.raises(RecipeError, match=word):
        ModelSection(**settings)


def test_the_short_side_is_saved_with_the_model(tmp_path):
    embedder = build_embedder(ModelSection(backbone="conv4", size=16, resize=20))
    embedder.save(tmp_path / "model.safetensors")
    assert Embedder.load(tmp_path / "model.safetensors").spec.resize == 20
    assert embedder.fingerprint() != build_embedder(ModelSection(backbone="conv4", size=16)).fingerprint()
    with pytest.raises(DataError, match=r"model\.resize"):
        build_embedder(ModelSection(backbone="conv4", size=16, resize=12))
