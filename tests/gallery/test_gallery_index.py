"""The exact index: against `nearkin.search.exact` on the slots that may be found, and against plain loops."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.gallery.index import VectorIndex
from nearkin.gallery.index import vectors as index_vectors
from nearkin.gallery.store import ABSENT, UNLABELLED
from nearkin.search import exact, scan
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Space, Sphere

SPACES = [Sphere(), Sphere("angle"), Euclidean(), LipschitzBall(), PoincareBall()]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and chunks of a few slots, so that small data pass through many of them."""
    monkeypatch.setattr(scan, "_ONE_ENTRIES", 200)
    monkeypatch.setattr(scan, "_FEW_ENTRIES", 150)
    monkeypatch.setattr(scan, "_MANY_ENTRIES", 400)
    monkeypatch.setattr(scan, "_MOST_QUERIES", 20)
    monkeypatch.setattr(index_vectors, "_ROWS", 40)
    monkeypatch.setattr(scan, "_GROUP", 2)


def points(space: Space, n: int, dimension: int = 6, seed: int = 0) -> np.ndarray:
    drawn = torch.randn(n, dimension, generator=torch.Generator().manual_seed(seed))
    return space.project(drawn * 0.4).numpy()


def filled(space: Space, vectors: np.ndarray, codes: np.ndarray | None = None) -> VectorIndex:
    index = VectorIndex(space, vectors.shape[1])
    index.append(vectors, np.zeros(len(vectors), np.int32) if codes is None else codes)
    return index


