"""Approximate search: true distances and full lists always, recall above bars, errors that say what to do."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError, MissingExtraError
from nearkin.search import ann as factory_strings
from nearkin.search.ann import FaissIndex, faiss
from nearkin.search.rerank import AverageQueryExpansion, KReciprocal
from nearkin.search.scorers import Cosine, InnerProduct
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

kit = pytest.importorskip("faiss")

SEARCHABLE = [Euclidean(), Sphere(), Sphere("angle"), LipschitzBall(), Cosine(), InnerProduct()]


def true_distances(x, y, space):
    """Plain numpy, in float64."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if isinstance(space, InnerProduct):
        return -(x @ y.T)
    if isinstance(space, Cosine | Sphere):
        x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    if isinstance(space, Cosine):
        return 1 - x @ y.T
    chord = np.linalg.norm(x[:, None] - y[None], axis=2)
    return 2 * np.arcsin(np.minimum(chord / 2, 1)) if space == Sphere("angle") else chord


def naive(x, y, k, space, exclude=None):
    d = true_distances(x, y, space).round(11)  # what differs by rounding only is equal
    if exclude is not None:
        rows = np.nonzero(np.asarray(exclude) >= 0)[0]
        d[rows, np.asarray(exclude)[rows]] = np.inf
    order = np.argsort(d, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(d, order, axis=1).astype(np.float32), order


def recall(indices, expected):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(indices.tolist(), expected.tolist(), strict=True)])


