"""Known, unknown or neither: the scores, the line and its promise, and items that trained the model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.confidence import NED
from nearkin.confidence.open_set import unknown_scores
from nearkin.data.sources import open_data
from nearkin.errors import DataError
from nearkin.gallery import Calibration, Gallery
from nearkin.gallery.calibration.identification import Identification, class_sizes, leave_class_out, leave_out
from nearkin.gallery.calibration.training_items import is_training_data
from nearkin.gallery.calibration.unknown import (
    SCORES,
    CombinedScore,
    _line,
    _logistic,
    fit_unknown_threshold,
    needed_classes,
)
from nearkin.models import ModelSection, build_embedder
from nearkin.models.card import Card, CardData, CardParts

CLASSES, EACH, WIDTH = 30, 5, 16


def clusters(classes, items, seed, noise=0.9, centres_seed=0):
    """Points on the sphere around centres, and labels."""
    centres = np.random.default_rng(centres_seed).normal(size=(classes, WIDTH))
    points = np.repeat(centres, items, axis=0) + noise * np.random.default_rng(seed).normal(
        size=(classes * items, WIDTH)
    )
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points.astype(np.float32), [f"c{label}" for label in np.repeat(np.arange(classes), items)]


def made(path, points, labels):
    gallery = Gallery.create(path, dimension=points.shape[1], name="drawn")
    gallery.add(points, labels)
    return gallery


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    with made(tmp_path_factory.mktemp("drawn") / "a.gallery", *clusters(CLASSES, EACH, 1)) as one:
        yield one


def shares(gallery, queries):
    """How many of the queries are known, unknown and neither."""
    known = [match.known for match in gallery.identify_vectors(queries)]
    return [np.mean([one is value for one in known]) for value in (True, False, None)]


@pytest.mark.parametrize("name", ["probability", "density", "ratio", "distance"])
def test_a_score_is_that_of_the_estimator(name):
    points, labels = clusters(CLASSES, EACH, 1)
    queries, _ = clusters(CLASSES, 2, 2)
    estimator = NED(k=40, temperature=0.1).fit(points, labels)
    found = estimator.predict(queries)
    codes = estimator.support_.codes[found.indices].astype(np.int32)
    ours = SCORES[name](Identification(0.1, 1.7), found.distances, codes, np.full(codes.shape, 1 / EACH))
    assert ours == pytest.approx(unknown_scores.get(name)(estimator, found), rel=1e-4, abs=1e-4)


def test_the_confidence_is_in_the_order_of_the_probability(gallery):
    queries, _ = clusters(CLASSES, 3, 3)
    fitted = gallery.recalibrate()
    found = gallery.store.search(queries, fitted.k, labelled=True)
    counts = np.full(found.codes.shape, 1 / EACH)
    ours = SCORES["confidence"](fitted.identification, found.distances, found.codes, counts)
    sure = [match.probability for match in gallery.identify_vectors(queries)]
    below = np.array(sure) < fitted.identification.ceiling
    assert ours[below] == pytest.approx(np.log(np.array(sure)[below] / (1 - np.array(sure)[below])), abs=1e-3)


def test_neighbours_that_are_not_there_change_no_score():
    points, labels = clusters(CLASSES, EACH, 1)
    found = NED(k=20, temperature=0.1).fit(points, labels)
    told = found.predict(clusters(CLASSES, 1, 4)[0])
    codes = found.support_.codes[told.indices].astype(np.int32)
    wide = [
        np.pad(part, ((0, 0), (0, 3)), constant_values=value) for part, value in ((told.distances, np.inf), (codes, -2))
    ]
    for name, score in SCORES.items():
        fitted = Identification(0.1, 0.8)
        plain = score(fitted, told.distances, codes, np.full(codes.shape, 0.2))
        assert score(fitted, *wide, np.full(wide[1].shape, 0.2)) == pytest.approx(plain), name


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=40), st.floats(0.0, 6.0))
def test_the_line_is_the_lowest_that_the_promise_allows(items, allowed):
    own, scores = (np.array(part) for part in zip(*items, strict=True))
    weights = 1 / np.bincount(own)[own]
    line = _line(scores.astype(np.float64), weights, allowed)
    above = lambda value: sum(np.mean(scores[own == one] >= value) for one in np.unique(own))  # noqa: E731
    assert above(line) <= allowed + 1e-6
    lower = scores[scores < line]
    assert not len(lower) or above(lower.max()) > allowed - 1e-6


def test_fewer_strangers_than_promised_are_known_and_the_forecast_holds(gallery):
    fitted = gallery.recalibrate()
    queries, labels = clusters(CLASSES, 20, 5)
    known, unknown, _ = shares(gallery, queries)
    matches = gallery.identify_vectors(queries)
    named = np.mean([match.known is True for match, label in zip(matches, labels, strict=True) if match.label == label])
    passed, stopped, neither = shares(gallery, clusters(400, 2, 6, centres_seed=9)[0])
    forecast = fitted.horizon.forecast
    assert passed <= 0.1
    assert neither > 0.1
    assert forecast.strangers_known <= 0.1
    assert forecast.enrolled_known == pytest.approx(known, abs=0.12)
    assert forecast.named_known == pytest.approx(named, abs=0.12)
    assert forecast.enrolled_unknown == pytest.approx(unknown, abs=0.05)
    assert forecast.strangers_unknown == pytest.approx(stopped, abs=0.12)
    assert fitted.horizon.rejected == pytest.approx(forecast.strangers_unknown, abs=0.02)
    assert all(match.forecast == forecast for match in matches)
    assert all(bool(match.reason) is (match.known is None) for match in matches)


def test_the_best_score_asserts_most(gallery):
    horizon = gallery.recalibrate().horizon
    asserted = [one["named_known"] for one in horizon.compared]
    assert asserted == sorted(asserted, reverse=True)
    assert {one["score"] for one in horizon.compared} == {*SCORES, "combined"}
    assert (horizon.score, horizon.forecast.named_known) == (horizon.compared[0]["score"], asserted[0])


def test_a_larger_share_of_strangers_asserts_more_and_is_kept(gallery):
    queries, _ = clusters(CLASSES, 5, 7)
    asserted = []
    for strangers in (0.05, 0.2, 0.6, 1):
        gallery.recalibrate(strangers=strangers)
        asserted.append(shares(gallery, queries)[0])
    assert asserted == sorted(asserted)
    assert shares(gallery, queries)[2] == 0  # at 1 all that is not unknown is known
    assert gallery.recalibrate(accept=0.9).horizon.strangers == 1
    gallery.recalibrate(accept=0.95, strangers=0.1)


@pytest.mark.parametrize("strangers", [0, -1, 1.1, "x", True, float("nan")])
def test_a_share_of_strangers_is_above_0_and_at_most_1(gallery, strangers):
    with pytest.raises(DataError, match="strangers"):
        gallery.recalibrate(strangers=strangers)


def test_separated_classes_leave_nothing_undecided(tmp_path):
    with made(tmp_path / "a.gallery", *clusters(CLASSES, EACH, 1, noise=0.2)) as gallery:
        assert gallery.recalibrate().horizon.score == "distance"
        assert shares(gallery, clusters(CLASSES, 5, 2, noise=0.2)[0])[0] > 0.85
        assert shares(gallery, clusters(CLASSES, 5, 2, noise=0.2, centres_seed=5)[0]) == [0, 1, 0]


def test_few_classes_promise_nothing_and_say_so(tmp_path):
    assert [needed_classes(share) for share in (0.1, 0.05, 0.3, 1)] == [9, 19, 3, 0]
    for classes in (8, 9):
        with made(tmp_path / f"{classes}.gallery", *clusters(classes, 8, 1)) as gallery:
            match = gallery.identify(clusters(classes, 1, 2)[0][0])
            assert ("9 are needed" in match.note) is (classes == 8)
            # Above all strangers there are: with nine classes no more is allowed.
            assert match.forecast.strangers_known == 0


@pytest.mark.parametrize("large", [0, 60])
def test_leaving_a_class_out_finds_what_is_near_without_it(tmp_path, large):
    points, labels = clusters(12, 4, 1)
    if large:  # a class that is most of what is near its items
        more, _ = clusters(1, large, 2, noise=0.05)
        points, labels = np.concatenate([points, more]), [*labels, *["c0"] * large]
    with made(tmp_path / "a.gallery", points, labels) as gallery:
        store, k = gallery.store, 20
        sample = store.sample(1000, 0, labelled=True)
        sizes = class_sizes(store, sample.codes)
        found = leave_class_out(store, sample, leave_out(store, sample, sizes, k))
        kept = 0
        for code in np.unique(sample.codes):
            others = sample.vectors[sample.codes != code]
            mine = found.own == code
            asked = sample.vectors[sample.codes == code][: mine.sum()]
            expected = np.sort(np.linalg.norm(asked[:, None] - others[None], axis=-1), axis=1)
            there = np.isfinite(found.distances[mine])
            assert (there.sum(axis=1) >= k / 2).all()
            for row, near, far in zip(found.distances[mine], there, expected, strict=True):
                assert row[near] == pytest.approx(far[: near.sum()], abs=1e-3)
            kept += mine.sum()
            assert not (found.codes[mine] == code).any()
        assert kept == len(found.own) >= 12 * 4


def test_a_calibration_of_old_keeps_its_key_and_asserts_what_its_forecast_allows(gallery):
    fitted = gallery.recalibrate()
    plain = fitted.to_dict()
    for name in ("strangers", "score", "line", "doubt", "classes", "forecast", "combined", "compared"):
        del plain["horizon"][name]
    queries, _ = clusters(CLASSES, 5, 8)
    found = gallery.store.search(queries, fitted.k, labelled=True)
    for rejected, told in ((0.95, {True, False}), (0.1, {None, False})):
        plain["horizon"]["rejected"] = rejected
        old = Calibration.from_dict(json.loads(json.dumps(plain)))
        assert not {"strangers", "line"} & old.to_dict()["horizon"].keys()
        assert not old.stale(gallery.store)
        matches = old.classify(found, gallery.store.classes(), class_sizes(gallery.store, found.codes[:0]))
        assert {match.known for match in matches} == told
        assert all("recalibrate" in match.reason for match in matches if match.known is None)


def test_weights_are_those_of_a_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    positive, negative = rng.normal((1, 0, 0.5), 1, (80, 3)), rng.normal(0, (1, 2, 30), (50, 3))
    rows = np.concatenate([positive, negative])
    model = LogisticRegression(C=1.0, class_weight="balanced", tol=1e-8)
    model.fit((rows - rows.mean(0)) / rows.std(0), np.repeat([1, 0], [80, 50]))
    assert _logistic(positive, negative) == pytest.approx(model.coef_[0] / rows.std(0), rel=1e-3)


def test_the_combined_score_is_that_of_a_loop(gallery):
    """Log-odds, mean squared distance to the class, and the class's own, the latter drawn to that of all classes."""
    fitted = gallery.recalibrate()
    points, labels = clusters(CLASSES, EACH, 1)
    queries, _ = clusters(CLASSES, 1, 12)
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    same = np.equal.outer(labels, labels) & ~np.eye(len(labels), dtype=bool)
    usual = squares[same].mean()
    spreads = {
        name: (squares[same & (np.array(labels) == name)[:, None]].sum() + 4 * usual) / (EACH * (EACH - 1) + 4)
        for name in set(labels)
    }
    combined = CombinedScore((2.0, -1.0, 0.7), spreads, usual)
    found = gallery.store.search(queries, fitted.k, labelled=True)
    names, counts = gallery.store.classes(), np.full(found.codes.shape, 1 / EACH)
    scores = combined(fitted.identification, found.distances, found.codes, counts, combined.spreads_of(names))
    odds = SCORES["confidence"](fitted.identification, found.distances, found.codes, counts)
    for query, match, score, one in zip(queries, gallery.identify_vectors(queries), scores, odds, strict=True):
        away = ((points[np.array(labels) == match.label] - query) ** 2).sum(-1).mean()
        expected = 2 * one - np.log(away) + 0.7 * np.log(spreads[match.label])
        assert score == pytest.approx(expected, abs=1e-3)
    kept = fitted.horizon.combined
    if kept is not None:
        assert kept.usual == pytest.approx(usual, rel=1e-3)
        assert kept.spreads == pytest.approx(spreads, rel=1e-3)


