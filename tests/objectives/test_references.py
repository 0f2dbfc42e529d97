"""Pair losses against references: every loss with every miner by naive loops, gradients, and what is refused."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.miners import TripletMarginMiner
from scipy.special import logsumexp
from torch import nn

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.objectives import (
    BatchNeeds,
    Objective,
    ObjectiveSection,
    RegulariserSection,
    losses,
    make_objective,
    miners,
)
from nearkin.spaces import make_space

CLASSES, DIMENSION, BATCH, REFERENCES = 6, 5, 12, 30
SPACES = ["sphere", "lipschitz-ball", "euclidean", "poincare-ball"]
PAIR_LOSSES = [name for name in losses if losses.get(name).references]
OTHERS = [name for name in losses if not losses.get(name).references]
TREE = Hierarchy.from_nested(["a", "b", ["c", "d"], ["e", "f"]])

PARAMETERS = {
    "contrastive": {"pos_margin": 0.2, "neg_margin": 1.1},
    "contrastive-cosine": {"margin": 0.1},
    "triplet": {"margin": 0.3},
    "margin": {"margin": 0.25, "nu": 0.05},
    "lifted-structure": {"pos_margin": 0.1, "neg_margin": 0.9},
    "angular": {"angle": 36.5},
    "multi-similarity": {"alpha": 2.0, "beta": 10.0, "base": 0.4},
    "supcon": {"temperature": 0.3},
    "circle": {"margin": 0.3, "gamma": 12.0},
}
MINED = {
    "semi-hard": {"margin": 0.35},
    "violating": {"margin": 0.35},
    "multi-similarity": {"epsilon": 0.1},
    "pair-margin": {"pos_margin": 0.4, "neg_margin": 1.2},
    "angular": {"angle": 25.0},
    "distance-weighted": {"cutoff": 0.5, "far": 1.4},
}
RANDOM = ("distance-weighted", "random")
"""Miners that draw."""
BETA = np.linspace(0.7, 1.4, CLASSES)


def compatible(loss, miner, space):
    """Whether a recipe may ask for it."""
    entry = losses.get(loss)
    allowed = [entry.spaces] + ([] if miner is None else [miners.get(miner).spaces])
    return (miner is None) == (entry.miner is None) and all(names is None or space in names for names in allowed)


def chosen(loss, miner, space):
    """Every loss in every space, every miner in every space, and every miner with a loss of pairs and one of triplets.

    A loss knows of its miner only whether pairs or triplets come out of it.
    """
    usual = miner in (None, "all", losses.get(loss).miner)
    return usual or loss == "triplet" or (loss == "contrastive" and space == "sphere")


POSSIBLE = [c for c in product(PAIR_LOSSES, [None, *miners], SPACES) if compatible(*c)]
COMBINATIONS = [c for c in POSSIBLE if chosen(*c)]
ON_SPHERE = [(loss, miner) for loss, miner, space in COMBINATIONS if space == "sphere"]


def vectors(rng, labels):
    """Raw vectors (n, d) around one centre a class, with norms from 0.2 to 2.5."""
    centres = np.random.default_rng(99).normal(size=(CLASSES, DIMENSION))
    raw = centres[labels] + 0.9 * rng.normal(size=(len(labels), DIMENSION))
    return raw * rng.uniform(0.2, 2.5, size=(len(labels), 1)) / np.linalg.norm(raw, axis=1, keepdims=True)


def problem(seed=0):
    """A batch of classes 0 to 3 and references of all but 3, uneven: x (B, d), y (B,), r (R, d), z (R,)."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(4), BATCH // 4))
    of_references = rng.permutation(np.repeat([0, 1, 2, 4, 5], [11, 3, 7, 8, 1]))
    assert (len(labels), len(of_references)) == (BATCH, REFERENCES)
    return vectors(rng, labels), labels, vectors(rng, of_references), of_references


