"""Waveforms as log-mel spectrograms: short-time power spectra summed in bands spaced as we hear pitch.

S = |STFT(x)|^2, M = F S, log(M + 1e-6), with windows of 25 ms every 10 ms.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nearkin.data.dataset import SAMPLE_RATE
from nearkin.data.inputs import MEL_BANDS, InputSpec
from nearkin.errors import DataError

WINDOW = 400
"""Samples in a window (25 ms)."""

HOP = 160
"""Samples from one window to the next (10 ms)."""

FFT = 512
"""Samples in a Fourier transform: the window with zeros on both sides."""

_FLOOR = 1e-6

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


def log_mel(waveform: Tensor, filters: Tensor) -> Tensor:
    """Log-mel spectrogram (mels, 1 + (n - 512) // 160) of a waveform (n,) at 16 kHz, n >= 512.

    Args:
        waveform: samples, float32.
        filters: what `mel_filterbank` gives, (mels, 257).
    """
    window = torch.hann_window(WINDOW, dtype=waveform.dtype, device=waveform.device)
    spectrum = torch.stft(
        waveform, FFT, hop_length=HOP, win_length=WINDOW, window=window, center=False, return_complex=True
    )
    return torch.log(filters @ spectrum.abs().square() + _FLOOR)


class LogMelTransform:
    """Cut a fixed length from a waveform and give its log-mel spectrogram, each band centred over time.

    Args:
        spec: `size` is the number of mel bands; `frames`, when set, the length instead of `seconds`.
        seconds: length of the crop.
        scale: spacing of the bands.
    """

    hint: int | None = None

    def __init__(self, spec: InputSpec, seconds: float = 1.0, scale: MelScale = "slaney") -> None:
        self.spec = spec
        self.frames = spec.frames if spec.frames is not None else round(seconds * SAMPLE_RATE / HOP)
        if self.frames < 1:
            raise DataError(f"A crop of {seconds:g} seconds is shorter than a frame of 10 ms: lengthen audio_seconds.")
        self._filters = torch.from_numpy(mel_filterbank(spec.size, scale=scale))

    def __call__(self, sample: np.ndarray, rng: np.random.Generator | None = None) -> Tensor:
        """Log-mel values, float32 (1, mels, frames), of a waveform (n,): a random crop with `rng`, else the centre."""
        samples = (self.frames - 1) * HOP + FFT
        waveform = torch.from_numpy(_cropped(np.asarray(sample, dtype=np.float32), samples, rng))
        bands = log_mel(waveform, self._filters)
        return (bands - bands.mean(dim=1, keepdim=True)).unsqueeze(0)


def _cropped(waveform: np.ndarray, samples: int, rng: np.random.Generator | None) -> np.ndarray:
    """Exactly `samples` of the waveform (n,); a shorter one is repeated."""
    if waveform.ndim != 1 or not waveform.size:
        raise DataError(f"A waveform must be one channel with at least one sample, got shape {waveform.shape}.")
    if waveform.size < samples:
        # From a random point in training, so that the seam is not always at the same place.
        start = int(rng.integers(waveform.size)) if rng is not None else 0
        return np.take(waveform, np.arange(start, start + samples), mode="wrap")
    room = waveform.size - samples
    start = int(rng.integers(room + 1)) if rng is not None else room // 2
    return waveform[start : start + samples].copy()
