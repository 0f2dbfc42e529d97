"""Retrieval metrics against naive loops, known traps and pytorch-metric-learning."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.metrics import RetrievalResult, retrieval_metrics
from nearkin.search import KReciprocal
from nearkin.spaces import Euclidean, PoincareBall, Sphere

RECALLS = (1, 2, 4, 8)


def plurality(near):
    """The class with the most votes; of equal ones that of the nearest neighbour."""
    return max(dict.fromkeys(near), key=near.count)


def naive(x, labels, gallery=None, gallery_labels=None, recall_at=RECALLS, knn=5):
    """Euclidean retrieval, one query, one neighbour at a time, in float64; rows of metrics of the kept queries."""
    alone = gallery is None
    gallery, gallery_labels = (x, labels) if alone else (gallery, gallery_labels)
    rows, kept = [], []
    for q in range(len(x)):
        others = [g for g in range(len(gallery)) if not (alone and g == q)]
        total = sum(gallery_labels[g] == labels[q] for g in others)
        if total == 0:
            continue
        ranked = sorted(
            others, key=lambda g: (sum((float(a) - float(b)) ** 2 for a, b in zip(x[q], gallery[g], strict=True)), g)
        )
        hits = [gallery_labels[g] == labels[q] for g in ranked]
        average = sum(sum(hits[:i]) / i * hits[i - 1] for i in range(1, total + 1)) / total
        voters = min(knn, len(hits))
        row = {
            "P@1": float(hits[0]),
            "R-precision": sum(hits[:total]) / total,
            "MAP@R": average,
            "MRR": 1 / (hits.index(True) + 1),
            "MAP@10": sum(sum(hits[:i]) / i * hits[i - 1] for i in range(1, min(10, len(hits)) + 1)) / min(10, total),
            "kNN-Acc": float(sum(hits[:knn]) >= voters // 2 + 1),
            "kNN-Acc (plurality)": float(plurality([gallery_labels[g] for g in ranked[:knn]]) == labels[q]),
        }
        row.update({f"Recall@{k}": float(any(hits[:k])) for k in recall_at})
        rows.append(row)
        kept.append(q)
    return rows, kept


def assert_same(result, rows, kept, queries):
    assert result.kept.tolist() == kept
    assert result.dropped == queries - len(kept)
    assert set(result.values) == set(rows[0]) == set(result.per_query)
    for name, value in result.values.items():
        expected = [row[name] for row in rows]
        np.testing.assert_allclose(result.per_query[name], expected, rtol=1e-6, err_msg=name)
        assert value == pytest.approx(np.mean(expected), rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 30),
    d=st.integers(1, 3),
    classes=st.integers(1, 6),
    whole=st.booleans(),
)
def test_leave_one_out_matches_naive_loops(seed, n, d, classes, whole):
    """Random points, and whole numbers full of ties and copies, down to a single class."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, 2, (n, d)).astype(np.float32) if whole else rng.normal(size=(n, d)).astype(np.float32)
    labels = rng.integers(0, classes, n)
    rows, kept = naive(x, labels)
    if kept:
        assert_same(retrieval_metrics(x, labels, space=Euclidean()), rows, kept, n)
    else:
        with pytest.raises(DataError, match="query"):
            retrieval_metrics(x, labels, space=Euclidean())


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), m=st.integers(1, 30), whole=st.booleans())
def test_gallery_matches_naive_loops(seed, n, m, whole):
    rng = np.random.default_rng(seed)

    def draw(rows):
        return (rng.integers(-1, 2, (rows, 2)) if whole else rng.normal(size=(rows, 2))).astype(np.float32)

    x, y = draw(n), draw(m)
    labels, gallery_labels = rng.integers(0, 4, n), rng.integers(0, 4, m)
    rows, kept = naive(x, labels, y, gallery_labels)
    if kept:
        result = retrieval_metrics(x, labels, gallery=y, gallery_labels=gallery_labels, space=Euclidean())
        assert_same(result, rows, kept, n)


