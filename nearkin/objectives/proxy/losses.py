"""Losses by class representatives: softmax, NormFace, AdaCos, ProxyDR, CosFace, ArcFace, SphereFace, pulls to a layout.

Each is a cross-entropy over scores of points of the space; they differ in what the scores are. All of them take the
options of article IV of Kim 2023 where they have a meaning: proxies that follow the class means or are laid out by a
hierarchy, and a scale that follows training.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import nn
from torch.nn import functional

from nearkin.errors import RecipeError
from nearkin.objectives.proxy.bank import WeightRows
from nearkin.objectives.proxy.loss import (
    EMA_RATE,
    SCALE,
    FixedScale,
    LayoutAngle,
    LayoutDistance,
    MarginCrossEntropy,
    Proxies,
    ProxyLoss,
    Pull,
    ScaleOption,
    TreeLayout,
    TreeProxies,
    angle_factor,
    angle_margin,
    check_negative_margin,
    cosine_margin,
    make_bank,
    tree_proxies,
)
from nearkin.objectives.proxy.scales import SCALE_RATE, AdaCosScale, ScoreScale, adacos_scale
from nearkin.objectives.proxy.scores import (
    LinearScores,
    ScaledScores,
    cosines,
    negative_distances,
    negative_squares,
    normface_scores,
    ratio_scores,
    sub_centre_cosines,
)
from nearkin.objectives.registry import FLAT, SPHERE, LossShape, MarginDegrees, register_loss
from nearkin.registry import Count, NonNegative, Positive, Real, Share


@register_loss("softmax", family="classification", spaces=FLAT)
def softmax(shape: LossShape) -> nn.Module:
    """Softmax classifier: cross-entropy over W x + b.

    Reference: Kim 2023, article IV; the classifier that every other loss here is measured against.
    Needs: any batch; labels 0 ... classes - 1. Sphere, Lipschitz ball or Euclidean space; the usual one is Euclidean,
        where x is the raw embedding.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want a plain classifier as the baseline, on classes that are all known.

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
    scale_rate: Positive = SCALE_RATE,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """NormFace: cross-entropy over s cos(x, w).

    Reference: Wang, Xiang, Cheng, Yuille 2017, NormFace: L2 hypersphere embedding for face verification; the options:
        Kim 2023, article IV.
    Needs: any batch; labels 0 ... classes - 1. Learned proxies want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want the plain classifier on the sphere, or one whose proxies follow the class means or a tree.

    Args:
        scale: what cosines are multiplied by; dynamic: it follows training.
        scale_rate: of a dynamic scale: about how much ln s moves in a step.
        proxies: learned: by the optimiser; ema: following the class means; mds, cosines or ranks: laid out by the
            hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="normface", parameters={"scale": "dynamic", "proxies": "ema"})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "normface", proxies, ema_rate, TreeLayout(tree_distance, layout_beta, layout_angle))
    scores = normface_scores(shape.classes, scale, scale_rate)
    return ProxyLoss(shape.space, bank, scores, functional.cross_entropy)


@register_loss("adacos", family="classification", spaces=SPHERE)
def adacos(
    shape: LossShape,
    *,
    scale: Literal["dynamic", "static"] = "dynamic",
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
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
        scale: dynamic: it follows training; static: it stays where it starts.
        proxies: learned: by the optimiser; ema: following the class means; mds, cosines or ranks: laid out by the
            hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="adacos", parameters={"scale": "static"})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "adacos", proxies, ema_rate, TreeLayout(tree_distance, layout_beta, layout_angle))
    moving = AdaCosScale(shape.classes) if scale == "dynamic" else ScoreScale(adacos_scale(shape.classes))
    return ProxyLoss(shape.space, bank, ScaledScores(cosines, moving), functional.cross_entropy)


@register_loss("sd-softmax", family="classification")
def sd_softmax(
    shape: LossShape,
    *,
    scale: FixedScale = 1.0,
    power: Literal[1, 2] = 2,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """SD-softmax: cross-entropy over -s d^2(x, w) or -s d(x, w), d being the space's distance; on the sphere, chords.

    Reference: Kim 2023, section 2.2 and article IV; the softmax of prototypical networks, with proxies.
    Needs: any batch; labels 0 ... classes - 1. Learned proxies want a higher learning rate. Any space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: classes should be told apart by distances in Euclidean space or a ball; on the sphere it is 'normface' at
        twice the scale.

    Args:
        scale: what squared distances are multiplied by; on the sphere, where they end at 4, raise it to 5 or more.
        power: 2: squared distances, the usual softmax; 1: plain ones.
        proxies: learned: by the optimiser; ema: following the class means; mds, cosines or ranks: laid out by the
            hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="sd-softmax", parameters={"scale": 0.5})
        >>> objective = make_objective(section, dimension=128, classes=100, space=Euclidean())
    """
    bank = make_bank(shape, "sd-softmax", proxies, ema_rate, TreeLayout(tree_distance, layout_beta, layout_angle))
    nearness = negative_squares if power == 2 else negative_distances
    scores = ScaledScores(partial(nearness, shape.space), ScoreScale(scale))
    return ProxyLoss(shape.space, bank, scores, functional.cross_entropy)


@register_loss("proxy-dr", family="classification")
def proxy_dr(
    shape: LossShape,
    *,
    scale: ScaleOption = SCALE,
    scale_rate: Positive = SCALE_RATE,
    distance: Literal["chord", "angle"] = "chord",
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """ProxyDR: p_c = d_c^-s / sum of d_y^-s, with the distances to the proxies; cross-entropy over -s ln d.

    A class's probability is largest at its own proxy, where NormFace's need not be.

    Reference: Kim, Parviainen, Berge, Malde 2023, Inspecting class hierarchies in classification-based metric learning
        models (Kim 2023, article IV).
    Needs: any batch; labels 0 ... classes - 1. Learned proxies want a higher learning rate. Any space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: the classes are known, and how near they lie to each other should mean something.

    Args:
        scale: s, the exponent of distances; dynamic: it follows training.
        scale_rate: of a dynamic scale: about how much ln s moves in a step.
        distance: chord or angle, on the sphere; elsewhere the distance is the space's own, and this stays as it is.
        proxies: learned: by the optimiser; ema: following the class means; mds, cosines or ranks: laid out by the
            hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="proxy-dr", parameters={"scale": "dynamic"})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "proxy-dr", proxies, ema_rate, TreeLayout(tree_distance, layout_beta, layout_angle))
    scores = ratio_scores(shape.space, shape.classes, scale, distance, scale_rate)
    return ProxyLoss(shape.space, bank, scores, functional.cross_entropy)


