"""Every loss recomputed by naive loops from its published formula, in double precision."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from nearkin.objectives import ObjectiveSection, losses, make_objective
from nearkin.spaces import make_space

CLASSES, PER_CLASS, DIMENSION = 4, 3, 6


def batch(seed=0):
    """Raw embeddings (B, d) with norms from 0.2 to 3, and labels (B,) in shuffled order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(CLASSES), PER_CLASS))
    centres = rng.normal(size=(CLASSES, DIMENSION))
    raw = centres[labels] + 0.8 * rng.normal(size=(len(labels), DIMENSION))
    raw *= rng.uniform(0.2, 3, size=(len(labels), 1)) / np.linalg.norm(raw, axis=1, keepdims=True)
    return raw, labels


def objective_of(loss, space="sphere", miner=None, seed=0, **parameters):
    section = ObjectiveSection(loss=loss, parameters=parameters, miner=miner)
    made = make_objective(section, dimension=DIMENSION, classes=CLASSES, space=make_space(space), seed=seed)
    return made.double()


def value_of(objective, raw, labels):
    return objective(torch.tensor(raw), torch.tensor(labels)).item()


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def enter(space, raw):
    """Points of a space from raw vectors, by the definitions of the method page."""
    norms = np.linalg.norm(raw, axis=-1, keepdims=True)
    return {
        "sphere": raw / norms,
        "lipschitz-ball": raw / np.maximum(norms, 1),
        "euclidean": raw,
        "poincare-ball": np.tanh(norms) * raw / norms,
    }[space]


def gap(space, x, y):
    """Distance of two points of a space."""
    squared = ((x - y) ** 2).sum()
    if space == "poincare-ball":
        return math.acosh(1 + 2 * squared / ((1 - (x**2).sum()) * (1 - (y**2).sum())))
    return math.sqrt(squared)


def pairs(labels, same):
    """Ordered pairs of different samples, of one class or of two."""
    n = range(len(labels))
    return [(i, j) for i, j in product(n, n) if i != j and (labels[i] == labels[j]) == same]


def triplets(labels):
    return [(a, p, n) for a, p in pairs(labels, True) for n in range(len(labels)) if labels[n] != labels[a]]


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


