import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from nearkin.data.samplers import EpisodeSampler
from nearkin.errors import DataError
from nearkin.metrics import fewshot
from nearkin.metrics.fewshot import REPRESENTATIONS, VotingRule, fewshot_accuracy
from nearkin.spaces import Euclidean, PoincareBall, Sphere

SPACES = {"euclidean": Euclidean(), "chord": Sphere(), "angle": Sphere("angle"), "poincare": PoincareBall()}
RHO = math.exp(2)
SMALL = {"way": 3, "query": 4, "episodes": 25}


def _embeddings(classes=6, items=9, d=5, noise=1.0, seed=0):
    """Points of overlapping classes (n, d) and their labels, in no order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), items))
    return (rng.normal(size=(classes, d))[labels] + noise * rng.normal(size=(len(labels), d))) / 3, labels


def _distances(kind, x, y):
    """The distance of a space (n, m), from the formulas of a textbook."""
    if kind == "euclidean":
        return cdist(x, y)
    if kind == "poincare":
        room = np.outer(1 - (x**2).sum(1), 1 - (y**2).sum(1))
        return np.arccosh(1 + 2 * cdist(x, y, "sqeuclidean") / room)
    chords = cdist(_unit(x), _unit(y))
    return 2 * np.arcsin(np.minimum(chords / 2, 1)) if kind == "angle" else chords


def _unit(points):
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def _mean(kind, points):
    """The mean (d,) of points (k, d)."""
    if kind == "euclidean":
        return points.mean(axis=0)
    if kind == "poincare":
        klein = 2 * points / (1 + (points**2).sum(1, keepdims=True))
        gamma = 1 / np.sqrt(1 - (klein**2).sum(1, keepdims=True))
        middle = (gamma * klein).sum(0) / gamma.sum()
        return middle / (1 + np.sqrt(1 - (middle**2).sum()))
    return _unit(points).mean(axis=0)


def _scores(kind, representation, known, asked, rho):
    """Scores (q, way) of queries (q, d) for classes (way, k, d), one class after another."""
    if representation == "mean":
        return np.stack([-_distances(kind, asked, _mean(kind, one)[None])[:, 0] for one in known], axis=1)
    each = [_distances(kind, asked, one) for one in known]
    if representation == "nearest":
        return np.stack([-one.min(axis=1) for one in each], axis=1)
    return np.stack([logsumexp(-rho * np.log(one), axis=1) for one in each], axis=1)


def _naive(kind, representation, points, labels, *, way, shot, query, episodes, rho=RHO):
    """Accuracy of each episode (episodes,), one after another in float64."""
    sampler = EpisodeSampler(labels, way, shot, query)
    found = []
    for index in range(episodes):
        episode = sampler.episode(index)
        asked = points[episode.query.ravel()]
        scores = _scores(kind, representation, points[episode.support], asked, rho)
        highest = scores == scores.max(axis=1, keepdims=True)
        found.append((highest[np.arange(way * query), np.repeat(np.arange(way), query)] / highest.sum(axis=1)).mean())
    return np.array(found)


@pytest.mark.parametrize(("shot", "dtype"), [(1, np.float32), (3, np.float64)])
@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("kind", SPACES)
def test_matches_a_loop_over_episodes(kind, representation, shot, dtype):
    points, labels = _embeddings()
    points = SPACES[kind].project(torch.from_numpy(points)).numpy().astype(dtype)
    wanted = _naive(kind, representation, points.astype(np.float64), labels, shot=shot, **SMALL)
    result = fewshot_accuracy(points, labels, shot=shot, representation=representation, space=SPACES[kind], **SMALL)
    np.testing.assert_allclose(result.per_episode, wanted, atol=1e-12)
    assert 0.2 < wanted.mean() < 0.95
    assert result.accuracy == pytest.approx(wanted.mean())
    half = 1.96 * wanted.std(ddof=1) / math.sqrt(len(wanted))
    assert result.interval == pytest.approx((wanted.mean() - half, wanted.mean() + half))


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_blocks_and_doubt_do_not_change_anything(kind, representation, monkeypatch):
    points, labels = _embeddings(seed=3)
    given = {"shot": 2, "representation": representation, "space": SPACES[kind], **SMALL}
    whole = fewshot_accuracy(points, labels, **given).per_episode
    monkeypatch.setattr("nearkin.metrics.fewshot._DRAWN", 1)
    monkeypatch.setattr(fewshot, "_ENTRIES", 200)
    np.testing.assert_array_equal(fewshot_accuracy(points, labels, **given).per_episode, whole)
    monkeypatch.setattr(fewshot, "_CERTAINTY", 1e9)  # everything goes to the space's own distances
    np.testing.assert_array_equal(fewshot_accuracy(points, labels, **given).per_episode, whole)


@pytest.mark.parametrize(
    ("scale", "offset"), [(1e-9, 0), (1e9, 0), (1, 1e4), (1e-3, 1e3), (3e-22, 0), (1e-30, 0), (1e30, 0)]
)
@pytest.mark.parametrize(
    ("kind", "representation"),
    [("euclidean", "mean"), ("euclidean", "nearest"), ("euclidean", "distance-ratio"), ("chord", "nearest")],
)
def test_neither_size_nor_distance_from_the_origin_costs_accuracy(kind, scale, offset, representation):
    points, labels = _embeddings(seed=5)
    points = (points * scale + offset).astype(np.float32)
    wanted = _naive(kind, representation, points.astype(np.float64), labels, shot=2, **SMALL)
    given = {"shot": 2, "representation": representation, "space": SPACES[kind], **SMALL}
    np.testing.assert_allclose(fewshot_accuracy(points, labels, **given).per_episode, wanted, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_that_all_but_cancel_out_have_a_mean_all_the_same(dtype):
    """Half of each class points one way, half the other: in single precision the mean of two is mostly noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 12)
    way = np.where(np.arange(72) % 2, 1.0, -1.0)[:, None] * np.eye(5)[0]
    points = _unit(way + 1e-4 * rng.normal(size=(72, 5))).astype(dtype)
    wanted = _naive("chord", "mean", points.astype(np.float64), labels, shot=2, **SMALL)
    np.testing.assert_allclose(fewshot_accuracy(points, labels, shot=2, **SMALL).per_episode, wanted, atol=1e-12)


