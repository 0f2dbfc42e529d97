"""What a gallery learns from itself: probabilities, the unknown, and staying honest with little data."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nearkin.confidence import SharpNED
from nearkin.confidence.ranks import covering_rank
from nearkin.errors import DataError
from nearkin.gallery.calibration import Calibration, class_sizes, fit_calibration
from nearkin.gallery.calibration.left_out import LeftOut
from nearkin.gallery.calibration.unknown import fit_horizon
from nearkin.gallery.store import ABSENT, UNLABELLED, Found, Sample
from nearkin.metrics import calibration_metrics
from nearkin.spaces import Sphere

SPACE = Sphere()


class FakeStore:
    """Vectors and labels in memory, searched by all distances; what the calibration asks of a store and no more."""

    kind = "exact"

    def __init__(self, vectors, labels):
        self._vectors = np.asarray(vectors, np.float32)
        self._names = list(dict.fromkeys(label for label in labels if label is not None))
        book = {name: code for code, name in enumerate(self._names)}
        self._codes = np.array([UNLABELLED if label is None else book[label] for label in labels], np.int32)
        self.changes = self.generation = len(self._codes)
        self.searched = 0

    def __len__(self):
        return len(self._codes)

    def classes(self):
        return list(self._names)

    def class_sizes(self):
        codes, counts = np.unique(self._codes, return_counts=True)
        return {self._names[code] if code >= 0 else None: int(count) for code, count in zip(codes, counts, strict=True)}

    def ids_where(self, where=None, *, label=...):
        return [f"i{place}" for place in np.flatnonzero(self._codes == self._names.index(label))]

    def vectors(self, ids):
        return self._vectors[[int(one[1:]) for one in ids]]

    def sample(self, n, seed, *, labelled=False):
        rows = np.flatnonzero(self._codes >= 0) if labelled else np.arange(len(self))
        if n < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, n, replace=False))
        return Sample(rows, self._vectors[rows], self._codes[rows])

    def search(self, queries, k, *, where=None, labelled=False, exclude=None):
        self.searched += len(queries)
        distances = SPACE.distance(torch.from_numpy(queries), torch.from_numpy(self._vectors)).numpy().copy()
        if labelled:
            distances[:, self._codes < 0] = np.inf
        if exclude is not None:
            distances[np.arange(len(queries)), exclude] = np.inf
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        near = np.take_along_axis(distances, order, axis=1)
        gone = ~np.isfinite(near)
        found = Found(near, np.where(gone, -1, order), np.where(gone, ABSENT, self._codes[order]))
        spare = ((0, 0), (0, k - near.shape[1]))
        return Found(
            np.pad(found.distances, spare, constant_values=np.inf),
            np.pad(found.keys, spare, constant_values=-1),
            np.pad(found.codes, spare, constant_values=ABSENT),
        )


def sizes_of(store):
    return class_sizes(store, np.empty(0, np.int32))


def clusters(classes, items, seed=0, noise=1.2, dimensions=16, centres_seed=0):
    centres = np.random.default_rng(centres_seed).normal(size=(classes, dimensions))
    labels = np.repeat(np.arange(classes), items)
    points = centres[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), dimensions))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), [f"c{one}" for one in labels]


@pytest.fixture(scope="module")
def gallery():
    return FakeStore(*clusters(40, 30))


@pytest.fixture(scope="module")
def fitted(gallery):
    return fit_calibration(gallery, SPACE)


def naive_likelihood(points, labels, temperature, sharpness):
    """The mean log-probability of each item's own class, itself left out, by loops over classes."""
    names, codes = np.unique(labels, return_inverse=True)
    squares = ((points[:, None].astype(np.float64) - points[None]) ** 2).sum(-1)
    np.fill_diagonal(squares, np.inf)
    limits = np.partition(squares, 199, axis=1)[:, 199]
    kernels = np.where(squares <= limits[:, None], np.exp(-squares / temperature), 0)
    sums = np.empty((len(points), len(names)))
    for code in range(len(names)):
        sums[:, code] = kernels[:, codes == code].sum(axis=1) / ((codes == code).sum() - (codes == code))
    shares = sums**sharpness / (sums**sharpness).sum(axis=1, keepdims=True)
    own = shares[np.arange(len(points)), codes]
    return np.log(np.maximum(own[own > 0], 1e-12)).mean()


