"""Double precision wherever the features are."""

from __future__ import annotations

from torch import Tensor


def doubled(x: Tensor) -> Tensor:
    """The same values in double precision; on the CPU if they come from Apple's GPUs, which have none."""
    return (x.cpu() if x.device.type == "mps" else x).double()
