"""What is given to attacks: bad input gets one sentence, and a model comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from nearkin.attacks import (
    L2,
    Combined,
    LInf,
    PixelEmbedder,
    adversarial_accuracy,
    attack_classifier,
    certify,
    class_codes,
    classifier_of_estimator,
    classifier_of_scores,
    classifier_of_similarity,
    published_attack,
)
from nearkin.attacks.classifier import Classifier, NearestPoint, NeighbourScores
from nearkin.confidence import NED, KNNVote, NearestNeighbour, PrototypeSoftmax
from nearkin.errors import DataError, ModelError, NearkinError
from nearkin.models import ModelSection, build_embedder
from nearkin.spaces import Euclidean

X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
CODES = torch.tensor([0, 1, 2, 0, 1, 2])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))


@pytest.mark.parametrize("run", ["published", "ours", "curves", "certified"])
def test_a_model_in_training_comes_back_as_it_was(run):
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if run == "published":
        published_attack("bim", model, X, CODES, 0.1)
    elif run == "ours":
        attack_classifier(model, X, CODES, 0.1, steps=3)
    elif run == "curves":
        adversarial_accuracy(model, X, CODES.numpy(), [0.1], classes=(0, 1, 2), steps=3)
    else:
        certify(model, X, samples=10, guesses=5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(part.training for part in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"eps": -0.1}, "-0.1"),
        ({"eps": float("nan")}, "nan"),
        ({"eps": float("inf")}, "inf"),
        ({"codes": CODES.double()}, "float64"),
        ({"codes": CODES[:3]}, "class_codes"),
        ({"codes": CODES + 5}, "classes"),
        ({"codes": CODES - 5}, "classes"),
        ({"batch_size": -1}, "batch_size"),
        ({"steps": 0}, "steps"),
        ({"step": -1.0}, "step"),
        ({"pixels": X.flatten(1)}, "images"),
        ({"pixels": (255 * X).byte()}, "float"),
        ({"pixels": X * float("nan")}, "NaN"),
        ({"model": lambda x: x.sum((1, 2, 3))}, "scores"),
        ({"model": lambda x: x.flatten(1)[:, :3] * float("nan")}, "NaN"),
    ],
)
def test_published_attacks_refuse_nonsense(changes, word):
    given = {"model": network().eval(), "pixels": X, "codes": CODES, "eps": 0.1, **changes}
    settings = {name: given[name] for name in ("batch_size", "steps", "step") if name in given}
    with pytest.raises(NearkinError, match=word):
        published_attack("pgd", given["model"], given["pixels"], given["codes"], given["eps"], **settings)


def test_arrays_are_taken():
    model = network().eval()
    expected = published_attack("bim", model, X, CODES, 0.2)
    found = published_attack("bim", model, X.numpy(), CODES.numpy(), 0.2)
    assert torch.equal(found.pixels, expected.pixels)
    assert attack_classifier(model, X.numpy(), CODES.tolist(), 0.2, steps=2).points.shape == (6, 16)
    assert len(certify(model, X.numpy(), samples=10).codes) == 6


def test_certificates_need_numbers():
    with pytest.raises(DataError, match="NaN"):
        certify(lambda x: x.flatten(1)[:, :3] * float("nan"), X, samples=10)
    with pytest.raises(DataError, match="sigma"):
        certify(network().eval(), X, sigma=float("inf"))


@pytest.mark.parametrize("changes", [{"restarts": -1}, {"steps": 0}, {"batch_size": 0}, {"epsilons": 0.1}])
def test_curves_refuse_nonsense(changes):
    given = {"epsilons": [0.1], **changes}
    with pytest.raises(DataError, match=next(iter(changes))):
        adversarial_accuracy(
            network().eval(), X, CODES.numpy(), given.pop("epsilons"), classes=(0, 1, 2), **given
        )  # fmt: skip


def test_cross_entropy_of_scores_is_that_of_their_softmax():
    """A plain network gives scores: the attack must not take them for log-probabilities."""
    model = network().eval()
    options = {"steps": 5, "random_start": False}
    found = attack_classifier(model, X, CODES, 0.1, **options)
    expected = attack_classifier(lambda x: model(x).log_softmax(dim=1), X, CODES, 0.1, **options)
    torch.testing.assert_close(found.points, expected.points)


def test_what_other_attacks_found_counts():
    """Points that are given are tried: a curve is never above what they show."""
    model = network().eval()
    with torch.no_grad():
        codes = model(X).argmax(dim=1).numpy()
    found = attack_classifier(model, X, torch.from_numpy(codes), 0.3, norm="l2", raised="margin", steps=60, restarts=3)
    weak = adversarial_accuracy(model, X, codes, [0.3], classes=(0, 1, 2), steps=1, restarts=0)
    known = adversarial_accuracy(
        model, X, codes, [0.3], classes=(0, 1, 2), steps=1, restarts=0, candidates=[found.points.view_as(X)]
    )
    assert known.standard[0] <= min(weak.standard[0], 1 - float(found.reached.double().mean())) + 1e-9
    assert np.isfinite(known.standard_radii).sum() >= int(found.reached.sum())


CENTRES = np.array([[0.3, 0.3], [0.7, 0.3], [0.5, 0.7]])


@pytest.fixture(scope="module")
def crowd():
    """Classes of 60 points, far more than the k neighbours that are asked."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 60)
    return (CENTRES[labels] + 0.03 * rng.normal(size=(180, 2))).astype(np.float32), labels