def objective_of(loss, miner=None, space="sphere", seed=0, regularisers=()):
    section = ObjectiveSection(
        loss=loss,
        parameters=PARAMETERS.get(loss, {}),
        miner=miner,
        miner_parameters=MINED.get(miner, {}),
        regularisers=regularisers,
    )
    shape = {"dimension": DIMENSION, "classes": CLASSES, "space": make_space(space), "seed": seed}
    if losses.get(loss).family == "episodes":
        shape["episode"] = (1, 1)
    if losses.get(loss).needs_hierarchy:
        shape |= {"hierarchy": TREE, "class_names": TREE.classes}
    made = make_objective(section, **shape).double()
    if loss == "margin":
        made.loss.beta.data = torch.tensor(BETA)
    return made


def tensors(*arrays):
    return tuple(torch.tensor(array) for array in arrays)


def enter(space, raw):
    norms = np.linalg.norm(raw, axis=-1, keepdims=True)
    return {
        "sphere": raw / norms,
        "lipschitz-ball": raw / np.maximum(norms, 1),
        "euclidean": raw,
        "poincare-ball": np.tanh(norms) * raw / norms,
    }[space]


def gaps(space, x, r):
    """Distances (B, R) of points of a space, pair by pair."""
    d = np.empty((len(x), len(r)))
    for i, j in np.ndindex(*d.shape):
        squared = ((x[i] - r[j]) ** 2).sum()
        d[i, j] = math.sqrt(squared)
        if space == "poincare-ball":
            d[i, j] = math.acosh(1 + 2 * squared / ((1 - (x[i] ** 2).sum()) * (1 - (r[j] ** 2).sum())))
    return d


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


class Naive:
    """One batch and its references in a space, and what a miner chooses of their pairs, by loops."""

    def __init__(self, space, x, y, r, z):
        self.x, self.y, self.r, self.z = enter(space, x), y, enter(space, r), z
        self.d, self.s = gaps(space, self.x, self.r), self.x @ self.r.T
        grid = list(np.ndindex(*self.d.shape))
        self.same = [(i, j) for i, j in grid if y[i] == z[j]]
        self.different = [(i, j) for i, j in grid if y[i] != z[j]]

    def choose(self, miner, drawn=None):
        """Set `positives`, `negatives` (pairs) and `triplets` to the miner's choice; `drawn` is a random one."""
        every = [(a, p, n) for a, p in self.same for b, n in self.different if a == b]
        picked = (
            drawn
            or {
                "all": lambda: every,
                "semi-hard": lambda: [t for t in every if 0 < self._slack(*t) <= MINED["semi-hard"]["margin"]],
                "violating": lambda: [t for t in every if self._slack(*t) <= MINED["violating"]["margin"]],
                "hard": self._hardest,
                "angular": lambda: [t for t in every if self._angle(*t) > MINED["angular"]["angle"]],
                "multi-similarity": self._informative,
                "pair-margin": self._beyond_margins,
            }[miner or "all"]
        )
        chosen = picked()
        if miner in (None, "all"):
            self.positives, self.negatives, self.triplets = self.same, self.different, every
        elif isinstance(chosen, tuple):
            self.positives, self.negatives = chosen
            self.triplets = [(a, p, n) for a, p in self.positives for b, n in self.negatives if a == b]
        else:
            self.triplets = chosen
            self.positives = [(a, p) for a, p, _ in chosen]
            self.negatives = [(a, n) for a, _, n in chosen]
        return self

    def _slack(self, a, p, n):
        return self.d[a, n] - self.d[a, p]

    def _angle(self, a, p, n):
        half = np.linalg.norm(self.x[a] - self.r[p]) / 2
        return math.degrees(math.atan(half / np.linalg.norm(self.r[n] - (self.x[a] + self.r[p]) / 2)))

    def _of(self, i, pairs):
        return [j for a, j in pairs if a == i]

    def _hardest(self):
        chosen = []
        for i in range(len(self.x)):
            own, others = self._of(i, self.same), self._of(i, self.different)
            if own and others:
                furthest, nearest = max(own, key=lambda j: self.d[i, j]), min(others, key=lambda j: self.d[i, j])
                chosen.append((i, furthest, nearest))
        return chosen

    def _informative(self):
        positives, negatives, epsilon = [], [], MINED["multi-similarity"]["epsilon"]
        for i in range(len(self.x)):
            own, others = self._of(i, self.same), self._of(i, self.different)
            if own and others:
                positives += [(i, j) for j in own if self.s[i, j] - epsilon < max(self.s[i, k] for k in others)]
                negatives += [(i, j) for j in others if self.s[i, j] + epsilon > min(self.s[i, k] for k in own)]
        return positives, negatives

    def _beyond_margins(self):
        margins = MINED["pair-margin"]
        positives = [(i, j) for i, j in self.same if self.d[i, j] > margins["pos_margin"]]
        return positives, [(i, j) for i, j in self.different if self.d[i, j] < margins["neg_margin"]]

    def rows(self):
        """For each anchor the positives and the negatives chosen, each once."""
        for i in range(len(self.x)):
            yield i, sorted(set(self._of(i, self.positives))), sorted(set(self._of(i, self.negatives)))


