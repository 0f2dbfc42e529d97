"""A batch that is made into inputs when they are needed, whole or in parts.

Decoded images are bytes, their augmented and normalised form is four times as large: a batch that goes through the
network in parts should never be all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from nearkin.models.features import Features


@dataclass(frozen=True, eq=False)
class Deferred:
    """Samples as they were decoded, and how they become inputs.

    Attributes:
        samples: (b, C, H, W), uint8 for images.
        prepare: from some of the samples, and the place of the first of them, to their inputs; the same each time.
    """

    samples: Tensor
    prepare: Callable[[Tensor, int], Tensor]

    def __len__(self) -> int:
        return len(self.samples)


Inputs = Features | Deferred
"""What a step is given of a batch: what the network takes, or what it can be made of."""


def part(inputs: Inputs, first: int, last: int) -> Features:
    """The inputs of the items first ... last - 1, as the network takes them."""
    if isinstance(inputs, Deferred):
        return inputs.prepare(inputs.samples[first:last], first)
    if isinstance(inputs, Tensor):
        return inputs[first:last]
    return {name: value[first:last] for name, value in inputs.items()}


def whole(inputs: Inputs) -> Features:
    """All inputs, as the network takes them."""
    return inputs.prepare(inputs.samples, 0) if isinstance(inputs, Deferred) else inputs
