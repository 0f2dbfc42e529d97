"""NED against plain loops in float64, its limits, its symmetries, and its gradient."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.autograd import gradcheck

from nearkin.confidence import NED, BandwidthComparison, KNNVote, NearestNeighbour, estimator, ned
from nearkin.confidence.ned import _Terms, compare_bandwidths, fit_bandwidths
from nearkin.confidence.temperature import fit_temperature
from nearkin.errors import DataError
from nearkin.search import exact
from nearkin.spaces import Euclidean, PoincareBall, Sphere

published = partial(NED, criterion="likelihood", widening=0.0)  # as its paper has it
SPACES = [Sphere(), Sphere(metric="angle"), Euclidean(), PoincareBall(), "cosine", "inner-product"]


def clouds(seed=0, n=60, classes=4, dimensions=5, separation=1.5, queries=9):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = separation * rng.normal(size=(classes, dimensions))
    support = centres[labels] + rng.normal(size=(n, dimensions))
    asked = centres[rng.integers(classes, size=queries)] + rng.normal(size=(queries, dimensions))
    return (0.1 * support).astype(np.float32), labels, (0.1 * asked).astype(np.float32)


def energy(x, y, space):
    """What goes into the exponential, of two vectors in float64, by the definition of each space."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    cosine = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
    if space == "cosine":
        return 1 - cosine
    if space == "inner-product":
        return -(x @ y)
    if space == Sphere():
        return 2 - 2 * cosine
    if space == Sphere(metric="angle"):
        return math.acos(np.clip(cosine, -1, 1)) ** 2
    if space == Euclidean():
        return ((x - y) ** 2).sum()
    rooms = (1 - x @ x) * (1 - y @ y)
    return math.acosh(1 + 2 * ((x - y) ** 2).sum() / rooms) ** 2


def naive(support, labels, queries, k, temperature, space):
    """Probabilities (q, C) by loops; `temperature` is a number, or one number a class."""
    classes = sorted(set(labels.tolist()))
    table = np.zeros((len(queries), len(classes)))
    d = support.shape[1]
    for row, query in enumerate(queries):
        energies = [energy(query, point, space) for point in support]
        near = sorted(range(len(support)), key=lambda i: energies[i])[:k]
        exponents = []
        for i in near:
            t = temperature if np.isscalar(temperature) else temperature[classes.index(labels[i])]
            extra = 0 if np.isscalar(temperature) else d / 2 * math.log(t)
            exponents.append(-energies[i] / t - extra)
        for i, exponent in zip(near, exponents, strict=True):
            table[row, classes.index(labels[i])] += math.exp(exponent - max(exponents))
        table[row] /= table[row].sum()
    return table


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("k", [1, 7, None, "all", 60])
def test_probabilities_match_the_definition(space, k):
    support, labels, queries = clouds()
    fitted = published(k=k, space=space).fit(support, labels)
    number = {None: 59, "all": 60}.get(k, k)
    expected = naive(support, labels, queries, number, fitted.temperature_, space)
    prediction = fitted.predict(queries)
    np.testing.assert_allclose(prediction.probabilities.dense(), expected, atol=2e-4)
    np.testing.assert_allclose(prediction.probabilities.dense().sum(axis=1), 1, atol=1e-5)
    assert prediction.labels.tolist() == fitted.classes_[expected.argmax(axis=1)].tolist()


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_likelihood_is_that_of_every_point_left_out(space):
    support, labels, _ = clouds(1, n=40)
    fitted = published(k=15, space=space).fit(support, labels)
    total = []
    for i in range(40):
        others = np.delete(np.arange(40), i)
        row = naive(support[others], labels[others], support[i : i + 1], 15, fitted.temperature_, space)[0]
        own = sorted(set(labels[others].tolist())).index(labels[i])
        if row[own] > 0:
            total.append(math.log(max(row[own], 1e-12)))
    assert fitted.fit_.used == len(total)
    assert fitted.fit_.left_out == 40 - len(total)
    assert fitted.fit_.likelihood == pytest.approx(np.mean(total), abs=1e-3)


