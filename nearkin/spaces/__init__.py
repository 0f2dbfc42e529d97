"""How two vectors are compared: spaces, class scores, principal directions, k-center and covering radius."""

from nearkin.spaces.base import EuclideanOrder, Space
from nearkin.spaces.cosine_scores import (
    arcface_probabilities,
    cosface_probabilities,
    normface_probabilities,
    sphereface_probabilities,
)
from nearkin.spaces.covering import covering_radius, kcenter
from nearkin.spaces.euclidean import Euclidean
from nearkin.spaces.extremes import where_largest
from nearkin.spaces.lipschitz import LipschitzBall
from nearkin.spaces.pairwise import euclidean_distance
from nearkin.spaces.poincare import PoincareBall
from nearkin.spaces.principal import PrincipalReweighting
from nearkin.spaces.registry import make_space, spaces
from nearkin.spaces.representatives import Representation, class_distances
from nearkin.spaces.rotation import PrincipalRotation
from nearkin.spaces.scaling import Scaling, chord_targets, multidimensional_scaling
from nearkin.spaces.scores import distance_ratio_scores, distance_scores, sd_softmax_scores
from nearkin.spaces.sphere import Sphere

__all__ = [
    "Euclidean",
    "EuclideanOrder",
    "LipschitzBall",
    "PoincareBall",
    "PrincipalReweighting",
    "PrincipalRotation",
    "Representation",
    "Scaling",
    "Space",
    "Sphere",
    "arcface_probabilities",
    "chord_targets",
    "class_distances",
    "cosface_probabilities",
    "covering_radius",
    "distance_ratio_scores",
    "distance_scores",
    "euclidean_distance",
    "kcenter",
    "make_space",
    "multidimensional_scaling",
    "normface_probabilities",
    "sd_softmax_scores",
    "spaces",
    "sphereface_probabilities",
    "where_largest",
]