def contrastive(v, pos_margin, neg_margin):
    pull = [v.d[pair] - pos_margin for pair in v.positives]
    push = [neg_margin - v.d[pair] for pair in v.negatives]
    return mean(t for t in pull if t > 0) + mean(t for t in push if t > 0)


def contrastive_cosine(v, margin):
    pull = sum(1 - v.s[pair] for pair in v.positives if v.s[pair] < 1 - 1e-5)
    return (pull + sum(max(v.s[pair] - margin, 0) for pair in v.negatives)) / len(v.x)


def triplet(v, margin):
    terms = [v.d[a, p] - v.d[a, n] + margin for a, p, n in v.triplets]
    return mean(t for t in terms if t > 0)


def margin_loss(v, margin, nu):
    pull = [max(v.d[a, p] - BETA[v.y[a]] + margin, 0) for a, p, _ in v.triplets]
    push = [max(BETA[v.y[a]] - v.d[a, n] + margin, 0) for a, _, n in v.triplets]
    betas = nu * sum(BETA[v.y[a]] for a, _, _ in v.triplets)
    return (sum(pull) + sum(push) + betas) / sum(t > 0 for t in pull + push)


def lifted_structure(v, pos_margin, neg_margin):
    terms = []
    for i, j in v.positives:
        exponents = [neg_margin - v.d[a, n] for a, n in v.negatives if a == i]
        away = logsumexp(exponents) if exponents else 0
        terms.append(max(v.d[i, j] - pos_margin + away, 0) ** 2 / 2)
    return mean(terms)


def angular(v, angle):
    t = math.tan(math.radians(angle)) ** 2
    terms = []
    for a, p in v.positives:
        exponents = [4 * t * (v.x[a] + v.r[p]) @ v.r[n] - 2 * (1 + t) * v.s[a, p] for b, n in v.different if a == b]
        terms.append(logsumexp([0, *exponents]))
    return mean(terms)


def multi_similarity(v, alpha, beta, base):
    terms = []
    for i, own, others in v.rows():
        pull = logsumexp([0, *(-alpha * (v.s[i, own] - base))]) / alpha
        terms.append(pull + logsumexp([0, *(beta * (v.s[i, others] - base))]) / beta)
    return mean(terms)


def supcon(v, temperature):
    terms = []
    for i, own, others in v.rows():
        scores = v.s[i] / temperature
        if own:
            terms.append(logsumexp(scores[own + others]) - mean(scores[own]))
    return mean(t for t in terms if t > 0)