@pytest.mark.parametrize("way", ["tiles", "strips", "mixed"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_every_way_of_searching_agrees_with_naive_loops(monkeypatch, way, whole, separate):
    monkeypatch.setattr("nearkin.search.brute_force._FEW", {"tiles": 10**6, "strips": 0, "mixed": 32}[way])
    for name, size in (("tiles.TILE", 64), ("tiles._SLACK", 4), ("tiles._HEIGHT", 7)):
        monkeypatch.setattr(f"nearkin.search.{name}", size)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), rng.integers(1, 30, 20))
    draw = rng.integers(-2, 3, (len(labels), 3)) if whole else rng.normal(size=(len(labels), 3))
    x = draw.astype(np.float32)
    if separate:
        y, y_labels = x[::2], labels[::2]
        rows, kept = naive(x[1::2], labels[1::2], y, y_labels)
        result = retrieval_metrics(x[1::2], labels[1::2], gallery=y, gallery_labels=y_labels, space=Euclidean())
        assert_same(result, rows, kept, len(x[1::2]))
    else:
        rows, kept = naive(x, labels)
        assert_same(retrieval_metrics(x, labels, space=Euclidean()), rows, kept, len(x))


NAMES = (
    "P@1",
    "R-precision",
    "MAP@R",
    "MRR",
    "MAP@5",
    "MAP@40",
    "Recall@3",
    "Recall@1000",
    "kNN-Acc",
    "P@4",
    "kNN-Acc (plurality)",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_asked_for_alone_is_the_one_among_all(name):
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(150, 4)), rng.integers(0, 9, 150)
    alone = retrieval_metrics(x, labels, metrics=[name])
    assert list(alone.values) == [name]
    np.testing.assert_array_equal(alone.per_query[name], retrieval_metrics(x, labels, metrics=NAMES).per_query[name])


def test_average_precision_at_k_divides_by_what_can_be_found():
    far = [0] * 45 + [1] * 4
    values = one_query([0, 1, 0, 0, 0, *far], map_at=(1, 2, 5, 8))  # five relevant items, one in reach
    assert values["MAP@5"] == pytest.approx(0.1)
    assert values["MAP@1"] == 0
    assert values["MAP@2"] == 0.25
    assert values["MAP@8"] == pytest.approx(0.1)
    assert one_query([1, 1, 0, 0], map_at=(4,))["MAP@4"] == 1  # two relevant, both first: perfect, not 2/4


def test_values_of_single_queries_can_be_left_out():
    result = retrieval_metrics(X, [0, 0, 1, 1], per_query=False)
    assert result.per_query == {}
    assert result.values == retrieval_metrics(X, [0, 0, 1, 1]).values


def test_an_excluded_item_is_neither_found_nor_counted():
    x, labels = np.random.default_rng(2).normal(size=(40, 3)), np.arange(40) % 5
    alone = retrieval_metrics(x, labels)
    excluded = retrieval_metrics(x, labels, gallery=x, gallery_labels=labels, exclude=np.arange(40))
    assert alone.values == excluded.values
    one = retrieval_metrics(x[:1], labels[:1], gallery=x, gallery_labels=labels, exclude=[1])  # of another class
    assert one.values["P@1"] == 1  # itself
    assert one.values["R-precision"] > 0


def test_a_query_is_measured_alike_whatever_else_is_asked():
    """One query leaves an item out and has three to find, the other has four."""
    gallery, labels = np.array([[1, 0], [1, 0.01], [1, 0.02], [0, 1.0]]), np.array([0, 0, 0, 1])
    options = {"gallery": gallery, "gallery_labels": labels, "knn": 4, "metrics": ["kNN-Acc", "P@4", "MAP@4"]}
    both = retrieval_metrics(gallery[:2], labels[:2], exclude=[0, -1], **options).per_query
    alone = retrieval_metrics(gallery[:1], labels[:1], exclude=[0], **options).per_query
    assert {name: values[0] for name, values in both.items()} == {name: values[0] for name, values in alone.items()}
    assert both["P@4"].tolist() == pytest.approx([2 / 3, 3 / 4])
    assert both["kNN-Acc"].tolist() == [1, 1]


