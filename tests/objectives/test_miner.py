"""Miners: which triplets or pairs they choose, by naive loops."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from nearkin.objectives import ObjectiveSection, make_objective, miners
from nearkin.spaces import LipschitzBall, make_space

CLASSES, DIMENSION = 4, 6


def batch(seed=0, per_class=3):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(per_class)
    return 2 * torch.randn(len(labels), DIMENSION, generator=generator), labels


def miner_of(name, loss="triplet", space="sphere", seed=0, parameters=None, **miner_parameters):
    section = ObjectiveSection(loss=loss, parameters=parameters or {}, miner=name, miner_parameters=miner_parameters)
    return make_objective(section, dimension=DIMENSION, classes=CLASSES, space=make_space(space), seed=seed).miner


def distances(embeddings):
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    return (unit[:, None] - unit[None]).norm(dim=2).numpy()


def triplets(labels):
    n = range(len(labels))
    return [(a, p, o) for a, p, o in product(n, n, n) if a != p and labels[a] == labels[p] and labels[a] != labels[o]]


def as_set(choice):
    return set(zip(*(index.tolist() for index in choice), strict=True))


def test_semi_hard_takes_the_margin_of_the_loss():
    embeddings, labels = batch()
    d = distances(embeddings)
    for miner, margin in [
        (miner_of("semi-hard", parameters={"margin": 0.3}), 0.3),
        (miner_of(None, parameters={"margin": 0.3}), 0.3),
        (miner_of("semi-hard", parameters={"margin": 0.3}, margin=0.05), 0.05),
        (miner_of("semi-hard"), 0.0961),
        (miner_of("semi-hard", loss="supcon"), 0.2),
    ]:
        expected = {(a, p, n) for a, p, n in triplets(labels) if d[a, p] < d[a, n] <= d[a, p] + margin}
        assert as_set(miner(embeddings, labels)) == expected


def test_hard_takes_the_furthest_positive_and_the_nearest_negative():
    embeddings, labels = batch()
    d, same = distances(embeddings), labels[:, None] == labels
    expected = set()
    for a in range(len(labels)):
        positives = [j for j in range(len(labels)) if same[a, j] and j != a]
        negatives = [j for j in range(len(labels)) if not same[a, j]]
        expected.add((a, max(positives, key=lambda j: d[a, j]), min(negatives, key=lambda j: d[a, j])))
    assert as_set(miner_of("hard")(embeddings, labels)) == expected


def test_multi_similarity():
    embeddings, labels = batch()
    cosines = 1 - distances(embeddings) ** 2 / 2
    n = range(len(labels))
    positives, negatives = set(), set()
    for i in n:
        own = [cosines[i, j] for j in n if labels[j] == labels[i] and j != i]
        others = [cosines[i, j] for j in n if labels[j] != labels[i]]
        for j in n:
            if labels[j] != labels[i] and cosines[i, j] + 0.1 > min(own):
                negatives.add((i, j))
            if labels[j] == labels[i] and j != i and cosines[i, j] - 0.1 < max(others):
                positives.add((i, j))
    a, p, b, q = miner_of("multi-similarity", loss="multi-similarity")(embeddings, labels)
    assert as_set((a, p)) == positives
    assert as_set((b, q)) == negatives


def test_angular_miner_sees_unit_vectors():
    embeddings, labels = batch()
    x = embeddings / embeddings.norm(dim=1, keepdim=True)
    expected = set()
    for a, p, n in triplets(labels):
        tangent = (x[a] - x[p]).norm() / (2 * (x[n] - (x[a] + x[p]) / 2).norm())
        if torch.rad2deg(torch.atan(tangent)) > 35:
            expected.add((a, p, n))
    assert expected
    assert as_set(miner_of("angular", angle=35)(embeddings, labels)) == expected


def test_pair_margin_measures_in_the_space():
    embeddings, labels = batch()
    points = LipschitzBall().project(embeddings / 4)
    d = (points[:, None] - points[None]).norm(dim=2)
    miner = miner_of("pair-margin", loss="contrastive", space="lipschitz-ball", pos_margin=0.5, neg_margin=0.7)
    a, p, b, q = miner(embeddings / 4, labels)
    same = labels[:, None] == labels
    off = ~torch.eye(len(labels), dtype=torch.bool)
    assert as_set((a, p)) == as_set(torch.where(same & off & (d > 0.5)))
    assert as_set((b, q)) == as_set(torch.where(~same & (d < 0.7)))


def test_distance_weighted_draws_by_seed_and_by_call():
    embeddings, labels = batch(per_class=6)
    state = torch.get_rng_state()
    first, again, other = (miner_of("distance-weighted", loss="margin", seed=seed) for seed in (0, 0, 1))
    draws = [first(embeddings, labels) for _ in range(3)]
    assert [as_list(choice) for choice in draws] == [as_list(again(embeddings, labels)) for _ in range(3)]
    assert as_list(draws[0]) != as_list(draws[1])
    assert as_list(draws[0]) != as_list(other(embeddings, labels))
    assert torch.equal(state, torch.get_rng_state())


def as_list(choice):
    return [index.tolist() for index in choice]


def test_distance_weighted_draws_as_often_as_the_inverse_density_of_distances_says():
    labels = torch.tensor([0, 0, 1, 1])
    angles = torch.tensor([0.0, 0.1, 0.6, 1.2])
    embeddings = torch.zeros(4, 8)
    embeddings[:, 0], embeddings[:, 1] = angles.cos(), angles.sin()
    d = distances(embeddings)
    miner = miner_of("distance-weighted", loss="margin")
    counts = np.zeros(4)
    for _ in range(400):
        a, _, n = miner(embeddings, labels)
        for i in n[a == 0].tolist():
            counts[i] += 1
    density = np.clip(d[0], 0.5, None)
    weights = density ** (2.0 - 8) * (1 - density**2 / 4) ** ((3 - 8) / 2)
    expected = weights[2:] / weights[2:].sum()
    np.testing.assert_allclose(counts[2:] / counts.sum(), expected, atol=0.05)


def test_the_miner_called_all_leaves_the_choice_to_the_loss():
    assert miner_of("all") is None


@pytest.mark.parametrize("name", miners.names())
def test_no_positives_and_no_negatives_are_fine(name):
    embeddings, _ = batch()
    for labels in (torch.arange(12), torch.zeros(12, dtype=torch.int64)):
        objective = make_objective(ObjectiveSection(loss="triplet", miner=name), dimension=DIMENSION, classes=12)
        assert objective(embeddings, labels).item() == 0