@pytest.fixture(scope="module")
def clustered():
    """A gallery (10500, 32) of 40 loose clusters, and 200 queries of them."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(40, 32))
    x = (centers[rng.integers(0, 40, 10700)] + 0.6 * rng.normal(size=(10700, 32))).astype(np.float32)
    return x[:10500], x[10500:]


@pytest.fixture(scope="module")
def truth(clustered):
    """Distances (Q, N) of the queries to the first N of the gallery in a space; computed once."""
    return cache(lambda items, space: true_distances(clustered[1], clustered[0][:items], space))


@pytest.fixture
def small():
    rng = np.random.default_rng(1)
    return rng.normal(size=(300, 8)).astype(np.float32), rng.normal(size=(40, 8)).astype(np.float32)


@pytest.mark.parametrize("space", SEARCHABLE, ids=repr)
@pytest.mark.parametrize("k", [1, 10, 299])
def test_flat_is_the_naive_search(small, space, k):
    gallery, queries = small
    distances, indices = faiss(queries, gallery, k, factory="Flat", space=space)
    expected = naive(queries, gallery, k, space)
    assert indices.tolist() == expected[1].tolist()
    np.testing.assert_allclose(distances, expected[0], atol=3e-6)  # the sphere's projection is off by up to 1e-6
    assert distances.dtype == torch.float32
    assert indices.dtype == torch.int64


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 150), d=st.integers(1, 3), offset=st.sampled_from([0, 1000]))
def test_flat_breaks_ties_of_whole_numbers_by_index_also_at_the_last_place(seed, n, d, offset):
    rng = np.random.default_rng(seed)
    x = (rng.integers(-1, 2, (n, d)) + offset).astype(np.float32)
    k = int(rng.integers(1, n))
    distances, indices = faiss(x, k=k, factory="Flat", space=Euclidean())
    expected = naive(x, x, k, Euclidean(), np.arange(n))
    assert indices.tolist() == expected[1].tolist()
    np.testing.assert_array_equal(distances, expected[0])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [10, 30])
def test_flat_sees_through_rounding(seed, count):
    """Permutations of one vector are all equally far from a constant one; float32 puts them in any order."""
    rng = np.random.default_rng(seed)
    gallery = rng.permuted(np.tile(rng.normal(size=24), (400, 1)), axis=1)
    distances, indices = faiss(np.full((count, 24), 0.3), gallery, 5, factory="Flat", space=Euclidean())
    assert indices.tolist() == [[0, 1, 2, 3, 4]] * count
    np.testing.assert_allclose(distances, np.linalg.norm(gallery[0] - 0.3), rtol=1e-6)


@pytest.mark.parametrize("size", [1e-18, 1e-3, 1e18])
def test_flat_at_any_magnitude_and_far_from_the_origin(small, size):
    gallery, queries = small
    expected = naive(queries, gallery, 5, Euclidean())[1].tolist()
    assert faiss(size * queries, size * gallery, 5, factory="Flat", space=Euclidean())[1].tolist() == expected
    far, near = 100 + 0.01 * gallery.astype(np.float64), 100 + 0.01 * queries.astype(np.float64)
    assert faiss(near, far, 5, factory="Flat", space=Euclidean())[1].tolist() == expected


@pytest.mark.parametrize(
    ("factory", "items", "bar"),
    [
        ("HNSW32", 4000, 0.99),
        ("IVF64,Flat", 4000, 0.99),
        ("IVF64,PQ16x4", 4000, 0.98),
        ("IVF64,PQ8x4fs", 4000, 0.75),
        ("SQ8", 4000, 0.99),
        ("IVF64,SQ8", 4000, 0.99),
        ("PCA24,IVF64,Flat", 4000, 0.97),
        ("IVF64_HNSW16,Flat", 4000, 0.98),
        ("IVF64,PQ8x4,RFlat", 4000, 0.9),
        ("HNSW16_PQ8x4", 4000, 0.8),
        ("PQ8", 10500, 0.92),  # 256 centroids need 9984 items
        pytest.param("OPQ2,IVF64,PQ2", 10500, 0.5, marks=pytest.mark.slow),
    ],
)
def test_recall_and_true_distances(clustered, truth, factory, items, bar):
    gallery, queries = clustered[0][:items], clustered[1]
    distances, indices = faiss(queries, gallery, 10, factory=factory, space=Euclidean())
    every = truth(items, Euclidean())
    assert recall(indices, np.argsort(every, axis=1)[:, :10]) >= bar
    exact_ones = np.take_along_axis(every, indices.numpy(), axis=1)
    np.testing.assert_allclose(distances, exact_ones, rtol=1e-6)
    assert (distances.diff(dim=1) >= 0).all()
    assert (indices.sort(dim=1).values.diff(dim=1) > 0).all()


@pytest.mark.parametrize("space", SEARCHABLE, ids=repr)
def test_recall_in_every_space_it_knows(clustered, space):
    gallery, queries = clustered
    for factory, bar in (("HNSW32", 0.99), ("IVF64,Flat", 0.98)):
        found = faiss(queries, gallery[:4000], 10, factory=factory, space=space)
        expected = naive(queries, gallery[:4000], 10, space)
        assert recall(found[1], expected[1]) >= bar, factory
        assert (found[0].numpy() >= expected[0] - 1e-5).all()


def test_more_probes_find_more():
    rng = np.random.default_rng(0)
    gallery, queries = (rng.normal(size=(n, 16)).astype(np.float32) for n in (4000, 100))
    expected = naive(queries, gallery, 10, Euclidean())[1]
    found = [
        FaissIndex("IVF64,Flat", Euclidean(), search_parameters={"nprobe": n}).fit(gallery).search(queries)[1]
        for n in (1, 4, 64)
    ]
    few, more, whole = (recall(indices, expected) for indices in found)
    assert few < more < whole == 1


def test_search_parameters_reach_the_index(clustered):
    gallery, queries = clustered
    index = FaissIndex("PCA16,IVF32,Flat", Euclidean(), search_parameters={"nprobe": 5}).fit(gallery[:2000])
    index.search(queries, 3)
    assert kit.extract_index_ivf(index.index_).nprobe == 5
    index = FaissIndex("HNSW16", Euclidean(), search_parameters={"efSearch": 77}).fit(gallery[:500])
    index.search(queries, 3)
    assert index.index_.hnsw.efSearch == 77
    index = FaissIndex("IVF32,Flat", Euclidean()).fit(gallery[:2000])
    index.search(queries, 3)
    assert index.index_.nprobe == 8  # not faiss's 1


@pytest.mark.parametrize("exact_distances", [True, False], ids=["gallery-kept", "gallery-dropped"])
@pytest.mark.parametrize(
    ("factory", "parameters"),
    [("IVF16,Flat", {"nprobe": 1}), ("HNSW4", {"efSearch": 1}), ("IVF16_HNSW4,Flat", {"nprobe": 1})],
)
def test_lists_are_full_where_faiss_gives_up(factory, parameters, exact_distances):
    """Sixty copies at each of twenty places: cells hold too few items, and the graph falls apart."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(20, 6)).astype(np.float32)
    gallery = places[np.arange(1200) % 20]
    raw = kit.index_factory(6, factory)
    raw.train(gallery)
    raw.add(gallery)
    assert (raw.search(places, 300)[1] == -1).any()  # the premise
    index = FaissIndex(factory, Euclidean(), search_parameters=parameters, exact_distances=exact_distances).fit(gallery)
    distances, indices = index.search(places, 300)
    assert (indices >= 0).all()
    assert (indices.sort(dim=1).values.diff(dim=1) > 0).all()
    every = true_distances(places, gallery, Euclidean())
    np.testing.assert_allclose(distances, np.take_along_axis(every, indices.numpy(), axis=1), atol=1e-5)
    assert (distances[:, :60] < 1e-5).all()  # the nearest place is never missed
    whole = FaissIndex(factory, Euclidean(), search_parameters=parameters, exact_distances=exact_distances)
    assert set(whole.fit(gallery).search(places[:1], 1200)[1][0].tolist()) == set(range(1200))


