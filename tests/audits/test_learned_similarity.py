"""Audits of a model with a learned similarity: what it adds to each suite, against naive loops and scikit-learn."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score, roc_curve

import nearkin as nk
from nearkin.audits import Subject, run_suites
from nearkin.audits.learned_similarity import COSINE, FUSED, RAW, SIM, score_trials
from nearkin.audits.result import draw_subject
from nearkin.audits.subject import compared_by, shown
from nearkin.metrics import retrieval_metrics, verification_from_scores
from nearkin.metrics.classification import classification_metrics
from nearkin.metrics.fewshot import fewshot_accuracy
from nearkin.metrics.labels import halves
from nearkin.models import build_embedder
from nearkin.models.section import ModelSection
from nearkin.models.similarity import PairSimilarity
from nearkin.models.similarity_model import SimilarityModel
from nearkin.recipe import AuditSection
from nearkin.spaces import Euclidean, Sphere

CLASSES = tuple(f"c{number}" for number in range(8))
LABELS = np.repeat(CLASSES, 10)
QUICK = AuditSection(
    resamples=40,
    fewshot_ways=[2, 6],
    fewshot_shots=[1, 3],
    fewshot_queries=5,
    fewshot_episodes=20,
    classification_k=[3],
)


def points(noise=0.8, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(8, 6)), 10, axis=0)
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    """A model whose similarity is not symmetric and knows something: minus the distance, more or less."""
    torch.manual_seed(0)
    section = ModelSection(backbone="conv4", pretrained=False, channels=3, size=16, dimension=6, space="euclidean")
    network = PairSimilarity(6, hidden=24)
    model = SimilarityModel(build_embedder(section), network, CLASSES).eval()
    with torch.no_grad():
        for unit in range(12):  # -|a_i - b_i| by two units each, and a little of its own for each side
            place = unit % 6
            sign = 1.0 if unit < 6 else -1.0
            network.first.weight[unit].zero_()
            network.first.weight[unit, place], network.first.weight[unit, 6 + place] = sign, -sign
            network.second.weight[0, unit] = -0.6
        network.first.bias[:12] = 0.0
        network.first.weight[12:] *= 0.3
        x = torch.from_numpy(points())
        model.prototypes.points.copy_(x.reshape(8, 10, 6).mean(dim=1))
    return model


def subject(model, **more):
    given = {"embeddings": points(), "labels": LABELS, "facts": {"classes": "8", "items": "80"}, **more}
    return Subject(given.pop("embeddings"), given.pop("labels"), model.space, learned=model, progress=False, **given)


def similarity(model, enrolled, query):
    """S of one pair by plain arrays."""
    first, second = model.network.first, model.network.second
    hidden = first.weight.detach().double().numpy() @ np.concatenate([enrolled, query]) + first.bias.detach().numpy()
    hidden = np.where(hidden > 0, hidden, 0.1 * hidden)
    return float(second.weight.detach().double().numpy()[0] @ hidden + second.bias.detach().numpy()[0])


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def interpolated_equal_error(scores, same):
    """Where the polygon through scikit-learn's operating points meets FPR = FNR."""
    fpr, tpr, _ = roc_curve(same, scores, drop_intermediate=False)
    gap = (1 - tpr) - fpr
    after = int(np.argmax(gap <= 0))
    share = gap[after - 1] / (gap[after - 1] - gap[after])
    return fpr[after - 1] + share * (fpr[after] - fpr[after - 1])


# Verification


@pytest.mark.parametrize("gallery", [None, np.arange(80) % 4 == 0], ids=["among themselves", "with a gallery"])
def test_trials_are_scored_as_naive_loops_score_them(model, gallery):
    given = subject(model, gallery=gallery)
    found = score_trials(given, model, QUICK, 10_000)
    x = given.embeddings.astype(np.float64)
    known = np.arange(80) if gallery is None else np.flatnonzero(gallery)
    asked = np.arange(80) if gallery is None else np.flatnonzero(~gallery)
    trials = found.trials
    expected = {SIM: [], COSINE: [], FUSED: [], RAW: []}
    for enrolled, query in zip(known[trials.enrolled], asked[trials.queries], strict=True):
        s, c = similarity(model, x[enrolled], x[query]), cosine(x[enrolled], x[query])
        expected[SIM].append(s)
        expected[COSINE].append(c)
        expected[FUSED].append((1 / (1 + np.exp(-s)) + (1 + c) / 2) / 2)
        expected[RAW].append(s + c)
    same = LABELS[known[trials.enrolled]] == LABELS[asked[trials.queries]]
    assert (trials.same == same).all()
    if gallery is not None:
        assert gallery[known[trials.enrolled]].all()
        assert not gallery[asked[trials.queries]].any()
    for name, scores in expected.items():
        values = found.results[name].values
        assert values["EER"] == pytest.approx(interpolated_equal_error(scores, same), abs=1e-6)
        assert values["ROC-AUC"] == pytest.approx(roc_auc_score(same, scores), abs=1e-6)


