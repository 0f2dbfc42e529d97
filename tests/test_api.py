"""First use from Python."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import nearkin as nk
from nearkin.api import open_checked
from nearkin.errors import CheckpointError, DataError, RecipeError, RunError, UnknownNameError


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


def points(classes=4, items=6):
    vectors = np.random.default_rng(0).normal(size=(classes * items, 5)).astype(np.float32)
    return vectors, np.repeat(np.arange(classes), items)


def test_the_settings_of_an_audit_of_embeddings_can_be_changed():
    usual = nk.audit(*points(), suites=["retrieval"])
    assert "audit settings" not in usual.subject.facts
    changed = nk.audit(*points(), suites=["retrieval"], overrides=["audit.recall_at=[3]", " audit.resamples = 10"])
    assert "Recall@3" in changed
    assert "Recall@4" not in changed
    assert changed["MAP@R"] == usual["MAP@R"]
    assert changed.intervals["MAP@R"] != usual.intervals["MAP@R"]
    assert changed.subject.facts["audit settings"] == "recall_at=[3], resamples=10"
    chosen = nk.audit(*points(), overrides=["audit.suites=[clustering]"])
    assert "NMI" in chosen
    assert "MAP@R" not in chosen
    again = nk.audit(*points(), suites=["retrieval"], rerank="k-reciprocal", overrides=["audit.recall_at=[3]"])
    assert again.subject.facts["re-ranking"] == "k-reciprocal"
    assert "Recall@3" in again


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"overrides": ["training.seed=1"]}, RecipeError, r"training\.seed"),
        ({"overrides": ["audit=1"]}, RecipeError, "audit=1"),
        ({"overrides": ["auditing.seed=1"]}, RecipeError, r"auditing\.seed"),
        ({"overrides": "audit.seed=1"}, RecipeError, "audit"),
        ({"overrides": ["audit.seed"]}, RecipeError, r"audit\.seed"),
        ({"overrides": ["audit.sede=1"]}, RecipeError, "'seed'"),
        ({"overrides": ["audit.corrupted_queries=0"]}, RecipeError, r"audit\.corrupted_queries"),
        ({"overrides": ["audit.suites=[]"]}, RecipeError, "suite"),
        ({"overrides": ["audit.suites=[clusterin]"]}, UnknownNameError, "clustering"),
        ({"overrides": ["audit.suites=[clustering]"], "suites": ["retrieval"]}, RecipeError, "suites"),
        ({"overrides": ["audit.rerank=null"], "rerank": "k-reciprocal"}, RecipeError, "rerank"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_encoded(options, error, words):
    with pytest.raises(error, match=words):
        nk.audit(*points(), **options)
    model = nk.Embedder.__new__(nk.Embedder)
    model.card = {}
    with pytest.raises(error, match=words):
        nk.audit(model, "no such data", **options)


def test_overrides_change_the_recipes_own_settings(photos, tiny):
    model = nk.fit(photos, "triplet", overrides=[*tiny, "audit.recall_at=[2]"], progress=False)
    result = nk.audit(model, photos, suites=["retrieval"], overrides=["audit.map_at=[3]"], progress=False)
    assert {"Recall@2", "MAP@3"} <= set(result)
    assert "MAP@10" not in result
    assert result.subject.facts["audit settings"] == "map_at=[3]"


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
    with pytest.raises(RunError, match="model"):
        nk.load(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"12345678nonsense")
    with pytest.raises(CheckpointError):
        nk.load(tmp_path / "x.safetensors")
    with pytest.raises(RunError, match="out"):
        nk.fit(tmp_path, resume=True)


def make_classes(folder, counts):
    """A folder with this many images of each class."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (4, 4), (number, len(name), 0)).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("counts", "note"),
    [
        ({"a": 2, "b": 2, "c": 1}, "1 class had one item and was left out."),
        ({"a": 2, "b": 1, "c": 1}, "2 classes had one item each and were left out."),
    ],
)
def test_classes_that_are_left_out_are_counted(counts, note, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dataset, notes = open_checked(make_classes(tmp_path / "data", counts), skip_bad=True, progress=False)
    assert notes == [note]
    assert len(dataset) == 2 * sum(count == 2 for count in counts.values())


def test_one_file_that_cannot_be_read_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = make_classes(tmp_path / "data", {"a": 3, "b": 2})
    (data / "a" / "0.png").write_bytes(b"")
    _, notes = open_checked(data, skip_bad=True, progress=False)
    assert notes == ["1 file could not be read and was left out."]


def test_only_classes_of_one_item_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="one item"):
        open_checked(make_classes(tmp_path / "data", dict.fromkeys("abc", 1)), skip_bad=True, progress=False)
