"""Class scores: values of the article, limits, gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pytorch_metric_learning import losses

from nearkin.errors import DataError
from nearkin.spaces import (
    Euclidean,
    PoincareBall,
    Sphere,
    class_distances,
    distance_ratio_scores,
    distance_scores,
    sd_softmax_scores,
)
from nearkin.spaces.scores import (
    arcface_probabilities,
    cosface_probabilities,
    normface_probabilities,
    sphereface_probabilities,
)


def loss_and_probability(scores):
    log_p = torch.log_softmax(scores, dim=-1)
    return -log_p[0].item(), log_p[0].exp().item()


@pytest.mark.parametrize(
    ("distances", "probability", "loss"), [((1.0, 2.0), 0.95257, 0.048587), ((2.0, 4.0), 0.99999, 6.1442e-6)]
)
def test_sd_softmax_of_the_article(distances, probability, loss):
    got = loss_and_probability(sd_softmax_scores(torch.tensor(distances, dtype=torch.float64)))
    assert got == (pytest.approx(loss, rel=1e-4), pytest.approx(probability, abs=6e-6))


@pytest.mark.parametrize("distances", [(1.0, 2.0), (2.0, 4.0), (100.0, 200.0)])
def test_distance_ratio_of_the_article_whatever_the_scale(distances):
    got = loss_and_probability(distance_ratio_scores(torch.tensor(distances, dtype=torch.float64), rho=2.0))
    assert got == (pytest.approx(0.22314, rel=1e-4), pytest.approx(0.8, abs=1e-6))


@pytest.mark.parametrize("rho", [0.5, 2.0, 7.389])
def test_distance_ratio_is_the_printed_ratio(rho):
    d = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    expected = d**-rho / (d**-rho).sum(dim=1, keepdim=True)
    torch.testing.assert_close(distance_ratio_scores(d, rho).softmax(dim=1), expected, rtol=1e-6, atol=1e-9)


def test_distance_ratio_limits_at_representatives():
    scores = distance_ratio_scores(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), rho=2.0)
    torch.testing.assert_close(scores.softmax(dim=1), torch.eye(2), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_distance_ratio_is_finite_with_zero_gradient_at_zero(dtype):
    d = torch.zeros(3, dtype=dtype, requires_grad=True)
    scores = distance_ratio_scores(d, 2.0)
    scores.sum().backward()
    assert scores.isfinite().all()
    assert (d.grad == 0).all()


def test_rho_and_scale_can_be_learned():
    d = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for score in (sd_softmax_scores, distance_scores, distance_ratio_scores):
        rho = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda r, score=score: score(d, r), rho)


def test_plain_distance_scores():
    d = torch.tensor([1.0, 2.0])
    assert torch.equal(distance_scores(d, 3.0), torch.tensor([-3.0, -6.0]))
    assert torch.equal(sd_softmax_scores(d, 0.5), torch.tensor([-0.5, -2.0]))


STABILITY = 1e-10
SPACES = [Euclidean(), Sphere("chord"), Sphere("angle"), PoincareBall()]
NEAR = [0.0, 1e-8, 1e-6, 1e-3]
REPRESENTATIONS = ["mean", "nearest"]


def named(space):
    return " ".join(map(str, space.to_dict().values()))


@pytest.mark.parametrize(
    ("distances", "softmax", "ratio"),
    [
        ((1.0, 2.0), ("0.95257", "0.048587"), ("0.80000", "0.22314")),
        ((2.0, 4.0), ("0.99999", "6.1442e-06"), ("0.80000", "0.22314")),
    ],
)
def test_table_1(distances, softmax, ratio):
    """All eight numbers, to the last printed digit."""
    d = torch.tensor(distances, dtype=torch.float64)
    for scores, (p, loss) in ((sd_softmax_scores(d), softmax), (distance_ratio_scores(d, 2.0), ratio)):
        log_p = scores.log_softmax(dim=0)[0].item()
        assert f"{math.exp(log_p):.5f}" == p
        assert f"{-log_p:.5g}" == loss


distances = st.lists(st.floats(0.01, 10.0), min_size=2, max_size=6)
scales = st.floats(1e-3, 1e3)


@given(distances, scales, st.floats(0.1, 20.0))
def test_distance_ratios_do_not_depend_on_scale(given_distances, alpha, rho):
    """ln p moves by rho 1e-10 / d^2 at most, d the smallest distance on either side: the price of a finite score."""
    d = torch.tensor(given_distances, dtype=torch.float64)
    before, after = (distance_ratio_scores(x, rho).log_softmax(dim=0) for x in (d, alpha * d))
    smallest = min(1.0, alpha) * d.min()
    assert (after - before).abs().max() <= rho * STABILITY / smallest**2 + 1e-10


@given(st.integers(0, 1000), scales, st.floats(0.1, 20.0), st.sampled_from(REPRESENTATIONS))
def test_embeddings_may_be_scaled(seed, alpha, rho, representation):
    draw = torch.Generator().manual_seed(seed)
    support = torch.randn(4, 3, 5, generator=draw, dtype=torch.float64)
    query = torch.randn(6, 5, generator=draw, dtype=torch.float64)
    d, scaled = (
        class_distances(Euclidean(), factor * support, factor * query, representation) for factor in (1.0, alpha)
    )
    before, after = (distance_ratio_scores(x, rho).log_softmax(dim=1) for x in (d, scaled))
    assert (after - before).abs().max() <= rho * STABILITY / torch.minimum(d, scaled).min() ** 2 + 1e-9


@given(distances, st.floats(1.1, 10.0))
def test_softmax_of_squared_distances_depends_on_scale(given_distances, alpha):
    """Scaling up makes it surer of the nearest class, and nothing else has changed."""
    d = torch.tensor(given_distances, dtype=torch.float64)
    nearest, second = d.sort().values[:2]
    assume(second**2 - nearest**2 > 0.01)
    before, after = (sd_softmax_scores(x).softmax(dim=0)[d.argmin()] for x in (d, alpha * d))
    assume(before < 1 - 1e-9)
    assert after > before
    assert sd_softmax_scores(d * 1e-4).softmax(dim=0).max() < 1 / len(d) + 1e-4, "scaled down, it knows nothing"


def representatives(space):
    """Five points that lie apart, and no two of them opposite each other."""
    draw = torch.Generator().manual_seed(1)
    return space.project(torch.randn(5, 3, generator=draw, dtype=torch.float64))


@pytest.mark.parametrize("space", SPACES, ids=named)
@pytest.mark.parametrize("rho", [1.0, 2.0, math.exp(2)])
def test_a_class_is_certain_at_its_own_representative_and_impossible_at_anothers(space, rho):
    points = representatives(space)
    way = torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64)
    errors = []
    for step in (1e-1, 1e-2, 1e-3, 1e-4, 0.0):
        near = points + step * way
        near = space.project(near) if isinstance(space, Sphere) else near
        p = distance_ratio_scores(class_distances(space, points.unsqueeze(1), near), rho).softmax(dim=1)
        errors.append((p - torch.eye(5)).abs().max().item())
    assert errors == sorted(errors, reverse=True), "the nearer, the surer"
    assert errors[-1] < 1e-3 if rho == 1 else errors[-1] < 1e-8


@pytest.mark.parametrize("space", SPACES, ids=named)
def test_softmax_is_uncertain_at_representatives(space):
    points = representatives(space)
    d = class_distances(space, points.unsqueeze(1), points)
    p = sd_softmax_scores(d).softmax(dim=1)
    expected = 1 / sd_softmax_scores(d).exp().sum(dim=1)  # its own score is 0
    torch.testing.assert_close(p.diagonal(), expected)
    assert (p.diagonal() < 0.99).any()
    others = p[~torch.eye(5, dtype=bool)]
    assert others.max() > 1e-2


def test_far_away_ratios_are_undecided_and_softmax_is_certain():
    points = representatives(Euclidean())
    far = 1e4 * torch.tensor([[0.3, -0.5, 0.8]], dtype=torch.float64)
    d = class_distances(Euclidean(), points.unsqueeze(1), far)
    assert (distance_ratio_scores(d, 2.0).softmax(dim=1) - 1 / 5).abs().max() < 1e-3
    assert sd_softmax_scores(d).softmax(dim=1).max() > 1 - 1e-9


def test_cosines_with_scale_2_are_squared_chords():
    """|x - y|^2 = 2 - 2 cos: on the sphere NormFace is SD-softmax."""
    points = representatives(Sphere())
    points = points / points.norm(dim=1, keepdim=True)
    cosines = points @ points.T
    expected = sd_softmax_scores(Sphere("chord").distance(points, points)).softmax(dim=1)
    torch.testing.assert_close(normface_probabilities(cosines, 2.0), expected)


@pytest.mark.parametrize("at", NEAR)
def test_gradcheck_of_the_score_near_zero(at):
    d = torch.tensor([at, at / 2, 1.0], dtype=torch.float64, requires_grad=True)
    # Within 1e-5 of 0 the score bends by 1e10, so the differences must be taken much nearer than usual.
    assert torch.autograd.gradcheck(lambda x: distance_ratio_scores(x, 2.0), d, eps=1e-8, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("at", NEAR)
@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("space", SPACES, ids=named)
def test_gradcheck_through_class_distances_near_zero(space, representation, at):
    """A query on, or nearly on, what stands for its class; and one elsewhere."""
    support, query = nearly_touching(space, representation, at)

    def scores(s, q):
        return distance_ratio_scores(class_distances(space, s, q, representation), 2.0)

    assert torch.autograd.gradcheck(scores, (support, query), eps=1e-8, rtol=2e-3, atol=2e-3)


def nearly_touching(space, representation, at, dtype=torch.float64):
    """Support (2, 2, 3) and queries (2, 3), the first of them `at` away from the first class."""
    raw = torch.tensor([[[0.5, 0.1, 0.2], [0.2, 0.6, 0.3]], [[-0.4, 0.3, 0.1], [0.3, 0.2, -0.5]]], dtype=torch.float64)
    support = space.project(raw)
    first = space.mean(support[0]) if representation == "mean" else support[0, 0]
    beside = first + at * torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    query = torch.stack([beside, space.project(torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64))])
    return support.to(dtype).requires_grad_(), query.to(dtype).requires_grad_()


@pytest.mark.parametrize("at", NEAR)
@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("space", SPACES, ids=named)
def test_gradients_are_finite_in_single_precision(space, representation, at):
    support, query = nearly_touching(space, representation, at, torch.float32)
    rho = torch.tensor(2.0, requires_grad=True)
    d = class_distances(space, support, query, representation)
    loss = torch.nn.functional.cross_entropy(distance_ratio_scores(d, rho), torch.tensor([1, 0]))
    loss.backward()
    assert loss.isfinite()
    for given_tensor in (support, query, rho):
        assert given_tensor.grad.isfinite().all()
    assert query.grad[1].abs().sum() > 0


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_the_gradient_pulls_and_pushes_straight(representation):
    """Near its own representative the loss of a query falls straight towards it, and from another's straight away."""
    support = torch.tensor([[[0.0, 0.0]], [[3.0, 1.0]]], dtype=torch.float64)
    offset = torch.tensor([0.6, 0.8], dtype=torch.float64)
    for own, sign in ((0, 1.0), (1, -1.0)):
        query = (support[0] + 0.001 * offset).requires_grad_()
        d = class_distances(Euclidean(), support, query, representation)
        torch.nn.functional.cross_entropy(distance_ratio_scores(d, 2.0), torch.tensor([own])).backward()
        assert torch.nn.functional.cosine_similarity(query.grad[0], sign * offset, dim=0) > 0.999


