"""Losses of perturbed points: how far two predictions are apart, and ArcFace with a negative margin.

All are pure functions of scores; what perturbs the points is the schedule's business. Definitions:
docs/methods/adversarial-training.md.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nearkin.objectives.proxy.scores import COSINE_LIMIT, cosines

_TINY_ANGLE = 1e-3


def prediction_cross_entropy(scores: Tensor, perturbed: Tensor) -> Tensor:
    """`-sum_y P_y ln P*_y` (B,): how badly perturbed points predict what the points themselves predict.

    Its gradient also lowers the entropy of P: with a large weight, one certain class for all points is a way down.

    Args:
        scores: of the points, (B, C), whose softmax is P; gradients flow to them, too.
        perturbed: scores (B, C) of the perturbed points, whose softmax is P*.
    """
    return -(functional.softmax(scores, dim=1) * functional.log_softmax(perturbed, dim=1)).sum(dim=1)


def prediction_divergence(scores: Tensor, perturbed: Tensor) -> Tensor:
    """`sum_y P_y (ln P_y - ln P*_y)` (B,): that cross-entropy less the entropy of P, the divergence KL(P || P*).

    Reference: Zhang, Yu, Jiao, Xing, El Ghaoui, Jordan 2019, Theoretically principled trade-off between robustness and
        accuracy (TRADES), as in its code.

    Args:
        scores: of the points, (B, C), whose softmax is P; gradients flow to them, too.
        perturbed: scores (B, C) of the perturbed points, whose softmax is P*.
    """
    logs, of_perturbed = functional.log_softmax(scores, dim=1), functional.log_softmax(perturbed, dim=1)
    return (logs.exp() * (logs - of_perturbed)).sum(dim=1)


@torch.no_grad()
def negative_margins(proxies: Tensor) -> Tensor:
    """`m(c) = -angle_min(c) / 2 + 1e-3` (C,): half the angle from each proxy (C, d) to the nearest other, in radians.

    Reference: Kim 2023, section 6.2.1.
    """
    between = cosines(proxies, proxies).fill_diagonal_(-1.0)
    nearest = between.amax(dim=1).clamp(-1.0, 1.0).acos()
    return _TINY_ANGLE - nearest / 2


def negative_margin_loss(scores: Tensor, labels: Tensor, margins: Tensor, scale: float | Tensor) -> Tensor:
    """Mean cross-entropy of `s cos` whose own logit is `s cos(max(angle + m(c), 0))`.

    A point that is nearer to its proxy than half the way to the next one has the best own logit there is, and is pulled
    no nearer. Without the maximum it would be pushed away from its proxy. With margins of 0 this is NormFace.

    Reference: Kim 2023, section 6.2.1.

    Args:
        scores: `s cos` of the points to all proxies, (B, C).
        labels: (B,) int64.
        margins: m of every class (C,), in radians.
        scale: s.
    """
    index = labels.unsqueeze(1)
    own = (scores.gather(1, index) / scale).clamp(-COSINE_LIMIT, COSINE_LIMIT)
    angles = (own.acos() + margins[labels].to(own).unsqueeze(1)).clamp(min=0.0)
    return functional.cross_entropy(scores.scatter(1, index, scale * angles.cos()), labels)
