"""What a network takes: a tensor, or the maps of several of its stages by name."""

from __future__ import annotations

import torch
from torch import Tensor

Features = Tensor | dict[str, Tensor]
"""Inputs, or what a stage gives, (B, ...); or several of these by the names of their stages."""


def to_device(features: Features, device: torch.device, non_blocking: bool = False) -> Features:
    """The same on another device."""
    if isinstance(features, Tensor):
        return features.to(device, non_blocking=non_blocking)
    return {name: value.to(device, non_blocking=non_blocking) for name, value in features.items()}