def test_a_class_that_came_later_has_the_usual_spread():
    combined = CombinedScore((1.0, 1.0, 1.0), {"a": 2.0}, 0.5)
    assert combined.spreads_of(["b", "a"]).tolist() == [0.5, 2.0]


def test_a_similarity_has_no_ratio_and_no_probabilities_leave_two_scores():
    from nearkin.gallery.calibration.unknown import _usable

    assert set(_usable(Identification(0.1, 1.0, similarity=True))) == SCORES.keys() - {"ratio"}
    assert _usable(Identification(reason="too few")) == ["ratio", "distance"]


def test_the_probability_of_a_pair_follows_the_prior_and_agrees_with_the_decision(gallery):
    points, _ = clusters(CLASSES, 2, 9)
    for other in (points[1], points[7]):
        odds = {}
        for prior in (0.5, 0.1, 0.001):
            found = gallery.verify(points[0], other, false_accept_rate=0.01, prior=prior)
            assert found.prior == prior
            odds[prior] = found.probability / (1 - found.probability) * (1 - prior) / prior
            assert found.probability >= found.needed if found.same else found.probability <= found.needed
        assert odds[0.1] == pytest.approx(odds[0.5], rel=1e-6)
        assert odds[0.001] == pytest.approx(odds[0.5], rel=1e-6)


