"""Hierarchical cross-entropy and soft labels against naive walks up the tree, hand-computed trees and their limits."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.objectives import LossShape, ObjectiveSection, losses, make_objective
from nearkin.objectives.hierarchy import HierarchicalCrossEntropy, SoftLabels, tree_nodes
from nearkin.objectives.proxy.scores import ConditionalScores
from nearkin.spaces import Sphere, make_space

ANIMALS = {"mammals": ["dog", "cat"], "fish": ["shark", "guppy"]}
NAMES = ("dog", "cat", "shark", "guppy")
UNEVEN = {"a": ["x", "y", "z"], "b": ["x"], "c": [], "d": ["x", "y"], "e": ["w"], "f": ["x", "y", "z"]}
"""Class to path. The node w has one child, and those of x, y and z are deeper than the others."""

paths = st.lists(st.lists(st.sampled_from("xy"), max_size=3), min_size=2, max_size=7).map(
    lambda found: {f"class {i}": [f"{name}{level}" for level, name in enumerate(path)] for i, path in enumerate(found)}
)
seeds = st.integers(0, 2**31)


def problem(classes, seed=0, batch=9, spread=3.0, dtype=torch.float64):
    """Scores (B, C) and labels (B,)."""
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(batch, classes, generator=generator, dtype=torch.float64)
    return scores.to(dtype), torch.randint(classes, (batch,), generator=generator)


def nodes_above(paths, name):
    """The leaf and its ancestors up to the root, each as its whole path."""
    whole = (*paths[name], f"leaf {name}")
    return [whole[:end] for end in range(len(whole), -1, -1)]


def leaves_below(paths, node):
    return [name for name in paths if node in nodes_above(paths, name)]


def height(paths, node):
    """The longest way down to a leaf."""
    return max(len(paths[name]) + 1 - len(node) for name in leaves_below(paths, node))


def exponent(paths, node, weighted_by):
    """What alpha is multiplied by: the node's height, or its depth below the root."""
    if weighted_by == "height":
        return height(paths, node)
    return len(node) - len(root(paths))


def root(paths):
    """A group around everything is the root."""
    outermost = {tuple(path[:1]) for path in paths.values()}
    return outermost.pop() if len(outermost) == 1 else ()


def naive_hxe(paths, scores, labels, alpha, weighted_by):
    names, losses = list(paths), []
    for row, label in zip(scores.numpy(), labels.tolist(), strict=True):
        p = dict(zip(names, np.exp(row) / np.exp(row).sum(), strict=True))
        up = nodes_above(paths, names[label])
        loss = 0.0
        for child, parent in pairwise(up):
            share = sum(p[y] for y in leaves_below(paths, child)) / sum(p[y] for y in leaves_below(paths, parent))
            loss -= math.exp(-alpha * exponent(paths, child, weighted_by)) * math.log(share)
        losses.append(loss)
    return sum(losses) / len(losses)


def lcs(paths, one, other):
    """Height of the lowest common node over that of the root."""
    common = next(node for node in nodes_above(paths, one) if node in nodes_above(paths, other))
    return height(paths, common) / height(paths, root(paths))


