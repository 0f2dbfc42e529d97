"""The first weights of a head: a naive oracle, chunks, left-out classes, sizes, spaces, and features that defy it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from nearkin.errors import ModelError
from nearkin.models import moments
from nearkin.models import start as start_module
from nearkin.models.moments import sum_features
from nearkin.models.start import DIMENSIONS, HeadStart, fit_start
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

LONG_TAIL = (1, 1, 2, 3, 8, 20, 60, 200)
COUNTS = {
    "a few of each": (10,) * 12,
    "two items a class": (2,) * 20,
    "fewer items than features": (3, 4, 3),
    "long tail": LONG_TAIL,
}
FEATURES = 16


def sample_features(counts, features=FEATURES, seed=0, offset=3.0):
    """Features (N, F) whose directions vary by very different amounts, far from the origin, and their classes (N,)."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(len(counts)), counts)
    scales = 0.8 ** np.arange(features)
    means = rng.normal(size=(len(counts), features)) * 2 * scales[::-1]
    mixed = rng.normal(size=(features, features))
    x = offset + (means[ids] + rng.normal(size=(len(ids), features)) * scales) @ mixed
    order = rng.permutation(len(ids))
    return x[order].astype(np.float32), ids[order]


def in_chunks(x, size=None, order=None):
    order = np.arange(len(x)) if order is None else order
    for first in range(0, len(x), size or len(x)):
        positions = order[first : first + (size or len(x))]
        yield torch.from_numpy(x[positions]), positions


def fitted(x, ids, size=None, order=None, **options) -> HeadStart:
    return fit_start(in_chunks(x, size, order), ids, **options)


def outputs(start, x):
    return x.astype(np.float64) @ start.weight.double().numpy().T + start.bias.double().numpy()


def naive_whitening(x, ids, ridge):
    """The mean (F,), and A (F, F): the lower Cholesky factor of the inverse of the regularised within-class part."""
    x = x.astype(np.float64)
    within = np.zeros((x.shape[1], x.shape[1]))
    for label in np.unique(ids):
        apart = x[ids == label] - x[ids == label].mean(0)
        within += apart.T @ apart
    within /= len(x)
    ridged = within + ridge * np.trace(within) / len(within) * np.eye(len(within))
    return x.mean(0), np.linalg.cholesky(np.linalg.inv(ridged))


def naive_outputs(x, ids, ridge, dimension):
    mean, factor = naive_whitening(x, ids, ridge)
    white = (x - mean) @ factor
    _, vectors = np.linalg.eigh(white.T @ white / len(white))
    mapped = white @ vectors[:, ::-1][:, :dimension]
    return mapped / np.linalg.norm(mapped, axis=1).mean()


def assert_equal_but_for_signs(ours, theirs, tolerance=2e-3):
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours * signs, theirs, atol=tolerance)


def cosines(points):
    points = points / np.linalg.norm(points, axis=1, keepdims=True)
    return points @ points.T


# ---------------------------------------------------------------- the map


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize("ridge", [0.3, 10.0])
@pytest.mark.parametrize("dimension", [1, 5])
def test_it_is_the_formula(counts, ridge, dimension):
    x, ids = sample_features(counts)
    start = fitted(x, ids, size=7, ridge=ridge, dimension=dimension)
    assert (start.kind, start.ridge, start.damping, start.trials, start.notes) == ("whitened", ridge, 0.0, (), ())
    assert start.weight.shape == (dimension, FEATURES)
    assert_equal_but_for_signs(outputs(start, x), naive_outputs(x, ids, ridge, dimension))


@hypothesis_settings(max_examples=25)
@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=10).filter(lambda counts: max(counts) > 1),
    features=st.integers(1, 12),
    ridge=st.floats(0.1, 100.0),
    seed=st.integers(0, 1000),
)
def test_cosines_are_those_of_the_formula(counts, features, ridge, seed):
    """All components together, so that equal eigenvalues need not be in the same order."""
    x, ids = sample_features(counts, features, seed)
    ours = outputs(fitted(x, ids, size=5, ridge=ridge, dimension=features), x)
    theirs = naive_outputs(x, ids, ridge, features)
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=5e-3 * np.abs(theirs @ theirs.T).max())