def test_a_re_ranker_goes_by_its_name_too():
    x, labels = np.random.default_rng(4).normal(size=(40, 3)), np.arange(40) % 4
    by_name = retrieval_metrics(x, labels, rerank="k-reciprocal")
    assert by_name.values == retrieval_metrics(x, labels, rerank=KReciprocal()).values
    assert by_name.values != retrieval_metrics(x, labels).values


def test_rounding_cannot_turn_hits_and_others_around():
    """Neighbours that float32 cannot tell apart, far from the origin of a large set of points."""
    rng = np.random.default_rng(3)
    x = 1 + 1e-7 * rng.normal(size=(400, 64))
    labels = rng.integers(0, 8, 400)
    d = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    np.fill_diagonal(d, np.inf)
    hits = labels[np.argsort(d, axis=1, kind="stable")] == labels[:, None]
    result = retrieval_metrics(x, labels, space=Euclidean(), metrics=["P@10", "MRR"])
    np.testing.assert_allclose(result.per_query["P@10"], hits[:, :10].mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(result.per_query["MRR"], 1 / (hits.argmax(axis=1) + 1), rtol=1e-6)


def test_labels_beyond_two_to_the_24_stay_distinct():
    labels = 2**24 + np.arange(8)
    x = np.repeat(np.eye(4), 2, axis=0)  # each pair of copies has two labels that float32 would take for one
    with pytest.raises(DataError, match="query"):
        retrieval_metrics(x, labels)
    assert retrieval_metrics(np.tile(x, (2, 1)), np.tile(labels, 2), metrics=["P@1"]).values["P@1"] < 1


@pytest.mark.parametrize(("name", "rank"), [("euclidean", Euclidean()), ("sphere", Sphere())])
def test_a_space_goes_by_its_name_too(name, rank):
    x, labels = np.random.default_rng(4).normal(size=(30, 3)), np.arange(30) % 3
    assert retrieval_metrics(x, labels, space=name).values == retrieval_metrics(x, labels, space=rank).values


def on_a_line(hits, own=0, other=1):
    """A query at 0 whose neighbours, at 1, 2, ..., are hits or not."""
    x = np.arange(len(hits) + 1, dtype=np.float32)[:, None]
    return x[:1], [own], x[1:], [own if hit else other for hit in hits]


def one_query(hits, **options):
    x, labels, gallery, gallery_labels = on_a_line(hits)
    return retrieval_metrics(
        x, labels, gallery=gallery, gallery_labels=gallery_labels, space=Euclidean(), **options
    ).values


def test_precision_stands_inside_the_sum_of_map():
    values = one_query([1, 0, 1, 0, 0])  # R = 2: (1/1 * 1 + 1/2 * 0) / 2
    assert values["MAP@R"] == 0.5
    values = one_query([0, 1, 1, 0])  # R = 2: (0 + 1/2) / 2; with P@R in place of P@i it would be the same 0.25 ...
    assert values["MAP@R"] == 0.25
    values = one_query([1, 0, 1, 1, 0])  # ... but here R = 3: (1 + 0 + 2/3) / 3, not (2/3 + 2/3) / 3
    assert values["MAP@R"] == pytest.approx(5 / 9)
    assert values["R-precision"] == pytest.approx(2 / 3)


def test_a_single_hit_in_second_place():
    values = one_query([0, 1, 0, 0, 0])  # R = 1
    assert values["P@1"] == values["R-precision"] == values["MAP@R"] == values["kNN-Acc"] == 0
    assert values["MRR"] == 0.5
    assert [values[f"Recall@{k}"] for k in RECALLS] == [0, 1, 1, 1]


def test_reciprocal_rank_beyond_the_neighbours_looked_at():
    values = one_query([0] * 37 + [1] + [0] * 5)
    assert values["MRR"] == pytest.approx(1 / 38)
    assert values["Recall@8"] == 0


def test_a_late_first_hit_among_ties_counts_those_of_lower_index():
    gallery = np.zeros((40, 1), np.float32) + 3
    labels = ["other"] * 25 + ["own"] + ["other"] * 14
    result = retrieval_metrics([[0.0]], ["own"], gallery=gallery, gallery_labels=labels, space=Euclidean())
    assert result.values["MRR"] == pytest.approx(1 / 26)


@pytest.mark.parametrize(("hits", "right"), [([1, 1, 1, 0, 0], 1), ([1, 1, 0, 0, 0, 1], 0), ([0, 0, 1, 1, 1], 1)])
def test_knn_accuracy_needs_three_of_five(hits, right):
    assert one_query(hits)["kNN-Acc"] == right


@pytest.mark.parametrize(
    ("near", "right"),
    [
        ("abcde", 1),
        ("babac", 0),
        ("abbac", 1),
        ("bccaa", 0),
        ("aabbc", 1),
        ("bbaaa", 1),
        ("bbccd", 0),
        ("cc", 0),
        ("ab", 1),
    ],
)
def test_a_plurality_needs_more_than_any_other_class_or_the_nearest_of_equals(near, right):
    gallery = np.arange(1.0, len(near) + 3)[:, None]
    labels = [*near, "a", "a"]  # one to find, even where none of the five is
    found = retrieval_metrics(
        [[0.0]], ["a"], gallery=gallery[: len(labels)], gallery_labels=labels, knn=len(near), space=Euclidean()
    )
    assert found.values["kNN-Acc (plurality)"] == right


@pytest.mark.parametrize(("hits", "right"), [([1, 1, 0], 1), ([1, 0], 0), ([1], 1)])
def test_a_small_gallery_votes_with_all_it_has(hits, right):
    assert one_query(hits)["kNN-Acc"] == right


def test_exact_copies_of_the_query_count_but_the_query_does_not():
    x = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32)
    result = retrieval_metrics(x, ["a", "b", "a", "b"])
    # Query 0 sees 1 (b), 2 (a), 3 (b); query 1 sees 0 (a), 2 (a), 3 (b); query 2 sees 0 (a); query 3 sees 0, 1, 2.
    assert result.per_query["P@1"].tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(result.per_query["MRR"], [1 / 2, 1 / 3, 1, 1 / 2])


