"""Groups of items that are almost the same."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.gallery import review
from nearkin.gallery.calibration import fit_calibration
from nearkin.gallery.review import find_duplicates, suspicious_labels
from nearkin.gallery.store import ABSENT, UNLABELLED, Found, Sample
from nearkin.gallery.values import Item
from nearkin.spaces import Euclidean

SPACE = Euclidean()


class FakeStore:
    """Vectors in memory, searched by all distances; items are named by their row."""

    kind = "exact"
    space = SPACE

    def __init__(self, vectors):
        points = np.asarray(vectors, np.float32)
        self.points = points[:, None] if points.ndim == 1 else points

    def __len__(self):
        return len(self.points)

    def sample(self, n, seed, *, labelled=False):
        rows = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        return Sample(rows, self.points[rows], np.full(len(rows), UNLABELLED, np.int32))

    def items(self, keys):
        return [None if key < 0 else Item(f"{key:05d}", None) for key in keys.tolist()]

    def batches(self, size=1024):
        for start in range(0, len(self), size):
            rows = np.arange(len(self))[start : start + size]
            yield self.items(rows), self.points[rows]

    def search(self, queries, k, *, where=None, labelled=False, exclude=None):
        distances = SPACE.distance(torch.from_numpy(queries), torch.from_numpy(self.points)).numpy().copy()
        if exclude is not None:
            distances[np.arange(len(queries)), exclude] = np.inf
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        near = np.take_along_axis(distances, order, axis=1)
        keys = np.where(np.isfinite(near), order, -1)
        spare = ((0, 0), (0, k - near.shape[1]))
        codes = np.where(keys < 0, ABSENT, UNLABELLED).astype(np.int32)
        return Found(
            np.pad(near, spare, constant_values=np.inf),
            np.pad(keys, spare, constant_values=-1),
            np.pad(codes, spare, constant_values=ABSENT),
        )


def rows_of(groups):
    return [tuple(int(item.id) for item in group.items) for group in groups]


def test_copies_are_found_and_nothing_else():
    points = np.random.default_rng(0).normal(size=(600, 16))
    points[500] = points[3]
    points[501] = points[3]
    points[10] = points[400] + 1e-2
    found = find_duplicates(FakeStore(points))
    assert rows_of(found) == [(3, 500, 501), (10, 400)]
    assert found[0].distance == pytest.approx(0, abs=1e-3)
    assert found[1].distance == pytest.approx(0.04, abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_clusters_are_no_duplicates(seed):
    rng = np.random.default_rng(seed)
    points = np.repeat(rng.normal(size=(30, 16)), 20, axis=0) + 0.2 * rng.normal(size=(600, 16))
    assert find_duplicates(FakeStore(points)) == []


@given(st.lists(st.integers(0, 60), min_size=2, max_size=9), st.integers(0, 6))
@settings(max_examples=60)
def test_groups_are_those_that_chains_join(places, reach):
    found = find_duplicates(FakeStore(np.array(places, float)), distance=reach + 0.5)
    rounding = 1e-3 * float(np.median(places))
    member = list(range(len(places)))
    for a, b in itertools.combinations(range(len(places)), 2):
        if abs(places[a] - places[b]) <= max(reach + 0.5, rounding):
            member = [member[a] if one == member[b] else one for one in member]
    expected = [
        tuple(row for row in range(len(places)) if member[row] == name)
        for name in dict.fromkeys(member)
        if member.count(name) > 1
    ]
    assert sorted(rows_of(found)) == sorted(expected)
    for group, rows in zip(found, rows_of(found), strict=True):
        line = np.sort(np.array(places)[list(rows)])
        assert group.distance == pytest.approx(np.diff(line).max(), abs=1e-5)
    assert [group.distance for group in found] == sorted(group.distance for group in found)


def test_many_copies_are_one_group():
    points = np.concatenate([np.ones((40, 3)), 5 + np.random.default_rng(0).normal(size=(40, 3))])
    assert rows_of(find_duplicates(FakeStore(points), distance=0)) == [tuple(range(40))]


def test_a_gallery_of_copies_alone_is_one_group():
    assert rows_of(find_duplicates(FakeStore(np.ones((5, 2))))) == [(0, 1, 2, 3, 4)]
    assert rows_of(find_duplicates(FakeStore(np.zeros((5, 2))))) == [(0, 1, 2, 3, 4)]


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_items_have_no_duplicates(count):
    assert find_duplicates(FakeStore(np.ones((count, 2)))) == []


def test_limit_keeps_the_closest():
    points = np.array([0, 0.3, 10, 10.1, 20, 20.2])
    store = FakeStore(points)
    assert rows_of(find_duplicates(store, distance=0.5)) == [(2, 3), (4, 5), (0, 1)]
    assert rows_of(find_duplicates(store, distance=0.5, limit=1)) == [(2, 3)]


def test_an_index_that_misses_the_item_itself_still_gives_pairs():
    class Blind(FakeStore):
        def search(self, queries, k, **options):
            if "exclude" not in options:
                options["exclude"] = np.array([int(np.abs(self.points - one).sum(axis=1).argmin()) for one in queries])
            return super().search(queries, k, **options)

    points = np.random.default_rng(0).normal(size=(50, 8))
    points[7] = points[30] + 0.05
    assert rows_of(find_duplicates(Blind(points))) == [(7, 30)]


@pytest.mark.parametrize("options", [{"distance": -1}, {"distance": float("nan")}, {"distance": "x"}, {"limit": 0}])
def test_bad_settings_are_refused(options):
    with pytest.raises(DataError, match=next(iter(options))):
        find_duplicates(FakeStore(np.ones((3, 2))), **options)


@pytest.mark.data
def test_photographs_saved_again_are_found(data_root):
    from nearkin.data.sources import open_data
    from nearkin.gallery.model import QueryEncoder, open_model

    dataset = open_data("cub200", data_root=data_root)
    images = [dataset.image(row).convert("RGB") for row in range(0, 3000, 75)]
    copies = []
    for image in images[:8]:
        kept = io.BytesIO()
        image.save(kept, "JPEG", quality=85)
        copies.append(Image.open(kept).convert("RGB"))
    points = QueryEncoder(open_model("efficientnet-lite0")).encode([*images, *copies])
    found = find_duplicates(FakeStore(points))
    assert sorted(rows_of(found)) == [(row, 40 + row) for row in range(8)]


class LabelledStore:
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
    return LabelledStore(points, labels), truth, {str(row) for row in wrong.tolist()}


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
    store = LabelledStore(*clusters())
    assert len(suspicious_labels(store, fit_calibration(store, SPACE))) <= 2


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_do_not_matter(chunk, monkeypatch):
    store, _, _ = spoiled(classes=5, items=12)
    fitted = fit_calibration(store, SPACE)
    whole = suspicious_labels(store, fitted)
    monkeypatch.setattr(review, "_SUSPECT_CHUNK", chunk)
    found = suspicious_labels(store, fitted)
    assert [suspect.item for suspect in found] == [suspect.item for suspect in whole]
    assert [suspect.own for suspect in found] == pytest.approx([suspect.own for suspect in whole], abs=1e-6)


def test_an_item_alone_in_its_class_is_no_suspect():
    points, labels = clusters()
    labels[3] = "alone"
    store = LabelledStore(points, labels)
    assert all(suspect.item.id != "3" for suspect in suspicious_labels(store, fit_calibration(store, SPACE)))


def test_of_a_very_large_gallery_a_sample_is_looked_at(monkeypatch):
    store, _, wrong = spoiled()
    monkeypatch.setattr(review, "MOST_ITEMS", 100)
    found = suspicious_labels(store, fit_calibration(store, SPACE))
    assert 0 < len(found) < len(wrong)


def test_without_probabilities_it_says_what_is_missing():
    store = LabelledStore(*clusters(classes=2, items=3))
    with pytest.raises(DataError, match="30"):
        suspicious_labels(store, fit_calibration(store, SPACE))


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": 1.5}])
def test_bad_settings_of_suspects_are_refused(options):
    store = LabelledStore(*clusters())
    with pytest.raises(DataError, match=next(iter(options))):
        suspicious_labels(store, fit_calibration(store, SPACE), **options)
