"""First use from Python."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import nearkin as nk
from nearkin.errors import CheckpointError, RunError


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def test_fit_encode_save_load_audit(photos, tiny, tmp_path):
    model = nk.fit(photos, "triplet", overrides=tiny, progress=False)
    vectors = model.encode(photos / "class00" / "00.png", progress=False)
    assert vectors.shape == (1, 16)
    assert vectors.dtype == np.float32
    model.save(tmp_path / "model.safetensors")
    again = nk.load(tmp_path / "model.safetensors")
    image = Image.open(photos / "class00" / "00.png")
    assert np.allclose(again.encode(image, progress=False), vectors, atol=1e-6)
    assert again.card == model.card
    result = nk.audit(again, photos, progress=False)
    assert result.subject.facts["classes"] == str(len(model.card["classes"]["test"]))
    assert result.subject.baseline_name == "raw pixels"
    assert (tmp_path / "audit.html") == result.report(tmp_path / "audit.html")


def test_training_learns_what_pixels_do_not_tell(patterns, tiny, tmp_path):
    more = [*tiny, "training.max_steps=80", "training.evaluate_every=20"]
    model = nk.fit(patterns, "proxy-anchor", overrides=more, out=tmp_path / "run", progress=False)
    train = patterns.select([label in model.card["classes"]["train"] for label in patterns.labels])
    assert nk.audit(model.encode(train, progress=False), train.labels)["P@1"] > 0.9
    assert nk.load(tmp_path / "run").card == model.card


def test_a_recipe_without_anything_to_train_gives_the_untrained_model(photos, tiny, tmp_path):
    frozen = [*tiny, "model.freeze=all", "model.dimension=null"]
    model = nk.fit(photos, "proxy-anchor", overrides=frozen, out=tmp_path / "run", progress=False)
    assert model.card["steps"] == 0
    assert nk.load(tmp_path / "run").encode(photos, progress=False).shape[0] == 48


def test_loading_what_is_not_a_model_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match="no finished model"):
        nk.load(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"12345678nonsense")
    with pytest.raises(CheckpointError):
        nk.load(tmp_path / "x.safetensors")
    with pytest.raises(RunError, match="give out="):
        nk.fit(tmp_path, resume=True)