def test_queries_without_positives_are_dropped_and_counted():
    x = np.arange(5, dtype=np.float32)[:, None]
    result = retrieval_metrics(x, ["a", "b", "a", "c", "a"], space=Euclidean())
    assert result.kept.tolist() == [0, 2, 4]
    assert result.dropped == 2
    assert result.labels.tolist() == ["a", "a", "a"]


@pytest.mark.parametrize(
    "name",
    [
        lambda c: f"class {c}",
        lambda c: 2**24 + c,  # these collide in float32
        lambda c: 2**60 + c,  # and these in float64
        lambda c: (c, "pair"),
        lambda c: ["text", 7, 2.5, b"bytes"][c],
        lambda c: c == 1,
    ],
)
def test_labels_of_any_kind(name):
    rng = np.random.default_rng(0)
    x, codes = rng.normal(size=(60, 4)), rng.integers(0, 4, 60)
    if name(0) == name(2):
        codes = codes % 2
    expected = retrieval_metrics(x, codes).values
    labels = [name(c) for c in codes.tolist()]
    assert retrieval_metrics(x, labels).values == expected
    if len({type(label) for label in labels}) == 1 and isinstance(labels[0], (int, str)):
        assert retrieval_metrics(x, np.array(labels)).values == expected
        assert retrieval_metrics(x, np.array(labels, dtype=object)).values == expected
    if all(isinstance(label, int) for label in labels):
        assert retrieval_metrics(x, torch.tensor(labels)).values == expected


def test_gallery_labels_of_another_type_do_not_match_by_spelling():
    x = np.eye(3, dtype=np.float32)
    with pytest.raises(DataError, match="query"):
        retrieval_metrics(x, [1, 2, 3], gallery=x, gallery_labels=["1", "2", "3"])
    mixed = retrieval_metrics(
        x, np.array([1, 2, 3], np.int64), gallery=x, gallery_labels=np.array([1, 2, 3], np.uint64)
    )
    assert mixed.values["P@1"] == 1