@pytest.mark.parametrize(("n", "expected"), [(2, 1), (3, 2), (150, 149), (200, 199), (201, 200), (400, 200)])
def test_default_k_is_200_or_all_but_one(n, expected):
    support, labels, queries = clouds(n=n, classes=1)
    assert NED(temperature=1.0).fit(support, labels).predict(queries).distances.shape == (len(queries), expected)


def test_the_nearest_neighbour_is_the_limit_of_low_temperatures():
    support, labels, queries = clouds(n=100, queries=50)
    cold = NED(temperature=1e-9, k=20).fit(support, labels).predict(queries)
    nearest = NearestNeighbour().fit(support, labels).predict(queries)
    np.testing.assert_allclose(cold.probabilities.dense(), nearest.probabilities.dense(), atol=1e-6)


@pytest.mark.parametrize("k", [1, 10, 33])
def test_the_vote_is_the_limit_of_high_temperatures(k):
    support, labels, queries = clouds(n=100, queries=50)
    hot = NED(temperature=1e9, k=k).fit(support, labels).predict(queries)
    vote = KNNVote(k=k).fit(support, labels).predict(queries)
    np.testing.assert_allclose(hot.probabilities.dense(), vote.probabilities.dense(), atol=1e-6)
    np.testing.assert_array_equal(hot.labels, vote.labels)


@pytest.mark.parametrize("temperature", [1e-40, 0.0, -1.0, 1e31, np.nan, np.inf, True, "1"])
def test_impossible_temperatures_are_refused(temperature):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="temperature"):
        NED(temperature=temperature).fit(support, labels)


@pytest.mark.parametrize("temperature", [1e-20, 1e-29])
def test_no_temperature_is_too_low(temperature):
    support, labels, queries = clouds()
    nearest = NearestNeighbour().fit(support, labels).predict(queries)
    cold = NED(temperature=temperature, k=20).fit(support, labels).predict(queries)
    np.testing.assert_allclose(cold.probabilities.dense(), nearest.probabilities.dense(), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 7.0, 1e3, 1e8])
def test_scaling_the_embeddings_scales_the_temperature(scale):
    support, labels, queries = clouds()
    one = published(space="euclidean").fit(support, labels)
    two = published(space="euclidean").fit(scale * support, labels)
    assert two.temperature_ == pytest.approx(one.temperature_ * scale**2, rel=2e-3)
    np.testing.assert_allclose(
        two.predict(scale * queries).probabilities.dense(), one.predict(queries).probabilities.dense(), atol=1e-3
    )


@pytest.mark.parametrize("scale", [1e-25, 1e22])
def test_extreme_scales(scale):
    support, labels, queries = clouds()
    one = published(space="euclidean").fit(support, labels)
    two = published(space="euclidean").fit(scale * support.astype(np.float64), labels)
    found = two.predict(scale * queries.astype(np.float64)).probabilities.dense()
    np.testing.assert_allclose(found, one.predict(queries).probabilities.dense(), atol=1e-3)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["shared", "per-class"]), st.sampled_from([5, "all"]))
def test_the_order_of_the_support_does_not_matter(seed, bandwidth, k):
    support, labels, queries = clouds(seed)
    order = np.random.default_rng(seed).permutation(len(support))
    one = NED(k=k, bandwidth=bandwidth).fit(support, labels)
    two = NED(k=k, bandwidth=bandwidth).fit(support[order], labels[order])
    assert two.temperature_ == pytest.approx(one.temperature_, rel=2e-3)
    columns = [two.classes_.tolist().index(name) for name in one.classes_]
    np.testing.assert_allclose(
        two.predict(queries).probabilities.dense()[:, columns], one.predict(queries).probabilities.dense(), atol=0.01
    )


def test_neighbours_given_are_neighbours_found():
    support, labels, queries = clouds()
    given = published(k=12).fit(support, labels, neighbours=exact(support, k=12))
    found = published(k=12).fit(support, labels)
    assert given.temperature_ == found.temperature_
    near = exact(queries, support, k=12)
    np.testing.assert_array_equal(given.predict_proba(*near).dense(), found.predict(queries).probabilities.dense())


