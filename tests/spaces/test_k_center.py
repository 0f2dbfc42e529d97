"""Greedy k-center and covering radius against naive loops and brute force."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.spaces import covering_radius, k_center, kcenter


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
    picks = kcenter(
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
    picks = kcenter(tensor, k)[0]
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
    picks = kcenter(points, 9)
    radii = torch.stack(
        [covering_radius(points, torch.stack([points[g, picks[g, :k]] for g in range(2)])) for k in range(1, 10)]
    )
    assert (radii.diff(dim=0) <= 0).all()
    assert (radii[-1] == 0).all()
    assert picks.sort(dim=1).values.tolist() == [list(range(9))] * 2


def test_padding_may_hold_anything():
    points = torch.tensor([[[0.0], [torch.nan], [5.0], [1.0]]])
    assert kcenter(points, 2, mask=torch.tensor([[True, False, True, True]])).tolist() == [[0, 2]]


def test_copies_are_picked_last_and_once():
    points = torch.tensor([[[1.0], [1.0], [4.0], [1.0]]])
    assert kcenter(points, 4).tolist() == [[0, 2, 1, 3]]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    offset=st.sampled_from([0.0, 1.0, 1e3, 3e4]),
    seeds=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
)
def test_picks_are_those_of_double_precision_wherever_the_points_lie(seed, offset, seeds, dtype):
    generator = torch.Generator().manual_seed(seed)
    points = (torch.randn(20, 8, 16, generator=generator) + offset).to(dtype)
    known = (torch.randn(20, seeds, 16, generator=generator) + offset).to(dtype)
    expected = [
        naive_picks(p, 5, k, np.ones(8)) for p, k in zip(points.double().numpy(), known.double().numpy(), strict=True)
    ]
    assert kcenter(points, 5, seeds=known).tolist() == expected


def test_near_ties_in_single_precision_are_decided_in_double():
    generator = torch.Generator().manual_seed(0)
    unit = torch.nn.functional.normalize(torch.randn(500, 6, 32, generator=generator), dim=2)
    points = unit * (1 + 3e-7 * torch.randn(500, 6, 1, generator=generator))
    seeds = torch.zeros(500, 1, 32)  # all points are about as far from it
    expected = [naive_picks(p, 3, np.zeros((1, 32)), np.ones(6)) for p in points.double().numpy()]
    assert kcenter(points, 3, seeds=seeds).tolist() == expected
    _, sure = k_center._quick_picks(points, 3, seeds, torch.ones(500, 6, dtype=torch.bool))
    assert not sure.any()


def test_squares_may_overflow_single_precision():
    points = torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(kcenter(1e25 * points, 3), kcenter(points, 3))


def test_most_groups_are_sure_without_double_precision():
    generator = torch.Generator().manual_seed(0)
    points, seeds = torch.randn(500, 10, 64, generator=generator), torch.randn(500, 4, 64, generator=generator)
    picks, sure = k_center._quick_picks(points, 4, seeds, torch.ones(500, 10, dtype=torch.bool))
    assert sure.float().mean() > 0.95
    expected = k_center._careful_picks(points, 4, seeds, torch.ones(500, 10, dtype=torch.bool))
    assert torch.equal(picks[sure], expected[sure])


def test_blocks_of_doubtful_groups_give_the_same_picks(monkeypatch):
    points = torch.randint(-1, 2, (50, 6, 2), generator=torch.Generator().manual_seed(0)).float()  # ties everywhere
    whole = kcenter(points, 4)
    monkeypatch.setattr(k_center, "_BLOCK_BYTES", 500)
    assert torch.equal(kcenter(points, 4), whole)


@pytest.mark.parametrize("seeds", [None, torch.zeros(3, 0, 2), torch.zeros(3, 2, 2)])
def test_one_point_and_every_point(seeds):
    points = torch.arange(6.0).view(3, 1, 2)
    assert kcenter(points, 1, seeds=seeds).tolist() == [[0], [0], [0]]
    many = torch.randn(3, 7, 2, generator=torch.Generator().manual_seed(0))
    assert kcenter(many, 7, seeds=seeds).sort(dim=1).values.tolist() == [list(range(7))] * 3


def test_seeds_without_places_are_as_no_seeds():
    points = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(kcenter(points, 3, seeds=torch.zeros(4, 0, 3)), kcenter(points, 3))
    assert kcenter(points[:0], 3).shape == (0, 3)


def test_strided_points_and_gradients_do_no_harm():
    base = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    points = base.transpose(0, 1)
    assert torch.equal(kcenter(points, 3), kcenter(points.detach().contiguous(), 3))


def naive_average(points):
    """The average over k of the radius after k greedy picks, the first being the best single center."""
    distance = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    if len(points) == 0:
        return 0.0
    picks = [min(range(len(points)), key=lambda i: distance[i].max())]
    radii = [distance[picks].min(axis=0).max()]
    while len(picks) < len(points):
        picks.append(int(distance[picks].min(axis=0).argmax()))
        radii.append(distance[picks].min(axis=0).max())
    return float(np.mean(radii))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 12),
    offset=st.sampled_from([0.0, 1e5]),
    block=st.sampled_from([1, 2000, 2**25]),
)
def test_average_radius_matches_naive(seed, size, offset, block):
    rng = np.random.default_rng(seed)
    points, mask = rng.normal(size=(5, size, 3)) + offset, rng.random((5, size)) < 0.7
    padded = torch.from_numpy(np.where(mask[:, :, None], points, np.nan))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(k_center, "_BLOCK_BYTES", block)
        got = covering_radius(padded, mask=torch.from_numpy(mask))
    expected = [naive_average(points[g][mask[g]]) for g in range(5)]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-6 if offset else 1e-9)


def test_average_radius_by_hand():
    # 0, 1, 4: the best single center is 1 (radius 3), then 4 (1), then 0 (0).
    assert covering_radius(torch.tensor([[[0.0], [1.0], [4.0]]])).tolist() == pytest.approx([4 / 3])
    assert covering_radius(torch.randn(3, 1, 2)).tolist() == [0, 0, 0]
    assert covering_radius(torch.ones(2, 5, 2)).tolist() == [0, 0]
    assert covering_radius(torch.zeros(2, 0, 2)).tolist() == [0, 0]
    assert covering_radius(torch.randn(2, 4, 2).half()).dtype == torch.float32


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_average_radius_scales_with_the_points_and_ignores_where_they_lie(scale):
    points = torch.randn(4, 9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(covering_radius(scale * points + 7), scale * covering_radius(points))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": torch.zeros(2, 3, 1), "k": 4}, "4"),
        ({"points": torch.zeros(2, 3, 1), "k": 0}, r"\bk\b"),
        ({"points": torch.zeros(3, 1), "k": 1}, "shape"),
        ({"points": torch.full((1, 3, 1), torch.nan), "k": 1}, "NaN"),
        ({"points": torch.zeros(1, 3, 1), "k": 1, "seeds": torch.full((1, 1, 1), torch.inf)}, "NaN"),
        ({"points": torch.zeros(1, 3, 1), "k": 1, "mask": torch.ones(3, 1)}, "mask"),
        ({"points": torch.zeros(2, 3, 1), "k": 1, "seeds": torch.zeros(1, 3, 1)}, "seeds"),
        ({"points": torch.zeros(2, 3, 1), "k": 1, "seeds": torch.zeros(2, 3, 4)}, "seeds"),
        ({"points": torch.zeros(2, 3, 1), "k": 1, "seeds": torch.zeros(2, 1)}, "seeds"),
        ({"points": torch.zeros(1, 3, 1), "k": 2, "mask": torch.tensor([[1, 0, 0]])}, r"\bk\b"),
        ({"points": np.zeros((1, 3, 1)), "k": 1}, "ndarray"),
        ({"points": torch.zeros(1, 3, 1), "k": 1, "seeds": np.zeros((1, 3, 1))}, "seeds"),
        ({"points": torch.zeros(1, 3, 1), "k": 1, "mask": [[True] * 3]}, "mask"),
        ({"points": torch.zeros(1, 3, 1), "k": 1.0}, r"1\.0"),
        ({"points": torch.zeros(0, 3, 1), "k": None}, "None"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(DataError, match=message):
        kcenter(**arguments)


def test_a_radius_needs_centers():
    with pytest.raises(DataError, match="center"):
        covering_radius(torch.zeros(1, 3, 2), torch.zeros(1, 0, 2))
    assert covering_radius(torch.zeros(2, 0, 2), torch.zeros(2, 1, 2)).tolist() == [0, 0]
    with pytest.raises(DataError, match="centers"):
        covering_radius(torch.zeros(1, 3, 2), torch.zeros(1, 3, 1))
    with pytest.raises(DataError, match="NaN"):
        covering_radius(torch.full((1, 3, 2), torch.nan))
    with pytest.raises(DataError, match="shape"):
        covering_radius(torch.zeros(3, 2))
    with pytest.raises(DataError, match="ndarray"):
        covering_radius(torch.zeros(1, 3, 2), np.zeros((1, 1, 2)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", ["points", "centers"])
def test_a_radius_of_what_is_not_finite_is_refused(which, value):
    arguments = {"points": torch.zeros(1, 3, 2), "centers": torch.zeros(1, 2, 2)}
    arguments[which][0, 1, 0] = value
    with pytest.raises(DataError, match="NaN"):
        covering_radius(**arguments)


def test_what_pads_a_radius_to_centers_may_hold_anything():
    points = torch.tensor([[[3.0], [torch.nan], [torch.inf]]])
    assert covering_radius(points, torch.zeros(1, 1, 1), torch.tensor([[True, False, False]])).tolist() == [3]


def test_whole_numbers_of_numpy_are_taken():
    assert kcenter(torch.tensor([[[0.0], [5.0], [1.0]]]), np.int64(2)).tolist() == [[0, 1]]