def circle(v, margin, gamma):
    terms = []
    for i, own, others in v.rows():
        if own and others:
            s, o = v.s[i, own], v.s[i, others]
            pull = logsumexp(-gamma * np.maximum(1 + margin - s, 0) * (s - 1 + margin))
            push = logsumexp(gamma * np.maximum(o + margin, 0) * (o - margin))
            terms.append(np.logaddexp(0, pull + push))
    return mean(terms)


ORACLES = {
    "contrastive": contrastive,
    "contrastive-cosine": contrastive_cosine,
    "triplet": triplet,
    "margin": margin_loss,
    "lifted-structure": lifted_structure,
    "angular": angular,
    "multi-similarity": multi_similarity,
    "supcon": supcon,
    "circle": circle,
}


def expected_of(loss, miner, space, x, y, r, z):
    """The loss by loops; draws of a random miner are taken over from a twin with the same seed."""
    drawn = None
    if (miner or losses.get(loss).miner) in RANDOM:
        choice = objective_of(loss, miner).miner(*tensors(x, y, r, z))
        triplets = list(zip(*(index.tolist() for index in choice), strict=True))
        drawn = lambda: triplets  # noqa: E731
    return ORACLES[loss](Naive(space, x, y, r, z).choose(miner, drawn), **PARAMETERS[loss])


def test_every_pair_loss_and_every_miner_is_checked():
    assert set(ORACLES) == set(PAIR_LOSSES)
    assert {miner for _, miner in ON_SPHERE} == {None, *miners.names()}
    for part in (lambda c: (c[0], c[2]), lambda c: c[1:]):  # nothing that can be asked for is left out
        assert {part(c) for c in COMBINATIONS} == {part(c) for c in POSSIBLE}


@pytest.mark.parametrize(("loss", "miner", "space"), COMBINATIONS)
def test_against_references_by_naive_loops(loss, miner, space):
    x, y, r, z = problem()
    expected = expected_of(loss, miner, space, x, y, r, z)
    assert expected > 1e-3
    assert objective_of(loss, miner, space).against(*tensors(x, y, r, z)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("loss", "miner"), ON_SPHERE)
def test_a_noisy_copy_of_the_batch_is_a_set_of_references_like_any_other(loss, miner):
    """The same tensor of labels on both sides must not make sample i and reference i one."""
    x, y, _, _ = problem(1)
    r = x + 0.05 * np.random.default_rng(2).normal(size=x.shape)
    expected = expected_of(loss, miner, "sphere", x, y, r, y)
    embeddings, labels, references = tensors(x, y, r)
    value = objective_of(loss, miner).against(embeddings, labels, references, labels)
    assert value.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("loss", "miner"), ON_SPHERE)
def test_exact_copies_have_finite_values_and_gradients(loss, miner):
    embeddings, labels = tensors(*problem()[:2])
    embeddings.requires_grad_()
    copies = embeddings.detach().clone().repeat(3, 1).requires_grad_()
    value = objective_of(loss, miner).against(embeddings, labels, copies, labels.repeat(3))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    assert copies.grad.isfinite().all()


@pytest.mark.parametrize(("loss", "miner"), ON_SPHERE)
def test_one_tensor_on_both_sides_counts_as_two_sets(loss, miner):
    embeddings, labels = tensors(*problem()[:2])
    other = int(torch.where(labels != labels[0])[0][0])
    embeddings[other] = 1.01 * embeddings[0]  # a negative so near that even the copy of a sample is a hard positive
    same = objective_of(loss, miner).against(embeddings, labels, embeddings, labels)
    apart = objective_of(loss, miner).against(embeddings, labels, embeddings.clone(), labels.clone())
    assert same.item() == apart.item()


