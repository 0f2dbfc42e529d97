"""rho-regularisation: now and then an item of the anchor's own class takes the place of a negative.

Each negative that a miner chose becomes, with a probability p, a random other item of the anchor's class. Pushed from
its own class a little, an embedding keeps directions that tell items of one class apart, and which unseen classes may
need. When to use it: docs/methods/rho-regularisation.md.
Reference: Roth et al. 2020, Revisiting training strategies and generalization performance in deep metric learning.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.objectives.seeded import Choice, Seeded

# Keeps these draws apart from those of a miner that draws by the same seed.
_SALT = 0x5817C4


def switching(miner: nn.Module, share: float, seed: int) -> nn.Module:
    """A miner whose negatives are switched for items of the anchor's class; the same miner if the share is 0.

    Args:
        miner: what chooses triplets or pairs.
        share: probability of each negative, in [0, 1).
        seed: of the draws, which go on with the number of calls.
    """
    return Seeded(SwitchedNegatives(miner, share), _mix(seed)) if share else miner


class SwitchedNegatives(nn.Module):
    """Switch a share of the negatives that a miner chose, by draws from the global generator.

    An anchor is never switched for itself, nor is the negative of a triplet for the positive of it where the class has
    another item. A negative stays where the anchor's class has no other item. With references, switched negatives are
    references of the anchor's class.

    Args:
        miner: what chooses triplets or pairs; all pairs if it chooses nothing.
        share: probability of each negative, in [0, 1).
    """

    def __init__(self, miner: nn.Module, share: float) -> None:
        super().__init__()
        self.miner = miner
        self.share = share

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Choice:
        """Index tensors: the miner's own form, or (anchors, positives, anchors, negatives) if it chose nothing."""
        choice = self.miner(embeddings, labels, ref_emb, ref_labels)
        if choice is None:
            choice = _every_pair(labels, ref_labels)
        *kept, negatives = choice
        anchors = kept[0] if len(kept) == 2 else kept[2]
        drawn = torch.rand(len(negatives), dtype=torch.float64, device=negatives.device) < self.share
        places = torch.where(drawn)[0]
        asked = anchors[places]
        items, has = _others(
            labels[asked],
            labels if ref_labels is None else ref_labels,
            never=asked if ref_labels is None else None,
            rather_not=kept[1][places] if len(kept) == 2 else None,
        )
        switched = negatives.clone()
        switched[places[has]] = items[has].to(switched.dtype)
        return *kept, switched


def _every_pair(labels: Tensor, ref_labels: Tensor | None) -> tuple[Tensor, ...]:
    """(anchors, positives, anchors, negatives) of all pairs."""
    same = labels.unsqueeze(1) == (labels if ref_labels is None else ref_labels)
    positives = same.clone().fill_diagonal_(False) if ref_labels is None else same
    return *torch.where(positives), *torch.where(~same)


def _others(
    classes: Tensor, labels: Tensor, *, never: Tensor | None, rather_not: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A random item (n,) of each of some classes, and whether (n,) there is one.

    Args:
        classes: (n,) wanted.
        labels: of the items (R,).
        never: item (n,) of the class that is not drawn.
        rather_not: item (n,) of the class that is drawn only if there is no other.
    """
    order = torch.argsort(labels, stable=True)
    ascending = labels[order]
    first = torch.searchsorted(ascending, classes)
    counts = torch.searchsorted(ascending, classes, right=True) - first
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    left, barred = counts, []
    if never is not None:
        barred.append(rank[never] - first)
        left = left - 1
    if rather_not is not None:
        spared = left > 1
        # A place beyond the class bars nothing.
        barred.append(torch.where(spared, rank[rather_not] - first, counts))
        left = left - spared.long()
    has = left > 0
    shares = torch.rand(len(classes), dtype=torch.float64, device=labels.device)
    # Rounding may take a share of almost 1 to the number itself.
    places = torch.minimum((shares * left).long(), left - 1).clamp(min=0)
    if barred:
        for place in torch.stack(barred).sort(dim=0).values:
            places = places + (places >= place).long()
    return order[(first + places).clamp(max=len(order) - 1)], has


def _mix(seed: int) -> int:
    return int(np.random.SeedSequence([seed, _SALT]).generate_state(1, np.uint64)[0])
