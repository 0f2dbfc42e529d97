"""Re-ranking against naive loops in float64, straight from the definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError, UnknownNameError
from nearkin.search import rerank
from nearkin.search.rerank import AverageQueryExpansion, KReciprocal, make_reranker, rerankers
from nearkin.search.scorers import Cosine, InnerProduct
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

SPACES = [Euclidean(), Sphere(), Sphere("angle"), LipschitzBall(), PoincareBall(0.7), Cosine()]


class TaxiCab:
    """A scorer of a user's own: tables of distances, no batches, no mean."""

    def distance(self, x, y):
        assert x.dim() == y.dim() == 2
        return torch.cdist(x, y, p=1)


def table(x, y, space):
    """Distances (n, m), equal where they differ by rounding only."""
    return space.distance(x.double(), y.double()).numpy().round(11)


def make_search(space, log=None):
    """An engine in plain Python; `log` collects its calls."""

    def search(queries, gallery, k, exclude):
        if log is not None:
            log.append((queries, gallery, k, exclude))
        rows = table(queries, gallery, space)
        banned = [-1] * len(rows) if exclude is None else exclude.tolist()
        order = [
            sorted((value, j) for j, value in enumerate(row) if j != out)[:k]
            for row, out in zip(rows, banned, strict=True)
        ]
        assert all(len(row) == k for row in order)
        distances = torch.tensor([[value for value, _ in row] for row in order], dtype=torch.float32)
        return distances.view(-1, k), torch.tensor([[j for _, j in row] for row in order], dtype=torch.long).view(-1, k)

    return search


def naive_reciprocal(points, query_nodes, gallery_size, k, k1, k2, weight, space, banned, hidden):
    """Zhong et al. 2017 with Python sets and dense vectors.

    `points` are gallery and further queries; `banned[i]` may not be found by query i; `hidden[p]` is no neighbour of p.
    """
    d = table(points, points, space)
    n = len(points)
    k1 = min(k1, n - 1 - any(h >= 0 for h in hidden))
    chains = []
    for p in range(n):
        others = sorted((d[p, j], j) for j in range(n) if j not in (p, hidden[p]))
        chains.append([p, *(j for _, j in others)])

    def mutual(p, size):
        return {j for j in chains[p][: size + 1] if p in chains[j][: size + 1]}

    codes = np.zeros((n, n))
    relative = np.array([(row / row.max()) ** 2 if row.max() > 0 else 0 * row for row in d])
    for p in range(n):
        base = mutual(p, k1)
        star = set(base)
        for j in base:
            small = mutual(j, round(k1 / 2))
            if len(small & base) > 2 / 3 * len(small) + 1e-9:
                star |= small
        for j in star:
            codes[p, j] = math.exp(-relative[p, j])
        codes[p] /= codes[p].sum()
    codes = np.array([codes[chains[p][: min(k2, k1 + 1)]].mean(axis=0) for p in range(n)])
    distances, indices = [], []
    for i, p in enumerate(query_nodes):
        ranked = []
        for g in range(gallery_size):
            if g != banned[i]:
                jaccard = 1 - np.minimum(codes[p], codes[g]).sum() / np.maximum(codes[p], codes[g]).sum()
                final = (1 - weight) * max(jaccard, 0) + weight * relative[p, g]
                ranked.append((np.float32(round(final, 12)), d[p, g], g))
        ranked.sort()
        distances.append([entry[0] for entry in ranked[:k]])
        indices.append([entry[2] for entry in ranked[:k]])
    return np.array(distances), np.array(indices)


def data(kind, n, d, seed):
    rng = np.random.default_rng(seed)
    if kind == "random":
        x = rng.normal(size=(n, d))
    elif kind == "clustered":
        x = rng.normal(size=(6, d))[rng.integers(0, 6, n)] + 0.3 * rng.normal(size=(n, d))
    else:
        x = rng.integers(-1, 2, (n, d)) + 0.0
    return torch.from_numpy(x).float()


def agree(got, expected, exact_order=True):
    np.testing.assert_allclose(got[0].numpy(), expected[0], atol=2e-6)
    if exact_order:
        assert got[1].tolist() == expected[1].tolist()


