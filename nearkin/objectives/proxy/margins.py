"""Losses by cosines to class weights, with a margin: CosFace and ArcFace."""

from __future__ import annotations

import math

from torch import nn

from nearkin.errors import RecipeError
from nearkin.objectives.parameters import AcuteDegrees, Count, NonNegative
from nearkin.objectives.proxy.criteria import AngleMargin, CosineMargin, MarginCrossEntropy
from nearkin.objectives.proxy.loss import ProxyLoss
from nearkin.objectives.proxy.nearness import SubCentreCosines, cosines
from nearkin.objectives.proxy.options import EMA_RATE, FixedScale, Proxies, TreeDistance, make_bank
from nearkin.objectives.proxy.scales import Scale
from nearkin.objectives.proxy.scores import ScaledScores
from nearkin.objectives.registry import SPHERE, LossShape, register_loss
from nearkin.parameters import Share


@register_loss("cosface", family="classification", spaces=SPHERE)
def cosface(
    shape: LossShape,
    *,
    margin: NonNegative = 0.35,
    scale: FixedScale = 64.0,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: TreeDistance = "path",
) -> nn.Module:
    """CosFace: cross-entropy over s (cos - m for the own class, cos for the others).

    Reference: Wang et al. 2018, CosFace: large margin cosine loss for deep face recognition.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are many classes and a margin in cosine should keep them apart, as with faces.

    Args:
        shape: the run's dimension, classes and space, and the hierarchy where proxies are laid out by it.
        margin: taken from the own class's cosine.
        scale: what cosines are multiplied by; small data sets want 16 to 32.
        proxies: learned: by the optimiser; ema: following the class means; mds: laid out by the hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="cosface", parameters={"margin": 0.2, "scale": 32})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "cosface", proxies, ema_rate, tree_distance)
    criterion = MarginCrossEntropy(CosineMargin(margin), scale)
    return ProxyLoss(shape.space, bank, ScaledScores(cosines, Scale(scale)), criterion)


@register_loss("arcface", family="classification", spaces=SPHERE)
def arcface(
    shape: LossShape,
    *,
    margin: AcuteDegrees = 28.6,
    scale: FixedScale = 64.0,
    sub_centres: Count = 1,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: TreeDistance = "path",
) -> nn.Module:
    """ArcFace: cross-entropy over s (cos(angle + m) for the own class, cos for the others).

    Where angle + m passes 180 degrees the own logit goes on as cos - m sin(m), so that it keeps falling. With
    sub-centres the cosine of a class is the largest of those to its sub-centres.

    Reference: Deng, Guo, Xue, Zafeiriou 2019, ArcFace: additive angular margin loss for deep face recognition; Deng,
        Guo, Liu, Gong, Zafeiriou 2020, Sub-center ArcFace.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are many classes and the margin should be the same angle everywhere, as with faces.

    Args:
        shape: the run's dimension, classes and space, and the hierarchy where proxies are laid out by it.
        margin: added to the angle to the own class, in degrees; 28.6 is 0.5 radians.
        scale: what cosines are multiplied by; small data sets want 16 to 32.
        sub_centres: of each class; more than one lets strays and wrong labels gather at a centre of their own.
        proxies: learned: by the optimiser; ema: following the class means; mds: laid out by the hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="arcface", parameters={"margin": 15, "scale": 32})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    if sub_centres > 1 and proxies != "learned":
        raise RecipeError(
            f"The loss 'arcface' has sub-centres (sub_centres={sub_centres}) only of learned proxies, not with "
            f"proxies={proxies}: set one of them back to its default."
        )
    bank = make_bank(shape, "arcface", proxies, ema_rate, tree_distance, sub_centres)
    scores = ScaledScores(SubCentreCosines(sub_centres) if sub_centres > 1 else cosines, Scale(scale))
    return ProxyLoss(shape.space, bank, scores, MarginCrossEntropy(AngleMargin(math.radians(margin)), scale))
