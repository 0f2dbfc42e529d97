"""The data sets of which real data is at hand: as many items, classes and columns as published, and they decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearkin.data import open_data
from nearkin.data.catalogue import cache_directory, mnist
from nearkin.data.catalogue.mnist import find_file

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("name", "items", "classes", "split", "columns"),
    [
        ("cub200", 11_788, 200, {"train": 100, "test": 100}, set()),
        ("cifar100", 13_000, 100, {"train": 100, "test": 100}, set()),
        ("omniglot", 32_460, 1_623, {"train": 964, "test": 659}, {"alphabet"}),
        ("pacs", 9_991, 7, {}, {"domain"}),
        ("audiomnist", 1_800, 60, {"train": 40, "test": 20}, {"digit"}),
    ],
)
def test_zips_of_real_data(data_root, name, items, classes, split, columns):
    if not (data_root / f"{name}.zip").is_file():
        pytest.skip(f"{name}.zip is not in the data directory")
    dataset = open_data(name, data_root=data_root)
    assert (len(dataset), len(dataset.classes), dataset.name) == (items, classes, name)
    assert columns <= set(dataset.manifest.columns)
    for part, count in split.items():
        assert len(dataset.where(split=part).classes) == count
    for index in np.linspace(0, items - 1, 5).astype(int):
        item = dataset.load(int(index))
        size = item.shape[0] if dataset.kind == "audio" else min(item.size)
        assert size >= 32


def test_fashion_mnist_as_published(monkeypatch):
    places = [cache_directory() / "fashion-mnist", Path("/") / mnist._INSTALLED]
    folder = next((place for place in places if find_file(place, "t10k-images-idx3-ubyte")), None)
    if folder is None:
        pytest.skip("Fashion-MNIST has not been fetched yet: run the demo once")
    dataset = mnist.open_fashion_folder(folder)
    assert (len(dataset), len(dataset.classes)) == (70_000, 10)
    assert len(dataset.where(split="train")) == 60_000
    assert set(np.bincount(dataset.class_ids())) == {7_000}
    assert list(dataset.where(split="test").labels[:3]) == ["Ankle boot", "Pullover", "Trouser"]
    assert dataset.load(69_999).size == (28, 28)