def test_short_lists_are_searched_wider_before_in_full(monkeypatch, clustered):
    def refuse(*_):
        raise AssertionError("compared in full")

    monkeypatch.setattr(FaissIndex, "_exhaustive", refuse)
    index = FaissIndex("IVF64,Flat", Euclidean(), search_parameters={"nprobe": 1}).fit(clustered[0])
    assert (index.search(clustered[1], 1000)[1] >= 0).all()
    assert index.index_.nprobe > 1


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF8,Flat"])
def test_leave_one_out_goes_by_identity(factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5)).astype(np.float32).repeat(2, axis=0)  # every item has a copy next to it
    distances, indices = faiss(x, k=3, factory=factory, space=Euclidean())
    assert indices[:, 0].tolist() == [i ^ 1 for i in range(400)]
    assert (distances[:, 0] == 0).all()
    again = faiss(x, x, k=3, factory=factory, space=Euclidean(), exclude=np.arange(400))
    assert torch.equal(indices, again[1])
    assert (faiss(x, x, k=2, factory=factory, space=Euclidean())[1] == torch.arange(400).unsqueeze(1)).any(dim=1).all()


def test_exclude_for_some_queries(small):
    gallery, queries = small
    exclude = naive(queries, gallery, 1, Sphere())[1][:, 0].copy()
    exclude[::3] = -1
    distances, indices = faiss(queries, gallery, 7, factory="Flat", exclude=exclude)
    expected = naive(queries, gallery, 7, Sphere(), exclude)
    assert indices.tolist() == expected[1].tolist()
    np.testing.assert_allclose(distances, expected[0], atol=3e-6)


@pytest.mark.parametrize("factory", ["HNSW32", "IVF32,Flat", "IVF16,PQ4x4", "PCA8,HNSW16"])
def test_the_seed_decides(clustered, factory):
    gallery, queries = clustered
    built = [FaissIndex(factory, seed=seed).fit(gallery[:1500]) for seed in (7, 7, 8)]
    same, again, other = (kit.serialize_index(index.index_).tobytes() for index in built)
    assert same == again
    assert same != other
    assert torch.equal(built[0].search(queries, 5)[1], built[1].search(queries, 5)[1])


def test_the_graph_does_not_depend_on_threads(clustered):
    threads = kit.omp_get_max_threads()
    graphs = []
    try:
        for count in (1, 3):
            kit.omp_set_num_threads(count)
            graphs.append(kit.serialize_index(FaissIndex("HNSW16").fit(clustered[0][:1500]).index_).tobytes())
            assert kit.omp_get_max_threads() == count
    finally:
        kit.omp_set_num_threads(threads)
    assert graphs[0] == graphs[1]


