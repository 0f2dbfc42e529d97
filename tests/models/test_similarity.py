"""The learned similarity: its table against one pair after another, and the prototypes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError, ModelError
from nearkin.models.similarity import LearnedSpace, PairSimilarity, PrototypeBank
from nearkin.spaces import Euclidean, Sphere

WAYS = [None, "max", "mean"]
DIFFERENT, DEEP, OTHER = {"form": "difference"}, {"form": "difference", "depth": 3}, {"depth": 2, "symmetric": "mean"}
SHAPES = [*({"symmetric": way} for way in WAYS), {"depth": 3}, OTHER, DIFFERENT, DEEP]


def make(dimension=5, hidden=12, **options):
    torch.manual_seed(0)
    return PairSimilarity(dimension, hidden, **options).eval()


@torch.no_grad()
def concatenated(network, queries, enrolled):
    """The table (q, n) by concatenating every pair."""
    q, n = len(queries), len(enrolled)
    return network(enrolled[None].expand(q, -1, -1), queries[:, None].expand(-1, n, -1))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    slope=st.sampled_from([0.0, 0.1, 1.0]),
    q=st.integers(0, 40),
    n=st.integers(0, 90),
    hidden=st.integers(1, 70),
)
def test_taken_apart_is_concatenated(shape, slope, q, n, hidden):
    network = make(8, hidden, slope=slope, **shape)
    queries, enrolled = torch.randn(q, 8), torch.randn(n, 8)
    expected = concatenated(network, queries, enrolled)
    sides = network.taken_apart()
    left, right = sides.of_queries(queries), sides.of_enrolled(enrolled)
    assert left.shape == (q, sides.width)
    out = torch.empty(n, q).T  # of any layout
    assert sides.scores(left, right, out) is out
    with torch.no_grad():
        for found in (out, network.table(queries, enrolled)):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("queries", "enrolled"),
    [
        ((6, 1, 5), (6, 4, 5)),
        ((6, 1, 5), (6, 1, 5)),
        ((2, 3, 7, 5), (2, 3, 4, 5)),
        ((3, 7, 5), (4, 5)),
        ((7, 5), (3, 4, 5)),
    ],
)
def test_leading_dimensions_are_tables_beside_each_other(shape, queries, enrolled):
    network = make(**shape)
    x, y = torch.randn(queries), torch.randn(enrolled)
    with torch.no_grad():
        found = network.table(x, y)
    lead = torch.broadcast_shapes(queries[:-2], enrolled[:-2])
    assert found.shape == (*lead, queries[-2], enrolled[-2])
    x, y = x.expand(*lead, -1, -1), y.expand(*lead, -1, -1)
    for place in np.ndindex(*lead):
        torch.testing.assert_close(found[place], concatenated(network, x[place], y[place]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_the_table(shape):
    network = make(3, 6, **shape).double()
    x, y = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    assert torch.autograd.gradcheck(network.table, (x, y))
    torch.testing.assert_close(network.table(x, y).detach(), concatenated(network, x, y))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_network_has_gradients_where_the_points_have_none(shape):
    network = make(**shape)
    network.table(torch.randn(4, 5), torch.randn(3, 5)).sum().backward()
    assert all(weights.grad is not None and weights.grad.abs().sum() > 0 for weights in network.parameters())


@pytest.mark.parametrize("shape", [{}, DIFFERENT])
def test_dropout_is_drawn_from_the_seed_and_only_in_training(shape):
    network, x, y = make(dropout=0.5, **shape), torch.randn(6, 5), torch.randn(7, 5)

    @torch.no_grad()
    def drawn(seed):
        torch.manual_seed(seed)
        return network.table(x, y)

    at_rest = drawn(0)
    assert torch.equal(at_rest, drawn(1))
    network.train()
    assert torch.equal(drawn(0), drawn(0))
    assert not torch.allclose(drawn(0), drawn(1))
    mean = torch.stack([drawn(seed) for seed in range(800)]).mean(dim=0)
    torch.testing.assert_close(mean, at_rest, rtol=0, atol=0.12)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_called_symmetric_is(shape):
    network, x = make(**shape), torch.randn(20, 5)
    with torch.no_grad():
        table = network.table(x, x)
    called = shape.get("symmetric") is not None or shape.get("form") == "difference"
    assert torch.allclose(table, table.T, atol=1e-5) == called


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_difference_is_what_it_says_pair_by_pair(depth):
    network = make(4, 7, form="difference", depth=depth, slope=0.2).double()
    state = {name: value.numpy() for name, value in network.state_dict().items()}

    def layered(point):
        values = state["first.weight"] @ point + state["first.bias"]
        for layer in range(depth - 1):
            values = np.where(values > 0, values, 0.2 * values)
            values = state[f"deeper.{layer}.weight"] @ values + state[f"deeper.{layer}.bias"]
        return values

    x, y = (np.random.default_rng(seed).normal(size=(n, 4)) for seed, n in ((0, 5), (1, 6)))
    with torch.no_grad():
        table = network.table(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    for row, column in np.ndindex(table.shape):
        a, b = layered(x[row]), layered(y[column])
        units = np.concatenate([np.abs(a - b), a * b])
        assert table[row, column] == pytest.approx(state["second.weight"][0] @ units + state["second.bias"][0])


def test_a_deep_concatenation_is_its_layers_one_after_the_other():
    network = make(4, 7, depth=3, slope=0.2)
    bend = torch.nn.LeakyReLU(0.2)
    layers = torch.nn.Sequential(network.first, bend, network.deeper[0], bend, network.deeper[1], bend, network.second)
    x, y = torch.randn(5, 4), torch.randn(6, 4)
    with torch.no_grad():
        for row, column in np.ndindex(5, 6):
            expected = layers(torch.cat([y[column], x[row]]))[0]
            torch.testing.assert_close(network.table(x, y)[row, column], expected, rtol=1e-5, atol=1e-6)


def test_a_difference_begins_as_a_similarity():
    network, x = make(16, 64, form="difference"), torch.randn(30, 16)
    with torch.no_grad():
        table = network.table(x, x + 0.1 * torch.randn(30, 16))
    assert (table.argmax(dim=1) == torch.arange(30)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("by", ["sim", "cosine+sim", "raw-sum"])
def test_sizes_bound_every_score(shape, by):
    sides = LearnedSpace(Euclidean(), make(**shape), by).sides(torch.float64)
    left, right = sides.of_queries(torch.randn(30, 5)), sides.of_enrolled(torch.randn(40, 5))
    assert left.shape == (30, sides.width)
    assert (sides.scores(left, right).abs() <= sides.sizes(left)[:, None] + sides.sizes(right)).all()


@pytest.mark.parametrize("shape", [{}, DIFFERENT])
def test_scores_with_the_cosine_one_pair_at_a_time(shape):
    network, x, y = make(**shape), torch.randn(5, 5), torch.randn(6, 5)
    for by in ("cosine+sim", "raw-sum"):
        space = LearnedSpace(Sphere(), network, by)
        found = -space.distance(x, y)
        sides = space.sides()
        torch.testing.assert_close(sides.scores(sides.of_queries(x), sides.of_enrolled(y)), found)
        for row, column in np.ndindex(5, 6):
            logit = float(network(y[column], x[row]).detach())
            cosine = float(torch.cosine_similarity(x[row], y[column], dim=0))
            both = logit + cosine if by == "raw-sum" else (1 / (1 + np.exp(-logit)) + (1 + cosine) / 2) / 2
            assert float(found[row, column]) == pytest.approx(both, rel=1e-4, abs=1e-5)
        assert space.to_dict()["by"] == by


@pytest.mark.parametrize(
    "options",
    [
        {"symmetric": "min"},
        {"slope": -0.1},
        {"slope": 1.1},
        {"dropout": 1.0},
        {"form": "product"},
        {"depth": 0},
        {"depth": 9},
        {"form": "difference", "symmetric": "max"},
    ],
)
def test_bad_settings(options):
    with pytest.raises(ModelError):
        PairSimilarity(4, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_settings_build_it_again(shape):
    network = make(slope=0.2, dropout=0.1, **shape)
    assert PairSimilarity(5, **network.to_dict()).to_dict() == network.to_dict()
    assert {"form", "depth"} & network.to_dict().keys() == {"form", "depth"} & shape.keys(), "fingerprints stay"


def test_prototypes_of_the_sphere_are_on_it():
    bank = PrototypeBank(3, 4, Sphere(radius=8.0))
    bank.update(torch.randn(9, 4), torch.arange(9) % 3, momentum=0.5)
    placed = bank.placed()
    torch.testing.assert_close(placed.norm(dim=1), torch.full((3,), 8.0), rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.cosine_similarity(placed, bank.points), torch.ones(3))
    free = PrototypeBank(3, 4, Euclidean())
    assert torch.equal(free.placed(), free.points)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(0, 30), momentum=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_prototypes_move_as_in_a_naive_loop(seed, size, momentum):
    rng = np.random.default_rng(seed)
    bank = PrototypeBank(6, 3)
    before = bank.points.numpy().copy()
    embeddings, labels = rng.normal(size=(size, 3)).astype(np.float32), rng.integers(0, 4, size)
    bank.update(torch.from_numpy(embeddings), torch.from_numpy(labels), momentum)
    for number, old in enumerate(before):
        own = [embedding for embedding, label in zip(embeddings, labels, strict=True) if label == number]
        if own:
            expected = momentum * old + (1 - momentum) * sum(own) / len(own)
            np.testing.assert_allclose(bank.points[number], expected, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(bank.points[number], old)


def test_prototypes_are_saved_have_no_gradient_and_refuse_other_embeddings():
    bank = PrototypeBank(3, 4)
    embeddings = torch.randn(5, 4, requires_grad=True)
    bank.update(embeddings, torch.tensor([0, 0, 1, 1, 1]))
    assert set(bank.state_dict()) == {"points"}
    assert not bank.points.requires_grad
    with pytest.raises(DataError, match="4"):
        bank.update(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64))