def naive_soft_labels(paths, scores, labels, beta):
    names, losses = list(paths), []
    for row, label in zip(scores.numpy(), labels.tolist(), strict=True):
        targets = [math.exp(-beta * lcs(paths, names[label], y)) for y in names]
        logs = row - np.log(np.exp(row).sum())
        losses.append(-sum(t / sum(targets) * log for t, log in zip(targets, logs, strict=True)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("weighted_by", ["height", "depth"])
@settings(max_examples=40, deadline=None)
@given(found=paths, seed=seeds)
def test_hxe_with_alpha_zero_is_cross_entropy(weighted_by, found, seed):
    scores, labels = problem(len(found), seed)
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    criterion = HierarchicalCrossEntropy(Hierarchy.from_paths(found), list(found), 0.0, weighted_by)
    value, expected = criterion(ours, labels), F.cross_entropy(theirs, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, ours), torch.autograd.grad(expected, theirs))


@pytest.mark.parametrize("weighted_by", ["height", "depth"])
@settings(max_examples=40, deadline=None)
@given(found=paths, seed=seeds, alpha=st.floats(0, 2))
def test_hxe_is_a_walk_up_the_tree(weighted_by, found, seed, alpha):
    scores, labels = problem(len(found), seed)
    value = HierarchicalCrossEntropy(Hierarchy.from_paths(found), list(found), alpha, weighted_by)(scores, labels)
    assert value.item() == pytest.approx(naive_hxe(found, scores, labels, alpha, weighted_by), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("name", "own", "parent"), [("dog", 0.4, 0.7), ("cat", 0.3, 0.7), ("guppy", 0.1, 0.3)])
def test_hxe_by_hand(name, own, parent):
    criterion = HierarchicalCrossEntropy(Hierarchy.from_nested(ANIMALS), NAMES, alpha=0.5)
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    label = torch.tensor([NAMES.index(name)])
    expected = -math.log(own / parent) - math.exp(-0.5) * math.log(parent)
    assert criterion(scores, label).item() == pytest.approx(expected, rel=1e-6)
    by_depth = HierarchicalCrossEntropy(Hierarchy.from_nested(ANIMALS), NAMES, alpha=0.5, weighted_by="depth")
    expected = -math.exp(-1) * math.log(own / parent) - math.exp(-0.5) * math.log(parent)
    assert by_depth(scores, label).item() == pytest.approx(expected, rel=1e-6)


def test_a_node_with_one_child_costs_nothing_but_counts_as_a_height():
    """The edge from e to w is certain; that from w to the root weighs exp(-alpha)."""
    paths = {"e": ["w"], "c": []}
    criterion = HierarchicalCrossEntropy(Hierarchy.from_paths(paths), ["e", "c"], alpha=0.3)
    scores = torch.tensor([[0.2, 0.8]], dtype=torch.float64).log()
    assert criterion(scores, torch.tensor([0])).item() == pytest.approx(-math.exp(-0.3) * math.log(0.2), rel=1e-6)
    assert criterion(scores, torch.tensor([1])).item() == pytest.approx(-math.log(0.8), rel=1e-6)


NEAR = torch.tensor([[0.05, 0.85, 0.05, 0.05]]).log()
FAR = torch.tensor([[0.05, 0.05, 0.85, 0.05]]).log()
DOG = torch.tensor([0])
"""Taken for a cat, and for a shark; to cross-entropy that is all one."""


@pytest.mark.parametrize(("weighted_by", "near", "far"), [("height", 2.95, 2.09), ("depth", 1.13, 1.65)])
def test_by_depth_a_near_miss_costs_less_and_by_height_a_far_one(weighted_by, near, far):
    """The numbers are on the page: which decisions have the larger weights makes all the difference."""
    criterion = HierarchicalCrossEntropy(Hierarchy.from_nested(ANIMALS), NAMES, 0.5, weighted_by)
    assert criterion(NEAR, DOG).item() == pytest.approx(near, abs=0.005)
    assert criterion(FAR, DOG).item() == pytest.approx(far, abs=0.005)
    assert F.cross_entropy(FAR, DOG).item() == pytest.approx(F.cross_entropy(NEAR, DOG).item())


def test_with_soft_labels_a_near_miss_costs_less():
    criterion = SoftLabels(Hierarchy.from_nested(ANIMALS), NAMES, 3.0)
    assert criterion(NEAR, DOG) < criterion(FAR, DOG) - 0.1


@pytest.mark.parametrize("make", [HierarchicalCrossEntropy, SoftLabels])
@settings(max_examples=25, deadline=None)
@given(found=paths, seed=seeds)
def test_how_classes_are_numbered_changes_nothing(make, found, seed):
    names, tree = list(found), Hierarchy.from_paths(found)
    scores, labels = problem(len(names), seed)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    renamed = [names[i] for i in order]
    moved = make(tree, renamed)(scores[:, order], order.argsort()[labels])
    torch.testing.assert_close(moved, make(tree, names)(scores, labels))


@pytest.mark.parametrize("make", [HierarchicalCrossEntropy, SoftLabels])
def test_adding_a_constant_to_scores_changes_nothing(make):
    criterion = make(Hierarchy.from_paths(UNEVEN), list(UNEVEN))
    scores, labels = problem(len(UNEVEN))
    torch.testing.assert_close(criterion(scores + 7, labels), criterion(scores, labels))


@pytest.mark.parametrize("make", [HierarchicalCrossEntropy, SoftLabels])
def test_gradients_of_the_criteria(make):
    criterion = make(Hierarchy.from_paths(UNEVEN), list(UNEVEN)).double()
    scores, labels = problem(len(UNEVEN), batch=5)
    assert torch.autograd.gradcheck(lambda s: criterion(s, labels), scores.requires_grad_())


@pytest.mark.parametrize("make", [HierarchicalCrossEntropy, SoftLabels])
@pytest.mark.parametrize("spread", [100.0, 1e4])
def test_tiny_probabilities_keep_value_and_gradient(make, spread):
    criterion = make(Hierarchy.from_paths(UNEVEN), list(UNEVEN))
    exact, labels = problem(len(UNEVEN), spread=spread)
    single = exact.float().requires_grad_()
    value = criterion(single, labels)
    value.backward()
    assert value.item() == pytest.approx(criterion(exact, labels).item(), rel=1e-5)
    assert single.grad.isfinite().all()
    assert single.grad.abs().max() > 1e-3


def test_hxe_of_a_certain_answer_is_zero():
    scores = torch.full((4, 4), -60.0).fill_diagonal_(60.0)
    criterion = HierarchicalCrossEntropy(Hierarchy.from_nested(ANIMALS), NAMES)
    assert criterion(scores, torch.arange(4)).item() == pytest.approx(0, abs=1e-7)


def test_other_leaves_of_the_tree_do_not_count():
    kept = [name for name in UNEVEN if name not in ("a", "f")]
    scores, labels = problem(len(kept))
    whole = HierarchicalCrossEntropy(Hierarchy.from_paths(UNEVEN), kept)(scores, labels)
    alone = HierarchicalCrossEntropy(Hierarchy.from_paths({name: UNEVEN[name] for name in kept}), kept)(scores, labels)
    torch.testing.assert_close(whole, alone)


@settings(max_examples=60, deadline=None)
@given(paths, seeds, st.floats(0.01, 30))
def test_soft_labels_by_loops(found, seed, beta):
    scores, labels = problem(len(found), seed)
    value = SoftLabels(Hierarchy.from_paths(found), list(found), beta)(scores, labels)
    assert value.item() == pytest.approx(naive_soft_labels(found, scores, labels, beta), rel=1e-5, abs=1e-9)


def test_soft_labels_by_hand():
    """A sibling is at 1/2, the others at 1; each row sums to 1."""
    criterion = SoftLabels(Hierarchy.from_nested(ANIMALS), NAMES, beta=2.0)
    whole = 1 + math.exp(-1) + 2 * math.exp(-2)
    expected = torch.tensor([math.exp(-1), 1, math.exp(-2), math.exp(-2)]) / whole
    torch.testing.assert_close(criterion.targets[1], expected)


def test_soft_labels_of_a_tree_that_is_not_balanced_still_sum_to_one():
    rows = SoftLabels(Hierarchy.from_paths(UNEVEN), list(UNEVEN), beta=1.0).targets.sum(dim=1)
    torch.testing.assert_close(rows, torch.ones(len(UNEVEN)))


def test_hard_soft_labels_are_cross_entropy():
    scores, labels = problem(len(UNEVEN))
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    value = SoftLabels(Hierarchy.from_paths(UNEVEN), list(UNEVEN), beta=1e6)(ours, labels)
    expected = F.cross_entropy(theirs, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, ours), torch.autograd.grad(expected, theirs))


