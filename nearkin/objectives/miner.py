"""Miners: which pairs or triplets of a batch a loss looks at, and switched negatives.

A miner is called with raw embeddings (B, d) and labels (B,) and returns index tensors, (anchors, positives, negatives)
or (anchors, positives, anchors, negatives), or None for all. No gradient passes through the choice.
Called with `ref_emb` (R, d) and `ref_labels` (R,) too, it takes anchors from the batch and the others from these
references. 'angular', and 'all' before a triplet or margin loss, then hold B x R x R bytes, or go through the batch one
anchor at a time when that is 2^31 or more; the others hold at most (positive pairs) x R numbers.

rho-regularisation: now and then an item of the anchor's own class takes the place of a negative.
Each negative that a miner chose becomes, with a probability p, a random other item of the anchor's class. Pushed from
its own class a little, an embedding keeps directions that tell items of one class apart, and which unseen classes may
need. When to use it: docs/methods/rho-regularisation.md.
Reference: Roth et al. 2020, Revisiting training strategies and generalization performance in deep metric learning.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.objectives.distances import OnSphere, distance_in, library, similarity_in
from nearkin.objectives.registry import EVERY, FLAT, SPHERE, AcuteDegrees, LossShape, drawing_by, register_miner
from nearkin.registry import NonNegative, Positive

MinedIndices = tuple[Tensor, ...] | None
"""What a miner chose: (anchors, positives, negatives), (anchors, positives, anchors, negatives), or None for all."""


class Seeded(nn.Module):
    """Run a miner that draws from the global generators as a function of a seed and the number of calls so far.

    The count is saved with the weights, so that a resumed run draws what it would have drawn.

    Args:
        miner: the miner.
        seed: of its draws.
    """

    draws: Tensor

    def __init__(self, miner: nn.Module, seed: int) -> None:
        super().__init__()
        self.miner = miner
        self.seed = seed
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> MinedIndices:
        """What the miner chooses; the global random state is left as it was."""
        with drawing_by(embeddings.device, self.seed, int(self.draws)):
            self.draws += 1
            return self.miner(embeddings, labels, ref_emb, ref_labels)


@register_miner(EVERY)
def every(shape: LossShape) -> nn.Module:
    """Every pair or triplet of the batch."""
    return _Every()


@register_miner("random")
def random(shape: LossShape) -> nn.Module:
    """For each anchor one of its positives and one of its negatives, any as likely as the others.

    Reference: Malde, Kim 2019, Beyond image classification: zooplankton identification with deep vector space
        embeddings.
    """
    return Seeded(_RandomTriplets(), shape.seed)


@register_miner("semi-hard", inherits=frozenset({"margin"}))
def semi_hard(shape: LossShape, *, margin: Positive = 0.2) -> nn.Module:
    """Triplets whose negative is further than the positive, by less than the margin.

    Reference: Schroff, Kalenichenko, Philbin 2015, FaceNet.

    Args:
        margin: the loss's own margin unless set.
    """
    return _TripletMargin(distance_in(shape.space), least=0.0, most=margin)


@register_miner("violating", inherits=frozenset({"margin"}))
def violating(shape: LossShape, *, margin: Positive = 0.2) -> nn.Module:
    """Triplets whose negative is not further than the positive by the margin: the hard and the semi-hard.

    Args:
        margin: the loss's own margin unless set.
    """
    return _TripletMargin(distance_in(shape.space), least=-math.inf, most=margin)


@register_miner("hard")
def hard(shape: LossShape) -> nn.Module:
    """For each anchor its furthest positive and its nearest negative.

    Reference: Hermans, Beyer, Leibe 2017, In defense of the triplet loss for person re-identification.
    """
    return library("miners").BatchHardMiner(distance=distance_in(shape.space))


@register_miner("multi-similarity", spaces=FLAT)
def multi_similarity(shape: LossShape, *, epsilon: NonNegative = 0.1) -> nn.Module:
    """Negatives more similar than the least similar positive, positives less similar than the most similar negative.

    Reference: Wang, Han, Huang, Dong, Scott 2019, Multi-similarity loss with general pair weighting.

    Args:
        epsilon: slack of both comparisons.
    """
    return library("miners").MultiSimilarityMiner(epsilon=epsilon, distance=similarity_in(shape.space))


@register_miner("pair-margin")
def pair_margin(shape: LossShape, *, pos_margin: NonNegative = 0.2, neg_margin: Positive = 0.8) -> nn.Module:
    """Positives further apart than one distance, negatives nearer than another.

    Args:
        pos_margin: positives beyond this distance count.
        neg_margin: negatives within this distance count.
    """
    return library("miners").PairMarginMiner(
        pos_margin=pos_margin, neg_margin=neg_margin, distance=distance_in(shape.space)
    )


@register_miner("angular", spaces=SPHERE)
def angular(shape: LossShape, *, angle: AcuteDegrees = 20.0) -> nn.Module:
    """Triplets whose angle at the negative is larger than a bound.

    Reference: Wang, Zhou, Wen, Liu, Lin 2017, Deep metric learning with angular loss.

    Args:
        angle: the bound, in degrees.
    """
    return OnSphere(library("miners").AngularMiner(angle=angle))


@register_miner("distance-weighted", spaces=SPHERE)
def distance_weighted(shape: LossShape, *, cutoff: Positive = 0.5, far: Positive = 1.4) -> nn.Module:
    """Random triplets whose negatives are spread evenly over distances, neither all hard nor all easy.

    Reference: Wu, Manmatha, Smola, Krähenbühl 2017, Sampling matters in deep embedding learning.

    Args:
        cutoff: negatives nearer than this are drawn as if they were this far.
        far: negatives beyond this distance are not drawn.
    """
    miner = library("miners").DistanceWeightedMiner(cutoff=cutoff, nonzero_loss_cutoff=far)
    return Seeded(miner, shape.seed)


class _Every(nn.Module):
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> MinedIndices:
        return None


class _RandomTriplets(nn.Module):
    """One triplet an anchor, drawn from the global generator; anchors without a positive or a negative have none."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> MinedIndices:
        same, positives = _same_class(labels, ref_labels)
        a = torch.where(positives.any(dim=1) & ~same.all(dim=1))[0]
        return a, _one_of_each_row(positives[a]), _one_of_each_row(~same[a])


