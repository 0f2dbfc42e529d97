"""Proxy losses: a batch is compared with learned vectors that stand for the classes.

All go through log-sum-exp: a plain exponential overflows, and a probability that underflows would lose its sample.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.objectives.distances import distance_in, library
from nearkin.objectives.proxy.loss import check_negative_margin
from nearkin.objectives.registry import SPHERE, LossShape, register_loss
from nearkin.registry import Count, NonNegative, Positive, Real


@register_loss("proxy-nca", family="proxies")
def proxy_nca(shape: LossShape, *, scale: Positive = 9.0) -> nn.Module:
    """ProxyNCA: mean of s d^2(x, own proxy) + ln sum over the other proxies exp(-s d^2(x, p)).

    The own proxy is left out of the sum, so the loss can be negative.

    Reference: Movshovitz-Attias, Toshev, Leung, Ioffe, Singh 2017, No fuss distance metric learning using proxies.
    Needs: any batch, one sample a class will do; labels 0 ... classes - 1. Proxies want a higher learning rate. Any
        space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: reproducing results with ProxyNCA; otherwise 'proxy-nca++' is its better successor.

    Args:
        scale: what squared distances are multiplied by; 9 in the public code, 1 in the paper.

    Example:
        >>> section = ObjectiveSection(loss="proxy-nca")
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return ProxyNCA(shape.classes, shape.dimension, distance_in(shape.space), scale)


@register_loss("proxy-nca++", family="proxies")
def proxy_nca_plus_plus(shape: LossShape, *, temperature: Positive = 0.1) -> nn.Module:
    """ProxyNCA++: cross-entropy over the logits -d^2(x, p)/T to all proxies.

    Reference: Teh, DeVries, Taylor 2020, ProxyNCA++: revisiting and revitalizing proxy neighborhood component analysis.
    Needs: any batch, one sample a class will do; labels 0 ... classes - 1. Proxies want a higher learning rate. Any
        space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are up to some thousand classes and you want fast, stable training without mining.

    Args:
        temperature: low sharpens the assignment to proxies.

    Example:
        >>> section = ObjectiveSection(loss="proxy-nca++", parameters={"temperature": 0.11})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return ProxyNCAPlusPlus(shape.classes, shape.dimension, distance_in(shape.space), temperature)


@register_loss("proxy-anchor", family="proxies", spaces=SPHERE)
def proxy_anchor(shape: LossShape, *, margin: Real = 0.1, alpha: Positive = 32.0) -> nn.Module:
    """ProxyAnchor: each proxy is an anchor that pulls and pushes the whole batch, hard samples most.

    Mean over proxies with positives of ln(1 + sum exp(-alpha (cos - m))) plus mean over all proxies of
    ln(1 + sum over their negatives exp(alpha (cos + m))).

    Reference: Kim, Kim, Cho, Kwak 2020, Proxy anchor loss for deep metric learning.
    Needs: any batch, one sample a class will do; labels 0 ... classes - 1. Proxies want a higher learning rate.
        Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you look for a first choice; it converges fast and needs no mining.

    Args:
        margin: added to both sides, in cosine.
        alpha: sharpness; high looks at the hardest samples.

    Example:
        >>> section = ObjectiveSection(loss="proxy-anchor", parameters={"margin": 0.2})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").ProxyAnchorLoss(shape.classes, shape.dimension, margin=margin, alpha=alpha)