@pytest.fixture(scope="module")
def ned(crowd):
    return NED(k=20, space=Euclidean(), temperature=0.01).fit(*crowd)


def test_answers_are_those_of_the_deployed(ned):
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    found, expected = NeighbourScores(ned)(x), ned.log_proba(x)
    assert (found.argmax(dim=1) == expected.argmax(dim=1)).all()
    present = expected > np.log(1e-12)
    torch.testing.assert_close(found[present], expected[present])
    assert (found[~present] <= expected[~present] + 1e-5).all()


def test_there_is_a_slope_where_all_neighbours_agree(ned):
    x = torch.tensor(CENTRES, dtype=torch.float32, requires_grad=True) + 0.001
    (plain,) = torch.autograd.grad(ned.log_proba(x)[0, 0], x, retain_graph=True)
    (slope,) = torch.autograd.grad(NeighbourScores(ned)(x)[0, 0], x)
    assert float(plain[0].abs().max()) < 1e-6  # what rounding leaves of zero
    assert float(slope[0].abs().max()) > 100 * float(plain[0].abs().max())


@pytest.mark.parametrize("raised", ["cross-entropy", "margin"])
def test_an_attack_gets_through(ned, raised):
    """The straight way to another class is open, and a gradient of zero would not find it."""
    target = Classifier(lambda x: x, NeighbourScores(ned), ned.classes_.tolist(), "NED")
    x = torch.tensor(CENTRES, dtype=torch.float32)
    found = attack_classifier(target, x, torch.arange(3), 0.3, norm="l2", raised=raised, steps=40, random_start=False)
    assert found.reached.all()
    assert (ned.predict(found.points.numpy()).labels != np.arange(3)).all()


@pytest.mark.parametrize("vote", [KNNVote(k=3, space=Euclidean()), NearestNeighbour(space=Euclidean())])
def test_votes_are_refused(crowd, vote):
    with pytest.raises(DataError, match="vote"):
        classifier_of_estimator(None, vote.fit(*crowd))


def test_codes_are_places(ned):
    assert class_codes(ned.classes_.tolist(), [2, 0]).tolist() == [2, 0]


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


NORMS = [L2(), LInf(), Combined(0.3)]
norms = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.random((30, 1, 2, 2)), rng.choice(["fox", "ant", "cow"], 30), rng.random((50, 1, 2, 2))


@norms
def test_the_nearest_point_names_the_class(norm, data):
    points, labels, queries = data
    model = NearestPoint(torch.from_numpy(points), labels, norm)
    assert model.classes == ("ant", "cow", "fox")
    found = model(torch.from_numpy(queries).float())
    metric = {"l2": "euclidean", "linf": "chebyshev"}.get(
        norm.name, lambda a, b: 0.3 * np.abs(a - b).sum() + 0.7 * np.abs(a - b).max()
    )
    distances = cdist(queries.reshape(50, 4).astype(np.float32), points.reshape(30, 4), metric)
    least = np.stack([distances[:, labels == name].min(axis=1) for name in model.classes], axis=1)
    weights = np.exp(-least / np.ptp(points, axis=0).max())
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-9)
    named = np.array(model.classes)[found.argmax(dim=1)]
    assert np.array_equal(named, labels[distances.argmin(axis=1)])


def test_it_is_scikit_learn_s(data):
    points, labels, queries = data
    model = NearestPoint(torch.from_numpy(points), labels)
    theirs = KNeighborsClassifier(1).fit(points.reshape(30, 4), labels).predict(queries.reshape(50, 4))
    assert np.array_equal(np.array(model.classes)[model(torch.from_numpy(queries)).argmax(dim=1)], theirs)


@norms
def test_it_has_a_gradient(norm, data):
    points, labels, queries = data
    model = NearestPoint(torch.from_numpy(points), labels, norm)
    x = torch.from_numpy(queries[:6]).requires_grad_(True)
    assert torch.autograd.gradcheck(model, (x,))
    own = torch.from_numpy(points[:6]).requires_grad_(True)  # at a point itself there is a kink, and still a number
    model(own).exp()[:, 0].sum().backward()
    assert own.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e6])
def test_the_scale_of_the_data_does_not_matter(scale, data):
    """A point that is nearer by a hair wins, however small all numbers are."""
    points, labels, queries = data
    found, plain = (
        NearestPoint(torch.from_numpy(factor * points), labels)(torch.from_numpy(factor * queries))
        for factor in (scale, 1.0)
    )
    torch.testing.assert_close(found, plain)
    pair = scale * torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    hair = scale * torch.tensor([[0.5 - 1e-11, 3.0], [0.5 + 1e-11, 3.0]], dtype=torch.float64)
    for labels in (["a", "b"], ["b", "a"]):
        model = NearestPoint(pair, labels)
        assert [model.classes[code] for code in model(hair).argmax(dim=1)] == labels


def test_a_single_point():
    assert NearestPoint(torch.zeros(1, 2), ["a"])(torch.ones(3, 2)).tolist() == [[0.0]] * 3


def test_numbers_and_tensors_are_labels_too():
    x = torch.tensor([[0.0], [1.0], [2.0]])
    for labels in ([5, 3, 5], np.array([5, 3, 5]), torch.tensor([5, 3, 5])):
        model = NearestPoint(x, labels, "linf")
        assert model.classes == (3, 5)
        assert model(torch.tensor([[0.9], [1.6]])).argmax(dim=1).tolist() == [0, 1]