def test_soft_labels_are_what_the_loss_wants():
    criterion = SoftLabels(Hierarchy.from_nested(ANIMALS), NAMES, beta=3.0).double()
    scores = criterion.targets.log().requires_grad_()
    criterion(scores, torch.arange(4)).backward()
    torch.testing.assert_close(scores.grad, torch.zeros_like(scores), atol=1e-7, rtol=0)


TREE = Hierarchy.from_nested(ANIMALS)


def make(loss, space="sphere", classes=4, class_names=NAMES, hierarchy=TREE, **parameters):
    section = ObjectiveSection(loss=loss, parameters=parameters)
    shape = {"dimension": 5, "classes": classes, "class_names": class_names, "hierarchy": hierarchy}
    return make_objective(section, space=make_space(space), **shape)


def batch():
    generator = torch.Generator().manual_seed(3)
    return 2 * torch.randn(6, 5, generator=generator), torch.tensor([0, 1, 2, 3, 0, 2])


CRITERIA = {
    "hxe": ({"alpha": 0.3}, HierarchicalCrossEntropy(TREE, NAMES, 0.3)),
    "soft-labels": ({"beta": 3}, SoftLabels(TREE, NAMES, 3.0)),
}


@pytest.mark.parametrize("scores", ["softmax", "normface", "proxy-dr"])
@pytest.mark.parametrize("loss", list(CRITERIA))
def test_the_losses_are_their_criteria_over_the_scores_of_another_loss(loss, scores):
    parameters, criterion = CRITERIA[loss]
    objective = make(loss, scores=scores, **parameters)
    peer = make(scores)
    peer.load_state_dict(objective.state_dict(), strict=True)
    embeddings, labels = batch()
    points = Sphere().project(embeddings)
    torch.testing.assert_close(objective.loss.class_scores(points), peer.loss.class_scores(points))
    torch.testing.assert_close(objective(embeddings, labels), criterion(peer.loss.class_scores(points), labels))


