"""Chance constraints on pairs against naive loops, the library's contrastive loss, and Markov's inequality."""

import json
from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.reducers import MeanReducer

from nearkin.errors import DataError
from nearkin.metrics import pair_violations
from nearkin.objectives import ObjectiveSection
from nearkin.objectives.section import pair_margins
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

RNG = np.random.default_rng(0)
LABELS = np.array(list("aaaabbbccccc"))
POINTS = RNG.normal(size=(12, 3))
GALLERY, GALLERY_LABELS = RNG.normal(size=(7, 3)), np.array(list("abcabda"))


def naive(pairs, beta, alpha, distance):
    """Every pair in turn: shares of violated pairs and mean hinge over alpha, of all, of one class and of others."""
    rows = []
    for x, y, same in pairs:
        iota = 1 if same else -1
        d = distance(x, y)
        rows.append((same, iota * (d - beta) >= 0, max(0.0, iota * (d - beta) + alpha) / alpha))
    values = {}
    for name, kept in (("", (True, False)), (", same class", (True,)), (", other classes", (False,))):
        some = [row for row in rows if row[0] in kept]
        values[f"violation{name}"] = sum(row[1] for row in some) / len(some)
        values[f"violation bound{name}"] = sum(row[2] for row in some) / len(some)
    return values


@pytest.mark.parametrize("space", [Euclidean(), Sphere(), Sphere("angle"), LipschitzBall(), PoincareBall()])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_the_values_are_those_of_all_pairs(space, with_gallery):
    points = space.project(torch.from_numpy(POINTS))
    other = space.project(torch.from_numpy(GALLERY))
    if with_gallery:
        pairs = [(points[i], other[j], LABELS[i] == GALLERY_LABELS[j]) for i, j in product(range(12), range(7))]
    else:
        pairs = [(points[i], points[j], LABELS[i] == LABELS[j]) for i, j in combinations(range(12), 2)]
    given = {"gallery": other, "gallery_labels": GALLERY_LABELS} if with_gallery else {}
    found = pair_violations(points, LABELS, pos_margin=0.3, neg_margin=1.5, space=space, **given)
    assert (found.beta, found.alpha) == pytest.approx((0.9, 0.6))
    expected = naive(pairs, 0.9, 0.6, lambda x, y: float(space.distance(x[None], y[None])))
    assert found.values == pytest.approx(expected, abs=1e-6)
    assert found.genuine == sum(same for *_, same in pairs)
    assert found.genuine + found.impostors == len(pairs)
    assert json.loads(json.dumps(found.to_dict()))["values"] == found.values


def test_the_bound_is_the_expected_contrastive_loss_over_alpha():
    pos_margin, neg_margin = 0.2, 1.8
    loss = ContrastiveLoss(
        pos_margin, neg_margin, distance=LpDistance(normalize_embeddings=False), reducer=MeanReducer()
    )
    codes = torch.from_numpy(np.unique(LABELS, return_inverse=True)[1])
    expected = float(loss(torch.from_numpy(POINTS), codes))  # the mean of each kind, added
    found = pair_violations(POINTS, LABELS, pos_margin=pos_margin, neg_margin=neg_margin, space=Euclidean())
    values = found.values
    ours = values["violation bound, same class"] + values["violation bound, other classes"]
    assert found.alpha * ours == pytest.approx(expected, rel=1e-6)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), low=st.floats(0, 1.5), gap=st.floats(0.01, 2), scale=st.floats(0.01, 10))
def test_markov_holds_for_whatever_is_measured(seed, low, gap, scale):
    points = scale * np.random.default_rng(seed).normal(size=(12, 3))
    values = pair_violations(points, LABELS, pos_margin=low, neg_margin=low + gap, space="euclidean").values
    for kind in ("", ", same class", ", other classes"):
        assert values[f"violation{kind}"] <= values[f"violation bound{kind}"] + 1e-9


def test_classes_apart_violate_nothing_and_classes_at_one_point_everything():
    corners = np.eye(3)[np.arange(12) % 3]
    apart = pair_violations(corners, np.arange(12) % 3, neg_margin=1.2).values
    assert set(apart.values()) == {0.0}
    same = pair_violations(np.ones((12, 3)), LABELS, neg_margin=1.0).values
    assert same["violation, other classes"] == 1
    assert same["violation bound, other classes"] == 2  # as far inside as there is room: beta + alpha over alpha
    assert same["violation, same class"] == 0


def test_a_sample_of_pairs_is_told_and_near_the_whole():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 400)
    points = rng.normal(size=(10, 4))[labels] + rng.normal(size=(400, 4))
    whole = pair_violations(points, labels)
    some = pair_violations(points, labels, pairs=4000, seed=3)
    assert (some.genuine, some.impostors) == (4000, 4000)
    assert "drawn" in some.notes[0]
    assert some.values == pytest.approx(whole.values, abs=0.03)
    assert some.values != whole.values
    assert pair_violations(points, labels, pairs=10**6).values == pytest.approx(whole.values, abs=1e-9)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"pos_margin": 1.0, "neg_margin": 1.0}, "neg_margin"),
        ({"pos_margin": -0.1}, "pos_margin"),
        ({"neg_margin": float("nan")}, "finite"),
        ({"pairs": 0}, "pairs"),
        ({"labels": list("aaaaaaaaaaaa")}, "two"),
    ],
)
def test_what_cannot_be_measured_is_refused(given, word):
    with pytest.raises(DataError, match=word):
        pair_violations(POINTS, **({"labels": LABELS} | given))


@pytest.mark.parametrize(
    ("loss", "parameters", "space", "expected"),
    [
        ("contrastive", {}, Sphere(), (0.0, 0.3841)),
        ("contrastive", {"pos_margin": 0.2, "neg_margin": 0.5}, LipschitzBall(), (0.2, 0.5)),
        ("contrastive-cosine", {"margin": 0.5}, Sphere(), (0.0, 1.0)),
        ("contrastive-cosine", {"margin": 0.0}, Sphere("angle"), (0.0, np.pi / 2)),
        ("margin", {"beta": 1.0, "margin": 0.25}, Sphere(), (0.75, 1.25)),
        ("multi-similarity", {}, Sphere(), None),
    ],
)
def test_margins_of_a_loss(loss, parameters, space, expected):
    found = pair_margins(ObjectiveSection(loss=loss, parameters=parameters), space)
    assert found == (None if expected is None else pytest.approx(expected))
