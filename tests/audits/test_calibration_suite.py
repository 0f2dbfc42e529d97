"""The calibration and corruption suites: their numbers, directions, pictures, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nearkin as nk
from nearkin.audits import Subject, run_suites
from nearkin.audits.calibration import fit_estimators, tell_strangers
from nearkin.audits.corruption import CorruptedEncoder
from nearkin.audits.subject import divide, leave_classes_out
from nearkin.confidence import NED, KNNVote, evaluate
from nearkin.confidence.ned import DEFAULT_WIDENING
from nearkin.data.corruptions import CORRUPTIONS
from nearkin.errors import DataError, NearkinError
from nearkin.metrics.labels import halves
from nearkin.models import build_embedder
from nearkin.models.section import ModelSection
from nearkin.recipe import AuditSection
from nearkin.search import Cosine, InnerProduct, as_scorer
from nearkin.spaces import Euclidean

QUICK = AuditSection(resamples=50)
LABELS = np.repeat([f"c{i}" for i in range(12)], 10)


def clusters(noise, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(12, 8)), 10, axis=0)
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


@pytest.fixture
def subject():
    return Subject(
        clusters(0.7),
        LABELS,
        Euclidean(),
        baseline=clusters(2.0),
        baseline_name="raw pixels",
        facts={"classes": "12", "items": "120"},
        progress=False,
    )


def test_half_of_each_class_is_the_support():
    labels = np.array(["a"] * 5 + ["b"] * 4 + ["c"])
    support, queries = halves(labels, seed=3)
    assert sorted([*support, *queries]) == list(range(10))
    assert {name: int((labels[support] == name).sum()) for name in "abc"} == {"a": 3, "b": 2, "c": 1}
    assert halves(labels, seed=3)[0].tolist() == support.tolist()
    drawn = {tuple(halves(labels, seed)[0]) for seed in range(20)}
    assert len(drawn) > 5


def test_half_of_the_classes_is_unknown():
    known = leave_classes_out(LABELS, np.arange(120), seed=0)
    assert len(set(LABELS[known])) == 6
    assert not set(LABELS[known]) & set(LABELS[~known])


def test_a_published_division_is_kept(subject):
    gallery = np.arange(120) % 3 == 0
    part = Subject(subject.embeddings, LABELS, Euclidean(), gallery=gallery)
    support, queries = divide(part, seed=5)
    assert support.tolist() == np.flatnonzero(gallery).tolist()
    assert queries.tolist() == np.flatnonzero(~gallery).tolist()


def test_its_numbers_are_those_of_ned_and_of_the_others(subject):
    result = run_suites(subject, QUICK, ["calibration"])
    support, queries = divide(subject, 0)
    x = subject.embeddings
    ned = NED(space=Euclidean()).fit(x[support], LABELS[support])
    expected = evaluate(ned.predict(x[queries]), LABELS[queries], resamples=50)
    assert {name: result[f"{name}, NED"] for name in expected.values} == expected.values
    assert {name: result.intervals[f"{name}, NED"] for name in expected.values} == expected.intervals
    vote = fit_estimators(x[support], LABELS[support], Euclidean())["kNN"]
    assert isinstance(vote, KNNVote)
    assert result["ECE, kNN"] == evaluate(vote.predict(x[queries]), LABELS[queries]).values["ECE"]
    assert result["accuracy, NED"] > result.baseline["accuracy, NED"]
    strangers = tell_strangers(subject, support, queries, 0)
    assert result["unknown AUROC, density"] == strangers["density"].values["AUROC"]
    assert strangers["density"].unknown == 30
    low, high = result.intervals["unknown AUROC, density"]
    assert low < result["unknown AUROC, density"] < high
    assert np.mean(list(result.per_class["accuracy, NED"].values())) == pytest.approx(result["accuracy, NED"])


def test_its_directions_units_and_pictures_are_told(subject, tmp_path):
    result = run_suites(subject, QUICK, ["calibration"])
    lower = {row.name for row in result.rows() if row.lower_is_better}
    assert {f"{name}, NED" for name in ("ECE", "adaptive ECE", "MCE", "NLL", "Brier", "AURC")} | {"ECE, 1NN"} <= lower
    assert not any(name.startswith(("accuracy", "unknown")) for name in lower)
    assert {row.name for row in result.rows() if not row.percent} == {"NLL, NED", "Brier, NED"}
    assert (result.primary, result.higher_is_better) == ("ECE, NED", False)
    assert "temperature" in result.notes[0]
    plain = json.loads(json.dumps(result.to_dict()))
    assert set(plain["details"]) == {"calibration", "fit", "unknown"}
    fit = plain["details"]["fit"]
    assert (fit["criterion"], fit["widening"]) == ("sharpened", DEFAULT_WIDENING)
    assert "sharpened" in result.notes[0]
    assert f"{fit['temperature']:.4g}" in result.notes[0]
    page = result.report(tmp_path / "audit.html").read_text()
    for title in ("Reliability", "Risk and coverage", "Sensitivity to k", "Unknown classes"):
        assert f">{title}<" in page


def test_together_with_retrieval_map_stays_what_to_judge_by(subject):
    assert run_suites(subject, QUICK, ["calibration", "retrieval"]).primary == "MAP@R"


def test_what_cannot_be_divided_is_refused():
    points = clusters(0.5)[:4]
    for gallery in (None, np.ones(4, bool)):
        small = Subject(points, np.array(["a", "b", "c", "c"]), Euclidean(), gallery=gallery)
        with pytest.raises(DataError, match="three"):
            run_suites(small, QUICK, ["calibration"])


def test_what_cannot_be_measured_is_left_out_with_a_note():
    """Most classes have one support item, and the one that has more may be in either half."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 8)).astype(np.float32)
    labels = np.append(np.repeat(np.arange(90), 2), np.repeat(90, 20))
    result = run_suites(Subject(points, labels, Euclidean()), AuditSection(resamples=5, seed=1), ["calibration"])
    measured = any(name.startswith("unknown") for name in result)
    assert measured != any("classes" in note for note in result.notes)
    seeds = [AuditSection(resamples=5, seed=seed) for seed in range(6)]
    found = [list(run_suites(Subject(points, labels, Euclidean()), seed, ["calibration"])) for seed in seeds]
    assert len({any(name.startswith("unknown") for name in names) for names in found}) == 2