@pytest.mark.parametrize("loss", list(CRITERIA))
def test_the_options_of_proxies_and_scale_are_those_of_the_scores_loss(loss):
    options = {"scale": "dynamic", "proxies": "ema", "ema_rate": 0.5}
    objective, peer = make(loss, scores="proxy-dr", **options), make("proxy-dr", **options)
    assert objective.readings() == peer.readings() == {"scale": pytest.approx(peer.readings()["scale"])}
    assert not objective.proxies()
    peer.load_state_dict(objective.state_dict(), strict=True)
    for one in (objective, peer):
        one(*batch())
        one.stepped()
    torch.testing.assert_close(objective.loss.class_vectors(), peer.loss.class_vectors())
    laid_out = make(loss, scores="normface", proxies="mds", tree_distance="lcs")
    torch.testing.assert_close(
        laid_out.loss.class_vectors(),
        make("normface", proxies="mds", tree_distance="lcs").loss.class_vectors(),
    )


@pytest.mark.parametrize("loss", list(CRITERIA))
@pytest.mark.parametrize(
    ("option", "value"), [("scale", 5.0), ("scale", "dynamic"), ("proxies", "ema"), ("tree_distance", "lcs")]
)
def test_what_a_linear_layer_has_no_use_for_is_refused(loss, option, value):
    with pytest.raises(RecipeError, match=option):
        make(loss, **{option: value})


@pytest.mark.parametrize("loss", list(CRITERIA))
def test_spaces(loss):
    with pytest.raises(RecipeError, match="normface"):
        make(loss, space="euclidean", scores="normface")
    assert make(loss, space="euclidean", scores="proxy-dr")(*batch()).isfinite()


@pytest.mark.parametrize("loss", list(CRITERIA))
def test_a_missing_tree_or_class_is_told(loss):
    for missing in ({"hierarchy": None}, {"class_names": None}):
        with pytest.raises(RecipeError, match=r"data\.hierarchy"):
            make(loss, **missing)
    with pytest.raises(DataError, match="guppy"):
        make(loss, class_names=("dog", "cat", "shark", "gupy"))
    factory = losses.get(loss).factory
    with pytest.raises(RecipeError, match=r"data\.hierarchy"):
        factory(LossShape(5, 4, Sphere()))


@pytest.mark.parametrize(
    ("loss", "parameters"),
    [
        ("hxe", {"alpha": -0.1}),
        ("hxe", {"alpha": math.inf}),
        ("hxe", {"weighted_by": "width"}),
        ("soft-labels", {"beta": 0}),
        ("soft-labels", {"scores": "arcface"}),
    ],
)
def test_parameters_out_of_range_are_refused(loss, parameters):
    with pytest.raises(RecipeError, match=rf"objective\.parameters\.{next(iter(parameters))}"):
        make(loss, **parameters)


