"""Every way of searching hands over the true nearest items of every query, once, whatever the data."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.search import InnerProduct, brute_force, tiles
from nearkin.search.brute_force import Order, first_ranks, key_indices, search_candidates
from nearkin.search.tiles import search_rows
from nearkin.spaces import Euclidean, PoincareBall, Sphere

MEMORY = 2**26


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several tiles, strips and samples with a few hundred items."""
    monkeypatch.setattr(tiles, "TILE", 64)
    monkeypatch.setattr(tiles, "_SLACK", 5)
    monkeypatch.setattr(tiles, "_HEIGHT", 30)
    monkeypatch.setattr(tiles, "_SORTED_ENTRIES", 4000)
    monkeypatch.setattr(brute_force, "_HEIGHT", 50)
    monkeypatch.setattr(brute_force, "_LARGEST_SAMPLE", 128)
    monkeypatch.setattr(brute_force, "_CONSUMED_ENTRIES", 500)


def draw(kind, n, seed):
    rng = np.random.default_rng(seed)
    data = {
        "random": lambda: rng.normal(size=(n, 8)),
        "clustered": lambda: rng.normal(size=(9, 8))[np.sort(rng.integers(0, 9, n))] + 0.1 * rng.normal(size=(n, 8)),
        "copies": lambda: rng.normal(size=(max(1, n // 6), 8))[rng.integers(0, max(1, n // 6), n)],
        "whole": lambda: rng.integers(-1, 2, (n, 3)),
        "one point": lambda: np.ones((n, 3)),
        "far": lambda: 1000 + rng.normal(size=(n, 8)),
    }[kind]()
    return torch.from_numpy(np.asarray(data, np.float32))


KINDS = ["random", "clustered", "copies", "whole", "one point", "far"]
OTHERS = [Sphere(), PoincareBall(), InnerProduct()]


class Consumer:
    """Remembers what it was given, and compares with sorting in float64."""

    def __init__(self, order, exclude):
        self.order, self.exclude = order, exclude
        self.found = {}
        self.lock = threading.Lock()

    def __call__(self, rows, keys):
        with self.lock:
            for row, items in zip(rows.tolist(), key_indices(keys).tolist(), strict=True):
                assert row not in self.found
                self.found[row] = items

    def check(self, rows, depth, unserved=()):
        assert sorted([*self.found, *unserved]) == sorted(rows.tolist())
        true = self.order.scorer.distance(self.order.queries.double(), self.order.gallery.double()).numpy()
        for row, deep in zip(rows.tolist(), depth.tolist(), strict=True):
            if row not in self.found:
                continue
            items = [item for item in self.found[row] if item >= 0]
            assert len(set(items)) == len(items)
            distances = true[row].round(12)
            if self.exclude is not None and self.exclude[row] >= 0:
                assert self.exclude[row] not in items
                distances[self.exclude[row]] = np.inf
            nearest = np.lexsort((np.arange(len(distances)), distances))[:deep]
            assert set(nearest.tolist()) <= set(items), (row, deep)


def setting(kind, scorer, queries, items, alone, seed=0):
    x = draw(kind, queries, seed)
    y = x if alone else draw(kind, items, seed + 1)
    order = Order(x, y, scorer)
    exclude = np.arange(queries) if alone else None
    return order, exclude, Consumer(order, exclude)


@pytest.mark.parametrize(
    ("kind", "scorer", "alone"),
    [
        *((kind, Euclidean(), alone) for kind in KINDS for alone in (True, False)),
        *((kind, scorer, True) for kind in ("clustered", "whole") for scorer in OTHERS),
        *((kind, scorer, False) for kind in ("random", "copies") for scorer in OTHERS),
    ],
    ids=str,
)
def test_search_candidates_finds_all(kind, scorer, alone):
    order, exclude, consumer = setting(kind, scorer, 213, 331, alone)
    rows = np.random.default_rng(5).permutation(213)[:190]
    depth = np.random.default_rng(6).integers(1, 120, 190)
    search_candidates(order, rows, depth, exclude, consumer, MEMORY)
    consumer.check(rows, depth)


@pytest.mark.parametrize(
    ("kind", "alone", "depth"),
    [
        *(("random", alone, depth) for alone in (True, False) for depth in (1, 20, 90, 212)),
        *((kind, alone, depth) for kind in KINDS[1:] for alone, depth in ((True, 20), (False, 90))),
    ],
)
def test_strips_and_rows_are_complete(kind, alone, depth):
    for search in (tiles.search_strips, search_rows):
        order, exclude, consumer = setting(kind, Euclidean(), 213, 250, alone)
        rows, deep = np.arange(213), np.full(213, depth)
        search(order, rows, deep, exclude, consumer, MEMORY)
        consumer.check(rows, deep)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [5, 40, 150])
def test_sieves_serve_or_hand_back(kind, depth):
    rows = np.arange(413)
    deep = np.full(413, depth)
    for alone in (True, False):
        order, exclude, consumer = setting(kind, Euclidean(), 413, 500, alone)
        left = brute_force.search_sieve(order, rows, deep, exclude, consumer, MEMORY)
        consumer.check(rows, deep, left.tolist())
        if kind in ("random", "clustered"):
            assert len(left) < 60  # it does most of the work
    order, _, consumer = setting(kind, Sphere(), 413, 0, True)
    left = brute_force.search_mirror(order, rows, deep, consumer)
    consumer.check(rows, deep, left.tolist())


def test_a_mirror_looks_for_some_queries_only():
    order, _, consumer = setting("random", Euclidean(), 300, 0, True)
    rows = np.arange(0, 300, 3)
    deep = np.full(len(rows), 30)
    left = brute_force.search_mirror(order, rows, deep, consumer)
    consumer.check(rows, deep, left.tolist())


@pytest.mark.parametrize("kind", ["random", "clustered", "whole"])
@pytest.mark.parametrize("wanted", [1, 10, 30, 80])
def test_tiles_hold_the_best_scores(kind, wanted):
    """All that is nearer than the last; which of several last ones are held is left open."""
    for alone in (True, False):
        order, exclude, _ = setting(kind, Euclidean(), 201, 203, alone)
        true = order.scorer.distance(order.queries.double(), order.gallery.double())
        if alone:
            true.fill_diagonal_(torch.inf)
        last = true.sort(dim=1).values[:, wanted - 1 : wanted]
        nearer = (true < last - 1e-6).sum(dim=1).numpy()
        searches = [lambda c, o=order, e=exclude: tiles.search_tiles(o, np.arange(201), wanted, e, c, MEMORY)]
        if alone:
            searches.append(lambda c, o=order: tiles.search_symmetric(o, wanted, c))
        for search in searches:
            consumer = Consumer(order, exclude)
            search(consumer)
            assert all(len(set(items)) == wanted for items in consumer.found.values())
            consumer.check(np.arange(201), nearer)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    queries=st.integers(1, 90),
    items=st.integers(2, 90),
    alone=st.booleans(),
    kind=st.sampled_from(KINDS),
)
def test_any_sizes(seed, queries, items, alone, kind):
    queries = max(2, queries) if alone else queries
    order, exclude, consumer = setting(kind, Euclidean(), queries, items, alone, seed)
    most = (queries if alone else items) - alone
    rows, depth = np.arange(queries), np.random.default_rng(seed).integers(1, most + 1, queries)
    search_candidates(order, rows, depth, exclude, consumer, MEMORY)
    consumer.check(rows, depth)


def test_a_gallery_that_cannot_be_prepared_in_one_piece_gives_the_same():
    """Tiles and sieves prepare their items tile by tile when the memory is small."""
    order = setting("random", Euclidean(), 120, 400, False)[0]
    rows = np.arange(120)
    for depth in (4, 60):
        some = Consumer(order, None)
        search_candidates(order, rows, np.full(120, depth), None, some, 5000)
        some.check(rows, np.full(120, depth))


class Bad:
    """A scorer that fails at its third tile."""

    def __init__(self):
        self.calls = 0

    def distance(self, x, y):
        self.calls += 1
        if self.calls > 2:
            raise RuntimeError("spent")
        return torch.cdist(x, y)


@pytest.mark.parametrize("depth", [3, 50])
def test_the_error_of_a_worker_comes_out(depth):
    order, exclude, consumer = setting("random", Euclidean(), 300, 0, True)
    order = Order(order.queries, order.gallery, Bad())
    with pytest.raises(RuntimeError, match="spent"):
        search_candidates(order, np.arange(300), np.full(300, depth), exclude, consumer, MEMORY)


def test_a_failing_worker_does_not_leave_the_others_waiting(monkeypatch):
    order, _, consumer = setting("random", Euclidean(), 400, 0, True)
    offer, calls = tiles._offer, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("broken")
        offer(*arguments)

    monkeypatch.setattr(tiles, "_offer", failing)
    with pytest.raises(RuntimeError, match="broken"):
        tiles.search_symmetric(order, 5, consumer)


@pytest.mark.parametrize("kind", ["random", "whole", "one point"])
@pytest.mark.parametrize("alone", [True, False])
def test_first_ranks_are_those_of_sorting(kind, alone):
    order, exclude, _ = setting(kind, Euclidean(), 150, 170, alone)
    labels = np.random.default_rng(3).integers(0, 12, len(order.gallery))
    asked = np.arange(150) % 12

    def members(rows):
        items = np.where(labels == asked[rows][:, None], np.arange(len(labels)), -1)
        return np.where(items == (rows[:, None] if alone else -2), -1, items)

    rows = np.flatnonzero((members(np.arange(150)) >= 0).any(axis=1))
    ranks = first_ranks(order, rows, members, exclude, MEMORY)
    true = order.scorer.distance(order.queries.double(), order.gallery.double()).numpy().round(12)
    if alone:
        np.fill_diagonal(true, np.inf)
    own = members(rows)
    for row, rank, items in zip(rows, ranks, own, strict=True):
        sorted_items = np.lexsort((np.arange(len(labels)), true[row])).tolist()
        assert rank == 1 + min(sorted_items.index(item) for item in items if item >= 0)