def test_all_dimensions_compare_as_the_whitening_alone_does():
    x, ids = sample_features(COUNTS["a few of each"])
    mean, factor = naive_whitening(x, ids, 1.0)
    start = fitted(x, ids, ridge=1.0, dimension=FEATURES)
    np.testing.assert_allclose(cosines(outputs(start, x)), cosines((x - mean) @ factor), atol=2e-3)


@pytest.mark.parametrize("dimension", [1, 4, FEATURES])
def test_pca_is_that_of_scikit_learn(dimension):
    x, ids = sample_features(COUNTS["a few of each"])
    start = fitted(x, ids, size=50, kind="pca", dimension=dimension)
    theirs = PCA(dimension).fit_transform(x.astype(np.float64))
    assert (start.kind, start.ridge) == ("pca", None)
    assert_equal_but_for_signs(outputs(start, x), theirs / np.linalg.norm(theirs, axis=1).mean())


def test_more_items_than_are_sampled_have_about_unit_norm():
    x, ids = sample_features((400,) * 10)
    norms = np.linalg.norm(outputs(fitted(x, ids, ridge=1.0, dimension=4), x), axis=1)
    assert norms.mean() == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("options", [{"ridge": 1.0, "dimension": 6}, {"dimension": "auto"}, {"kind": "pca"}])
def test_neither_chunks_nor_order_matter(options):
    x, ids = sample_features((5,) * 30)
    whole = fitted(x, ids, **options)
    for size, order in ((1, None), (64, np.random.default_rng(1).permutation(len(x))), (7, np.arange(len(x))[::-1])):
        other = fitted(x, ids, size, order, **options)
        assert (other.ridge, other.damping, other.dimension) == (whole.ridge, whole.damping, whole.dimension)
        assert_equal_but_for_signs(outputs(other, x), outputs(whole, x))


def test_half_precision_features_are_taken():
    x, ids = sample_features(COUNTS["a few of each"])
    half = [(features.half(), positions) for features, positions in in_chunks(x, 16)]
    start = fit_start(half, ids, ridge=1.0, dimension=3)
    assert start.weight.dtype == torch.float32
    assert_equal_but_for_signs(outputs(start, x), naive_outputs(x, ids, 1.0, 3), tolerance=2e-2)


# ---------------------------------------------------------------- left-out classes


def test_moments_without_a_fold_are_those_of_the_other_classes():
    x, ids = sample_features(LONG_TAIL)
    summed = sum_features(in_chunks(x, 11), ids, 3, seed=0)
    assert sorted(np.bincount(summed.fold_of_class)) == [2, 3, 3]
    for number, fold in enumerate(summed.folds):
        rows = summed.fold_of_class[ids] != number
        others, kept, kept_ids = summed.whole.minus(fold), x[rows].astype(np.float64), ids[rows]
        assert others.count == len(kept)
        mean = others.mean + summed.shift
        np.testing.assert_allclose(mean, kept.mean(0), atol=1e-4)
        np.testing.assert_allclose(others.total, np.cov(kept.T, bias=True), atol=1e-3)
        centres = np.stack([kept[kept_ids == label].mean(0) for label in kept_ids])
        np.testing.assert_allclose(others.within, np.cov((kept - centres).T, bias=True), atol=1e-3)


@pytest.mark.parametrize("basis", [1.5, 100.0])
@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_trials_embed_as_a_head_of_their_own_would(basis, damping, monkeypatch):
    """By Rayleigh and Ritz: exactly for the ridge in the middle and with a whole basis, and closely otherwise."""
    monkeypatch.setattr(start_module, "_BASIS", basis)
    x, ids = sample_features((12,) * 30)
    moments = sum_features(in_chunks(x, 50), ids, 1, seed=0).whole
    points, size = x[:40] - x.mean(0), FEATURES // 2
    found = dict(start_module._embeddings(points, moments, [size, FEATURES], (0.3, 1.0, 3.0), (damping,)))
    for ridge in (0.3, 1.0, 3.0):
        cov, within = np.cov(x.T, bias=True), sum_features(in_chunks(x, 50), ids, 1, seed=0).whole.within
        inverse = np.linalg.inv(within + moments.floor(ridge) * np.eye(FEATURES))
        lower = np.linalg.cholesky(inverse)
        whitened = np.linalg.eigh(lower.T @ cov @ lower)
        vectors, variances = whitened.eigenvectors[:, ::-1][:, :size], whitened.eigenvalues[::-1][:size]
        usual = whitened.eigenvalues.mean()
        scales = (usual / np.maximum(variances, usual)) ** (damping / 2)
        expected = points @ lower @ vectors * scales
        exact = basis > 10 or ridge == 1.0
        assert_same_distances(found[size, ridge, damping], expected, 1e-4 if exact else 3e-2)
        assert_same_distances(found[FEATURES, ridge, 0.0], points @ lower, 1e-4)


