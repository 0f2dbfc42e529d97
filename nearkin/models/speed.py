"""CPU speed, in one place.

Four things cost most of the time of a small network on a CPU, and none of them is arithmetic:

- The allocator. glibc takes every large block (a feature map) fresh from the system and gives it back at once, so each
  layer of each step pays page faults for zeroed memory. `tune_allocator` tells it to keep and reuse memory.
- Waiting threads. Those of OpenMP and OpenBLAS wait awake. Beside busy neighbours (decoders, other programs) they
  take the core from the one they wait for, and a step costs several times the processor time. `tune_threads` lets them
  sleep.
- The memory format. Convolutions are fastest with the channels innermost (`channels_last`); a network that starts so
  stays so.
- Batch norm. At inference it is a scale and a shift per channel, which the convolution before it can do itself.

`benchmarks/overhead.py` and `benchmarks/fine_tune.py` measure what they give.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from nearkin.allocator import tune_allocator
from nearkin.errors import ModelError

M = TypeVar("M", bound=nn.Module)


def channels_last(module: M) -> M:
    """Lay out the weights of a network for maps with the channels innermost, in place."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def as_channels_last(batch: Tensor) -> Tensor:
    """A batch (B, C, H, W) with the channels innermost; vectors (B, C) pass."""
    return batch.contiguous(memory_format=torch.channels_last) if batch.ndim == 4 else batch


def fold_batch_norm(module: M) -> M:
    """Merge every batch norm that directly follows a convolution in an `nn.Sequential` into it, in place.

    Only for a module in eval mode: the folded weights are those of its running statistics.
    """
    for parent in module.modules():
        if not isinstance(parent, nn.Sequential):
            continue
        for before, after in pairwise(list(parent._modules)):
            conv, norm = parent._modules[before], parent._modules[after]
            if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
                continue
            mean, variance = norm.running_mean, norm.running_var
            if mean is None or variance is None:
                continue
            if norm.training:
                raise ModelError("Batch norm can only be folded in eval mode: call .eval() first.")
            statistics = mean, variance, norm.eps, norm.weight, norm.bias
            conv.weight, conv.bias = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics)
            parent._modules[after] = nn.Identity()
    return module


def inference_copy(module: M) -> M:
    """A copy of a module made for speed on its device: eval mode, folded, channels last, no gradients.

    The module itself is not touched. Call the copy inside `torch.inference_mode()`.
    """
    tune_allocator()
    twin = copy.deepcopy(module).eval().requires_grad_(False)
    return channels_last(fold_batch_norm(twin))


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.compile` with the weights as constants; the first call of each input shape takes many seconds.

    Needs a C++ compiler. Worth it for long jobs on one batch size.
    """
    return torch.compile(function, dynamic=False, options={"freezing": True})
