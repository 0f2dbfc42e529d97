"""Search by a learned similarity against a naive loop over pairs in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.metrics import retrieval_metrics
from nearkin.models import similarity_sides as sides_module
from nearkin.models.similarity import LearnedSpace, PairSimilarity
from nearkin.search import exact
from nearkin.search.brute_force import Order
from nearkin.search.scorers import Factorised
from nearkin.search.tiles import key_indices, search_rows
from nearkin.spaces import Euclidean

WAYS = [None, "max", "mean"]


def learned(dimension=4, hidden=24, symmetric=None, seed=0, whole=False):
    """A space with random weights; whole numbers where ties must be exact."""
    torch.manual_seed(seed)
    network = PairSimilarity(dimension, hidden, slope=0.5 if whole else 0.1, symmetric=symmetric)
    if whole:
        for weights in network.parameters():
            weights.data = torch.randint(-2, 3, weights.shape).float()
    return LearnedSpace(Euclidean(), network.eval())


def similarity(space, item, query):
    """One pair in float64, layer by layer."""
    first, second, slope = space.network.first, space.network.second, space.network.slope

    def one_way(a, b):
        x = first.weight.detach().double().numpy() @ np.concatenate([a, b]) + first.bias.detach().double().numpy()
        return second.weight.detach().double().numpy()[0] @ np.where(x > 0, x, slope * x) + second.bias.item()

    there, back = one_way(item, query), one_way(query, item)
    return {None: there, "max": max(there, back), "mean": (there + back) / 2}[space.network.symmetric]


def naive(space, queries, gallery, k, exclude):
    rows = []
    for query, hidden in zip(queries.astype(np.float64), exclude, strict=True):
        pairs = [(-similarity(space, item, query), i) for i, item in enumerate(gallery.astype(np.float64))]
        rows.append(sorted((round(value, 10), i) for value, i in pairs if i != hidden)[:k])
    return [[i for _, i in row] for row in rows], np.array([[value for value, _ in row] for row in rows])


@pytest.mark.parametrize("symmetric", WAYS)
@pytest.mark.parametrize("k", [1, 9, 29])
def test_matches_a_naive_loop_leave_one_out_and_with_a_gallery(symmetric, k):
    space, rng = learned(symmetric=symmetric), np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).astype(np.float32), rng.normal(size=(40, 4)).astype(np.float32)
    some = np.where(rng.random(30) < 0.5, -1, rng.integers(0, 40, 30))
    for gallery, exclude in ((None, None), (y, None), (y, some)):
        hidden = np.arange(30) if gallery is None else np.full(30, -1) if exclude is None else some
        distances, indices = exact(x, gallery, k, space=space, exclude=exclude)
        expected, values = naive(space, x, x if gallery is None else gallery, k, hidden)
        assert indices.tolist() == expected
        np.testing.assert_allclose(distances, values, rtol=1e-5, atol=1e-6)
        assert distances.dtype == torch.float32


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 45), symmetric=st.sampled_from(WAYS))
def test_ties_go_by_index(seed, n, symmetric):
    rng = np.random.default_rng(seed)
    space, x = learned(2, 5, symmetric, seed, whole=True), rng.integers(-1, 2, (n, 2)).astype(np.float32)
    k = int(rng.integers(1, n))
    assert exact(x, k=k, space=space)[1].tolist() == naive(space, x, x, k, np.arange(n))[0]


@pytest.mark.parametrize("k", [3, 40, 299])
def test_copies_go_by_index_though_rounding_differs(k):
    """Whichever place of a block a copy has, it is as near as the others."""
    rng = np.random.default_rng(0)
    few, which = rng.normal(size=(4, 16)).astype(np.float32), rng.integers(0, 4, 300)
    found = exact(few[which], few[which], k, space=learned(16, 40))[1].numpy()
    for row in found:
        kinds = which[row]
        starts = np.flatnonzero(np.diff(kinds, prepend=-1))
        assert len(set(kinds[starts])) == len(starts)  # each kind in one piece
        for piece in np.split(row, starts[1:]):
            assert (np.diff(piece) > 0).all()


@pytest.mark.parametrize("k", [10, 200])
def test_a_query_never_finds_itself_whatever_the_memory(monkeypatch, k):
    monkeypatch.setattr("nearkin.search.scorers._LEAST_MB", 1)
    x = np.random.default_rng(0).normal(size=(700, 6)).astype(np.float32)
    space = learned(6, 40)
    little, much = (exact(x, k=k, space=space, memory_mb=memory) for memory in (1, 512))
    assert torch.equal(little[0], much[0])
    assert torch.equal(little[1], much[1])
    assert not (much[1] == torch.arange(700)[:, None]).any()
    table = -space.network.table(torch.from_numpy(x).double(), torch.from_numpy(x).double()).detach()
    table.fill_diagonal_(torch.inf)
    assert torch.equal(much[1], table.argsort(dim=1, stable=True)[:, :k])


def test_rows_on_an_accelerator_are_the_same():
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    space, found = learned(), {}

    def consume(rows, keys):
        found.update(zip(rows.tolist(), key_indices(keys).tolist(), strict=True))

    search_rows(Order(x, x, space), np.arange(90), np.full(90, 5), np.arange(90), consume, 2**26)
    expected = exact(x, k=5, space=space)[1]
    assert all(set(expected[row].tolist()) <= set(found[row]) for row in range(90))


def test_order_is_never_taken_for_symmetric():
    x = torch.randn(20, 25)
    order = Order(x, x, learned(25, 24))
    assert order.width == 25  # as wide as the points, and yet no product of them
    assert order.factorised
    assert not order.symmetric
    assert not order.one_side


@pytest.mark.parametrize("symmetric", WAYS)
def test_tolerance_bounds_what_rounding_does(symmetric):
    x, y = 30 * torch.randn(40, 16), 30 * torch.randn(70, 16)
    order = Order(x, y, learned(16, 300, symmetric))
    everyone = torch.arange(40)
    scores = order.scores(order.left(everyone), order.right(slice(0, 70)), torch.empty(40, 70)).double()
    error = (scores + order.distances(everyone, torch.arange(70).expand(40, 70))).abs().amax(dim=1)
    assert (error <= order.tolerance(everyone)).all()
    assert (order.tolerance(everyone) < 1e-3 * scores.abs().amax()).all()


def test_dropout_does_not_touch_a_search():
    x, space = torch.randn(60, 4), learned()
    expected = exact(x, k=5, space=space)
    space.network.train()
    found = exact(x, k=5, space=space)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_a_distance_of_ones_own_is_believed():
    class Reversed(LearnedSpace):
        def distance(self, x, y):
            return -super().distance(x, y)

    x, plain = torch.randn(30, 4), learned()
    assert isinstance(plain, Factorised)
    found = exact(x, x.clone(), 1, space=Reversed(plain.base, plain.network))[1][:, 0]
    assert torch.equal(found, plain.distance(x, x).argmax(dim=1))


def test_what_overflows_is_refused():
    space = learned()
    space.network.first.weight.data *= 1e20
    with pytest.raises(DataError, match="single"):
        exact(1e20 * torch.randn(5, 4), k=2, space=space)


def test_no_pairs_are_held(monkeypatch):
    """The largest tensor that a search makes on the way is a block, however many pairs there are."""
    monkeypatch.setattr("nearkin.search.scorers._LEAST_MB", 1)
    monkeypatch.setattr(sides_module, "_BLOCK_ENTRIES", {"cpu": 2**14})
    largest, empty, maximum = [0], torch.empty, torch.maximum

    def counted(*shape, **options):
        made = empty(*shape, **options)
        largest[0] = max(largest[0], made.numel())
        return made

    def counted_maximum(*arguments, **options):
        made = maximum(*arguments, **options)
        largest[0] = max(largest[0], made.numel())
        return made

    monkeypatch.setattr(torch, "empty", counted)
    monkeypatch.setattr(torch, "maximum", counted_maximum)
    exact(torch.randn(100, 4), torch.randn(20_000, 4), 5, space=learned(hidden=64), memory_mb=1)
    assert 0 < largest[0] <= 2**20  # one tile of scores; all pairs have 128 million hidden values


def test_metrics_by_a_learned_similarity():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    x = rng.normal(size=(12, 4))[labels].astype(np.float32) + rng.normal(size=(120, 4)).astype(np.float32)
    space = learned()
    near = naive(space, x, x, 9, np.arange(120))[0]
    hits = labels[np.array(near)] == labels[:, None]
    precision = hits.cumsum(axis=1) / np.arange(1, 10)
    values = retrieval_metrics(x, labels, space=space).values
    assert values["P@1"] == pytest.approx(hits[:, 0].mean())
    assert values["MAP@R"] == pytest.approx((precision * hits).sum(axis=1).mean() / 9)


@pytest.mark.parametrize("shape", [{"form": "difference"}, {"form": "difference", "depth": 2}, {"depth": 2}])
@pytest.mark.parametrize("by", ["sim", "cosine+sim", "raw-sum"])
def test_every_form_and_score_is_searched_in_its_true_order(shape, by):
    torch.manual_seed(0)
    space = LearnedSpace(Euclidean(), PairSimilarity(4, 24, **shape).eval(), by)
    x, y = torch.randn(30, 4), torch.randn(300, 4)
    distances, indices = exact(x, y, 20, space=space)
    table = space.distance(x.double(), y.double())
    assert torch.equal(indices, table.argsort(dim=1, stable=True)[:, :20])
    torch.testing.assert_close(distances, table.gather(1, indices).float(), rtol=1e-5, atol=1e-6)