@pytest.mark.parametrize("prior", [0, 1, -1, "a", float("nan")])
def test_a_prior_is_between_0_and_1(gallery, prior):
    with pytest.raises(DataError, match="prior"):
        gallery.verify(np.ones(WIDTH), np.ones(WIDTH), prior=prior)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 14 classes, of which the model says that it was trained on c0 to c3."""
    folder, rng = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for label in range(14):
        colour = rng.integers(40, 216, 3)
        (folder / f"c{label}").mkdir(parents=True)
        for item in range(4):
            pixels = np.clip(colour + rng.integers(-40, 41, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"c{label}" / f"{item}.png")
    return folder


@pytest.fixture(scope="module")
def trained(photos):
    model = build_embedder(ModelSection(backbone="conv4", size=16, dimension=8), seed=0).eval()
    data = open_data(photos, progress=False)
    card = CardData("photos", str(photos), "image", len(data), data.fingerprint())
    model.card = Card(classes=CardParts(train=[f"c{label}" for label in range(4)]), data=card)
    return model


def test_items_that_trained_the_model_are_not_calibrated_on(tmp_path, photos, trained):
    with Gallery.create(tmp_path / "a.gallery", trained, photos, progress=False) as gallery:
        fitted = gallery.recalibrate()
        assert fitted.identification.items == 10 * 4
        assert any("40 items of 10 classes" in note for note in fitted.notes)
        assert fitted.warning == ""
        # An item that is enrolled later is new, also of a class that trained.
        gallery.enrol("c0", [photos / "c9" / "0.png"])
        assert gallery.recalibrate().identification.items == 41


def test_a_gallery_of_nothing_but_training_items_warns_and_asserts_nothing(tmp_path, photos, trained):
    model = trained
    before, model.card = model.card, replace(model.card, classes=CardParts(train=[f"c{n}" for n in range(14)]))
    try:
        with Gallery.create(tmp_path / "a.gallery", model, photos, progress=False) as gallery:
            match = gallery.identify(photos / "c1" / "0.png")
            assert (match.known, match.forecast) == (None, None)
            assert match.probability is not None
            assert "too high" in match.note
            assert "trained" in match.reason
            assert gallery.verify(photos / "c1" / "0.png", photos / "c2" / "0.png").note == match.note
            again = Calibration.from_dict(json.loads(json.dumps(gallery.calibration.to_dict())))
            assert again == gallery.calibration
    finally:
        model.card = before


def test_training_data_is_told_by_classes_and_by_name_or_fingerprint(photos, trained):
    data, card = open_data(photos, progress=False), trained.card
    assert is_training_data(data, card)
    assert is_training_data(data.select(np.arange(8)), card)  # a part of it, by its name
    renamed = type(data)(data.manifest, data.store, data.kind, "other")
    assert is_training_data(renamed, card)  # the same items
    assert not is_training_data(renamed.select(np.arange(8)), card)
    assert not is_training_data(data.select(data.labels == "c9"), card)
    assert not is_training_data(data, Card())


def test_a_gallery_that_noted_nothing_is_taken_to_hold_the_training_items(tmp_path, photos, trained):
    with Gallery.create(tmp_path / "a.gallery", trained, photos, progress=False) as gallery:
        gallery.store.set_note("training items", None)
        gallery.enrol("c0", [photos / "c9" / "0.png"])
        assert gallery.recalibrate().identification.items == 40


def test_the_threshold_is_left_as_it_was(gallery):
    store = gallery.store
    sample = store.sample(1000, 0, labelled=True)
    sizes = class_sizes(store, sample.codes)
    fitted = gallery.recalibrate()
    plain = fit_unknown_threshold(leave_out(store, sample, sizes, fitted.k), 0.95)
    assert (plain.threshold, plain.rejected) == (fitted.horizon.threshold, fitted.horizon.rejected)