SCALE = 2.0


def directions(count, d=4, seed=0):
    raw = torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(raw)


MODELS = {
    "normface": (lambda c: normface_probabilities(c, SCALE), lambda angle: math.cos(angle)),
    "sphereface": (lambda c: sphereface_probabilities(c, SCALE, 4), lambda angle: psi(angle, 4)),
    "sphereface, k = 0": (lambda c: sphereface_probabilities(c, SCALE, 2, 1), lambda angle: math.cos(2 * angle)),
    "cosface": (lambda c: cosface_probabilities(c, SCALE, 0.25), lambda angle: math.cos(angle) - 0.25),
    "arcface": (lambda c: arcface_probabilities(c, SCALE, 0.25), lambda angle: falling(angle, 0.25)),
    "arcface, negative": (
        lambda c: arcface_probabilities(c, SCALE, -0.7),
        lambda angle: falling(max(angle, 0.7), -0.7),
    ),
}


def psi(angle, margin):
    k = min(int(angle * margin / math.pi), margin - 1)
    return (-1) ** k * math.cos(margin * angle) - 2 * k


def falling(angle, margin):
    return math.cos(angle + margin) if angle + margin <= math.pi else math.cos(angle) - margin * math.sin(margin)


def naive(cosines, own):
    """p(c | x) by the printed formula, one class after the other."""
    rows = []
    for row in cosines.tolist():
        angles = [math.acos(value) for value in row]
        for c in range(len(row)):
            mine = math.exp(SCALE * own(angles[c]))
            others = sum(math.exp(SCALE * math.cos(angles[y])) for y in range(len(row)) if y != c)
            rows.append(mine / (mine + others))
    return torch.tensor(rows, dtype=torch.float64).view_as(cosines)


