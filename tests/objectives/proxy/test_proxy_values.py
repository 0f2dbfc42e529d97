"""Losses by class representatives, recomputed by naive loops and compared with pytorch-metric-learning's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peers
from scipy.special import logsumexp

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.objectives import ObjectiveSection, losses, make_objective
from nearkin.objectives.proxy.scores import chord_nearness
from nearkin.spaces import PoincareBall, Sphere, make_space, widest_angle

CLASSES, DIMENSION, BATCH = 5, 4, 9
TREE = Hierarchy.from_nested({"cats": ["lion", "tiger"], "dogs": ["wolf", "fox", "dingo"]})
OURS = [
    "softmax",
    "normface",
    "cosface",
    "arcface",
    "sphereface",
    "adacos",
    "sd-softmax",
    "proxy-dr",
    "corr",
    "h-spherical",
]
SPACES = ["sphere", "lipschitz-ball", "euclidean", "poincare-ball"]


def loss_of(name, space="sphere", seed=0, **parameters):
    made = make_objective(
        ObjectiveSection(loss=name, parameters=parameters),
        dimension=DIMENSION,
        classes=CLASSES,
        space=make_space(space),
        seed=seed,
        class_names=TREE.classes,
        hierarchy=TREE,
    )
    return made.double().loss


def batch(seed=0, size=BATCH):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return 2 * torch.randn(size, DIMENSION, generator=generator, dtype=torch.float64), labels


def cross_entropy(logits, labels):
    return np.mean([logsumexp(row) - row[c] for row, c in zip(np.asarray(logits), labels.tolist(), strict=True)])


def angle(x, y):
    x, y = np.asarray(x), np.asarray(y)
    return math.acos(np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y)))


def raw_proxies(loss):
    return loss.bank.proxies.detach().numpy()


def logits_by_loops(x, proxies, score):
    return [[score(row, proxy) for proxy in proxies] for row in x.numpy()]


def test_softmax():
    x, labels = batch()
    loss = loss_of("softmax", "euclidean")
    weight, bias = loss.bank.weight.detach(), loss.scores.bias.detach()
    expected = cross_entropy(torch.nn.functional.linear(x, weight, bias), labels)
    assert loss(x, labels).item() == pytest.approx(expected)


def test_softmax_compares_points_of_its_space():
    x, labels = batch()
    loss = loss_of("softmax")
    unit = torch.nn.functional.normalize(x)
    expected = cross_entropy(unit @ loss.bank.weight.detach().T + loss.scores.bias.detach(), labels)
    assert loss(x, labels).item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(loss.class_vectors(), Sphere().project(loss.bank.weight))


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_normface(scale):
    x, labels = batch()
    loss = loss_of("normface", scale=scale)
    logits = logits_by_loops(x, raw_proxies(loss), lambda a, b: scale * math.cos(angle(a, b)))
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels))


def test_adacos_static():
    x, labels = batch()
    loss = loss_of("adacos", scale="static")
    scale = math.sqrt(2) * math.log(CLASSES - 1)
    logits = logits_by_loops(x, raw_proxies(loss), lambda a, b: scale * math.cos(angle(a, b)))
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels))
    assert loss.readings() == {}


@pytest.mark.parametrize("space", SPACES)
def test_sd_softmax(space):
    x, labels = batch()
    loss = loss_of("sd-softmax", space, scale=0.7)
    there = make_space(space)
    points, proxies = there.project(x), loss.class_vectors().detach()
    logits = [[-0.7 * there.distance(p[None], q[None]).item() ** 2 for q in proxies] for p in points]
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels), rel=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_sd_softmax_of_plain_distances(space):
    x, labels = batch()
    loss = loss_of("sd-softmax", space, scale=0.7, power=1)
    there = make_space(space)
    points, proxies = there.project(x), loss.class_vectors().detach()
    logits = [[-0.7 * there.distance(p[None], q[None]).item() for q in proxies] for p in points]
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels), rel=1e-5)
    on = proxies.clone().requires_grad_()
    loss(on, torch.arange(CLASSES)).backward()
    assert on.grad.isfinite().all()


def test_sd_softmax_is_normface_at_twice_the_scale_on_the_sphere():
    x, labels = batch()
    torch.testing.assert_close(loss_of("sd-softmax", scale=5)(x, labels), loss_of("normface", scale=10)(x, labels))


@pytest.mark.parametrize("scale", [0.5, 10.0])
def test_proxy_dr_chord(scale):
    x, labels = batch()
    loss = loss_of("proxy-dr", scale=scale)
    logits = logits_by_loops(
        x, raw_proxies(loss), lambda a, b: -scale / 2 * math.log(2 - 2 * math.cos(angle(a, b)) + 1e-12)
    )
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels))


@pytest.mark.parametrize("scale", [0.5, 10.0])
def test_proxy_dr_angle(scale):
    x, labels = batch()
    loss = loss_of("proxy-dr", scale=scale, distance="angle")
    logits = logits_by_loops(x, raw_proxies(loss), lambda a, b: -scale * math.log(angle(a, b)))
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels))


@pytest.mark.parametrize("space", SPACES[1:])
def test_proxy_dr_by_the_distance_of_another_space(space):
    x, labels = batch()
    loss = loss_of("proxy-dr", space, scale=3)
    there = make_space(space)
    points, proxies = there.project(x), loss.class_vectors().detach()
    shares = np.array([[there.distance(p[None], q[None]).item() ** -3 for q in proxies] for p in points])
    own = shares[np.arange(BATCH), labels] / shares.sum(axis=1)
    assert loss(x, labels).item() == pytest.approx(-np.log(own).mean(), rel=1e-6)


@pytest.mark.parametrize(("name", "power"), [("corr", 1), ("h-spherical", 2)])
def test_pulls(name, power):
    x, labels = batch()
    loss = loss_of(name)
    own = raw_proxies(loss)[labels]
    expected = np.mean([(1 - math.cos(angle(a, b))) ** power for a, b in zip(x.numpy(), own, strict=True)])
    assert loss(x, labels).item() == pytest.approx(expected)


def test_corr_pulls_to_the_own_proxy_only():
    x, labels = batch()
    loss = loss_of("corr")
    before = loss(x, labels)
    absent = sorted(set(range(CLASSES)) - set(labels[:3].tolist()))
    few = loss(x[:3], labels[:3])
    loss.bank.proxies[absent] = 0.5
    assert loss(x[:3], labels[:3]) == few
    assert loss(x, labels) != before


def test_h_spherical_has_no_pull_left_at_the_proxy():
    loss = loss_of("h-spherical")
    x = loss.class_vectors().clone().requires_grad_()
    value = loss(x, torch.arange(CLASSES))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert x.grad.abs().max() < 1e-6


def copied(peer, loss):
    """The library's loss with our class weights."""
    peer = peer.double()
    peer.W.data = loss.bank.proxies.detach().T.clone()
    return peer


