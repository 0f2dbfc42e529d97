"""Validation inputs that are kept: the same bits, decoded once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data import ArrayStore, Dataset, Manifest
from nearkin.data.stores import FolderStore
from nearkin.errors import DataError
from nearkin.models import ModelSection, build_embedder
from nearkin.training.validation import ValidationInputs


class CountingStore(ArrayStore):
    """Counts how often an item is read."""

    reads = 0

    def read(self, path):
        self.reads += 1
        return super().read(path)


def images(count=70, channels=3):
    """Images of different sizes, more than two batches of them."""
    rng = np.random.default_rng(0)
    shapes = [(int(h), int(w)) if channels == 1 else (int(h), int(w), 3) for h, w in rng.integers(14, 30, (count, 2))]
    pixels = {f"{place}.png": rng.integers(0, 256, shape, dtype=np.uint8) for place, shape in enumerate(shapes)}
    labels = [f"class {place % 5}" for place in range(count)]
    return Dataset(Manifest.from_rows(list(pixels), labels), CountingStore(pixels))


def model(**changes):
    embedder = build_embedder(ModelSection(**{"backbone": "conv4", "size": 16, "dimension": 6} | changes))
    with torch.no_grad():  # batch norms that matter, as after training
        embedder(torch.rand(16, embedder.spec.channels, 16, 16))
    return embedder


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"fit": "pad"}, {"pooling": "flatten", "dimension": None}])
def test_the_same_bits_as_encoding_the_data_set(channels, settings):
    embedder, dataset = model(channels=channels, **settings), images(channels=1)
    inputs = ValidationInputs(dataset, embedder.spec)
    for step in range(3):
        with torch.no_grad():
            for parameter in embedder.parameters():
                parameter.add_(0.01 * step)
        np.testing.assert_array_equal(inputs.encode(embedder), embedder.encode(dataset, progress=False))


def test_colour_images_keep_the_same_bits():
    embedder, dataset = model(), images()
    inputs = ValidationInputs(dataset, embedder.spec)
    for _ in range(2):
        np.testing.assert_array_equal(inputs.encode(embedder), embedder.encode(dataset, progress=False))


def test_items_are_read_once():
    embedder, dataset = model(), images()
    inputs = ValidationInputs(dataset, embedder.spec)
    assert dataset.store.reads == 0
    inputs.encode(embedder)
    first = dataset.store.reads
    inputs.encode(embedder)
    assert first in (70, 71)  # one is looked at for its size
    assert dataset.store.reads == first


@pytest.mark.parametrize(("most", "kept"), [(70 * 3 * 16 * 16, True), (70 * 3 * 16 * 16 - 1, False)])
def test_what_does_not_fit_is_decoded_anew(most, kept):
    embedder, dataset = model(), images()
    inputs = ValidationInputs(dataset, embedder.spec, most=most)
    expected = embedder.encode(dataset, progress=False)
    found = [inputs.encode(embedder)]
    before = dataset.store.reads
    found.append(inputs.encode(embedder))
    assert (dataset.store.reads == before) == kept
    for rows in found:
        np.testing.assert_array_equal(rows, expected)


def test_no_items_give_no_rows():
    embedder, dataset = model(), images().select(np.empty(0, np.int64))
    assert ValidationInputs(dataset, embedder.spec).encode(embedder).shape == (0, 6)


def test_recordings_are_kept_too(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    rng, names = np.random.default_rng(0), [f"{place}.wav" for place in range(34)]
    for place, name in enumerate(names):
        soundfile.write(tmp_path / name, rng.normal(0, 0.1, 9000 + 300 * place), 16000)
    dataset = Dataset(Manifest.from_rows(names, ["one", "other"] * 17), FolderStore(tmp_path), kind="audio")
    embedder = build_embedder(ModelSection(backbone="tdnn", pooling="stats", dimension=5), audio_seconds=0.5)
    inputs = ValidationInputs(dataset, embedder.spec)
    for _ in range(2):
        np.testing.assert_array_equal(inputs.encode(embedder), embedder.encode(dataset, progress=False))


def test_data_of_another_kind_is_refused():
    recordings = Dataset(Manifest.from_rows(["a.wav", "b.wav"], ["x", "y"]), ArrayStore({}), kind="audio")
    with pytest.raises(DataError, match="audio"):
        ValidationInputs(recordings, model().spec)
