"""Episodes: each batch brings the few support items by which its queries are classified, as after training.

Reference: Vinyals et al. 2016; Snell, Swersky, Zemel 2017; the records of training dynamics: Kim 2023, article II.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from nearkin.metrics.dynamics import episode_dynamics
from nearkin.objectives import Objective
from nearkin.recipe import EpisodicSection
from nearkin.spaces import Representation, Space
from nearkin.training.strategies.base import ACCURACY, Schedule


class Episodic(Schedule):
    """Plain steps on episodes; now and then it is recorded how an update moved the episode's points.

    Batches come from an episode sampler. Losses that know nothing of support and queries see plain batches.

    Args:
        section: the recipe's settings.
        space: where embeddings are compared.
    """

    selection = ACCURACY

    def __init__(self, section: EpisodicSection, space: Space) -> None:
        super().__init__()
        self.section = section
        self.space = space
        self.episodes = 0
        self._before: Tensor | None = None
        self._representation: Representation = "mean"

    def forward(
        self,
        objective: Objective,
        embeddings: Tensor,
        labels: Tensor,
        attributes: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """The value to minimise, a scalar; see `Schedule.forward`."""
        self.episodes += 1
        every = self.section.record_every
        self._before = embeddings.detach() if every is not None and self.episodes % every == 0 else None
        self._representation = objective.representation
        return objective(embeddings, labels, attributes, features)

    def updated(self, embed: Callable[[], Tensor]) -> dict[str, float]:
        """What an update did to the episode's points, where this one is recorded; see `Schedule.updated`."""
        if self._before is None:
            return {}
        before, after = (self.space.project(vectors.float()) for vectors in (self._before, embed()))
        self._before = None
        section = self.section
        found = episode_dynamics(
            self.space, before, after, way=section.way, shot=section.shot, representation=self._representation
        )
        # What is undefined, as a ratio of what did not move, is left out: the log is JSON, which has no such number.
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def facts(self) -> dict[str, Any]:
        """How many episodes there were."""
        return {"episodes": self.episodes}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `facts` gave."""
        super().restore(tensors, facts)
        self.episodes = facts["episodes"]
