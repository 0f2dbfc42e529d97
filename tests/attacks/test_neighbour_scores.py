"""NED under attack: the deployed answers, with a slope where a class fills all neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.attacks import attack_classifier, class_codes, classifier_of_estimator
from nearkin.attacks.classifier import Classifier
from nearkin.attacks.neighbour_scores import NeighbourScores
from nearkin.confidence import NED, KNNVote, NearestNeighbour
from nearkin.errors import DataError
from nearkin.spaces import Euclidean

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
