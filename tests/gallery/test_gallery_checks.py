"""Questions that make no sense are refused in one sentence, whatever they are made of; large numbers are no harm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.errors import DataError, NearkinError, StorageError
from nearkin.gallery import Gallery
from nearkin.models import ModelSection, build_embedder

LABELS = ["a", "a", "a", "a", "b", "b", "b", "b"]
PLACES = ["v.gallery", "v.db"]


@pytest.fixture(params=PLACES)
def either(tmp_path, request):
    """Eight vectors, in a directory and in Milvus Lite."""
    if request.param.endswith(".db"):
        pytest.importorskip("milvus_lite")
    with Gallery.create(str(tmp_path / request.param), dimension=8, name="x") as made:
        made.add(np.eye(8), LABELS, [{"n": n} for n in range(8)], ids=list("stuvwxyz"))
        yield made


@pytest.fixture
def vectors(tmp_path):
    with Gallery.create(tmp_path / "v.gallery", dimension=8, name="x") as made:
        made.add(np.eye(8), LABELS, ids=list("stuvwxyz"))
        yield made


@pytest.fixture
def images(tmp_path):
    model = build_embedder(ModelSection(backbone="conv4", size=32, dimension=16), seed=1).eval()
    pixels = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), np.uint8)
    with Gallery.create(tmp_path / "i.gallery", model, pixels, labels=list("aabb"), progress=False) as made:
        yield made


@pytest.mark.parametrize("k", [5000, 10**8, 10**18, 10**30])
def test_more_neighbours_than_there_are_items_are_all_of_them(either, k):
    assert len(either.search(np.eye(8)[0], k)) == 8
    assert len(either.identify(np.eye(8)[0], neighbours=k).neighbours) == 8
    assert len(either.search(np.eye(8)[0], k, where="n < 3")) == 3
    assert len(either.items(limit=k)) == 8


def test_the_store_itself_makes_no_more_columns_than_there_can_be_neighbours(vectors):
    found = vectors.store.search(np.eye(8, dtype=np.float32), 10**12)
    assert found.distances.shape[1] <= 1000
    assert np.isfinite(found.distances).sum() == 64


@pytest.mark.parametrize("id", [5, ["a"], None, b"s", "\ud800"])
def test_what_is_no_id_is_told_by_whoever_needs_one(either, id):
    assert id not in either
    with pytest.raises(DataError, match="item"):
        either.get(id)
    with pytest.raises(DataError, match="id"):
        either.thumbnail(id)
    with pytest.raises(DataError, match="id"):
        either.remove([id])
    with pytest.raises(DataError, match="id"):
        either.relabel([id], "c")
    if id is not None:
        with pytest.raises(DataError, match="id"):
            either.items(after=id)
    assert len(either) == 8


@pytest.mark.parametrize("ids", [5, 1.5, {"s": 1}, b"s"])
def test_ids_are_one_or_a_list(vectors, ids):
    with pytest.raises(DataError, match="list"):
        vectors.remove(ids)
    with pytest.raises(DataError, match="list"):
        vectors.relabel(ids, "c")
    assert len(vectors) == 8


@pytest.mark.parametrize("parameters", [5, "p", [("p", 1)]])
def test_parameters_are_a_mapping(vectors, parameters):
    with pytest.raises(DataError, match="mapping"):
        vectors.items(where="a = :p", parameters=parameters)


@pytest.mark.parametrize("distance", [10**400, -1, float("nan"), float("inf"), "near", True])
def test_a_distance_is_a_number_that_can_be_one(vectors, distance):
    with pytest.raises(DataError, match="distance"):
        vectors.find_duplicates(distance)


@pytest.mark.parametrize("tensor", [torch.eye(8).to_sparse(), torch.empty(2, 8, device="meta")], ids=["sparse", "meta"])
def test_tensors_that_are_not_dense_are_refused(vectors, images, tensor):
    with pytest.raises(DataError, match="dense"):
        vectors.search_many(tensor)
    with pytest.raises(DataError, match="dense"):
        images.identify(tensor)
    with pytest.raises(DataError, match="dense"):
        images.add([tensor], progress=False)


@pytest.mark.parametrize("shape", [(40, 128), (128,), (16,), (2, 2, 3, 3, 3)])
def test_vectors_are_not_taken_for_an_image(images, shape):
    matrix = np.random.default_rng(0).random(shape)
    with pytest.raises(DataError, match="vectors"):
        images.add([matrix], progress=False)
    with pytest.raises(DataError, match="vectors"):
        images.identify(matrix)
    assert len(images) == 4


def test_a_matrix_of_bytes_and_a_float_image_are_images(images):
    greys = np.random.default_rng(0).integers(0, 255, (32, 32), np.uint8)
    assert len(images.add(greys, "grey", progress=False)) == 1
    near = images.search((greys / 255.0)[..., None], k=1)[0]
    assert near.item.label == "grey"
    assert near.distance == pytest.approx(0, abs=0.05)


def test_an_empty_array_is_no_image(images):
    with pytest.raises(DataError, match="pixels"):
        images.identify(np.ones((0, 5, 3)))


@pytest.mark.parametrize("path", ["a\0b", "no/such/file.jpg"])
def test_a_path_that_cannot_be_read_is_told(images, path):
    with pytest.raises(DataError, match=r"\bread\b"):
        images.identify(path)


def test_many_queries_may_come_in_any_form_that_add_takes(images):
    pixels = np.random.default_rng(1).integers(0, 255, (3, 32, 32, 3), np.uint8)
    expected = images.embed(list(pixels))
    for form in (pixels, (one for one in pixels), tuple(pixels)):
        np.testing.assert_allclose(images.embed(form), expected, atol=1e-6)
    assert len(images.identify_many(pixels)) == 3
    assert len(images.search_many(one for one in pixels)) == 3


@pytest.mark.parametrize("path", [5, None, b"", "", "a\0b", "\ud800"])
def test_what_is_no_path_is_told(path):
    with pytest.raises(DataError, match=r"[Pp]ath"):
        Gallery.create(path, dimension=4, name="x")
    with pytest.raises(DataError, match=r"[Pp]ath"):
        Gallery.open(path)


@pytest.mark.parametrize("end", ["", ".db"])
def test_a_name_that_the_system_refuses_is_told(tmp_path, end):
    long = tmp_path / ("a" * 300 + end)
    with pytest.raises(NearkinError, match=r"a{100}"):
        Gallery.create(str(long), dimension=4, name="x")
    with pytest.raises(StorageError, match=r"a{100}"):
        Gallery.open(str(long))


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "two\nlines", ["x"], 5, "x" * 100_000])
def test_the_name_of_what_makes_vectors_can_be_printed(tmp_path, vectors, name):
    with pytest.raises(DataError, match="200"):
        Gallery.create(tmp_path / "n.gallery", dimension=4, name=name)
    with pytest.raises(DataError, match="200"):
        vectors.replace_vectors(list("stuvwxyz"), np.eye(8), name=name)
    assert vectors.settings.name == "x"


def test_numbers_may_be_those_of_numpy(vectors):
    x, y = np.eye(8, dtype=np.float32)[:2]
    plain = vectors.verify(x, y, false_accept_rate=0.25)
    assert vectors.verify(x, y, false_accept_rate=np.float32(0.25)) == plain
    assert vectors.recalibrate(accept=np.float32(0.5)).accept == 0.5
    for rate in (True, 0, 1, 10**400, "0.1"):
        with pytest.raises(DataError, match="rate"):
            vectors.verify(x, y, false_accept_rate=rate)