def test_versions_that_race_build_on_one_thread_and_restore(monkeypatch, clustered):
    threads = kit.omp_get_max_threads()
    set_to = []
    set_threads = kit.omp_set_num_threads
    monkeypatch.setattr(kit, "__version__", "1.9.0")
    monkeypatch.setattr(kit, "omp_set_num_threads", lambda count: (set_to.append(count), set_threads(count)))
    try:
        set_threads(3)
        FaissIndex("HNSW16").fit(clustered[0][:200])
        assert set_to == [1, 3]
        assert kit.omp_get_max_threads() == 3
    finally:
        set_threads(threads)


def test_training_uses_a_bounded_shuffled_sample(monkeypatch):
    """The first half is one cluster: an ordered sample would not see the rest."""
    rng = np.random.default_rng(0)
    gallery = np.concatenate([rng.normal(size=(3000, 4)), 50 + rng.normal(size=(3000, 4))]).astype(np.float32)
    seen = []
    train = kit.IndexIVFFlat.train
    monkeypatch.setattr(kit.IndexIVFFlat, "train", lambda self, x: (seen.append(x), train(self, x)))
    FaissIndex("IVF8,Flat", Euclidean()).fit(gallery)
    (sample,) = seen
    assert len(sample) == 8 * 256
    assert 0.45 < (sample[:, 0] > sample[:, 0].mean()).mean() < 0.55


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "tensor", "bfloat16"])
def test_kinds_of_input(dtype):
    array = np.random.default_rng(0).integers(-8, 9, (60, 5)).astype(np.float32)
    tensor = torch.from_numpy(array)
    given_as = {"tensor": tensor, "bfloat16": tensor.bfloat16()}.get(dtype)
    given_as = array.astype(dtype) if given_as is None else given_as
    expected = faiss(array, k=4, factory="Flat", space=Euclidean())
    got = faiss(given_as, k=4, factory="Flat", space=Euclidean())
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("space", SEARCHABLE, ids=repr)
def test_without_the_gallery_distances_are_those_of_the_index(small, space):
    gallery, queries = small
    index = FaissIndex("Flat", space, exact_distances=False).fit(gallery)
    assert index.gallery_ is None
    distances, indices = index.search(queries, 6)
    expected = naive(queries, gallery, 6, space)
    np.testing.assert_allclose(distances, expected[0], atol=2e-3)
    assert recall(indices, expected[1]) > 0.99


def test_an_index_is_searched_many_times(small):
    gallery, queries = small
    index = FaissIndex("HNSW16", "euclidean").fit(gallery)
    whole = index.search(queries, 5)
    for start in range(0, 40, 8):
        part = index.search(queries[start : start + 8], 5)
        assert torch.equal(part[1], whole[1][start : start + 8])


@pytest.mark.parametrize("reranker", [AverageQueryExpansion(3), KReciprocal(8, 3)], ids=lambda reranker: reranker.name)
def test_reranking_with_flat_is_reranking_with_a_naive_search(small, reranker):
    gallery, _ = small

    def search(x, y, k, exclude):
        distances, indices = naive(x, y, k, Euclidean(), None if exclude is None else exclude.numpy())
        return torch.from_numpy(distances), torch.from_numpy(indices)

    x = torch.from_numpy(gallery)
    expected = reranker.rank(search, x, x, 9, exclude=torch.arange(300), space=Euclidean())
    got = faiss(gallery, k=9, factory="Flat", space=Euclidean(), rerank=reranker)
    assert torch.equal(got[1], expected[1])
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-6)


def test_halves_stay_halves(small):
    gallery = torch.from_numpy(small[0]).half()
    index = FaissIndex("Flat", Euclidean()).fit(gallery)
    assert index.gallery_.dtype == torch.float16
    distances, indices = index.search(small[1], 6)
    expected = naive(small[1], gallery, 6, Euclidean())
    assert indices.tolist() == expected[1].tolist()
    np.testing.assert_allclose(distances, expected[0], rtol=1e-6)


def test_the_examples_of_the_guide_run():
    page = Path(__file__).parents[2] / "docs" / "guide" / "search.md"
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert len(blocks) == 11
    assert names["recall"] > 0.9
    assert names["indices"].shape == (3000, 10)


