"""The learned similarity: its table against one pair after another, and the prototypes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError, ModelError
from nearkin.models.similarity import PairSimilarity, PrototypeBank

WAYS = [None, "max", "mean"]


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
    symmetric=st.sampled_from(WAYS),
    slope=st.sampled_from([0.0, 0.1, 1.0]),
    q=st.integers(0, 40),
    n=st.integers(0, 90),
    hidden=st.integers(1, 70),
)
def test_taken_apart_is_concatenated(symmetric, slope, q, n, hidden):
    network = make(8, hidden, slope=slope, symmetric=symmetric)
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


@pytest.mark.parametrize("symmetric", WAYS)
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
def test_leading_dimensions_are_tables_beside_each_other(symmetric, queries, enrolled):
    network = make(symmetric=symmetric)
    x, y = torch.randn(queries), torch.randn(enrolled)
    with torch.no_grad():
        found = network.table(x, y)
    lead = torch.broadcast_shapes(queries[:-2], enrolled[:-2])
    assert found.shape == (*lead, queries[-2], enrolled[-2])
    x, y = x.expand(*lead, -1, -1), y.expand(*lead, -1, -1)
    for place in np.ndindex(*lead):
        torch.testing.assert_close(found[place], concatenated(network, x[place], y[place]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("symmetric", WAYS)
def test_gradients_of_the_table(symmetric):
    network = make(3, 6, symmetric=symmetric).double()
    x, y = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    assert torch.autograd.gradcheck(network.table, (x, y))
    torch.testing.assert_close(network.table(x, y).detach(), concatenated(network, x, y))


def test_the_network_has_gradients_where_the_points_have_none():
    network = make()
    network.table(torch.randn(4, 5), torch.randn(3, 5)).sum().backward()
    assert all(weights.grad is not None and weights.grad.abs().sum() > 0 for weights in network.parameters())


def test_dropout_is_drawn_from_the_seed_and_only_in_training():
    network, x, y = make(dropout=0.5), torch.randn(6, 5), torch.randn(7, 5)

    @torch.no_grad()
    def drawn(seed):
        torch.manual_seed(seed)
        return network.table(x, y)

    at_rest = drawn(0)
    assert torch.equal(at_rest, drawn(1))
    network.train()
    assert torch.equal(drawn(0), drawn(0))
    assert not torch.allclose(drawn(0), drawn(1))
    mean = torch.stack([drawn(seed) for seed in range(2000)]).mean(dim=0)
    torch.testing.assert_close(mean, at_rest, rtol=0, atol=0.05)


@pytest.mark.parametrize("symmetric", WAYS)
def test_what_is_called_symmetric_is(symmetric):
    network, x = make(symmetric=symmetric), torch.randn(20, 5)
    with torch.no_grad():
        table = network.table(x, x)
    assert torch.allclose(table, table.T, atol=1e-6) == (symmetric is not None)


@pytest.mark.parametrize("symmetric", WAYS)
def test_sizes_bound_every_score(symmetric):
    network = make(symmetric=symmetric)
    sides = network.taken_apart(torch.float64)
    left, right = sides.of_queries(torch.randn(30, 5)), sides.of_enrolled(torch.randn(40, 5))
    assert (sides.scores(left, right).abs() <= sides.sizes(left)[:, None] + sides.sizes(right)).all()


@pytest.mark.parametrize("options", [{"symmetric": "min"}, {"slope": -0.1}, {"slope": 1.1}, {"dropout": 1.0}])
def test_bad_settings(options):
    with pytest.raises(ModelError):
        PairSimilarity(4, **options)


def test_settings_build_it_again():
    network = make(slope=0.2, dropout=0.1, symmetric="mean")
    assert PairSimilarity(5, **network.to_dict()).to_dict() == network.to_dict()


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