@pytest.mark.parametrize(
    ("name", "parameters", "peer"),
    [
        ("normface", {"scale": 20}, lambda: peers.NormalizedSoftmaxLoss(CLASSES, DIMENSION, temperature=0.05)),
        ("cosface", {"margin": 0.2, "scale": 32}, lambda: peers.CosFaceLoss(CLASSES, DIMENSION, margin=0.2, scale=32)),
        ("arcface", {}, lambda: peers.ArcFaceLoss(CLASSES, DIMENSION)),
        ("arcface", {"margin": 80, "scale": 8}, lambda: peers.ArcFaceLoss(CLASSES, DIMENSION, margin=80, scale=8)),
        (
            "arcface",
            {"sub_centres": 3, "scale": 8},
            lambda: peers.SubCenterArcFaceLoss(num_classes=CLASSES, embedding_size=DIMENSION, scale=8, sub_centers=3),
        ),
    ],
)
def test_values_and_gradients_are_the_librarys(name, parameters, peer):
    x, labels = batch(1, size=40)
    loss = loss_of(name, **parameters)
    theirs = copied(peer(), loss)
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    value, expected = loss(first, labels), theirs(second, labels)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-8)
    value.backward()
    expected.backward()
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss.bank.proxies.grad, theirs.W.grad.T, rtol=1e-4, atol=1e-6)


def negative_angle(theta, m):
    return math.cos(max(theta + m, 0.0))


