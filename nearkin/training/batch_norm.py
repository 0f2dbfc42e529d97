"""Batch norm of a batch that several processes share: statistics of all of it, as in one process.

PyTorch's own works on GPUs only. Each process gives the mean and the spread of its slice; put together they are those
of the batch, and the gradient flows through them to every slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.errors import TrainingError
from nearkin.training.ranks import Ranks


class _Shared(nn.modules.batchnorm._BatchNorm):
    """A batch norm whose batch is that of all processes; in eval mode it is as any other."""

    ranks: Ranks

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        shared, mean, variance, count = _SharedNorm.apply(input, self.weight, self.bias, self.eps, self.ranks)
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean), factor)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), factor)
        return shared


class _Shared1d(_Shared, nn.BatchNorm1d):
    pass


class _Shared2d(_Shared, nn.BatchNorm2d):
    pass


_FORMS: dict[type[nn.Module], type[nn.Module]] = {nn.BatchNorm1d: _Shared1d, nn.BatchNorm2d: _Shared2d}


@contextmanager
def synchronised(module: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Inside the block batch norms that learn take the statistics of all processes' batches; then they are as before.

    The modules stay the same objects, so optimisers, averages and saved weights know nothing of it.

    Args:
        module: the network, in place.
        ranks: the processes, each of which must pass its equal slice through the same norms in the same order.
    """
    changed = [norm for norm in module.modules() if type(norm) in _FORMS]
    _check_known(module)
    for norm in changed:
        norm.ranks = ranks  # type: ignore[assignment]
        norm.__class__ = _FORMS[type(norm)]
    try:
        yield
    finally:
        plain = {shared: own for own, shared in _FORMS.items()}
        for norm in changed:
            norm.__class__ = plain[type(norm)]
            del norm.ranks


def learning_norms(module: nn.Module) -> list[str]:
    """Names of the batch norms that take their statistics from the batch in training."""
    before = module.training
    norms = [
        name
        for name, norm in module.train().named_modules()
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.training
    ]
    module.train(before)
    return norms


def _check_known(module: nn.Module) -> None:
    """Refuse trainable batch norms of an unknown kind."""
    others = [name for name in learning_norms(module) if type(module.get_submodule(name)) not in _FORMS]
    if others:
        raise TrainingError(
            f"The batch norm '{others[0]}' is a {type(module.get_submodule(others[0])).__name__}, which several "
            "processes cannot share: set training.sync_batch_norm to false, freeze it with model.frozen_batch_norm, or "
            "start one process."
        )


class _SharedNorm(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, by mean and variance of all processes' x (b, C, ...)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, ranks: Ranks
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        # PyTorch's own kernels, which are several times as fast as the same in steps.
        mean, variance = torch.batch_norm_update_stats(x.float(), None, None, 0.0)
        own = torch.full_like(mean, x.numel() / x.shape[1])
        counts, means, spreads = ranks.gather_labels(torch.stack([own, mean, variance])[None]).unbind(1)
        count = counts.sum(dim=0)
        mean = (counts * means).sum(dim=0) / count
        # Within the slices, and between their means: no difference of large squares.
        variance = (counts * (spreads + (means - mean).square())).sum(dim=0) / count
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps))
        ctx.ranks, ctx.own, ctx.count, ctx.eps = ranks, own, count, eps
        ctx.mark_non_differentiable(mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance, float(count[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        ones = torch.ones_like(scale) if weight is None else weight
        # As if the slice were the whole batch: right but for the pull of the others on mean and variance.
        slope, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            outer, x, ones, None, None, mean, scale, True, ctx.eps, [True, True, True]
        )
        pulls = torch.stack([of_bias, of_weight])
        everyone = ctx.ranks.gather_labels(pulls[None]).sum(dim=0)
        missing = (pulls / ctx.own - everyone / ctx.count) * scale * ones
        shape = (1, -1, *[1] * (x.ndim - 2))
        level, factor = (one.to(x.dtype).view(shape) for one in (missing[0], missing[1] * scale))
        slope.addcmul_(x - mean.to(x.dtype).view(shape), factor).add_(level)
        if weight is None:
            return slope, None, None, None, None
        return slope, of_weight, of_bias, None, None
