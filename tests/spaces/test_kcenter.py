"""Greedy k-center and covering radius against naive loops and brute force."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.spaces import covering_radius, greedy_k_center


def naive_picks(points, k, seeds, valid):
    """Algorithm 2 of the thesis for one group, a point at a time."""
    picks, centers = [], [np.asarray(seed) for seed in seeds]
    for _ in range(k):
        best, best_distance = None, -1.0
        for i, point in enumerate(points):
            if not valid[i] or i in picks:
                continue
            distance = min((np.sqrt(((point - c) ** 2).sum()) for c in centers), default=np.inf)
            if distance > best_distance:
                best, best_distance = i, distance
        picks.append(best)
        centers.append(points[best])
    return picks


def naive_radius(points, centers):
    return max((min(np.sqrt(((p - c) ** 2).sum()) for c in centers) for p in points), default=0.0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 4),
    size=st.integers(1, 9),
    seeds=st.integers(0, 3),
    whole=st.booleans(),
)
def test_picks_match_the_naive_algorithm(seed, groups, size, seeds, whole):
    rng = np.random.default_rng(seed)

    def draw(*shape):  # whole numbers tie often and exactly
        return rng.integers(-2, 3, shape).astype(float) if whole else rng.normal(size=shape)

    points, given_centers = draw(groups, size, 2), draw(groups, seeds, 2)
    mask = rng.random((groups, size)) < 0.8
    mask[:, rng.integers(size)] = True
    k = int(rng.integers(1, mask.sum(axis=1).min() + 1))
    picks = greedy_k_center(
        torch.from_numpy(points), k, torch.from_numpy(given_centers) if seeds else None, torch.from_numpy(mask)
    )
    assert picks.dtype == torch.long
    assert picks.tolist() == [naive_picks(points[g], k, given_centers[g], mask[g]) for g in range(groups)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 8), k=st.integers(1, 3))
def test_radius_is_at_most_twice_the_best(seed, size, k):
    k = min(k, size)
    points = np.random.default_rng(seed).normal(size=(size, 2))
    tensor = torch.from_numpy(points)[None]
    picks = greedy_k_center(tensor, k)[0]
    best = min(naive_radius(points, points[list(chosen)]) for chosen in combinations(range(size), k))
    assert covering_radius(tensor, tensor[:, picks]).item() <= 2 * best + 1e-12


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_covering_radius_matches_naive(seed):
    rng = np.random.default_rng(seed)
    points, centers, mask = rng.normal(size=(3, 7, 4)), rng.normal(size=(3, 2, 4)), rng.random((3, 7)) < 0.7
    got = covering_radius(torch.from_numpy(points), torch.from_numpy(centers), torch.from_numpy(mask))
    np.testing.assert_allclose(got.numpy(), [naive_radius(points[g][mask[g]], centers[g]) for g in range(3)])


def test_radius_falls_with_every_pick_and_ends_at_zero():
    points = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
    picks = greedy_k_center(points, 9)
    radii = torch.stack(
        [covering_radius(points, torch.stack([points[g, picks[g, :k]] for g in range(2)])) for k in range(1, 10)]
    )
    assert (radii.diff(dim=0) <= 0).all()
    assert (radii[-1] == 0).all()
    assert picks.sort(dim=1).values.tolist() == [list(range(9))] * 2


def test_padding_may_hold_anything():
    points = torch.tensor([[[0.0], [torch.nan], [5.0], [1.0]]])
    assert greedy_k_center(points, 2, mask=torch.tensor([[True, False, True, True]])).tolist() == [[0, 2]]


def test_copies_are_picked_last_and_once():
    points = torch.tensor([[[1.0], [1.0], [4.0], [1.0]]])
    assert greedy_k_center(points, 4).tolist() == [[0, 2, 1, 3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": torch.zeros(2, 3, 1), "k": 4}, "smallest group holds 3"),
        ({"points": torch.zeros(2, 3, 1), "k": 0}, "k from 1"),
        ({"points": torch.zeros(3, 1), "k": 1}, "shape"),
        ({"points": torch.full((1, 3, 1), torch.nan), "k": 1}, "NaN"),
        ({"points": torch.zeros(1, 3, 1), "k": 1, "seeds": torch.full((1, 1, 1), torch.inf)}, "NaN or infinite"),
        ({"points": torch.zeros(1, 3, 1), "k": 1, "mask": torch.ones(3, 1)}, "mask"),
        ({"points": torch.zeros(1, 3, 1), "k": 2, "mask": torch.tensor([[1, 0, 0]])}, "holds 1"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(DataError, match=message):
        greedy_k_center(**arguments)


def test_a_radius_needs_centers():
    with pytest.raises(DataError, match="center"):
        covering_radius(torch.zeros(1, 3, 2), torch.zeros(1, 0, 2))
    assert covering_radius(torch.zeros(2, 0, 2), torch.zeros(2, 1, 2)).tolist() == [0, 0]