@pytest.mark.parametrize(("space", "missing"), [(Cosine(), "prototypes"), (InnerProduct(), "Gou")])
def test_similarities_have_fewer_estimators(space, missing):
    result = run_suites(Subject(clusters(0.5), LABELS, space), AuditSection(resamples=5), ["calibration"])
    assert "ECE, NED" in set(result)
    assert not any(missing in name for name in result)


def test_a_suite_named_twice_runs_once(subject):
    twice = run_suites(subject, QUICK, ["calibration", "calibration"])
    assert len(twice.notes) == len(run_suites(subject, QUICK, ["calibration"]).notes)


def test_embeddings_alone_cannot_be_corrupted(subject):
    with pytest.raises(DataError, match="model"):
        run_suites(subject, QUICK, ["corruption"])


def fake(subject):
    """Embeddings of corrupted items: the more severe, the more noise."""

    def corrupted(name, severity, rows):
        rng = np.random.default_rng([CORRUPTIONS.index(name), severity])
        noise = 0.4 * severity * rng.normal(size=(len(rows), subject.embeddings.shape[1]))
        return (subject.embeddings[rows] + noise).astype(np.float32)

    return corrupted


def test_corruption_averages_over_all_cells(subject, tmp_path):
    part = subject.changed(corrupted=fake(subject))
    section = AuditSection(resamples=50, corrupted_queries=40, severities=[1, 4])
    result = run_suites(part, section, ["corruption"])
    details = result.details["corruption"]
    cells = np.array(details["cells"]["NED"]["accuracy"])
    assert cells.shape == (15, 2)
    assert result["accuracy, corrupted, NED"] == pytest.approx(cells.mean())
    assert result["ECE, corrupted, NED"] == pytest.approx(np.mean(details["cells"]["NED"]["ECE"]))
    assert cells[:, 0].mean() > cells[:, 1].mean()
    low, high = result.intervals["accuracy, corrupted, NED"]
    assert low < result["accuracy, corrupted, NED"] < high
    assert "40" in result.notes[-1]
    support, queries = divide(part, 0)
    rows = np.sort(np.random.default_rng(0).choice(queries, 40, replace=False))
    ned = NED(space=Euclidean()).fit(part.embeddings[support], LABELS[support])
    foggy = evaluate(ned.predict(fake(subject)("fog", 4, rows)), LABELS[rows]).values
    assert cells[CORRUPTIONS.index("fog"), 1] == pytest.approx(foggy["accuracy"])
    assert details["cells"]["NED"]["ECE"][CORRUPTIONS.index("fog")][1] == pytest.approx(foggy["ECE"], abs=1e-6)
    page = result.report(tmp_path / "audit.html").read_text()
    assert ">Corrupted queries<" in page
    assert ">Corruption by severity<" in page


