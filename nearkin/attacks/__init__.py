"""How far a distance can be trusted: attacks on inference and retrieval, Voronoi cells, smoothing."""

from nearkin.attacks.ascent import Found, Goal, ascend, climb, usual_step
from nearkin.attacks.classifier import (
    Classifier,
    PixelEmbedder,
    class_codes,
    classifier_of_estimator,
    classifier_of_scores,
    classifier_of_similarity,
)
from nearkin.attacks.goals import Misclassify, PullTo, PushAway
from nearkin.attacks.norms import L2, Combined, LInf, Norm, as_norm
from nearkin.attacks.pgd import attack, attack_classifier
from nearkin.attacks.region import Ball, Region

__all__ = [
    "L2",
    "Ball",
    "Classifier",
    "Combined",
    "Found",
    "Goal",
    "LInf",
    "Misclassify",
    "Norm",
    "PixelEmbedder",
    "PullTo",
    "PushAway",
    "Region",
    "as_norm",
    "ascend",
    "attack",
    "attack_classifier",
    "class_codes",
    "classifier_of_estimator",
    "classifier_of_scores",
    "classifier_of_similarity",
    "climb",
    "usual_step",
]