@pytest.mark.parametrize("name", MODELS)
def test_the_printed_formula(name):
    probabilities, own = MODELS[name]
    cosines = directions(40) @ directions(5, seed=1).T
    torch.testing.assert_close(probabilities(cosines), naive(cosines, own))


def library(name, classes, d):
    return {
        "normface": lambda: losses.NormalizedSoftmaxLoss(classes, d, temperature=1 / SCALE),
        "sphereface": lambda: losses.SphereFaceLoss(classes, d, margin=4, scale=SCALE),
        "cosface": lambda: losses.CosFaceLoss(classes, d, margin=0.25, scale=SCALE),
        "arcface": lambda: losses.ArcFaceLoss(classes, d, margin=math.degrees(0.25), scale=SCALE),
    }[name]()


@pytest.mark.parametrize("name", ["normface", "sphereface", "cosface", "arcface"])
def test_the_losses_of_pytorch_metric_learning(name):
    """Their loss of a single item is minus the log of the probability of its label."""
    weights, points = directions(3, seed=1), directions(30)
    loss = library(name, 3, 4)
    loss.W.data = weights.T.clone()
    with torch.no_grad():
        each = [[loss(x[None], torch.tensor([c])).item() for c in range(3)] for x in points]
    expected = (-torch.tensor(each, dtype=torch.float64)).exp()
    torch.testing.assert_close(MODELS[name][0](points @ weights.T), expected, rtol=1e-6, atol=1e-8)


