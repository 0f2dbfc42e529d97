"""Measures of embedding geometry against loops over pairs, scikit-learn, scipy, and the tables of the thesis."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import entropy
from sklearn.decomposition import TruncatedSVD

from nearkin.errors import DataError
from nearkin.metrics import (
    GEOMETRY,
    class_moments,
    class_separation,
    floored_directions,
    geometry,
    geometry_metrics,
    mean_class_radius,
    separation_intervals,
    significant_directions,
    singular_spectrum,
    spectral_decay,
)

SIZES = {"a": 1, "b": 2, "c": 7, "d": 12}


def clusters(seed=0, d=6, spread=0.8):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(list(SIZES), list(SIZES.values())))
    centres = dict(zip(SIZES, rng.normal(size=(len(SIZES), d)), strict=True))
    return np.stack([centres[label] for label in labels]) + spread * rng.normal(size=(len(labels), d)), labels


def by_loops(x, labels):
    """Equations 2.6 to 2.11 as printed, with their corrections, pair by pair."""
    f = x / np.linalg.norm(x, axis=1, keepdims=True)
    groups = [f[labels == name] for name in np.unique(labels)]
    means = [group.mean(axis=0) for group in groups]
    k = len(groups)

    def cosine_distance(u, v):
        return 1 - u @ v / np.linalg.norm(u) / np.linalg.norm(v)

    ordered = [(i, j) for i in range(k) for j in range(k) if i != j]
    inter = np.mean([np.square(means[i] - means[j]).sum() for i, j in ordered])
    intra = np.mean([np.square(g - m).sum(axis=1).mean() for g, m in zip(groups, means, strict=True)])
    pi_inter = np.mean([cosine_distance(means[i], means[j]) for i, j in ordered])
    own = [cosine_distance(g[i], g[j]) for g in groups for i in range(len(g)) for j in range(len(g)) if i != j]
    assert len(own) == sum(len(g) * (len(g) - 1) for g in groups)
    within = sum(cosine_distance(u, v) / (k * len(g) ** 2) for g in groups for u in g for v in g)
    total = sum(cosine_distance(u, v) / (k**2 * len(g) * len(h)) for g in groups for h in groups for u in g for v in h)
    return {
        "D_inter": inter,
        "D_intra": intra,
        "phi": inter / intra,
        "pi_ratio": np.mean(own) / pi_inter,
        "R2": 1 - within / total,
    }


@pytest.mark.parametrize("seed", range(3))
def test_separation_is_that_of_loops_over_all_pairs(seed):
    x, labels = clusters(seed)
    found = geometry_metrics(x, labels)
    assert tuple(found) == GEOMETRY
    for name, value in by_loops(x, labels).items():
        assert found[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize(("n", "d"), [(50, 6), (30, 12), (9, 6)])
def test_spectrum_is_that_of_scikit_learn_and_its_decay_that_of_scipy(n, d):
    x = np.random.default_rng(0).normal(size=(n, d)) * np.geomspace(3, 0.2, d)
    f = x / np.linalg.norm(x, axis=1, keepdims=True)
    values = TruncatedSVD(d - 1, algorithm="arpack").fit(f).singular_values_
    values = np.sort(values)[::-1] / values.sum()
    spectrum = singular_spectrum(x)
    np.testing.assert_allclose(spectrum, values)
    uniform = np.full(d - 1, 1 / (d - 1))
    assert spectral_decay(spectrum) == pytest.approx(entropy(uniform, values))
    found = geometry_metrics(x, np.arange(n) % 3)
    assert found["rho"] == spectral_decay(spectrum)
    assert found["d_DoV"] == (values > 1 / (d - 1)).sum() == significant_directions(spectrum)


def test_a_direction_without_variance_counts_as_a_millionth_of_the_largest():
    x = np.random.default_rng(0).normal(size=(40, 3)) @ np.eye(3, 8)
    spectrum = singular_spectrum(x.astype(np.float32))
    np.testing.assert_allclose(spectrum[3:], 1e-6 * spectrum[0], rtol=1e-9)
    assert spectrum.sum() == pytest.approx(1)
    assert np.isfinite(spectral_decay(spectrum))
    assert len(singular_spectrum(x[:2])) == 7  # fewer items than dimensions


def test_equal_directions_have_no_decay_and_none_above_average():
    spectrum = singular_spectrum(np.repeat(np.eye(5), 3, axis=0))
    assert spectral_decay(spectrum) == pytest.approx(0, abs=1e-12)
    assert significant_directions(spectrum) == 0
    assert significant_directions(singular_spectrum(np.eye(3)[[0, 0, 0, 1, 2]])) == 1


@given(st.integers(0, 30), st.integers(2, 7), st.floats(0.05, 3))
def test_neither_rotation_nor_length_nor_order_matter(seed, d, spread):
    x, labels = clusters(seed, d, spread)
    rng = np.random.default_rng(seed)
    turned = x @ np.linalg.qr(rng.normal(size=(d, d)))[0] * rng.uniform(0.1, 9, size=(len(x), 1))
    order = rng.permutation(len(x))
    found = geometry_metrics(x, labels)
    assert geometry_metrics(turned[order], labels[order]) == pytest.approx(found, rel=1e-6)
    assert 0 <= found["R2"] <= 1
    assert found["rho"] >= 0
    assert 0 <= found["d_DoV"] <= d - 1
    for name in ("D_inter", "D_intra"):
        assert 0 <= found[name] <= 4


@given(st.integers(0, 30), st.floats(0.05, 3))
def test_class_separation_is_a_function_of_phi_and_the_number_of_classes(seed, spread):
    """R2 = 1 - 1 / (1 + (1 - 1/C) phi / 2): on normalised features both order spaces alike."""
    found = geometry_metrics(*clusters(seed, spread=spread))
    assert found["R2"] == pytest.approx(1 - 1 / (1 + (1 - 1 / len(SIZES)) * found["phi"] / 2))


# Tables 5.4 and 5.5: ten classes each.
PRINTED_PHI = [15.0003, 5.1692, 4.2946, 2.0631, 2.6684, 26.6981, 12.4786, 4.9135, 1.7879, 15.2928, 15.0282]
PRINTED_R2 = [0.8709, 0.6993, 0.6590, 0.4814, 0.5456, 0.9231, 0.8488, 0.6885, 0.4458, 0.8731, 0.8711]
PRINTED_INTER = [1.0245, 0.6783, 0.6500, 0.5376, 0.5312, 1.2494, 0.7214, 0.5972, 0.4889, 0.8629, 1.0091]
PRINTED_INTRA = [0.0683, 0.1312, 0.1513, 0.2606, 0.1991, 0.0468, 0.0578, 0.1215, 0.2735, 0.0564, 0.0671]


@pytest.mark.parametrize(
    ("phi", "r2", "inter", "intra"), list(zip(PRINTED_PHI, PRINTED_R2, PRINTED_INTER, PRINTED_INTRA, strict=True))
)
def test_the_printed_tables_obey_the_corrected_equations(phi, r2, inter, intra):
    """Ten classes around orthogonal centres, as far apart and as wide as printed, give the printed phi and R2."""
    length = np.sqrt(1 - intra)  # of a class mean
    common = np.sqrt(length**2 - inter / 2)  # the part that all means share
    own = np.sqrt(inter / 2)
    rows = []
    for k in range(10):
        for sign in (1, -1):
            row = np.zeros(21)
            row[0], row[1 + k], row[11 + k] = common, own, sign * np.sqrt(intra)
            rows.append(row)
    found = geometry_metrics(np.array(rows), np.repeat(np.arange(10), 2))
    assert found["D_inter"] == pytest.approx(inter)
    assert found["D_intra"] == pytest.approx(intra)
    assert found["phi"] == pytest.approx(phi, rel=2e-3)  # the print rounds its variances
    assert found["R2"] == pytest.approx(r2, abs=3e-4)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_input_space_has_norms_of_its_own(norm, normalise):
    x, labels = clusters()
    f = x / np.linalg.norm(x, axis=1, keepdims=True) if normalise else x
    order = {"l2": 2, "linf": np.inf}[norm]
    means = np.stack([f[labels == name].mean(axis=0) for name in SIZES])
    pairs = [np.linalg.norm(u - v, order) ** 2 for u in means for v in means if u is not v]
    between = np.sum(pairs) / (len(SIZES) * (len(SIZES) - 1))
    within = np.mean(
        [
            np.mean([np.linalg.norm(row - mean, order) ** 2 for row in f[labels == name]])
            for name, mean in zip(SIZES, means, strict=True)
        ]
    )
    images = torch.from_numpy(x.reshape(len(x), 1, 2, 3))
    found = class_separation(images, labels, norm=norm, normalise=normalise)
    assert found == pytest.approx({"D_inter": between, "D_intra": within, "phi": between / within})
    if normalise and norm == "l2":
        whole = geometry_metrics(x, labels)
        assert found == pytest.approx({name: whole[name] for name in found})


@pytest.mark.parametrize("entries", [6, 30, 10_000])
def test_blocks_of_rows_change_nothing(monkeypatch, entries):
    x, labels = clusters()
    whole = geometry_metrics(x, labels)
    monkeypatch.setattr(geometry, "_BLOCK", entries)
    assert geometry_metrics(x, labels) == pytest.approx(whole, rel=1e-9)


def test_limits_have_values():
    labels = np.array([0, 0, 0, 1, 1, 1])
    points = np.eye(3)[labels]
    found = geometry_metrics(points, labels)
    assert found["D_intra"] == 0
    assert found["phi"] == np.inf
    assert (found["pi_ratio"], found["R2"]) == (0, 1)
    cancelling = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    found = geometry_metrics(cancelling, [0, 0, 1, 1])  # both means are zero
    assert (found["D_inter"], found["phi"], found["R2"]) == (0, 0, 0)
    assert found["pi_ratio"] == pytest.approx(2)  # a mean without direction is at a right angle to all
    nothing = geometry_metrics(np.full((4, 3), 1 / 3), [0, 0, 1, 1])
    assert (nothing["D_inter"], nothing["D_intra"]) == (0, 0)
    assert np.isnan([nothing["phi"], nothing["pi_ratio"], nothing["R2"]]).all()


def test_resampled_classes_are_weights_of_the_same_formulas():
    """A resample counts as loops do that hold each class as often as it was drawn, pairs of one class left out."""
    x, labels = clusters(1)
    moments = class_moments(x, labels)
    weights = np.array([[1, 1, 1, 1], [0, 2, 1, 1], [3, 0, 0, 1]])
    found = moments.separation(weights)
    f = x / np.linalg.norm(x, axis=1, keepdims=True)
    groups = [f[labels == name] for name in SIZES]
    means = np.stack([group.mean(axis=0) for group in groups])
    cosines = means @ means.T / np.outer(np.linalg.norm(means, axis=1), np.linalg.norm(means, axis=1))
    for place, drawn in enumerate(weights):
        share = np.outer(drawn, drawn) * (1 - np.eye(4))
        inter = (share * cdist(means, means) ** 2).sum() / share.sum()
        intra = (drawn * [1 - m @ m for m in means]).sum() / drawn.sum()
        between = (share * (1 - means @ means.T)).sum() / share.sum()
        own = sum(w * (len(g) ** 2 - (g @ g.T).sum()) for w, g in zip(drawn, groups, strict=True))
        pairs = sum(w * len(g) * (len(g) - 1) for w, g in zip(drawn, groups, strict=True))
        assert found["D_inter"][place] == pytest.approx(inter)
        assert found["D_intra"][place] == pytest.approx(intra)
        assert found["phi"][place] == pytest.approx(inter / intra)
        assert found["pi_ratio"][place] == pytest.approx(own / pairs / ((share * (1 - cosines)).sum() / share.sum()))
        assert found["R2"][place] == pytest.approx(1 - intra / (intra / 4 + 3 / 4 * between))


def test_intervals_hold_the_values_and_come_from_the_seed():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 8)
    x = rng.normal(size=(30, 10))[labels] + rng.uniform(0.2, 1.5, size=30)[labels, None] * rng.normal(size=(240, 10))
    moments = class_moments(x, labels)
    found = separation_intervals(moments, resamples=300)
    values = geometry_metrics(x, labels)
    assert set(found) == set(GEOMETRY) - {"rho", "d_DoV"}
    for name, (low, high) in found.items():
        assert low < values[name] < high
    assert separation_intervals(moments, resamples=300) == found
    assert separation_intervals(moments, resamples=300, seed=1) != found
    tight = separation_intervals(moments, resamples=300, level=0.5)
    assert all(found[name][0] < tight[name][0] < tight[name][1] < found[name][1] for name in found)


def test_intervals_without_meaning_are_left_out():
    labels = np.repeat(np.arange(5), 2)
    found = separation_intervals(class_moments(np.eye(5)[labels], labels), resamples=50)
    assert "phi" not in found  # infinite
    assert found["D_intra"] == (0, 0)
    with pytest.raises(DataError, match="resamples"):
        separation_intervals(class_moments(np.eye(5)[labels], labels), resamples=0)


def test_labels_and_vectors_may_be_of_any_kind():
    x, labels = clusters()
    expected = geometry_metrics(x, labels)
    codes = np.searchsorted(list(SIZES), labels)
    assert geometry_metrics(torch.from_numpy(x), torch.from_numpy(codes)) == pytest.approx(expected)
    assert geometry_metrics(x.tolist(), labels.tolist()) == pytest.approx(expected)
    assert geometry_metrics(x.astype(np.float32), labels) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("x", "labels", "words"),
    [
        (np.eye(3), [0, 0, 0], "classes"),
        (np.eye(3), [0, 1, 2], "two"),
        (np.zeros((3, 2)), [0, 0, 1], "row 0"),
        (np.diag([1.0, 1.0, 0.0]), [0, 0, 1], "row 2"),
        (np.ones((3, 1)), [0, 0, 1], "dimensions"),
        (np.ones((3, 2)), [0, 0], "labels"),
    ],
)
def test_what_cannot_be_measured_is_refused(x, labels, words):
    with pytest.raises(DataError) as refused:
        geometry_metrics(x, labels)
    assert words in str(refused.value)


def test_an_unknown_norm_is_refused():
    with pytest.raises(DataError, match="linf"):
        class_separation(*clusters(), norm="l1")


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(geometry).failed == 0


def radius(points):
    """The radius of k greedy centers, averaged over k = 1 ... n; the first center is the best single one."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    centers = [int(distances.max(axis=1).argmin())]
    found = []
    while True:
        nearest = distances[:, centers].min(axis=1)
        found.append(nearest.max())
        if len(centers) == len(points):
            return np.mean(found)
        centers.append(int(nearest.argmax()))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_over_classes_of_any_size_in_any_order(seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(["a", "b", "c", "d"], [1, 2, 7, 15]))
    points = rng.normal(size=(len(labels), 5)).astype(np.float32)
    expected = np.mean([radius(points[labels == name]) for name in "abcd"])
    assert mean_class_radius(points, labels) == pytest.approx(expected, rel=1e-5)


def test_of_a_large_class_the_first_hundred_items_count():
    points = np.random.default_rng(0).normal(size=(130, 3)).astype(np.float32)
    labels = np.zeros(130, dtype=int)
    assert mean_class_radius(points, labels) == pytest.approx(radius(points[:100]), rel=1e-5)
    assert mean_class_radius(points, labels) != pytest.approx(radius(points), rel=1e-3)


@pytest.mark.parametrize(("rank", "dimension"), [(1, 6), (3, 9), (8, 9), (9, 9)])
def test_directions_at_the_floor_are_those_beyond_the_rank(rank, dimension):
    rng = np.random.default_rng(0)
    points = (rng.normal(size=(50, rank)) @ rng.normal(size=(rank, dimension))).astype(np.float64)
    assert floored_directions(singular_spectrum(points)) == max(0, dimension - 1 - rank)
