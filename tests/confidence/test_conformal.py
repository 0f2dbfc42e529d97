"""Conformal sets against naive loops, and their coverage on data drawn again and again."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.confidence import NED, DudaniVote, KNNVote, NearestNeighbour, PrototypeRatio, PrototypeSoftmax
from nearkin.confidence.conformal import ConformalSets, _stratified, covering_rank, needed_points
from nearkin.errors import DataError

CLASSES = 6
MEANS = np.random.default_rng(7).normal(size=(CLASSES, 3)) * 1.5


def draw(labels, seed, spread=1.0):
    rng = np.random.default_rng(seed)
    labels = np.asarray(labels)
    return (MEANS[labels % CLASSES] + spread * rng.normal(size=(len(labels), 3))).astype(np.float32), labels


def balanced(per_class):
    return np.repeat(np.arange(CLASSES), per_class)


def euclidean(kind, **parameters):
    return kind(space="euclidean", **parameters)


ESTIMATORS = {
    "ned": lambda: euclidean(NED, k=15),
    "ned all": lambda: euclidean(NED, k="all"),
    "knn": lambda: euclidean(KNNVote, k=7),
    "1nn": lambda: euclidean(NearestNeighbour),
    "dudani": lambda: euclidean(DudaniVote, k=7),
    "prototypes": lambda: euclidean(PrototypeSoftmax),
    "prototype ratio": lambda: euclidean(PrototypeRatio),
}


def naive_sets(fitted, points, labels, queries):
    """Loops over calibration points and classes, on dense probabilities."""
    estimator, scores = fitted.estimator_, []
    names = estimator.classes_.tolist()
    table = estimator.predict(points[fitted.rows_]).probabilities.dense().astype(np.float64)
    for row, label in zip(table, labels[fitted.rows_].tolist(), strict=True):
        scores.append(1 - row[names.index(label)] if label in names else 1.0)
    rank = math.ceil(Fraction(str(fitted.coverage)) * (len(scores) + 1))
    threshold = sorted(scores)[rank - 1]
    sets = []
    for row in estimator.predict(queries).probabilities.dense().astype(np.float64):
        inside = {name for name, value in zip(names, row, strict=True) if 1 - value <= threshold}
        sets.append(set(fitted.classes_.tolist()) if threshold == 1 else inside)
    return sets, threshold


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.99])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_sets_are_those_of_a_loop(name, coverage):
    points, labels = draw(balanced(40), 0)
    queries, truth = draw(balanced(10), 1)
    fitted = ConformalSets(estimator=ESTIMATORS[name](), coverage=coverage, seed=3).fit(points, labels)
    found = fitted.predict(queries)
    expected, threshold = naive_sets(fitted, points, labels, queries)
    assert fitted.threshold_ == pytest.approx(threshold, abs=1e-7)
    assert [set(found.labels(i).tolist()) for i in range(len(found))] == expected
    assert found.sizes.tolist() == [len(one) for one in expected]
    assert found.contains(truth).tolist() == [label in one for label, one in zip(truth, expected, strict=True)]
    assert found.everything.tolist() == [len(one) == CLASSES and threshold == 1 for one in expected]


def coverage_over_seeds(make, draw_both, trials=240):
    """Mean coverage over trials, and how far it may be from the exact one: 4 standard errors."""
    shares = []
    for seed in range(trials):
        (points, labels), (queries, truth) = draw_both(seed)
        shares.append(make(seed).fit(points, labels).predict(queries).contains(truth).mean())
    return np.mean(shares), 4 * np.std(shares) / math.sqrt(trials)


def divided_alike(seed):
    return draw(balanced(20), seed), draw(balanced(20), seed + 10_000)


def chance(seed):
    rng = np.random.default_rng(seed)
    labels, truth = rng.integers(0, CLASSES, 50), rng.integers(0, CLASSES, 150)
    return draw(labels, seed + 20_000), draw(truth, seed + 30_000)


@pytest.mark.parametrize("coverage", [0.7, 0.9])
@pytest.mark.parametrize("kind", ["good", "bad"])
def test_coverage_is_the_stated_one_for_any_estimator(kind, coverage):
    """The bad one has a temperature at which it is far too sure, or rather hardly knows anything."""
    temperature = {"good": 2.0, "bad": 200.0}[kind]

    def make(seed):
        estimator = euclidean(NED, k="all", temperature=temperature)
        return ConformalSets(estimator=estimator, coverage=coverage, split="stratified", seed=seed)

    mean, band = coverage_over_seeds(make, divided_alike)
    exact = covering_rank(60, coverage) / 61  # without ties the coverage is this on average, not merely at least
    assert band < 0.018  # a rank that is one off would move the mean by as much
    assert abs(mean - exact) < band


@pytest.mark.parametrize("estimator", ["knn", "prototypes"])
def test_coverage_is_at_least_the_stated_one_with_ties(estimator):
    mean, band = coverage_over_seeds(
        lambda seed: ConformalSets(estimator=ESTIMATORS[estimator](), seed=seed), divided_alike
    )
    assert mean > 0.9 - band


def test_only_a_random_split_holds_where_class_sizes_are_chance():
    def make(split):
        return lambda seed: ConformalSets(
            estimator=euclidean(NED, k="all", temperature=2.0), split=split, seed=seed, coverage=0.8
        )

    mean, band = coverage_over_seeds(make("random"), chance)
    assert mean > 0.8 - band
    stratified, _ = coverage_over_seeds(make("stratified"), chance)
    assert stratified < mean


def test_says_that_a_stratified_split_of_small_unequal_classes_may_promise_too_much():
    points, labels = draw([0] * 10 + [1] * 14, 0)
    sets = ConformalSets(estimator=euclidean(NED, k="all", criterion="likelihood"), split="stratified")
    assert any("split='random'" in note for note in sets.fit(points, labels).notes_)
    assert not sets.fit(*draw(balanced(12), 0)).notes_
    random = ConformalSets(estimator=euclidean(NED, k="all")).fit(points, labels)
    assert not any("split='random'" in note for note in random.notes_)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.floats(0.05, 0.95), st.integers(0, 1000))
def test_a_stratified_split_takes_its_share_of_every_class(codes, share, seed):
    codes = np.array(codes)
    aside = _stratified(codes, share, np.random.default_rng(seed))
    for code in np.unique(codes):
        wanted = share * (codes == code).sum()
        assert math.floor(wanted - 1e-9) <= aside[codes == code].sum() <= math.ceil(wanted + 1e-9)


def test_a_stratified_split_takes_each_point_equally_often():
    codes = np.array([0, 1, 1, 2, 2, 2, 2])
    times = sum(_stratified(codes, 0.3, np.random.default_rng(seed)).astype(int) for seed in range(4000))
    assert np.abs(times / 4000 - 0.3).max() < 0.035


@pytest.mark.parametrize("split", ["stratified", "random"])
def test_the_same_seed_sets_the_same_points_aside(split):
    points, labels = draw(balanced(20), 0)
    fits = [ConformalSets(split=split, seed=seed).fit(points, labels).rows_.tolist() for seed in (1, 1, 2)]
    assert fits[0] == fits[1] != fits[2]
    assert len(fits[0]) == 60


@pytest.mark.parametrize(("points", "coverage", "rank"), [(9, 0.9, 9), (10, 0.9, 10), (19, 0.55, 11), (99, 0.7, 70)])
def test_rank_by_hand(points, coverage, rank):
    assert covering_rank(points, coverage) == rank


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 999).map(lambda n: n / 1000))
def test_the_points_needed_are_the_fewest_that_have_a_threshold(coverage):
    exact = Fraction(str(coverage))
    needed = next(n for n in range(1, 2000) if math.ceil((n + 1) * exact) <= n)
    assert needed_points(coverage) == needed
    assert covering_rank(needed, coverage) <= needed


def test_a_threshold_of_one_is_every_class_and_says_so():
    points, labels = draw(balanced(10), 0, spread=30.0)
    fitted = ConformalSets(estimator=euclidean(NED, k=1, temperature=1.0)).fit(points, labels)
    found = fitted.predict(points[:4])
    assert fitted.threshold_ == 1
    assert found.everything.all()
    assert found.sizes.tolist() == [CLASSES] * 4
    assert set(found.labels(2).tolist()) == set(range(CLASSES))
    assert any("k='all'" in note for note in fitted.notes_)
    assert found.contains([0, 5, 99, 1]).tolist() == [True, True, False, True]


def test_sets_of_a_nearest_neighbour_that_is_nearly_always_right_are_single():
    points, labels = draw(balanced(20), 0, spread=0.01)
    found = ConformalSets(estimator=euclidean(NearestNeighbour)).fit(points, labels).predict(points)
    assert found.sizes.tolist() == [1] * 120
    assert found.contains(labels).all()


def test_a_query_between_classes_may_have_an_empty_set_or_two():
    points = np.concatenate([np.linspace(-1.2, -0.8, 40), np.linspace(0.8, 1.2, 40)])[:, None]
    labels = ["left"] * 40 + ["right"] * 40
    sets = ConformalSets(estimator=euclidean(NED, k="all", temperature=0.5)).fit(points, labels)
    found = sets.predict([[0.0], [-1.0]])
    assert found.labels(0).tolist() == []
    assert found.labels(1).tolist() == ["left"]
    assert found.labels(-1).tolist() == ["left"]
    assert found.contains(["left", "left"]).tolist() == [False, True]


def test_sets_list_the_likeliest_class_first():
    points, labels = draw(balanced(40), 0, spread=2.5)
    found = ConformalSets(estimator=euclidean(NED, k="all")).fit(points, labels).predict(points)
    assert found.sizes.max() > 2
    for i in np.flatnonzero(found.sizes):
        assert found.labels(i)[0] == found.prediction.labels[i]


def test_unlisted_prototypes_are_in_a_set_when_their_share_is_large_enough():
    """More than 200 classes, of which a prediction lists 200: the others share the rest, and may be let in by it."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(260), 4)
    points = rng.normal(size=(len(labels), 3))
    sets = ConformalSets(estimator=euclidean(PrototypeSoftmax, temperature=1e3), coverage=0.95).fit(points, labels)
    queries, truth = rng.normal(size=(200, 3)), rng.integers(0, 260, 200)
    found = sets.predict(queries)
    table = found.prediction.probabilities.dense()
    assert found.prediction.probabilities.rest is not None
    assert found.everything.any()
    for i in range(200):
        inside = set(sets.estimator_.classes_[table[i] >= np.float32(sets.least_)].tolist())
        assert inside <= set(found.labels(i).tolist())
        assert found.everything[i] or inside == set(found.labels(i).tolist())
    assert abs(found.contains(truth).mean() - 0.95) < 0.08