@pytest.mark.parametrize("k", [None, "all"])
def test_neighbours_given_for_the_whole_support(k):
    support, labels, _ = clouds(n=30)
    given = published(k=k).fit(support, labels, neighbours=exact(support, k=29))
    assert given.temperature_ == published(k=k).fit(support, labels).temperature_


def near(k=5):
    support, labels, _ = clouds()
    return support, labels, *(part.numpy().copy() for part in exact(support, k=k))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d, i: (d, np.where(i == i[3, 0], 3, i)), "themselves"),
        (lambda d, i: (d[:, ::-1], i[:, ::-1]), "nearest"),
        (lambda d, i: (d, i + 60), "0"),
        (lambda d, i: (d, i - 60), "0"),
        (lambda d, i: (d * np.nan, i), "finite"),
        (lambda d, i: (d + np.inf, i), "finite"),
        (lambda d, i: (d[:, :4], i[:, :4]), "60"),
        (lambda d, i: (d[:9], i[:9]), "60"),
        (lambda d, i: (d[:, :4], i), "shape"),
        (lambda d, i: (d[0], i[0]), "shape"),
        (lambda d, i: (d[:, :0], i[:, :0]), "shape"),
        (lambda d, i: (d, i.astype(np.float32)), "indices"),
        (lambda d, i: (d, i > 3), "indices"),
        (lambda d, i: (d.astype(str), i), "numbers"),
        (lambda d, i: (d, None), "numbers"),
    ],
)
def test_bad_neighbours_of_the_support(change, match):
    support, labels, distances, indices = near()
    with pytest.raises(DataError, match=match):
        published(k=5).fit(support, labels, neighbours=change(distances, indices))


@pytest.mark.parametrize("given", [(np.ones((60, 5)),), np.ones((60, 5)), ([[1, 2], [3]], [[1, 2], [3]])])
def test_neighbours_that_are_no_pair(given):
    support, labels, _, _ = near()
    with pytest.raises(DataError):
        published(k=5).fit(support, labels, neighbours=given)


def test_fitting_on_some_points_searches_in_all():
    support, labels, _ = clouds(n=600)
    some = published(points=300, seed=1).fit(support, labels)
    assert some.fit_.used + some.fit_.left_out == 300
    assert some.temperature_ == published(points=300, seed=1).fit(support, labels).temperature_
    assert some.temperature_ == pytest.approx(published().fit(support, labels).temperature_, rel=0.3)


def test_energies_are_bounded(monkeypatch):
    support, labels, _ = clouds(n=100)
    monkeypatch.setattr(ned, "ENERGIES", 99 * 40)
    assert published(k="all").fit(support, labels).fit_.used == 40


@pytest.mark.parametrize("block", [1, 130, 10**6])
def test_all_in_blocks(monkeypatch, block):
    support, labels, queries = clouds()
    whole = published(k="all").fit(support, labels).predict(queries)
    monkeypatch.setattr(estimator, "_BLOCK", block)
    parts = published(k="all").fit(support, labels).predict(queries)
    np.testing.assert_array_equal(parts.probabilities.dense(), whole.probabilities.dense())
    np.testing.assert_array_equal(parts.indices, whole.indices)


def test_all_with_many_classes_lists_200_and_a_rest():
    rng = np.random.default_rng(0)
    support, queries = rng.normal(size=(500, 3)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)
    labels = np.arange(500) // 2
    found = NED(k="all", temperature=1.0).fit(support, labels).predict(queries)
    expected = naive(support, labels, queries, 500, 1.0, Sphere())
    assert np.diff(found.probabilities.offsets).max() == 200
    assert found.distances.shape == found.indices.shape == (4, 200)
    dense = found.probabilities.dense()
    np.testing.assert_allclose(dense.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.sort(dense)[:, 50:], np.sort(expected)[:, 50:], atol=1e-5)
    np.testing.assert_allclose(np.sort(dense)[:, :50].sum(axis=1), np.sort(expected)[:, :50].sum(axis=1), atol=1e-5)


