"""How two vectors are compared: spaces, class scores, principal directions, k-center and covering radius."""

from nearkin.spaces.balls import LipschitzBall, PoincareBall
from nearkin.spaces.extremes import where_largest, widest_angle
from nearkin.spaces.k_center import covering_radius, kcenter
from nearkin.spaces.mds import (
    Scaling,
    chord_targets,
    multidimensional_scaling,
    points_of_cosines,
    points_of_ranks,
)
from nearkin.spaces.principal import PrincipalReweighting, PrincipalRotation
from nearkin.spaces.scores import (
    arcface_probabilities,
    cosface_probabilities,
    distance_ratio_scores,
    distance_scores,
    multiplied_angle,
    normface_probabilities,
    sd_softmax_scores,
    sphereface_probabilities,
)
from nearkin.spaces.space import (
    Euclidean,
    EuclideanOrder,
    Representation,
    Space,
    Sphere,
    class_distances,
    euclidean_distance,
    make_space,
    spaces,
)

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
    "multiplied_angle",
    "normface_probabilities",
    "points_of_cosines",
    "points_of_ranks",
    "sd_softmax_scores",
    "spaces",
    "sphereface_probabilities",
    "where_largest",
    "widest_angle",
]