@pytest.mark.parametrize("space", [*SPACES, TaxiCab()], ids=lambda space: repr(space)[:20])
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_k_reciprocal_leave_one_out_matches_the_definition(space, kind):
    x = data(kind, 60, 5, 0)
    x = space.project(x / 3) if hasattr(space, "project") else x
    itself = torch.arange(60)
    got = KReciprocal(k1=9, k2=3).rank(make_search(space), x, x, 25, exclude=itself, space=space)
    expected = naive_reciprocal(x, range(60), 60, 25, 9, 3, 0.3, space, itself.tolist(), [-1] * 60)
    agree(got, expected)
    assert got[0].dtype == torch.float32
    assert got[1].dtype == torch.int64


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k1=st.integers(1, 30),
    k2=st.integers(1, 8),
    weight=st.sampled_from([0.0, 0.3, 0.75, 1.0]),
    kind=st.sampled_from(["random", "clustered", "tied"]),
    among=st.booleans(),
)
def test_k_reciprocal_matches_the_definition_for_any_parameters(seed, k1, k2, weight, kind, among):
    rng = np.random.default_rng(seed)
    k1 = max(k1, k2)
    n, q = int(rng.integers(3, 30)), int(rng.integers(1, 8))
    gallery = data(kind, n, 3, seed)
    queries = gallery if among else data(kind, q, 3, seed + 1)
    banned = torch.arange(n) if among else None
    k = int(rng.integers(1, n))
    space = Euclidean()
    got = KReciprocal(k1, k2, weight).rank(make_search(space), queries, gallery, k, exclude=banned, space=space)
    points, nodes = (gallery, range(n)) if among else (torch.cat([gallery, queries]), range(n, n + q))
    out = list(range(n)) if among else [-1] * q
    agree(got, naive_reciprocal(points, nodes, n, k, k1, k2, weight, space, out, [-1] * len(points)))


def test_k_reciprocal_counts_a_query_from_the_gallery_once():
    """A subset of the gallery as queries, with their own numbers excluded, is ranked as in leave-one-out."""
    x, space = data("clustered", 50, 4, 3), Euclidean()
    itself = torch.arange(50)
    whole = KReciprocal(k1=8, k2=3).rank(make_search(space), x, x, 10, exclude=itself, space=space)
    some = torch.tensor([3, 40, 17])
    part = KReciprocal(k1=8, k2=3).rank(make_search(space), x[some], x, 10, exclude=some, space=space)
    assert torch.equal(part[0], whole[0][some])
    assert torch.equal(part[1], whole[1][some])


def test_k_reciprocal_knows_a_query_in_a_gallery_of_halves():
    x, log = data("clustered", 40, 4, 1), []
    ranked = [
        KReciprocal(7, 3).rank(
            make_search(Euclidean(), log), queries, x.half(), 5, exclude=torch.arange(40), space=Euclidean()
        )
        for queries in (x, x.half().float())
    ]
    assert {len(call[1]) for call in log} == {40}
    torch.testing.assert_close(ranked[0][0], ranked[1][0], rtol=0, atol=2e-3)


def test_k_reciprocal_never_finds_nor_counts_an_excluded_item_that_differs():
    gallery, queries, space = data("clustered", 30, 4, 5), data("clustered", 4, 4, 6), Euclidean()
    banned = make_search(space)(queries, gallery, 1, None)[1][:, 0]
    banned[2] = -1
    got = KReciprocal(6, 2).rank(make_search(space), queries, gallery, 29, exclude=banned, space=space)
    hidden = [-1] * 30 + banned.tolist()
    points = torch.cat([gallery, queries])
    agree(got, naive_reciprocal(points, range(30, 34), 30, 29, 6, 2, 0.3, space, banned.tolist(), hidden))
    assert not (got[1] == banned.unsqueeze(1)).any()


def test_k_reciprocal_searches_once_among_themselves():
    x, log = data("clustered", 40, 4, 1), []
    KReciprocal(7, 3).rank(make_search(Euclidean(), log), x, x, 12, exclude=torch.arange(40), space=Euclidean())
    assert [(call[2], call[0] is x, call[1] is x) for call in log] == [(12, True, True)]


