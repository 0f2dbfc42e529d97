"""The size suite: its numbers by hand, what principal components may see, its notes, picture and command."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

import nearkin as nk
from nearkin.audits import Subject, run_suites, subject_of_model
from nearkin.audits.sizes import components_of_training, size_suite
from nearkin.audits.subject import leave_classes_out, training_rows
from nearkin.errors import DataError, ModelError, RecipeError
from nearkin.metrics import retrieval_metrics
from nearkin.recipe import AuditSection, load_recipe
from nearkin.report.curves import draw_sizes
from nearkin.search import InnerProduct
from nearkin.spaces import Euclidean, PoincareBall, PrincipalRotation, Sphere
from nearkin.training import Run, train

LABELS = np.repeat(np.arange(12), 8)
QUICK = AuditSection(resamples=20)


def points(seed=0, d=10):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(12, d)) * np.geomspace(0.3, 3, d)
    return (centres[LABELS] + 0.6 * rng.normal(size=(96, d))).astype(np.float32)


def subject(vectors=None, space=None, **more):
    vectors = points() if vectors is None else vectors
    facts = {"classes": "12", "items": "96"}
    return Subject(vectors, LABELS, Euclidean() if space is None else space, progress=False, facts=facts, **more)


def map_at_r(vectors, labels, space):
    return retrieval_metrics(vectors, labels, metrics=["MAP@R"], space=space).values["MAP@R"]


def test_with_training_items_all_classes_are_measured():
    trained = points(1)
    found = size_suite(subject(trained=lambda: trained), QUICK)
    theirs = PCA().fit(trained.astype(np.float64)).transform(points())
    assert found.values["MAP@R, first 5"] == pytest.approx(map_at_r(points()[:, :5], LABELS, Euclidean()))
    assert found.values["MAP@R, PCA 5"] == pytest.approx(map_at_r(theirs[:, :5], LABELS, Euclidean()), abs=1e-6)
    assert found.values["MAP@R, all 10"] == pytest.approx(map_at_r(points(), LABELS, Euclidean()))
    assert found.intervals.keys() == found.values.keys() == found.per_class.keys()
    assert "96 other items, which the model was trained on" in " ".join(found.notes)


def test_without_them_half_of_the_classes_is_fitted_on_and_the_other_half_measured():
    known = leave_classes_out(LABELS, np.arange(96), QUICK.seed)
    found = size_suite(subject(), QUICK)
    theirs = PCA(5).fit(points()[known].astype(np.float64)).transform(points()[~known])
    assert found.values["MAP@R, PCA 5"] == pytest.approx(map_at_r(theirs, LABELS[~known], Euclidean()), abs=1e-6)
    assert found.values["MAP@R, first 5"] == map_at_r(points()[~known][:, :5], LABELS[~known], Euclidean())
    assert "6 of the 12 classes" in " ".join(found.notes)


@pytest.mark.parametrize("space", [Sphere(), Euclidean()])
def test_measured_items_never_enter_the_fit(space, monkeypatch):
    known = leave_classes_out(LABELS, np.arange(96), QUICK.seed)
    seen = []

    class Watched(PrincipalRotation):
        def fit(self, embeddings):
            found = super().fit(embeddings)
            seen.append(found.components_)
            return found

    monkeypatch.setattr("nearkin.audits.sizes.PrincipalRotation", Watched)
    changed = {True: points(), False: points()}
    for half, vectors in changed.items():
        vectors[known == half] = np.random.default_rng(9).normal(size=(48, 10))
    for vectors in (points(), changed[False], changed[True]):
        size_suite(subject(vectors, space), QUICK)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.allclose(seen[0], seen[2])


def test_sizes_are_chosen_and_those_beyond_the_dimension_refused():
    found = size_suite(subject(), QUICK.model_copy(update={"sizes": [2, 7]}))
    assert [name for name in found.values if name.startswith("MAP@R, first")] == ["MAP@R, first 2", "MAP@R, first 7"]
    with pytest.raises(DataError, match="10"):
        size_suite(subject(), QUICK.model_copy(update={"sizes": [11]}))


@pytest.mark.parametrize("sizes", ["[0]", "[-4]", "[x]"])
def test_wrong_settings_are_told(sizes):
    with pytest.raises(RecipeError, match=r"audit\.sizes"):
        nk.audit(points(), LABELS, suites=["size"], overrides=[f"audit.sizes={sizes}"])


@pytest.mark.parametrize("space", [PoincareBall(), InnerProduct()])
def test_other_comparisons_are_refused(space):
    with pytest.raises(DataError, match="Euclidean"):
        size_suite(subject(space=space), QUICK)


def test_the_smallest_size_is_told_with_its_interval():
    vectors = np.concatenate([5 * points(d=8), 1e-3 * points(2, d=8)], axis=1)
    notes = size_suite(subject(vectors), QUICK).notes
    assert any("8 of 16" in note and "interval" in note for note in notes)


def test_three_classes_have_no_components_and_few_items_are_noted():
    few = LABELS < 3
    small = Subject(points()[few], LABELS[few], Euclidean(), progress=False)
    found = size_suite(small, QUICK)
    assert not any("PCA" in name for name in found.values)
    assert "4" in found.notes[-1]
    found = size_suite(subject(trained=lambda: points(1)[:5]), QUICK)
    assert "5" in found.notes[-1]


def test_a_published_gallery_is_searched():
    gallery = np.arange(96) % 2 == 0
    found = size_suite(subject(gallery=gallery, trained=lambda: points(1)), QUICK)
    cut = points()[:, :5]
    wanted = retrieval_metrics(
        cut[~gallery], LABELS[~gallery], gallery=cut[gallery], gallery_labels=LABELS[gallery], space=Euclidean()
    )
    assert found.values["MAP@R, first 5"] == pytest.approx(wanted.values["MAP@R"])


def test_vectors_of_ones_own_and_the_report(tmp_path):
    result = nk.audit(points(), LABELS, suites=["size"], overrides=["audit.resamples=20"], progress=False)
    assert result.primary == "MAP@R, all 10"
    assert set(result.details["size"]["smallest within a point of MAP@R"]) == {"first", "PCA"}
    page = result.report(tmp_path / "size.html").read_text()
    assert "How short may embeddings be?" in page
    result.save(tmp_path / "size.json")


def test_the_guide_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "guide" / "short-embeddings.md").read_text(encoding="utf-8")
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], {})
    told = capsys.readouterr()
    assert "principal components" in told.out
    assert not told.err


def test_pictures_with_near_sizes_and_without_any():
    assert draw_sizes({}) == b""
    many = {"MAP@R": {"PCA": ([1, 2, 3, 60, 61, 62, 64], np.linspace(0, 1, 7))}}
    assert draw_sizes(many).startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def trained(patterns, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("size")
    recipe = load_recipe("proxy-anchor-prefixes", [*tiny, "objective.prefixes=[4, 8]", "training.max_steps=4"])
    model = train(patterns, recipe, Run(folder / "run"), source="patterns", cache_directory=folder, progress=False)
    return model.embedder, folder


def test_training_items_of_a_model_are_those_of_its_training_classes(patterns, trained):
    model, folder = trained
    rows = training_rows(patterns, model.card)
    assert set(patterns.labels[rows]) == set(model.card["classes"]["train"])
    whole = subject_of_model(model, patterns, cache_directory=folder, baseline=False, progress=False)
    np.testing.assert_allclose(whole.trained(), model.encode(patterns.select(rows), progress=False), atol=1e-6)
    found = run_suites(whole.changed(own_data=True), QUICK, ["size"])
    assert "MAP@R, PCA 8" in found.values


def test_shortening_by_data_sees_training_classes_alone(patterns, trained):
    model, folder = trained
    options = {"cache_directory": folder, "progress": False}
    every = components_of_training(model, patterns, 4, **options)
    rows = training_rows(patterns, model.card)
    alone = components_of_training(model, patterns.select(rows), 4, **options)
    assert every.fingerprint() == alone.fingerprint()
    assert every.card["shortened"]["items"] == len(rows)
    others = np.setdiff1d(np.arange(len(patterns)), rows)
    with pytest.raises(DataError, match="prefix"):
        components_of_training(model, patterns.select(others), 4, **options)


def test_shorten_in_python(patterns, trained):
    model, _ = trained
    assert nk.shorten(model, 4, "prefix").fingerprint() == model.shortened(4).fingerprint()
    assert nk.shorten(model, 4, data=patterns, progress=False).card["shortened"]["method"] == "pca"
    with pytest.raises(ModelError, match="prefix"):
        nk.shorten(model, 4, "pcs", data=patterns)
    with pytest.raises(ModelError, match="15"):
        nk.shorten(model, 16, data=patterns)
