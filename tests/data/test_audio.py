import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import get_window

from nearkin.data.audio import (
    FFT,
    HOP,
    LogMelTransform,
    at_level,
    hz_to_mel,
    log_mel,
    measured_bands,
    mel_filterbank,
    mel_to_hz,
    without_silence,
)
from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError

SCALES = ["slaney", "htk"]


def voice(seconds=1.5, seed=0):
    """A chirp with noise, at 16 kHz."""
    time = np.arange(int(seconds * 16_000)) / 16_000
    noise = np.random.default_rng(seed).normal(size=time.size)
    return (0.3 * np.sin(2 * np.pi * (200 + 900 * time) * time) + 0.05 * noise).astype(np.float32)


@pytest.fixture(scope="module")
def librosa():
    return pytest.importorskip("librosa")


@pytest.mark.parametrize("scale", SCALES)
def test_mels_match_librosa_and_can_be_undone(librosa, scale):
    hertz = np.linspace(0, 8000, 200)
    mels = hz_to_mel(hertz, scale)
    np.testing.assert_allclose(mels, librosa.hz_to_mel(hertz, htk=scale == "htk"), rtol=1e-10)
    np.testing.assert_allclose(mel_to_hz(mels, scale), hertz, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("mels", [24, 40, 80])
def test_the_filterbank_matches_librosa(librosa, scale, mels):
    wanted = librosa.filters.mel(sr=16_000, n_fft=512, n_mels=mels, htk=scale == "htk", norm="slaney")
    found = mel_filterbank(mels, scale=scale)
    assert found.shape == (mels, 257)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("seconds", [0.032, 0.5])
def test_the_log_mel_spectrogram_matches_frame_by_frame_transforms(seconds):
    wave, filters = voice(seconds), mel_filterbank()
    window = np.zeros(512)
    window[56:456] = get_window("hann", 400)  # periodic, in the middle of the transform
    frames = [wave[start : start + 512] * window for start in range(0, wave.size - 511, 160)]
    wanted = [np.log(filters @ np.abs(np.fft.rfft(frame)) ** 2 + 1e-6) for frame in frames]
    found = log_mel(torch.from_numpy(wave), torch.from_numpy(filters))
    np.testing.assert_allclose(found.numpy(), np.stack(wanted, axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # librosa compiles itself on its first spectrogram; the test above is the quick twin
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("seconds", [0.032, 0.5, 1.5])
def test_the_log_mel_spectrogram_matches_librosa(librosa, scale, seconds):
    wave = voice(seconds)
    power = librosa.feature.melspectrogram(
        y=wave, sr=16_000, n_fft=512, hop_length=160, win_length=400, center=False, n_mels=40, htk=scale == "htk"
    )
    found = log_mel(torch.from_numpy(wave), torch.from_numpy(mel_filterbank(scale=scale)))
    assert found.shape == (40, 1 + (wave.size - 512) // 160)
    np.testing.assert_allclose(found.numpy(), np.log(power + 1e-6), rtol=1e-4, atol=1e-4)


def test_a_pure_tone_peaks_in_its_band():
    for hertz in (440.0, 1000.0, 3000.0):
        tone = torch.from_numpy(np.sin(2 * np.pi * hertz * np.arange(8000) / 16_000).astype(np.float32))
        band = int(log_mel(tone, torch.from_numpy(mel_filterbank())).mean(dim=1).argmax())
        edges = mel_to_hz(np.linspace(0, hz_to_mel(np.array(8000.0)), 42))
        assert edges[band] <= hertz <= edges[band + 2]


@given(
    samples=st.integers(1, 30_000),
    frames=st.integers(1, 120),
    mels=st.integers(8, 48),
    seed=st.one_of(st.none(), st.integers(0, 99)),
)
def test_every_clip_gives_the_same_shape_centred_over_time(samples, frames, mels, seed):
    transform = LogMelTransform(InputSpec.audio(mels, frames))
    wave = np.random.default_rng(samples).normal(size=samples).astype(np.float32)
    found = transform(wave, None if seed is None else np.random.default_rng(seed))
    assert found.shape == (1, mels, frames)
    assert found.dtype == torch.float32
    assert torch.isfinite(found).all()
    assert found.mean(dim=2).abs().max() < 1e-4


def test_the_centre_is_the_middle_of_the_clip():
    wave = voice(2.0)
    samples = 99 * HOP + FFT
    start = (wave.size - samples) // 2
    transform = LogMelTransform(InputSpec.audio(), seconds=1.0)
    assert torch.equal(transform(wave), transform(wave[start : start + samples]))


def test_the_generator_decides_the_crop():
    transform, wave = LogMelTransform(InputSpec.audio(), seconds=0.5), voice(2.0)
    first, again, other = (transform(wave, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_short_clip_is_repeated():
    wave, transform = voice(0.3), LogMelTransform(InputSpec.audio(), seconds=1.0)
    assert torch.equal(transform(wave), transform(np.tile(wave, 4)[: 99 * HOP + FFT]))


def test_the_loudness_of_a_clip_does_not_matter():
    wave, transform = voice(1.2), LogMelTransform(InputSpec.audio())
    np.testing.assert_allclose(transform(wave * 30).numpy(), transform(wave * 60).numpy(), atol=1e-3)


def test_frames_of_the_input_beat_seconds():
    assert LogMelTransform(InputSpec.audio(frames=200), seconds=1.0).frames == 200
    assert LogMelTransform(InputSpec.audio(), seconds=1.5).frames == 150


@pytest.mark.parametrize("wave", [np.zeros((2, 800)), np.zeros(0)])
def test_what_is_not_a_waveform_is_refused(wave):
    with pytest.raises(DataError, match="channel"):
        LogMelTransform(InputSpec.audio())(wave)


def test_impossible_parameters_are_refused():
    with pytest.raises(DataError, match="audio_seconds"):
        LogMelTransform(InputSpec.audio(), seconds=0.001)
    with pytest.raises(DataError, match="positive"):
        mel_filterbank(0)


@pytest.mark.data
def test_real_speech_has_the_shape_of_the_input(data_root):
    from nearkin.data.sources import open_data

    dataset = open_data(data_root / "audiomnist.zip", progress=False)
    transform = LogMelTransform(InputSpec.audio(), seconds=0.6)
    for index in (0, len(dataset) // 2, len(dataset) - 1):
        found = transform(dataset.load(index))
        assert found.shape == (1, 40, 60)
        assert found.std() > 0.5


STANDARDISED = InputSpec.audio(bands="standardised")


def whole(spec=STANDARDISED):
    return LogMelTransform(spec, whole=True)


@pytest.mark.parametrize("seconds", [0.2, 0.333, 1.5])
def test_whole_recordings_match_frame_by_frame_transforms(seconds):
    wave, filters = voice(seconds), mel_filterbank()
    window = np.zeros(512)
    window[56:456] = get_window("hann", 400)
    powers = [np.mean(np.square(wave[first : first + 400], dtype=float)) for first in range(0, wave.size, 400)]
    level = np.sqrt(np.mean([power for power in powers if power >= max(powers) / 1000]))
    loud = wave * 0.1 / level
    frames = [loud[start : start + 512] * window for start in range(0, wave.size - 511, 160)]
    wanted = [np.log(filters @ np.abs(np.fft.rfft(frame)) ** 2 + 1e-10) for frame in frames]
    np.testing.assert_allclose(whole()(wave)[0].numpy(), np.stack(wanted, axis=1), rtol=1e-3, atol=1e-3)


def test_a_long_recording_is_transformed_as_a_short_one(monkeypatch):
    wave = voice(3.0)
    expected = whole()(wave)
    monkeypatch.setattr("nearkin.data.audio._BLOCK", 7)
    np.testing.assert_allclose(whole()(wave).numpy(), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("factor", [1e-3, 0.2, 8.0])
def test_the_level_of_a_recording_does_not_matter(factor):
    wave = voice(0.8)
    np.testing.assert_allclose(whole()(wave * np.float32(factor)).numpy(), whole()(wave).numpy(), atol=1e-3)


def test_the_level_is_that_of_the_loud_parts():
    wave = voice(1.0)
    silence = np.zeros(16_000, np.float32)
    np.testing.assert_allclose(at_level(np.concatenate([wave, silence]))[:16_000], at_level(wave), rtol=1e-4)


def test_silence_is_trimmed_where_asked():
    tone = np.sin(np.arange(8000) * 0.2).astype(np.float32)
    quiet = 1e-4 * np.sin(np.arange(16_000) * 0.3).astype(np.float32)
    kept = without_silence(np.concatenate([quiet, tone, quiet, tone]), 40)
    assert 2 * 8000 <= kept.size <= 2 * 8000 + 3 * 6 * HOP
    assert whole(InputSpec.audio(bands="standardised", trim=40))(np.concatenate([tone, quiet])).shape[2] < 70
    np.testing.assert_array_equal(without_silence(tone, 40), tone)


def test_statistics_are_those_of_all_frames():
    waves = [voice(seconds, seed) for seed, seconds in enumerate((0.3, 0.9, 0.5))]
    data = Dataset(Manifest.from_rows(["a", "b", "c"], ["x", "x", "y"]), ArrayStore({}), kind="audio")
    data.load = lambda index, hint=None: waves[index]
    frames = np.concatenate([whole()(wave)[0].numpy() for wave in waves], axis=1)
    spec = measured_bands(STANDARDISED, data)
    assert spec.is_measured
    np.testing.assert_allclose(spec.mean, frames.mean(axis=1), atol=1e-3)
    np.testing.assert_allclose(spec.std, np.maximum(frames.std(axis=1), 0.1), atol=1e-3)
    assert InputSpec.from_dict(spec.to_dict()) == spec


def test_old_descriptions_are_of_old_features_and_say_so():
    old = {"channels": 1, "size": 40, "mean": [0.0], "std": [1.0], "kind": "audio", "frames": 60}
    spec = InputSpec.from_dict(old)
    assert spec.bands == "centred"
    assert "0.6 s" in spec.note
    assert spec.to_dict() == old
    assert not STANDARDISED.note
    assert torch.equal(whole(spec)(voice()), LogMelTransform(spec)(voice()))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"bands": "loud"}, "centred"),
        ({"trim": 30.0}, "standardised"),
        ({"bands": "standardised", "trim": -1.0}, "decibels"),
        ({"mean": (0.0, 1.0), "std": (1.0, 1.0)}, "band"),
        ({"kind": "image", "bands": "standardised"}, "images"),
    ],
)
def test_impossible_inputs_are_refused(fields, word):
    with pytest.raises(DataError, match=word):
        InputSpec(**{"channels": 1, "size": 40, "mean": (0.0,), "std": (1.0,), "kind": "audio"} | fields)


@pytest.mark.data
def test_hardly_a_cell_of_real_speech_lies_at_the_floor(data_root):
    from nearkin.data.sources import open_data

    dataset = open_data(data_root / "audiomnist.zip", progress=False)
    cells = np.concatenate([whole()(dataset.load(row))[0].numpy().ravel() for row in range(0, len(dataset), 60)])
    assert (cells < np.log(2e-10)).mean() < 0.05