@pytest.mark.parametrize("k", [1, 8, None, "all"])
def test_leave_one_out_is_a_loop_of_fits(k):
    support, labels, _ = clouds(n=24)
    fitted = NED(k=k, temperature=0.5).fit(support, labels)
    rows, found = fitted.leave_one_out()
    assert rows.tolist() == list(range(24))
    for i in range(24):
        others = np.delete(np.arange(24), i)
        single = NED(k=k if isinstance(k, int) else "all", temperature=0.5).fit(support[others], labels[others])
        expected = single.predict(support[i : i + 1]).probabilities
        for name in set(labels.tolist()):
            assert found.probabilities.of([name] * 24)[i] == pytest.approx(expected.of([name])[0], abs=1e-5)
    assert not (found.indices == rows[:, None]).any()


@pytest.mark.parametrize("space", ["sphere", Sphere(metric="angle"), "euclidean", "poincare-ball", "cosine"], ids=str)
@pytest.mark.parametrize(
    "settings",
    [{}, {"k": 1}, {"k": 6}, {"k": "all"}, {"k": 20, "bandwidth": "per-class"}, {"temperature": 1e-3}],
    ids=str,
)
def test_log_proba_is_the_logarithm_of_the_prediction(space, settings):
    support, labels, queries = clouds()
    fitted = NED(space=space, **settings).fit(support, labels)
    found = fitted.log_proba(queries)
    table = fitted.predict(queries).probabilities.dense()
    np.testing.assert_allclose(found.exp().numpy(), table, atol=2e-4)
    assert (found.numpy()[table == 0] <= math.log(1e-12) * 0.999).all()
    assert found.isfinite().all()


@pytest.mark.parametrize("space", ["sphere", Sphere(metric="angle"), "euclidean", "cosine", "inner-product"], ids=str)
@pytest.mark.parametrize("settings", [{"k": 8}, {"k": "all"}, {"k": 30, "bandwidth": "per-class"}], ids=str)
def test_gradient(space, settings):
    support, labels, queries = clouds(dimensions=3, queries=3)
    kind = NED if "bandwidth" in settings else published
    fitted = kind(space=space, **settings).fit(10 * support.astype(np.float64), labels)
    x = torch.tensor(10 * queries, dtype=torch.float64, requires_grad=True)
    assert gradcheck(fitted.log_proba, (x,), eps=1e-6, atol=1e-4)
    fitted.log_proba(x).sum().backward()
    assert (x.grad.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("space", ["sphere", Sphere(metric="angle"), "euclidean", "poincare-ball", "cosine"], ids=str)
@pytest.mark.parametrize("bandwidth", ["shared", "per-class"])
def test_the_gradient_on_a_support_point_is_finite(space, bandwidth):
    support, labels, _ = clouds()
    x = torch.tensor(support[:5], requires_grad=True)
    found = NED(space=space, bandwidth=bandwidth).fit(support, labels).log_proba(x)
    found[:, 0].sum().backward()
    assert found.isfinite().all()
    assert x.grad.isfinite().all()


def test_an_unlikely_class_has_a_gradient():
    support = np.array([[0.0, 0], [0, 0.1], [5, 0], [5, 0.1]])
    fitted = NED(k=4, space="euclidean", temperature=0.1).fit(support, [0, 0, 1, 1])
    x = torch.tensor([[0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    found = fitted.log_proba(x)[0, 1]
    assert found < -200
    found.backward()
    assert x.grad[0, 0] == pytest.approx(2 * 5 / 0.1, rel=0.1)


def test_a_query_with_a_gradient_is_accepted_everywhere():
    support, labels, queries = clouds()
    x = torch.tensor(queries, requires_grad=True)
    fitted = published().fit(torch.tensor(support, requires_grad=True), labels)
    np.testing.assert_array_equal(fitted.predict(x).confidence, fitted.predict(queries).confidence)
    assert fitted.log_proba(x).requires_grad


class Manhattan:
    """A user's scorer, written for (n, d) and (m, d) as the contract says."""

    def distance(self, x, y):
        return (x[:, None] - y[None]).abs().sum(dim=-1)


class Product:
    """A user's similarity, written for (n, d) and (m, d)."""

    similarity = True

    def distance(self, x, y):
        return -(x @ y.T)


def naive_with(scorer, support, labels, queries, k, temperature):
    table = scorer.distance(torch.tensor(queries).double(), torch.tensor(support).double()).numpy()
    energies = table if getattr(scorer, "similarity", False) else table**2
    classes = sorted(set(labels.tolist()))
    found = np.zeros((len(queries), len(classes)))
    for row, values in enumerate(energies):
        for i in np.argsort(table[row], kind="stable")[:k]:
            found[row, classes.index(labels[i])] += math.exp((values.min() - values[i]) / temperature)
    return found / found.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("scorer", [Manhattan(), Product()], ids=["manhattan", "product"])
def test_a_scorer_of_the_users(scorer):
    support, labels, queries = clouds()
    fitted = published(k=15, space=scorer).fit(support, labels)
    expected = naive_with(scorer, support, labels, queries, 15, fitted.temperature_)
    np.testing.assert_allclose(fitted.predict(queries).probabilities.dense(), expected, atol=1e-4)


@pytest.mark.parametrize("scorer", [Manhattan(), Product()], ids=["manhattan", "product"])
def test_log_proba_with_a_scorer_of_the_users(scorer):
    support, labels, queries = clouds()
    fitted = published(k=15, space=scorer).fit(support, labels)
    np.testing.assert_allclose(
        fitted.log_proba(queries).exp().numpy(), fitted.predict(queries).probabilities.dense(), atol=1e-4
    )


def test_negative_distances_that_are_no_similarity_are_refused():
    class Silent:
        def distance(self, x, y):
            return -(x @ y.mT)

    support, labels, queries = clouds()
    with pytest.raises(DataError, match="Silent"):
        published(space=Silent()).fit(support, labels)
    fitted = NED(space=Silent(), temperature=1.0).fit(support, labels)
    with pytest.raises(DataError, match="similarity"):
        fitted.predict(queries)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "1", True, [1]])
def test_bad_temperatures(value):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="temperature"):
        NED(temperature=value).fit(support, labels)


def test_refusals_of_the_fit():
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="per-class"):
        NED(bandwidth="per-clas").fit(support, labels)
    with pytest.raises(DataError, match="temperature"):
        NED(bandwidth="auto", temperature=1.0).fit(support, labels)
    with pytest.raises(DataError, match="single"):
        published().fit(support[:1], [1])
    with pytest.raises(DataError, match="class"):
        published().fit(support, np.arange(60))