@pytest.mark.parametrize("space", [Sphere(), Sphere("angle"), PoincareBall(), PoincareBall(5.0)], ids=repr)
def test_neighbours_are_those_of_the_space(space):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 6
    x = space.project(torch.randn(60, 4, generator=generator, dtype=torch.float64))
    order = space.distance(x, x).fill_diagonal_(torch.inf).argsort(dim=1)
    hits = labels[order[:, :9]] == labels[:, None]
    expected = (hits.cumsum(dim=1) / torch.arange(1, 10) * hits).sum(dim=1) / 9
    result = retrieval_metrics(x.float(), labels, space=space)
    np.testing.assert_allclose(result.per_query["MAP@R"], expected, rtol=1e-5)


def test_sphere_ignores_length():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(50, 5)), rng.integers(0, 5, 50)
    lengths = rng.uniform(0.1, 10, (50, 1))
    assert retrieval_metrics(x * lengths, labels).values == retrieval_metrics(x, labels).values


def test_perfect_and_hopeless_embeddings():
    labels = np.repeat(np.arange(5), 6)
    perfect = retrieval_metrics(np.eye(5)[labels], labels)
    assert set(perfect.values.values()) == {1.0}
    two = np.array([[0.0, 1], [1, 0], [0, 1.01], [1.01, 0]])
    hopeless = retrieval_metrics(two, [0, 0, 1, 1], space=Euclidean())
    assert hopeless.values["MAP@R"] == hopeless.values["P@1"] == 0


def test_options_name_the_metrics():
    rng = np.random.default_rng(0)
    result = retrieval_metrics(rng.normal(size=(9, 2)), [0] * 9, recall_at=(1, 100), knn=3)
    assert list(result.values) == [
        "P@1",
        "R-precision",
        "MAP@R",
        "MRR",
        "MAP@10",
        "Recall@1",
        "Recall@100",
        "kNN-Acc",
        "kNN-Acc (plurality)",
    ]
    assert retrieval_metrics(rng.normal(size=(9, 2)), [0] * 9, recall_at=()).values["kNN-Acc"] == 1
    assert all(values.dtype == np.float32 for values in result.per_query.values())
    assert all(type(value) is float for value in result.values.values())


X = np.random.default_rng(0).normal(size=(4, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embeddings": X, "labels": [0, 0, 1]}, "labels"),
        ({"embeddings": X, "labels": [[0], [0], [1], [1]]}, "hashable"),
        ({"embeddings": X, "labels": np.zeros((4, 1))}, "one-dim"),
        ({"embeddings": X, "labels": [0, None, 0, 1]}, "row 1"),
        ({"embeddings": X, "labels": [0.0, 0.0, np.nan, 1.0]}, "row 2"),
        ({"embeddings": X * np.nan, "labels": [0, 0, 1, 1]}, "NaN"),
        ({"embeddings": X[0], "labels": [0, 0]}, "shape"),
        ({"embeddings": X, "labels": [0, 1, 2, 3]}, "two"),
        ({"embeddings": X[:0], "labels": []}, "query"),
        ({"embeddings": X[:1], "labels": ["a"]}, "query"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "gallery": X}, "gallery"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "gallery_labels": [0]}, "gallery"),
        ({"embeddings": X, "labels": [0] * 4, "gallery": X[:, :1], "gallery_labels": [0] * 4}, "dimensions"),
        ({"embeddings": X, "labels": [0] * 4, "gallery": X[:3], "gallery_labels": [0] * 4}, "gallery"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "knn": 0}, "0"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "recall_at": (0, 1)}, "0"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "metrics": ["MAP@r"]}, "MAP@R"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "metrics": ["Recall@0"]}, "Recall@0"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "metrics": []}, "one"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "space": "spere"}, "sphere"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "metrics": 5}, "'5'"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "recall_at": None}, "None"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "rerank": KReciprocal}, "re-?rank"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "memory_mb": "1GB"}, "1GB"),
        ({"embeddings": X, "labels": None}, "list"),
        ({"embeddings": X, "labels": 5}, "list"),
        ({"embeddings": [[1.0, 2.0], [1.0]], "labels": [0, 0]}, "rows"),
        ({"embeddings": torch.zeros(4, 2, dtype=torch.complex64), "labels": [0, 0, 1, 1]}, "numbers"),
        ({"embeddings": np.ma.masked_array(X, X > 0), "labels": [0, 0, 1, 1]}, "masked"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "exclude": [0, 1, 2, 3]}, "gallery"),
        ({"embeddings": X, "labels": [0, 0, 1, 1], "memory_mb": 0}, "64"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(DataError, match=message):
        retrieval_metrics(**arguments)


@pytest.mark.parametrize("separate", [False, True])
def test_agrees_with_pytorch_metric_learning(separate):
    accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")

    def knn(query, k, reference, ref_includes_query):
        d = torch.cdist(query.double(), reference.double())
        if ref_includes_query:
            d.fill_diagonal_(torch.inf)
        near = d.topk(k - ref_includes_query, largest=False)
        return near.values, near.indices

    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(120, 8, generator=generator))
    labels = torch.randint(0, 9, (120,), generator=generator)
    calculator = accuracy.AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_reciprocal_rank"),
        k=119 if not separate else 80,
        knn_func=knn,
        device=torch.device("cpu"),
    )
    if separate:
        theirs = calculator.get_accuracy(x[:40], labels[:40], x[40:], labels[40:])
        ours = retrieval_metrics(x[:40], labels[:40], gallery=x[40:], gallery_labels=labels[40:]).values
    else:
        theirs = calculator.get_accuracy(x, labels)
        ours = retrieval_metrics(x, labels).values
    names = {
        "P@1": "precision_at_1",
        "R-precision": "r_precision",
        "MAP@R": "mean_average_precision_at_r",
        "MRR": "mean_reciprocal_rank",
    }
    for name, their_name in names.items():
        assert ours[name] == pytest.approx(theirs[their_name], rel=1e-6), name


