"""A loss by class representatives, put together from a space, a bank, scores and a criterion; and its options."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError
from torch import Tensor, nn
from torch.nn import functional

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.objectives.proxy.bank import Bank, FixedProxies, LearnedProxies, MeanProxies
from nearkin.objectives.proxy.scores import COSINE_LIMIT, LinearScores, ScaledScores
from nearkin.objectives.registry import LossShape
from nearkin.spaces import Space, Sphere, multiplied_angle, widest_angle
from nearkin.spaces.mds import chord_targets, multidimensional_scaling, points_of_cosines, points_of_ranks

Criterion = Callable[[Tensor, Tensor], Tensor]
"""Scores (B, C) and labels (B,) to a scalar; a module where it has buffers."""


class MarginCrossEntropy(nn.Module):
    """Cross-entropy of scores `s cos` whose own cosine is made worse first.

    Args:
        own: cosines (B,) of the own classes to what stands in for them.
        scale: s.
    """

    def __init__(self, own: Callable[[Tensor], Tensor], scale: float) -> None:
        super().__init__()
        self.own = own
        self.scale = scale

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over the batch."""
        index = labels.unsqueeze(1)
        worse = self.scale * self.own(scores.gather(1, index) / self.scale)
        return functional.cross_entropy(scores.scatter(1, index, worse), labels)


def cosine_margin(cosines: Tensor, margin: float) -> Tensor:
    """`cos - m` (CosFace)."""
    return cosines - margin


def angle_margin(cosines: Tensor, margin: float) -> Tensor:
    """`cos(angle + m)`, and `cos - m sin m` where angle + m passes 180 degrees (ArcFace); m in radians.

    With a negative margin it is 1 up to an angle of -m: otherwise points would be pushed away from their proxy there.
    """
    cosines = cosines.clamp(-COSINE_LIMIT, COSINE_LIMIT)
    angles = (cosines.acos() + margin).clamp(min=0.0)
    beyond = cosines - margin * math.sin(margin)
    return torch.where(angles <= math.pi, angles.cos(), beyond)


def angle_factor(cosines: Tensor, margin: int, blend: float) -> Tensor:
    """`(b cos + psi) / (b + 1)`, psi being the cosine of m times the angle, falling all the way (SphereFace)."""
    return (blend * cosines + multiplied_angle(cosines, margin)) / (blend + 1)


def check_negative_margin(owner: str, shape: LossShape, margin: float, *, in_degrees: bool = False) -> None:
    """Refuse a negative margin with which a point that lies on another class's proxy would count as its own.

    That is `cos phi - 1` in cosine and `-phi` as an angle, phi being the angle of the closest two proxies when all are
    as far apart as they can be: docs/methods/cosface.md.
    """
    widest = widest_angle(shape.classes, shape.dimension)
    least = -math.degrees(widest) if in_degrees else math.cos(widest) - 1
    if margin <= least:
        unit = " degrees" if in_degrees else ""
        raise RecipeError(
            f"The loss '{owner}' has margin={margin:g}, and with {shape.classes} classes in {shape.dimension} "
            f"dimensions a point on another class's proxy counts as its own from {least:.4g}{unit} down: raise "
            "objective.parameters.margin."
        )


class Pull(nn.Module):
    """Mean of `(1 - cos)^power` to the own class, of scores that are cosines; other classes do not count.

    Args:
        power: 1 (CORR) or 2 (H-spherical).
    """

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over the batch."""
        return (1 - scores.gather(1, labels.unsqueeze(1))).pow(self.power).mean()


Proxies = Literal["learned", "ema", "mds", "cosines", "ranks"]
"""Moved by the optimiser, following the class means, or laid out by the hierarchy in one of three ways."""
TreeProxies = Literal["mds", "cosines", "ranks"]
"""Distances as near to the tree's as can be; cosines that are exactly its own; or only in the order of the tree."""
LayoutDistance = Literal["path", "lcs"]
"""Edges between two classes, or the height of the node where they meet."""
LayoutAngle = Annotated[float, Field(gt=0, le=180)]
"""In degrees."""


