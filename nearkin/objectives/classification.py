"""Classification losses: a softmax over cosines to class weights, with a margin or without."""

from __future__ import annotations

from torch import nn

from nearkin.objectives.distances import clamped_cosine, library
from nearkin.objectives.parameters import AcuteDegrees, NonNegative, Positive
from nearkin.objectives.registry import SPHERE, LossShape, register_loss


@register_loss("normalized-softmax", family="classification", spaces=SPHERE)
def normalized_softmax(shape: LossShape, *, temperature: Positive = 0.05) -> nn.Module:
    """Normalised softmax: cross-entropy over cos(x, w)/T.

    Reference: Zhai, Wu 2019, Classification is a strong baseline for deep metric learning; Wang et al. 2017, NormFace.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want the simplest strong baseline and the classes number up to some ten thousand.

    Args:
        shape: the run's dimension, classes and space.
        temperature: low sharpens the softmax; 1/T is the scale of NormFace.

    Example:
        >>> section = ObjectiveSection(loss="normalized-softmax", parameters={"temperature": 0.1})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").NormalizedSoftmaxLoss(shape.classes, shape.dimension, temperature=temperature)


@register_loss("cosface", family="classification", spaces=SPHERE)
def cosface(shape: LossShape, *, margin: NonNegative = 0.35, scale: Positive = 64.0) -> nn.Module:
    """CosFace: cross-entropy over s (cos - m for the own class, cos for the others).

    Reference: Wang et al. 2018, CosFace: large margin cosine loss for deep face recognition.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are many classes and a margin in cosine should keep them apart, as with faces.

    Args:
        shape: the run's dimension, classes and space.
        margin: taken from the own class's cosine.
        scale: what cosines are multiplied by; small data sets want 16 to 32.

    Example:
        >>> section = ObjectiveSection(loss="cosface", parameters={"margin": 0.2, "scale": 32})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").CosFaceLoss(shape.classes, shape.dimension, margin=margin, scale=scale)


@register_loss("arcface", family="classification", spaces=SPHERE)
def arcface(shape: LossShape, *, margin: AcuteDegrees = 28.6, scale: Positive = 64.0) -> nn.Module:
    """ArcFace: cross-entropy over s (cos(angle + m) for the own class, cos for the others).

    Where angle + m passes 180 degrees the own logit goes on as cos - m sin(m), so that it keeps falling.

    Reference: Deng, Guo, Xue, Zafeiriou 2019, ArcFace: additive angular margin loss for deep face recognition.
    Needs: any batch; labels 0 ... classes - 1. Class weights want a higher learning rate. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are many classes and the margin should be the same angle everywhere, as with faces.

    Args:
        shape: the run's dimension, classes and space.
        margin: added to the angle to the own class, in degrees; 28.6 is 0.5 radians.
        scale: what cosines are multiplied by; small data sets want 16 to 32.

    Example:
        >>> section = ObjectiveSection(loss="arcface", parameters={"margin": 15, "scale": 32})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").ArcFaceLoss(
        shape.classes, shape.dimension, margin=margin, scale=scale, distance=clamped_cosine()
    )
