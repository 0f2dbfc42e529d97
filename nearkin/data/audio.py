"""Waveforms as log-mel spectrograms: short-time power spectra summed in bands spaced as we hear pitch.

S = |STFT(x)|^2, M = F S, log(M + floor), with windows of 25 ms every 10 ms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from nearkin.data.dataset import SAMPLE_RATE, Dataset
from nearkin.data.inputs import MEL_BANDS, InputSpec
from nearkin.errors import DataError

if TYPE_CHECKING:
    from nearkin.data.audio_augment import AudioAugment

WINDOW = 400
"""Samples in a window (25 ms)."""

HOP = 160
"""Samples from one window to the next (10 ms)."""

FFT = 512
"""Samples in a Fourier transform: the window with zeros on both sides."""

CENTRED_FLOOR, FLOOR = 1e-6, 1e-10
"""Of the power in a band: of old features, and one below the quietest part of speech at `LEVEL`."""

LEVEL = 0.1
"""Root mean square that the loud parts of a recording are brought to (-20 dB of full scale)."""

ACTIVE = 30.0
"""Decibels below the loudest window within which a window says how loud a recording is."""

_BLOCK = 6000
"""Frames that are transformed together, a minute: spectra are complex, and seven times as large as what is kept."""

HANGOVER = 5
"""Frames beside a loud one that are not taken for silence."""

MelScale = Literal["slaney", "htk"]


def hz_to_mel(hertz: np.ndarray, scale: MelScale = "slaney") -> np.ndarray:
    """Frequencies as mels: 2595 log10(1 + f / 700) (htk), or linear to 1 kHz and logarithmic above (slaney)."""
    hertz = np.asarray(hertz, dtype=np.float64)
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hertz / 700.0)
    above = 15.0 + 27.0 * np.log(np.maximum(hertz, 1.0) / 1000.0) / np.log(6.4)
    return np.where(hertz < 1000.0, hertz * 3 / 200, above)


def mel_to_hz(mels: np.ndarray, scale: MelScale = "slaney") -> np.ndarray:
    """The inverse of `hz_to_mel`."""
    mels = np.asarray(mels, dtype=np.float64)
    if scale == "htk":
        return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    return np.where(mels < 15.0, mels * 200 / 3, 1000.0 * np.exp(np.log(6.4) * (mels - 15.0) / 27.0))


def mel_filterbank(
    mels: int = MEL_BANDS, rate: int = SAMPLE_RATE, fft: int = FFT, scale: MelScale = "slaney"
) -> np.ndarray:
    """Triangular filters of unit area, equally spaced in mels from 0 to rate / 2: (mels, fft // 2 + 1) float32."""
    if mels < 1:
        raise DataError(f"The number of mel bands must be positive, not {mels}.")
    bins = np.fft.rfftfreq(fft, 1.0 / rate)
    ends = hz_to_mel(np.array([0.0, rate / 2]), scale)
    edges = mel_to_hz(np.linspace(ends[0], ends[1], mels + 2), scale)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.maximum(0.0, np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)))
    return (triangles * 2.0 / (right - left)).astype(np.float32)


def log_mel(waveform: Tensor, filters: Tensor, floor: float = CENTRED_FLOOR) -> Tensor:
    """Log-mel spectrogram (mels, 1 + (n - 512) // 160) of a waveform (n,) at 16 kHz, n >= 512.

    Args:
        waveform: samples, float32.
        filters: what `mel_filterbank` gives, (mels, 257).
        floor: what is added to the power in each band.
    """
    window = torch.hann_window(WINDOW, dtype=waveform.dtype, device=waveform.device)
    spectrum = torch.stft(
        waveform, FFT, hop_length=HOP, win_length=WINDOW, window=window, center=False, return_complex=True
    )
    return torch.log(filters @ spectrum.abs().square() + floor)


def at_level(waveform: np.ndarray) -> np.ndarray:
    """A waveform (n,) whose loud windows, those within 30 dB of the loudest, have the root mean square 0.1."""
    power = _powers(waveform, WINDOW)
    loudest = power.max()
    if loudest <= 0:
        return waveform
    level = np.sqrt(power[power >= loudest * 10 ** (-ACTIVE / 10)].mean())
    return (waveform * (LEVEL / level)).astype(np.float32)


def without_silence(waveform: np.ndarray, decibels: float) -> np.ndarray:
    """The parts of a waveform (n,) no more than `decibels` below its loudest 10 ms, and 50 ms around each."""
    power = _powers(waveform, HOP)
    loud = power >= power.max() * 10 ** (-decibels / 10)
    kept = np.convolve(loud, np.ones(2 * HANGOVER + 1), mode="same") > 0.5
    return waveform[np.repeat(kept, HOP)[: waveform.size]]


def _powers(waveform: np.ndarray, length: int) -> np.ndarray:
    """Mean squares of pieces of a waveform (n,), float64 (ceil(n / length),); the last piece may be shorter."""
    step = _BLOCK * length  # squares are twice as large as what is squared
    blocks = [waveform[first : first + step] for first in range(0, waveform.size, step)]
    return np.concatenate([_block_powers(block, length) for block in blocks])


