"""Losses on all similarities of a batch at once, by log-sum-exp: every pair counts, hard ones most."""

from __future__ import annotations

from torch import nn

from nearkin.objectives.contrastive import AnchorBlocks, multi_similarity_terms, supcon_terms
from nearkin.objectives.distances import library, similarity_in
from nearkin.objectives.registry import FLAT, PAIRS, SPHERE, LossShape, register_loss
from nearkin.registry import Positive, Real


@register_loss("multi-similarity", family="pairs", batch=PAIRS, spaces=FLAT, miner="all", switchable=False)
def multi_similarity(shape: LossShape, *, alpha: Positive = 2.0, beta: Positive = 40.0, base: Real = 0.5) -> nn.Module:
    """Multi-similarity: each anchor's positives and negatives, softly weighted by how hard they are.

    Mean over anchors of ln(1 + sum_p exp(-alpha (s - base)))/alpha + ln(1 + sum_n exp(beta (s - base)))/beta.

    Reference: Wang, Han, Huang, Dong, Scott 2019, Multi-similarity loss with general pair weighting.
    Needs: at least two classes and two samples of each in a batch; class labels. Takes a miner; its own is called
        'multi-similarity'. Sphere, Lipschitz ball or Euclidean space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want a strong pair loss with little tuning.

    Args:
        shape: the run's dimension, classes and space.
        alpha: sharpness on positives.
        beta: sharpness on negatives.
        base: similarity from which pairs are judged.

    Example:
        >>> section = ObjectiveSection(loss="multi-similarity", miner="multi-similarity")
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    similarity = similarity_in(shape.space)
    loss = library("losses").MultiSimilarityLoss(alpha=alpha, beta=beta, base=base, distance=similarity)
    return AnchorBlocks(loss, similarity, multi_similarity_terms(alpha, beta, base))


@register_loss("supcon", family="pairs", batch=PAIRS, spaces=FLAT, miner="all", switchable=False)
def supcon(shape: LossShape, *, temperature: Positive = 0.1) -> nn.Module:
    """Supervised contrastive: mean over anchors of -mean_p ln(exp(s_p/T) / sum over all others exp(s/T)).

    Reference: Khosla et al. 2020, Supervised contrastive learning.
    Needs: at least two classes and two samples of each in a batch, better large batches; class labels. Takes a miner.
        Sphere, Lipschitz ball or Euclidean space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: batches are large, or a backbone is trained from scratch.

    Args:
        shape: the run's dimension, classes and space.
        temperature: low looks at the hardest pairs, high at all.

    Example:
        >>> section = ObjectiveSection(loss="supcon", parameters={"temperature": 0.07})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    similarity = similarity_in(shape.space)
    loss = library("losses").SupConLoss(temperature=temperature, distance=similarity)
    return AnchorBlocks(loss, similarity, supcon_terms(temperature))


@register_loss("circle", family="pairs", batch=PAIRS, spaces=SPHERE, miner="all", switchable=False)
def circle(shape: LossShape, *, margin: Positive = 0.4, gamma: Positive = 80.0) -> nn.Module:
    """Circle loss: mean over anchors of softplus(lse_p(-gamma a_p (s - 1 + m)) + lse_n(gamma a_n (s - m))).

    The weights a_p = (1 + m - s)_+ and a_n = (s + m)_+ grow with the distance from the optimum and carry no gradient.

    Reference: Sun et al. 2020, Circle loss: a unified perspective of pair similarity optimization.
    Needs: at least two classes and two samples of each in a batch; class labels. Takes a miner. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: positives and negatives are learned at very different paces.

    Args:
        shape: the run's dimension, classes and space.
        margin: relaxation m; positives aim at 1 - m, negatives at m.
        gamma: scale; 80 for fine-grained retrieval, 128 to 256 for people and faces.

    Example:
        >>> section = ObjectiveSection(loss="circle", parameters={"margin": 0.25, "gamma": 128})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").CircleLoss(m=margin, gamma=gamma)
