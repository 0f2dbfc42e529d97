"""The picture of a class adversary: how a training played against a classifier of its own classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nearkin.objectives import ObjectiveSection, regularisers
from nearkin.objectives.adversary import THRESHOLD
from nearkin.objectives.parameters import parameters_of
from nearkin.report import Figure
from nearkin.report.adversary import draw_adversary

_NAME = "class-adversary"
_ADAPTIVE = (
    "While the coefficient is below zero the model helps a classifier to tell the training classes apart; above zero "
    "it hides from the classifier what serves these classes alone. The sign changes when the classifier's mean loss "
    "of an epoch crosses the dashed threshold; upright lines mark the first and the last such step. Where the loss "
    "falls on all the same, the classifier is winning."
)
_SOFT = (
    "A classifier of the training classes learns beside the loss, from smoothed labels, and the model helps it "
    "throughout. Its loss levels off above zero, as smoothed labels cannot be met exactly; an accuracy near 100 % "
    "says that it has nothing left to learn."
)
_ADAPTIVE_ALT = "Coefficient of the class adversary, loss and accuracy of its classifier against training steps"
_SOFT_ALT = "Loss and accuracy of the class adversary's classifier against training steps"


def draw_contest(history: Sequence[Mapping[str, float]], objective: ObjectiveSection) -> Figure:
    """What an adversary did against steps, with the coefficient unless it is soft; without bytes if there was none.

    Args:
        history: rows of the training log.
        objective: what training minimised.
    """
    threshold = turning_loss(objective)
    return Figure(
        "Class adversary",
        _SOFT if threshold is None else _ADAPTIVE,
        draw_adversary(history, threshold=threshold),
        _SOFT_ALT if threshold is None else _ADAPTIVE_ALT,
    )


def turning_loss(objective: ObjectiveSection) -> float | None:
    """The classifier's loss at which the model turns against it; None without an adaptive class adversary."""
    for term in objective.regularisers:
        if term.name == _NAME:
            declared = parameters_of(regularisers.get(_NAME).factory)
            chosen = {name: parameter.default for name, parameter in declared.items()} | term.parameters
            return (chosen["threshold"] or THRESHOLD) if chosen["kind"] == "adaptive" else None
    return None