@pytest.mark.parametrize("loss", list(CRITERIA))
def test_a_checkpoint_holds_no_tables_of_the_tree(loss):
    """They come from the tree again; a run's tree may be larger than its weights."""
    assert set(make(loss).state_dict()) == set(make("softmax").state_dict())


@settings(max_examples=30, deadline=None)
@given(found=paths, seed=seeds)
def test_conditional_scores_are_log_probabilities_of_a_walk_down_the_tree(found, seed):
    tree = Hierarchy.from_paths(found)
    torch.manual_seed(seed)
    siblings, ways = tree_nodes(tree, list(found))
    module = ConditionalScores(siblings, ways, 4).double()
    points, rows = torch.randn(5, 4, dtype=torch.float64), 3 * torch.randn(len(siblings), 4, dtype=torch.float64)
    scores = module(points, rows)
    outputs = (points @ rows.T + module.bias).detach().numpy()
    whole = tree.restricted(found)  # its node n + 1 has the output n
    children = {parent: [n for n, p in enumerate(whole.parents) if p == parent] for parent in set(whole.parents)}
    for row in range(5):
        for column, name in enumerate(found):
            wanted = 0.0
            for node in whole.ancestors(name)[:-1]:
                others = [math.exp(outputs[row, sibling - 1]) for sibling in children[whole.parents[node]]]
                wanted += math.log(math.exp(outputs[row, node - 1]) / sum(others))
            assert scores[row, column].item() == pytest.approx(wanted, abs=1e-9)
    torch.testing.assert_close(scores.exp().sum(dim=1), torch.ones(5, dtype=torch.float64))


def test_hxe_of_conditional_scores_weighs_the_decisions_themselves():
    """Of such scores p(child | parent) is the softmax among siblings: with alpha 0 all count alike (YOLO9000)."""
    tree = Hierarchy.from_nested(ANIMALS)
    objective = make_objective(
        ObjectiveSection(loss="hxe", parameters={"scores": "conditional", "alpha": 0.5}),
        dimension=6,
        classes=4,
        space=make_space("euclidean"),
        class_names=NAMES,
        hierarchy=tree,
    ).double()
    x, labels = torch.randn(7, 6, dtype=torch.float64), torch.randint(4, (7,))
    loss = objective.loss
    siblings, ways = tree_nodes(tree, NAMES)
    outputs = x @ loss.bank.weight.T + loss.scores.bias
    parts = torch.zeros_like(outputs)
    for group in siblings.unique():
        mine = siblings == group
        parts[:, mine] = F.log_softmax(outputs[:, mine], dim=1)
    heights = torch.tensor(tree.restricted(NAMES).heights()[1:])
    weighted = parts * torch.exp(-0.5 * heights)
    wanted = -(weighted @ ways.double().T).gather(1, labels[:, None]).mean()
    torch.testing.assert_close(objective(x, labels), wanted)
    torch.testing.assert_close(loss.class_scores(x), parts @ ways.double().T)
    torch.testing.assert_close(loss.class_vectors(), ways.double() @ loss.bank.weight)
    assert loss.class_vectors().shape == (4, 6)


def test_conditional_scores_learn_and_refuse_what_they_have_no_use_for():
    tree = Hierarchy.from_paths(UNEVEN)
    given = {"dimension": 6, "classes": 6, "class_names": tuple(UNEVEN), "hierarchy": tree}
    section = ObjectiveSection(loss="soft-labels", parameters={"scores": "conditional"})
    objective = make_objective(section, **given)
    x, labels = torch.eye(6), torch.arange(6)
    optimiser = torch.optim.Adam(objective.parameters(), lr=0.1)
    for _ in range(80):
        optimiser.zero_grad()
        objective(x, labels).backward()
        optimiser.step()
    assert torch.equal(objective.loss.class_scores(objective.loss.space.project(x)).argmax(dim=1), labels)
    with pytest.raises(RecipeError, match="conditional"):
        make_objective(ObjectiveSection(loss="hxe", parameters={"scores": "conditional", "scale": 5}), **given)
