"""The growing triplet loss: squared distances, every triplet counted, a margin that is raised as training goes on.

A triplet costs max(0, |a - p|^2 - |a - n|^2 + margin); the loss is the mean over all triplets that the miner chose,
those that cost nothing included. Derivation: docs/methods/growing-triplet.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import PlainValidator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn

from nearkin.errors import RecipeError
from nearkin.objectives.distances import library
from nearkin.objectives.registry import PAIRS, LossShape, register_loss
from nearkin.spaces import Space, Sphere

MARGINS = ((0, 1.0), (500, 1.3), (750, 1.5))
"""Of a recipe that names none: those of the article, raised after 20 and 30 iterations, with 25 steps for one."""

_WIDEST = {"sphere": 4.0, "lipschitz-ball": 4.0}
"""The largest squared distance in spaces that have one."""


def _check_margins(given: Any) -> tuple[tuple[int, float], ...]:
    """The pairs [first step, margin] as numbers, in the order of their steps."""
    if not isinstance(given, list | tuple) or not given or not all(_is_stage(stage) for stage in given):
        raise PydanticCustomError(
            "margins",
            "Input should be a list of pairs [steps done, margin] such as [[0, 1.0], [2000, 1.3]], with whole numbers "
            "of steps from 0 on and margins above 0",
        )
    steps = [step for step, _ in given]
    if steps[0] != 0:
        raise PydanticCustomError("margins", "Input should begin with the margin of the first steps, [0, margin]")
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise PydanticCustomError("margins", "Input should have its steps in ascending order, each of them once")
    return tuple((int(step), float(margin)) for step, margin in given)


def _is_stage(given: Any) -> bool:
    """Whether it is a pair of a count and a positive number; YAML's true and .inf are neither."""
    if not isinstance(given, list | tuple) or len(given) != 2 or any(isinstance(value, bool) for value in given):
        return False
    step, margin = given
    return isinstance(step, int) and step >= 0 and isinstance(margin, int | float) and 0 < margin < math.inf


Margins = Annotated[tuple[tuple[int, float], ...], PlainValidator(_check_margins)]


@register_loss("growing-triplet", family="pairs", batch=PAIRS, miner="random", references=False)
def growing_triplet(shape: LossShape, *, margins: Margins | None = None) -> nn.Module:
    """Triplet loss of squared distances with a growing margin: mean of (|a - p|^2 - |a - n|^2 + m)_+ over all triplets.

    Triplets that cost nothing count in the mean, so the loss falls as they become more. The log has the `margin`.

    Reference: Malde, Kim 2019, Beyond image classification: zooplankton identification with deep vector space
        embeddings; article I of Kim 2023.
    Needs: at least two classes and two samples of each in a batch; class labels. Miner: 'random' unless the recipe
        names another. Any space; on the sphere distances are chords. Cannot be compared with references.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: classes are many and open, and clusters shall first be found and then be set apart.

    Args:
        shape: the run's dimension, classes and space.
        margins: pairs of the steps after which a margin begins to hold and that margin, the first of them [0, margin];
            None: 1.0, from 500 steps on 1.3, from 750 on 1.5.

    Example:
        >>> section = ObjectiveSection(loss="growing-triplet", parameters={"margins": [[0, 1.0], [2000, 1.3]]})
        >>> objective = make_objective(section, dimension=128, classes=65)
    """
    stages = MARGINS if margins is None else margins
    largest = max(margin for _, margin in stages)
    if largest >= (widest := _WIDEST.get(shape.space.name, math.inf)):
        raise RecipeError(
            f"Squared distances in the space '{shape.space.name}' reach {widest:g} at the most, so no triplet could "
            f"meet a margin of {largest:g}: keep objective.parameters.margins below {widest:g}."
        )
    return GrowingTriplet(stages, shape.space)


class GrowingTriplet(nn.Module):
    """The module behind the loss 'growing-triplet'. Each call in training mode counts as one step; eval mode does not.

    Args:
        margins: pairs of the steps after which a margin begins to hold, ascending from 0, and that margin.
        space: where raw embeddings are compared; on the sphere by chords.
    """

    steps: Tensor

    def __init__(self, margins: Sequence[tuple[int, float]], space: Space) -> None:
        super().__init__()
        self.margins = tuple(margins)
        self.space = Sphere() if space.name == "sphere" else space
        self._triplets = library("utils.loss_and_miner_utils").convert_to_triplets
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        # The buffer is for checkpoints: to read it at every step would make a GPU wait.
        self._steps = 0
        self.register_load_state_dict_post_hook(_recall_steps)

    def margin_after(self, steps: int) -> float:
        """The margin that holds when so many steps are done."""
        return self.margins[bisect_right(self.margins, steps, key=lambda stage: stage[0]) - 1][1]

    def forward(self, embeddings: Tensor, labels: Tensor, choice: tuple[Tensor, ...] | None = None) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,) over the chosen triplets, or all; zero without any."""
        margin = self.margin_after(self._steps)
        if self.training:
            self.steps += 1
            self._steps += 1
        a, p, n = self._triplets(choice, labels, t_per_anchor="all")
        if len(a) == 0:
            return embeddings[:0].sum()
        near, far = self._distances(self.space.project(embeddings), a, p, n)
        return F.relu(near.square() - far.square() + margin).mean()

    def _distances(self, points: Tensor, a: Tensor, p: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        """Distances (T,) and (T,) of anchors to positives and to negatives, among points (B, d)."""
        if len(a) > len(points):
            every = self.space.distance(points, points)
            return every[a, p], every[a, n]
        # One triplet an anchor needs 2 B distances, not B^2.
        pairs = self.space.distance(points[a].unsqueeze(1), torch.stack([points[p], points[n]], dim=1))
        return pairs[:, 0, 0], pairs[:, 0, 1]

    def readings(self) -> dict[str, float]:
        """The `margin` of the last step, for the log."""
        return {"margin": self.margin_after(max(self._steps - 1, 0))}


def _recall_steps(loss: GrowingTriplet, _: object) -> None:
    """Go on counting from where the checkpoint that was loaded stands."""
    loss._steps = int(loss.steps)
