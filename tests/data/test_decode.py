"""Decoding: every mode comes out as L or RGB, and every broken file gets one sentence that names it."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import traceback
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from nearkin.data import UnreadableError, decode_audio, decode_image
from nearkin.errors import DataError, MissingExtraError


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(mode="RGB", size=(40, 30)):
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def png_claiming(width, height):
    """A PNG whose header is sound and whose pixels are not there."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b""
    for name, body in [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]:
        chunks += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_lossless_pixels_are_exact(mode):
    image = noise(mode)
    decoded = decode_image(encoded(image), "a.png")
    assert decoded.mode == mode
    assert np.array_equal(np.asarray(decoded), np.asarray(image))


@pytest.mark.parametrize(
    ("image", "kind", "mode"),
    [
        (noise("L").convert("1"), "PNG", "L"),
        (noise().convert("P"), "GIF", "RGB"),
        (noise().convert("CMYK"), "JPEG", "RGB"),
        (noise().convert("YCbCr"), "JPEG", "RGB"),
        (noise("L"), "JPEG", "L"),
        (noise(), "BMP", "RGB"),
        (noise(), "TIFF", "RGB"),
        (noise(), "WEBP", "RGB"),
        (noise("L"), "PPM", "L"),
    ],
)
def test_modes_and_formats(image, kind, mode):
    decoded = decode_image(encoded(image, kind), "a")
    assert decoded.mode == mode
    assert decoded.size == image.size


def test_one_bit_becomes_black_and_white():
    bits = noise("L").convert("1")
    assert np.array_equal(np.asarray(decode_image(encoded(bits), "a")), np.asarray(bits) * np.uint8(255))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_composited_on_white(mode):
    image = Image.new(mode, (2, 1), (0, 0, 0, 255)[-len(mode) :] if mode == "RGBA" else (0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
    decoded = decode_image(encoded(image), "a.png")
    assert decoded.mode == ("RGB" if mode == "RGBA" else "L")
    assert np.asarray(decoded).reshape(2, -1)[:, 0].tolist() == [0, 255]


def test_a_transparent_palette_entry_becomes_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    decoded = decode_image(encoded(image, transparency=1), "a.png")
    assert np.asarray(decoded).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_sixteen_bits_are_scaled_to_eight():
    deep = np.array([[0, 257 * 100, 65535]], dtype=np.uint16)
    assert np.asarray(decode_image(encoded(Image.fromarray(deep)), "a.png")).tolist() == [[0, 100, 255]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_as_pillow_does(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = encoded(noise(), "JPEG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(raw)))
    assert np.array_equal(np.asarray(decode_image(raw, "a.jpg")), np.asarray(expected))


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_a_senseless_orientation_is_ignored(value):
    exif = Image.Exif()
    exif[0x0112] = value
    assert decode_image(encoded(noise(), "JPEG", exif=exif), "a.jpg").size == (40, 30)


@settings(max_examples=30, deadline=None)
@given(st.integers(16, 300), st.integers(16, 300), st.integers(1, 300))
def test_a_hint_never_shrinks_below_itself(width, height, hint):
    raw = encoded(Image.new("RGB", (width, height), "red"), "JPEG")
    short = min(decode_image(raw, "a.jpg", hint).size)
    assert short >= min(hint, width, height)


def test_a_hint_makes_large_jpegs_smaller_and_leaves_others_alone():
    image = noise(size=(640, 480))
    assert decode_image(encoded(image, "JPEG"), "a.jpg", 100).size == (160, 120)
    assert decode_image(encoded(image, "PNG"), "a.png", 100).size == (640, 480)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3)])
def test_arrays_are_images_already(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(np.asarray(decode_image(pixels, "a")), pixels.squeeze())


@pytest.mark.parametrize("array", [np.zeros((4, 4), np.float32), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8)])
def test_other_arrays_are_refused(array):
    with pytest.raises(UnreadableError, match="uint8"):
        decode_image(array, "a")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"hello, I am a text file", "image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image"),
        (encoded(noise(), "JPEG")[:600], "truncated"),
        (encoded(noise(), "PNG")[:600], "truncated|damaged"),
        (encoded(noise(), "GIF")[:600], "truncated|damaged"),
        (encoded(noise(), "WEBP")[:200], "truncated|damaged|image"),
        (png_claiming(9000, 9000), "9000 x 9000"),
        (png_claiming(60000, 60000), "large"),
        (png_claiming(50, 50), "truncated|damaged"),
        (encoded(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF"), "floating-point"),
    ],
)
def test_a_broken_image_gets_one_sentence(raw, reason):
    with pytest.raises(UnreadableError, match=reason) as caught:
        decode_image(raw, "birds/owl.jpg")
    assert str(caught.value).startswith("birds/owl.jpg")
    assert isinstance(caught.value, DataError)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damaged_bytes_decode_or_are_named_but_never_crash(data):
    raw = bytearray(data.draw(st.sampled_from([encoded(noise(), kind) for kind in ("JPEG", "PNG", "GIF", "TIFF")])))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableError):
        assert decode_image(bytes(raw), "a").mode in ("L", "RGB")