def test_no_queries_find_nothing(small):
    distances, indices = faiss(np.zeros((0, 8)), small[0], k=3)
    assert distances.shape == indices.shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 300}, "299"),
        ({"k": 0}, "`k`"),
        ({"gallery": np.ones((4, 8)), "k": 5}, r"\b4\b"),
        ({"gallery": np.ones((4, 3))}, "dimensions"),
        ({"gallery": np.full((4, 8), np.nan), "k": 1}, "gallery"),
        ({"space": PoincareBall()}, "poincare-ball"),
        ({"space": "spere"}, "sphere"),
        ({"space": type("Own", (), {"distance": lambda self, x, y: torch.cdist(x, y)})()}, "Own"),
        ({"factory": "IVF64,Flat"}, "IVF4,Flat"),
        ({"factory": "PQ4"}, "SQ8"),
        ({"factory": "nonsense"}, "nonsense"),
        ({"factory": "PQ3x1"}, "PQ3x1"),
        ({"search_parameters": {"nprobe": 4}}, "nprobe"),
        ({"search_parameters": {"efsearch": 4}}, "efSearch"),
        ({"search_parameters": {"efSearch": 0}}, "efSearch"),
        ({"exclude": np.arange(300)}, "gallery"),
        ({"gallery": np.ones((4, 8)), "k": 1, "exclude": [0]}, "300"),
        ({"gallery": np.ones((4, 8)), "k": 1, "exclude": np.full(300, 4)}, r"\b4\b"),
        ({"gallery": np.ones((4, 8)), "k": 1, "exclude": np.zeros(300)}, "300"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_bad_input(small, arguments, message):
    with pytest.raises(DataError, match=message):
        faiss(small[0], **arguments)


def test_an_index_says_what_is_missing(small):
    with pytest.raises(DataError, match="fit"):
        FaissIndex().search(small[1])
    with pytest.raises(DataError, match="empty"):
        FaissIndex().fit(np.zeros((0, 4)))
    with pytest.raises(DataError, match="dimensions"):
        FaissIndex().fit(small[0]).search(np.ones((2, 7)))


@pytest.mark.parametrize("size", [3, 100, 200, 2000, 9000])
@pytest.mark.parametrize(
    "factory",
    [
        "IVF64,Flat",
        "IVF1k,PQ4",
        "OPQ4,IVF256,PQ4",
        "PQ4",
        "PCA2,PQ2",
        "IVF256_HNSW8,SQ8",
        "HNSW8_PQ4",
        "IVF512,PQ4,RFlat",
    ],
)
def test_a_proposed_string_can_be_built_on_what_there_is(factory, size):
    proposed = factory_strings.smaller(factory, size)
    factory_strings.check_size(proposed, size)
    if size < 3000:
        points = np.random.default_rng(0).normal(size=(size, 8)).astype(np.float32)
        FaissIndex(proposed, Euclidean()).fit(points)


@pytest.mark.parametrize(
    ("factory", "largest"),
    [
        ("Flat", 0),
        ("HNSW32", 0),
        ("SQ8", 0),
        ("PCA64,Flat", 0),
        ("IVF100,Flat", 100),
        ("IVF64k_HNSW32,PQ16", 65536),
        ("PQ16", 256),
        ("PQ16x4fs", 16),
        ("IVF8,PQ16x10", 1024),
        ("OPQ16_64,IVF8,PQ16x4", 256),
    ],
)
def test_centroids_of_a_string(factory, largest):
    assert factory_strings.centroids(factory) == largest


def test_the_extra_is_named_when_faiss_is_missing(monkeypatch, small):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[faiss\]"):
        faiss(small[0], k=2)


def test_beside_torch_in_a_fresh_process():
    """Two OpenMP runtimes in one process: products of both, in turns, with neither hanging nor changing the other."""
    code = """
import torch, numpy as np
x = np.random.default_rng(0).normal(size=(2000, 32)).astype(np.float32)
torch.set_num_threads(2)
import nearkin.search.ann, sys
assert "faiss" not in sys.modules
for _ in range(3):
    product = torch.from_numpy(x) @ torch.from_numpy(x).T
    nearkin.search.ann.faiss(x, k=3)
    assert torch.get_num_threads() == 2
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
    assert done.stderr == ""