@register_loss("cosface", family="classification", spaces=SPHERE)
def cosface(
    shape: LossShape,
    *,
    margin: Real = 0.35,
    scale: FixedScale = 64.0,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """CosFace: cross-entropy over s (cos - m for the own class, cos for the others).

    Reference: Wang et al. 2018, CosFace: large margin cosine loss for deep face recognition.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are many classes and a margin in cosine should keep them apart, as with faces.

    Args:
        margin: taken from the own class's cosine; a negative one leaves classes wider, for the sake of new ones.
        scale: what cosines are multiplied by; small data sets want 16 to 32.
        proxies: learned: by the optimiser; ema: following the class means; mds, cosines or ranks: laid out by the
            hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="cosface", parameters={"margin": 0.2, "scale": 32})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    check_negative_margin("cosface", shape, margin)
    bank = make_bank(shape, "cosface", proxies, ema_rate, TreeLayout(tree_distance, layout_beta, layout_angle))
    criterion = MarginCrossEntropy(partial(cosine_margin, margin=margin), scale)
    return ProxyLoss(shape.space, bank, ScaledScores(cosines, ScoreScale(scale)), criterion)


@register_loss("arcface", family="classification", spaces=SPHERE)
def arcface(
    shape: LossShape,
    *,
    margin: MarginDegrees = 28.6,
    scale: FixedScale = 64.0,
    sub_centres: Count = 1,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """ArcFace: cross-entropy over s (cos(angle + m) for the own class, cos for the others).

    Where angle + m passes 180 degrees the own logit goes on as cos - m sin(m), so that it keeps falling. With a
    negative margin it is s up to an angle of -m. With sub-centres the cosine of a class is the largest of those to its
    sub-centres.

    Reference: Deng, Guo, Xue, Zafeiriou 2019, ArcFace: additive angular margin loss for deep face recognition; Deng,
        Guo, Liu, Gong, Zafeiriou 2020, Sub-center ArcFace.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are many classes and the margin should be the same angle everywhere, as with faces.

    Args:
        margin: added to the angle to the own class, in degrees, below 90; 28.6 is 0.5 radians. A negative one leaves
            classes wider.
        scale: what cosines are multiplied by; small data sets want 16 to 32.
        sub_centres: of each class; more than one lets strays and wrong labels gather at a centre of their own.
        proxies: learned: by the optimiser; ema: following the class means; mds, cosines or ranks: laid out by the
            hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="arcface", parameters={"margin": 15, "scale": 32})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    check_negative_margin("arcface", shape, margin, in_degrees=True)
    if sub_centres > 1 and proxies != "learned":
        raise RecipeError(
            f"The loss 'arcface' has sub-centres (sub_centres={sub_centres}) only of learned proxies, not with "
            f"proxies={proxies}: set one of them back to its default."
        )
    bank = make_bank(
        shape, "arcface", proxies, ema_rate, TreeLayout(tree_distance, layout_beta, layout_angle), sub_centres
    )
    nearness = partial(sub_centre_cosines, centres=sub_centres) if sub_centres > 1 else cosines
    scores = ScaledScores(nearness, ScoreScale(scale))
    criterion = MarginCrossEntropy(partial(angle_margin, margin=math.radians(margin)), scale)
    return ProxyLoss(shape.space, bank, scores, criterion)