def test_temperature_and_sharpness_are_the_likeliest(fitted):
    points, labels = clusters(40, 30)
    found = fitted.identification
    assert fitted.k == 200
    best = naive_likelihood(points, labels, found.temperature, found.sharpness)
    for factor in (0.7, 0.85, 1.2, 1.4):
        assert naive_likelihood(points, labels, factor * found.temperature, found.sharpness) < best
        assert naive_likelihood(points, labels, found.temperature, factor * found.sharpness) < best


def test_classes_of_equal_size_are_told_as_the_estimator_tells_them(gallery, fitted):
    found = fitted.identification
    estimator = SharpNED(space=SPACE, temperature=found.temperature, sharpness=found.sharpness)
    estimator.fit(*clusters(40, 30))
    queries, _ = clusters(40, 2, seed=5)
    verdicts = fitted.classify(gallery.search(queries, 200, labelled=True), gallery.classes(), sizes_of(gallery))
    expected = estimator.predict(queries)
    assert [verdict.label for verdict in verdicts] == expected.labels.tolist()
    assert [verdict.probability for verdict in verdicts] == pytest.approx(
        np.minimum(expected.confidence, found.ceiling), abs=2e-4
    )


def answers(store, fitted, queries, labels):
    """Accuracy, ECE and the like of queries with known labels."""
    verdicts = fitted.classify(store.search(queries, fitted.k, labelled=True), store.classes(), sizes_of(store))
    right = [verdict.label == label for verdict, label in zip(verdicts, labels, strict=True)]
    return calibration_metrics([verdict.probability for verdict in verdicts], right).values


@pytest.mark.parametrize("few", [3, 5, 10])
def test_a_class_enrolled_from_a_handful_is_not_outvoted(few):
    points, labels = clusters(40, 30)
    kept = [row for row, label in enumerate(labels) if label not in ("c0", "c1", "c2") or row % 30 < few]
    store = FakeStore(points[kept], [labels[row] for row in kept])
    fitted = fit_calibration(store, SPACE)
    queries, truth = clusters(40, 50, seed=3)
    verdicts = fitted.classify(store.search(queries, fitted.k, labelled=True), store.classes(), sizes_of(store))
    right = np.array([verdict.label == name for verdict, name in zip(verdicts, truth, strict=True)])
    assert right[:150].mean() > 0.6 * right[150:].mean()


def test_confidence_is_that_of_fresh_queries():
    store = FakeStore(*clusters(40, 30, noise=0.8))
    fitted = fit_calibration(store, SPACE)
    fresh = answers(store, fitted, *clusters(40, 50, seed=7, noise=0.8))
    assert 0.85 < fresh["accuracy"] < 0.97
    assert fresh["ECE"] < 0.05
    assert fitted.identification.accuracy == pytest.approx(fresh["accuracy"], abs=0.04)


def test_left_out_items_forecast_the_error_where_classes_overlap(gallery, fitted):
    # A third of the answers is wrong here, and a sharpened NED says somewhat less than it knows (about 0.045).
    fresh = answers(gallery, fitted, *clusters(40, 50, seed=7))
    assert 0.6 < fresh["accuracy"] < 0.8
    assert fitted.identification.accuracy == pytest.approx(fresh["accuracy"], abs=0.04)
    assert fitted.identification.ece == pytest.approx(fresh["ECE"], abs=0.03)
    assert fresh["ECE"] < 0.08


def test_reliability_counts_every_item_that_was_left_out(fitted):
    told = fitted.reliability()
    assert sum(part["count"] for part in told["bins"]) == told["items"] == 1200
    gaps = sum(part["count"] * abs(part["accuracy"] - part["confidence"]) for part in told["bins"]) / 1200
    assert told["ece"] == pytest.approx(gaps)
    assert all(part["low"] - 1e-6 <= part["confidence"] <= part["high"] + 1e-6 for part in told["bins"])


@pytest.mark.parametrize("accept", [0.8, 0.95])
def test_the_wanted_share_of_fresh_queries_is_known(gallery, accept):
    fitted = fit_calibration(gallery, SPACE, accept=accept)
    queries, _ = clusters(40, 50, seed=8)
    verdicts = fitted.classify(gallery.search(queries, fitted.k, labelled=True), gallery.classes(), sizes_of(gallery))
    share = np.mean([verdict.known for verdict in verdicts])
    # Both the threshold and the share are of finite samples.
    error = 4 * math.sqrt(accept * (1 - accept) * (1 / 2000 + 1 / 1200))
    assert abs(share - accept) < error


