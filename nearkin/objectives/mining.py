"""Miners: which pairs or triplets of a batch a loss looks at.

A miner is called with raw embeddings (B, d) and labels (B,) and returns index tensors, (anchors, positives, negatives)
or (anchors, positives, anchors, negatives), or None for all. No gradient passes through the choice.
Called with `ref_emb` (R, d) and `ref_labels` (R,) too, it takes anchors from the batch and the others from these
references. 'angular', and 'all' before a triplet or margin loss, then hold B x R x R bytes, or go through the batch one
anchor at a time when that is 2^31 or more; the others hold at most (positive pairs) x R numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.objectives.distances import OnSphere, distance_in, library, similarity_in
from nearkin.objectives.parameters import AcuteDegrees, NonNegative, Positive
from nearkin.objectives.registry import FLAT, SPHERE, LossShape, register_miner
from nearkin.objectives.seeded import Choice, Seeded


@register_miner("all")
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
        shape: the run's dimension, classes and space.
        margin: the loss's own margin unless set.
    """
    return _TripletMargin(distance_in(shape.space), least=0.0, most=margin)


@register_miner("violating", inherits=frozenset({"margin"}))
def violating(shape: LossShape, *, margin: Positive = 0.2) -> nn.Module:
    """Triplets whose negative is not further than the positive by the margin: the hard and the semi-hard.

    Args:
        shape: the run's dimension, classes and space.
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
        shape: the run's dimension, classes and space.
        epsilon: slack of both comparisons.
    """
    return library("miners").MultiSimilarityMiner(epsilon=epsilon, distance=similarity_in(shape.space))


@register_miner("pair-margin")
def pair_margin(shape: LossShape, *, pos_margin: NonNegative = 0.2, neg_margin: Positive = 0.8) -> nn.Module:
    """Positives further apart than one distance, negatives nearer than another.

    Args:
        shape: the run's dimension, classes and space.
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
        shape: the run's dimension, classes and space.
        angle: the bound, in degrees.
    """
    return OnSphere(library("miners").AngularMiner(angle=angle))


@register_miner("distance-weighted", spaces=SPHERE)
def distance_weighted(shape: LossShape, *, cutoff: Positive = 0.5, far: Positive = 1.4) -> nn.Module:
    """Random triplets whose negatives are spread evenly over distances, neither all hard nor all easy.

    Reference: Wu, Manmatha, Smola, Krähenbühl 2017, Sampling matters in deep embedding learning.

    Args:
        shape: the run's dimension, classes, space and seed.
        cutoff: negatives nearer than this are drawn as if they were this far.
        far: negatives beyond this distance are not drawn.
    """
    miner = library("miners").DistanceWeightedMiner(cutoff=cutoff, nonzero_loss_cutoff=far)
    return Seeded(miner, shape.seed)


class _Every(nn.Module):
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Choice:
        return None


class _RandomTriplets(nn.Module):
    """One triplet an anchor, drawn from the global generator; anchors without a positive or a negative have none."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Choice:
        same = labels.unsqueeze(1) == (labels if ref_labels is None else ref_labels)
        positives = same.clone().fill_diagonal_(False) if ref_emb is None else same
        a = torch.where(positives.any(dim=1) & ~same.all(dim=1))[0]
        return a, _one_of_each_row(positives[a]), _one_of_each_row(~same[a])


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
    ) -> Choice:
        same = labels.unsqueeze(1) == (labels if ref_labels is None else ref_labels)
        positives = same.clone().fill_diagonal_(False) if ref_emb is None else same
        distances = self.distance(embeddings, ref_emb)
        a, p = torch.where(positives)
        slack = distances[a] - distances[a, p].unsqueeze(1)
        pair, n = torch.where(~same[a] & (slack > self.least) & (slack <= self.most))
        return a[pair], p[pair], n
