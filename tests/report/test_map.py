import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.manifold import trustworthiness

from nearkin.errors import DataError
from nearkin.report import project_2d


def groups(count=120, dimension=16, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 4, (4, dimension))
    return (centres[np.arange(count) % 4] + rng.normal(0, 1, (count, dimension))).astype(np.float32)


def test_pca_keeps_the_main_directions_of_an_svd():
    x = groups()
    points, indices = project_2d(x, method="pca", seed=0)
    centred = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(points), np.abs(u[:, :2] * s[:2]), atol=1e-6)
    assert indices.tolist() == list(range(len(x)))


def test_pca_of_the_plane_keeps_all_distances():
    x = np.random.default_rng(3).normal(size=(40, 2))
    points, _ = project_2d(x, method="pca", seed=0)
    np.testing.assert_allclose(pdist(points), pdist(x))


def test_tsne_keeps_neighbourhoods_and_repeats_itself():
    x = groups()
    points, _ = project_2d(x, method="tsne", seed=7)
    assert trustworthiness(x, points, n_neighbors=5) > 0.85
    again, _ = project_2d(x, method="tsne", seed=7)
    np.testing.assert_array_equal(points, again)


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("dimension", [1, 3])
def test_small_sets_have_a_map(method, count, dimension):
    x = np.random.default_rng(0).normal(size=(count, dimension))
    points, indices = project_2d(x, method=method, seed=0)
    assert points.shape == (count, 2)
    assert indices.shape == (count,)
    assert np.isfinite(points).all()


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_equal_points_have_a_map(method):
    points, _ = project_2d(np.ones((12, 5)), method=method, seed=0)
    assert np.isfinite(points).all()


def test_many_points_are_sampled_by_the_seed():
    x = groups(500)
    _, first = project_2d(x, method="pca", seed=1, max_points=100)
    _, again = project_2d(x, method="pca", seed=1, max_points=100)
    _, other = project_2d(x, method="pca", seed=2, max_points=100)
    assert first.tolist() == again.tolist() == sorted(set(first.tolist()))
    assert first.tolist() != other.tolist()
    assert len(first) == 100


def test_bad_input_is_named():
    with pytest.raises(DataError, match="finite"):
        project_2d(np.array([[1.0, np.nan], [0.0, 1.0]]), method="pca", seed=0)
    with pytest.raises(DataError, match=r"\(3,\)"):
        project_2d(np.zeros(3), method="pca", seed=0)
    with pytest.raises(DataError, match="'tsne'"):
        project_2d(np.zeros((3, 2)), method="t-sne", seed=0)
