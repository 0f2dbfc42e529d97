"""How far a distance can be trusted: attacks on inference and retrieval, Voronoi cells, smoothing."""

from nearkin._moved import renamed
from nearkin.attacks.classifier import (
    Certified,
    Classifier,
    NearestPoint,
    PixelEmbedder,
    certify,
    class_codes,
    classifier_of_estimator,
    classifier_of_scores,
    classifier_of_similarity,
)
from nearkin.attacks.library import ATTACKS, Attacked, published_attack, square_attack
from nearkin.attacks.norms import L1, L2, Combined, LInf, Norm, Scaled, as_norm
from nearkin.attacks.pgd import (
    AscentResult,
    Goal,
    Misclassify,
    NameAs,
    PullTo,
    PushAway,
    ascend,
    attack,
    attack_classifier,
    climb,
    usual_step,
)
from nearkin.attacks.region import Ball, Region, Unit
from nearkin.attacks.voronoi import RobustnessCurves, adversarial_accuracy

__all__ = [
    "ATTACKS",
    "L1",
    "L2",
    "AscentResult",
    "Attacked",
    "Ball",
    "Certified",
    "Classifier",
    "Combined",
    "Goal",
    "LInf",
    "Misclassify",
    "NameAs",
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


__getattr__ = renamed(__name__, Found="AscentResult")
