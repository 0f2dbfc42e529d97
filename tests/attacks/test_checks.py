"""What is given to attacks: bad input gets one sentence, and a model comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.attacks import adversarial_accuracy, attack_classifier, certify, published_attack
from nearkin.errors import DataError, NearkinError

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
