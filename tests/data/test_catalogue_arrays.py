"""Loaders of packed images: idx files, CIFAR's binary records and scikit-learn's digits."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from sklearn.datasets import load_digits

from nearkin.data.catalogue import catalogue, open_digits
from nearkin.data.catalogue.mnist import parse_idx, read_content
from nearkin.errors import DataError

RNG = np.random.default_rng(0)


def idx_bytes(array: np.ndarray) -> bytes:
    """The format as its publisher describes it: two zeros, 8 for bytes, the rank, big-endian sizes, the values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=3, max_side=6)))
def test_idx_round_trip(array):
    np.testing.assert_array_equal(parse_idx(idx_bytes(array), Path("x")), array)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_array_or_a_data_error(content):
    with contextlib.suppress(DataError):
        assert parse_idx(content, Path("x")).dtype == np.uint8


def write_mnist(
    root: Path, name=lambda stem: f"{stem}.gz", training: int = 5, testing: int = 3
) -> dict[str, np.ndarray]:
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, count in (("train", training), ("t10k", testing)):
        made[f"{part}-images-idx3-ubyte"] = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        made[f"{part}-labels-idx1-ubyte"] = RNG.integers(0, 10, count, dtype=np.uint8)
    for stem, array in made.items():
        content = idx_bytes(array)
        (root / name(stem)).write_bytes(gzip.compress(content, mtime=0) if name(stem).endswith(".gz") else content)
    return made


@pytest.mark.parametrize(
    "name",
    [lambda stem: f"{stem}.gz", lambda stem: stem, lambda stem: stem.replace("-idx", ".idx")],
    ids=["published", "unpacked", "renamed"],
)
def test_mnist(tmp_path, name):
    made = write_mnist(tmp_path, name)
    dataset = catalogue.get("mnist").open(tmp_path)
    assert list(dataset.manifest.paths) == [f"train/{i:05d}" for i in range(5)] + [f"test/{i:05d}" for i in range(3)]
    assert list(dataset.manifest.column("split")) == ["train"] * 5 + ["test"] * 3
    digits = [*made["train-labels-idx1-ubyte"], *made["t10k-labels-idx1-ubyte"]]
    assert list(dataset.labels) == [str(digit) for digit in digits]
    np.testing.assert_array_equal(np.asarray(dataset.load(6)), made["t10k-images-idx3-ubyte"][1])


