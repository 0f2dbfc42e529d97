"""Images and recordings, judged before they are decoded: by their headers, and by how much work they would make."""

from __future__ import annotations

import io

from PIL import Image

from nearkin.errors import require
from nearkin.serve.problems import Problem

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_LONGEST_SIDE = 65_535
_SCAN = b"\xff\xda"
_PROGRESSIVE = b"\xff\xc2"
_MOST_SCANS = 100
_MOST_WORK = 1_000_000_000
"""Pixels times scans of a JPEG: some seconds. Programs write about ten scans."""


def check_image(raw: bytes, max_pixels: int) -> int:
    """How many pixels an image has, read from its header.

    Raises:
        Problem: if it is no image of a known format, or has too many pixels or scans.
    """
    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as image:
            width, height = image.size
            kind, packing = image.format, str(image.info.get("compression", ""))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(max_pixels) from None
    except Exception:  # a decoder given hostile bytes may raise anything
        raise _unreadable() from None
    if width * height > max_pixels or max(width, height) > _LONGEST_SIDE:
        raise _too_many_pixels(max_pixels)
    if kind == "JPEG":
        _check_scans(raw, width * height)
    elif "jpeg" in packing and _PROGRESSIVE in raw:
        raise _unreadable()  # allowed by no standard, and its strips may hold scans without end
    return width * height


def _check_scans(raw: bytes, pixels: int) -> None:
    """Refuse a JPEG that refines itself over and over: every scan costs a pass, though it may have only a few bytes.

    The marker cannot occur inside of a scan's own data.
    """
    scans = raw.count(_SCAN)
    if scans > _MOST_SCANS or scans * pixels > _MOST_WORK:
        raise Problem("item-too-large", f"A JPEG of {pixels} pixels may not have {scans} scans: save it anew.")


def _unreadable() -> Problem:
    return Problem(
        "unreadable-item", "The image must be a JPEG, PNG, WebP, GIF, BMP or TIFF file, whole and undamaged."
    )


def _too_many_pixels(max_pixels: int) -> Problem:
    return Problem(
        "item-too-large", f"An image may have at most {max_pixels} pixels, and {_LONGEST_SIDE} on its longer side."
    )


def check_recording(raw: bytes, max_samples: int) -> int:
    """How many samples a recording has over all its channels, read from its header.

    Raises:
        Problem: if it is no recording, or has too many samples.
    """
    soundfile = require("soundfile", "audio")
    try:
        facts = soundfile.info(io.BytesIO(raw))
        samples = int(facts.frames) * int(facts.channels)
    except Exception:  # a decoder given hostile bytes may raise anything
        raise Problem("unreadable-item", "The recording must be a WAV, FLAC, OGG or MP3 file.") from None
    if samples > max_samples:
        raise Problem("item-too-large", f"A recording may have at most {max_samples} samples.")
    return samples
