"""Normalised softmax as pytorch-metric-learning has it; our own classifiers are in the folder `proxy`."""

from __future__ import annotations

from torch import nn

from nearkin.objectives.distances import library
from nearkin.objectives.parameters import Positive
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