def test_the_euclidean_choices_are_those_of_scikit_learn():
    points, labels = _embeddings(classes=8, items=12, d=16, seed=2)
    given = {"way": 4, "shot": 3, "query": 6, "episodes": 20}
    sampler = EpisodeSampler(labels, 4, 3, 6)
    wanted = {"mean": [], "nearest": []}
    for index in range(20):
        episode = sampler.episode(index)
        x, y = points[episode.support.ravel()], np.repeat(np.arange(4), 3)
        asked, truth = points[episode.query.ravel()], np.repeat(np.arange(4), 6)
        wanted["mean"].append(NearestCentroid().fit(x, y).score(asked, truth))
        wanted["nearest"].append(KNeighborsClassifier(1).fit(x, y).score(asked, truth))
    for representation, values in wanted.items():
        result = fewshot_accuracy(points, labels, representation=representation, space="euclidean", **given)
        np.testing.assert_allclose(result.per_episode, values)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("shot", [1, 3])
def test_one_point_for_everything_is_as_good_as_chance(kind, representation, shot):
    labels = np.repeat(np.arange(8), 10)
    for value in (0.0, 0.3):
        result = fewshot_accuracy(
            np.full((80, 4), value), labels, shot=shot, representation=representation, space=SPACES[kind], **SMALL
        )
        np.testing.assert_allclose(result.per_episode, 1 / 3)


def test_a_tie_of_two_counts_half():
    """Classes 0 and 1 are one point, class 2 another: whoever is drawn, a tie is a coin's toss."""
    labels = np.repeat(np.arange(3), 6)
    points = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[labels]
    result = fewshot_accuracy(points, labels, way=3, shot=2, query=2, episodes=5)
    np.testing.assert_allclose(result.per_episode, (0.5 + 0.5 + 1) / 3)


