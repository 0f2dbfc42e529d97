"""Recordings of any length: every frame counts, batches do not matter, memory does not grow."""

import numpy as np
import pytest
import torch

from nearkin.data.section import AudioSection
from nearkin.errors import DataError
from nearkin.gallery.model import QueryEncoder
from nearkin.models import build_embedder
from nearkin.models.embedder import Embedder
from nearkin.models.items import batches, stacked
from nearkin.models.recordings import WINDOW_FRAMES, by_length, embed_recordings
from nearkin.models.section import ModelSection


@pytest.fixture(scope="module")
def embedder():
    section = ModelSection(backbone="tdnn-narrow", size=10, pooling="stats", dimension=6)
    return build_embedder(section, audio_seconds=0.3, audio=AudioSection(bands="standardised")).eval()


def noise(seconds, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)


def encode(embedder, *waves, **options):
    return embedder.encode(list(waves), progress=False, **options)


@pytest.mark.parametrize("first", [0.0, 2.0, 4.3])
def test_every_part_of_a_recording_counts(embedder, first):
    wave = noise(4.6)
    changed, begin = wave.copy(), int(first * 16_000)
    changed[begin : begin + 4000] = 0.5 * np.sin(np.arange(4000) * 0.4)
    one, other = encode(embedder, wave, changed)
    assert np.abs(one - other).max() > 1e-3


def test_every_part_of_a_long_recording_counts(embedder, monkeypatch):
    monkeypatch.setattr("nearkin.models.recordings.WINDOW_FRAMES", 40)
    wave = noise(1.33)
    plain = encode(embedder, wave)[0]
    for begin in range(0, wave.size - 3000, 3000):
        changed = wave.copy()
        changed[begin : begin + 3000] = 0.5 * np.sin(np.arange(3000) * 0.4)
        assert np.abs(encode(embedder, changed)[0] - plain).max() > 1e-4


def test_batches_of_several_lengths_give_what_each_gives_alone(embedder):
    waves = [noise(seconds, seed) for seed, seconds in enumerate((0.3, 0.61, 0.3, 1.2, 0.16))]
    alone = np.concatenate([encode(embedder, wave) for wave in waves])
    np.testing.assert_allclose(encode(embedder, *waves), alone, atol=1e-5)
    np.testing.assert_allclose(encode(embedder, *waves, batch_size=2), alone, atol=1e-5)


@pytest.mark.parametrize(
    ("wave", "word"),
    [(noise(0.1), "short"), (0 * noise(1), "silent"), (np.nan * noise(1), "finite"), (noise(0), "no samples")],
)
def test_a_waveform_is_refused_as_a_file_is(embedder, wave, word):
    with pytest.raises(DataError, match=word):
        encode(embedder, wave)


def test_windows_overlap_by_half_and_reach_the_end():
    seen = []

    def run(part):
        seen.extend((float(one[0, 0, 0]), one.shape[-1]) for one in part)
        return part.mean(dim=(1, 2, 3))[:, None]

    frames = 2 * WINDOW_FRAMES + 300
    recording = torch.arange(frames, dtype=torch.float32).expand(1, 1, 3, frames)
    found = embed_recordings(recording, run, lambda vectors: vectors.mean(dim=0))
    half = WINDOW_FRAMES // 2
    assert seen == [(float(start), WINDOW_FRAMES) for start in (0, half, 2 * half, frames - WINDOW_FRAMES)]
    assert found.shape == (1, 1)
    assert float(found) == pytest.approx(np.mean([start + (WINDOW_FRAMES - 1) / 2 for start, _ in seen]), rel=1e-5)


def test_minutes_go_through_in_windows(embedder):
    largest = 0
    run = embedder.embed

    def watched(part):
        nonlocal largest
        largest = max(largest, part.numel())
        return run(part)

    with torch.no_grad():
        found = embed_recordings(torch.randn(1, 1, 10, 30_000), watched, embedder.space.mean)
    assert found.shape == (1, 6)
    assert largest <= 8 * 10 * WINDOW_FRAMES


def test_lengths_are_told_apart_by_what_is_missing():
    samples = [torch.ones(1, 4, frames) for frames in (5, 3, 5)]
    found = {part.shape[-1]: rows.tolist() for rows, part in by_length(stacked(samples))}
    assert found == {5: [0, 2], 3: [1]}
    for bad in (torch.full((1, 1, 4, 5), torch.nan), torch.full((1, 1, 4, 5), torch.inf)):
        with pytest.raises(DataError, match="finite"):
            list(by_length(bad))


def test_saved_models_hear_the_same(embedder, tmp_path):
    embedder.save(tmp_path / "model.safetensors")
    loaded = Embedder.load(tmp_path / "model.safetensors")
    assert loaded.spec == embedder.spec
    np.testing.assert_array_equal(encode(loaded, noise(0.7)), encode(embedder, noise(0.7)))


def test_models_of_old_features_hear_the_middle():
    section = ModelSection(backbone="tdnn-narrow", size=10, pooling="stats", dimension=6)
    old = build_embedder(section, audio_seconds=0.3).eval()
    wave = noise(2.0)
    changed = wave.copy()
    changed[:8000] = 0
    assert "old audio features" in old.spec.note
    np.testing.assert_array_equal(encode(old, wave), encode(old, changed))


def test_a_gallery_encodes_recordings_of_several_lengths_at_once(embedder, monkeypatch):
    encoder = QueryEncoder(embedder)
    waves = [noise(seconds, seed) for seed, seconds in enumerate((0.3, 2.0, 0.61))]
    samples = [encoder.prepare(wave) for wave in waves]
    np.testing.assert_allclose(encoder.run(samples), encode(embedder, *waves), atol=1e-5)
    monkeypatch.setattr("nearkin.models.items._MOST_VALUES", 3000)
    assert [len(batch) for batch in batches(samples.__getitem__, 3, 3, workers=0)] == [1, 1, 1]
    np.testing.assert_allclose(encoder.run(samples), encode(embedder, *waves), atol=1e-5)