@dataclass(frozen=True)
class TreeLayout:
    """How a hierarchy lays out proxies.

    Attributes:
        distance: of "mds" and "ranks": which distance of the hierarchy they should have.
        beta: of "mds": the distance that becomes half of the largest chord.
        angle: of "mds": degrees between the farthest two classes; None: as printed with path, 90 with lcs, whose
            distances end at 1 and would leave all proxies within 41 degrees.
    """

    distance: LayoutDistance = "path"
    beta: float = 1.0
    angle: float | None = None

    def chords(self, hierarchy: Hierarchy, names: Sequence[str]) -> np.ndarray:
        """Targets (C, C) of multidimensional scaling."""
        degrees = 90.0 if self.angle is None and self.distance == "lcs" else self.angle
        farthest = None if degrees is None else 2 * math.sin(math.radians(degrees) / 2)
        return chord_targets(hierarchy.distances(names, how=self.distance), self.beta, farthest)


EMA_RATE = 0.001
SCALE = 10.0
"""Both as in Kim 2023, article IV."""


def _check_scale(given: Any, dynamic: bool) -> Any:
    """A number above 0, or "dynamic" where a scale can be that."""
    if given == "dynamic" and dynamic:
        return given
    try:
        if not isinstance(given, bool) and 0 < float(given) < math.inf:
            return float(given)
    except (TypeError, ValueError):
        pass
    what = ", or dynamic" if dynamic else ""
    if given == "dynamic":
        what = "; only the scales of normface and proxy-dr can be dynamic"
    raise PydanticCustomError("scale", f"Input should be a number above 0{what}")


ScaleOption = Annotated[float | Literal["dynamic"], BeforeValidator(partial(_check_scale, dynamic=True))]
"""A positive number, or "dynamic"."""
FixedScale = Annotated[float, BeforeValidator(partial(_check_scale, dynamic=False))]
"""A positive number."""


def make_bank(
    shape: LossShape,
    owner: str,
    proxies: Proxies,
    ema_rate: float = EMA_RATE,
    layout: TreeLayout = TreeLayout(),
    centres: int = 1,
) -> Bank:
    """The bank that the options ask for.

    Args:
        shape: of the run.
        owner: name of the loss, for messages.
        proxies: what they are.
        ema_rate: how much of a batch's mean goes into a proxy, with "ema".
        layout: how the hierarchy lays them out, with "mds", "cosines" and "ranks".
        centres: sub-centres of each class, with "learned".

    Raises:
        RecipeError: there is no hierarchy to lay them out by, or an option that these proxies have no use for.
    """
    _check_used(owner, proxies, ema_rate, layout)
    if proxies == "ema":
        return MeanProxies(shape.space, shape.classes, shape.dimension, ema_rate)
    if proxies == "learned":
        return LearnedProxies(shape.space, shape.classes, shape.dimension, centres)
    return tree_proxies(shape, owner, proxies, layout)


def _check_used(owner: str, proxies: Proxies, ema_rate: float, layout: TreeLayout) -> None:
    """Refuse an option that the proxies have no use for."""
    usual = TreeLayout()
    for users, option, value, default in (
        (("ema",), "ema_rate", ema_rate, EMA_RATE),
        (("mds", "ranks"), "tree_distance", layout.distance, usual.distance),
        (("mds",), "layout_beta", layout.beta, usual.beta),
        (("mds",), "layout_angle", layout.angle, usual.angle),
    ):
        if value != default and proxies not in users:
            raise RecipeError(
                f"The loss '{owner}' has proxies={proxies}, which have no use for {option}={value}: leave {option} "
                f"out, or set proxies to {' or '.join(users)}."
            )


