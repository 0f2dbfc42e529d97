"""How two vectors are compared: spaces, class scores, k-center."""

from nearkin.spaces.base import EuclideanOrder, Space
from nearkin.spaces.euclidean import Euclidean
from nearkin.spaces.kcenter import covering_radius, greedy_k_center
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
    "greedy_k_center",
    "make_space",
    "sd_softmax_scores",
    "spaces",
]
