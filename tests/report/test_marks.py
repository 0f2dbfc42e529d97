"""The mark of our pictures: found again, and of no effect on pixels."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from nearkin.report.marks import is_marked, marked


def test_a_mark_is_found_and_changes_no_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    (tmp_path / "plain.png").write_bytes(buffer.getvalue())
    (tmp_path / "ours.png").write_bytes(marked(buffer.getvalue()))
    image = Image.open(tmp_path / "ours.png")
    image.verify()
    assert image.info == {"Software": "nearkin explain"}
    assert np.array_equal(np.asarray(Image.open(tmp_path / "ours.png")), pixels)
    assert is_marked(tmp_path / "ours.png")
    assert not is_marked(tmp_path / "plain.png")


def test_what_cannot_be_read_has_no_mark(tmp_path):
    (tmp_path / "empty.png").touch()
    assert not is_marked(tmp_path / "empty.png")
    assert not is_marked(tmp_path / "absent.png")
    assert not is_marked(tmp_path)
