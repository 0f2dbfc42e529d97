"""Held-out items, and several models as one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError
from nearkin.metrics import clustering_metrics, retrieval_metrics
from nearkin.protocol.candidates import Cell, cells_of
from nearkin.protocol.ledger import HeldOut, ProductSpace, concatenate
from nearkin.spaces import make_space

SPACES = ("sphere", "euclidean", "lipschitz-ball", "poincare-ball")


def items(labels, **columns):
    names = [f"{place}.png" for place in range(len(labels))]
    images = np.zeros((len(labels), 4, 4, 3), np.uint8)
    return Dataset(Manifest.from_rows(names, labels, **columns), ArrayStore(images, names))


def points(space, seed, count=40, dimension=6):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(count // 5, dimension)), 5, axis=0)
    raw = torch.from_numpy((centres + rng.normal(size=centres.shape)).astype(np.float32)) * 0.3
    return space.project(raw).numpy()


@pytest.mark.parametrize("name", SPACES)
def test_concatenated_models_rank_by_the_product_distance(name):
    space = make_space(name)
    parts = [points(space, seed) for seed in range(3)]
    joined, scorer = concatenate(parts, space)
    assert joined.shape == (40, 18)
    squares = sum(space.distance(*(torch.from_numpy(part).double(),) * 2).square() for part in parts)
    expected = squares.sqrt().numpy()
    np.fill_diagonal(expected, np.inf)
    distances = scorer.distance(*(torch.from_numpy(joined).double(),) * 2).numpy()
    np.fill_diagonal(distances, np.inf)
    np.testing.assert_array_equal(np.argsort(distances, axis=1), np.argsort(expected, axis=1))
    labels = np.repeat(np.arange(8), 5)
    measured = HeldOut(items([f"c{label}" for label in labels])).measure(joined, scorer)
    nearest = labels[np.argsort(expected, axis=1)[:, 0]]
    assert measured.values["P@1"] == pytest.approx(np.mean(nearest == labels))


def test_on_the_sphere_the_concatenation_has_length_one():
    joined, _ = concatenate([points(make_space("sphere"), seed) for seed in range(4)], make_space("sphere"))
    np.testing.assert_allclose(np.linalg.norm(joined, axis=1), 1, atol=1e-5)


def test_a_product_of_one_part_is_the_space():
    space = make_space("poincare-ball")
    x = torch.from_numpy(points(space, 0))
    torch.testing.assert_close(ProductSpace(space, 1).distance(x, x), space.distance(x, x))


def test_queries_and_classes_are_those_that_retrieval_keeps():
    labels = ["b", "a", "b", "alone", "a", "a", "c", "c"]
    vectors = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    held_out = HeldOut(items(labels))
    result = retrieval_metrics(vectors, labels)
    measured = held_out.measure(vectors, make_space("sphere"))
    assert held_out.classes == ["a", "b", "c"]
    assert held_out.dropped == result.dropped == 1
    assert [held_out.classes[code] for code in held_out.codes] == result.labels.tolist()
    np.testing.assert_array_equal(measured.per_query, [result.per_query["MAP@R"], result.per_query["P@1"]])
    assert dict(zip(held_out.classes, measured.per_class["P@1"], strict=True)) == result.per_class("P@1")
    counted = ("Recall@2", "Recall@4", "Recall@8", "kNN-Acc")
    assert {metric: measured.values[metric] for metric in counted} == {name: result.values[name] for name in counted}
    assert measured.hits.dtype == bool
    np.testing.assert_array_equal(measured.hits, [result.per_query[metric] for metric in counted])
    # An item that cannot be found is still one that k-means has to put somewhere.
    assert measured.values["NMI"] == clustering_metrics(vectors, labels)["NMI"]


def test_a_published_gallery_is_searched():
    labels = ["a", "a", "b", "b", "lost", "b"]
    roles = ["query", "gallery", "query", "gallery", "query", "query"]
    vectors = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    held_out = HeldOut(items(labels, role=roles))
    asked = np.array(roles) == "query"
    names = np.array(labels)
    result = retrieval_metrics(
        vectors[asked], names[asked], gallery=vectors[~asked], gallery_labels=names[~asked], metrics=["MAP@R"]
    )
    assert [held_out.classes[code] for code in held_out.codes] == result.labels.tolist() == ["a", "b", "b"]
    assert held_out.dropped == 1
    measured = held_out.measure(vectors, make_space("sphere"))
    assert measured.values["MAP@R"] == result.values["MAP@R"]
    assert measured.values["NMI"] == clustering_metrics(vectors, labels)["NMI"]


def test_items_without_pairs_are_refused():
    with pytest.raises(DataError, match="class"):
        HeldOut(items(["a", "b", "c"]))


def test_cells_have_files_of_their_own():
    names = ["a", "a b", "a-b", "a/b", "a,b", "ä", "proxy-nca++", "a" * 300, "a" * 301]
    cells = [cell for name in names for seed in (0, 1) for cell in cells_of(name, seed, 3)]
    files = [cell.file for cell in cells]
    assert len(set(files)) == len(files) == 2 * 4 * len(names)
    assert all(len(file) < 120 for file in files)
    assert all(set(file) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-") for file in files)
    assert Cell("proxy-nca++", "separate", 0, 2).file == "proxy-nca++-fold2-seed0"
    assert cells_of("a", 1, 1) == [Cell("a", "separate", 1)]
