"""The few-shot suite: its numbers, what it leaves out, its picture, and what it refuses."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from nearkin.audits import Subject, run_suites
from nearkin.errors import DataError, RecipeError
from nearkin.metrics.fewshot import REPRESENTATIONS, fewshot_accuracy
from nearkin.recipe import AuditSection, load_recipe
from nearkin.search import Cosine
from nearkin.spaces import Euclidean, Sphere

QUICK = AuditSection(fewshot_ways=[2, 6], fewshot_shots=[1, 3], fewshot_queries=5, fewshot_episodes=20, seed=3)
LABELS = np.repeat([f"c{i}" for i in range(8)], 10)


def clusters(noise, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(8, 6)), 10, axis=0)
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


@pytest.fixture
def subject():
    return Subject(
        clusters(1.0), LABELS, Euclidean(), baseline=clusters(3.0), baseline_name="raw pixels", progress=False
    )


def test_its_numbers_are_those_of_the_metric(subject):
    result = run_suites(subject, QUICK, ["fewshot"])
    names = [
        f"{way}-way {shot}-shot{'' if one == 'mean' else f', {one}'}"
        for way in (2, 6)
        for shot in (1, 3)
        for one in (REPRESENTATIONS if shot > 1 else ["mean"])
    ]
    assert list(result) == names == list(result.intervals) == list(result.baseline)
    given = {"way": 6, "shot": 3, "query": 5, "episodes": 20, "seed": 3, "representation": "distance-ratio"}
    expected = fewshot_accuracy(subject.embeddings, LABELS, space=Euclidean(), **given)
    untrained = fewshot_accuracy(subject.baseline, LABELS, space=Sphere(), **given)
    metric = "6-way 3-shot, distance-ratio"
    assert result[metric] == expected.accuracy
    assert result.intervals[metric] == expected.interval
    assert result.baseline[metric] == untrained.accuracy < result[metric]
    ahead = expected.minus(untrained)
    detail = json.loads(json.dumps(result.to_dict()))["details"]["fewshot"][metric]
    assert detail["above baseline"] == [ahead.difference, *ahead.interval]
    assert (detail["way"], detail["shot"], detail["query"], detail["episodes"]) == (6, 3, 5, 20)


def test_classes_have_their_own_accuracy_for_paired_tests(subject):
    result = run_suites(subject, QUICK, ["fewshot"])
    assert set(result.per_class) == set(result)
    assert result.per_class["6-way 3-shot, nearest"] != result.per_class["6-way 3-shot"]
    assert set(result.per_class["6-way 1-shot"]) == set(LABELS)
    mean = np.mean(list(result.per_class["6-way 1-shot"].values()))
    assert mean == pytest.approx(result["6-way 1-shot"], abs=0.05)


def test_all_is_better_when_higher_and_a_share(subject):
    result = run_suites(subject, QUICK, ["fewshot"])
    assert not any(row.lower_is_better for row in result.rows())
    assert all(row.percent for row in result.rows())


def test_alone_it_names_what_to_judge_by(subject):
    assert run_suites(subject, QUICK, ["fewshot"]).primary == "2-way 1-shot"
    assert run_suites(subject, QUICK, ["fewshot"]).higher_is_better
    assert run_suites(subject, QUICK, ["fewshot", "retrieval"]).primary == "MAP@R"


def test_what_the_data_cannot_offer_is_left_out_with_a_note(subject):
    section = QUICK.model_copy(update={"fewshot_ways": [2, 9], "fewshot_shots": [1, 6]})
    result = run_suites(subject, section, ["fewshot"])
    assert list(result) == ["2-way 1-shot"]
    (note,) = [one for one in result.notes if "left out" in one]
    assert "9-way 6-shot" in note
    assert "11 items" in note
    assert "audit.fewshot_queries" in note
    assert not any("left out" in one for one in run_suites(subject, QUICK, ["fewshot"]).notes)


def test_data_that_offers_nothing_is_refused(subject):
    with pytest.raises(DataError, match=r"audit\.fewshot_ways"):
        run_suites(subject, QUICK.model_copy(update={"fewshot_queries": 50}), ["fewshot"])


def test_similarities_without_a_mean_have_their_nearest(subject):
    similar = Subject(subject.embeddings, LABELS, Cosine(), progress=False)
    result = run_suites(similar, QUICK, ["fewshot"])
    assert list(result) == [f"{way}-way {more}" for way in (2, 6) for more in ("1-shot", "3-shot, nearest")]
    assert any("mean" in note for note in result.notes)


def test_labels_need_not_be_names(subject):
    numbered = Subject(subject.embeddings, np.repeat(np.arange(8), 10), Euclidean(), progress=False)
    found, named = (run_suites(one, QUICK, ["fewshot"]) for one in (numbered, subject))
    assert found.values == named.values


def test_its_picture_is_on_the_page(subject, tmp_path):
    result = run_suites(subject, QUICK, ["fewshot"])
    assert ">Few shots<" in result.report(tmp_path / "audit.html").read_text()


@pytest.mark.pixels
def test_its_picture_shows_the_baseline_where_there_is_one(subject):
    alone = Subject(subject.embeddings, LABELS, Euclidean(), progress=False)
    pictures = [run_suites(one, QUICK, ["fewshot"]).drawings[0]().png for one in (subject, alone)]
    assert all(Image.open(io.BytesIO(png)).width > 1000 for png in pictures)
    assert pictures[0] != pictures[1]


def test_one_number_of_shots_is_no_picture_and_one_shot_is_on_every_line(subject, monkeypatch):
    for shots in ([1], [3]):
        section = QUICK.model_copy(update={"fewshot_shots": shots})
        assert run_suites(subject, section, ["fewshot"]).drawings == []
    seen = {}
    monkeypatch.setattr("nearkin.audits.fewshot.draw_sweep", lambda series, **more: seen.update(series, **more) or b"")
    result = run_suites(subject, QUICK, ["fewshot"])
    result.drawings[0]()
    lines = seen["6-way accuracy"]
    assert list(lines) == [*REPRESENTATIONS, "mean, raw pixels"]
    assert all(shots == [1, 3] for shots, _ in lines.values())
    assert {lines[name][1][0] for name in REPRESENTATIONS} == {result["6-way 1-shot"]}
    assert (seen["best_at"](1.0), seen["best_at"](5.0)) == ("with 1 shot", "with 5 shots")


def test_its_note_says_what_intervals_are_over(subject):
    note = run_suites(subject, QUICK, ["fewshot"]).notes[0]
    assert "episodes" in note


def test_settings_are_checked_and_each_counts_once():
    recipe = load_recipe("proxy-anchor", ["audit.fewshot_ways=[20, 5, 5]", "audit.fewshot_shots=[5, 1]"])
    assert (recipe.audit.fewshot_ways, recipe.audit.fewshot_shots) == ([5, 20], [1, 5])
    for bad in ("audit.fewshot_ways=[1]", "audit.fewshot_shots=[]", "audit.fewshot_episodes=1"):
        with pytest.raises(RecipeError, match=bad.split("=")[0]):
            load_recipe("proxy-anchor", [bad])