def test_contrastive_cosine_skips_the_sample_itself_in_a_memory():
    embeddings, labels = tensors(*problem()[:2])
    objective = objective_of("contrastive-cosine")
    memorised = objective.against(embeddings, labels, 3 * embeddings, labels)
    assert memorised.item() == pytest.approx(objective(embeddings, labels).item())
    anchor = torch.eye(1, DIMENSION, dtype=torch.float64, requires_grad=True)
    for slip, pulled in [(2e-3, False), (2e-2, True)]:  # cosines 1 - 2e-6 and 1 - 2e-4
        moved = anchor.detach() + slip * torch.eye(2, DIMENSION, dtype=torch.float64)[1:]
        value = objective.against(anchor, labels[:1], moved, labels[:1])
        assert (value.item() > 0) == pulled


@pytest.mark.parametrize("loss", [name for name in PAIR_LOSSES if name != "circle"])  # its weights have no gradient
def test_gradients_of_both_sides_are_those_of_the_value(loss):
    x, y, r, z = tensors(*problem(3))
    objective = objective_of(loss, "all" if losses.get(loss).miner else None)
    given = (x.requires_grad_(), r[:8].requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: objective.against(a, y, b, z[:8]), given)


@pytest.mark.parametrize(("loss", "miner", "space"), COMBINATIONS)
def test_gradients_reach_both_sides(loss, miner, space):
    x, y, r, z = tensors(*problem())
    objective = objective_of(loss, miner, space)
    objective.against(x.requires_grad_(), y, r.requires_grad_(), z).backward()
    for gradient in (x.grad, r.grad):
        assert gradient.isfinite().all()
        assert gradient.norm() > 1e-4
    if loss == "margin":
        assert objective.loss.beta.grad[:3].abs().max() > 0


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(REFERENCES)), st.permutations(range(BATCH)), st.sampled_from(ON_SPHERE))
def test_order_does_not_matter(of_references, of_batch, combination):
    if combination[1] in RANDOM:
        return
    x, y, r, z = tensors(*problem())
    objective = objective_of(*combination)
    shuffled = objective.against(x[of_batch], y[of_batch], r[of_references], z[of_references])
    assert shuffled.item() == pytest.approx(objective.against(x, y, r, z).item(), rel=1e-9)


ALONE = ["of other classes", "of one class, shared", "one", "none"]
LEFT_ALONE = [
    (loss, miner, references)
    for (loss, miner), references in product(ON_SPHERE, ALONE)
    if miner in (None, "all") or (loss == "triplet" and references in ("of other classes", "none"))
]


@pytest.mark.parametrize(("loss", "miner", "references"), LEFT_ALONE)
def test_references_without_positives_or_negatives_leave_a_graph(loss, miner, references):
    x, y, r, z = tensors(*problem())
    if references == "of other classes":
        r, z = r[z >= 4], z[z >= 4]
    elif references == "of one class, shared":
        r, z, y = r[z == 0], z[z == 0], torch.zeros_like(y)
    else:
        r, z = r[: references == "one"], z[: references == "one"]
    value = objective_of(loss, miner).against(x.requires_grad_(), y, r.requires_grad_(), z)
    value.backward()
    assert value.shape == ()
    for gradient in (x.grad, r.grad):
        assert gradient.isfinite().all()
    if references == "none" or loss in ("triplet", "margin", "angular", "supcon", "circle"):
        assert value.item() == 0
        assert not x.grad.any()
        assert not r.grad.any()


@pytest.mark.parametrize(("miner", "kind"), [("semi-hard", "semihard"), ("violating", "all")])
def test_triplets_come_in_the_order_of_the_library(miner, kind):
    x, y, r, z = tensors(*problem())
    ours, peer = objective_of("triplet", miner).miner, TripletMarginMiner(0.35, type_of_triplets=kind)
    for call in ((x, y), (x, y, r, z)):
        expected = peer(*call)
        assert len(expected[0]) > 0
        assert all(torch.equal(left, right) for left, right in zip(ours(*call), expected, strict=True))


