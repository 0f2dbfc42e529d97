"""Shorter models: what their heads give, that they are ordinary models, and what cannot be shortened."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from nearkin.errors import DataError, ModelError
from nearkin.models import Embedder, ModelSection, SimilaritySection, build_embedder, principal_components
from nearkin.models.shorten import raw_embeddings, reweighted
from nearkin.spaces import PrincipalReweighting, PrincipalRotation

IMAGES = torch.rand(24, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def heads(make_embedder, kind, space):
    embedder = make_embedder(dimension=None if kind == "none" else 12, space=space).eval()
    if kind == "without bias":
        embedder.head = nn.Linear(embedder.feature_size, 12, bias=False)
    elif kind == "with bias":
        nn.init.normal_(embedder.head.bias)
    return embedder


def raw(embedder):
    with torch.no_grad():
        return embedder(embedder.normalise(IMAGES)).double().numpy()


@pytest.mark.parametrize("space", ["sphere", "euclidean"])
@pytest.mark.parametrize("kind", ["with bias", "without bias", "none"])
def test_the_head_is_the_projection_of_the_full_embedding(make_embedder, kind, space):
    embedder = heads(make_embedder, kind, space)
    points = embedder.encode(IMAGES, progress=False)
    shorter = principal_components(embedder, points, 5)
    rotation = PrincipalRotation(embedder.space).fit(points)
    wanted = (raw(embedder) - rotation.centre_) @ rotation.components_[:5].T
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(raw(shorter) / scale, wanted / scale, atol=1e-5)
    found = shorter.encode(IMAGES, progress=False)
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True) if space == "sphere" else wanted
    np.testing.assert_allclose(found / np.abs(unit).max(), unit / np.abs(unit).max(), atol=2e-5)


def test_euclidean_components_are_those_of_scikit_learn(make_embedder):
    embedder = heads(make_embedder, "with bias", "euclidean")
    points = embedder.encode(IMAGES, progress=False)
    theirs = PCA(4).fit(points.astype(np.float64))
    shorter = principal_components(embedder, points, 4)
    np.testing.assert_allclose(np.abs(raw(shorter)), np.abs(theirs.transform(raw(embedder))), atol=1e-5)
    assert shorter.card["shortened"]["kept"] == pytest.approx(theirs.explained_variance_ratio_.sum(), abs=1e-5)


@pytest.mark.parametrize("space", ["sphere", "euclidean", "lipschitz-ball", "poincare-ball"])
@pytest.mark.parametrize("kind", ["with bias", "without bias", "none"])
def test_first_dimensions_are_those_of_the_full_embedding(make_embedder, kind, space):
    embedder = heads(make_embedder, kind, space)
    shorter = embedder.shortened(5)
    np.testing.assert_allclose(raw(shorter), raw(embedder)[:, :5], rtol=1e-5, atol=1e-6)
    wanted = embedder.space.project(torch.from_numpy(raw(embedder)[:, :5])).numpy()
    np.testing.assert_allclose(shorter.encode(IMAGES, progress=False), wanted, atol=1e-4)


@pytest.mark.parametrize("kind", ["with bias", "without bias", "none"])
def test_a_shorter_model_is_an_ordinary_one(make_embedder, kind, tmp_path):
    embedder = heads(make_embedder, kind, "sphere")
    embedder.card = {"classes": {"train": ["a"]}}
    before = embedder.fingerprint()
    shorter = principal_components(embedder, embedder.encode(IMAGES, progress=False), 5, fitted_on="tests")
    shorter.save(tmp_path / "short.safetensors")
    again = Embedder.load(tmp_path / "short.safetensors")
    assert again.dimension == 5
    assert again.fingerprint() == shorter.fingerprint() != before == embedder.fingerprint()
    assert "shortened" not in embedder.card
    facts = again.card["shortened"]
    assert (facts["of"], facts["dimension"], facts["method"]) == (before, embedder.dimension, "pca")
    assert (facts["fitted_on"], facts["items"]) == ("tests", len(IMAGES))
    assert again.card["classes"]["train"] == ["a"]
    np.testing.assert_array_equal(again.encode(IMAGES, progress=False), shorter.encode(IMAGES, progress=False))


@pytest.mark.parametrize("space", ["sphere", "euclidean", "poincare-ball"])
@pytest.mark.parametrize("kind", ["with bias", "without bias", "none"])
@pytest.mark.parametrize("options", [{"power": 0.5}, {"power": -0.3}, {"weights": "given"}])
def test_a_reweighted_head_is_the_reweighting_of_raw_embeddings(make_embedder, kind, space, options, tmp_path):
    embedder = heads(make_embedder, kind, space)
    weights = np.linspace(0, 2, embedder.dimension) if "weights" in options else None
    points = raw_embeddings(embedder).encode(IMAGES, progress=False)
    scale = np.abs(raw(embedder)).max()
    np.testing.assert_allclose(points / scale, raw(embedder) / scale, atol=1e-5)
    change = PrincipalReweighting(options.get("power", 0.5), weights).fit(points)
    changed = reweighted(embedder, change, fitted_on="tests")
    # By scikit-learn's directions, one after the other.
    theirs = PCA().fit(points.astype(np.float64))
    held = len(theirs.components_)
    turned = (raw(embedder) - theirs.mean_) @ theirs.components_.T
    wanted = (turned * change.weights_[:held]) @ theirs.components_
    size = np.abs(wanted).max()
    np.testing.assert_allclose(raw(changed) / size, wanted / size, atol=2e-5)
    changed.save(tmp_path / "model.safetensors")
    again = Embedder.load(tmp_path / "model.safetensors")
    assert again.fingerprint() == changed.fingerprint() != embedder.fingerprint()
    assert (again.dimension, again.space) == (embedder.dimension, embedder.space)
    facts = again.card["reweighted"]
    assert facts["of"] == embedder.fingerprint()
    assert facts["fitted_on"] == "tests"
    assert ("power" in facts) != ("weights" in facts) == ("weights" in options)
    assert "reweighted" not in embedder.card
    assert embedder.space.name == space  # the raw copy shares weights, not the space


def test_frozen_parts_stay_frozen_and_a_shorter_model_can_be_shortened_again(make_embedder):
    embedder = make_embedder(dimension=12, freeze="all")
    twice = embedder.shortened(6).shortened(3)
    assert twice.frozen_upto == "all"
    facts = twice.card["shortened"]
    assert (facts["dimension"], facts["before"]["dimension"]) == (6, 12)
    assert facts["before"]["of"] == embedder.fingerprint()
    np.testing.assert_allclose(raw(twice.eval()), raw(embedder.eval())[:, :3], atol=1e-6)


@pytest.mark.parametrize("size", [0, -1, 8, 9, 2.0, True, "4"])
def test_sizes_that_are_not_shorter_are_refused(make_embedder, size):
    with pytest.raises(ModelError, match="7"):
        make_embedder(dimension=8).shortened(size)


def test_fewer_items_than_components_are_refused(make_embedder):
    embedder = make_embedder(dimension=8).eval()
    with pytest.raises(DataError, match="components"):
        principal_components(embedder, embedder.encode(IMAGES[:4], progress=False), 5)


@pytest.mark.parametrize("space", ["lipschitz-ball", "poincare-ball"])
def test_spaces_without_linear_parts_have_no_components(make_embedder, space):
    embedder = make_embedder(dimension=8, space=space).eval()
    with pytest.raises(DataError, match=space):
        principal_components(embedder, np.random.default_rng(0).normal(size=(20, 8)), 4)


def test_a_learned_similarity_is_refused():
    section = ModelSection(backbone="conv4", size=16, dimension=8, similarity=SimilaritySection(), space="euclidean")
    with pytest.raises(ModelError, match="similarity"):
        build_embedder(section, classes=["a", "b"]).shortened(4)


def test_other_heads_are_refused(make_embedder):
    embedder = make_embedder(dimension=8)
    embedder.head = nn.Sequential(embedder.head)
    with pytest.raises(ModelError, match="Sequential"):
        embedder.shortened(4)
