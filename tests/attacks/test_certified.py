"""Randomised smoothing: bounds of shares against scipy's exact interval, radii against a model where they are known."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nearkin.attacks.classifier import Certified, certify, share_bound
from nearkin.errors import DataError


@given(samples=st.integers(1, 3000), share=st.floats(0, 1), alpha=st.sampled_from([0.0005, 0.001, 0.05, 0.5]))
def test_shares_are_bounded_as_by_the_exact_interval(samples, share, alpha):
    count = round(share * samples)
    exact = stats.binomtest(count, samples, alternative="greater").proportion_ci(1 - alpha, method="exact").low
    assert share_bound(count, samples, alpha) == pytest.approx(exact, abs=1e-9)


W = torch.tensor([3.0, -1.0, 2.0])


def linear(x):
    """Two classes, the second where `<w, x> > 1`: smoothing keeps the border, so the true radius is the distance."""
    margin = x @ W - 1
    return torch.stack([torch.zeros_like(margin), margin], dim=1)


def true_radii(x):
    return ((x @ W - 1).abs() / W.norm()).numpy()


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_certified_radii_are_never_above_the_true_ones(sigma):
    x = torch.randn(150, 3, generator=torch.Generator().manual_seed(0)) * 0.3 + W / W.square().sum()
    for seed in range(4):
        found = certify(linear, x, sigma=sigma, samples=200, guesses=20, alpha=1e-4, seed=seed)
        sure = found.codes >= 0
        assert (found.radii <= true_radii(x)).all()
        assert np.array_equal(found.codes[sure], linear(x).argmax(dim=1).numpy()[sure])
        assert (found.radii[sure] > 0).all()
        assert (found.radii[~sure] == 0).all()
        assert 0 < sure.mean() < 1


def test_many_samples_come_near_the_true_radius():
    x = W / W.square().sum() + torch.outer(torch.tensor([-0.3, -0.1, 0.1, 0.2, 0.4]), W / W.norm())
    found = certify(linear, x, sigma=0.25, samples=40_000, batch_size=10_000)
    np.testing.assert_allclose(true_radii(x), [0.3, 0.1, 0.1, 0.2, 0.4], rtol=1e-4)
    np.testing.assert_allclose(found.radii, true_radii(x), atol=0.012)
    assert found.codes.tolist() == [0, 0, 1, 1, 1]


def test_it_abstains_at_the_border():
    x = (W / W.square().sum()).repeat(5, 1)
    found = certify(linear, x, sigma=0.25, samples=500)
    assert (found.codes == -1).all()
    assert (found.radii == 0).all()


def test_the_largest_radius_that_samples_allow():
    found = certify(lambda x: torch.tensor([[0.0, 1.0]]).expand(len(x), 2), torch.zeros(1, 1, 2, 2), sigma=0.5)
    assert found.counts.tolist() == [1000]
    assert found.radii[0] == pytest.approx(0.5 * stats.norm.ppf(0.001 ** (1 / 1000)))
    assert 2.4 < found.radii[0] / 0.5 < 2.5


def test_noise_is_normal_and_not_cut():
    seen = []

    def classifier(x):
        seen.append(x)
        return torch.zeros(len(x), 2)

    certify(classifier, torch.full((1, 4), 0.9), sigma=0.5, samples=5000, guesses=1000, batch_size=700)
    noise = torch.cat(seen) - 0.9
    assert noise.shape == (6000, 4)
    assert stats.kstest(noise.flatten().numpy() / 0.5, "norm").pvalue > 0.001
    assert len(torch.unique(noise)) > 23_900  # guesses and samples share none
    assert max(len(part) for part in seen) == 700


def test_a_seed_says_it_all():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(3)) * 0.1 + W / W.square().sum()
    told = []
    one = certify(linear, x, samples=100, seed=1, advance=told.append)
    assert told == [1] * 6
    assert np.array_equal(one.counts, certify(linear, x, samples=100, seed=1).counts)
    assert not np.array_equal(one.counts, certify(linear, x, samples=100, seed=2).counts)
    # An input's noise does not depend on which inputs come after it.
    assert np.array_equal(certify(linear, x[:3], samples=100, seed=1).counts, one.counts[:3])


def test_certified_accuracy_by_hand():
    codes, radii = np.array([0, 1, -1, 1]), np.array([0.5, 0.2, 0.0, 0.9])
    found = Certified(codes, radii, 0.25, 0.001, 1000, np.zeros(4, np.int64))
    shares = found.certified_accuracy(np.array([0, 1, 1, 0]), np.array([0.0, 0.2, 0.3, 0.6]))
    assert shares.tolist() == [0.5, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("bad", [{"sigma": 0.0}, {"alpha": 0.0}, {"alpha": 1.0}, {"samples": 0}, {"guesses": 0}])
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(DataError, match=next(iter(bad))):
        certify(linear, torch.zeros(1, 3), **bad)
