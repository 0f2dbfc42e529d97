"""What training minimises: losses on pairs and on proxies, miners, regularisers, and the objective that sums them."""

from nearkin.objectives.objective import Objective, check_space, make_objective
from nearkin.objectives.registry import (
    BatchNeeds,
    LossEntry,
    LossShape,
    Regulariser,
    losses,
    miners,
    register_loss,
    register_miner,
    register_regulariser,
    regularisers,
)
from nearkin.objectives.section import ObjectiveSection, RegulariserSection

__all__ = [
    "BatchNeeds",
    "LossEntry",
    "LossShape",
    "Objective",
    "ObjectiveSection",
    "Regulariser",
    "RegulariserSection",
    "check_space",
    "losses",
    "make_objective",
    "miners",
    "register_loss",
    "register_miner",
    "register_regulariser",
    "regularisers",
]
