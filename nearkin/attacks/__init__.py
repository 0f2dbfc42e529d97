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
from nearkin.attacks.library import ATTACKS, Attacked, published_attack
from nearkin.attacks.nearest_point import NearestPoint
from nearkin.attacks.norms import L2, Combined, LInf, Norm, Scaled, as_norm
from nearkin.attacks.pgd import attack, attack_classifier
from nearkin.attacks.region import Ball, Region
from nearkin.attacks.smoothing import Certified, certify
from nearkin.attacks.square import square_attack
from nearkin.attacks.units import Unit
from nearkin.attacks.voronoi import RobustnessCurves, adversarial_accuracy

__all__ = [
    "ATTACKS",
    "L2",
    "Attacked",
    "Ball",
    "Certified",
    "Classifier",
    "Combined",
    "Found",
    "Goal",
    "LInf",
    "Misclassify",
    "NearestPoint",
    "Norm",
    "PixelEmbedder",
    "PullTo",
    "PushAway",
    "Region",
    "RobustnessCurves",
    "Scaled",
    "Unit",
    "adversarial_accuracy",
    "as_norm",
    "ascend",
    "attack",
    "attack_classifier",
    "certify",
    "class_codes",
    "classifier_of_estimator",
    "classifier_of_scores",
    "classifier_of_similarity",
    "climb",
    "published_attack",
    "square_attack",
    "usual_step",
]
