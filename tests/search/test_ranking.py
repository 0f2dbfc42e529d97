"""The scores that order a gallery, and the selection of the smallest."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.search import Ranking, smallest
from nearkin.spaces import Euclidean, PoincareBall, Sphere


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), values=st.integers(1, 8))
def test_smallest_sorts_by_score_and_then_column(seed, n, values):
    rng = np.random.default_rng(seed)
    scores = (rng.integers(0, values, (4, n)) / 3).astype(np.float32)
    scores[rng.random((4, n)) < 0.1] = np.inf
    k = int(rng.integers(1, n + 1))
    got, columns = smallest(torch.from_numpy(scores), k)
    expected = np.argsort(scores, axis=1, kind="stable")[:, :k]
    assert columns.tolist() == expected.tolist()
    np.testing.assert_array_equal(got.numpy(), np.take_along_axis(scores, expected, axis=1))


@pytest.mark.parametrize("space", [Euclidean(), Sphere(), PoincareBall()], ids=repr)
def test_rounding_stays_within_the_stated_error(space):
    generator = torch.Generator().manual_seed(0)
    x = space.project(torch.randn(50, 128, generator=generator) / 8)
    ranking = Ranking(x, None, space)
    rows = torch.arange(50)
    scores = ranking.scores(rows)
    flat, weights = space.as_euclidean(x.double())
    true = torch.cdist(flat, flat).square() / (1 if weights is None else weights)
    off = ~torch.eye(50, dtype=torch.bool)
    scale = (scores[off].double() / true[off]).median()  # scores may be in another unit
    assert ((scores - scale * true).abs().masked_fill(~off, 0).amax(dim=1) <= ranking.errors(rows)).all()
    assert (scores.diagonal() == torch.inf).all()


def test_copies_have_bit_equal_scores_whatever_the_matrix_product_does():
    generator = torch.Generator().manual_seed(0)
    for n, d, b in [(7, 3, 1), (100, 33, 5), (333, 129, 17), (650, 250, 64)]:
        gallery = torch.randn(1, d, generator=generator).expand(n, d).clone()
        gallery[n // 2] += 1
        scores = Ranking(torch.randn(b, d, generator=generator), gallery, Euclidean()).scores(torch.arange(b))
        same = torch.arange(n) != n // 2
        assert (scores[:, same] == scores[:, :1]).all()


def test_positive_and_negative_zero_are_one_point():
    gallery = torch.tensor([[0.0, 1.0], [-0.0, 1.0]])
    scores = Ranking(torch.tensor([[0.3, 0.2]]), gallery, Euclidean()).scores(torch.arange(1))
    assert scores[0, 0] == scores[0, 1]
