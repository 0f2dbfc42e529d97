"""Speaker verification from end to end: train, audit, gallery and verify, on made-up voices and on real ones."""

from __future__ import annotations

import numpy as np
import pytest

import nearkin as nk
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore
from nearkin.models.similarity_model import SimilarityModel
from nearkin.recipe import load_recipe

QUICK = [
    "training.max_steps=4",
    "training.evaluate_every=4",
    "data.classes_per_batch=4",
    "data.per_class=2",
    "data.audio_seconds=0.2",
    "data.workers=0",
    "data.val_classes=0.25",
    "audit.resamples=20",
]


@pytest.fixture
def voices(tmp_path):
    """Twelve voices that say two digits three times each: a tone of its own, with noise; eight of them train."""
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(0)
    paths, labels, splits, digits = [], [], [], []
    for speaker in range(12):
        for take in range(6):
            wave = 0.3 * np.sin(np.arange(6400) * (0.03 + 0.015 * speaker)) + 0.05 * rng.normal(size=6400)
            paths.append(f"{speaker:02d}-{take}.flac")
            labels.append(f"speaker{speaker:02d}")
            splits.append("train" if speaker < 8 else "test")
            digits.append(str(take % 2))
            soundfile.write(tmp_path / paths[-1], wave, 16_000)
    manifest = Manifest.from_rows(paths, labels, split=splits, digit=digits)
    return nk.Dataset(manifest, FolderStore(tmp_path), "audio", "made up")


def check_end_to_end(voices, folder):
    """Every step of the guide; returns the audit."""
    nk.fit(voices, "speaker-verification", out=folder / "run", overrides=QUICK, progress=False)
    model = nk.load(folder / "run")
    assert isinstance(model, SimilarityModel)
    assert (model.backbone_name, model.dimension) == ("tdnn-narrow", 128)
    unseen = voices.where(split="test")
    assert not set(model.classes) & set(unseen.classes)
    result = nk.audit(model, voices, suites=["verification"], overrides=["audit.resamples=20"], progress=False)
    assert set(result.subject.labels) == set(unseen.classes)
    for name in ("EER", "EER, cosine", "EER, cosine+SIM"):
        low, high = result.intervals[name]
        assert 0 <= low <= high <= 1
    with nk.Gallery.create(folder / "voices.gallery", folder / "run", unseen, compare="sim", progress=False) as gallery:
        clips = [folder / "a.flac", folder / "b.flac"]
        for row, clip in enumerate(clips):
            clip.write_bytes(unseen.store.read(unseen.manifest.paths[row]))
        answer = gallery.verify(*map(str, clips), false_accept_rate=0.1)
        expected = float(model.verify(str(clips[0]), str(clips[1]), by="sim")[0])  # the first is enrolled
        assert answer.distance == pytest.approx(-expected, abs=1e-4)
    return result


def test_made_up_voices_from_end_to_end(voices, tmp_path):
    result = check_end_to_end(voices, tmp_path)
    assert "216" in result.notes[0]
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Errors of verification" in page


def test_real_voices_from_end_to_end(data_root, tmp_path):
    pytest.importorskip("soundfile")
    if not (data_root / "audiomnist.zip").exists() and not (data_root / "AudioMNIST").exists():
        pytest.skip("AudioMNIST is not at hand")
    voices = nk.open_data("audiomnist", data_root=data_root)
    speakers = [*voices.where(split="train").classes[:8], *voices.where(split="test").classes[:4]]
    few = np.concatenate([np.flatnonzero(voices.labels == name)[:6] for name in speakers])
    result = check_end_to_end(voices.select(few), tmp_path)
    assert "216" in result.notes[0]


def test_the_recipe_is_an_x_vector_with_a_learned_similarity():
    recipe = load_recipe("speaker-verification")
    assert (recipe.model.backbone, recipe.model.pooling) == ("tdnn-narrow", "stats")
    assert recipe.model.similarity is not None
    assert recipe.objective.loss == "learned-similarity"
    assert "verification" in recipe.audit.suites
