"""Checking: what cannot be decoded is named, or dropped and counted."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from nearkin.data import BadFile, Dataset, Manifest, drop_bad, find_bad, open_data
from nearkin.errors import DataError, MissingExtraError


def picture(kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def tree(tmp_path):
    files = {
        "cat/1.png": picture(),
        "cat/2.jpg": picture("JPEG"),
        "cat/cut.jpg": picture("JPEG")[:900],
        "cat/empty.png": b"",
        "dog/1.png": picture(),
        "dog/notes.txt": b"no image",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    # The smallest real bomb: 100 megapixels of one bit, 12 kB on disk.
    Image.new("1", (10000, 10000)).save(tmp_path / "dog" / "bomb.png")
    return tmp_path


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_bad_files_are_found_in_order(tree, workers):
    bad = find_bad(open_data(tree), progress=False, workers=workers)
    assert [item.path for item in bad] == ["cat/cut.jpg", "cat/empty.png", "dog/bomb.png", "dog/notes.txt"]
    for item, reason in zip(bad, ["truncated", "empty", "decompression bomb", "not an image"], strict=True):
        assert reason in item.reason


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_skipping_drops_and_counts(tree):
    data, bad = drop_bad(open_data(tree), skip_bad=True, progress=False)
    assert data.manifest.paths.tolist() == ["cat/1.png", "cat/2.jpg", "dog/1.png"]
    assert len(bad) == 4
    assert str(BadFile("a.png", "is empty")) == "a.png is empty"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_without_skipping_they_are_named(tree):
    with pytest.raises(DataError, match="--skip-bad"):
        drop_bad(open_data(tree), skip_bad=False, progress=False)


def test_at_most_five_are_named(tmp_path):
    (tmp_path / "x").mkdir()
    for index in range(8):
        (tmp_path / "x" / f"{index}.png").write_bytes(b"" if index else picture())
    with pytest.raises(DataError) as caught:
        drop_bad(open_data(tmp_path), skip_bad=False, progress=False)
    assert str(caught.value).count(".png") == 5
    assert "2 more" in str(caught.value)


def test_nothing_left(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"x/1\.png"):
        drop_bad(open_data(tmp_path), skip_bad=True, progress=False)


def test_sound_data_is_returned_as_it_is(tmp_path, capsys):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1.png").write_bytes(picture())
    data = open_data(tmp_path)
    assert drop_bad(data, skip_bad=False) == (data, [])
    assert "1/1" in capsys.readouterr().err


def test_files_deleted_since_opening_are_bad_too(tmp_path):
    (tmp_path / "x").mkdir()
    for name in ("1.png", "2.png"):
        (tmp_path / "x" / name).write_bytes(picture())
    data = open_data(tmp_path)
    (tmp_path / "x" / "2.png").unlink()
    assert [item.path for item in find_bad(data, progress=False)] == ["x/2.png"]


def test_a_missing_extra_is_not_a_bad_file(monkeypatch):
    class Store:
        def read(self, path):
            return b"RIFF"

    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match="audio"):
        find_bad(Dataset(Manifest.from_rows(["a.wav"], ["x"]), Store(), kind="audio"), progress=False)


@pytest.mark.data
def test_real_data_is_sound(data_root):
    for name in ("cub200", "audiomnist"):
        data = open_data(data_root / f"{name}.zip")
        assert find_bad(data.select(range(0, len(data), 20)), progress=False) == []