def oracle(
    space: Space,
    queries: np.ndarray,
    vectors: np.ndarray,
    k: int,
    allowed: np.ndarray,
    exclude: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Each query alone, among the vectors it may find."""
    distances = np.full((len(queries), k), np.inf, np.float32)
    slots = np.full((len(queries), k), -1)
    for row, query in enumerate(queries):
        mine = np.flatnonzero(allowed & (np.arange(len(vectors)) != (-1 if exclude is None else exclude[row])))
        if len(mine):
            found = exact(query[None], vectors[mine], min(k, len(mine)), space=space)
            distances[row, : len(mine)], slots[row, : len(mine)] = found[0].numpy(), mine[found[1].numpy()]
    return distances, slots


def check(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    assert found[0].dtype == np.float32
    assert found[1].dtype == np.int64
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize(("q", "k"), [(1, 1), (1, 60), (3, 7), (3, 200), (30, 7), (30, 200)])
def test_search_equals_the_search_room(space: Space, q: int, k: int) -> None:
    vectors = points(space, 150)
    vectors[20:30] = vectors[10:20]  # exact copies: the lower slot first
    queries = np.concatenate([vectors[5:25], points(space, 20, seed=1)])[:q]
    check(filled(space, vectors).search(queries, k), oracle(space, queries, vectors, k, np.ones(150, bool)))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("share", [0.03, 0.5, 0.95])
@pytest.mark.parametrize("q", [1, 7])
def test_masks_removed_and_unlabelled_slots_and_exclusions_hide(space: Space, share: float, q: int) -> None:
    random = np.random.default_rng(1)
    vectors = points(space, 300)
    codes = random.integers(-2, 4, 300)
    allowed = random.random(300) < share
    exclude = random.integers(-1, 300, q)
    exclude[0] = 0
    index = filled(space, vectors, codes)
    queries = vectors[:q]
    some = {"allowed": allowed, "labelled": True, "exclude": exclude}
    expected = oracle(space, queries, vectors, 5, allowed & (codes >= 0), exclude)
    check(index.search(queries, 5, **some), expected)
    check(index.search(queries, 5), oracle(space, queries, vectors, 5, codes > ABSENT))
    check(index.search(queries, 5, labelled=True), oracle(space, queries, vectors, 5, codes > UNLABELLED))
    check(index.search(queries, 5, exclude=exclude), oracle(space, queries, vectors, 5, codes > ABSENT, exclude))


@pytest.mark.parametrize("space", [Sphere(), Euclidean()], ids=str)
@pytest.mark.parametrize("q", [1, 10])
def test_crowds_of_ties_go_by_slot(space: Space, q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_CROWD", 10)
    monkeypatch.setattr(scan, "_ONE_ENTRIES", 1200)  # several blocks, so that workers meet
    vectors = np.repeat(points(space, 3), 400, axis=0)[np.random.default_rng(0).permutation(1200)]
    queries = vectors[:q]
    check(filled(space, vectors).search(queries, 12), oracle(space, queries, vectors, 12, np.ones(1200, bool)))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 8), st.integers(1, 70), st.sampled_from(SPACES[:4]), st.integers(0, 2**32 - 1)
)
def test_coarse_grids_are_full_of_ties(n: int, q: int, k: int, space: Space, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(-1, 2, (n, 3)).astype(np.float32) / 2  # zeros and parallel vectors among them
    queries = random.integers(-1, 2, (q, 3)).astype(np.float32) / 2
    check(filled(space, vectors).search(queries, k), oracle(space, queries, vectors, k, np.ones(n, bool)))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-4, 1e4, 1e12, 1e30])
@pytest.mark.parametrize("space", [Sphere(), Euclidean()], ids=str)
def test_any_scale_and_a_far_origin(space: Space, scale: float) -> None:
    vectors = points(Euclidean(), 200) * np.float32(scale)
    far = vectors + np.float32(1000 * scale)
    for stored in (vectors, far):
        check(filled(space, stored).search(stored[:9], 4), oracle(space, stored[:9], stored, 4, np.ones(200, bool)))


def test_close_neighbours_are_told_apart_in_float64() -> None:
    direction = points(Sphere(), 1, 64)[0].astype(np.float64)
    steps = np.random.default_rng(0).permutation(500)
    vectors = (direction + 1e-7 * steps[:, None] * points(Sphere(), 1, 64, seed=1)).astype(np.float32)
    allowed = np.ones(500, bool)
    check(filled(Sphere(), vectors).search(vectors[:3], 20), oracle(Sphere(), vectors[:3], vectors, 20, allowed))


def test_an_empty_index_and_an_empty_choice_find_nothing() -> None:
    index = VectorIndex(Sphere(), 4)
    distances, slots = index.search(np.ones((2, 4)), 3)
    assert np.isinf(distances).all()
    assert (slots == -1).all()
    assert slots.shape == (2, 3)
    index.append(np.ones((5, 4), np.float32), np.zeros(5))
    assert (index.search(np.ones((1, 4)), 3, allowed=np.zeros(5, bool))[1] == -1).all()
    assert index.search(np.empty((0, 4)), 3)[1].shape == (0, 3)


def test_growing_keeps_what_is_there_and_what_readers_hold() -> None:
    space, whole = Euclidean(), points(Euclidean(), 5000)
    index = VectorIndex(space, 6)
    before = None
    for start in range(0, 5000, 700):
        part = whole[start : start + 700]
        index.append(part, np.arange(start, start + len(part)))
        before = before or index.snapshot
    np.testing.assert_array_equal(index.vectors(np.arange(5000)), whole)
    np.testing.assert_array_equal(index.codes, np.arange(5000))
    assert before is not None
    assert before.count == 700
    np.testing.assert_array_equal(before.vectors[:700], whole[:700])


def test_reserved_room_is_not_copied_again() -> None:
    index = VectorIndex(Sphere(), 6)
    index.reserve(3000)
    room = index.snapshot.vectors
    for start in range(0, 3000, 1000):
        index.append(points(Sphere(), 1000), np.full(1000, start))
    assert index.snapshot.vectors is room


def test_codes_change_without_touching_an_older_view() -> None:
    index = filled(Sphere(), points(Sphere(), 10))
    before = index.codes
    index.set_codes(np.array([2, 3]), np.array([ABSENT, 7]))
    assert (before == 0).all()
    assert index.codes.tolist() == [0, 0, ABSENT, 7, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError):
        index.codes[0] = 1
    index.append(points(Sphere(), 1, seed=3), np.array([5]))
    assert index.codes[-1] == 5
    assert index.codes[2] == ABSENT


def test_a_mask_made_before_an_append_leaves_out_what_came_later() -> None:
    vectors = points(Sphere(), 20)
    index = filled(Sphere(), vectors)
    mask = np.ones(10, bool)
    assert set(index.search(vectors[15:16], 20, allowed=mask)[1][0].tolist()) == {-1, *range(10)}


def test_searches_while_another_thread_writes_see_whole_moments() -> None:
    space, vectors = Sphere(), points(Sphere(), 4000)
    index = VectorIndex(space, 6)
    index.append(vectors[:1], np.zeros(1))
    wrong: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            before = index.count
            slots = index.search(vectors[:1], 4000)[1][0]
            found = slots[slots >= 0]
            if not before <= len(found) or sorted(found) != list(range(len(found))):
                wrong.append(f"{len(found)} of {before}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(1, 4000, 250):
        part = vectors[start : start + 250]
        index.append(part, np.zeros(len(part)))
    done.set()
    for reader in readers:
        reader.join(timeout=30)
    assert not wrong


def test_tensors_with_gradients_are_taken() -> None:
    vectors = points(Sphere(), 10)
    index = filled(Sphere(), vectors)
    assert index.search(torch.from_numpy(vectors[:2]).requires_grad_(), 1)[1].tolist() == [[0], [1]]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"queries": np.ones((1, 5))}, r"\(1, 5\)"),
        ({"queries": np.ones(6)}, r"\(n, 6\)"),
        ({"queries": [["a"] * 6]}, "numbers"),
        ({"queries": np.full((1, 6), np.nan)}, "NaN"),
        ({"queries": np.full((1, 6), 1e300)}, "NaN"),
        ({"k": 0}, "k"),
        ({"k": 2.0}, "whole"),
        ({"k": True}, "whole"),
        ({"allowed": np.ones(11, bool)}, "allowed"),
        ({"allowed": np.ones(10)}, "allowed"),
        ({"exclude": np.zeros(2, int)}, "exclude"),
        ({"exclude": np.zeros(1)}, "exclude"),
    ],
)
def test_bad_requests_say_what_to_change(asked: dict, message: str) -> None:
    index = filled(Sphere(), points(Sphere(), 10))
    with pytest.raises(DataError, match=message):
        index.search(**{"queries": points(Sphere(), 1), "k": 3, **asked})


def test_bad_vectors_are_refused_whole() -> None:
    index = filled(Sphere(), points(Sphere(), 10))
    bad = points(Sphere(), 3)
    bad[1, 2] = np.inf
    with pytest.raises(DataError, match="row 1"):
        index.append(bad, np.zeros(3))
    with pytest.raises(DataError, match="code"):
        index.append(points(Sphere(), 3), np.zeros(2))
    assert index.count == 10
