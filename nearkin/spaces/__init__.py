"""How two vectors are compared: spaces, class scores, k-center and covering radius."""

from nearkin.spaces.base import EuclideanOrder, Space
from nearkin.spaces.covering import covering_radius, kcenter
from nearkin.spaces.euclidean import Euclidean
from nearkin.spaces.lipschitz import LipschitzBall
from nearkin.spaces.pairwise import euclidean_distance
from nearkin.spaces.poincare import PoincareBall
from nearkin.spaces.registry import make_space, spaces
from nearkin.spaces.scores import distance_ratio_scores, distance_scores, sd_softmax_scores
from nearkin.spaces.sphere import Sphere

__all__ = [
    "Euclidean",
    "EuclideanOrder",
    "LipschitzBall",
    "PoincareBall",
    "Space",
    "Sphere",
    "covering_radius",
    "distance_ratio_scores",
    "distance_scores",
    "euclidean_distance",
    "kcenter",
    "make_space",
    "sd_softmax_scores",
    "spaces",
]
