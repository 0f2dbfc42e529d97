"""Losses by class representatives without a margin: softmax, NormFace, AdaCos, SD-softmax and ProxyDR.

Each is a cross-entropy over scores of points of the space; they differ in what the scores are. All of them take the
options of article IV of Kim 2023 where they have a meaning: proxies that follow the class means or are laid out by a
hierarchy, and a scale that follows training.
"""

from __future__ import annotations

from typing import Literal

from torch import nn
from torch.nn import functional

from nearkin.objectives.proxy.bank import WeightRows
from nearkin.objectives.proxy.loss import ProxyLoss
from nearkin.objectives.proxy.nearness import cosines, negative_squares
from nearkin.objectives.proxy.options import EMA_RATE, SCALE, FixedScale, Proxies, ScaleOption, TreeDistance, make_bank
from nearkin.objectives.proxy.scales import AdaCosScale, Scale
from nearkin.objectives.proxy.scores import LinearScores, ScaledScores, normface_scores, ratio_scores
from nearkin.objectives.proxy.start_scales import adacos_scale
from nearkin.objectives.registry import FLAT, SPHERE, LossShape, register_loss
from nearkin.parameters import Share


@register_loss("softmax", family="classification", spaces=FLAT)
def softmax(shape: LossShape) -> nn.Module:
    """Softmax classifier: cross-entropy over W x + b.

    Reference: Kim 2023, article IV; the classifier that every other loss here is measured against.
    Needs: any batch; labels 0 ... classes - 1. Sphere, Lipschitz ball or Euclidean space; the usual one is Euclidean,
        where x is the raw embedding.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want a plain classifier as the baseline, on classes that are all known.

    Args:
        shape: the run's dimension, classes and space.

    Example:
        >>> section = ObjectiveSection(loss="softmax")
        >>> objective = make_objective(section, dimension=128, classes=100, space=Euclidean())
    """
    bank = WeightRows(shape.space, shape.classes, shape.dimension)
    scores = LinearScores(shape.classes, shape.dimension)
    return ProxyLoss(shape.space, bank, scores, functional.cross_entropy)


@register_loss("normface", family="classification", spaces=SPHERE)
def normface(
    shape: LossShape,
    *,
    scale: ScaleOption = SCALE,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: TreeDistance = "path",
) -> nn.Module:
    """NormFace: cross-entropy over s cos(x, w).

    Reference: Wang, Xiang, Cheng, Yuille 2017, NormFace: L2 hypersphere embedding for face verification; the options:
        Kim 2023, article IV.
    Needs: any batch; labels 0 ... classes - 1. Learned proxies want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want the plain classifier on the sphere, or one whose proxies follow the class means or a tree.

    Args:
        shape: the run's dimension, classes and space, and the hierarchy where proxies are laid out by it.
        scale: what cosines are multiplied by; dynamic: it follows training.
        proxies: learned: by the optimiser; ema: following the class means; mds: laid out by the hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="normface", parameters={"scale": "dynamic", "proxies": "ema"})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "normface", proxies, ema_rate, tree_distance)
    scores = normface_scores(shape.classes, scale)
    return ProxyLoss(shape.space, bank, scores, functional.cross_entropy)


@register_loss("adacos", family="classification", spaces=SPHERE)
def adacos(
    shape: LossShape,
    *,
    scale: Literal["dynamic", "static"] = "dynamic",
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: TreeDistance = "path",
) -> nn.Module:
    """AdaCos: cross-entropy over s cos(x, w) with s = ln B / cos(min(45 degrees, median own angle)).

    B is the batch's mean of the sum over the other classes of exp(s cos); s starts at sqrt(2) ln(classes - 1), is set
    after each step and stays between 1 and 100.

    Reference: Zhang, Zhao, Qiao, Wang, Li 2019, AdaCos: adaptively scaling cosine logits for effectively learning deep
        face representations.
    Needs: any batch; labels 0 ... classes - 1. Learned proxies want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want a softmax on the sphere and nothing to tune.

    Args:
        shape: the run's dimension, classes and space, and the hierarchy where proxies are laid out by it.
        scale: dynamic: it follows training; static: it stays where it starts.
        proxies: learned: by the optimiser; ema: following the class means; mds: laid out by the hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="adacos", parameters={"scale": "static"})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "adacos", proxies, ema_rate, tree_distance)
    moving = AdaCosScale(shape.classes) if scale == "dynamic" else Scale(adacos_scale(shape.classes))
    return ProxyLoss(shape.space, bank, ScaledScores(cosines, moving), functional.cross_entropy)


@register_loss("sd-softmax", family="classification")
def sd_softmax(
    shape: LossShape,
    *,
    scale: FixedScale = 1.0,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: TreeDistance = "path",
) -> nn.Module:
    """SD-softmax: cross-entropy over -s d^2(x, w) with the distance of the space; on the sphere, the chord.

    Reference: Kim 2023, section 2.2 and article IV; the softmax of prototypical networks, with proxies.
    Needs: any batch; labels 0 ... classes - 1. Learned proxies want a higher learning rate. Any space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: classes shall be told apart by distances in Euclidean space or a ball; on the sphere it is 'normface' at
        twice the scale.

    Args:
        shape: the run's dimension, classes and space, and the hierarchy where proxies are laid out by it.
        scale: what squared distances are multiplied by; on the sphere, where they end at 4, raise it to 5 or more.
        proxies: learned: by the optimiser; ema: following the class means; mds: laid out by the hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="sd-softmax", parameters={"scale": 0.5})
        >>> objective = make_objective(section, dimension=128, classes=100, space=Euclidean())
    """
    bank = make_bank(shape, "sd-softmax", proxies, ema_rate, tree_distance)
    scores = ScaledScores(negative_squares(shape.space), Scale(scale))
    return ProxyLoss(shape.space, bank, scores, functional.cross_entropy)


@register_loss("proxy-dr", family="classification")
def proxy_dr(
    shape: LossShape,
    *,
    scale: ScaleOption = SCALE,
    distance: Literal["chord", "angle"] = "chord",
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: TreeDistance = "path",
) -> nn.Module:
    """ProxyDR: p_c = d_c^-s / sum of d_y^-s, with the distances to the proxies; cross-entropy over -s ln d.

    A class's probability is largest at its own proxy, where NormFace's need not be.

    Reference: Kim, Parviainen, Berge, Malde 2023, Inspecting class hierarchies in classification-based metric learning
        models (Kim 2023, article IV).
    Needs: any batch; labels 0 ... classes - 1. Learned proxies want a higher learning rate. Any space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: the classes are known, and how near they lie to each other shall mean something.

    Args:
        shape: the run's dimension, classes and space, and the hierarchy where proxies are laid out by it.
        scale: s, the exponent of distances; dynamic: it follows training.
        distance: chord or angle, on the sphere; elsewhere the distance is the space's own, and this stays as it is.
        proxies: learned: by the optimiser; ema: following the class means; mds: laid out by the hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="proxy-dr", parameters={"scale": "dynamic"})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "proxy-dr", proxies, ema_rate, tree_distance)
    scores = ratio_scores(shape.space, shape.classes, scale, distance)
    return ProxyLoss(shape.space, bank, scores, functional.cross_entropy)
