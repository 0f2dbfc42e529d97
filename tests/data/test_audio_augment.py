import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import welch

from nearkin.data.audio_augment import (
    AudioAugment,
    SpeedCopies,
    at_speed,
    coloured_noise,
    reverberated,
    with_noise,
)
from nearkin.data.augment import transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.data.manifest import Manifest
from nearkin.data.section import AudioSection, DataSection
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError

ALL = {"noise": 1.0, "reverberation": 1.0, "gain": 6.0, "band_mask": 8, "time_mask": 10}


def tone(hertz=440.0, seconds=0.5):
    return np.sin(2 * np.pi * hertz * np.arange(int(16_000 * seconds)) / 16_000).astype(np.float32)


@pytest.fixture
def items():
    data = Dataset(Manifest.from_rows(list("abc"), list("xyx"), digit=list("012")), ArrayStore({}), kind="audio")

    class Tones(type(data)):
        def load(self, index, hint=None):
            return tone(300.0 + 100 * index)

    data.__class__ = Tones
    return data


def transform(items, **options):
    section = DataSection(audio_seconds=0.3, audio=AudioSection(bands="standardised", **options))
    return transform_for(InputSpec.audio(20, 30, "standardised"), section, True, items)


def test_the_generator_alone_decides_what_happens(items):
    varied = transform(items, **ALL)
    first, again, other = (varied(tone(), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(varied(tone()), transform(items)(tone()))


@pytest.mark.parametrize("decibels", [-5.0, 0.0, 20.0])
@pytest.mark.parametrize("kind", ["white", "pink", "tone"])
def test_noise_has_the_ratio_that_is_asked_for(decibels, kind):
    rng, crop = np.random.default_rng(0), tone()
    noise = tone(900.0) if kind == "tone" else coloured_noise(crop.size, float(kind == "pink"), rng)
    added = with_noise(crop, noise, decibels) - crop
    assert 10 * np.log10(np.mean(crop**2) / np.mean(added**2)) == pytest.approx(decibels, abs=1e-3)


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_the_colour_of_noise_is_the_slope_of_its_spectrum(slope):
    frequencies, power = welch(coloured_noise(2**17, slope, np.random.default_rng(0)), nperseg=1024)
    inner = slice(4, 400)
    found = np.polyfit(np.log(frequencies[inner]), np.log(power[inner]), 1)[0]
    assert found == pytest.approx(-slope, abs=0.08)


def test_silence_takes_no_noise():
    nothing = np.zeros(100, np.float32)
    np.testing.assert_array_equal(with_noise(nothing, tone()[:100], 10), nothing)
    np.testing.assert_array_equal(with_noise(tone()[:100], nothing, 10), tone()[:100])


@given(seconds=st.floats(0.05, 1.0), seed=st.integers(0, 50))
@settings(max_examples=20)
def test_a_room_keeps_power_and_length_and_follows_the_sound(seconds, seed):
    click = np.zeros(16_000, np.float32)
    click[4000] = 1.0
    heard = reverberated(click, seconds, np.random.default_rng(seed))
    assert heard.shape == click.shape
    assert np.square(heard).sum() == pytest.approx(1.0, rel=1e-3)
    assert np.abs(heard[:3999]).max() < 1e-6
    assert np.abs(heard).argmax() == 4000
    # Sixty decibels lower at the end than at the beginning of the tail.
    end = 4000 + int(16_000 * seconds)
    if end < 15_000:
        early, late = heard[4001 : 4001 + end // 20], heard[end - 200 : end]
        assert 20 * np.log10(early.std() / late.std()) > 35


def test_masks_hide_neighbours_by_their_means():
    augment = AudioAugment(AudioSection(bands="standardised", band_mask=5, time_mask=7))
    fill = tuple(range(20))
    seen = []
    for seed in range(40):
        hidden = augment.hide(torch.full((20, 30), 99.0), fill, np.random.default_rng(seed)) != 99.0
        bands, frames = hidden.all(dim=1), hidden.all(dim=0)
        assert bands.sum() <= 5
        assert frames.sum() <= 7
        assert hidden.sum() == bands.sum() * 30 + frames.sum() * 20 - bands.sum() * frames.sum()
        seen.append((int(bands.sum()), int(frames.sum())))
    assert {0, 5} <= {bands for bands, _ in seen}
    found = augment.hide(torch.full((20, 30), 99.0), fill, np.random.default_rng(3))
    assert {float(value) for value in found.unique()} <= {99.0, *map(float, fill)}


@pytest.mark.parametrize("speed", [0.9, 1.1, 1.25])
def test_a_faster_voice_is_higher_and_shorter(speed):
    found = at_speed(tone(440.0, 1.0), speed)
    assert found.size == pytest.approx(16_000 / speed, abs=2)
    peak = np.abs(np.fft.rfft(found * np.hanning(found.size), 2**17)).argmax() * 16_000 / 2**17
    assert peak == pytest.approx(440.0 * speed, abs=1.0)


def test_copies_at_other_speeds_are_classes_of_their_own(items):
    copies = SpeedCopies(items, [0.9, 1.1])
    assert copies.classes == ["x", "x x0.9", "x x1.1", "y", "y x0.9", "y x1.1"]
    assert [copies.load(row).size for row in (1, 4, 7)] == [8000, 8889, 7273]
    chosen = copies.select([7, 0]).select([0])
    assert (chosen.labels.tolist(), chosen.load(0).size) == (["y x1.1"], 7273)
    assert copies.where(digit="1").labels.tolist() == ["y", "y x0.9", "y x1.1"]


def test_what_cannot_be_is_refused(items):
    images = Dataset(items.manifest, items.store)
    with pytest.raises(DataError, match="images"):
        SpeedCopies(images, [0.9])
    with pytest.raises(DataError, match="kind"):
        AudioAugment(AudioSection(bands="standardised", noise=0.5, noise_kinds=["recording"]))
    for wrong, word in (
        ({"speeds": [1.0]}, "speeds"),
        ({"speeds": [0.9, 0.9]}, "speeds"),
        ({"noise": 0.5}, "standardised"),
        ({"bands": "standardised", "noise_decibels": (9, 3)}, "ascending"),
    ):
        with pytest.raises(ValueError, match=word):
            AudioSection(**wrong)