@pytest.fixture
def result():
    rng = np.random.default_rng(0)
    labels = np.array(["robin", "wren", "owl", "jay"], dtype=object)[np.arange(25) % 4]
    labels[-1] = "heron"
    return retrieval_metrics(rng.normal(size=(25, 3)), labels)


def test_per_class_means(result):
    for metric in result.values:
        by_class = result.per_class(metric)
        assert set(by_class) == {"robin", "wren", "owl", "jay"}
        for name, value in by_class.items():
            assert value == pytest.approx(result.per_query[metric][result.labels == name].mean(), rel=1e-6)
        sizes = {name: (result.labels == name).sum() for name in by_class}
        weighted = sum(by_class[name] * sizes[name] for name in by_class) / sum(sizes.values())
        assert weighted == pytest.approx(result.values[metric], rel=1e-6)


def test_unknown_metric_suggests_the_nearest(result):
    with pytest.raises(DataError, match="MAP@R"):
        result.per_class("MAP@r")


@pytest.mark.parametrize("labels", [["a", "a", "b", "b"], [2**60, 2**60, 1, 1], np.array([1, 1, 2, 2])])
def test_json_round_trip(labels):
    result = retrieval_metrics(np.random.default_rng(0).normal(size=(4, 3)), labels)
    again = RetrievalResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.values == result.values
    assert again.dropped == result.dropped
    assert again.kept.tolist() == result.kept.tolist()
    assert again.labels.tolist() == result.labels.tolist()
    assert again.per_class("MRR") == result.per_class("MRR")
    for name, values in result.per_query.items():
        np.testing.assert_array_equal(again.per_query[name], values)


def test_short_form_keeps_means_and_counts(result):
    plain = json.loads(json.dumps(result.to_dict(per_query=False)))
    assert plain == {"values": result.values, "dropped": 1, "queries": 24}
    again = RetrievalResult.from_dict(plain)
    assert again.values == result.values
    with pytest.raises(DataError, match="queries"):
        again.per_class("MAP@R")


def test_primary_metric(result):
    assert RetrievalResult.primary in result.values
    assert RetrievalResult.higher_is_better


def test_labels_that_are_spelt_alike_stay_two_classes():
    from nearkin.metrics import retrieval_metrics

    x = np.random.default_rng(0).normal(size=(8, 2))
    assert set(retrieval_metrics(x, [1, "1"] * 4).per_class("P@1")) == {"1", "'1'"}