def test_the_order_of_a_pair_matters_to_the_similarity(model):
    x = points().astype(np.float64)
    assert abs(similarity(model, x[0], x[15]) - similarity(model, x[15], x[0])) > 1e-3


def test_the_fused_score_is_the_models(model, monkeypatch):
    seen = []

    def kept(scores, same):
        seen.append(scores)
        return verification_from_scores(scores, same)

    monkeypatch.setattr("nearkin.audits.learned_similarity.verification_from_scores", kept)
    given = subject(model)
    trials = score_trials(given, model, QUICK, 500).trials
    enrolled, queries = given.embeddings[trials.enrolled], given.embeddings[trials.queries]
    for scores, by in zip(seen, ("sim", "cosine", "cosine+sim", "raw-sum"), strict=True):
        np.testing.assert_allclose(scores, model.pair_scores(enrolled, queries, by), rtol=1e-5, atol=1e-6)


@pytest.mark.pixels
def test_the_verification_suite_tells_all_four_scores(model):
    result = run_suites(subject(model), QUICK, ["verification"])
    assert (result.primary, result.higher_is_better) == ("EER", False)
    for name in ("EER", "EER, cosine", "EER, cosine+SIM", "EER, raw sum"):
        low, high = result.intervals[name]
        assert low <= high
        assert name in result.lower_is_better
    assert {"ROC-AUC, cosine", "minDCF, cosine+SIM"} <= set(result.values)
    assert {"minDCF, cosine", "minDCF, cosine+SIM"} <= set(result.lower_is_better)
    details = json.loads(json.dumps(result.details))["verification"]
    gap, low, high = details["SIM"]["EER minus cosine"]
    assert gap == pytest.approx(result["EER"] - result["EER, cosine"])
    assert low <= high
    assert any("coin" in note for note in result.notes)
    (figure,) = [draw() for draw in result.drawings]
    assert "threshold on the similarity" in figure.caption
    assert Image.open(io.BytesIO(figure.png)).width > 1000


def test_the_baseline_is_asked_the_same_trials(model):
    untrained = points(3.0, seed=4)
    given = subject(model, baseline=untrained, baseline_name="raw pixels")
    result = run_suites(given, QUICK, ["verification"])
    trials = score_trials(given, model, QUICK, 10_000).trials
    scores = [cosine(untrained[a], untrained[b]) for a, b in zip(trials.enrolled, trials.queries, strict=True)]
    assert result.baseline["EER"] == pytest.approx(interpolated_equal_error(scores, trials.same), abs=1e-6)


# The other suites


def test_retrieval_is_by_the_similarity_and_the_cosine_beside_it(model):
    result = run_suites(subject(model), QUICK, ["retrieval"])
    theirs = retrieval_metrics(points(), LABELS, space=Sphere())
    x = points().astype(np.float64)
    table = np.array([[similarity(model, one, query) for one in x] for query in x])
    np.fill_diagonal(table, -np.inf)
    first = LABELS[table.argmax(axis=1)] == LABELS
    assert result["P@1"] == pytest.approx(first.mean())
    for name in ("MAP@R", "P@1", "R-precision"):
        assert result[f"{name}, cosine"] == pytest.approx(theirs.values[name])
        assert f"{name}, cosine" in result.intervals
    ahead = result.details["retrieval"]["above cosine"]["MAP@R"]
    assert ahead[0] == pytest.approx(result["MAP@R"] - result["MAP@R, cosine"])
    assert ahead[1] <= ahead[0] <= ahead[2]


def test_clustering_says_that_it_goes_by_distance(model):
    (note,) = run_suites(subject(model), QUICK, ["clustering"]).notes
    assert "similarity" in note


