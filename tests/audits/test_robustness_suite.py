"""The robustness suite: its accuracies against attacks run by hand, who is attacked, what is refused, its pictures."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin as nk
from nearkin.attacks import Combined, PixelEmbedder, class_codes, classifier_of_estimator
from nearkin.attacks.library import published_attack
from nearkin.audits import Subject, run_suites, subject_of_model
from nearkin.audits.attacks import VOTES, AttackedClasses, Scene
from nearkin.audits.calibration import OURS, divided, fit_estimators
from nearkin.audits.robustness import _add_checks, robustness_suite
from nearkin.audits.suites import SuiteResult
from nearkin.errors import DataError, RecipeError
from nearkin.models import PixelReader
from nearkin.recipe import AuditSection, load_recipe
from nearkin.spaces import Sphere

QUICK = AuditSection(
    resamples=20,
    attacked_queries=12,
    attacks=["fgsm", "pgd"],
    attack_epsilons=[0.01, 0.1],
    attack_steps=4,
    voronoi_items=20,
    smoothed_queries=2,
    smoothing_samples=20,
)
ITEMS = ["data.split=items", "data.test_items=0.4", "data.val_items=0.2", "data.per_class=2", "training.max_steps=30"]


@pytest.fixture(scope="module")
def model(patterns, tiny):
    return nk.fit(patterns, "proxy-anchor", overrides=[*tiny, "training.max_steps=24"], progress=False)


@pytest.fixture(scope="module")
def subject(model, patterns, tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    whole = subject_of_model(model, patterns, cache_directory=folder, progress=False).changed(progress=False)
    reader = PixelReader(model, patterns)
    # The model saw these classes: enough items for a sample.
    embeddings = model.encode(patterns, progress=False)
    return whole.changed(
        embeddings=embeddings, labels=patterns.labels, pixels=reader, picture=patterns.image, baseline=None
    )


@pytest.fixture(scope="module")
def found(subject):
    return robustness_suite(subject, QUICK)


def test_accuracies_are_those_of_attacks_run_by_hand(subject, found, model):
    support, _ = divided(subject, 0)
    scene = Scene(subject, QUICK)
    assert len(scene.rows) == 12
    fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
    embed = PixelEmbedder(model)
    target = classifier_of_estimator(embed, fitted[OURS])
    codes = class_codes(target.classes, subject.labels[scene.rows])
    for eps in (0.01, 0.1):
        done = published_attack("pgd", target, scene.pixels, codes, eps, steps=4)
        assert found.values[f"accuracy, pgd {eps:g}, NED"] == pytest.approx(1 - done.wrong.double().mean().item())
        with torch.no_grad():
            moved = embed(done.pixels).numpy()
        for name in VOTES:
            right = fitted[name].predict(moved).labels == subject.labels[scene.rows]
            assert found.values[f"accuracy, pgd {eps:g}, {name}"] == pytest.approx(right.mean())


def test_larger_perturbations_do_more(found):
    for name in ("NED", "prototypes (softmax)"):
        clean = found.values[f"accuracy, unattacked, {name}"]
        assert clean >= found.values[f"accuracy, pgd 0.01, {name}"] >= found.values[f"accuracy, pgd 0.1, {name}"]
    assert found.values["P@1, unattacked"] >= found.values["P@1, pushed away 0.01"]
    assert found.values["P@1, pushed away 0.01"] >= found.values["P@1, pushed away 0.1"]
    assert found.values["pulled to a chosen item 0.1"] >= found.values["pulled to a chosen item 0.01"]


def test_first_neighbours_are_right_as_often_as_a_search_says(subject, found):
    scene = Scene(subject, QUICK)
    _, near = nk.search.exact(subject.embeddings[scene.rows], subject.embeddings[scene.support], 1, space=subject.space)
    hits = subject.labels[scene.support][near[:, 0].numpy()] == subject.labels[scene.rows]
    assert found.values["P@1, unattacked"] == pytest.approx(hits.mean())


def test_cells_never_fall_below_balls(found):
    cells = found.details["robustness"]["cells"]
    assert all(voronoi >= standard for voronoi, standard in zip(cells["VAA"], cells["SAA"], strict=True))
    assert cells["inputs"] == 12
    assert set(QUICK.attack_epsilons) <= set(cells["epsilons"])
    assert found.values["VAA, whole cells"] == cells["global Voronoi robustness"] <= min(cells["VAA"])
    assert "VAA, whole cells" in found.intervals


def test_what_it_says_can_be_kept_and_drawn(found, subject):
    json.dumps(found.details)
    assert found.primary in found.values
    assert set(found.lower_is_better) <= set(found.values)
    assert any("masked" in note for note in found.notes)
    assert any("pixels" in note for note in found.notes)
    figures = [draw() for draw in found.drawings]
    assert [figure.title for figure in figures] == [
        "Attacked queries",
        "Accuracy under attack",
        "Balls and Voronoi cells",
        "Certified accuracy",
    ]
    for figure in figures:
        image = Image.open(io.BytesIO(figure.png))
        assert min(image.size) > 100
        assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_certified_queries_are_drawn_from_all(subject):
    places = Scene(subject, QUICK.model_copy(update={"smoothed_queries": 4})).smoothed
    assert len(set(places.tolist())) == 4
    assert places.tolist() != [0, 1, 2, 3]
    assert len(Scene(subject, QUICK.model_copy(update={"smoothed_queries": 99})).smoothed) == 12


def test_cells_are_of_support_and_queries(subject, found):
    scene = Scene(subject, QUICK)
    assert set(scene.others) == set(range(len(subject.labels))) - set(scene.rows)
    assert set(scene.support) <= set(scene.others)
    assert found.details["robustness"]["cells"]["cells"] == 20
    assert any("20" in note for note in found.notes)


def test_items_without_cells_cost_only_the_cells(subject):
    """Equal pixels under different labels have no cells: everything else is still told."""
    same = subject.changed(pixels=lambda rows: torch.full((len(rows), 3, 16, 16), 0.5))
    section = QUICK.model_copy(update={"attacks": ["fgsm"], "attack_epsilons": [0.01], "smoothed_queries": 0})
    found = robustness_suite(same, section)
    assert any("SAA" in note and "VAA" in note for note in found.notes)
    assert "accuracy, fgsm 0.01, NED" in found.values


@pytest.mark.parametrize(
    ("others", "believed"),
    [({"margin": 0.58, "square": 0.9}, True), ({"margin": 0.3, "square": 0.9}, False)],
)
def test_other_attacks_that_find_more_are_told(others, believed):
    classes = AttackedClasses({}, checks={"pgd, as above": 0.6, **others}, checked_eps=0.1)
    told = SuiteResult({})
    _add_checks(told, classes)
    assert told.notes[0].count("margin") == (1 if believed else 2)  # its accuracy, and again where it finds more


def test_checks_begin_with_the_strongest_attack_listed(subject):
    section = QUICK.model_copy(
        update={"attacks": ["pgd", "fgsm"], "attack_epsilons": [0.05], "voronoi_items": 0, "smoothed_queries": 0}
    )
    found = robustness_suite(subject, section)
    first, value = next(iter(found.details["robustness"]["checks"]["accuracy"].items()))
    assert value == min(found.values[f"accuracy, {name} 0.05, NED"] for name in ("pgd", "fgsm"))
    assert first.endswith(", as above")


def test_parts_can_be_left_out(subject):
    section = QUICK.model_copy(update={"voronoi_items": 0, "smoothed_queries": 0, "attacks": ["fgsm"]})
    found = robustness_suite(subject, section)
    assert not any(name.startswith(("SAA", "VAA", "certified")) for name in found.values)
    assert len(found.drawings) == 2


def test_normalised_units_are_other_sizes(subject):
    scene = Scene(subject, QUICK.model_copy(update={"attack_unit": "normalised"}))
    moved = published_attack(
        "fgsm", scene.targets[OURS], scene.pixels, scene.codes(OURS), 0.1, unit=scene.unit
    )  # fmt: skip
    std = torch.tensor(subject.model.spec.std).view(1, -1, 1, 1)
    changes = (moved.pixels - scene.pixels).abs().amax(dim=(0, 2, 3))
    assert (changes <= 0.1 * std.flatten() + 1e-6).all()
    assert changes.max() > 0.05 * std.min()


def test_l2_has_no_square_and_square_no_l2(subject):
    section = QUICK.model_copy(update={"attack_norm": "l2", "attack_epsilons": [0.5], "voronoi_items": 0})
    found = robustness_suite(subject, section)
    assert not any("Square" in name for name in found.details["robustness"]["checks"]["accuracy"])
    with pytest.raises(RecipeError, match="l2"):
        AuditSection(attacks=["square"], attack_norm="l2")
    with pytest.raises(RecipeError, match="pgd"):
        AuditSection(attacks=["pdg"])
    with pytest.raises(ValueError, match="digits"):
        AuditSection(attack_epsilons=[0.1, 0.1000001])
    with pytest.raises(RecipeError, match="cw"):
        load_recipe("base", ["audit.attacks=[cw]"])


def test_other_norms_and_targets(subject):
    parts = {"voronoi_items": 4, "smoothed_queries": 0, "attacks": ["pgd"], "attack_epsilons": [2.0], "targeted": True}
    section = QUICK.model_copy(update={**parts, "attack_norm": "combined", "attack_l1_ratio": 20.0})
    scene = Scene(subject, section)
    assert scene.ball_norm == Combined.of_balls(20.0, 1.0, 768)
    found = robustness_suite(subject, section)
    assert 0 <= found.values["named as a chosen class 2"] <= 1
    assert "named as a chosen class 2" in found.lower_is_better
    with pytest.raises(RecipeError, match="attack_l1_ratio"):
        load_recipe("base", ["audit.attack_l1_ratio=5"])


def test_a_softmax_run_is_attacked_by_its_own_classes(patterns, tiny, tmp_path):
    overrides = [*tiny, *ITEMS]
    nk.fit(patterns, "softmax", overrides=overrides, out=tmp_path / "run", progress=False)
    settings = ["audit.attacks=[fgsm]", "audit.attack_epsilons=[0.05]", "audit.voronoi_items=0"]
    settings += ["audit.attacked_queries=10", "audit.smoothed_queries=0", "audit.attack_steps=2", "audit.resamples=10"]
    result = nk.audit(tmp_path / "run", patterns, suites=["robustness"], overrides=settings, progress=False)
    trained = nk.load(tmp_path / "run")
    assert "accuracy, fgsm 0.05, softmax" in result.values
    # The classifier that was attacked is one that learned these classes.
    scores = nk.training.run.run_classifier(tmp_path / "run", trained)
    points = torch.from_numpy(trained.encode(patterns, progress=False))
    named = np.array(scores.names)[scores.scores(points).argmax(dim=1).numpy()]
    assert (named == patterns.labels).mean() > 0.3
    assert not scores.scores(points).requires_grad


def test_a_learned_similarity_is_attacked_by_prototypes_and_dense_layer(patterns, tiny, tmp_path):
    overrides = [*tiny, *ITEMS]
    nk.fit(patterns, "learned-similarity", overrides=overrides, out=tmp_path / "run", progress=False)
    settings = ["audit.attacks=[fgsm]", "audit.attack_epsilons=[0.05]", "audit.voronoi_items=0"]
    settings += ["audit.attacked_queries=10", "audit.smoothed_queries=0", "audit.attack_steps=2", "audit.resamples=10"]
    result = nk.audit(tmp_path / "run", patterns, suites=["robustness"], overrides=settings, progress=False)
    assert {"accuracy, fgsm 0.05, SIM", "accuracy, fgsm 0.05, DOL", "accuracy, fgsm 0.05, NED"} <= set(result.values)


def test_what_has_no_pixels_is_refused():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(24, 4)).astype(np.float32)
    with pytest.raises(DataError, match="model"):
        run_suites(Subject(vectors, np.repeat(np.arange(4), 6), Sphere(), progress=False), QUICK, ["robustness"])
