"""Keys and the reservoir against sorting in plain Python."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nearkin.search.tiles import EMPTY, Reservoir, fill_rows, key_indices, key_scores, to_keys

LAST = 2**31 - 1
scores_and_indices = st.lists(
    st.tuples(st.floats(width=32, allow_nan=False), st.integers(0, LAST)), min_size=1, max_size=40
)


def unzip(pairs):
    return np.array([s for s, _ in pairs], np.float32), np.array([i for _, i in pairs], np.int64)


def by_score(pairs):
    """Larger scores first, equal ones by index."""
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))


@settings(max_examples=200, deadline=None)
@given(scores_and_indices)
@example([(0.0, 5), (-0.0, 4), (0.0, 3), (-0.0, 6)])
@example(
    [(float("inf"), LAST), (float("-inf"), 0), (-1.0, LAST), (-1.0, 0), (1.0, LAST), (2.0**-149, 1), (-(2.0**-149), 1)]
)
def test_keys_order_by_score_then_index(pairs):
    keys = to_keys(*unzip(pairs))
    assert keys.dtype == np.int64
    ordered = np.sort(keys)
    expected = by_score(pairs)
    assert key_indices(ordered).tolist() == [i for _, i in expected]
    assert key_scores(ordered).tolist() == [s for s, _ in expected]
    assert (keys < EMPTY).all()


def test_an_empty_key_is_no_item_behind_all_others():
    keys = np.append(to_keys(np.float32([-np.inf]), np.array([LAST])), EMPTY)
    assert keys[0] < keys[1]
    assert key_scores(keys).tolist() == [-np.inf, -np.inf]
    assert key_indices(keys).tolist() == [LAST, -1]


@pytest.mark.parametrize("cut", [np.s_[:, :3], np.s_[:, ::2], np.s_[1:], np.s_[:0], np.s_[:, :0]])
def test_keys_of_any_shape_and_layout_are_read(cut):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4, 6)).astype(np.float32)
    indices = rng.integers(0, LAST, (4, 6))
    keys = to_keys(scores, indices)[cut]
    np.testing.assert_array_equal(key_scores(keys), scores[cut])
    np.testing.assert_array_equal(key_indices(keys), indices[cut])


def test_rows_are_filled_from_the_left():
    table = np.zeros((3, 4), int)
    fill_rows(table, np.array([2, 0, 4]), np.arange(1, 7))
    assert table.tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [3, 4, 5, 6]]


def stream(scores, wanted, slack, chunk, rows=0, start=None):
    """What a reservoir keeps of scores (q, n) that come in chunks of items, only those above the limits offered."""
    queries, items = scores.shape
    reservoir = Reservoir(rows + queries, wanted, slack)
    here = slice(rows, rows + queries)
    if start is not None:
        reservoir.start(here, start)
    for first in range(0, items, chunk):
        part = scores[:, first : first + chunk]
        query, item = np.nonzero(part > reservoir.limit[here][:, None])
        reservoir.offer(here, query, part[query, item], item + first)
    return reservoir.keys(here)


def assert_best(keys, scores, wanted):
    for row, own in zip(keys, scores.tolist(), strict=True):
        expected = by_score([(s, i) for i, s in enumerate(own)])[:wanted]
        found = row[row != EMPTY]
        assert key_indices(found).tolist() == [i for _, i in expected]
        assert (row[len(found) :] == EMPTY).all()


streams = {
    "seed": st.integers(0, 10**6),
    "queries": st.integers(1, 4),
    "items": st.integers(1, 60),
    "wanted": st.integers(1, 7),
    "slack": st.integers(1, 5),
    "chunk": st.integers(1, 60),
    "values": st.integers(1, 30),
}


@settings(max_examples=200, deadline=None)
@given(**streams, rows=st.integers(0, 2))
def test_the_best_of_a_stream_with_ties_stay(seed, queries, items, wanted, slack, chunk, values, rows):
    scores = np.random.default_rng(seed).integers(-values, values, (queries, items)).astype(np.float32)
    assert_best(stream(scores, wanted, slack, chunk, rows), scores, wanted)


@settings(max_examples=200, deadline=None)
@given(**streams, groups=st.integers(1, 12))
def test_first_limits_lose_no_neighbour(seed, queries, items, wanted, slack, chunk, values, groups):
    scores = np.random.default_rng(seed).integers(-values, values, (queries, items)).astype(np.float32)
    best = np.stack([part.max(axis=1) for part in np.array_split(scores, min(groups, items), axis=1)], axis=1)
    assert_best(stream(scores, wanted, slack, chunk, start=best), scores, wanted)


@settings(max_examples=100, deadline=None)
@given(**{**streams, "values": st.just(4)})
def test_in_any_order_of_items_the_best_scores_stay(seed, queries, items, wanted, slack, chunk, values):
    rng = np.random.default_rng(seed)
    scores = rng.integers(-values, values, (queries, items)).astype(np.float32)
    kept = key_scores(stream(scores[:, rng.permutation(items)], wanted, slack, chunk))[:, :items]
    np.testing.assert_array_equal(kept, -np.sort(-scores, axis=1)[:, :wanted])


def test_rows_do_not_disturb_each_other():
    reservoir = Reservoir(4, 2, 1)
    scores = np.float32([3, 2, 1, 5, 4, 6])
    reservoir.offer(slice(1, 3), np.array([0, 0, 0, 1, 1, 1]), scores, np.arange(6))
    assert key_indices(reservoir.keys(slice(1, 3))).tolist() == [[0, 1], [5, 3]]
    assert reservoir.limit.tolist() == [-np.inf, 2, 5, -np.inf]
    assert (reservoir.keys(slice(0, 1)) == EMPTY).all()