def test_a_class_that_loses_its_only_point_is_held_by_sets_of_everything_alone():
    points, labels = draw(balanced(10), 0)
    points, labels = np.vstack([points, [[50.0, 50, 50]]]).astype(np.float32), np.append(labels, 77)
    estimator = euclidean(NED, k="all", temperature=1.0)
    fits = [ConformalSets(estimator=estimator, seed=seed).fit(points, labels) for seed in range(12)]
    lost = [fitted for fitted in fits if 60 in fitted.rows_]
    assert 0 < len(lost) < 12
    assert all(77 in fitted.classes_ for fitted in fits)
    assert not any(77 in fitted.estimator_.classes_ for fitted in lost)
    assert all(any("1 class" in note for note in fitted.notes_) for fitted in lost)
    assert not lost[0].predict(points[-1:]).contains([77]).any()


def test_single_class_and_duplicates():
    found = ConformalSets(estimator=euclidean(NED, temperature=1.0)).fit(np.zeros((30, 2)), ["a"] * 30)
    assert found.predict(np.zeros((2, 2))).labels(0).tolist() == ["a"]
    mixed = ConformalSets(estimator=euclidean(NED, k=5, temperature=1.0)).fit(np.zeros((60, 2)), ["a", "b"] * 30)
    assert mixed.predict(np.zeros((2, 2))).contains(["a", "b"]).shape == (2,)