@pytest.mark.parametrize(
    ("name", "margin", "own"),
    [
        ("cosface", -0.3, lambda theta: math.cos(theta) + 0.3),
        ("arcface", -40.0, lambda theta: negative_angle(theta, -math.radians(40))),
        ("arcface", 0.0, math.cos),
    ],
)
def test_negative_margins(name, margin, own):
    x, labels = batch(3, size=40)
    loss = loss_of(name, margin=margin, scale=8)
    logits = logits_by_loops(x, raw_proxies(loss), lambda a, b: 8 * math.cos(angle(a, b)))
    for row, c, point in zip(logits, labels.tolist(), x.numpy(), strict=True):
        row[c] = 8 * own(angle(point, raw_proxies(loss)[c]))
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels), rel=1e-5)


def test_a_negative_angle_pushes_no_point_away_from_its_proxy():
    loss = loss_of("arcface", margin=-40.0, scale=8)
    proxies = loss.class_vectors().detach()
    x = (proxies + 0.2 * torch.roll(proxies, 1, dims=0)).requires_grad_()
    labels = torch.arange(CLASSES)
    (slope,) = torch.autograd.grad(loss(x, labels), x)
    assert (torch.nn.functional.cosine_similarity(x, proxies).acos().rad2deg() < 40).all()
    towards = ((proxies - x) * -slope).sum(dim=1)
    assert (towards > -1e-9).all()


@pytest.mark.parametrize(
    ("name", "most", "least"),
    [("cosface", -1.24, -1.26), ("arcface", -104.4, -104.5), ("soft-triple", -1.24, -1.26)],
)
def test_a_margin_that_asks_for_nothing_is_refused(name, most, least):
    """Five classes in four dimensions can be the corners of a simplex, whose cosines are -1/4 (104.48 degrees)."""
    loss_of(name, margin=most)
    with pytest.raises(RecipeError, match="raise objective"):
        loss_of(name, margin=least)


def test_beyond_the_bound_a_point_on_another_proxy_counts_as_its_own():
    corners = torch.eye(3, dtype=torch.float64) - 1 / 3  # three directions at 120 degrees
    on_others = corners.roll(1, dims=0)
    for margin, right in ((-1.51, True), (-1.49, False)):
        scores = torch.nn.functional.normalize(on_others) @ torch.nn.functional.normalize(corners).T
        own = scores.diagonal() - margin
        others = scores.clone().fill_diagonal_(-9).amax(dim=1)
        assert bool((own > others).all()) is right
    assert math.cos(widest_angle(3, 3)) - 1 == pytest.approx(-1.5)


def psi(theta, m):
    k = min(int(m * theta / math.pi), m - 1)
    return (-1) ** k * math.cos(m * theta) - 2 * k


@pytest.mark.parametrize(("margin", "blend"), [(1, 0.0), (2, 0.0), (4, 5.0), (3, 0.5)])
def test_sphereface(margin, blend):
    x, labels = batch(2, size=40)
    loss = loss_of("sphereface", margin=margin, blend=blend, scale=4)
    logits = logits_by_loops(x, raw_proxies(loss), lambda a, b: 4 * math.cos(angle(a, b)))
    for row, c, point in zip(logits, labels.tolist(), x.numpy(), strict=True):
        theta = angle(point, raw_proxies(loss)[c])
        row[c] = 4 * (blend * math.cos(theta) + psi(theta, margin)) / (blend + 1)
    assert loss(x, labels).item() == pytest.approx(cross_entropy(logits, labels))


def test_sphereface_is_the_librarys_without_a_blend():
    x, labels = batch(1, size=40)
    x = torch.nn.functional.normalize(x)  # theirs scales by the length of each embedding
    loss = loss_of("sphereface", margin=4, blend=0, scale=2)
    theirs = copied(peers.SphereFaceLoss(CLASSES, DIMENSION, margin=4, scale=2), loss)
    torch.testing.assert_close(loss(x, labels), theirs(x, labels), rtol=1e-5, atol=1e-8)


def test_sub_centres_score_by_the_nearest_and_stand_for_a_class_by_their_mean():
    x, _ = batch()
    loss = loss_of("arcface", sub_centres=3, scale=2)
    points, centres = Sphere().project(x), raw_proxies(loss).reshape(CLASSES, 3, DIMENSION)
    for b, c in np.ndindex(BATCH, CLASSES):
        best = max(math.cos(angle(x[b], centre)) for centre in centres[c])
        assert loss.class_scores(points)[b, c].item() == pytest.approx(2 * best)
    unit = centres / np.linalg.norm(centres, axis=-1, keepdims=True)
    means = unit.mean(axis=1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(loss.class_vectors().detach().numpy(), means, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "space"), [(name, space) for name in OURS for space in sorted(losses.get(name).spaces or SPACES)]
)
def test_gradients(name, space):
    x, labels = batch()
    loss = loss_of(name, space).eval()
    learned = dict(loss.named_parameters())

    def value(f, *given):
        return torch.func.functional_call(loss, dict(zip(learned, given, strict=True)), (f, labels))

    assert torch.autograd.gradcheck(value, (x.requires_grad_(), *learned.values()))


