"""Checks of images and recordings before decoding: format, size, and the work they would cause."""

from __future__ import annotations

import io
import math
import re

from PIL import Image, PngImagePlugin

from nearkin.data.dataset import SAMPLE_RATE
from nearkin.errors import require
from nearkin.serve.problems import Problem

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_LONGEST_SIDE = 65_535
_JPEG = b"\xff\xd8"
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
"""The marker of a JPEG segment; inside scan data 0xff is followed by 0, or by a restart number."""

_ALONE = (0x01, 0xD8)
_SCAN, _END = 0xDA, 0xD9
_PROGRESSIVE = b"\xff\xc2"
_MOST_SCANS = 100
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_PNG = b"\x89PNG"
_TEXTS = (b"zTXt", b"iTXt", b"iCCP")
_MOST_WORK = 1_000_000_000
"""Most pixels times scans of a JPEG, a few seconds of work. Programs write about ten scans."""


def check_image(raw: bytes, max_pixels: int) -> int:
    """Number of pixels of an image, read from its header.

    Raises:
        Problem: if its format is unknown, or it has too many pixels or scans.
    """
    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as image:
            width, height = image.size
            packing = str(image.info.get("compression", ""))
            tags = getattr(image, "tag_v2", {})
            # A TIFF's tile is decoded whole, even if the image is smaller.
            tile = int(tags.get(_TILE_WIDTH, 0)) * int(tags.get(_TILE_LENGTH, 0))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(max_pixels) from None
    except Exception:  # a decoder given hostile bytes may raise anything
        raise _unreadable() from None
    pixels = max(width * height, tile)
    if pixels > max_pixels or max(width, height) > _LONGEST_SIDE:
        raise _too_many_pixels(max_pixels)
    if raw.startswith(_JPEG):  # whatever Pillow calls it: one with a second picture inside is an MPO
        scans = _scans(raw)
        if (
            scans > _MOST_SCANS or scans * pixels > _MOST_WORK
        ):  # each costs a full pass, even if it has only a few bytes
            raise Problem("item-too-large", f"A JPEG of {pixels} pixels may not have {scans} scans: save it again.")
    elif "jpeg" in packing and _PROGRESSIVE in raw:
        raise _unreadable()  # allowed by no standard, and its strips may hold scans without end
    return pixels


def _scans(raw: bytes) -> int:
    """Number of scans of a JPEG, counted by segment up to its end, and no further than the limit.

    Data inside a segment, or after the end (a video, a second picture), may contain the same bytes by chance.
    """
    found, place = 0, 0
    while found <= _MOST_SCANS and (marker := _MARKER.search(raw, place)):
        kind, place = marker[1][0], marker.end()
        if kind == _END:
            break
        if kind in _ALONE:
            continue
        found += kind == _SCAN
        place += int.from_bytes(raw[place : place + 2], "big")
    return found


def most_text(raw: bytes) -> int:
    """Bytes that the compressed texts of a PNG may become at most."""
    if not raw.startswith(_PNG):
        return 0
    return min(PngImagePlugin.MAX_TEXT_MEMORY, PngImagePlugin.MAX_TEXT_CHUNK * sum(map(raw.count, _TEXTS)))


def _unreadable() -> Problem:
    return Problem("unreadable-item", "The image must be an intact JPEG, PNG, WebP, GIF, BMP or TIFF file.")


def _too_many_pixels(max_pixels: int) -> Problem:
    return Problem(
        "item-too-large", f"An image may have at most {max_pixels} pixels, and {_LONGEST_SIDE} on its longer side."
    )


def check_recording(raw: bytes, max_samples: int) -> int:
    """Number of samples of a recording, over all channels or as a model hears it, read from its header.

    Raises:
        Problem: if its format is unknown, or it has too many samples.
    """
    soundfile = require("soundfile", "audio")
    try:
        facts = soundfile.info(io.BytesIO(raw))
        samples = int(facts.frames) * max(int(facts.channels), math.ceil(SAMPLE_RATE / int(facts.samplerate)))
    except Exception:  # a decoder given hostile bytes may raise anything
        raise Problem("unreadable-item", "The recording must be a WAV, FLAC, OGG or MP3 file.") from None
    if samples > max_samples:
        raise Problem("item-too-large", f"A recording may have at most {max_samples} samples.")
    return samples
