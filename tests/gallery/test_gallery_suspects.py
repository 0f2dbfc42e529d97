"""Items whose neighbourhood disagrees with their label."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.errors import DataError
from nearkin.gallery import suspects
from nearkin.gallery.calibration import fit_calibration
from nearkin.gallery.store import ABSENT, Found, Sample
from nearkin.gallery.suspects import suspicious_labels
from nearkin.gallery.values import Item
from nearkin.spaces import Euclidean

SPACE = Euclidean()


class FakeStore:
    """Labelled vectors in memory, searched by all distances."""

    kind = "exact"
    generation = 1

    def __init__(self, vectors, labels):
        self.points = np.asarray(vectors, np.float32)
        self.names = sorted(set(labels))
        self.codes = np.array([self.names.index(label) for label in labels], np.int32)
        self.changes = len(labels)

    def __len__(self):
        return len(self.codes)

    def classes(self):
        return list(self.names)

    def class_sizes(self):
        return dict(zip(self.names, np.bincount(self.codes, minlength=len(self.names)).tolist(), strict=True))

    def sample(self, n, seed, *, labelled=False):
        rows = np.arange(len(self))
        if n < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, n, replace=False))
        return Sample(rows, self.points[rows], self.codes[rows])

    def items(self, keys):
        return [Item(str(key), self.names[self.codes[key]]) for key in keys.tolist()]

    def search(self, queries, k, *, where=None, labelled=False, exclude=None):
        distances = SPACE.distance(torch.from_numpy(queries), torch.from_numpy(self.points)).numpy().copy()
        if exclude is not None:
            distances[np.arange(len(queries)), exclude] = np.inf
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        near = np.take_along_axis(distances, order, axis=1)
        return Found(near, order, np.where(np.isfinite(near), self.codes[order], ABSENT).astype(np.int32))


def clusters(classes=12, items=25, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), items)
    points = rng.normal(size=(classes, 12))[labels] + noise * rng.normal(size=(len(labels), 12))
    return points, [f"c{code:02d}" for code in labels]


def spoiled(share=0.05, **options):
    points, truth = clusters(**options)
    rng = np.random.default_rng(1)
    wrong = rng.choice(len(truth), round(share * len(truth)), replace=False)
    labels = list(truth)
    for row in wrong.tolist():
        labels[row] = rng.choice(sorted(set(truth) - {truth[row]}))
    return FakeStore(points, labels), truth, {str(row) for row in wrong.tolist()}


def test_wrong_labels_are_found_and_the_right_ones_suggested():
    store, truth, wrong = spoiled()
    found = suspicious_labels(store, fit_calibration(store, SPACE))
    assert {suspect.item.id for suspect in found} <= wrong
    # The rule is cautious: wrong labels that happen to have company of their kind are passed over.
    assert len(found) >= 0.7 * len(wrong)
    for suspect in found:
        assert suspect.suggested == truth[int(suspect.item.id)] != suspect.item.label
        assert suspect.probability > 0.5 > suspect.own


def test_order_is_that_of_the_odds():
    store, _, _ = spoiled(noise=0.9)
    found = suspicious_labels(store, fit_calibration(store, SPACE))
    odds = [np.log(suspect.probability) - np.log(max(suspect.own, 1e-12)) for suspect in found]
    assert len(odds) > 5
    assert odds == sorted(odds, reverse=True)
    # Half of what the label has, or more, is what wrong labels give to each of 12 classes.
    assert all(suspect.own < 0.1 / 11 for suspect in found)
    first = suspicious_labels(store, fit_calibration(store, SPACE), limit=3)
    assert first == found[:3]


def test_clean_labels_raise_few_suspicions():
    store = FakeStore(*clusters())
    assert len(suspicious_labels(store, fit_calibration(store, SPACE))) <= 2


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_do_not_matter(chunk, monkeypatch):
    store, _, _ = spoiled(classes=5, items=12)
    fitted = fit_calibration(store, SPACE)
    whole = suspicious_labels(store, fitted)
    monkeypatch.setattr(suspects, "_CHUNK", chunk)
    found = suspicious_labels(store, fitted)
    assert [suspect.item for suspect in found] == [suspect.item for suspect in whole]
    assert [suspect.own for suspect in found] == pytest.approx([suspect.own for suspect in whole], abs=1e-6)


def test_an_item_alone_in_its_class_is_no_suspect():
    points, labels = clusters()
    labels[3] = "alone"
    store = FakeStore(points, labels)
    assert all(suspect.item.id != "3" for suspect in suspicious_labels(store, fit_calibration(store, SPACE)))


def test_of_a_very_large_gallery_a_sample_is_looked_at(monkeypatch):
    store, _, wrong = spoiled()
    monkeypatch.setattr(suspects, "MOST_ITEMS", 100)
    found = suspicious_labels(store, fit_calibration(store, SPACE))
    assert 0 < len(found) < len(wrong)


def test_without_probabilities_it_says_what_is_missing():
    store = FakeStore(*clusters(classes=2, items=3))
    with pytest.raises(DataError, match="30"):
        suspicious_labels(store, fit_calibration(store, SPACE))


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": 1.5}])
def test_bad_settings_are_refused(options):
    store = FakeStore(*clusters())
    with pytest.raises(DataError, match=next(iter(options))):
        suspicious_labels(store, fit_calibration(store, SPACE), **options)
