"""Losses by what stands for each class: softmax, NormFace and its relatives, ProxyDR, and pulls to a tree's layout."""

from nearkin.objectives.proxy import losses, margins, pulls  # noqa: F401  importing them files them in the registry
from nearkin.objectives.proxy.bank import Bank, FixedProxies, LearnedProxies, MeanProxies
from nearkin.objectives.proxy.loss import ProxyLoss
from nearkin.objectives.proxy.protocols import ClassVectors, Following, Stepped

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