def test_strangers_are_rejected_as_forecast():
    store = FakeStore(*clusters(30, 20, noise=0.5))
    fitted = fit_calibration(store, SPACE)
    queries, _ = clusters(30, 20, seed=3, noise=0.5, centres_seed=99)
    found = store.search(queries, fitted.k, labelled=True)
    rejected = np.mean([not verdict.known for verdict in fitted.classify(found, store.classes(), sizes_of(store))])
    assert fitted.horizon.rejected == pytest.approx(rejected, abs=0.1)
    assert rejected > 0.5


@pytest.mark.parametrize("accept", [0.5, 0.55, 0.8, 0.95])
@pytest.mark.parametrize("n", [19, 20, 100, 101])
def test_classes_of_one_size_have_the_threshold_of_the_covering_rank(n, accept):
    distances = np.random.default_rng(n).random((n, 1)).astype(np.float32)
    own = np.zeros(n, np.int32)
    found = fit_horizon(LeftOut(own, np.ones(n, bool), distances, own[:, None], np.array([n])), accept)
    expected = np.sort(distances[:, 0])[covering_rank(n, accept) - 1]
    assert found.threshold == pytest.approx(float(expected))


def test_a_large_class_does_not_decide_what_is_known():
    tight, names = clusters(1, 1000, noise=0.2)
    loose, others = clusters(31, 10, noise=1.2)
    store = FakeStore(np.concatenate([tight, loose[10:]]), names + others[10:])
    fitted = fit_calibration(store, SPACE)
    queries, _ = clusters(31, 60, seed=4)
    found = store.search(queries[60:], fitted.k, labelled=True)
    known = [verdict.known for verdict in fitted.classify(found, store.classes(), sizes_of(store))]
    assert np.mean(known) == pytest.approx(0.95, abs=0.04)


def test_forecast_leaves_whole_classes_out():
    own = np.array([0, 0, 1, 2], np.int32)
    codes = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]], np.int32)
    distances = np.array([[1, 2, 9], [1, 2, 3], [1, 1, 1.5], [5, 6, 7]], np.float32)
    left_out = LeftOut(own, np.array([True, True, True, False]), distances, codes, np.bincount(own) + 1)
    found = fit_horizon(left_out, 0.5)
    # Nearest strangers: at 2, beyond 3, beyond 1.5, at 5; the threshold is 1.
    assert found.threshold == 1.0
    assert found.items == 3
    assert found.rejected == 1.0
    farther = fit_horizon(replace(left_out, distances=distances + np.float32([[0], [0], [0.6], [0]])), 0.75)
    # The threshold is 1.6 now, and the third has only a lower bound of 2.1.
    assert farther.threshold == pytest.approx(1.6)
    assert farther.rejected == 1.0
    assert fit_horizon(left_out, 0.9).threshold is None
    assert "9" in fit_horizon(left_out, 0.9).reason


def test_a_bound_that_does_not_reach_the_threshold_counts_as_accepted():
    own, mates = np.zeros(3, np.int32), np.ones(3, bool)
    codes = np.array([[0, 0], [0, 0], [0, 1]], np.int32)
    distances = np.array([[1, 2], [3, 3], [2, 9]], np.float32)
    assert fit_horizon(LeftOut(own, mates, distances, codes, np.bincount(own) + 1), 0.75).rejected == pytest.approx(
        1 / 3
    )


def test_json_gives_the_same_answers(gallery, fitted):
    plain = json.loads(json.dumps(fitted.to_dict(), allow_nan=False))
    again = Calibration.from_dict(plain)
    assert again == fitted
    assert again.key == fitted.key == plain["key"]
    assert len(json.dumps(plain)) < 12_000
    queries, _ = clusters(40, 1, seed=11)
    found = gallery.search(queries, fitted.k, labelled=True)
    assert again.classify(found, gallery.classes(), sizes_of(gallery)) == fitted.classify(
        found, gallery.classes(), sizes_of(gallery)
    )
    assert again.judge(0.5, 0.01) == fitted.judge(0.5, 0.01)
    assert again.reliability() == fitted.reliability()


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "calibration"),
        ([], "calibration"),
        ({"format": 99}, "99"),
        ({"format": 1, "items": 3}, "damaged"),
        (
            {"format": 1, "items": 3, "changes": 1, "generation": 1, "accept": 0.9, "k": 1, "identification": 3},
            "damaged",
        ),
    ],
)
def test_other_documents_are_refused(plain, message):
    with pytest.raises(DataError, match=message):
        Calibration.from_dict(plain)


