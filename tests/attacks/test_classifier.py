"""Deployed inferences as classifiers of pixels: what they say is what the model and its estimators say."""

import numpy as np
import pytest
import torch

from nearkin.attacks import (
    PixelEmbedder,
    attack_classifier,
    class_codes,
    classifier_of_estimator,
    classifier_of_scores,
    classifier_of_similarity,
)
from nearkin.confidence import NED, KNNVote, PrototypeSoftmax
from nearkin.errors import DataError, ModelError
from nearkin.models import ModelSection, build_embedder

CLASSES = ("ape", "bee", "cat")


def make(space="euclidean", **changes):
    section = ModelSection(
        **({"backbone": "lenet", "channels": 1, "size": 28, "dimension": 6, "space": space} | changes)
    )
    return build_embedder(section, 0, classes=CLASSES).eval()


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 255, (30, 28, 28), dtype=np.uint8)


@pytest.fixture(scope="module")
def labels():
    return np.array(CLASSES)[np.random.default_rng(1).integers(0, 3, 30)]


def pixels_of(images):
    return torch.from_numpy(images).unsqueeze(1).float() / 255


@pytest.mark.parametrize("space", ["euclidean", "sphere"])
@pytest.mark.parametrize("make_estimator", [NED, PrototypeSoftmax], ids=["ned", "prototypes"])
def test_log_probabilities_are_those_of_the_estimator(space, make_estimator, images, labels):
    model = make(space)
    points = model.encode(images, progress=False)
    estimator = make_estimator(space=space).fit(points[:24], labels[:24])
    classifier = classifier_of_estimator(model, estimator)
    assert classifier.classes == CLASSES
    assert classifier.name == make_estimator.__name__
    found = classifier(pixels_of(images[24:])).exp()
    expected = estimator.predict(points[24:]).probabilities
    for code, name in enumerate(CLASSES):
        np.testing.assert_allclose(found[:, code].numpy(), expected.of([name] * 6), atol=2e-4)
    assert np.array_equal(np.array(CLASSES)[found.argmax(dim=1)], expected.labels)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(6))


@pytest.mark.parametrize("by", ["sim", "dol"])
def test_log_probabilities_are_those_of_the_learned_similarity(by, images):
    model = make(similarity={"hidden": 32, "dropout": 0.5})
    model.train()  # the copy that is attacked drops nothing out
    classifier = classifier_of_similarity(model, by)
    assert (classifier.classes, classifier.name) == (CLASSES, by.upper())
    model.eval()
    found = classifier(pixels_of(images)).exp().numpy()
    np.testing.assert_allclose(found, model.classify(images, by).probabilities, rtol=1e-3)


def test_what_a_similarity_model_has_not_is_refused_at_once():
    model = make(similarity={"hidden": 8})
    with pytest.raises(ModelError, match="simm"):
        classifier_of_similarity(model, "simm")
    few = model.few_shot(np.eye(6, dtype=np.float32), ["x", "x", "x", "y", "y", "y"])
    with pytest.raises(ModelError, match="dense"):
        classifier_of_similarity(few, "dol")
    assert classifier_of_similarity(few).classes == ("x", "y")


def test_scores_become_probabilities(images):
    model = make()
    weights = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    classifier = classifier_of_scores(model, lambda points: points @ weights, CLASSES)
    scores = model.encode(images, progress=False) @ weights.numpy()
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(classifier(pixels_of(images)).exp().numpy(), expected, rtol=1e-3)


def classifiers(images, labels):
    model, learned = make("sphere"), make(similarity={"hidden": 16})
    points = model.encode(images, progress=False)
    shared = PixelEmbedder(model)
    yield classifier_of_estimator(shared, NED(space="sphere").fit(points, labels))
    yield classifier_of_estimator(shared, PrototypeSoftmax(space="sphere").fit(points, labels))
    yield classifier_of_similarity(learned, "sim")
    yield classifier_of_similarity(learned, "dol")


def test_every_classifier_has_a_gradient_down_to_the_pixels(images, labels):
    others = np.random.default_rng(7).integers(0, 255, (5, 28, 28), dtype=np.uint8)
    for classifier in classifiers(images, labels):
        x = pixels_of(others).requires_grad_(True)
        for code in range(3):
            (slope,) = torch.autograd.grad(classifier(x)[:, code].sum(), x)
            assert slope.isfinite().all()
            assert (slope.abs().flatten(1).sum(dim=1) > 0).all()


def test_the_gradient_is_right(images, labels):
    """By finite differences, in double precision."""
    model = make()
    points = model.encode(images[2:], progress=False).astype(np.float64)
    estimator = NED(k="all", temperature=1.0, space="euclidean").fit(points, labels[2:])
    classifier = classifier_of_estimator(PixelEmbedder(model.double()), estimator)
    x = pixels_of(images[:2]).double().requires_grad_(True)
    (slope,) = torch.autograd.grad(classifier(x)[:, 0].sum(), x)
    way = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-5
    with torch.no_grad():
        rise = (classifier(x + step * way) - classifier(x - step * way))[:, 0].sum() / (2 * step)
    assert float(rise) == pytest.approx(float((slope * way).sum()), rel=5e-3)


def test_an_attack_comes_nearer_to_fooling_them(images, labels):
    for classifier in classifiers(images, labels):
        x = pixels_of(images[:6])
        scores = classifier(x).sort(dim=1, descending=True)
        found = attack_classifier(classifier, x, scores.indices[:, 0], 0.3, raised="margin", steps=20)
        assert (found.values > scores.values[:, 1] - scores.values[:, 0]).all()
        assert torch.equal(classifier(found.points.view_as(x)).argmax(dim=1) != scores.indices[:, 0], found.reached)
        assert found.reached.any() or classifier.name in ("SIM", "DOL")  # whose untrained scores hardly change


def test_the_model_is_not_touched(images, labels):
    model = make().train()
    before = model.fingerprint()
    estimator = NED(k=3).fit(np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32), labels)
    x = pixels_of(images[:2]).requires_grad_(True)
    classifier_of_estimator(model, estimator)(x).sum().backward()
    assert model.training
    assert model.fingerprint() == before
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_sounds_are_refused():
    section = ModelSection(backbone="tdnn", size=8, pooling="stats", dimension=4)
    with pytest.raises(DataError, match="audio"):
        PixelEmbedder(build_embedder(section, audio_seconds=0.1))


def test_votes_have_no_gradient_to_attack(images, labels):
    model = make()
    votes = KNNVote(k=3).fit(model.encode(images, progress=False), labels)
    with pytest.raises(DataError, match="vote"):
        classifier_of_estimator(model, votes)


@pytest.mark.parametrize("kind", [list, np.array, tuple])
def test_labels_become_places(kind):
    assert class_codes(CLASSES, kind(["cat", "ape", "cat"])).tolist() == [2, 0, 2]
    assert class_codes([7, 3], kind([3, 3, 7])).tolist() == [1, 1, 0]


def test_tensors_of_labels_become_places():
    found = class_codes([7, 3], torch.tensor([3, 7]))
    assert found.tolist() == [1, 0]
    assert found.dtype == torch.int64


def test_a_label_that_is_no_class_is_refused():
    with pytest.raises(DataError, match="dog"):
        class_codes(CLASSES, ["ape", "dog"])