def test_labels_of_any_kind_and_tensors_with_a_gradient():
    points, codes = draw(balanced(10), 0)
    names = [("class", int(code)) for code in codes]
    sets = ConformalSets(estimator=euclidean(NED, k="all")).fit(torch.tensor(points, requires_grad=True), names)
    found = sets.predict(torch.tensor(points, requires_grad=True))
    assert found.contains(names).mean() > 0.7
    assert isinstance(found.labels(0)[0], tuple)
    assert len(sets.predict(np.zeros((0, 3)))) == 0


def test_the_given_estimator_is_left_as_it_was():
    points, labels = draw(balanced(10), 0)
    estimator = euclidean(NED, k=5)
    ConformalSets(estimator=estimator).fit(points, labels)
    with pytest.raises(DataError, match="fit"):
        estimator.predict(points)


@pytest.mark.parametrize("name", ["coverage", "calibration"])
@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, True, "0.9", math.nan, None])
def test_refuses_shares_that_are_none(name, value):
    with pytest.raises(DataError, match=name):
        ConformalSets(**{name: value}).fit(*draw(balanced(10), 0))


def test_refuses_too_few_points_and_says_how_many_it_takes():
    with pytest.raises(DataError, match="9"):
        ConformalSets().fit(*draw(balanced(2), 0))
    with pytest.raises(DataError, match="99"):
        ConformalSets(coverage=0.99).fit(*draw(balanced(10), 0))
    assert len(ConformalSets(estimator=NED(temperature=1.0)).fit(*draw(balanced(3), 0)).rows_) == 9


def test_says_when_too_few_points_are_left_for_the_estimator():
    points, labels = draw(balanced(5), 0)
    with pytest.raises(DataError, match="k=20"):
        ConformalSets(estimator=euclidean(KNNVote, k=20)).fit(points, labels)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"estimator": "ned"}, "estimator"),
        ({"estimator": NED}, "estimator"),
        ({"split": "stratifid"}, "stratified"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_refuses_settings(settings_, message):
    with pytest.raises(DataError, match=message):
        ConformalSets(**settings_).fit(*draw(balanced(10), 0))


def test_refuses_bad_points_and_queries():
    points, labels = draw(balanced(10), 0)
    with pytest.raises(DataError, match="fit"):
        ConformalSets().predict(points)
    with pytest.raises(DataError, match="NaN"):
        ConformalSets().fit(np.where(points > 1, np.nan, points), labels)
    with pytest.raises(DataError, match="labels"):
        ConformalSets().fit(points, labels[1:])
    sets = ConformalSets().fit(points, labels, source="model a")
    with pytest.raises(DataError, match="NaN"):
        sets.predict([[0.0, 1.0, math.nan]])
    with pytest.raises(DataError, match="dimensions"):
        sets.predict([[0.0, 1.0]])
    with pytest.raises(DataError, match="model a"):
        sets.predict(points, source="model b")
    found = sets.predict(points)
    with pytest.raises(DataError, match="60"):
        found.labels(60)
    with pytest.raises(DataError, match="labels"):
        found.contains([1, 2])
