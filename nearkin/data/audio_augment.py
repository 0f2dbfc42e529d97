"""How recordings are varied in training: speed, rooms, noise, level and hidden parts, each drawn from a generator.

All but the speed happens to crops at one level; what is drawn depends on the generator alone, which training makes from
(seed, step, place in the batch). Copies at another speed are classes of their own: a faster voice is a higher one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data.dataset import SAMPLE_RATE, Dataset
from nearkin.data.section import AudioSection
from nearkin.errors import DataError


class AudioAugment:
    """Varies crops of recordings as a recipe asks.

    Args:
        section: how.
        items: training recordings, which may become the noise in others; None: there are none.
    """

    def __init__(self, section: AudioSection, items: Dataset | None = None) -> None:
        self.section = section
        self.items = items
        self._kinds = [kind for kind in section.noise_kinds if kind != "recording" or items is not None]
        if section.noise and not self._kinds:
            raise DataError("Noise from other recordings needs the training items: pass them, or add another kind.")

    def wave(self, crop: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A crop (n,), in a room, with noise and at another level, float32 (n,)."""
        section = self.section
        if rng.random() < section.reverberation:
            crop = reverberated(crop, rng.uniform(*section.reverberation_seconds), rng)
        if rng.random() < section.noise:
            crop = with_noise(crop, self._noise(crop.size, rng), rng.uniform(*section.noise_decibels))
        if section.gain:
            crop = crop * 10 ** (rng.uniform(-section.gain, section.gain) / 20)
        return crop.astype(np.float32)

    def hide(self, bands: Tensor, fill: tuple[float, ...], rng: np.random.Generator) -> Tensor:
        """Log-mel values (mels, frames) with neighbouring bands and frames at their means.

        Args:
            bands: the values.
            fill: of each band, or of all.
            rng: decides which, and how many.
        """
        mels, frames = bands.shape
        hidden = torch.zeros(mels, frames, dtype=torch.bool)
        hidden[_stretch(mels, self.section.band_mask, rng)] = True
        hidden[:, _stretch(frames, self.section.time_mask, rng)] = True
        return torch.where(hidden, torch.tensor(fill, dtype=bands.dtype)[:, None], bands)

    def _noise(self, samples: int, rng: np.random.Generator) -> np.ndarray:
        """Noise (samples,) of one of the kinds."""
        kind = self._kinds[int(rng.integers(len(self._kinds)))]
        if kind != "recording" or self.items is None:
            return coloured_noise(samples, 1.0 if kind == "pink" else 0.0, rng)
        other: Any = self.items.load(int(rng.integers(len(self.items))))
        start = int(rng.integers(other.size))
        return np.take(other, np.arange(start, start + samples), mode="wrap")


def _stretch(size: int, most: int, rng: np.random.Generator) -> slice:
    """At most so many neighbouring places of `size`."""
    count = int(rng.integers(min(most, size) + 1)) if most else 0
    first = int(rng.integers(size - count + 1)) if count else 0
    return slice(first, first + count)


def coloured_noise(samples: int, slope: float, rng: np.random.Generator) -> np.ndarray:
    """Noise (samples,) whose power falls as 1 / frequency^slope: 0 is white, 1 is pink."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    if slope:
        spectrum[1:] *= np.arange(1, len(spectrum)) ** (-slope / 2)
        spectrum[0] = 0
    return np.fft.irfft(spectrum, samples)


def with_noise(crop: np.ndarray, noise: np.ndarray, decibels: float) -> np.ndarray:
    """A crop (n,) and noise (n,) at a ratio of their powers; silence on either side changes nothing."""
    power, other = np.square(crop, dtype=np.float64).mean(), np.square(noise, dtype=np.float64).mean()
    if power <= 0 or other <= 0:
        return crop
    return crop + noise * np.sqrt(power / other / 10 ** (decibels / 10))


def reverberated(crop: np.ndarray, seconds: float, rng: np.random.Generator) -> np.ndarray:
    """A crop (n,) as a room sounds: white noise that falls by 60 dB in `seconds`, after the direct sound.

    What follows the direct sound has between a tenth of its power and all of it; the crop keeps its power.
    """
    from scipy.signal import fftconvolve

    count = max(2, round(seconds * SAMPLE_RATE))
    tail = rng.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    tail[0] = 0
    tail *= np.sqrt(rng.uniform(0.1, 1.0) / np.square(tail).sum())
    tail[0] = 1
    heard = fftconvolve(crop, tail)[: crop.size]
    before, after = np.square(crop, dtype=np.float64).sum(), np.square(heard, dtype=np.float64).sum()
    return heard * np.sqrt(before / after) if after > 0 else crop


def at_speed(waveform: np.ndarray, speed: float) -> np.ndarray:
    """A waveform (n,) played at another speed, float32 (about n / speed,): pitch and formants move with it."""
    from scipy.signal import resample_poly

    ratio = Fraction(speed).limit_denominator(100)
    return resample_poly(waveform, ratio.denominator, ratio.numerator).astype(np.float32)


class SpeedCopies(Dataset):
    """A data set of recordings, followed by copies of all of it at other speeds, whose classes are named by them.

    Args:
        dataset: the recordings.
        speeds: of the copies.
    """

    def __init__(self, dataset: Dataset, speeds: Sequence[float]) -> None:
        if dataset.kind != "audio":
            raise DataError("Only recordings have a speed: leave data.audio.speeds empty for images.")
        every = [1.0, *speeds]
        whole = dataset.manifest.select(np.tile(np.arange(len(dataset)), len(every)))
        labels = [name if speed == 1.0 else f"{name} x{speed:g}" for speed in every for name in dataset.labels]
        super().__init__(whole.with_column("label", labels), dataset.store, "audio", dataset.name)
        self._plain, self._rows = dataset, np.tile(np.arange(len(dataset)), len(every))
        self._speeds = np.repeat(every, len(dataset))

    def load(self, index: int, hint: int | None = None) -> np.ndarray:
        """A float32 waveform (n,) at 16 kHz, at the speed of its copy."""
        waveform: Any = self._plain.load(int(self._rows[index]))
        speed = float(self._speeds[index])
        return waveform if speed == 1.0 else at_speed(waveform, speed)

    def select(self, rows: np.ndarray | Sequence[int] | Sequence[bool]) -> SpeedCopies:
        """The items given by indices, in that order, or by a boolean mask, at their speeds."""
        twin = copy.copy(self)
        twin.manifest = self.manifest.select(rows)
        twin._rows, twin._speeds = self._rows[np.asarray(rows)], self._speeds[np.asarray(rows)]
        return twin

    def where(self, **equals: str) -> SpeedCopies:
        """The items whose columns equal the given values, at their speeds."""
        return self.select(self.manifest.mask(**equals))