def test_distance_weighted_draws_references_by_seed_and_by_distance():
    x, y, r, z = tensors(*problem())
    first, again = objective_of("margin").miner, objective_of("margin").miner
    d = gaps("sphere", enter("sphere", x.numpy()), enter("sphere", r.numpy()))
    for _ in range(20):
        a, p, n = first(x, y, r, z)
        assert all(torch.equal(left, right) for left, right in zip((a, p, n), again(x, y, r, z), strict=True))
        assert set(a.tolist()) == set(torch.where(y < 3)[0].tolist())  # class 3 has no reference
        assert (y[a] == z[p]).all()
        assert (y[a] != z[n]).all()
        assert (d[a, n] < 1.4).all()
    assert int(first.draws) == 20


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", PAIR_LOSSES)
def test_half_precision_is_computed_in_single(loss, dtype):
    x, y, r, z = tensors(*problem())
    x, r = x.to(dtype).requires_grad_(), r.float().requires_grad_()
    value = objective_of(loss).float().against(x, y, r, z)
    assert value.dtype == torch.float32
    assert value.item() == objective_of(loss).float().against(x.detach().float(), y, r, z).item()
    value.backward()
    assert x.grad.dtype == dtype
    assert r.grad.dtype == torch.float32
    halves = objective_of(loss).float().against(x, y, r.to(dtype), z)
    assert halves.item() == pytest.approx(value.item(), rel=0.05)


def test_regularisers_stay_out():
    x, y, r, z = tensors(*problem())
    with_term = objective_of("contrastive", regularisers=[RegulariserSection(name="embedding-norm", weight=3.0)])
    assert with_term(x, y).item() > objective_of("contrastive")(x, y).item()
    assert with_term.against(x, y, r, z).item() == objective_of("contrastive").against(x, y, r, z).item()


def test_which_losses_take_references():
    of_pairs = {name for name in OTHERS if losses.get(name).family == "pairs"}
    assert of_pairs == {"n-pairs", "growing-triplet"}
    assert set(OTHERS) >= {name for name in losses if losses.get(name).family != "pairs"}
    for name in losses:
        assert objective_of(name).supports_references == (name in PAIR_LOSSES)


@pytest.mark.parametrize("loss", OTHERS)
def test_the_others_say_so_in_one_sentence(loss):
    with pytest.raises(RecipeError, match="references") as e:
        objective_of(loss).against(*tensors(*problem()))
    assert loss in str(e.value)


def test_a_module_of_ones_own_takes_no_references_unless_it_says_so():
    class Nearest(nn.Module):
        def forward(self, embeddings, labels, *, ref_emb, ref_labels):
            return torch.cdist(embeddings, ref_emb).amin()

    given = tensors(*problem())
    with pytest.raises(RecipeError, match="nearest"):
        Objective("nearest", Nearest(), BatchNeeds()).against(*given)
    value = Objective("nearest", Nearest(), BatchNeeds(), supports_references=True).against(*given)
    assert value.item() == pytest.approx(np.linalg.norm(given[0][:, None] - given[2], axis=2).min())


@pytest.mark.parametrize(
    ("shapes", "word"),
    [
        (((12, 5), (11,), (30, 5), (30,)), "11,"),
        (((12, 5), (12,), (30, 5), (12,)), "12,"),
        (((12, 5), (12,), (30, 5), (30, 1)), "30, 1"),
        (((12, 5), (12,), (6, 5, 5), (6,)), "6, 5, 5"),
        (((5,), (5,), (30, 5), (30,)), "5,"),
        (((12, 5), (12,), (30, 4), (30,)), "4"),
    ],
)
@pytest.mark.parametrize("loss", ["contrastive", "contrastive-cosine"])
def test_shapes_that_do_not_fit(loss, shapes, word):
    x, y, r, z = (torch.zeros(shape, dtype=torch.int64) for shape in shapes)
    with pytest.raises(DataError, match=word):
        objective_of(loss).against(x.double(), y, r.double(), z)
