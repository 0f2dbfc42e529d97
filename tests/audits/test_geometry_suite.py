"""The geometry suite: its numbers against the metrics, honest re-weighting, what is left out, pictures."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.audits import Subject, run_suites
from nearkin.audits.geometry import POWERS, geometry_suite, reweigh
from nearkin.audits.subject import leave_classes_out
from nearkin.errors import DataError
from nearkin.metrics import (
    GEOMETRY,
    class_bootstrap,
    class_moments,
    distance_correlation,
    geometry_metrics,
    retrieval_metrics,
    separation_intervals,
    singular_spectrum,
)
from nearkin.recipe import AuditSection
from nearkin.search import InnerProduct
from nearkin.spaces import Euclidean, PoincareBall, PrincipalReweighting, Sphere

LABELS = np.repeat([f"c{i}" for i in range(12)], 8)
QUICK = AuditSection(resamples=40, geometry_items=40)
IMAGES = torch.rand(len(LABELS), 3, 6, 6, generator=torch.Generator().manual_seed(0))


def points(seed=0, d=10, noise=0.6):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(12, d)) * np.geomspace(3, 0.3, d)
    return (np.repeat(centres, 8, axis=0) + noise * rng.normal(size=(96, d))).astype(np.float32)


def subject(**more):
    given = {"embeddings": points(), "labels": LABELS, "space": Sphere(), **more}
    facts = {"classes": "12", "items": "96"}
    return Subject(
        given.pop("embeddings"), given.pop("labels"), given.pop("space"), progress=False, facts=facts, **given
    )


def pixels(rows):
    return IMAGES[rows]


def test_its_numbers_are_those_of_the_metrics():
    found = geometry_suite(subject(pixels=pixels, baseline=points(1, d=20), baseline_name="other"), QUICK)
    rows = np.sort(np.random.default_rng(0).permutation(96)[:40])
    correlations = {
        f"MC, input {norm}": distance_correlation(IMAGES[rows], points()[rows], norm=norm, space=Sphere()).value
        for norm in ("l2", "linf")
    }
    assert found.values == pytest.approx(geometry_metrics(points(), LABELS) | correlations)
    assert list(found.values) == [*GEOMETRY, "MC, input l2", "MC, input linf"]
    assert found.intervals == separation_intervals(class_moments(points(), LABELS), resamples=40)
    untrained = geometry_metrics(points(1, d=20), LABELS)
    assert {name: found.baseline[name] for name in GEOMETRY} == untrained
    expected = distance_correlation(IMAGES[rows], points(1, d=20)[rows], norm="linf", space=Sphere()).value
    assert found.baseline["MC, input linf"] == pytest.approx(expected)
    assert set(found.numbers) == set(found.values)
    assert found.primary == "phi"
    told = json.loads(json.dumps(found.details))["geometry"]
    np.testing.assert_allclose(told["spectra"]["this model"], singular_spectrum(points()))
    assert len(told["spectra"]["other"]) == 19
    assert told["compared items"] == 40


def test_without_pixels_there_is_no_correlation_and_without_a_baseline_none_of_it():
    found = geometry_suite(subject(), QUICK)
    assert list(found.values) == list(GEOMETRY)
    assert found.baseline == {}
    assert len(found.drawings) == 2


def test_reweighting_is_fitted_and_chosen_on_other_classes():
    result = reweigh(subject(), QUICK)
    known = leave_classes_out(LABELS, np.arange(96), 0)
    assert not set(LABELS[known]) & set(LABELS[~known])
    ours, theirs, labels = points()[known], points()[~known], LABELS[~known]

    def measured(embeddings, labels):
        unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        return retrieval_metrics(unit, labels, metrics=["MAP@R", "P@1"])

    fits = [PrincipalReweighting(power).fit(ours) for power in POWERS]
    fitted = [measured(fit.transform(ours), LABELS[known]).values["MAP@R"] for fit in fits]
    assert result.fitted == pytest.approx(fitted)
    assert result.chosen == POWERS[int(np.argmax(fitted))]
    for place, fit in enumerate(fits):
        changed = fit.transform(theirs)
        values = measured(changed, labels).values | geometry_metrics(changed, labels)
        for name, line in result.measures.items():
            assert line[place] == pytest.approx(values[name], rel=1e-4)
    plain = measured(theirs, labels)
    best = measured(fits[int(np.argmax(fitted))].transform(theirs), labels)
    gains = best.per_query["MAP@R"].astype(float) - plain.per_query["MAP@R"]
    assert result.gain == pytest.approx(gains.mean(), abs=1e-6)
    assert result.interval == pytest.approx(class_bootstrap(gains, labels, resamples=40), abs=1e-6)
    assert result.unchanged["MAP@R"] == pytest.approx(plain.values["MAP@R"])
    assert result.classes == (6, 6)
    told = geometry_suite(subject(), QUICK)
    assert told.details["geometry"]["re-weighting"]["chosen power"] == result.chosen
    assert f"{100 * result.gain:+.1f} points" in " ".join(told.notes)


@pytest.mark.parametrize(
    ("space", "compared"),
    [(Sphere(), "sphere"), (Euclidean(), "euclidean"), (PoincareBall(), "sphere"), (InnerProduct(), "sphere")],
)
def test_every_space_has_a_geometry(space, compared):
    embeddings = points() / 50 if isinstance(space, PoincareBall) else points()
    found = geometry_suite(subject(space=space, embeddings=embeddings, pixels=pixels), QUICK)
    assert {name: found.values[name] for name in GEOMETRY} == pytest.approx(
        geometry_metrics(points(), LABELS), rel=1e-4
    )
    assert found.details["geometry"]["re-weighting"]["space"] == compared


def test_a_gallery_is_searched_by_the_others():
    gallery = np.arange(96) % 8 < 3
    result = reweigh(subject(gallery=gallery), QUICK)
    known = leave_classes_out(LABELS, np.arange(96), 0)
    theirs, labels, held = points()[~known], LABELS[~known], gallery[~known]
    expected = retrieval_metrics(
        theirs[~held], labels[~held], gallery=theirs[held], gallery_labels=labels[held], metrics=["MAP@R"]
    )
    assert result.unchanged["MAP@R"] == pytest.approx(expected.values["MAP@R"], rel=1e-5)


def test_what_cannot_be_measured_is_left_out_with_a_note():
    few = subject(embeddings=points()[:24], labels=LABELS[:24])
    found = geometry_suite(few, QUICK)
    notes = " ".join(found.notes)
    assert "re-weighting" in notes
    assert "re-weighting" not in found.details["geometry"]
    collapsed = geometry_suite(subject(embeddings=np.eye(12, dtype=np.float32)[np.repeat(np.arange(12), 8)]), QUICK)
    assert "phi" not in collapsed.values
    assert collapsed.primary == "D_inter"
    assert "phi" in " ".join(collapsed.notes)
    blank = points(1)
    blank[3] = 0
    dark = geometry_suite(subject(baseline=blank, baseline_name="raw pixels"), QUICK)
    assert dark.baseline == {}
    assert "row 3" in " ".join(dark.notes)
    wide = geometry_suite(subject(embeddings=points(d=200)), QUICK)
    assert "200" in " ".join(wide.notes)
    flat = geometry_suite(subject(pixels=lambda rows: torch.zeros(len(rows), 1, 2, 2)), QUICK)
    assert "MC, input linf" in " ".join(flat.notes)


def test_an_embedding_without_a_direction_is_refused():
    broken = points()
    broken[5] = 0
    with pytest.raises(DataError, match="row 5"):
        geometry_suite(subject(embeddings=broken), QUICK)


def test_the_report_has_its_pictures(tmp_path):
    given = subject(pixels=pixels, baseline=points(1), baseline_name="other")
    result = run_suites(given, QUICK, ["geometry"])
    assert result.primary == "phi"
    page = result.report(tmp_path / "audit.html").read_text()
    for title in (
        "Directions of variance",
        "Distances of pixels and of embeddings",
        "Principal directions re-weighted",
    ):
        assert title in page
    result.save(tmp_path / "audit.json")
    assert json.loads((tmp_path / "audit.json").read_text())["values"]["phi"] == result["phi"]


def test_a_model_on_images_has_all_of_it(patterns, tiny, tmp_path):
    nk.fit(patterns, "triplet", out=tmp_path / "run", overrides=[*tiny, "objective.switch=0.2"], progress=False)
    section = ["audit.resamples=20", "audit.geometry_items=20"]
    result = nk.audit(tmp_path / "run", patterns, suites=["geometry"], overrides=section, progress=False)
    assert {*GEOMETRY, "MC, input l2", "MC, input linf"} <= result.values.keys()
    assert -1 <= result["MC, input l2"] <= 1
    assert re.search(r"3 x 16 x 16, in \[0, 1\]\), of \d+ items", " ".join(result.notes))


def test_a_reader_is_warned_where_the_floor_decides_rho():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 6)
    thin = rng.normal(size=(10, 3))[labels] @ rng.normal(size=(3, 32)) + 0.0
    thin = (thin + rng.normal(size=(60, 3)) @ rng.normal(size=(3, 32)) * 0.1).astype(np.float32)
    found = geometry_suite(Subject(thin, labels, Sphere()), AuditSection(resamples=20))
    (note,) = [note for note in found.notes if "floor" in note]
    empty = 31 - np.linalg.matrix_rank(thin)
    assert f"{empty} of 31" in note
    full = rng.normal(size=(60, 32)).astype(np.float32)
    assert not any("floor" in note for note in geometry_suite(Subject(full, labels, Sphere()), AuditSection()).notes)


def test_clarity_of_the_poincare_ball_is_how_norms_order_right_and_wrong_neighbours():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 8)
    space = PoincareBall()
    centres = rng.normal(size=(6, 4))[labels]
    depth = rng.uniform(0.1, 1.0, size=(48, 1))
    points = space.project(torch.from_numpy(depth * centres + 0.15 * rng.normal(size=(48, 4)))).float().numpy()
    found = geometry_suite(Subject(points, labels, space), AuditSection(resamples=20))
    distances = space.distance(torch.from_numpy(points), torch.from_numpy(points)).fill_diagonal_(np.inf)
    right = labels[distances.argmin(dim=1).numpy()] == labels
    norms = np.linalg.norm(points, axis=1)
    pairs = [(a > b) + 0.5 * (a == b) for a in norms[right] for b in norms[~right]]
    assert found.values["clarity AUC"] == pytest.approx(np.mean(pairs))
    assert "clarity AUC" not in found.numbers
    apart = np.eye(4, dtype=np.float32)[np.arange(40) % 4] * 0.5
    none = geometry_suite(
        Subject(apart + 1e-3 * rng.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 4, space),
        AuditSection(resamples=20),
    )
    assert "clarity AUC" not in none.values
    assert any("clarity" in note for note in none.notes)