def test_classes_with_one_point_are_left_out_and_said():
    support, labels, queries = clouds()
    names = np.where(np.arange(60) < 3, 100 + np.arange(60), labels)
    fitted = published().fit(support, names)
    assert fitted.fit_.left_out == 3
    assert any("3" in note for note in fitted.notes_)
    assert fitted.predict(support[:3]).labels.tolist()[0] in names
    assert (fitted.predict(queries).probabilities.of([100] * 9) > 0).any()


def test_a_failed_fit_does_not_mix_two_fits():
    support, labels, queries = clouds()
    fitted = published().fit(support, labels)
    before = fitted.predict(queries).indices
    with pytest.raises(DataError):
        fitted.fit(support[:3], [1, 2, 3])
    try:
        after = fitted.predict(queries).indices
    except DataError:
        return
    np.testing.assert_array_equal(before, after)


def test_predict_after_a_failed_first_fit():
    support, _, queries = clouds()
    fitted = published()
    with pytest.raises(DataError):
        fitted.fit(support[:3], [1, 2, 3])
    with pytest.raises(DataError, match="fit"):
        fitted.predict(queries)


def naive_loss(energies, codes, own, logarithms, dimensions):
    """Mean of -log p by loops over eq. 18, with T for 2 alpha."""
    total = 0.0
    for row, classes, mine in zip(energies.tolist(), codes.tolist(), own.tolist(), strict=True):
        kernels = [
            math.exp(-energy / math.exp(logarithms[c])) / math.exp(logarithms[c]) ** (dimensions / 2)
            for energy, c in zip(row, classes, strict=True)
        ]
        ours = sum(kernel for kernel, c in zip(kernels, classes, strict=True) if c == mine)
        total -= math.log(max(ours / sum(kernels), 1e-12))
    return total / len(own)


