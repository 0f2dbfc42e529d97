"""First ranks, the true order of candidates, and runs put right, against loops in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.search.brute_force import Order, _first, first_ranks, resolve_ties, true_order
from nearkin.search.scorers import InnerProduct
from nearkin.search.tiles import EMPTY, to_keys
from nearkin.spaces import Euclidean, Sphere


class Manhattan:
    def distance(self, x, y):
        return torch.cdist(x, y, p=1)


def draw(kind, n, seed):
    rng = np.random.default_rng(seed)
    few = rng.normal(size=(n // 8 + 1, 5))
    x = {
        "random": rng.normal(size=(n, 5)),
        "copies": few[rng.integers(0, len(few), n)],
        "whole": rng.integers(-1, 2, (n, 3)) * 1.0,
        "one point": np.ones((n, 3)),
        "tight": 1 + 1e-7 * rng.normal(size=(n, 5)),
    }[kind]
    return torch.from_numpy(x)


def ranked(order, exclude):
    """All items of every query, nearest first, equal ones by index, without the excluded."""
    true = order.scorer.distance(order.queries.double(), order.gallery.double()).numpy().tolist()
    hidden = [-1] * len(true) if exclude is None else exclude.tolist()
    return [
        sorted((i for i in range(len(row)) if i != out), key=lambda i: (round(row[i], 13), i))
        for row, out in zip(true, hidden, strict=True)
    ]


EVERY = [
    (kind, scorer)
    for kind in ("random", "copies", "whole", "one point")
    for scorer in (Euclidean(), Sphere(), InnerProduct(), Manhattan())
]
TIGHT = ("tight", Euclidean())  # for the others these differ by less than the distance's own rounding


@pytest.mark.parametrize(
    ("kind", "scorer"), [*EVERY, TIGHT], ids=lambda part: part if isinstance(part, str) else type(part).__name__
)
@pytest.mark.parametrize("alone", [True, False])
def test_first_ranks_count_all_that_come_before(monkeypatch, kind, scorer, alone):
    for name, value in {
        "tiles._HEIGHT": 9,
        "brute_force._ROWS": 4,
        "tiles._CHUNK": 48,
    }.items():
        monkeypatch.setattr(f"nearkin.search.{name}", value)
    x = draw(kind, 61, 0)
    order = Order(x, x if alone else draw(kind, 117, 1), scorer)
    rng = np.random.default_rng(2)
    exclude = np.arange(61) if alone else np.where(rng.random(61) < 0.5, -1, rng.integers(0, 117, 61))
    rows = rng.permutation(61)[:50]
    labels = rng.integers(0, 25, len(order.gallery))
    own = {row: [i for i in np.flatnonzero(labels == row % 25).tolist() if i != exclude[row]] for row in rows.tolist()}
    rows = np.array([row for row in rows.tolist() if own[row]])

    def members(some):
        widest = max(len(own[row]) for row in some.tolist())
        return np.array([own[row] + [-1] * (widest - len(own[row])) for row in some.tolist()])

    everything = ranked(order, exclude)
    expected = [1 + min(everything[row].index(i) for i in own[row]) for row in rows.tolist()]
    for memory in (10_000, 2**26):
        assert first_ranks(order, rows, members, exclude, memory).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), b=st.integers(1, 5), c=st.integers(1, 9), m=st.integers(1, 5))
def test_the_first_member_of_every_row(seed, b, c, m):
    rng = np.random.default_rng(seed)
    near = np.stack([rng.permutation(12)[:c] for _ in range(b)])
    near[:, 1:][rng.random((b, c - 1)) < 0.2] = -1
    members = rng.integers(-1, 12, (b, m))
    members[np.arange(b), rng.integers(0, m, b)] = np.maximum(near[:, 0], 0)
    expected = [
        next(i for i, item in enumerate(row) if item >= 0 and item in own)
        for row, own in zip(near.tolist(), members.tolist(), strict=True)
    ]
    assert _first(near.astype(np.int32), members).tolist() == expected


@pytest.mark.parametrize("scorer", [Euclidean(), Sphere(), InnerProduct()], ids=repr)
def test_candidates_get_their_true_order(scorer):
    """Scores are rough, some candidates are missing, and only what may be needed comes back."""
    x, y = draw("whole", 6, 0) + 0.25, draw("whole", 30, 1) + 0.25
    order = Order(x, y, scorer)
    scores = order.scores(order.left(slice(None)), order.right(slice(None)), torch.empty(6, 30)).numpy()
    keys = np.sort(to_keys(scores, np.broadcast_to(np.arange(30), (6, 30))), axis=1)
    keys[3, 20:] = EMPTY
    distances, near = true_order(order, np.arange(6), keys, np.array([5, 5, 5, 20, 5, 30]))
    true = scorer.distance(x, y)
    expected = ranked(order, None)
    assert distances.shape == near.shape == (6, 30)
    assert near[3, 20:].tolist() == [-1] * 10
    assert (distances[3, 20:] == np.inf).all()
    for row in (0, 1, 2, 4, 5):
        assert near[row].tolist() == expected[row]
        np.testing.assert_allclose(distances[row], true[row, near[row].tolist()], rtol=1e-11)
    short = true_order(order, np.arange(6), keys, np.full(6, 3))[1]
    assert 3 <= short.shape[1] <= 30
    assert short[:3, :3].tolist() == [row[:3] for row in expected[:3]]


def test_runs_are_untangled_where_it_matters():
    y = torch.tensor([[3.0], [1.0], [2.0], [7.0], [6.0], [5.0], [5.0]])
    order = Order(torch.zeros(1, 1), y, Euclidean())
    close = np.array([[True, True, False, True, True, True]])
    for matters, expected in (
        ([0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 6, 5]),
        ([1, 0, 0, 0, 0, 0], [1, 2, 0, 3, 4, 6, 5]),
        ([0, 0, 0, 0, 0, 1], [0, 1, 2, 5, 6, 4, 3]),
        ([0, 0, 1, 0, 0, 0], [0, 1, 2, 3, 4, 6, 5]),  # between runs
        ([1, 1, 1, 1, 1, 1], [1, 2, 0, 5, 6, 4, 3]),
    ):
        near = np.array([[0, 1, 2, 3, 4, 6, 5]], np.int32)
        resolve_ties(order, np.array([0]), near, close, np.array([matters], bool))
        assert near[0].tolist() == expected
