"""What has to happen to a file before the graph sees it, as plain values that a program in any language can follow.

Whatever is stated here is what `nearkin.data` does; docs/guide/export.md explains each value.
"""

from __future__ import annotations

from typing import Any

from nearkin.data.audio import FFT, HOP, WINDOW, LogMelTransform
from nearkin.data.augment import EvalTransform
from nearkin.data.dataset import SAMPLE_RATE
from nearkin.data.inputs import InputSpec
from nearkin.data.padding import REDUCING_GAP


def preprocessing(spec: InputSpec) -> dict[str, Any]:
    """The steps from a file to a sample, in order, JSON-safe."""
    return _audio(spec) if spec.kind == "audio" else _image(spec)


def _image(spec: InputSpec) -> dict[str, Any]:
    short = EvalTransform(spec).hint if spec.fit == "crop" else spec.size
    return {
        "kind": "image",
        "decode": {
            "orientation": "exif",
            "frame": 0,
            "alpha": "over white",
            "sixteen_bit": "round(value / 257)",
            "jpeg_shrink_to_at_least": short,
        },
        "colour": "L" if spec.channels == 1 else "RGB",
        "fit": spec.fit,
        "short_side": short,
        "size": spec.size,
        "resample": {"filter": "bilinear", "antialias": True, "reducing_gap": REDUCING_GAP},
        "padding": "median of the border" if spec.fit == "pad" else None,
        "divide_by": 255,
        "layout": "NCHW",
        "dtype": "float32",
        "in_graph": {"mean": list(spec.mean), "std": list(spec.std)},
    }


def _audio(spec: InputSpec) -> dict[str, Any]:
    frames = LogMelTransform(spec).frames
    return {
        "kind": "audio",
        "sample_rate": SAMPLE_RATE,
        "channels": "mean",
        "samples": (frames - 1) * HOP + FFT,
        "shorter": "repeat from the start",
        "longer": "centre",
        "window": {"name": "hann", "periodic": True, "length": WINDOW, "centred_in": FFT},
        "hop": HOP,
        "fft": FFT,
        "spectrum": "power",
        "mel": {"bands": spec.size, "scale": "slaney", "area": 1, "low": 0, "high": SAMPLE_RATE / 2},
        "log": {"base": "e", "add": 1e-6},
        "centre": "each band over time",
        "frames": frames,
        "layout": "(batch, 1, bands, frames)",
        "dtype": "float32",
        "in_graph": {"mean": list(spec.mean), "std": list(spec.std)},
    }