TINY = {
    "empty": (np.empty((0, 3)), []),
    "one item": (np.eye(3)[:1], ["a"]),
    "two items": (np.eye(3)[:2], ["a", "a"]),
    "two classes of one": (np.eye(3)[:2], ["a", "b"]),
    "singletons": (np.random.default_rng(0).normal(size=(50, 3)), [f"c{one}" for one in range(50)]),
    "unlabelled": (np.random.default_rng(0).normal(size=(50, 3)), [None] * 50),
}


@pytest.mark.parametrize("name", TINY)
def test_too_little_gives_reasons_and_no_numbers(name):
    points, labels = TINY[name]
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-9)
    store = FakeStore(points, labels)
    fitted = fit_calibration(store, SPACE)
    assert store.searched == 0
    assert not fitted.complete
    query = np.array([[1.0, 0, 0]], np.float32)
    (verdict,) = fitted.classify(
        store.search(query, max(fitted.k, 10), labelled=True), store.classes(), sizes_of(store)
    )
    assert (verdict.probability, verdict.known, verdict.candidates) == (None, None, ())
    assert verdict.label == (labels[0] if name.startswith(("one", "two")) else verdict.label)
    assert (verdict.label is None) == (name in ("empty", "unlabelled"))
    assert "add" in verdict.reason
    ruling = fitted.judge(0.3, 0.01)
    assert (ruling.same, ruling.probability, ruling.threshold) == (None, None, None)
    assert "pairs" in ruling.reason
    assert list(fitted.reliability()) == ["reason"]
    assert Calibration.from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted


def test_one_class_says_known_but_not_how_probable():
    points, labels = clusters(1, 60)
    store = FakeStore(points, labels)
    fitted = fit_calibration(store, SPACE)
    (verdict,) = fitted.classify(store.search(points[:1], fitted.k, labelled=True), store.classes(), sizes_of(store))
    assert (verdict.label, verdict.probability, verdict.known) == ("c0", None, True)
    assert "2 classes" in verdict.reason
    assert fitted.horizon.rejected is None
    (far,) = fitted.classify(store.search(-points[:1], fitted.k, labelled=True), store.classes(), sizes_of(store))
    assert far.known is False


def test_equal_vectors_are_no_evidence():
    store = FakeStore(np.tile([[1.0, 0, 0]], (60, 1)), ["a", "b"] * 30)
    fitted = fit_calibration(store, SPACE)
    (verdict,) = fitted.classify(
        store.search(np.float32([[1, 0, 0]]), fitted.k, labelled=True), store.classes(), sizes_of(store)
    )
    assert verdict.probability == pytest.approx(0.5, abs=0.1)
    assert verdict.known is True
    ruling = fitted.judge(0.0, 0.1)
    assert ruling.threshold is None
    assert "copies" in ruling.reason
    assert ruling.probability == pytest.approx(0.5, abs=1e-3)


def test_separated_classes_never_give_certainty():
    points, labels = clusters(4, 10, noise=0.01)
    store = FakeStore(points, labels)
    fitted = fit_calibration(store, SPACE)
    verdicts = fitted.classify(store.search(points, fitted.k, labelled=True), store.classes(), sizes_of(store))
    assert max(verdict.probability for verdict in verdicts) == pytest.approx(41 / 42)
    assert 0 < fitted.judge(2.0, 0.1).probability < 0.01
    assert 0.99 < fitted.judge(0.0, 0.1).probability < 1


def test_single_items_are_counted_but_not_tested():
    points, labels = clusters(10, 10)
    extra, _ = clusters(5, 1, seed=4, centres_seed=50)
    fitted = fit_calibration(FakeStore(np.concatenate([points, extra]), labels + list("vwxyz")), SPACE)
    assert fitted.identification.items == 100
    assert any("5 classes have a single item" in note for note in fitted.notes)


def test_unlabelled_items_play_no_part(fitted):
    points, labels = clusters(40, 30)
    more, _ = clusters(40, 10, seed=20)
    mixed = fit_calibration(FakeStore(np.concatenate([points, more]), labels + [None] * 400), SPACE)
    assert mixed.identification == fitted.identification
    assert mixed.horizon == fitted.horizon
    assert mixed.items == 1600