def tree_proxies(shape: LossShape, owner: str, proxies: TreeProxies = "mds", layout: TreeLayout | None = None) -> Bank:
    """Fixed proxies that are laid out by the hierarchy, in one of three ways.

    Raises:
        RecipeError: there is no hierarchy, or it cannot be met in this space, or with so few dimensions.
    """
    layout = layout or TreeLayout()
    _check_used(owner, proxies, EMA_RATE, layout)
    if shape.hierarchy is None or shape.class_names is None:
        raise RecipeError(
            f"The loss '{owner}' needs a tree over the classes to lay out its proxies: set data.hierarchy to a file "
            "or to a name such as cifar100 (in Python: give make_objective hierarchy= and class_names=)."
        )
    tree, names, on_sphere = shape.hierarchy, shape.class_names, shape.space.name == "sphere"
    if proxies == "mds":
        space = Sphere() if on_sphere else shape.space  # the targets are chords, whatever search uses
        targets = layout.chords(tree, names)
        return FixedProxies(
            shape.space, multidimensional_scaling(targets, shape.dimension, space=space, seed=shape.seed).points
        )
    if not on_sphere:
        raise RecipeError(
            f"The loss '{owner}' has proxies={proxies}, which are laid out by cosines, but the space is "
            f"'{shape.space.name}': set model.space to sphere, or proxies to mds."
        )
    if proxies == "ranks":
        distances = tree.distances(names, how=layout.distance)
        return FixedProxies(shape.space, points_of_ranks(distances, shape.dimension, seed=shape.seed))
    if len(names) > shape.dimension:
        raise RecipeError(
            f"The loss '{owner}' has proxies=cosines, which need as many dimensions as there are classes "
            f"({len(names)}), and there are {shape.dimension}: raise model.dimension, or set proxies to mds."
        )
    return FixedProxies(shape.space, points_of_cosines(1 - tree.distances(names, how="lcs"), shape.dimension))


class ProxyLoss(nn.Module):
    """Compare a batch with what stands for the classes: (embeddings (B, d), labels (B,)) to a scalar.

    Args:
        space: where raw embeddings are projected.
        bank: what stands for the classes.
        scores: points and what the bank gives, to scores.
        criterion: scores (B, C) and labels (B,) to a scalar.
    """

    def __init__(self, space: Space, bank: Bank, scores: ScaledScores | LinearScores, criterion: Criterion) -> None:
        super().__init__()
        self.space = space
        self.bank = bank
        self.scores = scores
        self.criterion = criterion

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,) in 0 ... C - 1."""
        points = self.space.project(embeddings)
        scores = self.class_scores(points)
        check_labels(labels, *scores.shape)
        if self.training:
            self.bank.watch(points.detach(), labels)
            self.scores.scale.watch(scores.detach(), labels)
        return self.criterion(scores, labels)

    def class_scores(self, points: Tensor) -> Tensor:
        """Scores (B, C) of points of the space (B, d): their softmax are the class probabilities, without a margin."""
        proxies: Tensor = self.bank()
        if points.ndim != 2 or points.shape[1] != proxies.shape[1]:
            raise DataError(
                f"The loss was built for embeddings of shape (batch, {proxies.shape[1]}) and was given "
                f"{tuple(points.shape)}: give make_objective the model's dimension."
            )
        scores: Tensor = self.scores(points, proxies.to(points.dtype))
        return scores

    def class_vectors(self) -> Tensor:
        """The points (C, d) of the space that stand for the classes, with a gradient where they are learned."""
        return self.bank.class_vectors()

    def stepped(self) -> None:
        """Move what moves by a rule of its own, right after the optimiser's step, by what the last forward saw."""
        self.bank.stepped()
        self.scores.scale.stepped()

    def readings(self) -> dict[str, float]:
        """`scale`, where it is dynamic."""
        return self.scores.scale.readings()


def check_labels(labels: Tensor, rows: int, classes: int) -> None:
    """Refuse labels that are not one for each of `rows` embeddings, whole numbers below `classes`."""
    if labels.shape != (rows,) or rows == 0:
        raise DataError(
            f"The loss needs a batch of at least one embedding with one label each, and was given {rows} embeddings "
            f"and labels of shape {tuple(labels.shape)}."
        )
    if labels.dtype != torch.int64:
        raise DataError(f"The loss needs labels of type int64, and was given {str(labels.dtype).partition('.')[2]}.")
    if labels.device.type == "cpu":  # elsewhere the look itself would make the step wait
        low, high = labels.aminmax()
        if low < 0 or high >= classes:
            raise DataError(
                f"The loss was built for {classes} classes, labels 0 to {classes - 1}, and was given labels from "
                f"{int(low)} to {int(high)}: give make_objective the number of classes."
            )
