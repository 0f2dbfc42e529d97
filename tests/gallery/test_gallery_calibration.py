"""What a gallery learns from itself: probabilities, the unknown, and staying honest with little data."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.confidence import NED, SharpNED
from nearkin.confidence.conformal import covering_rank
from nearkin.confidence.ned import DEFAULT_WIDENING
from nearkin.errors import DataError
from nearkin.gallery.calibration import Calibration, class_sizes, fit_calibration
from nearkin.gallery.calibration.calibration import restored
from nearkin.gallery.calibration.identification import LeftOut
from nearkin.gallery.calibration.pairs import (
    PairDistances,
    PairRule,
    compare_pairs,
    fit_pair_rule,
    genuine_pairs,
    impostor_pairs,
)
from nearkin.gallery.calibration.unknown import fit_unknown_threshold
from nearkin.gallery.store import ABSENT, UNLABELLED, Found, Sample
from nearkin.metrics import calibration_metrics
from nearkin.spaces import Euclidean, Sphere

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
    learned = {"temperature": found.temperature, "sharpness": found.sharpness, "widening": found.widening}
    estimator = NED(space=SPACE, **learned)
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
    share = np.mean([verdict.known is not False for verdict in verdicts])
    # Both the threshold and the share are of finite samples.
    error = 4 * math.sqrt(accept * (1 - accept) * (1 / 2000 + 1 / 1200))
    assert abs(share - accept) < error


def test_strangers_are_rejected_as_forecast():
    store = FakeStore(*clusters(30, 20, noise=0.5))
    fitted = fit_calibration(store, SPACE)
    queries, _ = clusters(30, 20, seed=3, noise=0.5, centres_seed=99)
    found = store.search(queries, fitted.k, labelled=True)
    rejected = np.mean([verdict.known is False for verdict in fitted.classify(found, store.classes(), sizes_of(store))])
    assert fitted.horizon.rejected == pytest.approx(rejected, abs=0.1)
    assert rejected > 0.5


@pytest.mark.parametrize("accept", [0.5, 0.55, 0.8, 0.95])
@pytest.mark.parametrize("n", [19, 20, 100, 101])
def test_classes_of_one_size_have_the_threshold_of_the_covering_rank(n, accept):
    distances = np.random.default_rng(n).random((n, 1)).astype(np.float32)
    own = np.zeros(n, np.int32)
    found = fit_unknown_threshold(LeftOut(own, np.ones(n, bool), distances, own[:, None], np.array([n])), accept)
    expected = np.sort(distances[:, 0])[covering_rank(n, accept) - 1]
    assert found.threshold == pytest.approx(float(expected))


def test_a_large_class_does_not_decide_what_is_known():
    tight, names = clusters(1, 1000, noise=0.2)
    loose, others = clusters(31, 10, noise=1.2)
    store = FakeStore(np.concatenate([tight, loose[10:]]), names + others[10:])
    fitted = fit_calibration(store, SPACE)
    queries, _ = clusters(31, 60, seed=4)
    found = store.search(queries[60:], fitted.k, labelled=True)
    known = [verdict.known is not False for verdict in fitted.classify(found, store.classes(), sizes_of(store))]
    assert np.mean(known) == pytest.approx(0.95, abs=0.04)


def test_forecast_leaves_whole_classes_out():
    own = np.array([0, 0, 1, 2], np.int32)
    codes = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]], np.int32)
    distances = np.array([[1, 2, 9], [1, 2, 3], [1, 1, 1.5], [5, 6, 7]], np.float32)
    left_out = LeftOut(own, np.array([True, True, True, False]), distances, codes, np.bincount(own) + 1)
    found = fit_unknown_threshold(left_out, 0.5)
    # Nearest strangers: at 2, beyond 3, beyond 1.5, at 5; the threshold is 1.
    assert found.threshold == 1.0
    assert found.items == 3
    assert found.rejected == 1.0
    farther = fit_unknown_threshold(replace(left_out, distances=distances + np.float32([[0], [0], [0.6], [0]])), 0.75)
    # The threshold is 1.6 now, and the third has only a lower bound of 2.1.
    assert farther.threshold == pytest.approx(1.6)
    assert farther.rejected == 1.0
    assert fit_unknown_threshold(left_out, 0.9).threshold is None
    assert "9" in fit_unknown_threshold(left_out, 0.9).reason


def test_a_bound_that_does_not_reach_the_threshold_counts_as_accepted():
    own, mates = np.zeros(3, np.int32), np.ones(3, bool)
    codes = np.array([[0, 0], [0, 0], [0, 1]], np.int32)
    distances = np.array([[1, 2], [3, 3], [2, 9]], np.float32)
    assert fit_unknown_threshold(
        LeftOut(own, mates, distances, codes, np.bincount(own) + 1), 0.75
    ).rejected == pytest.approx(1 / 3)


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


def test_one_class_says_unknown_but_neither_known_nor_how_probable():
    points, labels = clusters(1, 60)
    store = FakeStore(points, labels)
    fitted = fit_calibration(store, SPACE)
    (verdict,) = fitted.classify(store.search(points[:1], fitted.k, labelled=True), store.classes(), sizes_of(store))
    assert (verdict.label, verdict.probability, verdict.known) == ("c0", None, None)
    assert "2 classes" in verdict.reason
    assert "Enrol more classes" in verdict.reason
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
    assert verdict.known is None
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


PAIR_SPACE = Euclidean()
CODES = st.lists(st.integers(0, 4), min_size=0, max_size=30).map(lambda codes: np.array(codes, np.int32))


def as_set(pairs):
    return {tuple(sorted(pair)) for pair in zip(*(side.tolist() for side in pairs), strict=True)}


def all_pairs(codes, same):
    return {(a, b) for a, b in itertools.combinations(range(len(codes)), 2) if (codes[a] == codes[b]) == same}


@given(CODES)
def test_few_items_give_every_pair_once(codes):
    rng = np.random.default_rng(0)
    genuine, weights = genuine_pairs(codes, 10_000, rng)
    assert as_set(genuine) == all_pairs(codes, True)
    assert len(genuine[0]) == len(weights) == len(as_set(genuine))
    impostors = impostor_pairs(codes, 10_000, rng)
    assert as_set(impostors) == all_pairs(codes, False)
    assert len(impostors[0]) == len(as_set(impostors))


@given(CODES)
def test_a_class_counts_as_many_times_as_it_has_items(codes):
    (left, _), weights = genuine_pairs(codes, 40, np.random.default_rng(1))
    for code, size in zip(*np.unique(codes, return_counts=True), strict=True):
        if size > 1:
            assert weights[codes[left] == code].sum() == pytest.approx(size)


def test_many_items_give_a_bounded_number_of_distinct_pairs():
    codes = np.random.default_rng(0).integers(0, 20, 2000).astype(np.int32)
    rng = np.random.default_rng(1)
    impostors = impostor_pairs(codes, 50_000, rng)
    assert len(as_set(impostors)) == len(impostors[0]) == 50_000
    assert (codes[impostors[0]] != codes[impostors[1]]).all()
    genuine, _ = genuine_pairs(codes, 20_000, rng)
    assert len(as_set(genuine)) == len(genuine[0]) == 20_000
    assert (codes[genuine[0]] == codes[genuine[1]]).all()
    counts = np.bincount(np.concatenate(genuine))
    assert set(counts.tolist()) == {20}


class Mates:
    """A large gallery of classes of two, of which a sample holds hardly a pair."""

    def __init__(self, classes):
        rng = np.random.default_rng(0)
        self.centres = rng.normal(size=(classes, 4)).astype(np.float32)
        self.points = np.repeat(self.centres, 2, axis=0) + 0.01 * rng.normal(size=(2 * classes, 4)).astype(np.float32)
        self.asked = 0

    def classes(self):
        return [f"c{code}" for code in range(len(self.centres))]

    def ids_where(self, where=None, *, label=...):
        self.asked += 1
        return [str(2 * int(label[1:]) + one) for one in (0, 1)]

    def vectors(self, ids):
        return self.points[[int(one) for one in ids]]


def test_mates_are_fetched_where_a_sample_holds_few():
    store = Mates(5000)
    rows = np.arange(0, 2000, 2)
    sample = Sample(rows, store.points[rows], (rows // 2).astype(np.int32))
    found = compare_pairs(store, PAIR_SPACE, sample, np.full(5000, 2), seed=0)
    assert store.asked == 500
    assert len(found.genuine) == 500
    assert np.median(found.genuine) < 0.1 < np.median(found.impostors)
    assert len(found.impostors) == 1000 * 999 // 2


def test_distances_are_those_of_the_space():
    points = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    codes = np.repeat(np.arange(4), 3).astype(np.int32)
    found = compare_pairs(None, PAIR_SPACE, Sample(np.arange(12), points, codes), np.full(4, 3), seed=0)
    table = PAIR_SPACE.distance(torch.from_numpy(points), torch.from_numpy(points)).numpy()
    same = codes[:, None] == codes
    upper = np.triu(np.ones((12, 12), bool), 1)
    assert np.sort(found.genuine) == pytest.approx(np.sort(table[same & upper]), abs=1e-5)
    assert np.sort(found.impostors) == pytest.approx(np.sort(table[~same & upper]), abs=1e-5)


def drawn(genuine, impostors, seed=0):
    rng = np.random.default_rng(seed)
    near = rng.normal(1.0, 0.3, genuine).clip(0).astype(np.float32)
    far = rng.normal(2.0, 0.4, impostors).clip(0).astype(np.float32)
    return PairDistances(near, np.ones(genuine), far)


@pytest.mark.parametrize("rate", [3e-5, 1e-4, 1e-3, 0.01, 0.0371, 0.2])
def test_false_accept_rate_holds_on_fresh_pairs(rate):
    fitted = fit_pair_rule(drawn(5_000, 100_000))
    ruling = fitted.judge(1.0, rate)
    fitted_share = (drawn(5_000, 100_000).impostors <= ruling.threshold).mean()
    assert fitted_share <= rate
    assert fitted_share >= 0.9 * rate - 1 / 100_000
    fresh = drawn(50_000, 400_000, seed=1)
    share = (fresh.impostors <= ruling.threshold).mean()
    # Four deviations of the fitted and of the fresh share, and the step of the table.
    assert abs(share - rate) < 4 * math.sqrt(rate * (1 / 100_000 + 1 / 400_000)) + 0.1 * rate
    assert (fresh.genuine <= ruling.threshold).mean() == pytest.approx(ruling.true_accept_rate, abs=0.03)


@given(
    st.lists(st.integers(0, 20), min_size=30, max_size=200),
    st.floats(1e-3, 0.999),
)
@settings(max_examples=200)
def test_the_rate_is_never_exceeded_on_the_fitted_pairs(steps, rate):
    impostors = np.array(steps, np.float32) / 7
    fitted = fit_pair_rule(PairDistances(np.linspace(0, 1, 40, dtype=np.float32), np.ones(40), impostors))
    ruling = fitted.judge(0.5, rate)
    if ruling.threshold is None:
        assert ruling.same is None
        assert ruling.reason
        assert rate * len(impostors) < 3 + 1e-9 or (impostors == 0).mean() > rate
    else:
        assert (impostors <= ruling.threshold).mean() <= rate
        assert ruling.same == (ruling.threshold >= 0.5)


@pytest.mark.parametrize(("rate", "promised"), [(0.003, True), (0.0029, False), (1e-9, False)])
def test_a_rate_below_the_rule_of_three_is_refused(rate, promised):
    ruling = fit_pair_rule(drawn(100, 1000)).judge(0.5, rate)
    assert (ruling.threshold is not None) == promised
    assert (ruling.same is not None) == promised
    assert ruling.probability is not None
    assert ("0.003" in ruling.reason) != promised


def test_the_probability_is_calibrated_at_equal_priors():
    fitted = fit_pair_rule(drawn(5_000, 100_000))
    fresh = drawn(20_000, 20_000, seed=2)
    sure = np.array([fitted.judge(float(d), 0.1).probability for d in np.concatenate([fresh.genuine, fresh.impostors])])
    same = np.arange(40_000) < 20_000
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (sure >= low) & (sure < low + 0.2)
        assert sure[inside].mean() == pytest.approx(same[inside].mean(), abs=0.06)


def test_the_probability_falls_with_the_distance_and_stays_inside():
    fitted = fit_pair_rule(drawn(500, 1000))
    found = [fitted.judge(distance, 0.1).probability for distance in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 1e6, 1e300)]
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < found[0] < 1


def test_weights_count_in_the_line_and_in_the_true_accepts():
    near, far = np.float32([0.1] * 30), np.float32([1.9] * 30)
    impostors = np.linspace(1, 3, 100, dtype=np.float32)
    light = fit_pair_rule(PairDistances(np.concatenate([near, far]), np.repeat([1.0, 0.01], 30), impostors))
    even = fit_pair_rule(PairDistances(np.concatenate([near, far]), np.ones(60), impostors))
    assert light.judge(0.5, 0.1).true_accept_rate == pytest.approx(1 / 1.01, abs=1e-4)
    assert even.judge(0.5, 0.1).true_accept_rate == 0.5
    assert light.judge(1.9, 0.1).probability < even.judge(1.9, 0.1).probability


def test_labels_that_mean_nothing_give_no_evidence():
    both = np.random.default_rng(0).normal(2, 0.1, 2000).astype(np.float32)
    fitted = fit_pair_rule(PairDistances(both[:1000] + 0.05, np.ones(1000), both[1000:]))
    assert fitted.slope == 0
    assert fitted.judge(0.0, 0.1).probability == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(("genuine", "impostors"), [(0, 0), (29, 1000), (1000, 29)])
def test_too_few_pairs_give_a_reason(genuine, impostors):
    ruling = fit_pair_rule(drawn(genuine, impostors)).judge(0.5, 0.1)
    assert (ruling.same, ruling.probability, ruling.threshold) == (None, None, None)
    assert f"{genuine:,}" in ruling.reason
    assert f"{impostors:,}" in ruling.reason


def test_the_table_is_small_and_reads_back():
    fitted = fit_pair_rule(drawn(5_000, 100_000))
    assert len(fitted.thresholds) < 200
    assert restored(PairRule, json.loads(json.dumps(asdict(fitted)))) == fitted
    assert list(fitted.thresholds) == sorted(fitted.thresholds)


def test_a_calibration_of_before_answers_as_it_did(gallery, fitted):
    plain = fitted.to_dict()
    old = {name: value for name, value in plain["identification"].items() if name not in ("widening", "usual")}
    again = Calibration.from_dict({**plain, "identification": old})
    found = again.identification
    assert found.widening == 0
    assert not {"widening", "usual"} & set(again.to_dict()["identification"])  # so that its key stays
    estimator = SharpNED(space=SPACE, temperature=found.temperature, sharpness=found.sharpness)
    estimator.fit(*clusters(40, 30))
    queries, _ = clusters(40, 2, seed=5)
    verdicts = again.classify(gallery.search(queries, 200, labelled=True), gallery.classes(), sizes_of(gallery))
    expected = np.minimum(estimator.predict(queries).confidence, found.ceiling)
    assert [verdict.probability for verdict in verdicts] == pytest.approx(expected, abs=2e-4)


def test_a_gallery_says_how_its_probabilities_were_fitted(fitted):
    assert fitted.identification.widening == DEFAULT_WIDENING
    assert "far" in fitted.reliability()["fitted_by"]
    assert Calibration.from_dict(fitted.to_dict()) == fitted
