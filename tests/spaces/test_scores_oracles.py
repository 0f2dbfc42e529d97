"""The distance-ratio formulation: table 1 of the article, scale, limits at representatives, gradients where d is 0."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nearkin.spaces import (
    Euclidean,
    PoincareBall,
    Sphere,
    class_distances,
    distance_ratio_scores,
    sd_softmax_scores,
)
from nearkin.spaces.cosine_scores import normface_probabilities

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
