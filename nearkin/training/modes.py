"""Modules in eval mode for a while, and then as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def at_rest(*modules: nn.Module) -> Iterator[None]:
    """Inside the block nothing drops out or moves a running statistic; then each part is in its own mode."""
    parts = {part: part.training for module in modules for part in module.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, mode in parts.items():
            part.training = mode
