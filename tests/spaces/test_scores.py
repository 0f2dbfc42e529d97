"""Class scores: values of the article, limits, gradients."""

import pytest
import torch

from nearkin.spaces import distance_ratio_scores, distance_scores, sd_softmax_scores


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
