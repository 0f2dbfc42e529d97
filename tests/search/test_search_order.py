"""Scores of an order against the same scores, and the scorer's own distances, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.search.order import Order, round_noise
from nearkin.search.scorers import Cosine, InnerProduct
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

SCORERS = [
    Euclidean(),
    Sphere(),
    Sphere("angle"),
    LipschitzBall(),
    PoincareBall(),
    PoincareBall(0.3),
    Cosine(),
    InnerProduct(),
]
every_scorer = pytest.mark.parametrize("scorer", SCORERS, ids=repr)


def true_scores(order, x, y):
    """The scores (q, n) that the order rounds, in float64, from the points."""
    form, scorer = order._form, order.scorer
    x, y = x.double(), y.double()
    if isinstance(scorer, InnerProduct):
        return x @ y.T * form.scale**2
    if isinstance(scorer, Cosine | Sphere) and not hasattr(form, "_space"):
        zero = (x == 0).all(dim=1)[:, None] & (y == 0).all(dim=1)
        cosine = torch.nn.functional.normalize(x, eps=1e-300) @ torch.nn.functional.normalize(y, eps=1e-300).T
        return cosine + zero if scorer == Sphere("angle") else cosine
    (x, wx), (y, wy) = form._space.as_euclidean(x), form._space.as_euclidean(y)
    scores = -((x[:, None] - y).square().sum(dim=2)) / 2 * form.scale**2
    return scores if wx is None else scores / wx[:, None] / wy


def check_scores(x, y, scorer):
    order = Order(x, y, scorer)
    assert order.by_product
    everyone = torch.arange(len(x))
    scores = order.scores(order.left(everyone), order.right(slice(0, len(y))), torch.empty(len(x), len(y)))
    true = true_scores(order, x, y)
    error = (scores.double() - true).abs()
    tolerance = order.tolerance(everyone)
    assert tolerance.shape == (len(x),)
    assert (error <= tolerance.double()[:, None]).all()
    distances = scorer.distance(x.double(), y.double())
    slack = 1e-11
    by_distance = true.gather(1, distances.argsort(dim=1))
    assert (by_distance.diff(dim=1) <= slack * true.abs().amax()).all()
    by_score = distances.gather(1, true.argsort(dim=1, descending=True))
    if not isinstance(scorer, Sphere | Cosine):  # where a chord of 1e-8 is a cosine of 1
        assert (by_score.diff(dim=1) >= -slack * distances.abs().amax()).all()
    else:
        assert (by_score.diff(dim=1) >= -1e-7).all()


def draw(kind, n, d, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if kind == "far":
        return 300 + 0.1 * x
    if kind == "clusters":
        return x[torch.arange(n) % 5] + 1e-4 * x
    if kind == "zeros":
        return torch.where((torch.arange(n) % 4 == 0)[:, None], torch.zeros(()), x)
    return (
        x * {"random": 1.0, "small": 1e-12, "large": 1e12, "uneven": 10.0 ** (torch.arange(n)[:, None] % 13 - 6)}[kind]
    )


@every_scorer
@pytest.mark.parametrize(
    ("dtype", "kind", "d"),
    [
        (torch.float32, "random", 7),
        (torch.float32, "far", 200),
        (torch.float32, "clusters", 1),
        (torch.float64, "clusters", 200),
        (torch.float64, "zeros", 7),
        (torch.float16, "random", 200),
        (torch.float16, "far", 1),
    ],
)
def test_scores_are_right_but_for_the_tolerance(scorer, dtype, kind, d):
    project = scorer.project if hasattr(scorer, "project") else lambda points: points
    x, y = (project(draw(kind, n, d, seed)).to(dtype) for n, seed in ((23, 0), (60, 1)))
    check_scores(x, y, scorer)
    check_scores(y, y, scorer)


@pytest.mark.parametrize("scorer", [Euclidean(), Sphere(), InnerProduct(), Cosine()], ids=repr)
@pytest.mark.parametrize("kind", ["small", "large", "uneven"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_magnitudes_do_not_matter(scorer, kind, dtype):
    check_scores(draw(kind, 20, 9, 0).to(dtype), draw(kind, 50, 9, 1).to(dtype), scorer)


@pytest.mark.parametrize("exponent", [-22, -15, 15, 22])
@pytest.mark.parametrize("scorer", [Euclidean(), InnerProduct()], ids=repr)
def test_queries_of_another_magnitude_than_the_gallery(scorer, exponent):
    """Scaled to the larger side, the smaller is below what float32 can hold: the tolerance must say so."""
    x, y = draw("random", 20, 9, 0) * 10.0**exponent, draw("random", 50, 9, 1) * 10.0**-exponent
    check_scores(x.float(), y.float(), scorer)


def test_zero_vectors_are_at_a_right_angle_to_all_directions():
    """By chord a zero vector is as near as 60 degrees, by angle as 90."""
    angles = torch.deg2rad(torch.tensor([0.0, 50, 70, 100]))
    y = torch.cat([torch.zeros(2, 2), torch.stack([angles.cos(), angles.sin()], dim=1)])
    for metric, expected in (("angle", [2, 3, 4, 0, 1, 5]), ("chord", [2, 3, 0, 1, 4, 5])):
        order = Order(torch.tensor([[1.0, 0.0]]), y, Sphere(metric))
        scores = order.scores(order.left(slice(0, 1)), order.right(slice(0, 6)), torch.empty(1, 6))
        assert scores[0].argsort(descending=True, stable=True).tolist() == expected


@every_scorer
def test_true_distances_are_those_of_the_scorer_in_float64(scorer, monkeypatch):
    monkeypatch.setattr("nearkin.search.order._CHUNK_ENTRIES", 50)
    x, y = (0.1 * draw("random", n, 5, seed) for n, seed in ((9, 0), (14, 1)))
    near = torch.from_numpy(np.random.default_rng(0).integers(0, 14, (4, 6)))
    rows = torch.tensor([3, 0, 8, 3])
    distances = Order(x.float(), y.half(), scorer).distances(rows, near)
    expected = scorer.distance(x.float().double(), y.half().double())[rows[:, None], near]
    assert distances.dtype == torch.float64
    torch.testing.assert_close(distances, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("scorer", "one_side"), [(Sphere(), True), (Cosine(), True), (InnerProduct(), True), (Euclidean(), False)]
)
def test_a_set_with_itself_is_symmetric(scorer, one_side):
    x = draw("random", 40, 6, 0).float()
    order = Order(x, x, scorer)
    assert order.symmetric
    assert order.one_side == one_side
    assert not Order(x, x.clone(), scorer).symmetric
    assert not Order(x, x.clone(), scorer).one_side
    everyone = slice(0, 40)
    assert torch.equal(order.left(everyone), order.right(everyone)) == one_side
    assert order.left(everyone).shape == (40, order.width)
    scores = order.scores(order.left(everyone), order.right(everyone), torch.empty(40, 40))
    tolerance = order.tolerance(torch.arange(40))
    assert ((scores - scores.T).abs() <= 2 * tolerance[:, None]).all()


class OnlyDistance:
    def distance(self, x, y):
        return torch.cdist(x, y, p=1)


@pytest.mark.parametrize(("left", "right"), [("float64", "float32"), ("float16", "float64"), ("bfloat16", "float16")])
def test_a_scorer_gets_one_type_of_number(left, right):
    x, y = draw("random", 5, 3, 0).to(getattr(torch, left)), draw("random", 7, 3, 1).to(getattr(torch, right))
    order = Order(x, y, OnlyDistance())
    assert not order.by_product
    assert not order.symmetric
    scores = order.scores(order.left(slice(0, 5)), order.right(slice(0, 7)), torch.empty(5, 7))
    torch.testing.assert_close(scores, -torch.cdist(x.double(), y.double(), p=1).float())
    assert (order.tolerance(torch.arange(5)) == 0).all()


values = st.floats(-1e300, 1e300, allow_subnormal=False)


@settings(max_examples=300, deadline=None)
@given(values, st.integers(-2000, 2000))
def test_rounding_noise_is_settled(value, units):
    """Around a settled value, what is some units in the last place off becomes it."""
    value = round_noise(torch.tensor([value], dtype=torch.float64))
    off = (value.view(torch.int64) + (units if value.item() else abs(units))).view(torch.float64)
    assert torch.equal(round_noise(off), value)


@settings(max_examples=300, deadline=None)
@given(values, values)
def test_settling_keeps_the_order_and_real_differences(a, b):
    low, high = sorted((a, b))
    settled_low, settled_high = round_noise(torch.tensor([low, high], dtype=torch.float64)).tolist()
    assert settled_low <= settled_high
    assert settled_low == pytest.approx(low, rel=1e-12)
    if high - low > 1e-11 * max(abs(low), abs(high)):
        assert settled_low < settled_high


def test_zero_and_infinity_settle_as_they_are():
    ends = torch.tensor([0.0, -0.0, torch.inf, -torch.inf], dtype=torch.float64)
    assert torch.equal(round_noise(ends), ends)