@pytest.mark.parametrize("scale", [0.5, 10, 100])
@pytest.mark.parametrize(("space", "distance"), [*((space, "chord") for space in SPACES), ("sphere", "angle")])
def test_proxy_dr_is_finite_on_and_opposite_a_proxy(space, distance, scale):
    loss = loss_of("proxy-dr", space, distance=distance, scale=scale).float()
    ends = torch.cat([loss.bank.proxies.detach(), -loss.bank.proxies.detach()]).requires_grad_()
    for labels in (torch.arange(CLASSES).repeat(2), torch.arange(CLASSES).roll(1).repeat(2)):
        value = loss(ends, labels)
        (slope,) = torch.autograd.grad(value, ends)
        assert value.isfinite()
        assert slope.isfinite().all()


@pytest.mark.parametrize("distance", ["chord", "angle"])
def test_a_class_is_surest_at_its_own_proxy_with_ratios(distance):
    loss = loss_of("proxy-dr", distance=distance)
    assert loss(loss.class_vectors(), torch.arange(CLASSES)).item() == pytest.approx(0, abs=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(OURS[:-2]), st.randoms(use_true_random=False))
def test_the_numbering_of_classes_does_not_matter(seed, name, random):
    order = list(range(CLASSES))
    random.shuffle(order)
    x, labels = batch(seed)
    loss, other = loss_of(name), loss_of(name)
    for old, new in zip(loss.parameters(), other.parameters(), strict=True):
        new.data = old.data[order]
    renumbered = torch.tensor(order).argsort()[labels]
    torch.testing.assert_close(loss(x, labels), other(x, renumbered))
    points = loss.space.project(x)
    torch.testing.assert_close(loss.class_scores(points)[:, order], other.class_scores(points))
    torch.testing.assert_close(loss.class_vectors()[order], other.class_vectors())


@pytest.mark.parametrize("name", ["cosface", "arcface", "sphereface"])
def test_scores_have_no_margin(name):
    x, _ = batch()
    loss, plain = loss_of(name, scale=10), loss_of("normface", scale=10)
    points = Sphere().project(x)
    assert torch.equal(loss.class_scores(points), plain.class_scores(points))


@pytest.mark.parametrize("name", ["proxy-dr", "sd-softmax"])
def test_scores_are_of_points_that_are_not_projected_again(name):
    x, labels = batch()
    loss = loss_of(name, "poincare-ball")
    points = PoincareBall().project(x)
    torch.testing.assert_close(loss(x, labels), torch.nn.functional.cross_entropy(loss.class_scores(points), labels))
    inside = loss.class_scores(loss.class_vectors())
    assert torch.equal(inside.argmax(dim=1), torch.arange(CLASSES))


@pytest.mark.parametrize(
    ("x", "labels", "word"),
    [
        (
            torch.zeros(3, DIMENSION + 1),
            [0, 1, 2],
            "3, 5",
        ),
        (torch.zeros(DIMENSION), [0], "4,"),
        (torch.zeros(3, DIMENSION), [0, 1], "2,"),
        (torch.zeros(0, DIMENSION), [], "0"),
        (torch.zeros(3, DIMENSION), [0, 1, CLASSES], "labels"),
        (torch.zeros(3, DIMENSION), [0, 1, -1], "-1"),
    ],
)
def test_bad_batches_are_refused(x, labels, word):
    with pytest.raises(DataError, match=word):
        loss_of("normface")(x.double(), torch.tensor(labels, dtype=torch.int64))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_what_cannot_be_told_from_a_proxy_is_not_pushed_by_rounding(seed):
    proxies = torch.randn(CLASSES, DIMENSION, generator=torch.Generator().manual_seed(seed))
    x = proxies.clone().requires_grad_()
    chord_nearness(x, proxies).diagonal().sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
