"""The snippet of the guide, without nearkin and torch, gives the vectors of `model.encode`."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data.section import AudioSection
from nearkin.models import ModelSection, build_embedder
from nearkin.models.items import ItemLoader
from nearkin.models.onnx.description import describe
from nearkin.models.onnx.file import with_properties
from nearkin.models.onnx.graph import build_graph

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "export.md"


@pytest.fixture
def snippet(monkeypatch):
    """What the guide defines, run where neither nearkin nor torch can be imported."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (block,) = (block for block in blocks if "import onnxruntime" in block)
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] in ("nearkin", "torch"):
            raise ImportError(name)
        return real(name, *rest)

    names = {"__builtins__": {**vars(builtins), "__import__": without}}
    exec(compile(block, "export.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files of many kinds: large and small, tall and wide, turned, grey, transparent, of a palette, of 16 bits."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)

    def photo(width, height):
        coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)

    exif = Image.Exif()
    exif[0x0112] = 6
    photo(640, 401).save(folder / "a.jpg", quality=90)
    photo(233, 700).save(folder / "b.jpg", exif=exif)
    photo(50, 31).save(folder / "c.png")
    photo(90, 20).convert("L").save(folder / "d.png")
    transparent = photo(77, 77).convert("RGBA")
    transparent.putalpha(Image.fromarray(rng.integers(0, 256, (77, 77), dtype=np.uint8)))
    transparent.save(folder / "e.png")
    photo(100, 61).quantize(16).save(folder / "f.gif")
    Image.fromarray(rng.integers(0, 65536, (40, 52), dtype=np.uint16)).save(folder / "g.png")
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    ("channels", "size", "fit"), [(3, 72, "crop"), (1, 72, "crop"), (3, 40, "crop"), (3, 40, "pad"), (1, 40, "pad")]
)
def test_samples_are_those_of_the_model(snippet, pictures, channels, size, fit):
    section = ModelSection(backbone="conv4", channels=channels, size=size, fit=fit)
    embedder = build_embedder(section)
    how = describe(embedder).preprocessing
    for path in pictures:
        expected = ItemLoader(embedder.spec)(path, str(path)).numpy() / np.float32(255)
        found = snippet["sample"](path, how)
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < 1e-6, path.name


def test_vectors_are_those_of_the_model(shaken, snippet, pictures, tmp_path):
    embedder = shaken(build_embedder(ModelSection(backbone="conv4", size=72, dimension=8)))
    (tmp_path / "model.onnx").write_bytes(with_properties(build_graph(embedder), describe(embedder)))
    found = snippet["embed"](tmp_path / "model.onnx", pictures)
    assert np.abs(found - embedder.encode(pictures, progress=False)).max() < 1e-4


def mel(hertz):
    """Slaney's scale: 3 mels each 200 Hz up to 1 kHz, then 27 mels each factor of 6.4."""
    hertz = np.asarray(hertz, dtype=float)
    return np.where(hertz < 1000, 3 * hertz / 200, 15 + 27 * np.log(np.maximum(hertz, 1000) / 1000) / np.log(6.4))


def log_mel(wave, how):
    """What the guide says of audio, by plain loops."""
    if "level" in how:
        length = how["level"]["length"]
        powers = [np.mean(wave[first : first + length].astype(float) ** 2) for first in range(0, len(wave), length)]
        loud = [power for power in powers if power >= max(powers) / 10 ** (how["level"]["within_decibels"] / 10)]
        wave = wave * how["level"]["rms"] / np.sqrt(np.mean(loud))
    missing = how["samples"] - len(wave)
    if missing > 0:
        wave = np.resize(wave, how["samples"])
    if how["longer"] == "centre":
        start = max(0, -missing // 2)
        wave = wave[start : start + how["samples"]]
    length, fft = how["window"]["length"], how["fft"]
    window = np.zeros(fft)
    first = (fft - length) // 2
    window[first : first + length] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    bins = np.arange(fft // 2 + 1) * how["sample_rate"] / fft
    limits = np.linspace(mel(how["mel"]["low"]), mel(how["mel"]["high"]), how["mel"]["bands"] + 2)
    dense = np.linspace(0, how["sample_rate"] / 2, 200_001)
    edges = np.interp(limits, mel(dense), dense)
    frames = []
    for frame in range(how["frames"] or 1 + (len(wave) - fft) // how["hop"]):
        part = wave[frame * how["hop"] : frame * how["hop"] + fft] * window
        power = np.abs(np.fft.rfft(part)) ** 2
        bands = []
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            triangle = np.interp(bins, [low, middle, high], [0, 2 / (high - low), 0])
            bands.append(np.log(triangle @ power + how["log"]["add"]))
        frames.append(bands)
    values = np.array(frames).T
    return values - values.mean(axis=1, keepdims=True) if how["centre"] else values


@pytest.mark.parametrize("bands", ["centred", "standardised"])
@pytest.mark.parametrize("length", [3000, 5432, 20_001])
def test_audio_is_prepared_as_the_guide_says(length, bands):
    section = ModelSection(backbone="tdnn-narrow", size=12, pooling="stats")
    embedder = build_embedder(section, audio_seconds=0.3, audio=AudioSection(bands=bands))
    how = describe(embedder).preprocessing
    wave = np.random.default_rng(0).normal(0, 0.1, length).astype(np.float32)
    expected = ItemLoader(embedder.spec)(wave, "wave").numpy()[0]
    assert expected.shape == (how["mel"]["bands"], how["frames"] or 1 + (length - 512) // 160)
    assert np.abs(log_mel(wave, how) - expected).max() < 1e-3
