"""Data sets: loading, selecting and fingerprints."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from PIL import Image

from nearkin.data import ArrayStore, BadFile, Dataset, FolderStore, Manifest, ZipStore, drop_bad, find_bad, open_data
from nearkin.errors import DataError, MissingExtraError


@pytest.fixture
def dataset():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3), dtype=np.uint8)
    names = [f"{index}" for index in range(6)]
    manifest = Manifest.from_rows(names, list("abcabc"), split=["train"] * 4 + ["test"] * 2)
    return Dataset(manifest, ArrayStore(pixels, names), name="six"), pixels


def test_items_labels_and_classes(dataset):
    data, pixels = dataset
    assert len(data) == 6
    assert data.classes == ["a", "b", "c"]
    assert data.labels.tolist() == list("abcabc")
    assert data.class_ids().tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(np.asarray(data.load(4)), pixels[4])
    assert repr(data) == "Dataset('six', 6 image items, 3 classes)"


def test_selection_keeps_items_with_their_labels(dataset):
    data, pixels = dataset
    chosen = data.select([5, 0])
    assert chosen.labels.tolist() == ["c", "a"]
    assert np.array_equal(np.asarray(chosen.load(0)), pixels[5])
    assert data.where(split="test").manifest.paths.tolist() == ["4", "5"]
    assert data.select(data.labels == "a").manifest.paths.tolist() == ["0", "3"]


def test_fingerprint_follows_content_labels_and_order(dataset):
    data, pixels = dataset
    print_ = data.fingerprint()
    assert len(print_) == 64
    assert print_ == Dataset(data.manifest, ArrayStore(pixels.copy(), list("012345")), name="other").fingerprint()
    changed = pixels.copy()
    changed[3, 0, 0, 0] ^= 1
    others = [
        Dataset(data.manifest, ArrayStore(changed, list("012345"))),
        Dataset(data.manifest.with_column("label", list("abcabb")), data.store),
        data.select([1, 0, 2, 3, 4, 5]),
        data.select(range(5)),
    ]
    assert len({print_, *(other.fingerprint() for other in others)}) == 5


def test_fingerprint_of_a_zip_is_the_same_wherever_it_lies(tmp_path):
    buffer = io.BytesIO()
    Image.new("L", (4, 4), 7).save(buffer, "PNG")
    prints = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"{name}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo("a.png", (1990 + len(prints), 1, 1, 0, 0, 0)), buffer.getvalue())
        prints.append(Dataset(Manifest.from_rows(["a.png"], ["x"]), ZipStore(path)).fingerprint())
    assert prints[0] == prints[1]


def test_names_that_are_not_unicode_have_a_fingerprint(tmp_path):
    data = Dataset(Manifest.from_rows(["a\udcff"], ["x"]), ArrayStore({"a\udcff": np.zeros((2, 2), np.uint8)}))
    assert len(data.fingerprint()) == 64


def test_audio_is_loaded_as_a_waveform(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(8000) / 9), 8000)
    data = Dataset(Manifest.from_rows(["a.wav"], ["x"]), FolderStore(tmp_path), kind="audio")
    wave = data.load(0)
    assert wave.shape == (16000,)
    assert wave.dtype == np.float32


def test_wrong_kinds_are_refused(dataset):
    data, _ = dataset
    with pytest.raises(DataError, match="video"):
        Dataset(data.manifest, data.store, kind="video")
    with pytest.raises(DataError, match="encoded"):
        Dataset(data.manifest, data.store, kind="audio").load(0)


def test_data_sets_travel_to_workers(dataset):
    data, pixels = dataset
    copy = pickle.loads(pickle.dumps(data))
    assert np.array_equal(np.asarray(copy.load(2)), pixels[2])
    assert copy.fingerprint() == data.fingerprint()


def test_importing_the_room_is_light():
    heavy = "{'torch', 'pyarrow', 'kornia', 'scipy', 'soundfile', 'sklearn'}"
    code = f"import sys, nearkin.data; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "items", "classes", "columns"),
    [
        ("cub200", 11788, 200, {"split"}),
        ("cifar100", 13000, 100, {"split"}),
        ("omniglot", 32460, 1623, {"split", "alphabet"}),
        ("pacs", 9991, 7, {"split", "domain"}),
        ("audiomnist", 1800, 60, {"split", "digit"}),
    ],
)
def test_real_data_opens_quickly(data_root, name, items, classes, columns):
    open_data(data_root / f"{name}.zip")  # imports pyarrow and warms the file cache
    times = []
    for _ in range(3):
        start = time.process_time()  # not the clock on the wall: other tests run beside this one
        data = open_data(data_root / f"{name}.zip")
        data.class_ids()
        fingerprint = data.fingerprint()
        times.append(time.process_time() - start)
    assert min(times) < 1.5  # about 0.4 on an idle core for the largest
    assert (len(data), len(data.classes)) == (items, classes)
    assert set(data.manifest.columns) == {"path", "label"} | columns
    assert data.kind == ("audio" if name == "audiomnist" else "image")
    assert len(fingerprint) == 64


@pytest.mark.data
def test_real_items_have_the_documented_form(data_root):
    assert open_data(data_root / "omniglot.zip").load(0).mode == "L"
    bird = open_data(data_root / "cub200.zip").where(split="test").load(17)
    assert bird.mode == "RGB"
    assert min(bird.size) == 192
    wave = open_data(data_root / "audiomnist.zip").load(3)
    assert 4000 < len(wave) < 32000
    assert 0.001 < np.abs(wave).max() <= 1.0


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
