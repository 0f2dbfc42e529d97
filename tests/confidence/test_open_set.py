"""Scores of unknown queries and the rejector against naive loops, and its forecast against the truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from nearkin.confidence import NED, DudaniVote, KNNVote, NearestNeighbour, Prediction, PrototypeSoftmax, unknown_scores
from nearkin.confidence import open_set as left_out_module
from nearkin.confidence.open_set import OpenPrediction, UnknownRejector, class_left_out
from nearkin.errors import DataError, UnknownNameError
from nearkin.metrics.open_set import open_set_metrics

NAMES = ["density", "distance", "probability", "ratio"]


def clusters(classes, per_class, seed=0, spread=0.6, dimensions=12):
    """Points around class means; the means are the same for every seed."""
    means = np.random.default_rng(99).normal(size=(classes, dimensions))
    labels = np.repeat(np.arange(classes), per_class)
    noise = np.random.default_rng(seed).normal(size=(len(labels), dimensions))
    return (means[labels] + spread * noise).astype(np.float32), labels


def ned(**parameters):
    return NED(space="euclidean", **parameters)


def naive_score(name, distances, codes, temperature):
    """One query: distances (k,) nearest first, classes (k,)."""
    kernels = [math.exp(-(d**2) / temperature) for d in distances]
    if name == "distance":
        return -distances[0]
    if name == "density":
        return math.log(sum(kernels) / len(kernels))
    if name == "probability":
        best = max(sum(w for w, c in zip(kernels, codes, strict=True) if c == one) for one in codes)
        chosen = next(c for c in codes if sum(w for w, d in zip(kernels, codes, strict=True) if d == c) == best)
        rest = sum(w for w, c in zip(kernels, codes, strict=True) if c != chosen)
        return math.log(best) - math.log(rest if set(codes) != {chosen} else kernels[-1])
    others = [d for d, c in zip(distances, codes, strict=True) if c != codes[0]]
    second = others[0] if others else distances[-1]
    if second == 0:
        return -1.0 if others else 0.0
    return -distances[0] / second


def share_of(k, left_out):
    """How many neighbours to look at when so many points are left out: the same share of the others."""
    n, left = len(left_out), int((~left_out).sum())
    return min(max(round(min(k, n - 1) * left / (n - 1)), 1), left)


def naive_neighbours(points, labels, query, left_out, k):
    """Distances and classes of the k nearest points that are not in `left_out`."""
    length = np.linalg.norm(points.astype(np.float64) - query, axis=1).astype(np.float32)
    order = [i for i in np.argsort(length, kind="stable") if not left_out[i]][:k]
    return length[order].astype(float).tolist(), labels[order].tolist()


def test_the_four_scores_are_there():
    assert unknown_scores.names() == NAMES


@pytest.mark.parametrize("k", [1, 3, 12, "all"])
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_a_loop(name, k):
    points, labels = clusters(5, 8)
    queries, _ = clusters(5, 4, seed=1, spread=1.5)
    fitted = ned(k=k, temperature=0.8).fit(points, labels)
    scores = unknown_scores.get(name)(fitted, fitted.predict(queries))
    nobody = np.zeros(len(points), bool)
    expected = [
        naive_score(name, *naive_neighbours(points, labels, query, nobody, len(points) if k == "all" else k), 0.8)
        for query in queries
    ]
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected, rtol=2e-5, atol=1e-6)


def hand_made(distances, codes):
    """An estimator over points of two classes, and a prediction by neighbours at these distances."""
    fitted = ned(temperature=1.0, k=1).fit(np.zeros((8, 2)), [0, 0, 0, 0, 1, 1, 1, 1])
    indices = np.array([[4 * code + place for place, code in enumerate(row)] for row in codes])
    return fitted, Prediction(fitted.predict_proba(np.array(distances), indices), np.array(distances), indices)


@pytest.mark.parametrize(
    ("distances", "codes", "score"),
    [
        ([1.0, 2.0, 4.0], [0, 0, 1], -0.25),
        ([1.0, 2.0, 4.0], [1, 0, 1], -0.5),
        ([1.0, 2.0, 4.0], [1, 1, 1], -0.25),  # the last neighbour stands for the other class
        ([2.0, 2.0, 2.0], [0, 0, 0], -1.0),
        ([0.0, 0.0, 1.0], [0, 1, 1], -1.0),  # two classes on the query
        ([0.0, 0.0, 1.0], [0, 0, 1], 0.0),
        ([0.0, 0.0, 0.0], [0, 0, 0], 0.0),
        ([0.0, 0.0, 0.0], [0, 0, 1], -1.0),
    ],
)
def test_ratio_by_hand(distances, codes, score):
    fitted, found = hand_made([distances], [codes])
    assert unknown_scores.get("ratio")(fitted, found).tolist() == [score]


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 2.0**127, width=32), st.floats(1e-300, 1e300))
def test_density_is_finite_however_far_and_sharp(far, temperature):
    fitted, found = hand_made([[0.0, far], [far, far]], [[0, 1], [1, 0]])
    fitted.temperature_ = temperature
    scores = unknown_scores.get("density")(fitted, found)
    assert np.isfinite(scores).all()
    assert scores[0] >= scores[1]


def test_density_counts_each_class_by_its_own_bandwidth():
    points, labels = clusters(3, 30)
    points[labels == 1] = points[labels == 1] * 4
    fitted = ned(k=20, bandwidth="per-class").fit(points, labels)
    found = fitted.predict(points[:5] + 0.1)
    expected = []
    for distances, indices in zip(found.distances.astype(np.float64), found.indices, strict=True):
        widths = fitted.temperatures_[fitted.support_.codes[indices]]
        expected.append(np.log(np.mean(np.exp(-(distances**2) / widths) / widths**6)))
    np.testing.assert_allclose(unknown_scores.get("density")(fitted, found), expected, rtol=1e-6)


def sizes_of(*counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(5).normal(size=(len(labels), 3)).astype(np.float32), labels


@pytest.mark.parametrize("block", [1, 40, 2**23])
@pytest.mark.parametrize("copies", [2, 32, 10**6])
@pytest.mark.parametrize("k", [1, 4, 25, 200])
def test_leaving_a_class_out_is_a_support_without_it(monkeypatch, k, copies, block):
    monkeypatch.setattr(left_out_module, "_BLOCK", block)
    monkeypatch.setattr(left_out_module, "_COPIES", copies)
    points, labels = sizes_of(1, 2, 9, 30, 5, 1)
    fitted = ned(k="all", temperature=0.7).fit(points, labels)
    rows = np.array([0, 1, 3, 5, 11, 20, 41, 44, 47])
    seen = []
    for places, found in class_left_out(fitted, rows, k):
        seen += places.tolist()
        for place, distances, indices in zip(places, found.distances, found.indices, strict=True):
            row = rows[place]
            family = labels == labels[row]
            expected = naive_neighbours(points, labels, points[row], family, share_of(k, family))
            np.testing.assert_allclose(distances, expected[0], rtol=1e-5)
            assert labels[indices].tolist() == expected[1]
    assert sorted(seen) == list(range(len(rows)))


@pytest.mark.parametrize("k", [5, 12, "all"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_learned_is_what_loops_learn(name, k):
    points, labels = clusters(6, 9, spread=0.9)
    rejector = UnknownRejector(estimator=ned(k=k, temperature=1.1), score=name, accept=0.8).fit(points, labels)
    width = len(points) if k == "all" else k
    known, unknown = [], []
    for row in range(len(points)):
        itself = np.arange(len(points)) == row
        known.append(naive_score(name, *naive_neighbours(points, labels, points[row], itself, width), 1.1))
        family = labels == labels[row]
        left = share_of(width, family)
        unknown.append(naive_score(name, *naive_neighbours(points, labels, points[row], family, left), 1.1))
    np.testing.assert_allclose(rejector.known_scores_, known, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(rejector.unknown_scores_, unknown, rtol=2e-5, atol=1e-6)
    assert rejector.threshold_ == pytest.approx(sorted(known, reverse=True)[44 - 1], rel=2e-5)  # ceil(55 * 0.8)
    area = roc_auc_score([1] * 54 + [0] * 54, np.concatenate([rejector.known_scores_, rejector.unknown_scores_]))
    assert rejector.expected_.values["AUROC"] == pytest.approx(area)
    assert rejector.false_accept_ == np.mean(rejector.unknown_scores_ >= rejector.threshold_)


@pytest.mark.parametrize("accept", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("name", ["density", "distance"])
def test_the_threshold_accepts_the_stated_share_and_hardly_more(name, accept):
    rejector = UnknownRejector(estimator=ned(), score=name, accept=accept).fit(*clusters(10, 30))
    share = np.mean(rejector.known_scores_ >= rejector.threshold_)
    assert accept <= share < accept + 3 / 300  # two points that are each other's nearest have one distance


@pytest.mark.parametrize(
    ("name", "least"), [("density", 0.95), ("distance", 0.95), ("ratio", 0.92), ("probability", 0.85)]
)
def test_unknown_classes_are_told_and_the_forecast_is_near_the_truth(name, least):
    """Half of the classes have no support; a mean over ten draws of them, since the classes are the sample."""
    truth, forecasts = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        means, labels = rng.normal(size=(40, 12)), np.repeat(np.arange(40), 15)
        points, queries = (means[labels] + 0.4 * rng.normal(size=(600, 12)) for _ in range(2))
        known = labels < 20
        rejector = UnknownRejector(estimator=ned(), score=name, accept=0.9).fit(points[known], labels[known])
        found = rejector.predict(queries)
        values = open_set_metrics(found.scores, known, found.labels == labels).values
        assert list(values) == list(rejector.expected_.values)
        truth.append([*values.values(), found.known[known].mean(), found.known[~known].mean()])
        accepted = np.mean(rejector.known_scores_ >= rejector.threshold_)  # ties make it more than 0.9
        forecasts.append([*rejector.expected_.values.values(), accepted, rejector.false_accept_])
    assert np.mean(truth, axis=0)[0] > least
    names = [*values, "known accepted", "unknown accepted"]
    gaps = dict(zip(names, np.mean(truth, axis=0) - np.mean(forecasts, axis=0), strict=True))
    assert abs(gaps["AUROC"]) < 0.03
    assert abs(gaps["OSCR"]) < 0.03
    assert abs(gaps["closed accuracy"]) < 0.02
    assert abs(gaps["known accepted"]) < 0.03
    assert abs(gaps["unknown accepted"]) < 0.06


def test_a_target_chooses_the_threshold_by_simulated_unknown_queries():
    points, labels = clusters(20, 20)
    rejector = UnknownRejector(estimator=ned(), target="far=0.05").fit(points, labels)
    accepted = np.mean(rejector.unknown_scores_ >= rejector.threshold_)
    assert rejector.false_accept_ == accepted <= 0.05
    assert accepted > 0.03
    assert rejector.choice_.rates["false accept rate"] == accepted
    assert rejector.choice_.correct == rejector.choice_.wrong == 400
    assert UnknownRejector(estimator=ned()).fit(points, labels).choice_ is None


def test_prediction_marks_the_unknown():
    points, labels = clusters(5, 20)
    names = np.array(["finch", "jay", "owl", "wren", "kite"])[labels]
    rejector = UnknownRejector(estimator=ned(k=10)).fit(points, names)
    found = rejector.predict(np.vstack([points[:3], np.full((1, 12), 40.0)]))
    assert isinstance(found, OpenPrediction)
    assert len(found) == 4
    assert found.known.tolist() == [True, True, True, False]
    assert found.labels_or().tolist() == ["finch", "finch", "finch", None]
    assert found.labels_or(("not", "known")).tolist()[-1] == ("not", "known")
    assert found.labels_or("a long name for nobody").tolist()[-1] == "a long name for nobody"
    assert found.labels[-1] in names
    assert found.confidence.tolist() == found.prediction.confidence.tolist()
    assert found.threshold == rejector.threshold_
    assert len(rejector.predict(np.zeros((0, 12))).labels_or()) == 0


def test_points_alone_in_their_class_are_unknown_queries_only():
    points, labels = clusters(5, 20)
    more = np.vstack([points, np.eye(12, dtype=np.float32)[:2] * 30])
    rejector = UnknownRejector(estimator=ned(k=5)).fit(more, np.append(labels, [100, 101]))
    assert (len(rejector.known_scores_), len(rejector.unknown_scores_)) == (100, 102)
    assert any("alone" in note for note in rejector.notes_)
    assert rejector.expected_.known == 100
    _, found = rejector.estimator_.leave_one_out()
    alone = unknown_scores.get("density")(rejector.estimator_, found)[100:]
    np.testing.assert_allclose(rejector.unknown_scores_[100:], alone)


def test_a_single_class_has_a_threshold_and_no_forecast():
    points, _ = clusters(1, 40)
    rejector = UnknownRejector(estimator=ned(k=5, temperature=1.0)).fit(points, ["a"] * 40)
    assert rejector.expected_ is None
    assert rejector.false_accept_ is None
    assert any("single" in note for note in rejector.notes_)
    assert rejector.predict(np.vstack([points[:1], points[:1] + 50])).known.tolist() == [True, False]
    with pytest.raises(DataError, match="target"):
        UnknownRejector(estimator=ned(k=5, temperature=1.0), target="eer").fit(points, ["a"] * 40)


@pytest.mark.parametrize("name", NAMES)
def test_duplicates_at_distance_zero(name):
    points = np.repeat(np.eye(4, dtype=np.float32), 10, axis=0)
    labels = np.repeat([0, 1, 2, 2], 10)
    rejector = UnknownRejector(estimator=ned(k=5, temperature=0.5), score=name).fit(points, labels)
    found = rejector.predict(np.vstack([points[:1], np.full((1, 4), 0.5)]))
    assert np.isfinite(rejector.known_scores_).all()
    assert np.isfinite(rejector.unknown_scores_).all()
    assert found.known[0]
    assert found.scores[0] >= found.scores[1]


def test_the_forecast_of_noise_is_that_nothing_can_be_told():
    """Ten classes that are none: a simulated unknown query must not look farther away than a known one."""
    areas, accepted, truth = [], [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rejector = UnknownRejector().fit(rng.normal(size=(400, 16)), rng.integers(0, 10, 400))
        areas.append(rejector.expected_.values["AUROC"])
        accepted.append(rejector.false_accept_)
        truth.append(rejector.predict(rng.normal(size=(1000, 16))).known.mean())
    assert abs(np.mean(areas) - 0.5) < 0.03
    assert abs(np.mean(accepted) - np.mean(truth)) < 0.03


def test_few_classes_are_noted():
    rejector = UnknownRejector(estimator=ned(k=30, temperature=1.0)).fit(*clusters(2, 20))
    assert any("2 classes" in note for note in rejector.notes_)


def test_looks_at_no_more_points_than_asked_for():
    points, labels = clusters(10, 30)
    fits = [UnknownRejector(estimator=ned(k=5), points=100, seed=seed).fit(points, labels) for seed in (0, 0, 1)]
    assert [len(fit.known_scores_) for fit in fits] == [100, 100, 100]
    assert fits[0].known_scores_.tolist() == fits[1].known_scores_.tolist() != fits[2].known_scores_.tolist()


@pytest.mark.parametrize("kind", [KNNVote, DudaniVote])
@pytest.mark.parametrize("name", ["distance", "probability", "ratio"])
def test_other_estimators_over_neighbours_reject_too(kind, name):
    rejector = UnknownRejector(estimator=kind(k=7, space="euclidean"), score=name).fit(*clusters(12, 12))
    assert rejector.expected_.values["AUROC"] > 0.75


def test_a_nearest_neighbour_is_always_sure():
    rejector = UnknownRejector(estimator=NearestNeighbour(space="euclidean"), score="probability").fit(*clusters(4, 10))
    assert rejector.expected_.values["AUROC"] == 0.5
    assert rejector.false_accept_ == 1


def test_a_score_of_ones_own():
    def mean_distance(estimator, found):
        return -found.distances.mean(axis=1)

    points, labels = clusters(8, 20)
    rejector = UnknownRejector(estimator=ned(k=5), score=mean_distance).fit(points, labels)
    assert rejector.expected_.values["AUROC"] > 0.9
    assert rejector.predict(points[:3]).scores.dtype == np.float64
    for bad in (lambda e, f: f.distances, lambda e, f: np.full(len(f), np.nan), lambda e, f: ["high"] * len(f)):
        with pytest.raises(DataError, match="160"):
            UnknownRejector(estimator=ned(k=5), score=bad).fit(points, labels)


def test_works_over_similarities_but_for_the_ratio_of_negative_ones():
    points, labels = clusters(8, 20)
    for space in ("cosine", "sphere"):
        for name in NAMES:
            assert UnknownRejector(estimator=NED(space=space), score=name).fit(points, labels).expected_ is not None
    with pytest.raises(DataError, match="ratio"):
        UnknownRejector(estimator=NED(space="inner-product"), score="ratio").fit(points, labels)
    assert UnknownRejector(estimator=NED(space="inner-product")).fit(points, labels).expected_ is not None


def test_tensors_with_a_gradient_and_labels_of_any_kind():
    points, codes = clusters(8, 20)
    names = [("class", int(code)) for code in codes]
    tensor = torch.tensor(points, requires_grad=True)
    found = UnknownRejector(estimator=ned(k=5)).fit(tensor, names).predict(tensor)
    assert found.labels_or()[found.known][0] == ("class", 0)


def test_the_given_estimator_is_left_as_it_was():
    estimator = ned(k=5)
    UnknownRejector(estimator=estimator).fit(*clusters(8, 20))
    with pytest.raises(DataError, match="fit"):
        estimator.predict(np.zeros((1, 12)))


@pytest.mark.parametrize("accept", [0, 1, -1, 1.2, True, "0.95", None, math.nan])
def test_refuses_a_share_that_is_none(accept):
    with pytest.raises(DataError, match="accept"):
        UnknownRejector(accept=accept).fit(*clusters(8, 20))


@pytest.mark.parametrize(("accept", "needed"), [(0.95, 19), (0.9, 9), (0.99, 99)])
def test_refuses_too_few_points_and_says_how_many_it_takes(accept, needed):
    points, labels = sizes_of(needed - 1, 1, 1, 1)
    with pytest.raises(DataError, match=str(needed)):
        UnknownRejector(estimator=ned(k=2, temperature=1.0), accept=accept).fit(points, labels)
    points, labels = sizes_of(needed, 1, 1, 1)
    assert UnknownRejector(estimator=ned(k=2, temperature=1.0), accept=accept).fit(points, labels).expected_


def test_refuses_a_single_point():
    with pytest.raises(DataError, match="1"):
        UnknownRejector(estimator=ned(temperature=1.0)).fit([[1.0, 2.0]], ["a"])
    with pytest.raises(DataError, match="threshold"):
        UnknownRejector(estimator=ned(temperature=1.0), target="eer").fit([[1.0, 2.0], [0.0, 1.0]], ["a", "b"])


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"estimator": "ned"}, "NED"),
        ({"estimator": PrototypeSoftmax()}, "PrototypeSoftmax"),
        ({"estimator": KNNVote()}, "KNNVote"),
        ({"score": 5}, "density"),
        ({"score": NED}, "density"),
        ({"points": 0}, "points"),
        ({"points": 2.5}, "points"),
        ({"target": "fare=0.1"}, "fare"),
    ],
)
def test_refuses_settings(settings_, message):
    with pytest.raises(DataError, match=message):
        UnknownRejector(**settings_).fit(*clusters(8, 20))


def test_suggests_the_score_that_was_meant():
    with pytest.raises(UnknownNameError, match="density"):
        UnknownRejector(score="densty").fit(*clusters(8, 20))


def test_refuses_bad_points_and_queries():
    points, labels = clusters(8, 20)
    with pytest.raises(DataError, match="fit"):
        UnknownRejector().predict(points)
    with pytest.raises(DataError, match="NaN"):
        UnknownRejector().fit(np.where(points > 1, np.nan, points), labels)
    with pytest.raises(DataError, match="labels"):
        UnknownRejector().fit(points, labels[1:])
    with pytest.raises(DataError, match="k=160"):
        UnknownRejector(estimator=ned(k=160)).fit(points, labels)
    rejector = UnknownRejector().fit(points, labels, source="model a")
    with pytest.raises(DataError, match="NaN"):
        rejector.predict(np.full((1, 12), np.nan))
    with pytest.raises(DataError, match="dimensions"):
        rejector.predict([[0.0, 1.0]])
    with pytest.raises(DataError, match="model a"):
        rejector.predict(points, source="model b")


def test_a_failed_fit_changes_nothing():
    points, labels = clusters(6, 20)
    rejector = UnknownRejector(estimator=ned(), score="distance").fit(points, labels)
    before = rejector.predict(points[:5])
    with pytest.raises(DataError, match="points"):
        rejector.fit(points * 100, np.append([0, 0], np.arange(1, 119)))
    after = rejector.predict(points[:5])
    assert after.threshold == before.threshold
    assert after.scores.tolist() == before.scores.tolist()


def test_the_forecast_of_the_density_does_not_depend_on_how_many_points_are_left():
    """With a flat kernel over all points, a sum would tell only how many there are."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 15)
    points = (rng.normal(size=(12, 16))[labels] + 8 * rng.normal(size=(180, 16))).astype(np.float32)
    rejector = UnknownRejector(estimator=ned(temperature=1e6)).fit(points, labels)
    assert 0.85 < rejector.false_accept_ <= 1


def test_the_best_score_has_the_highest_oscr_on_what_is_left_out():
    points, labels = clusters(12, 8)
    values = {
        name: UnknownRejector(estimator=ned(), score=name).fit(points, labels).expected_.values["OSCR"]
        for name in NAMES
    }
    best = UnknownRejector(estimator=ned(), score="best").fit(points, labels)
    assert best.expected_.values["OSCR"] == pytest.approx(max(values.values()))
    assert values[best.score_] == pytest.approx(max(values.values()))
    alone = UnknownRejector(estimator=ned(), score=best.score_).fit(points, labels)
    queries, _ = clusters(12, 2, seed=3)
    np.testing.assert_array_equal(best.predict(queries).scores, alone.predict(queries).scores)
    assert best.threshold_ == alone.threshold_


def test_the_best_score_is_one_that_the_estimator_has():
    points, labels = clusters(5, 8)
    best = UnknownRejector(estimator=KNNVote(k=5, space="euclidean"), score="best").fit(points, labels)
    assert best.score_ in ("distance", "probability", "ratio")
    one = UnknownRejector(estimator=ned(), score="best").fit(points, [0] * len(points))
    assert one.score_ in NAMES