def _same_class(labels: Tensor, ref_labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which pairs (B, R) are of one class, and which of these are positives: all but an item and itself."""
    if ref_labels is not None:
        same = labels.unsqueeze(1) == ref_labels
        return same, same
    same = labels.unsqueeze(1) == labels
    return same, same.clone().fill_diagonal_(False)


def _one_of_each_row(mask: Tensor) -> Tensor:
    """A random column (n,) among those that each row of a mask (n, R) has; every row has some."""
    shares = torch.rand(len(mask), dtype=torch.float64, device=mask.device)
    counts = mask.sum(dim=1)
    # Rounding may take a share of almost 1 to the count itself.
    places = torch.minimum((shares * counts).long(), counts - 1)
    return torch.searchsorted(mask.cumsum(dim=1), places.unsqueeze(1), right=True).squeeze(1)


class _TripletMargin(nn.Module):
    """Triplets (a, p, n) with least < d(a, n) - d(a, p) <= most, in that order.

    The library has these too, but looks for them among all B x R x R triples; most have no positive pair.
    """

    def __init__(self, distance: Any, least: float, most: float) -> None:
        super().__init__()
        self.distance = distance
        self.least = least
        self.most = most

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> MinedIndices:
        same, positives = _same_class(labels, ref_labels)
        distances = self.distance(embeddings, ref_emb)
        a, p = torch.where(positives)
        slack = distances[a] - distances[a, p].unsqueeze(1)
        pair, n = torch.where(~same[a] & (slack > self.least) & (slack <= self.most))
        return a[pair], p[pair], n


# Keeps these draws apart from those of a miner that draws by the same seed.
_SALT = 0x5817C4


def switching(miner: nn.Module, share: float, seed: int) -> nn.Module:
    """A miner whose negatives are switched for items of the anchor's class; the same miner if the share is 0.

    Args:
        miner: what chooses triplets or pairs.
        share: probability of each negative, in [0, 1).
        seed: of the draws, which go on with the number of calls.
    """
    mixed = int(np.random.SeedSequence([seed, _SALT]).generate_state(1, np.uint64)[0])
    return Seeded(SwitchedNegatives(miner, share), mixed) if share else miner


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
    ) -> MinedIndices:
        """Index tensors: the miner's own form, or (anchors, positives, anchors, negatives) if it chose nothing."""
        choice = self.miner(embeddings, labels, ref_emb, ref_labels)
        if choice is None:
            same, positives = _same_class(labels, ref_labels)
            choice = (*torch.where(positives), *torch.where(~same))
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