@pytest.mark.parametrize("severities", [[0], [6], [], [1.5]])
def test_severities_are_checked(severities):
    with pytest.raises(ValueError, match="severities"):
        AuditSection(severities=severities)


@pytest.fixture
def small_model():
    section = ModelSection(
        backbone="conv4", pretrained=False, size=16, channels=3, dimension=8, freeze=None, cache=False
    )
    return build_embedder(section)


def test_corrupted_embeddings_are_kept(patterns, small_model, tmp_path, monkeypatch):
    pytest.importorskip("imagecorruptions", reason="the extra `audit` is not installed", exc_type=ImportError)
    encoder = CorruptedEncoder(small_model, patterns, tmp_path)
    rows = np.array([3, 5, 40])
    first = encoder("gaussian_noise", 3, rows)
    assert first.shape == (3, 8)
    (kept,) = tmp_path.glob("*.npy")
    np.save(kept, first + 1)  # what is on disk is believed
    assert np.array_equal(CorruptedEncoder(small_model, patterns, tmp_path)("gaussian_noise", 3, rows), first + 1)
    assert not np.array_equal(encoder("gaussian_noise", 4, rows), first)
    assert len(list(tmp_path.glob("*.npy"))) == 2
    clean = small_model.encode(patterns.select(rows), progress=False)
    assert not np.allclose(first, clean)


def test_a_model_is_audited_under_corruption(patterns, small_model, tmp_path, monkeypatch):
    pytest.importorskip("imagecorruptions", reason="the extra `audit` is not installed", exc_type=ImportError)
    monkeypatch.setenv("HOME", str(tmp_path))
    small_model.card = {"recipe": {"audit": {"corrupted_queries": 10, "severities": [5], "resamples": 20}}}
    result = nk.audit(small_model, patterns, suites=["calibration", "corruption"], baseline=False, progress=False)
    assert 0 <= result["accuracy, corrupted, NED"] <= 1
    assert result.details["corruption"]["severities"] == [5]


@pytest.mark.parametrize("name", ["sphere", "euclidean", "cosine", "inner-product"])
def test_a_space_by_its_name_is_that_space(name):
    by_name = nk.audit(clusters(0.5), LABELS, suites=["calibration"], space=name, overrides=["audit.resamples=5"])
    space = as_scorer(name)
    given = nk.audit(clusters(0.5), LABELS, suites=["calibration"], space=space, overrides=["audit.resamples=5"])
    assert by_name.values == given.values


def test_scores_of_one_class_against_none_are_left_out():
    pair = LABELS[:20]
    result = run_suites(Subject(clusters(0.5)[:20], pair, Euclidean()), AuditSection(resamples=5), ["calibration"])
    assert {name for name in result if name.startswith("unknown")} == {
        "unknown AUROC, density",
        "unknown AUROC, distance",
    }


def test_suites_are_a_list_of_names():
    with pytest.raises(NearkinError, match="list"):
        nk.audit(clusters(0.5), LABELS, suites="calibration")
    with pytest.raises(NearkinError, match="suite"):
        nk.audit(clusters(0.5), LABELS, suites=[])
    with pytest.raises(DataError, match="missing"):
        nk.audit(clusters(0.5), [None, *LABELS[1:]])
