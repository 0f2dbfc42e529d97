"""The Square attack: random squares, kept where they help; it asks for probabilities only, never for a gradient.

What a gradient attack misses because gradients are masked, it may find.
Reference: Andriushchenko, Croce, Flammarion, Hein 2020, Square attack.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nearkin.attacks.region import PIXELS, Bounds

_AREA = 0.1
"""Share of the pixels that the first squares cover."""
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Of 10,000 queries, after which ones the area is halved."""


@torch.no_grad()
def square_attack(
    classifier: Callable[[Tensor], Tensor],
    inputs: Tensor,
    codes: Tensor,
    eps: float,
    *,
    queries: int = 500,
    bounds: Bounds = PIXELS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Points (B, C, H, W) within epsilon, in L-inf, of inputs, that a classifier is less sure of or wrong about.

    Args:
        classifier: inputs to log-probabilities (b, C').
        inputs: (B, C, H, W).
        codes: true classes (B,).
        eps: the largest change of a number.
        queries: how often the classifier is asked, at the most.
        bounds: smallest and largest number.
        generator: of what is drawn; None: torch's own.
    """
    channels, height, width = inputs.shape[1:]
    stripes = _signs((len(inputs), channels, 1, width), generator)
    best = (inputs + eps * stripes).clamp(*bounds)
    margins = _margins(classifier(best), codes)
    for query in range(1, queries):
        going = torch.nonzero(margins > 0).squeeze(1)
        if not len(going):
            break
        side = _side(query, queries, height, width)
        tried = best[going]
        top = torch.randint(0, height - side + 1, (len(going),), generator=generator)
        left = torch.randint(0, width - side + 1, (len(going),), generator=generator)
        # One sign for all channels' square of an input would be weaker: each channel has its own.
        rows, columns = torch.arange(height), torch.arange(width)
        inside = ((rows >= top[:, None]) & (rows < top[:, None] + side))[:, None, :, None]
        inside = inside & ((columns >= left[:, None]) & (columns < left[:, None] + side))[:, None, None, :]
        changed = inputs[going] + eps * _signs((len(going), channels, 1, 1), generator)
        tried = torch.where(inside, changed, tried).clamp(*bounds)
        found = _margins(classifier(tried), codes[going])
        better = found < margins[going]
        best[going[better]], margins[going[better]] = tried[better], found[better]
    return best


def _side(query: int, queries: int, height: int, width: int) -> int:
    """The side of a square: smaller the further the search is."""
    scaled = query / queries * 10_000
    area = _AREA / 2 ** sum(scaled > halving for halving in _HALVINGS)
    return max(1, min(round((area * height * width) ** 0.5), height, width))


def _signs(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1


def _margins(scores: Tensor, codes: Tensor) -> Tensor:
    """By how much the true class is ahead of the likeliest other (b,); not above 0: the classifier is wrong."""
    own = scores.gather(1, codes.unsqueeze(1)).squeeze(1)
    return own - scores.scatter(1, codes.unsqueeze(1), -torch.inf).amax(dim=1)
