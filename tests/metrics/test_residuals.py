"""Residuals against naive loops, scikit-learn, and embeddings whose intra-class variation is known."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score

from nearkin.errors import DataError
from nearkin.metrics import class_residuals, residual_metrics
from nearkin.metrics.residuals import _nearest, _shuffled


def shared(classes=30, poses=6, dimension=24, noise=0.0, seed=0):
    """Points that are a class and a pose, their classes and their poses."""
    rng = np.random.default_rng(seed)
    c, p = np.divmod(np.arange(classes * poses), poses)
    points = rng.normal(size=(classes, dimension))[c] + rng.normal(size=(poses, dimension))[p]
    return points + noise * rng.normal(size=points.shape), c, p


def separate(classes=30, items=6, dimension=24, seed=0):
    """Points of classes that each vary in two directions of their own."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, 1, dimension))
    moved = rng.normal(size=(classes, items, 2)) @ rng.normal(size=(classes, 2, dimension))
    return (means + moved).reshape(-1, dimension), np.repeat(np.arange(classes), items)


def test_residuals_are_what_is_left_of_the_class_mean():
    points, labels, _ = shared(noise=0.3)
    names = np.array([f"c{label}" for label in labels])
    expected = np.stack([point - points[labels == label].mean(0) for point, label in zip(points, labels, strict=True)])
    np.testing.assert_allclose(class_residuals(points, names), expected, atol=1e-12)


def test_the_variance_within_classes_is_its_share_of_all():
    points, labels, _ = shared(noise=0.5)
    residuals = class_residuals(points, labels)
    within, total = residuals.var(axis=0).sum(), points.var(axis=0).sum()
    assert residual_metrics(points, labels).values["variance within classes"] == pytest.approx(within / total)


def test_explained_variance_is_that_of_scikit_learns_directions():
    points, labels, _ = shared(noise=0.5)
    found = residual_metrics(points, labels, seed=3)
    first = np.random.default_rng(3).permutation(30) < 15
    residuals = class_residuals(points, labels)
    halves = [residuals[first[labels]], residuals[~first[labels]]]  # both have the mean zero
    shares = {"of other classes": [], "their own": []}
    for mine, others in (halves, halves[::-1]):
        for name, fitted in (("of other classes", others), ("their own", mine)):
            basis = PCA().fit(fitted).components_[:10]
            shares[name].append(np.square(mine @ basis.T).sum() / np.square(mine).sum())
    place = found.sizes.tolist().index(10)
    for name, values in shares.items():
        assert found.explained[name][place] == pytest.approx(np.mean(values), rel=1e-6)
    assert found.explained["at random"][place] == pytest.approx(10 / 24)
    theirs, own = (np.mean(values) for values in shares.values())
    assert found.values["shared directions"] == pytest.approx((theirs - 10 / 24) / (own - 10 / 24))
    assert all((np.diff(line) >= -1e-12).all() for line in found.explained.values())


def test_nearest_residuals_are_those_of_a_naive_search():
    points, labels, _ = shared(noise=1.0)
    residuals = class_residuals(points, labels)
    found = residual_metrics(points, labels, neighbours=3)
    for row, near, cosines in zip(found.rows, found.nearest, found.cosines, strict=True):
        others = [
            (float(residuals[row] @ r / np.linalg.norm(residuals[row]) / np.linalg.norm(r)), place)
            for place, r in enumerate(residuals)
            if labels[place] != labels[row]
        ]
        wanted = sorted(others, reverse=True)[:3]
        assert [place for _, place in wanted] == near.tolist()
        np.testing.assert_allclose([cosine for cosine, _ in wanted], cosines, atol=1e-9)


def test_what_all_classes_share_is_found_and_what_none_shares_is_not():
    points, labels, poses = shared(noise=0.1)
    found = residual_metrics(points, labels, attributes=poses, clusters=6).values
    assert found["shared directions"] > 0.9
    assert found["same attribute"] > 0.95
    assert found["same attribute, by chance"] == pytest.approx(1 / 6)
    assert found["nearest residual"] > found["nearest residual, by chance"] + 0.2
    assert found["NMI of residual clusters and attributes"] > 0.95
    assert found["NMI of residual clusters and classes"] < 0.2
    points, labels = separate()
    other = residual_metrics(points, labels, directions=4).values
    assert abs(other["shared directions"]) < 0.3
    assert other["nearest residual"] == pytest.approx(other["nearest residual, by chance"], abs=0.06)


def test_shuffled_classes_keep_their_shape():
    points, labels, _ = shared(noise=0.5)
    residuals = class_residuals(points, labels)
    shuffled = _shuffled(residuals, labels, 0)
    for label in (0, 17):
        mine, theirs = residuals[labels == label], shuffled[labels == label]
        np.testing.assert_allclose(theirs @ theirs.T, mine @ mine.T, atol=1e-9)
    assert abs(_nearest(shuffled, labels, 1)[1].mean() - _nearest(residuals, labels, 1)[1].mean()) > 0.1


def test_clusters_and_chance_are_those_of_counting():
    points, labels, _ = shared(classes=8, noise=1.0)
    kinds = np.random.default_rng(1).integers(0, 3, len(labels))
    found = residual_metrics(points, labels, attributes=kinds, clusters=4)
    pairs = [np.mean(kinds[labels != a] == k) for a, k in zip(labels, kinds, strict=True)]
    assert found.values["same attribute, by chance"] == pytest.approx(np.mean(pairs))
    nmi = normalized_mutual_info_score(labels, found.clusters)
    assert found.values["NMI of residual clusters and classes"] == pytest.approx(nmi)
    assert set(found.clusters) == {0, 1, 2, 3}
    residuals = class_residuals(points, labels)
    centre = residuals[found.clusters == 2].mean(axis=0)
    away = np.linalg.norm(residuals - centre, axis=1)[found.clusters == 2]
    np.testing.assert_allclose(found.distances[found.clusters == 2], away, atol=1e-9)


def test_classes_of_one_item_are_left_out_and_draws_are_limited():
    points, labels, _ = shared()
    lonely = np.vstack([points, points[:1] + 5])
    found = residual_metrics(lonely, np.append(labels, 99), most=50)
    assert len(found.rows) == 50
    assert found.clusters[-1] == -1
    assert 180 not in found.rows
    whole = residual_metrics(points, labels).values
    assert found.values["variance within classes"] == pytest.approx(whole["variance within classes"])


@pytest.mark.parametrize(
    ("points", "labels", "word"),
    [
        (np.eye(6), [0, 0, 1, 1, 2, 3], "four classes"),
        (np.repeat(np.eye(8), 2, axis=0), np.repeat(np.arange(8), 2), "mean"),
        (np.eye(8), [0, 0, 1, 1, 2, 2, 3], "labels"),
    ],
)
def test_what_has_no_residuals_is_refused(points, labels, word):
    with pytest.raises(DataError, match=word):
        residual_metrics(points, labels)