def drawn(seed, n=12, k=6, classes=4):
    rng = np.random.default_rng(seed)
    energies = np.sort(rng.gamma(2, size=(n, k)), axis=1)
    codes = rng.integers(classes, size=(n, k)).astype(np.int32)
    own = codes[np.arange(n), rng.integers(k, size=n)]
    return energies, codes, own


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 7, 64]), st.integers(1, 20))
def test_objective_and_gradient(seed, dimensions, block):
    energies, codes, own = drawn(seed)
    place = np.random.default_rng(seed).normal(0, 0.4, 4)
    terms = _Terms(energies, codes, own, dimensions)
    value, gradient = terms(place)
    assert value == pytest.approx(naive_loss(energies, codes, own, place, dimensions), rel=1e-8)
    for c in range(4):
        step = 1e-5 * np.eye(4)[c]
        slope = (terms(place + step)[0] - terms(place - step)[0]) / 2e-5
        assert gradient[c] == pytest.approx(slope, rel=1e-4, abs=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ned, "_BLOCK", block)
        parted, slopes = terms(place)
    assert parted == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(slopes, gradient, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_equal_bandwidths_are_the_shared_likelihood(seed):
    energies, codes, own = drawn(seed, n=30)
    fit = fit_temperature(energies, codes == own[:, None])
    value = _Terms(energies, codes, own, 5)(np.full(4, math.log(fit.temperature)))[0]
    assert -value == pytest.approx(fit.likelihood, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_that_of_a_search_without_gradient(seed):
    energies, codes, own = drawn(seed, n=60, k=8, classes=2)
    shared = fit_temperature(energies, codes == own[:, None]).temperature
    found = np.log(fit_bandwidths(energies, codes, own, 2, 2, shared))
    terms = _Terms(energies, codes, own, 2)
    reach = math.log(100) * np.array([[-1, 1]] * 2) + math.log(shared)
    start = np.full(2, math.log(shared))
    best = minimize(lambda x: terms(x)[0], start, method="Nelder-Mead", bounds=reach).fun
    assert terms(found)[0] <= terms(start)[0] + 1e-12
    assert terms(found)[0] <= best + 1e-4


def test_a_class_never_seen_keeps_the_shared_temperature():
    energies, codes, own = drawn(0, n=40)
    found = fit_bandwidths(energies, codes, own, 6, 2, 1.7)
    np.testing.assert_allclose(found[4:], 1.7, rtol=1e-12)
    assert (np.abs(np.log(found[:4] / 1.7)) > 1e-6).all()


def gaussians(seed, spreads, n=80, dimensions=2, gap=3.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n * len(spreads)) % len(spreads)
    centres = gap * rng.normal(size=(len(spreads), dimensions))
    return centres[labels] + np.array(spreads)[labels][:, None] * rng.normal(size=(len(labels), dimensions)), labels


def test_a_class_of_one_point_keeps_the_shared_temperature():
    """No point speaks for it, since it has no second one; the docstring says what it keeps."""
    points, labels = gaussians(0, [1, 1, 1])
    points, labels = np.concatenate([points, points[:1] + 0.3]), np.concatenate([labels, [9]])
    fitted = NED(space="euclidean", bandwidth="per-class").fit(points, labels)
    assert fitted.temperatures_[3] == pytest.approx(fitted.temperature_)


@pytest.mark.parametrize("seed", range(6))
def test_per_class_wins_where_spreads_differ(seed):
    points, labels = gaussians(seed, [0.05, 0.3, 2.0, 6.0], gap=1.0)
    fitted = NED(space="euclidean", bandwidth="auto").fit(points, labels)
    assert fitted.comparison_.winner == "per-class"
    assert fitted.comparison_.per_class > fitted.comparison_.shared + 0.01
    assert "per-class" in fitted.notes_[-1]
    order = [fitted.classes_.tolist().index(name) for name in range(4)]
    assert (np.diff(fitted.temperatures_[order]) > 0).all()


def test_shared_wins_where_spreads_are_equal():
    wins = []
    for seed in range(10):
        points, labels = gaussians(seed, [1.0] * 8, n=25, dimensions=8, gap=0.8)
        fitted = NED(space="euclidean", bandwidth="auto").fit(points, labels)
        wins.append(fitted.comparison_.winner == "shared")
        assert (fitted.temperatures_ is None) == wins[-1]
    assert sum(wins) >= 7


def test_per_class_is_used_when_asked_for_even_if_it_loses():
    points, labels = gaussians(0, [1.0] * 8, n=10, dimensions=8, gap=0.8)
    fitted = NED(space="euclidean", bandwidth="per-class").fit(points, labels)
    assert fitted.temperatures_.shape == (8,)
    assert (np.abs(np.log(fitted.temperatures_ / fitted.temperature_)) <= math.log(100) + 1e-9).all()


@pytest.mark.parametrize("dimensions", [2, 100])
def test_probabilities_are_those_of_equation_18(dimensions):
    points, labels = gaussians(3, [0.2, 1.0, 3.0], n=20, dimensions=dimensions, gap=1.0)
    points = points.astype(np.float32)
    fitted = NED(k=25, space="euclidean", bandwidth="per-class").fit(points, labels)
    queries = points[:8] + 0.1
    found = fitted.predict(queries).probabilities.dense()
    for row, query in enumerate(queries.astype(np.float64)):
        energies = ((points.astype(np.float64) - query) ** 2).sum(axis=1)
        near = np.argsort(energies)[:25]
        t = fitted.temperatures_[fitted.support_.codes[near]]
        exponents = -energies[near] / t - dimensions / 2 * np.log(t)
        kernels = np.exp(exponents - exponents.max())
        expected = np.bincount(fitted.support_.codes[near], kernels, minlength=3) / kernels.sum()
        np.testing.assert_allclose(found[row], expected, atol=2e-4)


def test_the_comparison_judges_each_half_by_the_other():
    energies, codes, own = drawn(5, n=41, k=6)
    found = compare_bandwidths(energies, codes, own, 4, 3, seed=2)
    halves = np.random.default_rng(2).permutation(41) % 2 == 0
    shared = per_class = 0.0
    for fitted, judged in ((halves, ~halves), (~halves, halves)):
        t = fit_temperature(energies[fitted], codes[fitted] == own[fitted][:, None]).temperature
        many = fit_bandwidths(energies[fitted], codes[fitted], own[fitted], 4, 3, t)
        rows = (energies[judged], codes[judged], own[judged])
        shared -= judged.sum() * naive_loss(*rows, np.full(4, math.log(t)), 3)
        per_class -= judged.sum() * naive_loss(*rows, np.log(many), 3)
    assert (found.shared, found.per_class) == pytest.approx((shared / 41, per_class / 41), rel=1e-6)
    assert found.points == 41


def test_points_without_positives_are_not_judged():
    energies, codes, own = drawn(6, n=30)
    own[:5] = 9
    found = compare_bandwidths(energies, codes, own, 10, 3)
    assert found.points == 25
    assert found == compare_bandwidths(energies[5:], codes[5:], own[5:], 10, 3)


def test_the_simpler_one_wins_a_draw():
    assert BandwidthComparison(-1.0, -1.0, 5).winner == "shared"
    assert str(BandwidthComparison(-1.0, -0.5, 5000)).startswith("On 5,000 support points it was not fitted to")


@pytest.mark.parametrize("labels", [[0, 0], [0, 0, 1], [0, 0, 1, 1]])
def test_a_handful_of_points(labels):
    points = np.random.default_rng(0).normal(size=(len(labels), 2))
    fitted = NED(space="euclidean", bandwidth="auto").fit(points, labels)
    np.testing.assert_allclose(fitted.predict(points).probabilities.dense().sum(axis=1), 1, atol=1e-6)


def test_one_point_cannot_be_judged_by_another():
    with pytest.raises(DataError, match="two"):
        compare_bandwidths(np.array([[1.0, 2.0]]), np.array([[0, 1]]), np.array([0]), 2, 3)
