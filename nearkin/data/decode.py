"""Decoding: from the bytes of a file to an image or a waveform, or one sentence about what is wrong with it."""

from __future__ import annotations

import io
import math
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from nearkin.data.stores import UnreadableError
from nearkin.errors import drop_locals, require

AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".mp3"})
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".dib", ".gif", ".ico", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"}
    | {".pnm", ".ppm", ".qoi", ".tif", ".tiff", ".webp"}
)
ORIGINAL_SIZE = "original_size"
"""Under which the `info` of a decoded image has its width and height as it was saved, upright."""
MAX_PIXELS = 64_000_000
MAX_SAMPLES = 1 << 28
SHORTEST = 0.15
"""Seconds that a recording must last: what is shorter says nothing of who speaks."""

_MOST_INFLATED = 1032
"""Bytes that a byte of deflated data can become."""

_BLOCK = 1 << 20
"""Frames of a recording that are read at once: its header may promise more than there is."""

_SILENCE = 2e-5
"""Largest sample of a silent recording: less than the smallest step of 16 bits."""

_LEAST_RATE, _MOST_RATE = 1000, 1_000_000
"""Samples a second that a recording may have; a lower rate would be blown up by resampling."""

_FILM = (b"\x1aE\xdf\xa3", b"FLV")
"""What Matroska, WebM and Flash files begin with; those of the MPEG-4 family say so in their fifth byte."""

# Only raster formats that Pillow decodes itself: it hands EPS and the like to other programs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF", "ICO", "QOI")
_OPENINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ROWS = 256
_ON_THEIR_SIDE = {_TURNS[tag] for tag in (5, 6, 7, 8)}


def decode_image(raw: bytes | np.ndarray, path: str, hint: int | None = None) -> Image.Image:
    """Decode an image to mode L (1-bit and greyscale sources) or RGB (all others).

    Alpha is composited on white, EXIF orientation applied, of several frames the first taken.

    Args:
        raw: an encoded file, or pixels uint8 (H, W) or (H, W, 3).
        path: named in errors.
        hint: the short side needed; a larger JPEG may come back smaller, but never with a side below it.

    Raises:
        UnreadableError: the file is empty, not an image, truncated, damaged or larger than 64 megapixels.
    """
    if isinstance(raw, np.ndarray):
        return _from_array(raw, path)
    if not raw:
        raise UnreadableError(path, "is empty (zero bytes)")
    try:
        return _opened(raw, path, hint)
    except UnreadableError as error:
        drop_locals(error)
        raise
    except UnidentifiedImageError as error:
        drop_locals(error)
        reason = "is truncated or damaged in its header" if raw.startswith(_OPENINGS) else "is not an image"
        raise UnreadableError(path, reason) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        drop_locals(error)
        raise _bomb(path, "far too many pixels") from error
    except Exception as error:  # a decoder given hostile bytes may raise anything
        drop_locals(error)
        if "truncated" in str(error).lower():
            raise UnreadableError(path, "is truncated") from error
        raise UnreadableError(path, f"is damaged ({error})") from error


def _opened(raw: bytes, path: str, hint: int | None) -> Image.Image:
    image = Image.open(io.BytesIO(raw), formats=_formats())
    if image.width * image.height > MAX_PIXELS:
        raise _bomb(path, f"{image.width} x {image.height} pixels")
    bits = 8 * len(image.getbands()) if len(image.getbands()) > 1 else 1
    if image.format == "PNG" and image.width * image.height * bits > 8 * _MOST_INFLATED * len(raw):
        raise UnreadableError(path, "is truncated")  # before Pillow takes memory for what the header promises
    width, height = image.size
    if hint is not None:
        image.draft(None, (hint, hint))  # only JPEG uses it
    image.load()
    plain = plain_image(image, path)
    turned = _turn_of(image) in _ON_THEIR_SIDE
    plain.info[ORIGINAL_SIZE] = (height, width) if turned else (width, height)
    return plain


class UnreadableRecordingError(UnreadableError):
    """A recording that cannot be decoded or says nothing; its reason speaks of the recording alone."""