@register_loss("sphereface", family="classification", spaces=SPHERE)
def sphereface(
    shape: LossShape,
    *,
    margin: Annotated[int, Field(ge=1, le=8)] = 4,
    blend: NonNegative = 5.0,
    scale: FixedScale = 30.0,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """SphereFace: cross-entropy over s psi(angle) for the own class, s cos for the others.

    psi = (-1)^k cos(m angle) - 2k for angles from k 180/m to (k + 1) 180/m degrees, which falls all the way; blended
    with the plain cosine, (b cos + psi) / (b + 1). With m = 1 it is NormFace.

    Reference: Liu, Wen, Yu, Li, Raj, Song 2017, SphereFace: deep hypersphere embedding for face recognition.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: the margin should grow with the angle; to compare with, as 'cosface' and 'arcface' train more easily.

    Args:
        margin: m, a whole number: what the angle to the own class is multiplied by.
        blend: b, how much the plain cosine counts beside psi; 0: psi alone, which is hard to train.
        scale: what cosines are multiplied by; the paper has the length of each embedding.
        proxies: learned: by the optimiser; ema: following the class means; mds, cosines or ranks: laid out by the
            hierarchy, fixed.
        ema_rate: how much of a batch's class mean goes into its proxy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="sphereface", parameters={"margin": 2, "blend": 0})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    bank = make_bank(shape, "sphereface", proxies, ema_rate, TreeLayout(tree_distance, layout_beta, layout_angle))
    criterion = MarginCrossEntropy(partial(angle_factor, margin=margin, blend=blend), scale)
    return ProxyLoss(shape.space, bank, ScaledScores(cosines, ScoreScale(scale)), criterion)


@register_loss("corr", family="classification", spaces=SPHERE, needs_hierarchy=True)
def corr(
    shape: LossShape,
    *,
    proxies: TreeProxies = "mds",
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """CORR: mean of 1 - cos(x, w) to the own class's proxy, the proxies being laid out by a hierarchy and fixed.

    As a classifier its scores are the cosines themselves: the order of classes is what they are for, and softmax of
    them is nearly flat.

    Reference: Barz, Denzler 2019, Hierarchy-based image embeddings for semantic image retrieval; the layout: Kim 2023,
        article IV.
    Needs: any batch; labels 0 ... classes - 1; a tree over the classes, `data.hierarchy`. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: a tree over the classes is known and distances between embeddings should be those of the tree.

    Args:
        proxies: mds, distances as near to the tree's as can be; cosines, exactly 1 - lcs; ranks, only their order.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="corr")
        >>> names = [f"class {i}" for i in range(4)]
        >>> tree = Hierarchy.from_nested({"left": names[:2], "right": names[2:]})
        >>> objective = make_objective(section, dimension=128, classes=4, class_names=names, hierarchy=tree)
    """
    return _pull(shape, "corr", proxies, TreeLayout(tree_distance, layout_beta, layout_angle), power=1)


@register_loss("h-spherical", family="classification", spaces=SPHERE, needs_hierarchy=True)
def h_spherical(
    shape: LossShape,
    *,
    proxies: TreeProxies = "mds",
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """H-spherical: mean of (1 - cos(x, w))^2 to the own class's proxy, laid out by a hierarchy and fixed.

    As 'corr', but the far are pulled most and the near hardly.

    Reference: Mettes, van der Pol, Snoek 2019, Hyperspherical prototype networks; the layout: Kim 2023, article IV.
    Needs: any batch; labels 0 ... classes - 1; a tree over the classes, `data.hierarchy`. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: as for 'corr', where some samples are hard and the easy ones should not be drawn together for nothing.

    Args:
        proxies: mds, distances as near to the tree's as can be; cosines, exactly 1 - lcs; ranks, only their order.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> section = ObjectiveSection(loss="h-spherical", parameters={"tree_distance": "lcs"})
        >>> names = [f"class {i}" for i in range(4)]
        >>> tree = Hierarchy.from_nested({"left": names[:2], "right": names[2:]})
        >>> objective = make_objective(section, dimension=128, classes=4, class_names=names, hierarchy=tree)
    """
    return _pull(shape, "h-spherical", proxies, TreeLayout(tree_distance, layout_beta, layout_angle), power=2)


def _pull(shape: LossShape, name: str, proxies: TreeProxies, layout: TreeLayout, power: int) -> nn.Module:
    bank = tree_proxies(shape, name, proxies, layout)
    return ProxyLoss(shape.space, bank, ScaledScores(cosines, ScoreScale(1.0)), Pull(power))
