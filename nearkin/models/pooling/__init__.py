"""Poolings: from a feature map to one vector."""

from nearkin.models.pooling.base import (
    AverageMaxPooling,
    AveragePooling,
    FlattenPooling,
    MaxPooling,
    Pooling,
    StatisticsPooling,
    list_poolings,
    make_pooling,
    poolings,
)
from nearkin.models.pooling.cbam import BlockAttentionPooling
from nearkin.models.pooling.crow import CrossDimensionalPooling
from nearkin.models.pooling.delf import AttentivePooling
from nearkin.models.pooling.gem import GeneralisedMeanPooling
from nearkin.models.pooling.generalized_max import GeneralizedMaxPooling
from nearkin.models.pooling.gsop import SecondOrderPooling
from nearkin.models.pooling.gsp import GeneralizedSumMaxPooling, GeneralizedSumPooling
from nearkin.models.pooling.netvlad import NetVladPooling
from nearkin.models.pooling.optimal_transport import OptimalTransportPooling
from nearkin.models.pooling.smk import MatchKernelPooling
from nearkin.models.pooling.solar import SolarPooling
from nearkin.models.pooling.weldon import WeldonPooling

__all__ = [
    "AttentivePooling",
    "AverageMaxPooling",
    "AveragePooling",
    "BlockAttentionPooling",
    "CrossDimensionalPooling",
    "FlattenPooling",
    "GeneralisedMeanPooling",
    "GeneralizedMaxPooling",
    "GeneralizedSumMaxPooling",
    "GeneralizedSumPooling",
    "MatchKernelPooling",
    "MaxPooling",
    "NetVladPooling",
    "OptimalTransportPooling",
    "Pooling",
    "SecondOrderPooling",
    "SolarPooling",
    "StatisticsPooling",
    "WeldonPooling",
    "list_poolings",
    "make_pooling",
    "poolings",
]
