"""Average pooling as a convex combination of prototypes: loops, the transport problem itself, and the bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from nearkin.errors import DataError
from nearkin.metrics import local_features as module
from nearkin.metrics.local_features import (
    active_prototypes,
    check_bound,
    class_histograms,
    nearest_prototypes,
    pcc_embedding,
    prototype_histogram,
    shared_mass,
)
from nearkin.spaces import covering_radius, kcenter


def case(images=5, n=7, m=4, d=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(images, n, d, generator=generator, dtype=torch.float64)
    return features.to(dtype), torch.randn(m, d, generator=generator, dtype=torch.float64).to(dtype)


def by_loops(features, prototypes):
    """Histogram (B, m) and its combination (B, d), feature by feature."""
    features, prototypes = features.double().numpy(), prototypes.double().numpy()
    histogram = np.zeros((len(features), len(prototypes)))
    for image, collection in enumerate(features):
        for x in collection:
            distances = [np.sqrt(((x - v) ** 2).sum()) for v in prototypes]
            histogram[image, distances.index(min(distances))] += 1 / len(collection)
    return histogram, np.array([sum(p * v for p, v in zip(row, prototypes, strict=True)) for row in histogram])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(5, 7, 4, 3), (1, 1, 1, 1), (3, 9, 12, 2), (2, 49, 48, 16)])
def test_the_histogram_is_that_of_loops(shape, dtype):
    features, prototypes = case(*shape, dtype=dtype)
    histogram, pcc = by_loops(features, prototypes)
    found = prototype_histogram(features, prototypes)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, histogram, atol=1e-12)
    np.testing.assert_allclose(pcc_embedding(found, prototypes), pcc, atol=1e-12)
    bound = check_bound(features, prototypes)
    np.testing.assert_allclose(bound.histogram, histogram, atol=1e-12)
    np.testing.assert_allclose(bound.pcc, pcc, atol=1e-12)
    np.testing.assert_allclose(bound.gap, features.double().mean(dim=1), atol=1e-12)
    np.testing.assert_allclose(bound.error, np.linalg.norm(pcc - bound.gap.numpy(), axis=1), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_it_solves_the_transport_problem_that_defines_it(seed):
    features, prototypes = case(images=1, n=6, m=5, d=2, seed=seed)
    costs = cdist(prototypes, features[0])  # (m, n)
    m, n = costs.shape
    # Unknown are pi (m, n), then p (m,): columns of pi sum to 1/n, its rows to p, and p to 1.
    columns = np.hstack([np.tile(np.eye(n), m), np.zeros((n, m))])
    rows = np.hstack([np.repeat(np.eye(m), n, axis=1), -np.eye(m)])
    whole = np.hstack([np.zeros((1, m * n)), np.ones((1, m))])
    solved = linprog(
        np.append(costs.ravel(), np.zeros(m)),
        A_eq=np.vstack([columns, rows, whole]),
        b_eq=np.concatenate([np.full(n, 1 / n), np.zeros(m), [1.0]]),
        bounds=(0, None),
    )
    bound = check_bound(features, prototypes)
    np.testing.assert_allclose(bound.histogram[0], solved.x[m * n :], atol=1e-9)
    assert float(bound.cost[0]) == pytest.approx(solved.fun, abs=1e-9)


def test_on_a_line_by_hand():
    features = torch.tensor([[[0.0], [1.0], [2.0], [9.0]], [[0.0], [0.0], [0.0], [0.0]]])
    bound = check_bound(features, torch.tensor([[0.0], [10.0], [2.0]]))
    assert bound.nearest.tolist() == [[0, 0, 2, 1], [0, 0, 0, 0]]  # 1 lies between 0 and 2: the lower index
    assert bound.histogram.tolist() == [[0.5, 0.25, 0.25], [1, 0, 0]]
    assert bound.gap.tolist() == [[3.0], [0.0]]
    assert bound.pcc.tolist() == [[3.0], [0.0]]
    assert bound.error.tolist() == [0.0, 0.0]
    assert bound.radius.tolist() == [1.0, 0.0]
    assert bound.cost.tolist() == [0.5, 0.0]
    assert bound.covering_radius == 1.0


def test_in_the_plane_by_hand():
    features = torch.tensor([[[3.0, 4.0], [3.0, 0.0]]])
    bound = check_bound(features, torch.tensor([[0.0, 0.0], [3.0, 1.0]]))
    assert bound.nearest.tolist() == [[1, 1]]
    assert bound.distance.tolist() == [[3.0, 1.0]]
    assert (bound.error.item(), bound.radius.item()) == (1.0, 3.0)


def test_of_equal_prototypes_the_first_counts():
    features, prototypes = case()
    assert torch.equal(
        prototype_histogram(features, torch.cat([prototypes, prototypes]))[:, 4:], torch.zeros(5, 4).double()
    )


@settings(max_examples=150, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 6), st.just(3)), elements=st.floats(-1e6, 1e6)),
    arrays(np.float64, st.tuples(st.integers(1, 5), st.just(3)), elements=st.floats(-1e6, 1e6)),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_bound_always_holds(features, prototypes, dtype):
    bound = check_bound(torch.from_numpy(features).to(dtype), torch.from_numpy(prototypes).to(dtype))
    assert bound.holds.all()
    rounding = 1e-8 * (1 + np.abs(features).max() + np.abs(prototypes).max())
    assert (bound.error <= bound.cost + rounding).all()
    assert (bound.cost <= bound.radius + rounding).all()
    np.testing.assert_allclose(bound.histogram.sum(dim=1), 1.0)


def test_a_bound_that_is_broken_would_be_seen(monkeypatch):
    features, prototypes = case()
    monkeypatch.setattr(module, "pcc_embedding", lambda histogram, prototypes: histogram @ prototypes + 100.0)
    assert not check_bound(features, prototypes).holds.any()


def test_outside_the_unit_ball_the_printed_square_fails_and_the_bound_holds():
    bound = check_bound(torch.tensor([[[10.0]]]), torch.tensor([[0.0]]))
    assert bound.error.item() ** 2 > bound.covering_radius
    assert bound.error.item() <= bound.covering_radius
    assert bound.holds.all()


@pytest.mark.parametrize("far", [0.0, 1e4, 1e8])
def test_float32_far_from_the_origin(far):
    features, _ = case(images=4, n=20, d=8, dtype=torch.float32)
    features += far
    bound = check_bound(features, features[0, :5])
    assert bound.holds.all()
    assert bound.error[0] > 0 or far == 1e8


def test_radii_are_those_of_the_covering():
    features, prototypes = case(images=6, n=10)
    bound = check_bound(features, prototypes)
    expected = covering_radius(features, prototypes.expand(6, -1, -1))
    np.testing.assert_allclose(bound.radius, expected)
    assert bound.covering_radius == pytest.approx(float(expected.max()))


def test_when_every_feature_is_a_prototype_both_means_are_equal():
    features, _ = case()
    bound = check_bound(features, features.reshape(-1, 3))
    assert bound.covering_radius == 0.0
    assert float(bound.error.max()) < 1e-12


def test_more_prototypes_by_k_center_never_widen_the_radius():
    features, _ = case(images=8, n=20)
    flat = features.reshape(1, -1, 3)
    picks = flat[0, kcenter(flat, 30)[0]]
    radii = [check_bound(features, picks[:k]).covering_radius for k in (1, 3, 10, 30)]
    assert radii == sorted(radii, reverse=True)
    assert radii[0] > radii[-1]


def test_the_order_of_positions_does_not_matter():
    features, prototypes = case()
    shuffled = features[:, torch.randperm(7, generator=torch.Generator().manual_seed(1))]
    assert torch.equal(prototype_histogram(features, prototypes), prototype_histogram(shuffled, prototypes))


def test_blocks_change_nothing(monkeypatch):
    features, prototypes = case(images=6, n=11)
    whole = nearest_prototypes(features, prototypes)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 200)
    blocks = nearest_prototypes(features, prototypes)
    assert torch.equal(whole[0], blocks[0])
    assert torch.equal(whole[1], blocks[1])


def test_no_images_give_nothing():
    bound = check_bound(torch.zeros(0, 4, 3), torch.zeros(2, 3))
    assert bound.histogram.shape == (0, 2)
    assert bound.covering_radius == 0.0


def test_classes_share_what_the_smaller_of_two_masses_says():
    histogram = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]]).double()
    found = class_histograms(histogram, torch.tensor([0, 0, 1, 2]))
    np.testing.assert_allclose(found, [[0.75, 0.25, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    shared = shared_mass(found)
    expected = [[1 - np.abs(a - b).sum() / 2 for a in found.numpy()] for b in found.numpy()]
    np.testing.assert_allclose(shared, expected)
    np.testing.assert_allclose(shared[0], [1.0, 0.0, 0.45])
    assert active_prototypes(found, 0.24).tolist() == [[True, True, False], [False, False, True], [False, True, True]]
    assert active_prototypes(found, 0.25)[0].tolist() == [True, False, False]
    assert active_prototypes(found).tolist()[0] == [True, True, False]


@pytest.mark.parametrize(
    ("features", "prototypes", "match"),
    [
        (torch.zeros(3, 2), torch.zeros(1, 2), r"\(3, 2\)"),
        (torch.zeros(3, 0, 2), torch.zeros(1, 2), "shape"),
        (torch.zeros(3, 4, 2), torch.zeros(1, 3), "prototypes"),
        (torch.zeros(3, 4, 2), torch.zeros(0, 2), "prototypes"),
        (torch.full((3, 4, 2), torch.nan), torch.zeros(1, 2), "features"),
        (torch.full((3, 4, 2), torch.inf), torch.zeros(1, 2), "features"),
        (torch.zeros(3, 4, 2), torch.full((1, 2), torch.nan), "prototypes"),
    ],
)
def test_what_cannot_be_covered_is_told(features, prototypes, match):
    for function in (prototype_histogram, check_bound):
        with pytest.raises(DataError, match=match):
            function(features, prototypes)


def test_what_does_not_fit_together_is_told():
    with pytest.raises(DataError, match=r"\(4, 5\)"):
        pcc_embedding(torch.zeros(2, 3), torch.zeros(4, 5))
    with pytest.raises(DataError, match="histograms"):
        class_histograms(torch.zeros(2, 3), torch.tensor([0]))
    with pytest.raises(DataError, match="gaps"):
        class_histograms(torch.zeros(2, 3), torch.tensor([0, 2]))
    with pytest.raises(DataError, match=r"1\.5"):
        active_prototypes(torch.zeros(2, 3), 1.5)