@pytest.mark.parametrize("kind", SPACES)
def test_one_known_point_is_its_own_mean_and_all_the_votes(kind):
    points, labels = _embeddings(seed=7)
    mean, nearest, votes = (
        fewshot_accuracy(points, labels, shot=1, representation=one, space=SPACES[kind], **SMALL).per_episode
        for one in REPRESENTATIONS
    )
    np.testing.assert_array_equal(mean, nearest)
    np.testing.assert_array_equal(mean, votes)


@pytest.mark.parametrize("kind", SPACES)
def test_votes_become_the_nearest_as_rho_grows(kind):
    points, labels = _embeddings(seed=8)
    nearest, sharp, soft = (
        fewshot_accuracy(points, labels, shot=4, space=SPACES[kind], **given, **SMALL).per_episode
        for given in (
            {"representation": "nearest"},
            {"representation": "distance-ratio", "rho": 1e5},
            {"representation": "distance-ratio", "rho": 0.5},
        )
    )
    np.testing.assert_array_equal(sharp, nearest)
    assert (soft != nearest).any()


@pytest.mark.parametrize("scale", [1e-8, 1e-30, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_votes_do_not_mind_a_tiny_or_huge_scale(scale, dtype):
    points, labels = _embeddings(noise=2.0, seed=1)
    given = {"shot": 4, "representation": "distance-ratio", "rho": 2.0, "space": "euclidean", **SMALL}
    wanted, found = (fewshot_accuracy((points * size).astype(dtype), labels, **given) for size in (1.0, scale))
    np.testing.assert_array_equal(found.per_episode, wanted.per_episode)
    nearest = fewshot_accuracy(points, labels, **(given | {"representation": "nearest"}))
    assert (wanted.per_episode != nearest.per_episode).any()


@pytest.mark.parametrize("kind", SPACES)
def test_points_upon_the_query_have_all_the_votes_and_each_one(kind):
    """Three classes of two points: one, both or none on the query, and the others near it."""
    place, near = [0.3, 0.1], [0.3, 0.1000001]
    both, one, none = [place, place], [place, near], [near, near]
    query = torch.tensor([[place]], dtype=torch.float64)
    for known, winners in (((both, one, none), {0}), ((none, one, none), {1}), ((one, none, one), {0, 2})):
        support = SPACES[kind].project(torch.tensor([known], dtype=torch.float64))
        scores = VotingRule(0.01).scores(SPACES[kind], support, SPACES[kind].project(query))[0, 0]
        assert set(torch.nonzero(scores == scores.max()).flatten().tolist()) == winners


def test_the_error_of_votes_in_single_precision_is_within_its_bound():
    generator = torch.Generator().manual_seed(0)
    for rho in (0.01, 2.0, 7.4, 300.0):
        squares = torch.rand(200, 3, 5, 4, generator=generator, dtype=torch.float64) * 0.2 + 0.9
        error = torch.full((200, 1), 1e-6, dtype=torch.float64)
        shaken = squares + error[..., None, None] * (2 * torch.rand(squares.shape, generator=generator) - 1)
        exact, _ = VotingRule(rho).costs(squares, error)
        costs, bound = VotingRule(rho).costs(shaken.float(), error.float())
        off = (costs.double() - exact)[:, :, None] - (costs.double() - exact)[:, None]
        assert (off.abs().amax(dim=(1, 2)) <= bound).all()


def test_a_learned_similarity_is_given_points_and_decides():
    points, labels = _embeddings(seed=9)
    seen = []

    def similarity(support, query):
        seen.append((tuple(support.shape[1:]), tuple(query.shape[1:]), support.dtype, torch.is_grad_enabled()))
        return -torch.cdist(query, support.mean(dim=2))

    learned = fewshot_accuracy(points, labels, shot=2, representation=similarity, **SMALL)
    mean = fewshot_accuracy(points, labels, shot=2, space="euclidean", **SMALL)
    np.testing.assert_array_equal(learned.per_episode, mean.per_episode)
    assert learned.representation == "similarity"
    assert set(seen) == {((3, 2, 5), (12, 5), torch.float64, False)}


@given(seed=st.integers(0, 10**6), factor=st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_no_representation_minds_the_scale_of_euclidean_space(seed, factor):
    points, labels = _embeddings(seed=seed)
    for representation in REPRESENTATIONS:
        given = {"shot": 2, "representation": representation, "space": "euclidean", **SMALL}
        one, other = (fewshot_accuracy(points * size, labels, **given).per_episode for size in (1.0, factor))
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_labels_of_any_kind_and_tensors_are_the_same_data():
    points, labels = _embeddings()
    wanted = fewshot_accuracy(points, labels, **SMALL)
    named = fewshot_accuracy(torch.from_numpy(points), [f"class {one}" for one in labels], **SMALL)
    np.testing.assert_array_equal(named.per_episode, wanted.per_episode)
    assert named.fingerprint == wanted.fingerprint
    mixed = fewshot_accuracy(points, [("pair", int(one)) if one % 2 else int(one) for one in labels], **SMALL)
    assert mixed.classes == wanted.classes


def test_numbers_of_numpy_are_numbers():
    points, labels = _embeddings()
    given = {name: np.int64(number) for name, number in (SMALL | {"shot": 2, "seed": 3}).items()}
    assert fewshot_accuracy(points, labels, **given).fingerprint == (
        fewshot_accuracy(points, labels, shot=2, seed=3, **SMALL).fingerprint
    )


def test_the_result_says_what_it_was_measured_on():
    points, labels = _embeddings()
    labels[labels == 5] = np.arange((labels == 5).sum()) + 100  # classes of one item
    result = fewshot_accuracy(points, labels, shot=2, seed=4, **SMALL)
    plain = json.loads(json.dumps(result.to_dict()))
    assert (result.way, result.shot, result.query, result.episodes, result.seed) == (3, 2, 4, 25, 4)
    assert result.classes == 5
    assert plain["accuracy"] == result.accuracy
    assert plain["per_episode"] == result.per_episode.tolist()
    assert "per_episode" not in result.to_dict(per_episode=False)
    assert "array" not in repr(result)


def test_classes_are_told_apart_by_how_hard_they_are():
    """Classes a and b lie on each other, c far away, and d has too few items to be drawn."""
    rng = np.random.default_rng(0)
    labels = np.array(["a"] * 20 + ["b"] * 20 + ["c"] * 20 + ["d"] * 3)
    points = rng.normal(size=(63, 4)) + 20.0 * (labels == "c")[:, None]
    result = fewshot_accuracy(points, labels, way=3, shot=2, query=6, episodes=200, space="euclidean")
    found = result.per_class()
    assert list(found) == ["a", "b", "c"]
    assert found["c"] == 1
    assert found["a"] == pytest.approx(0.5, abs=0.1)
    assert np.mean(list(found.values())) == pytest.approx(result.accuracy)  # each is in every episode


def test_a_paired_difference_is_that_of_the_episodes():
    points, labels = _embeddings()
    worse, _ = _embeddings(noise=2.0)
    first, second = (fewshot_accuracy(one, labels, **SMALL) for one in (points, worse))
    gaps = first.per_episode - second.per_episode
    half = 1.96 * gaps.std(ddof=1) / math.sqrt(25)
    found = first.minus(second)
    assert found.difference == pytest.approx(first.accuracy - second.accuracy)
    assert found.interval == pytest.approx((gaps.mean() - half, gaps.mean() + half))
    assert found.episodes == 25
    assert second.minus(first).difference == pytest.approx(-found.difference)
    assert first.minus(first).interval == (0, 0)


@pytest.mark.parametrize("change", [{"seed": 1}, {"way": 4}, {"shot": 2}, {"query": 3}, {"episodes": 24}])
def test_results_of_other_episodes_are_not_subtracted(change):
    points, labels = _embeddings()
    (name,) = change
    with pytest.raises(DataError, match=name):
        fewshot_accuracy(points, labels, **SMALL).minus(fewshot_accuracy(points, labels, **(SMALL | change)))


def test_results_of_other_items_are_not_subtracted():
    points, labels = _embeddings()
    with pytest.raises(DataError, match="labels"):
        fewshot_accuracy(points, labels, **SMALL).minus(fewshot_accuracy(points, labels[::-1].copy(), **SMALL))
    with pytest.raises(DataError, match="int"):
        fewshot_accuracy(points, labels, **SMALL).minus(3)


def test_the_interval_covers_what_more_episodes_give():
    points, labels = _embeddings(classes=12, items=20, noise=1.5)
    truth = fewshot_accuracy(points, labels, way=5, query=5, episodes=20_000, seed=99).accuracy
    covered = 0
    for seed in range(200):
        low, high = fewshot_accuracy(points, labels, way=5, query=5, episodes=100, seed=seed).interval
        covered += low <= truth <= high
    assert 182 <= covered <= 198  # of 190 expected


def test_any_scorer_will_do_for_the_nearest():
    points, labels = _embeddings()
    cosine = fewshot_accuracy(points, labels, shot=2, representation="nearest", space="cosine", **SMALL)
    sphere = fewshot_accuracy(points, labels, shot=2, representation="nearest", **SMALL)
    np.testing.assert_array_equal(cosine.per_episode, sphere.per_episode)


def test_a_subclass_of_a_space_is_asked_for_its_own_distance():
    class Far(Euclidean):
        def distance(self, x, y):
            return 10 - super().distance(x, y)

    points, labels = _embeddings(noise=0.1)
    near, far = (fewshot_accuracy(points, labels, space=space, **SMALL).accuracy for space in (Euclidean(), Far()))
    assert near > 0.9
    assert far < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"way": 7}, "way"),
        ({"query": 9}, "10"),
        ({"way": 1}, "classes"),
        ({"way": 2.5}, "way"),
        ({"shot": True}, "shot"),
        ({"episodes": 1}, "episodes"),
        ({"seed": None}, "seed"),
        ({"representation": "means"}, "'mean'"),
        ({"representation": 3}, "3"),
        ({"representation": "distance-ratio", "rho": 0}, "rho"),
        ({"representation": "distance-ratio", "rho": math.inf}, "rho"),
        ({"space": "cosine"}, "space"),
        ({"space": "inner-product", "representation": "distance-ratio"}, "space"),
        ({"space": "spher"}, "spher"),
        (
            {"representation": lambda s, q: torch.zeros(2, 3)},
            r"\(2, 3\)",
        ),
        ({"representation": lambda s, q: None}, "NoneType"),
        ({"representation": lambda s, q: torch.full((len(q), 12, 3), math.nan)}, "NaN"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(change, message):
    points, labels = _embeddings()
    with pytest.raises(DataError, match=message):
        fewshot_accuracy(points, labels, **(SMALL | change))


@pytest.mark.parametrize(
    ("points", "labels", "message"),
    [
        (np.zeros(4), np.zeros(4), "shape"),
        (np.full((4, 2), np.nan), np.zeros(4), "NaN"),
        (np.zeros((4, 2)), np.zeros(3, int), "labels"),
        (np.zeros((0, 2)), np.zeros(0, int), "0"),
    ],
)
def test_bad_data_are_refused_in_a_sentence(points, labels, message):
    with pytest.raises(DataError, match=message):
        fewshot_accuracy(points, labels, **SMALL)


def test_everything_that_differs_is_told():
    points, labels = _embeddings()
    other = fewshot_accuracy(points, labels[::-1].copy(), **(SMALL | {"seed": 2, "query": 3}))
    with pytest.raises(DataError) as caught:
        fewshot_accuracy(points, labels, **SMALL).minus(other)
    for part in ("seed", "query", "labels"):
        assert part in str(caught.value)