def test_padding_and_unlabelled_neighbours_are_skipped(gallery, fitted):
    found = gallery.search(clusters(40, 1, seed=12)[0], 7, labelled=True)
    plain = fitted.classify(found, gallery.classes(), sizes_of(gallery))
    q = len(found.codes)
    padded = Found(
        np.concatenate([found.distances[:, :1], found.distances, np.full((q, 3), np.inf, np.float32)], axis=1),
        np.concatenate([found.keys[:, :1], found.keys, np.full((q, 3), -1)], axis=1),
        np.concatenate([np.full((q, 1), UNLABELLED), found.codes, np.full((q, 3), ABSENT)], axis=1).astype(np.int32),
    )
    assert fitted.classify(padded, gallery.classes(), sizes_of(gallery)) == plain
    assert all(1 <= len(verdict.candidates) <= 5 for verdict in plain)
    for verdict in plain:
        shares = [candidate.probability for candidate in verdict.candidates]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 1 + 1e-6
    nothing = Found(np.empty((2, 0), np.float32), np.empty((2, 0), np.int64), np.empty((2, 0), np.int32))
    assert [verdict.label for verdict in fitted.classify(nothing, gallery.classes(), sizes_of(gallery))] == [None, None]
    assert (
        fitted.classify(Found(*(part[:0] for part in (found.distances, found.keys, found.codes))), [], np.empty(0))
        == []
    )


def test_neighbours_beyond_k_are_left_alone(gallery):
    few = fit_calibration(FakeStore(*clusters(5, 8)), SPACE)
    assert few.k == 39
    found = gallery.search(clusters(40, 1, seed=12)[0], 60, labelled=True)
    shorter = Found(found.distances[:, :39], found.keys[:, :39], found.codes[:, :39])
    assert few.classify(found, gallery.classes(), sizes_of(gallery)) == few.classify(
        shorter, gallery.classes(), sizes_of(gallery)
    )


def test_gaps_in_what_a_search_finds_do_no_harm(gallery, fitted):
    class Forgetful(FakeStore):
        def search(self, queries, k, **options):
            found = super().search(queries, k, **options)
            lost = np.arange(len(queries)) % 10 == 0
            distances, codes = found.distances.copy(), found.codes.copy()
            distances[lost, 50:], codes[lost, 50:] = np.inf, ABSENT
            distances[lost & (np.arange(len(queries)) % 20 == 0)] = np.inf
            codes[lost & (np.arange(len(queries)) % 20 == 0)] = ABSENT
            return Found(distances, found.keys, codes)

    rough = fit_calibration(Forgetful(*clusters(40, 30)), SPACE)
    assert rough.identification.temperature == pytest.approx(fitted.identification.temperature, rel=0.3)
    assert rough.horizon.threshold == pytest.approx(fitted.horizon.threshold, rel=0.1)


def test_stale_after_a_tenth_has_changed(gallery, fitted):
    store = FakeStore(*clusters(40, 30))
    for changes, stale in ((1200, False), (1319, False), (1320, True), (1080, True)):
        store.changes = changes
        assert fitted.stale(store) is stale


def test_what_lacks_something_is_looked_at_sooner():
    store = FakeStore(*clusters(1, 10))
    small = fit_calibration(store, SPACE)
    assert not small.stale(store)
    store.changes += 1
    assert small.stale(store)
    large = replace(small, items=1_000_000, changes=0)
    store.changes = 9_999
    assert not large.stale(store)
    store.changes = 10_000
    assert large.stale(store)


def test_a_sample_is_compared_with_the_whole_gallery(gallery, fitted):
    part = fit_calibration(gallery, SPACE, points=300, seed=1)
    assert part.identification.items == 300
    assert part.k == 200
    assert part.identification.temperature == pytest.approx(fitted.identification.temperature, rel=0.3)
    assert part == fit_calibration(gallery, SPACE, points=300, seed=1)
    assert part.key != fit_calibration(gallery, SPACE, points=300, seed=2).key


@pytest.mark.parametrize(
    "options", [{"accept": 0}, {"accept": 1.0}, {"accept": "x"}, {"points": 0}, {"points": 1.5}, {"seed": -1}]
)
def test_bad_settings_are_refused(gallery, options):
    with pytest.raises(DataError, match=next(iter(options))):
        fit_calibration(gallery, SPACE, **options)


@pytest.mark.parametrize(("distance", "rate"), [(math.nan, 0.1), (-1, 0.1), ("x", 0.1), (1, 0), (1, 1), (1, math.nan)])
def test_bad_pairs_are_refused(fitted, distance, rate):
    with pytest.raises(DataError):
        fitted.judge(distance, rate)
