"""The classification suite: its numbers, intervals, pictures, and what it says of classes that were trained on."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin as nk
from nearkin.audits import Subject, run_suites
from nearkin.audits.classification import classification_suite
from nearkin.audits.result import draw_subject
from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap
from nearkin.metrics.classification import classification_metrics
from nearkin.recipe import AuditSection, load_recipe
from nearkin.search import InnerProduct
from nearkin.spaces import Euclidean, Sphere
from nearkin.training import Run

QUICK = AuditSection(resamples=50, classification_k=[3])
LABELS = np.repeat([f"c{i}" for i in range(8)], 10)


def clusters(noise, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(8, 6)), 10, axis=0)
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


def subject(**more):
    given = {"embeddings": clusters(1.0), "labels": LABELS, "space": Euclidean(), "progress": False, **more}
    return Subject(given.pop("embeddings"), given.pop("labels"), given.pop("space"), **given)


def test_its_numbers_are_those_of_the_metric():
    found = classification_suite(subject(), QUICK)
    result = classification_metrics(clusters(1.0), LABELS, k=[3], space=Euclidean(), seed=0)
    assert found.values == result.values
    for name in ("centroid", "3-NN"):
        assert found.per_class[f"macro F1, {name}"] == result.f1[name]
        assert np.mean(list(found.per_class[f"macro F1, {name}"].values())) == pytest.approx(
            found.values[f"macro F1, {name}"]
        )
        assert found.per_class[f"accuracy, {name}"] == result.recall[name]
    assert found.details["classification"]["confusions"]["3-NN"] == [list(pair) for pair in result.confusions("3-NN")]
    assert json.loads(json.dumps(found.details)) == found.details


def test_intervals_draw_classes():
    found = classification_suite(subject(), QUICK)
    scores = found.per_class["macro F1, 3-NN"]
    assert found.intervals["macro F1, 3-NN"] == class_bootstrap(list(scores.values()), list(scores), resamples=50)
    assert found.intervals.keys() == found.values.keys()
    for name, (low, high) in found.intervals.items():
        assert low < found.values[name] < high


def test_the_baseline_is_classified_on_the_sphere():
    untrained = clusters(3.0, seed=4)
    found = classification_suite(subject(baseline=untrained), QUICK)
    assert found.baseline == classification_metrics(untrained, LABELS, k=[3], space=Sphere(), seed=0).values


def test_a_published_gallery_is_the_reference():
    gallery = np.arange(80) % 5 == 0
    found = classification_suite(subject(gallery=gallery), QUICK)
    x = clusters(1.0)
    expected = classification_metrics(
        x[~gallery],
        LABELS[~gallery],
        reference=x[gallery],
        reference_labels=LABELS[gallery],
        k=[3],
        space=Euclidean(),
    )
    assert found.values == expected.values
    assert "gallery" in found.notes[0]


def test_without_a_mean_only_neighbours_vote():
    found = classification_suite(subject(space=InnerProduct()), QUICK)
    assert list(found.values) == ["macro F1, 3-NN", "accuracy, 3-NN"]
    assert any("centroids" in note for note in found.notes)


def test_it_runs_by_name_beside_others_and_says_what_it_left_out():
    labels = np.append(LABELS[:-1], "alone")
    result = run_suites(subject(labels=labels, facts={"classes": "9", "items": "80"}), QUICK, ["classification"])
    assert any("single" in note for note in result.notes)
    assert result["macro F1, centroid"] > 0.5


@pytest.mark.parametrize("k", ["[0]", "[]", "[1.5]"])
def test_a_wrong_k_is_told_before_anything_is_measured(k):
    with pytest.raises(nk.errors.NearkinError, match="classification_k"):
        nk.audit(clusters(1.0), LABELS, suites=["classification"], overrides=[f"audit.classification_k={k}"])


@pytest.mark.pixels
def test_pictures_show_the_item_and_the_nearest_of_what_it_is_taken_for():
    x = np.array([[0.0], [0.1], [0.2], [0.3], [5.0], [5.1], [0.15], [5.3]], np.float32)
    labels = np.array(["a"] * 4 + ["b"] * 4)
    shown = []

    def picture(row):
        shown.append(row)
        return Image.new("RGB", (20, 20), (10 * row, 0, 0))

    gallery = np.array([True, True, False, False, True, True, False, False])
    given = subject(embeddings=x, labels=labels, gallery=gallery, picture=picture)
    found = classification_suite(given, AuditSection(resamples=5, classification_k=[1]))
    scores, confused = (draw() for draw in found.drawings)
    assert scores.title == "F1 by class"
    assert shown == [6, 1]  # item 6, a "b", is taken for an "a", of which item 1 is the nearest known
    assert Image.open(io.BytesIO(confused.png)).width == 1440


def test_where_nothing_is_confused_there_is_no_table():
    found = classification_suite(subject(embeddings=clusters(0.01)), QUICK)
    assert found.drawings[1]().png == b""


def test_the_map_marks_the_centroids():
    figure = draw_subject(subject())[-1]
    assert "black crosses" in figure.caption
    without = draw_subject(subject(space=InnerProduct()))[-1]
    assert "black crosses" not in without.caption
    assert without.png


# What became of classes that trained


@pytest.fixture(scope="module")
def trained(patterns, tiny, tmp_path_factory):
    """A model of `patterns` that was trained on six images of each class; the last two were kept out."""
    last = np.arange(len(patterns)) % 8 >= 6
    recipe = load_recipe("proxy-anchor", [*tiny, "audit.suites=[classification]"])
    run = tmp_path_factory.mktemp("runs") / "run"
    nk.fit(patterns.select(~last), recipe, out=run, progress=False)
    return nk.load(run), last


def test_the_runs_own_audit_is_of_unseen_classes(trained, patterns):
    model, last = trained
    result = nk.audit(model, patterns.select(~last), progress=False)
    assert result.subject.seen == {}
    assert result.details["classification"]["seen"] == {}
    assert set(result.per_class["macro F1, centroid"]) == set(model.card["classes"]["test"])
    assert result.baseline.keys() == result.values.keys()  # raw pixels


def test_seen_classes_on_images_that_did_not_train_are_told_as_such(trained, patterns):
    model, last = trained
    classes = model.card["classes"]
    seen = [*classes["train"], *classes["val"]]
    kept_out = patterns.select(last & np.isin(patterns.labels, seen))
    result = nk.audit(model, kept_out, progress=False)
    expected = {name: "train" if name in classes["train"] else "val" for name in sorted(seen)}
    assert result.subject.seen == result.details["classification"]["seen"] == expected
    trained_classes, validated = len(classes["train"]), len(classes["val"])
    assert result.subject.facts["classes seen in training"] == f"{trained_classes} trained, {validated} validated"
    assert any(f"{trained_classes} of" in note for note in result.notes)
    assert any("unseen" in note for note in result.notes)


def test_among_seen_and_unseen_classes_only_the_unseen_are_audited(trained, patterns):
    model, last = trained
    result = nk.audit(model, patterns.select(last), progress=False)
    assert result.subject.seen == {}
    assert set(result.subject.labels) == set(model.card["classes"]["test"])
    assert any("audit" in note for note in result.notes)


def test_the_report_has_its_pictures_and_runs_can_be_compared(trained, patterns, tmp_path):
    model, last = trained
    settings = ["audit.classification_k=[5]"]
    result = nk.audit(model, patterns.select(~last), overrides=settings, progress=False)
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "F1 by class" in page
    assert "macro F1, centroid" in page
    result.save(tmp_path / "audit.json")
    stored = Run(tmp_path).audit()
    assert stored["per_class"]["macro F1, 5-NN"] == result.per_class["macro F1, 5-NN"]


def test_too_little_to_classify_is_refused():
    with pytest.raises(DataError, match="two"):
        nk.audit(torch.eye(4), ["a", "b", "c", "d"], suites=["classification"])