def test_few_shots_are_by_the_similarity_to_the_mean_and_the_distance_beside_it(model):
    result = run_suites(subject(model), QUICK, ["fewshot"])
    assert set(result.values) == {
        f"{way}-way {shot}-shot{more}" for way in (2, 6) for shot in (1, 3) for more in ("", ", euclidean distance")
    }

    def naive(support, query):  # (E, C, K, d), (E, Q, d)
        means = support.double().mean(dim=2).numpy()
        scores = [
            [[similarity(model, mean, one) for mean in means[episode]] for one in query[episode].double().numpy()]
            for episode in range(len(query))
        ]
        return torch.tensor(scores)

    options = {"way": 6, "shot": 3, "query": 5, "episodes": 20, "seed": 0}
    ours = fewshot_accuracy(points(), LABELS, representation=naive, **options)
    theirs = fewshot_accuracy(points(), LABELS, space=Euclidean(), **options)
    assert result["6-way 3-shot"] == pytest.approx(ours.accuracy, abs=0.01)
    assert result["6-way 3-shot, euclidean distance"] == theirs.accuracy
    gap, low, high = result.details["fewshot"]["6-way 3-shot"]["above euclidean distance"]
    assert gap == pytest.approx(result["6-way 3-shot"] - result["6-way 3-shot, euclidean distance"])
    assert low <= gap <= high
    figure = result.drawings[0]()
    assert figure.png
    assert "the learned similarity to it (SIM), or by the distance" in figure.caption


def test_classes_that_trained_are_named_by_prototypes_and_dense_layer(model):
    given = subject(model)
    result = run_suites(given, QUICK, ["classification"])
    x = points()
    prototypes = model.prototypes.points.double().numpy()
    scores = np.array([[similarity(model, known, one) for known in prototypes] for one in x.astype(np.float64)])
    sim = np.array(CLASSES)[scores.argmax(axis=1)]
    weight, bias = model.dense.weight.detach().numpy(), model.dense.bias.detach().numpy()
    dol = np.array(CLASSES)[(x @ weight.T + bias).argmax(axis=1)]
    asked = classification_metrics(x, LABELS, k=[3], space=Euclidean(), seed=0)
    rows = asked.rows
    assert result["accuracy, SIM"] == pytest.approx((sim[rows] == LABELS[rows]).mean())
    assert result["accuracy, DOL"] == pytest.approx((dol[rows] == LABELS[rows]).mean())
    assert result["accuracy, nearest mean"] == pytest.approx(asked.values["accuracy, centroid"])
    assert result["macro F1, nearest mean"] == pytest.approx(asked.values["macro F1, centroid"])
    assert {"accuracy, SIM", "macro F1, DOL"} <= set(result.intervals)


def test_means_are_of_the_items_that_trained_where_these_are_known(model):
    trained = points(0.3, seed=7)
    given = subject(model, known=lambda: (trained, LABELS))
    result = run_suites(given, QUICK, ["classification"])
    means = trained.reshape(8, 10, 6).mean(axis=1)
    x = points()
    nearest = np.array(CLASSES)[np.linalg.norm(x[:, None] - means, axis=2).argmin(axis=1)]
    _, asked = halves(LABELS, 0)
    assert result["accuracy, nearest mean"] == pytest.approx((nearest[asked] == LABELS[asked]).mean())
    assert any("trained" in note for note in result.notes)


def test_unseen_classes_have_no_prototypes(model):
    result = run_suites(subject(model, labels=np.char.add("new ", LABELS)), QUICK, ["classification"])
    assert "accuracy, SIM" not in set(result.values)
    assert any("left out" in note for note in result.notes)


def test_pictures_show_similarities(model, monkeypatch):
    seen = {}

    def histograms(same, other, **more):
        seen.update(more, same=same, other=other)
        return b""

    def neighbours(rows, **more):
        seen.update(more, rows=rows)
        return b""

    monkeypatch.setattr("nearkin.audits.result.draw_histograms", histograms)
    monkeypatch.setattr("nearkin.audits.result.draw_neighbours", neighbours)
    figures = draw_subject(subject(model, picture=lambda row: Image.new("RGB", (9, 9))))
    assert [figure.title for figure in figures[:2]] == ["Nearest neighbours", "Similarities"]
    assert seen["xlabel"] == "similarity"
    assert seen["number"] == "similarity"
    assert np.median(seen["same"]) > np.median(seen["other"])  # pairs of one class are more alike
    for row in seen["rows"]:
        values = [value for _, value, _ in row.neighbours]
        assert values == sorted(values, reverse=True)
    assert (compared_by(Sphere()), shown(Sphere(), 0.5)) == ("distance", 0.5)


def test_an_audit_of_a_model_knows_that_it_learned_to_compare(model, patterns):
    result = nk.audit(model, patterns, suites=["verification"], progress=False)
    assert result.subject.learned is model
    assert "EER, cosine" in result.values
