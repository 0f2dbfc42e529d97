from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import ModelError, UnknownNameError
from nearkin.models import list_poolings, make_pooling
from nearkin.models.pooling import GeneralisedMeanPooling


def random_map(seed: int = 0, shape=(3, 5, 4, 6), positive: bool = True) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.abs() + 0.01 if positive else x


@pytest.mark.parametrize("name", ["gap", "gmp", "gap+gmp", "gem", "stats"])
def test_shapes_and_gradients(name):
    pooling = make_pooling(name, 5).double()
    x = random_map()
    assert pooling(x).shape == (3, pooling.out_channels)
    assert pooling.has_parameters == (name == "gem")
    assert torch.autograd.gradcheck(pooling, x.requires_grad_())


@pytest.mark.parametrize(
    ("name", "naive"),
    [
        ("gap", lambda v: [v.mean()]),
        ("gmp", lambda v: [v.max()]),
        ("gap+gmp", lambda v: [v.mean() + v.max()]),
        ("gem", lambda v: [np.maximum(v, 1e-6).__pow__(3).mean() ** (1 / 3)]),
        ("stats", lambda v: [v.mean(), np.sqrt(v.var() + 1e-6)]),
    ],
)
def test_against_loops(name, naive):
    x = random_map(positive=False)
    found = make_pooling(name, 5).double()(x).detach().numpy()
    for image in range(3):
        parts = np.array([naive(x[image, channel].numpy().ravel()) for channel in range(5)])
        np.testing.assert_allclose(found[image], parts.T.ravel(), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_gem_lies_between_average_and_maximum(seed):
    x = random_map(seed)
    average, maximum = make_pooling("gap", 5)(x), make_pooling("gmp", 5)(x)
    torch.testing.assert_close(make_pooling("gem", 5, p=1.0).double()(x), average)
    torch.testing.assert_close(make_pooling("gem", 5, p=2000.0).double()(x), maximum, rtol=5e-3, atol=0)
    middle = make_pooling("gem", 5, p=3.0).double()(x)
    assert ((average <= middle) & (middle <= maximum)).all()


def test_gem_survives_what_powers_would_overflow():
    pooling = make_pooling("gem", 1, p=50.0)
    x = torch.tensor([1e3, 1.0, 1e-5, 0.0]).view(1, 1, 2, 2).requires_grad_()
    pooled = pooling(x)
    pooled.sum().backward()
    torch.testing.assert_close(pooled, torch.tensor([[1e3 * 0.25 ** (1 / 50)]]))
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(pooling.p.grad)


def test_gem_exponent_learns_only_if_asked():
    assert make_pooling("gem", 5).has_parameters
    fixed = make_pooling("gem", 5, learn_p=False, p=4.0)
    assert not fixed.has_parameters
    assert fixed.state_dict()["p"] == 4.0


def test_what_cannot_be_built_says_why():
    with pytest.raises(UnknownNameError, match="gep"):
        make_pooling("gep", 4)
    with pytest.raises(ModelError, match=r"\bq\b"):
        make_pooling("gem", 4, q=2)
    with pytest.raises(ModelError, match=r"\bp\b"):
        make_pooling("gem", 4, p=0.0)
    for wrong in ({"p": 0.0}, {"p": float("nan")}, {"eps": float("inf")}):
        with pytest.raises(ModelError, match=next(iter(wrong))):
            GeneralisedMeanPooling(4, **wrong)
    assert {"gap", "gap+gmp", "gem", "gmp", "gsp", "gsp+gmp", "stats"} <= set(list_poolings())