def assert_same_distances(found, expected, tolerance):
    """Pairwise distances agree, relative to the longest."""
    found, expected = (torch.cdist(*[torch.as_tensor(np.asarray(p, dtype=np.float64))] * 2) for p in (found, expected))
    assert (found - expected).abs().max() <= tolerance * expected.max()


def test_trials_are_of_the_map_that_is_built():
    """The same map for whatever number beyond the rank, so the same trials, ridge and damping."""
    rng = np.random.default_rng(0)
    ids = np.arange(36) // 6
    means = rng.normal(size=(6, 600)) * np.r_[np.full(40, 3.0), np.full(560, 0.3)]
    x = (means[ids] + rng.normal(size=(36, 600)) * np.linspace(2.5, 0.8, 600)).astype(np.float32)
    starts = [fitted(x, ids, dimension=size) for size in (35, 64, 256, 599)]
    assert {start.rank for start in starts} == {35}
    assert len({(start.ridge, start.damping) for start in starts}) == 1
    assert len({(trial.precision, trial.map_at_r) for start in starts for trial in start.trials}) == 1
    for start in starts[1:]:
        assert_equal_but_for_signs(outputs(start, x)[:, :35], outputs(starts[0], x))


def test_trials_leave_out_directions_in_which_no_item_varies():
    rng = np.random.default_rng(0)
    x = (3 + rng.normal(size=(60, 4)) @ rng.normal(size=(4, 20))).astype(np.float32)
    summed = sum_features(in_chunks(x), np.arange(60) // 10, 1, seed=0).whole
    for _, embedded in start_module._embeddings(rng.normal(size=(5, 20)), summed, [7], (0.3, 1.0), (0.0, 0.5)):
        assert embedded[:, :4].any(axis=0).all()
        assert not embedded[:, 4:].any()


def test_a_sample_has_pairs_and_is_bounded():
    ids = np.repeat(np.arange(3000), 3)
    kept = moments._sample(ids, np.bincount(ids), np.random.default_rng(0))
    assert len(kept) == len(set(kept)) == moments._SAMPLE
    assert set(np.bincount(ids[kept])) <= {0, 2}


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_nothing_is_chosen_by_too_few_classes(classes):
    x, ids = sample_features((10,) * classes)
    start = fitted(x, ids)
    assert (start.dimension, start.ridge, start.trials) == (FEATURES, start_module._NO_CHOICE, ())
    assert any("classes" in note for note in start.notes)
    assert fitted(x, ids, ridge=1.0, dimension=4).notes == ()


def test_four_classes_are_enough_to_leave_some_out():
    x, ids = sample_features((10,) * 4)
    (trial,) = fitted(x, ids).trials
    assert (trial.dimension, trial.queries) == (FEATURES, 40)
    assert trial.ridge in start_module.RIDGES


# ---------------------------------------------------------------- sizes


def in_a_subspace(classes, items, features, informative=10, seed=0):
    """Classes that differ in a few directions, among many of noise."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(classes), items)
    means = np.zeros((classes, features))
    means[:, :informative] = 3 * rng.normal(size=(classes, informative))
    rotation = np.linalg.qr(rng.normal(size=(features, features)))[0]
    return ((means[ids] + rng.normal(size=(len(ids), features))) @ rotation).astype(np.float32), ids


def test_few_classes_keep_every_dimension():
    x, ids = in_a_subspace(classes=20, items=30, features=80)
    start = fitted(x, ids)
    assert start.dimension == 80
    assert [trial.dimension for trial in start.trials] == [80]


def test_many_classes_in_few_directions_get_few_dimensions():
    x, ids = in_a_subspace(classes=140, items=6, features=160)
    start = fitted(x, ids)
    assert start.dimension == DIMENSIONS[0]
    assert [trial.dimension for trial in start.trials] == [64, 128, 160]
    by_size = {trial.dimension: trial for trial in start.trials}
    assert by_size[64].precision > by_size[160].precision
    assert by_size[64].ridge == start.ridge
    assert all(0 <= trial.map_at_r <= trial.precision <= 1 and trial.queries == 840 for trial in start.trials)


def test_a_number_is_kept_and_its_ridge_chosen():
    x, ids = in_a_subspace(classes=140, items=4, features=80)
    start = fitted(x, ids, dimension=48)
    (trial,) = start.trials
    assert start.dimension == trial.dimension == 48
    assert (start.ridge, start.damping) == (trial.ridge, trial.damping)
    assert start.ridge in start_module.RIDGES


def test_a_given_ridge_is_kept_and_the_size_chosen():
    x, ids = in_a_subspace(classes=140, items=4, features=80)
    start = fitted(x, ids, ridge=2.5)
    assert [(trial.dimension, trial.ridge) for trial in start.trials] == [(64, 2.5), (80, 2.5)]
    assert start.dimension == 64


def test_strong_ridges_are_tried_where_items_are_few():
    assert start_module._ridges("whitened", None, fewer_items=True)[-1] == 100.0
    assert start_module._ridges("whitened", None, fewer_items=False) == start_module.RIDGES
    assert start_module._ridges("pca", 1.0, fewer_items=True) == (None,)


def test_the_dictionary_is_all_but_the_weights():
    x, ids = sample_features((6,) * 8)
    start = fitted(x, ids)
    told = start.to_dict()
    assert (told["kind"], told["dimension"], told["features"]) == ("whitened", FEATURES, FEATURES)
    assert told["trials"][0]["map_at_r"] == start.trials[0].map_at_r


# ---------------------------------------------------------------- spaces


@pytest.mark.parametrize("kind", ["whitened", "pca"])
def test_each_space_gets_points_that_fit(kind):
    x, ids = sample_features((8,) * 10)
    for space, mean, longest in (
        (Sphere(), 1.0, None),
        (Euclidean(), 1.0, None),
        (LipschitzBall(), None, 1.0),
    ):
        norms = np.linalg.norm(outputs(fitted(x, ids, kind=kind, dimension=5, space=space), x), axis=1)
        if mean is not None:
            assert norms.mean() == pytest.approx(mean, rel=1e-3)
        if longest is not None:
            assert norms.max() == pytest.approx(longest, rel=1e-3)


# ---------------------------------------------------------------- features that defy it


def test_constant_features_are_refused():
    for value in (0.0, 0.1, 1e4):
        with pytest.raises(ModelError, match=r"model\.head_start"):
            fitted(np.full((30, 6), value, np.float32), np.repeat(np.arange(5), 6), size=7)


def test_features_far_from_the_origin_are_said_to_be_nearly_the_same():
    x, ids = sample_features((10,) * 6, offset=0.0)
    x /= x.std(0)
    with pytest.raises(ModelError, match="nearly the same beside their mean"):
        fitted(x + np.float32(1e5), ids, size=7)
    assert torch.isfinite(fitted(x + np.float32(1e4), ids, size=7).weight).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(bad):
    x, ids = sample_features((5,) * 6)
    for row in (3, 17):  # of the first chunk, from which the others are shifted, and of a later one
        x[row, 3] = bad
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ModelError, match="finite"):
                fitted(x, ids, size=10)
        x[row, 3] = 0.0


def test_no_features_are_refused():
    with pytest.raises(ModelError, match="features"):
        fit_start([], np.zeros(3, dtype=int))


def test_classes_of_equal_items_are_not_whitened():
    for seed in range(8):
        x, ids = sample_features((1,) * 12, seed=seed)
        start = fitted(x.repeat(4, axis=0), ids.repeat(4), size=7, dimension=3, ridge=1.0)
        assert (start.kind, start.ridge) == ("pca", None)
        assert any("whitened" in note for note in start.notes)


def test_one_item_in_every_class_is_not_whitened():
    for seed in range(8):
        x, ids = sample_features((1,) * 50, seed=seed)
        assert fitted(x, ids, size=7).kind == "pca"


def test_one_class_with_more_than_one_item_can_be_left_out():
    x, ids = sample_features((1,) * 11 + (10,))
    start = fitted(x, ids, size=7)
    assert torch.isfinite(start.weight).all()


def test_one_item_in_a_class_adds_nothing_to_the_spread_within():
    x, ids = sample_features((10,) * 6 + (1,))
    start = fitted(x, ids)
    assert torch.isfinite(start.weight).all()
    assert start.trials


@pytest.mark.parametrize("kind", ["whitened", "pca"])
def test_more_dimensions_than_features_start_at_zero(kind):
    x, ids = sample_features((8,) * 10)
    start, full = (fitted(x, ids, kind=kind, dimension=d) for d in (FEATURES + 4, FEATURES))
    assert start.dimension == FEATURES + 4
    (note,) = start.notes
    assert f"have {FEATURES} numbers" in note
    assert f"{FEATURES + 4} dimensions 4 start at 0" in note
    assert start.rank == start.to_dict()["rank"] == FEATURES
    assert not full.notes
    assert not start.weight[FEATURES:].any()
    assert not start.bias[FEATURES:].any()
    torch.testing.assert_close(start.weight[:FEATURES], full.weight)


@pytest.mark.parametrize("kind", ["whitened", "pca"])
def test_dimensions_beyond_the_rank_start_at_zero(kind):
    rng = np.random.default_rng(0)
    x = (3 + rng.normal(size=(60, 4)) @ rng.normal(size=(4, 20))).astype(np.float32)
    start = fitted(x, np.repeat(np.arange(6), 10), size=7, kind=kind, ridge=1.0, dimension=7)
    (note,) = start.notes
    assert all(
        words in note for words in ("only 4 of the 7", "other 3", "model.dimension to auto", "local_dimension to 20")
    )
    assert start.rank == 4
    assert start.weight[:4].any(dim=1).all()
    assert not start.weight[4:].any()


def test_all_dimensions_are_kept_where_items_are_fewer():
    """All F together lose nothing: directions in which no training item varies are whitened by the ridge alone."""
    x, ids = sample_features(COUNTS["fewer items than features"])
    start = fitted(x, ids, dimension=FEATURES, ridge=10.0)
    assert start.notes == ()
    assert torch.linalg.matrix_rank(start.weight) == FEATURES


# ---------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "lda"}, "kind"),
        ({"dimension": 0}, "dimension"),
        ({"dimension": 1.5}, "dimension"),
        ({"ridge": -1.0}, "ridge"),
        ({"ridge": float("nan")}, "ridge"),
        ({"ridge": 1e30}, "1,000,000"),
        ({"ridge": 1e300}, "1,000,000"),
        ({"space": PoincareBall()}, "Poincaré"),
    ],
)
def test_wrong_options_are_refused(options, word):
    with pytest.raises(ModelError, match=word):
        fit_start([(torch.randn(8, 4), np.arange(8))], np.arange(8) // 2, **options)


@pytest.mark.parametrize("ids", [np.array(["a"] * 8), np.full(8, -1), np.zeros((8, 1), dtype=int), np.arange(9) // 2])
def test_wrong_labels_are_refused(ids):
    with pytest.raises(ModelError, match="class_ids"):
        fit_start([(torch.randn(8, 4), np.arange(8))], ids)


def test_features_too_large_to_square_are_refused():
    with pytest.raises(ModelError, match="large"):
        fit_start([(1e25 * torch.randn(8, 4), np.arange(8))], np.arange(8) // 2)


@pytest.mark.parametrize("size", [1e-20, 1e-24])
def test_features_too_small_to_square_are_refused(size):
    x, ids = sample_features((10,) * 12)
    with pytest.raises(ModelError, match="too small"):
        fitted(x * np.float32(size), ids)
    assert torch.isfinite(fitted(x * np.float32(1e-18), ids).weight).all()


def test_the_largest_ridge_gives_principal_components():
    x, ids = sample_features((10,) * 12)
    start, plain = fitted(x, ids, ridge=1e6, dimension=4), fitted(x, ids, kind="pca", dimension=4)
    assert_equal_but_for_signs(outputs(start, x), outputs(plain, x))


@pytest.mark.parametrize("features", [[["a", "b"]] * 4, torch.ones(4, 2, dtype=torch.complex64)])
def test_features_that_are_no_real_numbers_are_refused(features):
    with pytest.raises(ModelError, match="real numbers"):
        fit_start([(features, np.arange(4))], np.array([0, 0, 1, 1]))


@pytest.mark.parametrize("chunks", [None, 3])
def test_chunks_that_are_none_are_refused(chunks):
    with pytest.raises(ModelError, match="chunks"):
        fit_start(chunks, np.array([0, 0, 1, 1]))


def test_empty_chunks_are_passed_over():
    x, ids = torch.randn(40, 4), np.arange(40) // 4
    whole = fit_start([(x, np.arange(40))], ids)
    with_gaps = fit_start([(x[:0], np.arange(0)), (x, np.arange(40))], ids)
    torch.testing.assert_close(with_gaps.weight, whole.weight)


def test_what_could_not_be_chosen_is_told():
    x, ids = torch.randn(60, 80), np.arange(60) // 6
    (note,) = fit_start([(x, np.arange(60))], ids, kind="pca").notes
    assert "10 classes" in note
    (trial,) = fit_start([(x[:-5], np.arange(55))], ids[:55]).trials  # the last class has one item
    assert trial.queries == 54


@pytest.mark.parametrize(
    ("positions", "word"),
    [([0, 1, 2, 2], "twice"), ([0, 1, 2, 4], "whole"), ([-1, 0, 1, 2], "whole"), ([0.0, 1.0, 2.0, 3.0], "whole")],
)
def test_positions_that_are_no_items_are_refused(positions, word):
    with pytest.raises(ModelError, match=word):
        fit_start([(torch.randn(4, 3), np.array(positions))], np.array([0, 0, 1, 1]))


def test_chunks_of_other_widths_are_refused():
    chunks = [(torch.randn(2, 3), np.arange(2)), (torch.randn(2, 4), np.arange(2, 4))]
    with pytest.raises(ModelError, match="numbers"):
        fit_start(chunks, np.array([0, 0, 1, 1]))


@pytest.mark.parametrize(
    "wrong",
    [{"seed": -1}, {"ridge": "a"}, {"ridge": True}, {"dimension": True}, {"dimension": 10**7}, {"space": "sphere"}],
)
def test_arguments_of_the_wrong_kind_are_refused(wrong):
    with pytest.raises(ModelError, match=next(iter(wrong))):
        fit_start([(torch.randn(4, 3), np.arange(4))], np.array([0, 0, 1, 1]), **wrong)


@pytest.mark.parametrize("chunk", [torch.randn(4, 3), (torch.randn(4, 3),), (torch.randn(4, 3), 4), None])
def test_chunks_that_are_no_pairs_are_refused(chunk):
    with pytest.raises(ModelError, match="pair"):
        fit_start([chunk], np.array([0, 0, 1, 1]))


def test_classes_with_gaps_are_refused():
    with pytest.raises(ModelError, match="gaps"):
        fit_start([(torch.randn(4, 3), np.arange(4))], np.array([0, 0, 7, 7]))


def test_features_that_cannot_be_factorised_are_named(monkeypatch):
    """As where one item is a million times larger than the others."""

    def fail(*_, **__):
        raise np.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(start_module, "cholesky", fail)
    x, ids = sample_features((12,) * 5)
    for options in ({}, {"ridge": 1.0, "dimension": 3}):
        with pytest.raises(ModelError, match="larger"):
            fitted(x, ids, **options)


def with_an_outlier(factor):
    rng = np.random.default_rng(0)
    ids = np.arange(400) % 40
    x = (rng.normal(size=(40, 32))[ids] + rng.normal(size=(400, 32))).astype(np.float32)
    x[5] *= factor
    return x, ids


@pytest.mark.parametrize("factor", [1e2, 1e4, 1e5])
def test_an_outlier_is_survived_where_it_can_be(factor):
    assert torch.isfinite(fitted(*with_an_outlier(factor)).weight).all()


def test_an_outlier_that_rounds_the_others_away_is_told():
    with pytest.raises(ModelError, match="100,000 times"):
        fitted(*with_an_outlier(1e6))