def test_without_a_margin_all_are_normface():
    cosines = directions(7) @ directions(5, seed=1).T
    plain = normface_probabilities(cosines, SCALE)
    torch.testing.assert_close(plain.sum(dim=1), torch.ones(7, dtype=torch.float64))
    torch.testing.assert_close(sphereface_probabilities(cosines, SCALE, 1), plain)
    torch.testing.assert_close(cosface_probabilities(cosines, SCALE, 0.0), plain)
    torch.testing.assert_close(arcface_probabilities(cosines, SCALE, 0.0), plain)


@given(st.floats(0.01, 0.5), st.integers(0, 50))
def test_a_margin_only_lowers_probabilities(margin, seed):
    cosines = directions(9, seed=seed) @ directions(4, seed=seed + 100).T
    plain = normface_probabilities(cosines, SCALE)
    assert (cosface_probabilities(cosines, SCALE, margin) < plain).all()
    # Beyond 180 degrees less m/2 only the continuation is lower than the plain cosine.
    assert (arcface_probabilities(cosines, SCALE, margin) < plain)[cosines > -math.cos(margin / 2)].all()


@pytest.mark.parametrize("margin", [1, 2, 3, 4, 5])
def test_sphereface_falls_with_the_angle_over_all_segments(margin):
    cosines = torch.linspace(1, -1, 2001, dtype=torch.float64)
    pairs = torch.stack([cosines, torch.zeros_like(cosines)], dim=1)
    p = sphereface_probabilities(pairs, SCALE, margin)[:, 0]
    assert (p.diff() < 1e-12).all()
    assert p.diff().abs().max() < 0.05, "the segments meet"
    own = torch.logit(p) / SCALE
    assert own[0].item() == pytest.approx(1.0)
    assert own[-1].item() == pytest.approx(1 - 2 * margin)