def test_k_reciprocal_does_not_depend_on_blocks(monkeypatch):
    gallery, queries, space = data("clustered", 60, 4, 1), data("clustered", 21, 4, 2), Sphere()
    whole = KReciprocal(9, 4).rank(make_search(space), queries, gallery, 20, exclude=None, space=space)
    monkeypatch.setattr(rerank, "_ROWS", 7)
    monkeypatch.setattr(rerank, "_PAIR_ENTRIES", 150)
    blocked = KReciprocal(9, 4).rank(make_search(space), queries, gallery, 20, exclude=None, space=space)
    assert torch.equal(whole[1], blocked[1])
    torch.testing.assert_close(whole[0], blocked[0], rtol=0, atol=1e-6)


def test_k_reciprocal_of_a_collapsed_model_keeps_the_original_order():
    x = torch.ones(12, 3)
    distances, indices = KReciprocal(4, 2).rank(
        make_search(Euclidean()), x, x, 11, exclude=torch.arange(12), space=Euclidean()
    )
    expected = naive_reciprocal(x, range(12), 12, 11, 4, 2, 0.3, Euclidean(), list(range(12)), [-1] * 12)
    assert distances.isfinite().all()
    agree((distances, indices), expected)


def test_k_reciprocal_mends_a_chain_that_distance_alone_gets_wrong():
    """Two lines of points cross; items of one line share neighbourhoods."""
    rng = np.random.default_rng(0)
    a = np.stack([np.linspace(-1, 1, 40), 0.02 * rng.normal(size=40)], axis=1)
    x = torch.from_numpy(np.concatenate([a, a[:, ::-1] + [0.6, 0.3]])).float()
    labels = torch.arange(2).repeat_interleave(40)
    itself, space = torch.arange(80), Euclidean()

    def precision(indices):
        return float((labels[indices] == labels.unsqueeze(1)).float().mean())

    plain = make_search(space)(x, x, 20, itself)[1]
    better = KReciprocal(12, 4, 0.1).rank(make_search(space), x, x, 20, exclude=itself, space=space)[1]
    assert precision(better) > precision(plain) + 0.02


def test_k_reciprocal_refuses_negative_distances():
    x = data("random", 20, 3, 0)
    with pytest.raises(DataError, match="negative"):
        KReciprocal(5, 2).rank(make_search(InnerProduct()), x, x, 3, exclude=torch.arange(20), space=InnerProduct())


def naive_expansion(queries, gallery, neighbours, alpha, space, exclude):
    """The new queries, one at a time."""
    near = make_search(space)(queries, gallery, neighbours, exclude)[1]
    on_sphere = isinstance(space, Sphere | Cosine)
    unit = [v / np.linalg.norm(v) for v in gallery.double().numpy()]
    new = []
    for query, found in zip(queries.double().numpy(), near.tolist(), strict=True):
        direction = query / np.linalg.norm(query)
        total, mass = (direction if on_sphere else query).copy(), 1.0
        for j in found:
            weight = 1.0 if alpha == 0 else max(float(direction @ unit[j]), 0.0) ** alpha
            total += weight * (unit[j] if on_sphere else gallery[j].double().numpy())
            mass += weight
        new.append(total / (np.linalg.norm(total) if on_sphere else mass))
    return torch.from_numpy(np.array(new)).float()


@pytest.mark.parametrize(
    "space", [Euclidean(), LipschitzBall(), Sphere(), Sphere("angle"), Cosine(), InnerProduct()], ids=repr
)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 3])
@pytest.mark.parametrize("among", [True, False], ids=["among-themselves", "gallery"])
def test_query_expansion_matches_one_at_a_time(space, alpha, among):
    gallery = data("clustered", 50, 6, 0)
    gallery = space.project(gallery) if hasattr(space, "project") else gallery
    queries = gallery if among else data("clustered", 9, 6, 1)
    exclude = torch.arange(50) if among else None
    got = AverageQueryExpansion(4, alpha).rank(make_search(space), queries, gallery, 8, exclude=exclude, space=space)
    expanded = naive_expansion(queries, gallery, 4, alpha, space, exclude)
    expected = make_search(space)(expanded, gallery, 8, exclude)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)
    assert got[1].tolist() == expected[1].tolist()
    if among:
        assert not (got[1] == exclude.unsqueeze(1)).any()


