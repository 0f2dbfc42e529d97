"""The attack inside adversarial training: what perturbs a batch before the network learns from it.

It sees the network as inference does, in eval mode and in single precision, and works on pixels in [0, 1], whatever the
network's normalisation. What it raises: docs/methods/adversarial-training.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.attacks import Ball, as_norm, climb, usual_step
from nearkin.attacks.region import PIXELS
from nearkin.models import Embedder
from nearkin.models.tuning import as_channels_last
from nearkin.objectives.adversarial import prediction_cross_entropy
from nearkin.objectives.proxy.protocols import ClassVectors
from nearkin.recipe import AdversarialSection
from nearkin.training.modes import at_rest
from nearkin.training.ranks import Ranks

# Keeps the draws of random starts apart from others of the same seed and step.
_SALT = 0xADE5

_NUDGE = 0.1
"""Share of eps that a start is moved by, at random, where what is raised has no slope at the input itself.

With less, rounding of the embeddings would have a say in the direction."""


class InnerAttack:
    """FGSM, BIM or PGD on a batch, as a recipe says.

    Random starts follow from the seed, the step and an input's place in the batch of all processes.

    Args:
        section: the recipe's settings.
        seed: of the random starts.
        ranks: the processes that train together.
    """

    def __init__(self, section: AdversarialSection, seed: int, ranks: Ranks) -> None:
        self.section = section
        self.seed = seed
        self.ranks = ranks
        self.norm = as_norm(section.norm)
        self.steps = 1 if section.attack == "fgsm" else section.steps
        self.length = usual_step(section.eps, self.steps) if section.step_size is None else section.step_size

    def __call__(self, embedder: Embedder, loss: nn.Module, inputs: Tensor, labels: Tensor, step: int) -> Tensor:
        """Perturbed inputs (b, C, H, W), normalised as those given, without gradient.

        Args:
            embedder: the network; its mode and its running statistics stay as they are.
            loss: asked for class scores, if it has any.
            inputs: this process's, normalised; what augmentation took out of [0, 1] is brought back first.
            labels: (b,) int64.
            step: with the seed, decides the random starts.
        """
        normalise = embedder.normalise
        with at_rest(embedder, loss), torch.autocast(inputs.device.type, enabled=False):
            pixels = (inputs.float() * normalise.std + normalise.mean).clamp(*PIXELS)

            def seen(points: Tensor) -> Tensor:
                return as_channels_last(normalise(points.view(pixels.shape)))

            ball = Ball(pixels.flatten(1), self.section.eps, self.norm)
            raised = self._raised(lambda points: embedder.embed(seen(points)), embedder, loss, ball.centres, labels)
            start = self._start(ball, step, slope=self._has_slope(loss))
            return seen(climb(raised, start, ball, steps=self.steps, step=self.length))

    def _raised(
        self, embed: Callable[[Tensor], Tensor], embedder: Embedder, loss: nn.Module, centres: Tensor, labels: Tensor
    ) -> Callable[[Tensor], Tensor]:
        """What is raised: points (b, D) to values (b,), for inputs at the centres (b, D)."""
        if not isinstance(loss, ClassVectors):
            with torch.no_grad():
                clean = embed(centres).unsqueeze(1)
            return lambda points: embedder.space.distance(embed(points).unsqueeze(1), clean).flatten()
        if self.section.mode == "trades":
            with torch.no_grad():
                predicted = loss.class_scores(embed(centres))
            return lambda points: prediction_cross_entropy(predicted, loss.class_scores(embed(points)))
        return lambda points: functional.cross_entropy(loss.class_scores(embed(points)), labels, reduction="none")

    def _has_slope(self, loss: nn.Module) -> bool:
        """Whether what is raised rises from the input itself on: what compares with the input is smallest there."""
        return isinstance(loss, ClassVectors) and self.section.mode != "trades"

    def _start(self, ball: Ball, step: int, slope: bool) -> Tensor:
        """Where to begin (b, D): a random point of the ball for PGD, else the input, or very near to it."""
        if self.section.attack != "pgd" and slope:
            return ball.centres
        radius = ball.radius if self.section.attack == "pgd" else _NUDGE * ball.radius
        drawn = np.random.SeedSequence([self.seed, step, _SALT]).generate_state(1, np.uint64)[0]
        generator = torch.Generator(ball.centres.device).manual_seed(int(drawn >> np.uint64(1)))
        rows, columns = ball.centres.shape
        # Drawn for the batch of all processes: an item is perturbed alike however the batch is cut.
        whole = ball.centres.new_empty(rows * self.ranks.world_size, columns)
        first = self.ranks.rank * rows
        return ball.project(ball.centres + self.norm.draw(whole, radius, generator)[first : first + rows])
