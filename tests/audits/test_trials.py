"""Trials from a list to rates, with made-up voices whose embeddings are known."""

import numpy as np
import pytest

import nearkin as nk
from nearkin.audits.trials import list_pairs, means, rows_of, score_list, scores_of, side_scores
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError
from nearkin.metrics import verification_from_scores, verification_metrics
from nearkin.metrics.trials import TrialList, read_trials
from nearkin.models import build_embedder
from nearkin.models.section import ModelSection
from nearkin.spaces import make_space


@pytest.fixture
def voices():
    paths = [f"wav/id{who}/film/{take}.wav" for who in range(4) for take in range(6)]
    labels = [path.split("/")[1] for path in paths]
    digits = [str(take % 2) for _ in range(4) for take in range(6)]
    return nk.Dataset(Manifest.from_rows(paths, labels, digit=digits), ArrayStore({}), "audio", "made up")


@pytest.fixture
def model(voices, monkeypatch):
    section = ModelSection(backbone="tdnn-narrow", size=8, pooling="stats", dimension=5)
    embedder = build_embedder(section).eval()
    people = np.random.default_rng(1).normal(size=(4, 5))

    def encode(items, **_):
        rows = [int(path.split("/")[1][2:]) * 6 + int(path.split("/")[3][0]) for path in items.manifest.paths]
        spread = np.random.default_rng(0).normal(size=(24, 5))
        vectors = people[np.array(rows) // 6] + spread[rows]
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    monkeypatch.setattr(embedder, "encode", encode)
    return embedder


def test_all_pairs_are_those_of_the_metric(model, voices):
    found = score_list(model, voices, list_pairs(voices), resamples=20, progress=False)
    expected = verification_metrics(model.encode(voices), voices.labels)
    assert found.results["all", "cosine"].values["EER"] == pytest.approx(expected.values["EER"])
    low, high = found.intervals["all", "cosine"]
    assert 0 <= low <= high <= 1


def test_a_list_with_short_names_is_scored(model, voices, tmp_path):
    path = tmp_path / "veri_test.txt"
    path.write_text("1 id0/film/0.flac id0/film/1.flac\n0 id0/film/0.flac id1/film/0.flac\n0 id2/film/0 id3/film/5\n")
    trials = read_trials(path)
    found = score_list(model, voices, trials, resamples=5, progress=False)
    vectors = model.encode(voices)
    wanted = [vectors[a] @ vectors[b] for a, b in ((0, 1), (0, 6), (12, 23))]
    np.testing.assert_allclose(found.scores["cosine"], wanted, rtol=1e-5)
    assert not found.notes


def test_the_mean_of_several_recordings_is_enrolled(model, voices):
    trials = list_pairs(voices, enrol=3)
    found = score_list(model, voices, trials, resamples=5, progress=False)
    vectors, rows = model.encode(voices), rows_of(trials, voices)
    sides = np.array([vectors[row].mean(axis=0) for row in rows])
    sides /= np.linalg.norm(sides, axis=1, keepdims=True)
    wanted = (sides[trials.enrolled] * sides[trials.queries]).sum(axis=1)
    np.testing.assert_allclose(found.scores["cosine"], wanted, rtol=1e-4, atol=1e-6)
    assert found.results["all", "cosine"].genuine == 4
    np.testing.assert_allclose(
        means(vectors, rows, make_space("euclidean"))[0], vectors[rows[0]].mean(axis=0), rtol=1e-5
    )


def test_trials_are_told_apart_by_what_is_said(model, voices):
    trials = list_pairs(voices)
    found = score_list(model, voices, trials, content="digit", resamples=5, progress=False)
    rows = np.concatenate(rows_of(trials, voices))
    same = (rows[trials.enrolled] - rows[trials.queries]) % 2 == 0
    for part, kept in (("same digit", same), ("other digit", ~same)):
        expected = verification_from_scores(found.scores["cosine"][kept], trials.same[kept])
        assert found.results[part, "cosine"].values == expected.values
    with pytest.raises(DataError, match="several"):
        score_list(model, voices, list_pairs(voices, enrol=2), content="digit", progress=False)


@pytest.mark.parametrize(("norm", "top"), [("s", None), ("as", 3)])
def test_scores_are_normalised_by_strangers(model, voices, norm, top):
    asked, strangers = voices.select(range(12)), voices.select(range(12, 24))
    trials = list_pairs(asked)
    options = {"norm": norm, "cohort": strangers, "top": top or 200, "resamples": 5, "progress": False}
    found = score_list(model, asked, trials, **options).scores["cosine"]
    vectors, cohort = model.encode(asked), model.encode(strangers)
    rows = np.concatenate(rows_of(trials, asked))
    for place in range(0, len(trials), 7):
        sides = [vectors[rows[side[place]]] for side in (trials.enrolled, trials.queries)]
        kept = [np.sort(cohort @ side)[::-1][:top] for side in sides]
        wanted = np.mean([(sides[0] @ sides[1] - some.mean()) / some.std() for some in kept])
        assert found[place] == pytest.approx(wanted, rel=1e-3)
    with pytest.raises(DataError, match="cohort"):
        score_list(model, asked, trials, norm=norm, progress=False)
    with pytest.raises(DataError, match="normalised"):
        score_list(model, asked, trials, norm="z", progress=False)


def test_recordings_that_are_not_there_are_named(model, voices):
    one = np.array([0])
    missing = TrialList((("id9/film/0.wav",), ("id0/film/0.wav",)), one, one + 1, one > 1)
    with pytest.raises(DataError, match="id9"):
        rows_of(missing, voices)
    several = TrialList((("0.wav",), ("id0/film/0.wav",)), one, one + 1, one > 1)
    with pytest.raises(DataError, match="more than one"):
        rows_of(several, voices)


def test_names_may_have_dots_and_no_suffix():
    manifest = Manifest.from_rows(["a/one.1.wav", "a/one.2.wav", "b/two.wav"], ["a", "a", "b"])
    dotted = nk.Dataset(manifest, ArrayStore({}), "audio", "dotted")
    sides = (("one.1",), ("one.2.flac",), ("two.wav",))
    trials = TrialList(sides, np.array([0, 0]), np.array([1, 2]), np.array([True, False]))
    assert [row.tolist() for row in rows_of(trials, dotted)] == [[0], [1], [2]]
    for name in (".", "/", ".."):
        with pytest.raises(DataError, match="lacks"):
            rows_of(TrialList(((name,), *sides[1:]), trials.enrolled, trials.queries, trials.same), dotted)


@pytest.mark.parametrize("genuine", [True, False])
def test_trials_of_one_kind_have_no_error_rates(model, voices, genuine):
    trials = list_pairs(voices)
    kept = trials.same == genuine
    one = TrialList(trials.sides, trials.enrolled[kept], trials.queries[kept], trials.same[kept])
    with pytest.raises(DataError, match="both kinds"):
        score_list(model, voices, one, progress=False)


def test_a_list_that_disagrees_with_the_labels_is_noted(model, voices):
    trials = list_pairs(voices)
    wrong = TrialList(trials.sides, trials.enrolled, trials.queries, ~trials.same)
    assert "disagree" in score_list(model, voices, wrong, resamples=5, progress=False).notes[0]


def test_a_learned_similarity_is_asked_in_three_ways():
    section = ModelSection(
        backbone="tdnn-narrow", size=8, pooling="stats", dimension=5, space="euclidean", similarity={}
    )
    learned = build_embedder(section, classes=["a", "b"]).eval()
    vectors = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    enrolled, queries = np.array([0, 1, 5, 0]), np.array([2, 3, 4, 1])
    trials = TrialList(tuple((str(place),) for place in range(6)), enrolled, queries, np.array([True, False] * 2))
    found = side_scores(learned, vectors, trials)
    assert list(found) == list(scores_of(learned)) == ["SIM", "cosine", "cosine+SIM"]
    for name, by in (("SIM", "sim"), ("cosine", "cosine"), ("cosine+SIM", "cosine+sim")):
        expected = learned.pair_scores(vectors[enrolled], vectors[queries], by=by)
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
