"""What every way of searching owes a query: all items that rounding could put among its nearest, and nothing hidden.

Rounding is rarely unkind enough to be seen, so here the scores are said to be far worse than they are.
"""

import threading

import numpy as np
import pytest
import torch

from nearkin.search import InnerProduct, brute_force, exact, order, tiles
from nearkin.search.brute_force import EMPTY, Order, _CertainCandidates, key_indices, search_candidates
from nearkin.search.tiles import search_rows
from nearkin.spaces import Euclidean, PoincareBall, Sphere


class Manhattan:
    def distance(self, x, y):
        return torch.cdist(x, y, p=1)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several tiles, strips, samples and chunks with a few hundred items."""
    small = {"tiles.TILE": 32, "tiles._SLACK": 3, "tiles._HEIGHT": 7, "tiles._ROWS": 19}
    small |= {"brute_force._HEIGHT": 24, "brute_force._LARGEST_SAMPLE": 64}
    small |= {"brute_force._CONSUMED_ENTRIES": 512, "tiles._SORTED_ENTRIES": 1024, "tiles._CHUNK": 48}
    for name, value in small.items():
        monkeypatch.setattr(f"nearkin.search.{name}", value)


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def draw(kind, n, seed):
    rng = np.random.default_rng(seed)
    if kind == "random":
        x = rng.normal(size=(n, 6))
    elif kind == "tight":
        x = rng.normal(size=(7, 6))[rng.integers(0, 7, n)] + 1e-5 * rng.normal(size=(n, 6))
    else:
        x = rng.integers(-1, 2, (n, 4)) * 1.0
    return torch.from_numpy(x).float() / 4


class Taken:
    """Takes queries and keys from any thread, each query once."""

    def __init__(self):
        self.keys, self._lock = {}, threading.Lock()

    def __call__(self, rows, keys):
        with self._lock:
            for row, own in zip(rows.tolist(), keys, strict=True):
                assert row not in self.keys
                self.keys[row] = own.copy()


def run(way, made, rows, depth, exclude, memory):
    """What the way hands over, a dict of keys, and the queries it gives back."""
    taken, left = Taken(), np.array([], np.int64)
    if way in ("tiles", "symmetric"):
        checked = _CertainCandidates(made, rows, depth, taken)
        wanted = min(len(made.gallery), int(depth.max()) + 4)
        if way == "tiles":
            tiles.search_tiles(made, rows, wanted, exclude, checked, memory)
        else:
            tiles.search_symmetric(made, wanted, checked)
        left = checked.doubtful()[0]
    elif way == "sieve":
        left = brute_force.search_sieve(made, rows, depth, exclude, taken, memory)
    elif way == "mirror":
        left = brute_force.search_mirror(made, rows, depth, taken)
    else:
        search = {"strips": tiles.search_strips, "rows": search_rows, "candidates": search_candidates}[way]
        search(made, rows, depth, exclude, taken, memory)
    return taken.keys, left


def check(made, keys, left, rows, depth, exclude):
    """Each query comes once, without its excluded item, with all whose score may be that of one of its nearest."""
    assert sorted([*keys, *left.tolist()]) == sorted(rows.tolist())
    full = torch.empty(len(made.queries), len(made.gallery))
    scores = made.scores(made.left(slice(None)), made.right(slice(None)), full).numpy()
    true = made.scorer.distance(made.queries.double(), made.gallery.double()).numpy().round(13)
    tolerance = made.tolerance(torch.arange(len(scores))).numpy()
    for row, deep in zip(rows.tolist(), depth.tolist(), strict=True):
        if row not in keys:
            continue
        own = keys[row]
        assert (own[1:] >= own[:-1]).all()
        items = key_indices(own[own != EMPTY]).tolist()
        assert len(set(items)) == len(items)
        if exclude is not None and exclude[row] >= 0:
            assert exclude[row] not in items
            scores[row, exclude[row]], true[row, exclude[row]] = -np.inf, np.inf
        last = np.sort(scores[row])[-deep]
        possible = np.flatnonzero(scores[row] >= last - 2 * tolerance[row] + 1e-6)
        assert set(possible.tolist()) <= set(items)
        nearest = np.lexsort((np.arange(len(true[row])), true[row]))[:deep]
        if made.by_product:
            assert set(nearest.tolist()) <= set(items)
        assert len(items) >= deep


ALONE = ["symmetric", "mirror"]
ANY = ["tiles", "sieve", "strips", "rows", "candidates"]


@pytest.mark.parametrize("way", [*ANY, *ALONE])
@pytest.mark.parametrize(
    ("threads", "kind", "scorer", "roundings"),
    [
        (1, "random", Euclidean(), 6.0),
        (2, "tight", Euclidean(), 3e4),
        (2, "tight", Sphere("angle"), 6.0),
        (1, "random", PoincareBall(), 3e4),
        (2, "whole", PoincareBall(), 6.0),
        (2, "whole", InnerProduct(), 3e4),
    ],
    ids=str,
    indirect=["threads"],
)
def test_all_that_rounding_could_confuse_come_along(monkeypatch, threads, way, kind, scorer, roundings):
    monkeypatch.setattr(order, "CERTAINTY", roundings)
    alone = way in ALONE
    x = draw(kind, 151 if alone else 83, 0)
    made = Order(x, x if alone else draw(kind, 205, 1), scorer)
    rng = np.random.default_rng(2)
    rows = np.arange(len(x)) if way == "symmetric" else rng.permutation(len(x))[:80]
    depth = np.sort(rng.integers(1, 60, len(rows)))
    exclude = np.arange(len(x)) if alone else np.where(rng.random(len(x)) < 0.3, -1, rng.integers(0, 205, len(x)))
    keys, left = run(way, made, rows, depth, exclude, 2**28)
    check(made, keys, left, rows, depth, exclude)


@pytest.mark.parametrize("roundings", [1e4, 1e5])
def test_sieves_hand_back_what_is_enough_only_within_rounding(monkeypatch, roundings):
    """Thresholds told by a sample too high leave the last of the nearest among those that rounding lets pass."""
    monkeypatch.setattr(order, "CERTAINTY", roundings)
    monkeypatch.setattr(brute_force, "_MARGIN", 0.0)  # every other threshold is too high
    x = draw("random", 400, 0)
    rows, depth = np.arange(400), np.full(400, 40)
    for way, made in (("mirror", Order(x, x, Euclidean())), ("sieve", Order(x, draw("random", 500, 1), Euclidean()))):
        exclude = rows if way == "mirror" else None
        keys, left = run(way, made, rows, depth, exclude, 2**28)
        assert 0 < len(keys) < 400
        check(made, keys, left, rows, depth, exclude)


@pytest.mark.parametrize("way", ANY)
@pytest.mark.parametrize(
    ("queries", "items", "kind"),
    [(1, 1, "random"), (1, 40, "whole"), (70, 1, "random"), (33, 16, "whole"), (65, 97, "random"), (65, 97, "whole")],
)
def test_all_items_of_small_sets(way, queries, items, kind):
    made = Order(draw(kind, queries, 0), draw(kind, items, 1), Euclidean())
    rows, depth = np.arange(queries), np.full(queries, items)
    keys, left = run(way, made, rows, depth, None, 2**28)
    check(made, keys, left, rows, depth, None)
    if way != "sieve":
        assert len(left) == 0


@pytest.mark.parametrize("way", ANY)
def test_a_hidden_item_stays_hidden_beside_queries_that_hide_none(way):
    """Every item ties, so a query without a hidden one has all items for candidates."""
    made = Order(torch.ones(3, 2), torch.ones(5, 2), Euclidean())
    exclude, depth = np.array([-1, 2, 4]), np.array([4, 4, 4])
    keys, left = run(way, made, np.arange(3), depth, exclude, 2**28)
    check(made, keys, left, np.arange(3), depth, exclude)


@pytest.mark.parametrize("way", ANY)
@pytest.mark.parametrize(
    ("threads", "memory", "scorer"),
    [(1, 9000, Sphere()), (2, 9000, Manhattan()), (2, 2**28, Manhattan())],
    ids=["sphere", "manhattan", "manhattan-in-one-piece"],
    indirect=["threads"],
)
def test_a_gallery_prepared_piece_by_piece_gives_the_same(threads, way, memory, scorer):
    made = Order(draw("random", 90, 0), draw("random", 201, 1), scorer)
    rows, depth = np.arange(90), np.sort(np.random.default_rng(3).integers(1, 90, 90))
    keys, left = run(way, made, rows, depth, None, memory)
    check(made, keys, left, rows, depth, None)


@pytest.mark.parametrize("way", [*ANY, *ALONE])
@pytest.mark.parametrize("where", ["scores", "consumer"])
def test_an_error_in_a_worker_comes_out_and_ends_the_search(monkeypatch, threads, way, where):
    x = draw("random", 300, 0)
    made = Order(x, x, Sphere())
    outcome = []

    def fail(*_):
        raise ZeroDivisionError(where)

    if where == "scores":
        scores, calls = Order.scores, []

        def fail_later(*arguments):
            calls.append(1)
            return scores(*arguments) if len(calls) < 3 else fail()

        monkeypatch.setattr(Order, "scores", fail_later)

    def search():
        if where == "consumer":
            monkeypatch.setattr(Taken, "__call__", fail)
        try:
            run(way, made, np.arange(300), np.full(300, 5), np.arange(300), 2**28)
        except ZeroDivisionError as error:
            outcome.append(error)

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(outcome) == 1


@pytest.mark.parametrize("kind", ["random", "tight", "whole"])
@pytest.mark.parametrize("k", [3, 50])
def test_threads_do_not_change_the_answer(kind, k):
    x, before = draw(kind, 260, 0), torch.get_num_threads()
    answers = []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        answers.append(exact(x, k=k, space=Euclidean()))
    torch.set_num_threads(before)
    for distances, indices in answers[1:]:
        assert torch.equal(distances, answers[0][0])
        assert torch.equal(indices, answers[0][1])
