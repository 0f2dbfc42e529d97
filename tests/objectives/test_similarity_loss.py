"""The loss of a learned similarity against loops written out pair by pair."""

import math

import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.models.similarity import PairSimilarity, PrototypeBank, SimilarityParts
from nearkin.objectives import ObjectiveSection, make_objective
from nearkin.objectives.similarity import SimilarityLoss
from nearkin.spaces import Euclidean, Sphere

CLASSES, DIMENSION = 4, 5


def parts(dropout=0.0, dense=True):
    torch.manual_seed(0)
    layer = torch.nn.Linear(DIMENSION, CLASSES) if dense else None
    network = PairSimilarity(DIMENSION, hidden=16, dropout=dropout)
    return SimilarityParts(network, PrototypeBank(CLASSES, DIMENSION), layer)


def batch(seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(9, DIMENSION, generator=draw), torch.tensor([0, 0, 0, 1, 1, 3, 3, 3, 3])


def naive_terms(made, points, labels, smoothing=0.0):
    """Class, pair and auxiliary terms, one number at a time."""
    direct = made.network
    points = points.detach()
    rows = [[float(direct(c, z).detach()) for c in made.prototypes.points] for z in points]
    same = [
        math.log1p(math.exp(-float(direct(points[i], points[j]).detach())))
        for i in range(len(points))
        for j in range(len(points))
        if i != j and labels[i] == labels[j]
    ]
    apart = [
        math.log1p(math.exp(float(direct(points[i], points[j]).detach())))
        for i in range(len(points))
        for j in range(len(points))
        if labels[i] != labels[j]
    ]
    dense = [[float(v) for v in made.dense(z)] for z in points]
    return (
        cross_entropy(rows, labels, smoothing),
        sum(same) / len(same) + sum(apart) / len(apart),
        cross_entropy(dense, labels, smoothing),
    )


def cross_entropy(rows, labels, smoothing):
    total = 0.0
    for row, label in zip(rows, labels.tolist(), strict=True):
        log_sum = math.log(sum(math.exp(value) for value in row))
        logs = [value - log_sum for value in row]
        total -= (1 - smoothing) * logs[label] + smoothing * sum(logs) / len(logs)
    return total / len(rows)


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 0, 0), (0, 2, 0), (0.5, 0, 3)])
@pytest.mark.parametrize("space", [Euclidean(), Sphere()], ids=["euclidean", "sphere"])
def test_each_term_of_learned_similarity_is_that_of_the_loops_and_can_be_left_out(weights, space):
    made, (embeddings, labels) = parts(), batch()
    loss = SimilarityLoss(space, made, weights, label_smoothing=0.2).eval()
    terms = naive_terms(made, space.project(embeddings), labels, smoothing=0.2)
    expected = sum(weight * term for weight, term in zip(weights, terms, strict=True))
    assert float(loss(embeddings, labels)) == pytest.approx(expected, rel=1e-5)
    names = ("class_loss", "pair_loss", "auxiliary_loss")
    assert set(loss.readings()) == {name for name, weight in zip(names, weights, strict=True) if weight}


def test_prototypes_move_before_the_scores_are_taken_and_without_a_gradient():
    made, (embeddings, labels) = parts(), batch()
    before = made.prototypes.points.clone()
    moved = before.clone()
    for label in (0, 1, 3):
        moved[label] = 0.7 * before[label] + 0.3 * embeddings[labels == label].mean(dim=0)
    loss = SimilarityLoss(Euclidean(), made, (1, 0, 0), momentum=0.7)
    embeddings.requires_grad_(True)
    value = loss(embeddings, labels)
    torch.testing.assert_close(made.prototypes.points, moved)
    assert not made.prototypes.points.requires_grad
    assert float(value) == pytest.approx(naive_terms(made, embeddings, labels)[0], rel=1e-5)
    # The gradient is that of fixed prototypes.
    (gradient,) = torch.autograd.grad(value, embeddings)
    fixed = torch.nn.functional.cross_entropy(made.network.table(embeddings, moved), labels)
    torch.testing.assert_close(gradient, torch.autograd.grad(fixed, embeddings)[0])
    assert torch.equal(made.prototypes.points[2], before[2])