def decode_audio(raw: bytes, path: str, rate: int = 16000) -> np.ndarray:
    """Decode a recording to a mono float32 waveform (n,) at `rate` samples a second.

    Raises:
        UnreadableRecordingError: it is empty, not audio, truncated, silent, too short, or not of finite numbers.
        MissingExtraError: soundfile is not installed.
    """
    soundfile = require("soundfile", extra="audio")
    if not raw:
        raise UnreadableRecordingError(path, "is empty (zero bytes)")
    if raw[:4] == b"RIFF":
        # libsndfile forgives a WAV file with fewer bytes than its header states. Programs that write to a pipe state a
        # size near 2 or 4 GiB, or none, because they cannot know it.
        stated = int.from_bytes(raw[4:8], "little") + 8
        if len(raw) < stated < 0x7FFF0000:
            raise UnreadableRecordingError(path, "is truncated")
    try:
        with soundfile.SoundFile(io.BytesIO(raw)) as recording:
            source, frames = recording.samplerate, recording.frames
            if not _LEAST_RATE <= source <= _MOST_RATE:
                raise UnreadableRecordingError(path, f"claims {source:,} samples a second: record at 8,000 to 192,000")
            if frames * max(recording.channels, rate / source) > MAX_SAMPLES:
                raise UnreadableRecordingError(path, f"claims {frames:,} samples, too many for one item")
            wave, loudest = _averaged(recording)
            exact = recording.format != "MP3"  # an MP3 only estimates its length
    except UnreadableRecordingError:
        raise
    except Exception as error:
        drop_locals(error)
        if raw[4:8] == b"ftyp" or raw.startswith(_FILM):
            raise UnreadableRecordingError(
                path, "is a film or an MPEG-4 or WebM file: save its sound as WAV or FLAC"
            ) from error
        reason = str(getattr(error, "error_string", error)).rstrip(".")  # its full message names a Python object
        raise UnreadableRecordingError(path, f"is not readable as audio ({reason})") from error
    if exact and len(wave) < frames:
        raise UnreadableRecordingError(path, f"is truncated ({len(wave)} of {frames} samples)")
    if wave.size and np.abs(wave).max() <= _SILENCE < loudest:
        raise UnreadableRecordingError(path, "holds channels that cancel each other: give one of them")
    check_waveform(wave, path, source)
    if source != rate:
        from scipy.signal import resample_poly

        common = math.gcd(source, rate)
        wave = resample_poly(wave, rate // common, source // common)
    return np.ascontiguousarray(wave, dtype=np.float32)


def _averaged(recording: Any) -> tuple[np.ndarray, float]:
    """The mean of the channels of an open recording, float32 (n,), and its largest sample."""
    parts, loudest = [np.zeros(0, np.float32)], 0.0
    while len(block := recording.read(_BLOCK, dtype="float32", always_2d=True)):
        parts.append(block.mean(axis=1))
        loudest = max(loudest, float(np.abs(block).max()))
    return np.concatenate(parts), loudest


def check_waveform(wave: np.ndarray, path: str, rate: int = 16000) -> None:
    """Refuse a waveform (n,) at `rate` samples a second from which nothing can be heard.

    Raises:
        UnreadableRecordingError: it is empty, silent, too short, or holds no finite samples.
    """
    if not len(wave):
        raise UnreadableRecordingError(path, "holds no samples")
    if not np.isfinite(wave).all():
        raise UnreadableRecordingError(path, "holds samples that are not finite numbers")
    if len(wave) < SHORTEST * rate:
        raise UnreadableRecordingError(
            path, f"lasts {len(wave) / rate:.2f} s, which is too short: give {SHORTEST:g} s or more"
        )
    if np.abs(wave).max() <= _SILENCE:
        raise UnreadableRecordingError(path, "is silent")


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _bomb(path: str, size: str) -> UnreadableError:
    return UnreadableError(
        path, f"is too large ({size}; at most {MAX_PIXELS // 10**6} megapixels), perhaps a decompression bomb"
    )


def _from_array(pixels: np.ndarray, path: str) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        raise UnreadableError(path, f"must be a uint8 array (H, W) or (H, W, 3), not {pixels.dtype} {pixels.shape}")
    if not pixels.size:
        raise UnreadableError(path, "is an empty array")
    return Image.fromarray(np.ascontiguousarray(pixels))


def plain_image(image: Image.Image, path: str) -> Image.Image:
    """An image of any mode upright, in L or RGB.

    Raises:
        UnreadableError: its pixels have more than 16 bits.
    """
    if image.mode in _DEEP:
        deep = np.asarray(image)
        if deep.min() < 0 or deep.max() > 0xFFFF:
            raise UnreadableError(path, "has pixels of more than 16 bits: save it with 8 or 16")
        plain = Image.fromarray(np.round(deep / 257).astype(np.uint8))
    elif image.mode == "F":
        raise UnreadableError(path, "has floating-point pixels: save it with 8 or 16 bits")
    elif image.has_transparency_data:
        plain = Image.new("L" if image.mode in _GREY else "RGB", image.size)
        for top in range(0, image.height, _ROWS):  # in bands, as four copies of a large image would be too many
            colours = image.crop((0, top, image.width, min(top + _ROWS, image.height))).convert("RGBA")
            white = Image.new("RGBA", colours.size, "white")
            plain.paste(Image.alpha_composite(white, colours).convert(plain.mode), (0, top))
    else:
        plain = image.convert("L" if image.mode in _GREY else "RGB")
    turn = _turn_of(image)
    return plain if turn is None else plain.transpose(turn)


def _turn_of(image: Image.Image) -> Image.Transpose | None:
    """What makes an image upright."""
    try:
        return _TURNS.get(int(image.getexif().get(_ORIENTATION_TAG, 1)))
    except Exception:  # damaged metadata around a sound image
        return None
