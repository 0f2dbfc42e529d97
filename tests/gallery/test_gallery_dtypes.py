"""Vectors as float16 and int8: how far they are off, that they come back the same, and that search is exact in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nearkin.errors import DataError
from nearkin.gallery import Gallery
from nearkin.gallery.dtypes import PackedRows, check_dtype, packed, quantised, rounded, row_bytes, unpacked
from nearkin.gallery.index import VectorIndex
from nearkin.gallery.store import ABSENT
from nearkin.spaces import make_space

numbers = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
matrices = arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=numbers)


@given(matrices)
def test_an_int8_row_is_its_naive_rounding(vectors):
    scales, whole = quantised(vectors)
    for row, scale, numbers in zip(vectors, scales, whole, strict=True):
        largest = max(abs(float(x)) for x in row)
        if scale == 0:
            assert largest < 2e-43  # below what float32 can divide by 127
            continue
        if largest > 1e-35:
            assert largest / 127 <= float(scale) <= largest / 127 * (1 + 2**-16)
            error = max(abs(float(x) - float(scale) * int(n)) for x, n in zip(row, numbers, strict=True))
            assert error <= float(scale) / 2 * (1 + 1e-6)
        assert max(abs(int(n)) for n in numbers) <= 127


@given(matrices)
@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
def test_what_was_rounded_stays_what_it_is(dtype, vectors):
    kept = np.clip(vectors, -6e4, 6e4) if dtype == "float16" else vectors
    kept = np.where(np.abs(kept) < 1e-30, 0, kept).astype(np.float32)
    once = rounded(kept, dtype)
    assert once.dtype == np.float32
    np.testing.assert_array_equal(rounded(once, dtype), once)


def test_rows_are_packed_with_their_scales_and_unpacked_by_any_index():
    vectors = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    vectors[3] = 0
    rows = packed(vectors)
    assert (rows.dtype, rows.shape) == (np.int8, (50, row_bytes("int8", 7)))
    expected = rounded(vectors, "int8")
    assert not expected[3].any()
    held = PackedRows(rows)
    assert (len(held), held.shape) == (50, (50, 7))
    places = np.array([[4, 9], [3, 3]])
    for which in (slice(2, 40, 3), places, np.arange(50) % 2 == 0, slice(None)):
        np.testing.assert_array_equal(held[which], expected[which])
    np.testing.assert_array_equal(unpacked(rows), expected)
    assert [row_bytes(dtype, 7) for dtype in ("float32", "float16")] == [28, 14]


@pytest.mark.parametrize("queries", [1, 4, 40])
@pytest.mark.parametrize("space", ["sphere", "euclidean", "lipschitz-ball"])
def test_search_among_int8_is_exact_search_among_what_they_stand_for(space, queries):
    rng = np.random.default_rng(1)
    where = make_space(space)
    vectors = where.project(torch.from_numpy(rng.normal(size=(3000, 12)))).numpy().astype(np.float32)
    vectors[1000:1100] = vectors[:100]  # ties
    asked = where.project(torch.from_numpy(rng.normal(size=(queries, 12)))).numpy().astype(np.float32)
    small, wide = VectorIndex(where, 12, "int8"), VectorIndex(where, 12)
    codes = rng.integers(ABSENT, 5, 3000).astype(np.int32)
    for part in np.split(np.arange(3000), [10, 1500]):
        small.append(packed(vectors[part]), codes[part])
        wide.append(rounded(vectors[part], "int8"), codes[part])
    mask = rng.random(3000) < 0.5
    for options in ({}, {"labelled": True}, {"allowed": mask}, {"exclude": np.full(queries, 7)}):
        distances, slots = small.search(asked, 25, **options)
        expected = wide.search(asked, 25, **options)
        np.testing.assert_array_equal(slots, expected[1])
        np.testing.assert_array_equal(distances, expected[0])
    np.testing.assert_array_equal(small.vectors(np.arange(3000)), wide.vectors(np.arange(3000)))
    assert small.snapshot.vectors.rows.itemsize * small.snapshot.vectors.rows.shape[1] == 16


def test_a_gallery_of_int8_is_small_and_answers_by_the_rounded_vectors(tmp_path):
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(2000, 256)).astype(np.float32)
    sizes = {}
    for dtype in ("float32", "int8"):
        with Gallery.create(tmp_path / dtype, dimension=256, name="x", dtype=dtype, space="euclidean") as gallery:
            gallery.add(vectors, ids=[f"{row:04d}" for row in range(2000)])
            sizes[dtype] = gallery.stats().size
    with Gallery.open(tmp_path / "int8") as again:
        near = again.search(vectors[5], k=3)
        expected = np.linalg.norm(rounded(vectors, "int8").astype(np.float64) - vectors[5], axis=1)
        assert [one.item.id for one in near] == [f"{row:04d}" for row in np.argsort(expected)[:3]]
        np.testing.assert_allclose([one.distance for one in near], np.sort(expected)[:3], rtol=1e-6)
        again.export(tmp_path / "all.parquet")
        with Gallery.create(tmp_path / "copy", dimension=256, name="x", dtype="int8", space="euclidean") as copy:
            copy.import_(tmp_path / "all.parquet")
            ids = [f"{row:04d}" for row in range(0, 2000, 13)]
            np.testing.assert_array_equal(copy.store.vectors(ids), again.store.vectors(ids))
    assert sizes["int8"] < 0.4 * sizes["float32"]


def test_a_graph_over_int8_finds_nearly_all(tmp_path):
    pytest.importorskip("faiss", exc_type=ImportError)
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(3000, 16)).astype(np.float32)
    with Gallery.create(tmp_path / "g", dimension=16, name="x", dtype="int8", index="hnsw") as gallery:
        gallery.add(vectors)
        assert gallery.stats().index == "hnsw"
        found = gallery.store.search(gallery.embed(vectors[:50]), 10)
    with Gallery.open(tmp_path / "g", index="exact") as again:
        true = again.store.search(again.embed(vectors[:50]), 10)
    same = [len(set(a) & set(b)) for a, b in zip(found.keys.tolist(), true.keys.tolist(), strict=True)]
    assert np.mean(same) > 9.8


@pytest.mark.parametrize(
    ("dtype", "space", "told"),
    [
        ("int4", {}, "int4"),
        (8, {}, r"\b8\b"),
        ("int8", {"name": "poincare-ball"}, "poincare"),
    ],
)
def test_what_cannot_be_stored_is_refused(dtype, space, told):
    with pytest.raises(DataError, match=told):
        check_dtype(dtype, space)


def test_numbers_beyond_half_precision_are_refused():
    with pytest.raises(DataError, match="float16"):
        rounded(np.full((1, 2), 1e6, np.float32), "float16")
    assert math.isclose(float(rounded(np.full((1, 2), 1e30, np.float32), "int8")[0, 0]), 1e30, rel_tol=1e-4)