@pytest.mark.parametrize(
    ("stem", "content", "message"),
    [
        ("train-labels-idx1-ubyte", gzip.compress(idx_bytes(np.zeros(4, np.uint8))), "shape"),
        ("train-labels-idx1-ubyte", gzip.compress(idx_bytes(np.full(5, 10, np.uint8))), "label"),
        ("t10k-images-idx3-ubyte", gzip.compress(idx_bytes(np.zeros((3, 9, 9), np.uint8))), "sizes"),
        ("t10k-images-idx3-ubyte", gzip.compress(idx_bytes(np.zeros((3, 28, 28), np.uint8))[:-1]), "truncated"),
        ("t10k-images-idx3-ubyte", gzip.compress(b"<html>not here</html>", mtime=0), "idx"),
        ("t10k-images-idx3-ubyte", gzip.compress(bytes(4000), mtime=0)[:-9], "t10k-images-idx3-ubyte"),
    ],
    ids=["few labels", "label too large", "sizes", "truncated", "html", "cut gzip"],
)
def test_damaged_idx_files_are_named(tmp_path, stem, content, message):
    write_mnist(tmp_path)
    (tmp_path / f"{stem}.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        catalogue.get("mnist").open(tmp_path)


def test_a_missing_idx_file_is_named(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz"):
        catalogue.get("mnist").open(tmp_path)


def test_content_beyond_any_idx_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.data.catalogue.mnist._MOST_BYTES", 1000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(100_000), mtime=0))
    with pytest.raises(DataError, match="1,000"):
        read_content(tmp_path / "bomb.gz")


def records(images: np.ndarray, *labels: list[int]) -> bytes:
    """CIFAR's records by loops: the label bytes, then all red, all green and all blue values row by row."""
    out = bytearray()
    for index, image in enumerate(images):
        out.extend(column[index] for column in labels)
        for channel in range(3):
            for row in image:
                out.extend(int(pixel[channel]) for pixel in row)
    return bytes(out)


def colours(count: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_cifar10(root: Path) -> np.ndarray:
    images = colours(6)
    for batch in range(5):
        (root / f"data_batch_{batch + 1}.bin").write_bytes(records(images[batch : batch + 1], [batch]))
    (root / "test_batch.bin").write_bytes(records(images[5:], [9]))
    (root / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return images


def test_cifar10(tmp_path):
    images = write_cifar10(tmp_path)
    dataset = catalogue.get("cifar10").open(tmp_path)
    assert list(dataset.labels) == [*NAMES[:5], "truck"]
    assert list(dataset.manifest.column("split")) == ["train"] * 5 + ["test"]
    assert list(dataset.manifest.paths)[-2:] == ["train/00004", "test/00000"]
    for index, image in enumerate(images):
        np.testing.assert_array_equal(np.asarray(dataset.load(index)), image)


def write_cifar100(root: Path) -> np.ndarray:
    images = colours(3)
    (root / "train.bin").write_bytes(records(images[:2], [1, 0], [2, 0]))
    (root / "test.bin").write_bytes(records(images[2:], [1], [1]))
    (root / "fine_label_names.txt").write_text("apple\naquarium_fish\nbaby\n")
    (root / "coarse_label_names.txt").write_text("fruit_and_vegetables\npeople\n")
    return images


def test_cifar100(tmp_path):
    images = write_cifar100(tmp_path)
    dataset = catalogue.get("cifar100").open(tmp_path)
    assert list(dataset.labels) == ["baby", "apple", "aquarium_fish"]
    assert list(dataset.manifest.column("superclass")) == ["people", "fruit_and_vegetables", "people"]
    assert list(dataset.manifest.column("split")) == ["train", "train", "test"]
    np.testing.assert_array_equal(np.asarray(dataset.load(2)), images[2])


@pytest.mark.parametrize(
    ("name", "write", "file", "content", "message"),
    [
        ("cifar10", write_cifar10, "data_batch_3.bin", b"", r"data_batch_3\.bin"),
        ("cifar10", write_cifar10, "test_batch.bin", bytes(3072), r"test_batch\.bin"),
        ("cifar10", write_cifar10, "batches.meta.txt", b"airplane\n", "label 9"),
        ("cifar100", write_cifar100, "train.bin", bytes(3075), r"train\.bin"),
        ("cifar100", write_cifar100, "coarse_label_names.txt", b"people\n", "label 1"),
        ("cifar100", write_cifar100, "test.bin", None, r"test\.bin"),
    ],
)
def test_damaged_cifar_files_are_named(tmp_path, name, write, file, content, message):
    write(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        catalogue.get(name).open(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"), [("cifar10", "data_batch_1"), ("cifar100", "train")], ids=["cifar10", "cifar100"]
)
def test_pickles_are_refused_unread(tmp_path, name, file):
    class Trap:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'sprung')!r}, 'w')",))

    (tmp_path / file).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="binary"):
        catalogue.get(name).open(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_digits_are_those_of_scikit_learn():
    expected = load_digits()
    dataset = open_digits()
    assert len(dataset) == 1797
    assert dataset.classes == [str(digit) for digit in range(10)]
    np.testing.assert_array_equal(dataset.labels.astype(int), expected.target)
    for index in (0, 1000, 1796):
        image = np.asarray(dataset.load(index), dtype=float)
        np.testing.assert_allclose(image * 16 / 255, expected.images[index], atol=0.04)
