"""Poolings: from a feature map to one vector."""

from nearkin.models.pooling.gem import GeneralisedMeanPooling
from nearkin.models.pooling.plain import AverageMaxPooling, AveragePooling, MaxPooling
from nearkin.models.pooling.registry import Pooling, list_poolings, make_pooling, poolings
from nearkin.models.pooling.statistics import StatisticsPooling

__all__ = [
    "AverageMaxPooling",
    "AveragePooling",
    "GeneralisedMeanPooling",
    "MaxPooling",
    "Pooling",
    "StatisticsPooling",
    "list_poolings",
    "make_pooling",
    "poolings",
]
