"""The proximal term: half the squared distance of a network's weights to weights they shall stay near."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def proximal(weights: list[Tensor], centre: list[Tensor], strength: float) -> Tensor:
    """strength/2 |theta - centre|^2 over all weights, a scalar whose gradient is strength (theta - centre).

    Args:
        weights: the weights theta, any shapes.
        centre: where they shall stay near, of the same shapes; constant.
        strength: lambda.
    """
    value: Tensor = _Proximal.apply(strength, centre, *weights)
    return value


class _Proximal(torch.autograd.Function):
    """Both passes as a few operations over all weights at once: a graph of one node a weight would cost more."""

    @staticmethod
    def forward(ctx: Any, strength: float, centre: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.strength, ctx.centre = strength, centre
        ctx.save_for_backward(*weights)
        norms = torch.stack(torch._foreach_norm(torch._foreach_sub(weights, centre)))
        return 0.5 * strength * norms.square().sum()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        gradients = torch._foreach_sub(ctx.saved_tensors, ctx.centre)
        torch._foreach_mul_(gradients, outer[0] * ctx.strength)
        return (None, None, *gradients)
