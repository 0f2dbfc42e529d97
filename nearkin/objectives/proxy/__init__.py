"""Losses by what stands for each class: softmax, NormFace and its relatives, ProxyDR, and pulls to a tree's layout."""

from nearkin.objectives.proxy import losses  # noqa: F401  importing them files them in the registry
from nearkin.objectives.proxy.bank import (
    Bank,
    ClassVectors,
    FixedProxies,
    Following,
    LearnedProxies,
    MeanProxies,
    Stepped,
)
from nearkin.objectives.proxy.loss import ProxyLoss

__all__ = [
    "Bank",
    "ClassVectors",
    "FixedProxies",
    "Following",
    "LearnedProxies",
    "MeanProxies",
    "ProxyLoss",
    "Stepped",
]