def test_query_expansion_takes_the_mean_of_a_curved_space():
    space = PoincareBall()
    x, log = space.project(data("clustered", 30, 4, 0)), []
    itself = torch.arange(30)
    AverageQueryExpansion(3).rank(make_search(space, log), x, x, 5, exclude=itself, space=space)
    near = make_search(space)(x, x, 3, itself)[1]
    expected = torch.stack([space.mean(torch.cat([x[i : i + 1], x[near[i]]])) for i in range(30)])
    torch.testing.assert_close(log[-1][0], expected)
    assert torch.equal(log[-1][3], itself)


def test_query_expansion_in_blocks_and_beyond_the_gallery(monkeypatch):
    gallery, queries = data("random", 6, 3, 0), data("random", 10, 3, 1)
    many = AverageQueryExpansion(100).rank(
        make_search(Euclidean()), queries, gallery, 6, exclude=None, space=Euclidean()
    )
    expected = make_search(Euclidean())((queries + gallery.sum(dim=0)) / 7, gallery, 6, None)
    assert torch.equal(many[1], expected[1])
    monkeypatch.setattr("nearkin.search.rerank._ENTRIES", 40)
    again = AverageQueryExpansion(100).rank(
        make_search(Euclidean()), queries, gallery, 6, exclude=None, space=Euclidean()
    )
    assert torch.equal(many[0], again[0])


def test_query_expansion_of_a_zero_query_stays_finite():
    gallery, queries = data("random", 6, 3, 0), torch.zeros(1, 3)
    got = AverageQueryExpansion(2, 3.0).rank(make_search(Sphere()), queries, gallery, 3, exclude=None, space=Sphere())
    assert got[0].isfinite().all()


@pytest.mark.parametrize(
    ("space", "alpha", "message"),
    [(PoincareBall(), 1.0, "alpha=0"), (TaxiCab(), 0.0, "TaxiCab")],
    ids=["curved", "no-mean"],
)
def test_query_expansion_says_where_it_cannot_work(space, alpha, message):
    x = data("random", 9, 3, 0) / 9
    with pytest.raises(DataError, match=message):
        AverageQueryExpansion(2, alpha).rank(make_search(space), x, x, 2, exclude=torch.arange(9), space=space)


@pytest.mark.parametrize("reranker", [AverageQueryExpansion(), KReciprocal()], ids=lambda reranker: reranker.name)
def test_no_queries_find_nothing(reranker):
    got = reranker.rank(make_search(Sphere()), torch.zeros(0, 3), torch.ones(5, 3), 2, exclude=None, space=Sphere())
    assert got[0].shape == got[1].shape == (0, 2)


def test_names_and_parameters():
    assert rerankers.names() == ["average-query-expansion", "k-reciprocal"]
    assert make_reranker("k-reciprocal", k1=30, weight=0) == KReciprocal(k1=30, weight=0)
    assert make_reranker("average-query-expansion") == AverageQueryExpansion()


@pytest.mark.parametrize(
    ("name", "parameters", "error", "message"),
    [
        ("k-reciprocl", {}, UnknownNameError, "k-reciprocal"),
        ("k-reciprocal", {"k3": 2}, DataError, "k3"),
        ("k-reciprocal", {"k1": 3, "k2": 4}, DataError, "k2=4"),
        ("k-reciprocal", {"k1": 0}, DataError, "k1"),
        ("k-reciprocal", {"k2": True}, DataError, "k2"),
        ("k-reciprocal", {"weight": 1.5}, DataError, "weight"),
        ("k-reciprocal", {"weight": math.nan}, DataError, "weight"),
        ("k-reciprocal", {"weight": "0.3"}, DataError, "weight"),
        ("average-query-expansion", {"neighbours": 0}, DataError, "neighbours"),
        ("average-query-expansion", {"neighbours": 2.5}, DataError, "neighbours"),
        ("average-query-expansion", {"alpha": -1}, DataError, "alpha"),
        ("average-query-expansion", {"alpha": math.inf}, DataError, "alpha"),
    ],
)
def test_bad_names_and_parameters(name, parameters, error, message):
    with pytest.raises(error, match=message):
        make_reranker(name, **parameters)