def test_the_error_keeps_nothing_of_the_image():
    """Neither the pixels that were being decoded nor those that were refused afterwards."""
    deep = encoded(Image.fromarray(np.full((30, 40), 2**20, np.int32)), "TIFF")
    for raw in (encoded(noise(), "PNG")[:600], deep):
        with pytest.raises(UnreadableError) as caught:
            decode_image(raw, "a")
        error, held = caught.value, []
        while error is not None:
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            held += [
                value for frame in frames for value in frame.f_locals.values() if frame.f_code.co_filename != __file__
            ]
            error = error.__cause__
        assert not [value for value in held if isinstance(value, Image.Image | np.ndarray)]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_composited_in_bands_as_at_once(mode):
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (600, 7, 4), dtype=np.uint8), "RGBA").convert(mode)
    raw = encoded(image, transparency=3) if mode == "P" else encoded(image)
    colours = Image.open(io.BytesIO(raw)).convert("RGBA")
    white = Image.new("RGBA", colours.size, "white")
    expected = Image.alpha_composite(white, colours).convert("L" if mode == "LA" else "RGB")
    assert np.array_equal(np.asarray(decode_image(raw, "a.png")), np.asarray(expected))


def test_the_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(UnreadableError("a.png", "is truncated")))
    assert (error.path, error.reason, str(error)) == ("a.png", "is truncated", "a.png is truncated.")


def sound(samples, rate=16000, kind="WAV", subtype=None):
    soundfile = pytest.importorskip("soundfile")
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def tone(rate, hertz=440.0, seconds=1.0):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG"])
def test_audio_comes_as_float32_at_16_khz(kind):
    wave = decode_audio(sound(tone(16000), kind=kind), "a")
    assert wave.dtype == np.float32
    assert wave.shape == (16000,)
    assert np.abs(wave - tone(16000)).max() < (0.02 if kind == "OGG" else 1e-4)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_resampling_keeps_the_tone(rate):
    wave = decode_audio(sound(tone(rate), rate), "a")
    assert abs(len(wave) - 16000) <= 1
    middle = slice(2000, 14000)  # the filter rings at the ends
    assert np.abs(wave[middle] - tone(16000)[middle]).max() < 5e-3


def test_channels_are_averaged():
    left, right = tone(16000), tone(16000, 880.0)
    wave = decode_audio(sound(np.stack([left, right], axis=1), subtype="FLOAT"), "a")
    assert np.allclose(wave, (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"", "empty"),
        (lambda: b"not a sound", "audio"),
        (lambda: sound(tone(16000))[:9000], "truncated"),
        (lambda: sound(tone(16000), kind="FLAC")[:9000], "audio|truncated"),
        (lambda: sound(np.zeros(0)), "samples"),
        (lambda: sound(np.full(10, np.nan), subtype="FLOAT"), "finite"),
        (lambda: sound(tone(16000, seconds=0.1)), "too short"),
        (lambda: sound(tone(8000, seconds=0.1), 8000), "too short"),
        (lambda: sound(np.zeros(16000)), "silent"),
        (lambda: sound(np.stack([tone(16000), -tone(16000)], axis=1)), "cancel"),
        (lambda: sound(tone(16000), rate=7), "a second"),
        (lambda: b"\0\0\0\x20ftypisom" + bytes(500), "film"),
        (lambda: b"\x1aE\xdf\xa3" + bytes(500), "film"),
    ],
)
def test_a_broken_recording_gets_one_sentence(make, reason):
    pytest.importorskip("soundfile")
    with pytest.raises(UnreadableError, match=reason) as caught:
        decode_audio(make(), "voices/ann.wav")
    assert str(caught.value).startswith("voices/ann.wav")
    assert "0x" not in str(caught.value)


def test_a_header_that_promises_more_samples_than_there_are_takes_no_memory_for_them():
    raw = bytearray(sound(tone(16000), kind="FLAC"))
    facts = int.from_bytes(raw[18:26], "big")  # rate, channels, bits, and in the last 36 bits the samples
    raw[18:26] = (facts >> 36 << 36 | 200_000_000).to_bytes(8, "big")
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match=r"truncated|audio"):
            decode_audio(bytes(raw), "a.flac")
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def test_a_recording_that_resampling_would_blow_up_is_refused():
    raw = bytearray(sound(tone(1000), 1000, kind="FLAC"))
    facts = int.from_bytes(raw[18:26], "big")
    raw[18:26] = (facts >> 36 << 36 | 20_000_000).to_bytes(8, "big")
    with pytest.raises(UnreadableError, match="too many"):
        decode_audio(bytes(raw), "a.flac")


def test_clipped_recordings_are_taken_as_they_are():
    wave = decode_audio(sound(np.clip(4 * tone(16000), -1, 1)), "a")
    assert wave.shape == (16000,)
    assert np.isfinite(wave).all()


def test_without_soundfile_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[audio\]"):
        decode_audio(b"RIFF", "a.wav")