def _block_powers(waveform: np.ndarray, length: int) -> np.ndarray:
    starts = np.arange(0, waveform.size, length)
    sums = np.add.reduceat(np.square(waveform, dtype=np.float64), starts)
    return sums / np.diff(np.append(starts, waveform.size))


class LogMelTransform:
    """The log-mel spectrogram of a recording, or of a crop of it, in the features that the model takes.

    Args:
        spec: `size` is the number of mel bands; `frames`, when set, the length of a crop instead of `seconds`; `bands`
            the features: centred ones have each band of the crop centred over time, standardised ones are brought to
            one level here and to the statistics of the training set later, as images are.
        seconds: length of the crop.
        scale: spacing of the bands.
        whole: take all of a recording, if the features are standardised.
        augment: varies the crops of training.
    """

    hint: int | None = None

    def __init__(
        self,
        spec: InputSpec,
        seconds: float = 1.0,
        scale: MelScale = "slaney",
        *,
        whole: bool = False,
        augment: AudioAugment | None = None,
    ) -> None:
        self.spec = spec
        self.frames = spec.frames if spec.frames is not None else round(seconds * SAMPLE_RATE / HOP)
        if self.frames < 1:
            raise DataError(f"A crop of {seconds:g} seconds is shorter than a frame of 10 ms: lengthen audio_seconds.")
        self.whole = whole and spec.bands == "standardised"
        self.augment = augment
        self._filters = torch.from_numpy(mel_filterbank(spec.size, scale=scale))

    def __call__(self, sample: np.ndarray, rng: np.random.Generator | None = None) -> Tensor:
        """Log-mel values, float32 (1, mels, frames), of a waveform (n,): a random crop with `rng`, else the centre.

        Of a whole recording there are 1 + (n - 512) // 160 frames, and one at the least.
        """
        wave = np.asarray(sample, dtype=np.float32)
        if wave.ndim != 1 or not wave.size:
            raise DataError(f"A waveform must be one channel with at least one sample, got shape {wave.shape}.")
        samples = (self.frames - 1) * HOP + FFT
        if self.spec.bands == "centred":
            bands = log_mel(torch.from_numpy(_cropped(wave, samples, rng)), self._filters)
            return (bands - bands.mean(dim=1, keepdim=True)).unsqueeze(0)
        if self.spec.trim is not None:
            wave = without_silence(wave, self.spec.trim)
        wave = at_level(wave)
        wave = _cropped(wave, max(FFT, wave.size) if self.whole else samples, rng)
        if rng is None or self.augment is None:
            return self._bands(wave).unsqueeze(0)
        bands = self._bands(self.augment.wave(wave, rng))
        return self.augment.hide(bands, self.spec.mean, rng).unsqueeze(0)

    def _bands(self, wave: np.ndarray) -> Tensor:
        """Log-mel values (mels, 1 + (n - 512) // 160) of a waveform (n,), a minute at a time."""
        frames = 1 + (wave.size - FFT) // HOP
        parts = []
        for first in range(0, frames, _BLOCK):
            last = min(first + _BLOCK, frames) - 1
            part = torch.from_numpy(wave[first * HOP : last * HOP + FFT])
            parts.append(log_mel(part, self._filters, FLOOR))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _cropped(waveform: np.ndarray, samples: int, rng: np.random.Generator | None) -> np.ndarray:
    """Exactly `samples` of the waveform (n,); a shorter one is repeated."""
    if waveform.size < samples:
        # From a random point in training, so that the seam is not always at the same place.
        start = int(rng.integers(waveform.size)) if rng is not None else 0
        return np.take(waveform, np.arange(start, start + samples), mode="wrap")
    room = waveform.size - samples
    start = int(rng.integers(room + 1)) if rng is not None else room // 2
    return waveform[start : start + samples].copy()


_MOST_MEASURED = 2000
_LEAST_DEVIATION = 0.1
"""Of log-mel values in a band: one that no recording has anything in is not blown up."""


def measured_bands(spec: InputSpec, dataset: Dataset) -> InputSpec:
    """The input with mean and deviation of each mel band over all frames of a data set.

    Of more than 2,000 recordings as many are taken, evenly through the data set.

    Args:
        spec: an input of standardised log-mel bands.
        dataset: the recordings that train.
    """
    transform = LogMelTransform(spec, whole=True)
    total, squares, frames = np.zeros(spec.size), np.zeros(spec.size), 0
    for row in np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), _MOST_MEASURED)).round().astype(int)):
        waveform = dataset.load(int(row))
        if not isinstance(waveform, np.ndarray):
            raise DataError("Statistics of mel bands are those of recordings, and the data holds images.")
        bands = transform(waveform)[0].double().numpy()
        total, squares, frames = (
            total + bands.sum(axis=1),
            squares + np.square(bands).sum(axis=1),
            frames + bands.shape[1],
        )
    mean = total / frames
    deviation = np.sqrt(np.maximum(squares / frames - mean**2, _LEAST_DEVIATION**2))
    # Four digits, as a reader of the model's description wants them.
    return replace(spec, mean=tuple(mean.round(4).tolist()), std=tuple(deviation.round(4).tolist()))