SPACES = ["sphere", "lipschitz-ball", "euclidean", "poincare-ball"]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("pos_margin", "neg_margin"), [(0.0, 0.3841), (0.2652, 1.2)])
def test_contrastive_averages_each_hinge_over_its_own_non_zero_terms(space, pos_margin, neg_margin):
    raw, labels = batch()
    points = enter(space, raw)
    pull = [gap(space, points[i], points[j]) - pos_margin for i, j in pairs(labels, True)]
    push = [neg_margin - gap(space, points[i], points[j]) for i, j in pairs(labels, False)]
    expected = mean(v for v in pull if v > 0) + mean(v for v in push if v > 0)
    objective = objective_of("contrastive", space, pos_margin=pos_margin, neg_margin=neg_margin)
    assert value_of(objective, raw, labels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_contrastive_with_squares_is_the_printed_one(space):
    raw, labels = batch()
    points, margin = enter(space, raw), 1.2
    pull = [0.5 * gap(space, points[i], points[j]) ** 2 for i, j in pairs(labels, True)]
    push = [0.5 * max(0.0, margin - gap(space, points[i], points[j])) ** 2 for i, j in pairs(labels, False)]
    expected = mean(pull) + mean(v for v in push if v > 0)
    objective = objective_of("contrastive", space, neg_margin=margin, squared=True)
    assert value_of(objective, raw, labels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("margin", [0.5, -0.2])
def test_contrastive_cosine_sums_over_pairs_and_divides_by_the_batch(margin):
    raw, labels = batch()
    raw[1] = 2 * raw[0]
    labels[1] = labels[0]  # a copy: a positive above 1 - 1e-5, skipped
    x = unit(raw)
    pull = sum(1 - x[i] @ x[j] for i, j in pairs(labels, True) if x[i] @ x[j] < 1 - 1e-5)
    push = sum(max(x[i] @ x[j] - margin, 0) for i, j in pairs(labels, False))
    expected = (pull + push) / len(labels)
    assert value_of(objective_of("contrastive-cosine", margin=margin), raw, labels) == pytest.approx(expected)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("miner", ["semi-hard", "all", "violating"])
def test_triplet(space, miner):
    raw, labels = batch()
    points, margin = enter(space, raw), 0.3
    terms = []
    for a, p, n in triplets(labels):
        near, far = gap(space, points[a], points[p]), gap(space, points[a], points[n])
        if miner == "semi-hard" and not near < far <= near + margin:
            continue
        terms.append(near - far + margin)
    expected = mean(v for v in terms if v > 0)
    assert expected > 0
    objective = objective_of("triplet", space, miner=miner, margin=margin)
    assert value_of(objective, raw, labels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_margin_with_a_boundary_for_each_class(space):
    raw, labels = batch()
    points, margin, nu = enter(space, raw), 0.2, 0.05
    objective = objective_of("margin", space, miner="all", margin=margin, beta=0.9, nu=nu)
    beta = np.array([0.7, 0.9, 1.1, 1.3])
    objective.loss.beta.data = torch.tensor(beta)
    positive, negative = [], []
    for a, p, n in triplets(labels):
        positive.append(max(gap(space, points[a], points[p]) - beta[labels[a]] + margin, 0))
        negative.append(max(beta[labels[a]] - gap(space, points[a], points[n]) + margin, 0))
    count = sum(v > 0 for v in positive) + sum(v > 0 for v in negative)
    betas = nu * sum(beta[labels[a]] for a, _, _ in triplets(labels))
    expected = (sum(positive) + sum(negative) + betas) / count
    assert value_of(objective, raw, labels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_lifted_structure(space):
    raw, labels = batch()
    points, pos_margin, neg_margin = enter(space, raw), 0.1, 1.0
    terms = []
    for i, j in pairs(labels, True):
        exponents = [neg_margin - gap(space, points[a], points[n]) for a, n in pairs(labels, False) if a in (i, j)]
        value = logsumexp(exponents) + gap(space, points[i], points[j]) - pos_margin
        terms.append(max(value, 0) ** 2 / 2)
    objective = objective_of("lifted-structure", space, pos_margin=pos_margin, neg_margin=neg_margin)
    assert value_of(objective, raw, labels) == pytest.approx(mean(terms), rel=1e-5)


@pytest.mark.parametrize("angle", [45, 36.5])
def test_angular_normalises_negatives_too(angle):
    raw, labels = batch()
    x, t = unit(raw), math.tan(math.radians(angle)) ** 2
    terms = []
    for a, p in pairs(labels, True):
        negatives = [n for n in range(len(labels)) if labels[n] != labels[a]]
        exponents = [4 * t * (x[a] + x[p]) @ x[n] - 2 * (1 + t) * x[a] @ x[p] for n in negatives]
        terms.append(math.log(1 + sum(map(math.exp, exponents))))
    assert value_of(objective_of("angular", angle=angle), raw, labels) == pytest.approx(mean(terms))


@pytest.mark.parametrize("space", ["sphere", "lipschitz-ball", "euclidean"])
@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_n_pairs_takes_one_pair_a_class_and_has_the_right_sign(space, scale):
    raw, labels = batch()
    points = enter(space, raw)
    chosen = {c: np.flatnonzero(labels == c)[:2] for c in range(CLASSES)}
    terms = []
    for c, (a, p) in chosen.items():
        own = scale * points[a] @ points[p]
        others = [scale * points[a] @ points[chosen[o][1]] for o in chosen if o != c]
        terms.append(math.log(1 + sum(math.exp(s - own) for s in others)))
    objective = objective_of("n-pairs", space, scale=scale)
    assert value_of(objective, raw, labels) == pytest.approx(mean(terms), rel=1e-4)


@pytest.mark.parametrize("space", ["sphere", "lipschitz-ball", "euclidean"])
def test_multi_similarity(space):
    raw, labels = batch()
    points, alpha, beta, base = enter(space, raw), 2.0, 40.0, 0.5
    terms = []
    for i in range(len(labels)):
        pull = [-alpha * (points[i] @ points[j] - base) for a, j in pairs(labels, True) if a == i]
        push = [beta * (points[i] @ points[j] - base) for a, j in pairs(labels, False) if a == i]
        terms.append(logsumexp([0, *pull]) / alpha + logsumexp([0, *push]) / beta)
    objective = objective_of("multi-similarity", space, alpha=alpha, beta=beta, base=base)
    assert value_of(objective, raw, labels) == pytest.approx(mean(terms))


@pytest.mark.parametrize("space", ["sphere", "lipschitz-ball", "euclidean"])
def test_supcon(space):
    raw, labels = batch()
    points, temperature = enter(space, raw), 0.1
    terms = []
    for i in range(len(labels)):
        scores = {j: points[i] @ points[j] / temperature for j in range(len(labels)) if j != i}
        whole = logsumexp(list(scores.values()))
        terms.append(-mean(scores[j] - whole for a, j in pairs(labels, True) if a == i))
    objective = objective_of("supcon", space, temperature=temperature)
    assert value_of(objective, raw, labels) == pytest.approx(mean(terms))


@pytest.mark.parametrize("space", ["sphere", "lipschitz-ball", "euclidean"])
def test_supcon_by_distance_ratios(space):
    """A pair's share is d^-rho with rho = 1/T, so in Euclidean space no scaling changes the loss."""
    raw, labels = batch()
    points, rho = enter(space, raw), 4.0
    terms = []
    for i in range(len(labels)):
        shares = {j: gap(space, points[i], points[j]) ** -rho for j in range(len(labels)) if j != i}
        whole = sum(shares.values())
        terms.append(-mean(math.log(shares[j] / whole) for a, j in pairs(labels, True) if a == i))
    objective = objective_of("supcon", space, temperature=1 / rho, similarity="distance-ratio")
    assert value_of(objective, raw, labels) == pytest.approx(mean(terms), rel=1e-6)
    if space == "euclidean":
        assert value_of(objective, 7 * raw, labels) == pytest.approx(mean(terms), rel=1e-6)


def test_circle():
    raw, labels = batch()
    x, m, gamma = unit(raw), 0.4, 80.0
    terms = []
    for i in range(len(labels)):
        own = [x[i] @ x[j] for a, j in pairs(labels, True) if a == i]
        others = [x[i] @ x[j] for a, j in pairs(labels, False) if a == i]
        pull = logsumexp([-gamma * max(1 + m - s, 0) * (s - (1 - m)) for s in own])
        push = logsumexp([gamma * max(s + m, 0) * (s - m) for s in others])
        terms.append(np.logaddexp(0, pull + push))
    assert value_of(objective_of("circle", margin=m, gamma=gamma), raw, labels) == pytest.approx(mean(terms))


@pytest.mark.parametrize("space", SPACES)
def test_proxy_nca_leaves_the_own_proxy_out_of_the_sum(space):
    raw, labels = batch()
    objective = objective_of("proxy-nca", space, scale=9.0)
    points, proxies = enter(space, raw), enter(space, objective.loss.proxies.detach().numpy())
    terms = []
    for x, c in zip(points, labels, strict=True):
        scores = np.array([-9.0 * gap(space, x, p) ** 2 for p in proxies])
        terms.append(-scores[c] + logsumexp(np.delete(scores, c)))
    assert value_of(objective, raw, labels) == pytest.approx(mean(terms))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("temperature", [0.1, 0.001])
def test_proxy_nca_plus_plus_keeps_samples_whose_probability_underflows(space, temperature):
    raw, labels = batch()
    objective = objective_of("proxy-nca++", space, temperature=temperature)
    points, proxies = enter(space, raw), enter(space, objective.loss.proxies.detach().numpy())
    terms = []
    for x, c in zip(points, labels, strict=True):
        scores = np.array([-(gap(space, x, p) ** 2) / temperature for p in proxies])
        terms.append(logsumexp(scores) - scores[c])
    assert value_of(objective, raw, labels) == pytest.approx(mean(terms))


@pytest.mark.parametrize("present", [CLASSES, 2])
def test_proxy_anchor(present):
    raw, labels = batch()
    kept = labels < present
    raw, labels = raw[kept], labels[kept]
    objective = objective_of("proxy-anchor", margin=0.1, alpha=32.0)
    x, proxies = unit(raw), unit(objective.loss.proxies.detach().numpy())
    pull, push = [], []
    for c, proxy in enumerate(proxies):
        cosines = x @ proxy
        if (labels == c).any():
            pull.append(logsumexp([0, *(-32 * (cosines[labels == c] - 0.1))]))
        push.append(logsumexp([0, *(32 * (cosines[labels != c] + 0.1))]))
    expected = sum(pull) / len(pull) + sum(push) / CLASSES
    assert value_of(objective, raw, labels) == pytest.approx(expected)


@pytest.mark.parametrize(("centres", "tau"), [(3, 0.2), (3, 0.0), (1, 0.2)])
def test_soft_triple(centres, tau):
    raw, labels = batch()
    scale, gamma, margin = 20.0, 0.1, 0.01
    objective = objective_of("soft-triple", centres=centres, scale=scale, gamma=gamma, margin=margin, tau=tau)
    x = unit(raw)
    weights = unit(objective.loss.fc.detach().numpy().T).reshape(CLASSES, centres, DIMENSION)
    terms = []
    for i, c in enumerate(labels):
        cosines = weights @ x[i]  # (classes, centres)
        similarity = (softmax(cosines / gamma, axis=1) * cosines).sum(axis=1)
        similarity[c] -= margin
        terms.append(logsumexp(scale * similarity) - scale * similarity[c])
    merging = [
        math.sqrt(2 + 1e-5 - 2 * weights[c, k] @ weights[c, j])
        for c in range(CLASSES)
        for k in range(centres)
        for j in range(k + 1, centres)
    ]
    expected = mean(terms) + (tau * sum(merging) / (CLASSES * centres * (centres - 1)) if centres > 1 else 0)
    assert value_of(objective, raw, labels) == pytest.approx(expected)


def softmax_loss(logits, labels):
    return mean(logsumexp(row) - row[c] for row, c in zip(logits, labels, strict=True))


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_normalized_softmax(temperature):
    raw, labels = batch()
    objective = objective_of("normalized-softmax", temperature=temperature)
    cosines = unit(raw) @ unit(objective.loss.W.detach().numpy().T).T
    assert value_of(objective, raw, labels) == pytest.approx(softmax_loss(cosines / temperature, labels))


def test_cosface():
    raw, labels = batch()
    objective = objective_of("cosface", margin=0.35, scale=64)
    logits = unit(raw) @ unit(objective.loss.class_vectors().detach().numpy()).T
    logits[np.arange(len(labels)), labels] -= 0.35
    assert value_of(objective, raw, labels) == pytest.approx(softmax_loss(64 * logits, labels))


@pytest.mark.parametrize("margin", [28.6, 80.0])
def test_arcface(margin):
    raw, labels = batch()
    objective = objective_of("arcface", margin=margin, scale=16)
    logits = unit(raw) @ unit(objective.loss.class_vectors().detach().numpy()).T
    m = math.radians(margin)
    for i, c in enumerate(labels):
        angle = math.acos(logits[i, c])
        logits[i, c] = math.cos(angle + m) if angle + m <= math.pi else math.cos(angle) - m * math.sin(m)
    assert value_of(objective, raw, labels) == pytest.approx(softmax_loss(16 * logits, labels))


def test_every_registered_loss_has_its_oracle_in_this_folder():
    tested = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    for name in losses:
        stem = name.replace("++", "-plus-plus").replace("-", "_")
        assert re.search(rf"def test_(\w+_)?{stem}(_|\()", tested), f"{name} has no oracle"