def test_evaluation_leaves_prototypes_alone():
    made = parts()
    before = made.prototypes.points.clone()
    SimilarityLoss(Euclidean(), made).eval()(*batch())
    assert torch.equal(made.prototypes.points, before)


def test_draws_follow_from_seed_and_step_and_leave_the_global_generator_alone():
    embeddings, labels = batch()

    def values(seed):
        loss = SimilarityLoss(Euclidean(), parts(dropout=0.5), target_spread=0.2, seed=seed)
        torch.manual_seed(len(made))
        state = torch.get_rng_state()
        found = [float(loss(embeddings, labels)) for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), state)
        made.append(found)
        return found

    made = []
    assert values(1) == values(1) != values(2)
    assert made[0][0] != made[0][1]


def test_targets_are_spread_within_their_halves():
    made, (embeddings, labels) = parts(), batch()
    plain = float(SimilarityLoss(Euclidean(), made, (0, 1, 0)).eval()(embeddings, labels))
    spread = SimilarityLoss(Euclidean(), made, (0, 1, 0), target_spread=0.4)
    assert float(spread.eval()(embeddings, labels)) == plain
    spread.train()
    scores = made.network.table(embeddings, embeddings)
    same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    # BCE is linear in its target, so the most that the spread can move it is that of all targets at the far end.
    most = 0.4 * (scores[same].abs().mean() + scores[labels[:, None] != labels].abs().mean())
    assert 0 < abs(float(spread(embeddings, labels)) - plain) < float(most)


def test_a_batch_of_one_class_or_of_single_items_has_what_pairs_it_has():
    made = parts()
    loss = SimilarityLoss(Euclidean(), made, (0, 1, 0)).eval()
    embeddings = batch()[0][:3]
    for labels in (torch.zeros(3, dtype=torch.int64), torch.arange(3)):
        value = loss(embeddings, labels)
        assert torch.isfinite(value)
        assert float(value) > 0


def test_parts_of_a_model_are_not_the_losss_own():
    given = parts()
    section = ObjectiveSection(loss="learned-similarity")
    objective = make_objective(section, dimension=DIMENSION, classes=CLASSES, similarity=given)
    assert objective.proxies() == []
    assert {name for name in objective.state_dict() if "steps" not in name} == set()
    assert objective.loss.parts is given
    own = make_objective(section, dimension=DIMENSION, classes=CLASSES)
    assert len(own.proxies()) == 6
    assert "loss.prototypes.points" in own.state_dict()


def test_refusals():
    nothing = {"class_weight": 0, "pair_weight": 0}
    with pytest.raises(RecipeError, match="pair_weight"):
        make_objective(ObjectiveSection(loss="learned-similarity", parameters=nothing), dimension=4, classes=3)
    for bad in ({"momentum": 1.0}, {"target_spread": 0.5}, {"pair_weight": -1}):
        with pytest.raises(RecipeError, match=next(iter(bad))):
            ObjectiveSection(loss="learned-similarity", parameters=bad)


def test_what_is_not_followed_has_the_same_loss_and_moves_nothing():
    """With the draws of a step of its own, and nothing for the log."""
    ours, theirs = (SimilarityLoss(Euclidean(), parts(dropout=0.5), momentum=1.0, target_spread=0.3) for _ in range(2))
    for loss in (ours, theirs):
        loss(*batch())
    told, points = ours.readings(), ours.parts.prototypes.points.clone()
    value = ours.unfollowed(*batch(2))
    assert torch.equal(value, theirs(*batch(2)))  # whose prototypes stay, for their momentum is 1
    assert ours.readings() == told != theirs.readings()
    assert torch.equal(ours.parts.prototypes.points, points)
    assert int(ours.steps) == 2


def test_in_eval_mode_nothing_drops_out_whosever_the_network_is():
    made = parts(dropout=0.5)
    loss = SimilarityLoss(Euclidean(), made, owned=False)
    loss.eval()
    assert made.network.training
    value, scores = loss(*batch()), loss.class_scores(batch()[0])
    made.network.eval()
    assert torch.equal(value, loss(*batch()))
    assert torch.equal(scores, loss.class_scores(batch()[0]))