@register_loss("soft-triple", family="proxies", spaces=SPHERE)
def soft_triple(
    shape: LossShape,
    *,
    centres: Count = 10,
    scale: Positive = 20.0,
    gamma: Positive = 0.1,
    margin: Real = 0.01,
    tau: NonNegative = 0.2,
) -> nn.Module:
    """SoftTriple: softmax over classes that have several centres each, plus a term that merges surplus centres.

    Similarity to a class is sum_k softmax_k(cos_k/gamma) cos_k; cross-entropy over scale (similarity - m for the own
    class), plus tau times the mean of |w_k - w_l|/2 over pairs of centres of one class.

    Reference: Qian, Shang, Sun, Hu, Li, Jin 2019, SoftTriple loss: deep metric learning without triplet sampling.
    Needs: any batch, one sample a class will do; labels 0 ... classes - 1. Proxies want a higher learning rate.
        Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: classes are made of several looks (poses, plumages, seasons) that one proxy would average away.

    Args:
        centres: centres of each class.
        scale: what similarities are multiplied by (lambda in the paper).
        gamma: how softly a sample chooses among the centres of a class; low chooses one.
        margin: taken from the own class's similarity; a negative one leaves classes wider.
        tau: weight of the term that merges centres; without effect with one centre.

    Example:
        >>> section = ObjectiveSection(loss="soft-triple", parameters={"centres": 2})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    check_negative_margin("soft-triple", shape, margin)
    return library("losses").SoftTripleLoss(
        shape.classes,
        shape.dimension,
        centers_per_class=centres,
        la=scale,
        gamma=gamma,
        margin=margin,
        weight_regularizer=_CentreMerging(centres) if centres > 1 and tau > 0 else None,
        weight_reg_weight=tau,
    )


class _Proxies(nn.Module):
    """One proxy a class, and squared distances to them.

    Args:
        classes: number of proxies C.
        dimension: their size d.
        distance: distance object that takes raw vectors (B, d) and (C, d) to distances (B, C).
    """

    def __init__(self, classes: int, dimension: int, distance: Any) -> None:
        super().__init__()
        # Norms near 1 in any dimension, so that a learning rate means the same everywhere.
        self.proxies = nn.Parameter(torch.randn(classes, dimension) / math.sqrt(dimension))
        self.distance = distance

    def squared_distances(self, embeddings: Tensor) -> Tensor:
        """Squared distances (B, C) of raw embeddings (B, d) to the proxies."""
        return self.distance(embeddings, self.proxies) ** 2


class ProxyNCA(_Proxies):
    """The module behind the loss 'proxy-nca'; see `proxy_nca`."""

    def __init__(self, classes: int, dimension: int, distance: Any, scale: float) -> None:
        super().__init__(classes, dimension, distance)
        self.scale = scale

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,)."""
        scores = -self.scale * self.squared_distances(embeddings)
        own = labels.unsqueeze(1)
        others = scores.scatter(1, own, -math.inf)
        return (others.logsumexp(1) - scores.gather(1, own).squeeze(1)).mean()


class ProxyNCAPlusPlus(_Proxies):
    """The module behind the loss 'proxy-nca++'; see `proxy_nca_plus_plus`."""

    def __init__(self, classes: int, dimension: int, distance: Any, temperature: float) -> None:
        super().__init__(classes, dimension, distance)
        self.temperature = temperature

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,)."""
        return F.cross_entropy(-self.squared_distances(embeddings) / self.temperature, labels)


class _CentreMerging(nn.Module):
    """Half the mean distance between the centres of a class.

    The library's own compares every centre with every other and has an unbounded gradient where two meet, which is
    what the term is for.
    """

    def __init__(self, centres: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(centres, centres, offset=1)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.centres = centres

    def forward(self, weights: Tensor) -> Tensor:
        """Scalar, for centres (classes * centres, d) class by class."""
        unit = F.normalize(weights).unflatten(0, (-1, self.centres))  # (C, K, d)
        cosines = (unit @ unit.mT)[:, self.first, self.second]
        return torch.sqrt((2 - 2 * cosines).clamp(min=0) + 1e-5).mean() / 2


@register_loss("normalized-softmax", family="classification", spaces=SPHERE)
def normalized_softmax(shape: LossShape, *, temperature: Positive = 0.05) -> nn.Module:
    """Normalised softmax: cross-entropy over cos(x, w)/T.

    Reference: Zhai, Wu 2019, Classification is a strong baseline for deep metric learning; Wang et al. 2017, NormFace.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want the simplest strong baseline and the classes number up to some ten thousand.

    Args:
        temperature: low sharpens the softmax; 1/T is the scale of NormFace.

    Example:
        >>> section = ObjectiveSection(loss="normalized-softmax", parameters={"temperature": 0.1})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").NormalizedSoftmaxLoss(shape.classes, shape.dimension, temperature=temperature)
