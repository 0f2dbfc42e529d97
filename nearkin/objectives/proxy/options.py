"""The options that losses by class representatives share: what the proxies are, and what the scale may be."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from nearkin.errors import RecipeError
from nearkin.objectives.proxy.bank import Bank, FixedProxies, LearnedProxies, MeanProxies
from nearkin.objectives.registry import LossShape
from nearkin.spaces import Sphere
from nearkin.spaces.scaling import chord_targets, multidimensional_scaling

Proxies = Literal["learned", "ema", "mds"]
"""Moved by the optimiser, following the class means, or laid out by the hierarchy."""
TreeDistance = Literal["path", "lcs"]
"""Edges between two classes, or the height of the node where they meet."""

EMA_RATE = 0.001
SCALE = 10.0
"""Both as in Kim 2023, article IV."""


def _check_scale(given: Any) -> Any:
    if given == "dynamic":
        return given
    if not _is_positive(given):
        raise PydanticCustomError("scale", "Input should be a number above 0, or dynamic")
    return float(given)


def _check_fixed_scale(given: Any) -> Any:
    if given == "dynamic":
        raise PydanticCustomError(
            "scale", "Input should be a number above 0; only the scales of normface and proxy-dr can be dynamic"
        )
    if not _is_positive(given):
        raise PydanticCustomError("scale", "Input should be a number above 0")
    return float(given)


def _is_positive(given: Any) -> bool:
    try:
        return not isinstance(given, bool) and 0 < float(given) < math.inf
    except (TypeError, ValueError):
        return False


ScaleOption = Annotated[float | Literal["dynamic"], BeforeValidator(_check_scale)]
"""A positive number, or "dynamic"."""
FixedScale = Annotated[float, BeforeValidator(_check_fixed_scale)]
"""A positive number."""


def make_bank(
    shape: LossShape,
    owner: str,
    proxies: Proxies,
    ema_rate: float = EMA_RATE,
    tree_distance: TreeDistance = "path",
    centres: int = 1,
) -> Bank:
    """The bank that the options ask for.

    Args:
        shape: of the run.
        owner: name of the loss, for messages.
        proxies: what they are.
        ema_rate: how much of a batch's mean goes into a proxy, with "ema".
        tree_distance: which distance of the hierarchy the proxies shall have, with "mds".
        centres: sub-centres of each class, with "learned".

    Raises:
        RecipeError: there is no hierarchy for "mds", or an option that these proxies have no use for.
    """
    _refuse_unused(owner, proxies, ema_rate, tree_distance)
    if proxies == "ema":
        return MeanProxies(shape.space, shape.classes, shape.dimension, ema_rate)
    if proxies == "mds":
        return tree_proxies(shape, owner, tree_distance)
    return LearnedProxies(shape.space, shape.classes, shape.dimension, centres)


def tree_proxies(shape: LossShape, owner: str, tree_distance: TreeDistance) -> FixedProxies:
    """Proxies whose distances in the space are those of the hierarchy, as far as multidimensional scaling can.

    Raises:
        RecipeError: there is no hierarchy.
    """
    if shape.hierarchy is None or shape.class_names is None:
        raise RecipeError(
            f"The loss '{owner}' shall lay out its proxies by a tree over the classes: set data.hierarchy to a file or "
            "to a name such as cifar100 (in Python: give make_objective hierarchy= and class_names=)."
        )
    targets = chord_targets(shape.hierarchy.distances(shape.class_names, how=tree_distance))
    space = Sphere() if shape.space.name == "sphere" else shape.space  # the targets are chords, whatever search uses
    scaling = multidimensional_scaling(targets, shape.dimension, space=space, seed=shape.seed)
    return FixedProxies(shape.space, scaling.points)


def _refuse_unused(owner: str, proxies: Proxies, ema_rate: float, tree_distance: TreeDistance) -> None:
    for of, option, value, unused in (
        ("ema", "ema_rate", ema_rate, ema_rate != EMA_RATE),
        ("mds", "tree_distance", tree_distance, tree_distance != "path"),
    ):
        if unused and proxies != of:
            raise RecipeError(
                f"The loss '{owner}' has proxies={proxies}, which have no use for {option}={value}: leave {option} "
                f"out, or set proxies to {of}."
            )