def test_sphereface_with_one_segment_rises_again_behind():
    poles = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    p = sphereface_probabilities(poles, SCALE, 2, 1)[:, 0]
    assert p[2] == p[0] > 0.8 > 0.2 > p[1]


def test_any_leading_shape():
    cosines = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    for probabilities, _ in MODELS.values():
        whole = probabilities(cosines)
        assert whole.shape == cosines.shape
        torch.testing.assert_close(whole[1, 2, 3], probabilities(cosines[1, 2, 3]))
        assert probabilities(cosines[:0]).shape == (0, 3, 4, 5)
        assert probabilities(torch.zeros(2, 1)).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    cosines = (0.99 * directions(6) @ directions(3, seed=1).T).requires_grad_()
    assert torch.autograd.gradcheck(MODELS[name][0], cosines)


def test_scale_and_the_margin_of_cosface_can_be_learned():
    cosines = directions(6) @ directions(3, seed=1).T
    scale, margin = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (2.0, 0.25))
    assert torch.autograd.gradcheck(lambda s, m: cosface_probabilities(cosines, s, m), (scale, margin))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_gradients_are_finite_at_the_poles(name, dtype):
    cosines = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.5]], dtype=dtype, requires_grad=True)
    p = MODELS[name][0](cosines)
    assert p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    p[:, 0].log().sum().backward()
    assert cosines.grad.isfinite().all()


def test_cosines_a_little_beyond_one_are_harmless():
    cosines = torch.tensor([[1 + 1e-7, -1 - 1e-7]], requires_grad=True)
    for probabilities, _ in MODELS.values():
        p = probabilities(cosines)
        assert p.isfinite().all()
        np.testing.assert_allclose(p.detach(), probabilities(cosines.clamp(-1, 1)).detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c: sphereface_probabilities(c, SCALE, 0), "margin"),
        (lambda c: sphereface_probabilities(c, SCALE, 1.5), r"1\.5"),
        (lambda c: sphereface_probabilities(c, SCALE, 2, 3), "segments"),
        (lambda c: sphereface_probabilities(c, SCALE, 2, 0), "segments"),
        (lambda c: arcface_probabilities(c, SCALE, -3.2), r"-3\.2"),
        (lambda c: arcface_probabilities(c, SCALE, "0.5"), "ArcFace"),
        (lambda c: arcface_probabilities(c, SCALE, None), "None"),
        (lambda c: cosface_probabilities(c, SCALE, "0.5"), "CosFace"),
        (lambda c: cosface_probabilities(c, SCALE, None), "None"),
        (lambda c: arcface_probabilities(c, SCALE, 28.6), "radians"),
        (lambda c: arcface_probabilities(c, SCALE, math.nan), "nan"),
    ],
)
def test_bad_margins_are_told(call, match):
    with pytest.raises(DataError, match=match):
        call(torch.zeros(1, 3))
