"""Adversarial training: the loss is also taken of inputs that an attack on the current network has perturbed.

The attack sees the network as inference does, in eval mode and in single precision, and works on pixels in [0, 1],
whatever the network's normalisation. What it raises: docs/methods/adversarial-training.md.
Reference: Goodfellow, Shlens, Szegedy 2014; Madry et al. 2017; TRADES: Zhang et al. 2019; logit pairing: Kannan,
Kurakin, Goodfellow 2018; triplets: Mao et al. 2019; the negative margin: Kim 2023, section 6.2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.attacks import Ball, climb, usual_step
from nearkin.attacks.classifier import in_eval_mode
from nearkin.attacks.norms import norm_of_inputs
from nearkin.attacks.region import PIXELS
from nearkin.data.inputs import InputSpec
from nearkin.errors import RecipeError
from nearkin.models import Embedder
from nearkin.models.embedder import Features
from nearkin.models.speed import as_channels_last
from nearkin.objectives import Objective
from nearkin.objectives.objective import compared
from nearkin.objectives.proxy.bank import ClassVectors, Following
from nearkin.objectives.proxy.loss import ProxyLoss
from nearkin.objectives.proxy.scores import (
    ScaledScores,
    negative_margin_loss,
    negative_margins,
    prediction_cross_entropy,
    prediction_divergence,
)
from nearkin.objectives.registry import Given, mixed_seed
from nearkin.recipe import AdversarialSection
from nearkin.spaces import Space
from nearkin.training.ranks import Ranks
from nearkin.training.strategies.base import Schedule

# Keeps the draws of random starts apart from others of the same seed and step.
_SALT = 0xADE5

_NUDGE = 0.1
"""Share of eps that a start is moved by, at random, where what is raised has no slope at the input itself.

With less, rounding of the embeddings would have a say in the direction."""


@dataclass(eq=False)
class InnerAttack:
    """FGSM, BIM or PGD on a batch, as a recipe says.

    Random starts follow from the seed, the step and an input's place in the batch of all processes.

    Args:
        section: the recipe's settings.
        seed: of the random starts.
        ranks: the processes that train together.
    """

    section: AdversarialSection
    seed: int
    ranks: Ranks

    def __post_init__(self) -> None:
        section = self.section
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
        with in_eval_mode(embedder, loss), torch.autocast(inputs.device.type, enabled=False):
            pixels = (inputs.float() * normalise.std + normalise.mean).clamp(*PIXELS)

            def seen(points: Tensor) -> Tensor:
                return as_channels_last(normalise(points.view(pixels.shape)))

            norm = norm_of_inputs(self.section.norm, pixels[0].numel(), self.section.l1_ratio)
            ball = Ball(pixels.flatten(1), self.section.eps, norm)
            raised = self._raised(lambda points: embedder.embed(seen(points)), embedder, loss, ball.centres, labels)
            # What compares with the input is smallest there, and does not rise from it.
            slope = isinstance(loss, ClassVectors) and self.section.mode != "trades"
            start = self._start(ball, step, slope)
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

    def _start(self, ball: Ball, step: int, slope: bool) -> Tensor:
        """Where to begin (b, D): a random point of the ball for PGD, else the input, or very near to it."""
        if self.section.attack != "pgd" and slope:
            return ball.centres
        radius = ball.radius if self.section.attack == "pgd" else _NUDGE * ball.radius
        generator = torch.Generator(ball.centres.device).manual_seed(mixed_seed(self.seed, step, _SALT))
        rows, columns = ball.centres.shape
        # Drawn for the batch of all processes: an item is perturbed alike however the batch is cut.
        whole = ball.centres.new_empty(rows * self.ranks.world_size, columns)
        first = self.ranks.rank * rows
        return ball.project(ball.centres + ball.norm.draw(whole, radius, generator)[first : first + rows])


_NEGATIVE_MARGIN_LOSS = "normface"
_PAIRED = ("logit-pairing", "triplet")
"""Modes that add a term of pairs to the losses of clean and of perturbed inputs."""

_TOLD = ("clean_loss", "adv_loss", "pairing_loss", "clean_accuracy", "adv_accuracy", "adv_distance")
"""The values that may be logged, in their order in the log."""


def check_adversarial(section: AdversarialSection, objective: Objective, spec: InputSpec, cached: bool) -> None:
    """Raise RecipeError when there are no pixels to perturb, or when the mode asks for what the loss does not have.

    Args:
        section: the recipe's settings.
        objective: what is minimised.
        spec: what the inputs are.
        cached: whether they come from a feature cache.
    """
    if spec.kind != "image":
        raise RecipeError(
            f"The schedule 'adversarial' perturbs pixels, and the data is {spec.kind}: set training.schedule to plain."
        )
    if spec.size_feature is not None:
        raise RecipeError(
            "The schedule 'adversarial' perturbs pixels, and model.size_feature gives the model more than those: set "
            "it to null, or training.schedule to plain."
        )
    numbers = spec.channels * spec.size**2
    if section.norm == "combined" and section.l1_ratio >= numbers:
        raise RecipeError(
            f"The combined norm has l1_ratio={section.l1_ratio:g}, and an image has {numbers:,} numbers: set "
            "training.adversarial.l1_ratio below that."
        )
    if cached:
        raise RecipeError(
            "The schedule 'adversarial' perturbs pixels, and a feature cache holds none: set model.cache to false."
        )
    if len(objective.prefixes):
        raise RecipeError(
            "The schedule 'adversarial' attacks whole embeddings and would leave their first dimensions undefended: "
            "remove objective.prefixes, or set training.schedule to plain."
        )
    if section.mode == "negative-margin" and objective.name != _NEGATIVE_MARGIN_LOSS:
        raise RecipeError(
            f"The mode 'negative-margin' is one of the loss '{_NEGATIVE_MARGIN_LOSS}', not of '{objective.name}': set "
            f"objective.loss to '{_NEGATIVE_MARGIN_LOSS}', or training.adversarial.mode to mix."
        )
    if section.mode in ("trades", "logit-pairing") and not isinstance(objective.loss, ClassVectors):
        raise RecipeError(
            f"The mode '{section.mode}' compares class scores, which the loss '{objective.name}' does not give: choose "
            "a loss such as 'normface', or set training.adversarial.mode to mix or triplet."
        )


class Adversarial(Schedule):
    """Plain steps on clean inputs and on perturbed ones.

    Both go through the network as one batch, so that batch norm has one set of statistics for both. Regularisers, and
    whatever follows the points of a loss (moving proxies, prototypes, a scale), see the clean ones alone. With alpha
    at 0 nothing but perturbed inputs is seen by anything.

    Args:
        section: the recipe's settings.
        space: where embeddings are compared.
        seed: of the attack's random starts.
        ranks: the processes that train together; None: this one only.
    """

    counters = ("steps", "unread_steps")

    def __init__(self, section: AdversarialSection, space: Space, seed: int, ranks: Ranks | None = None) -> None:
        super().__init__()
        self.section = section
        self.space = space
        self.ranks = Ranks() if ranks is None else ranks
        self.attack = InnerAttack(section, seed, self.ranks)
        self.steps = 0
        self._unread: dict[str, Tensor] = {}  # sums since the last reading
        self.unread_steps = 0

    @property
    def alone(self) -> bool:
        """Whether perturbed inputs are all there is."""
        return self.section.mode == "mix" and self.section.alpha == 0

    def views(self, embedder: Embedder, objective: Objective, inputs: Features, labels: Tensor) -> Features:
        """The clean inputs, then the perturbed ones, (2 b, C, H, W); see `Schedule.views`."""
        assert isinstance(inputs, Tensor)  # features by name come from caches only, which are refused
        perturbed = self.attack(embedder, objective.loss, inputs, labels, self.steps)
        self.steps += 1
        return perturbed if self.alone else as_channels_last(torch.cat([inputs, perturbed]))

    def forward(
        self, objective: Objective, embeddings: Tensor, labels: Tensor, attributes: Given = None, features: Given = None
    ) -> Tensor:
        """The value to minimise, a scalar; see `Schedule.forward`."""
        if self.alone:
            terms = objective.parts(embeddings, labels, attributes, features)
            self._note(objective.loss, {"adv": terms["loss"]}, {"adv": embeddings}, labels)
            return torch.stack(list(terms.values())).sum()
        clean, perturbed = self._halves(embeddings)
        given = [None if vectors is None else self._halves(vectors)[0] for vectors in (attributes, features)]
        # First the clean points: what they move, such as prototypes, is as the step leaves it when perturbed ones come.
        terms = objective.parts(clean, labels, *given)
        of_clean = terms.pop("loss")
        of_perturbed = objective.loss_weight * self._loss_of_perturbed(objective, clean, perturbed, labels)
        losses = {"clean": of_clean, "adv": of_perturbed}
        if self.section.mode in _PAIRED:
            losses["pairing"] = self._pairing(objective.loss, clean, perturbed, labels)
            terms["pairing"] = objective.loss_weight * self.section.pairing_weight * losses["pairing"]
        self._note(objective.loss, losses, {"clean": clean, "adv": perturbed}, labels)
        first, second = self._weights
        return torch.stack([first * of_clean, second * of_perturbed, *terms.values()]).sum()

    @property
    def _weights(self) -> tuple[float, float]:
        """Of the clean and of the perturbed points' loss."""
        if self.section.mode == "trades":
            return 1.0, 1.0 / self.section.trades_lambda
        return self.section.alpha, 1.0 - self.section.alpha

    def _halves(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Clean and perturbed (B, d) of vectors (2 B, d), which come process by process, the clean ones first."""
        clean, perturbed = vectors.unflatten(0, (self.ranks.world_size, 2, -1)).unbind(dim=1)
        return clean.flatten(0, 1), perturbed.flatten(0, 1)

    def _loss_of_perturbed(self, objective: Objective, clean: Tensor, perturbed: Tensor, labels: Tensor) -> Tensor:
        """The loss of raw embeddings (B, d) of perturbed points, a scalar, before the objective's weight of it."""
        loss = objective.loss
        if self.section.mode == "mix" or self.section.mode in _PAIRED:
            return _unfollowed(objective, perturbed, labels)
        with in_eval_mode(loss):  # predictions as inference makes them
            if self.section.mode == "negative-margin":
                assert isinstance(loss, ProxyLoss)
                assert isinstance(loss.scores, ScaledScores)
                margins = negative_margins(loss.class_vectors())
                scores = loss.class_scores(self.space.project(perturbed))
                return negative_margin_loss(scores, labels, margins, loss.scores.scale())
            assert isinstance(loss, ClassVectors)
            of_clean, of_perturbed = (loss.class_scores(self.space.project(points)) for points in (clean, perturbed))
            apart = prediction_divergence if self.section.trades_term == "kl" else prediction_cross_entropy
            return apart(of_clean, of_perturbed).mean()

    def _pairing(self, loss: nn.Module, clean: Tensor, perturbed: Tensor, labels: Tensor) -> Tensor:
        """What pairs of raw embeddings (B, d) add, a scalar, before its weight."""
        if self.section.mode == "triplet":
            return adversarial_triplets(clean, perturbed, labels, self.section.pairing_margin)
        assert isinstance(loss, ClassVectors)
        with in_eval_mode(loss):
            of_clean, of_perturbed = (loss.class_scores(self.space.project(points)) for points in (clean, perturbed))
        return functional.mse_loss(of_perturbed, of_clean)

    @torch.no_grad()
    def _note(
        self, loss: nn.Module, losses: Mapping[str, Tensor], embeddings: Mapping[str, Tensor], labels: Tensor
    ) -> None:
        """Count towards the next log line: losses, and how many points of each kind are classified correctly."""
        found = {f"{kind}_loss": value for kind, value in losses.items()}
        points = {kind: self.space.project(vectors) for kind, vectors in embeddings.items()}
        if isinstance(loss, ClassVectors):
            with in_eval_mode(loss):
                for kind, given in points.items():
                    found[f"{kind}_accuracy"] = (loss.class_scores(given).argmax(dim=1) == labels).float().mean()
        elif "clean" in points:
            pairs = self.space.distance(points["adv"].unsqueeze(1), points["clean"].unsqueeze(1))
            found["adv_distance"] = pairs.mean()
        for name, value in found.items():
            self._unread[name] = value.detach() + self._unread.get(name, 0.0)
        self.unread_steps += 1

    def readings(self) -> dict[str, float]:
        """Means since the last call: the losses of clean and perturbed points, and their accuracies.

        Where the loss has no class scores: how far the perturbed points are from the clean ones.
        """
        found = {name: float(self._unread[name]) / self.unread_steps for name in _TOLD if name in self._unread}
        self._unread, self.unread_steps = {}, 0
        return found

    def tensors(self) -> dict[str, Tensor]:
        """What has not been logged yet."""
        return dict(self._unread)

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `facts` gave."""
        super().restore({}, facts)
        self._unread = dict(tensors)


def adversarial_triplets(clean: Tensor, perturbed: Tensor, labels: Tensor, margin: float) -> Tensor:
    """The mean of `(D(x*, p) - D(x*, n) + margin)_+`, D = 1 - cosine, over embeddings (B, d) of B items (Mao et al.).

    p is the next clean item of the same class in the batch, x itself where there is none, n the nearest clean item of
    another class; an item without any counts as 0.
    """
    angles = 1 - functional.normalize(perturbed, dim=1) @ functional.normalize(clean, dim=1).mT
    same = labels.unsqueeze(1) == labels
    places = torch.arange(len(labels), device=labels.device)
    ahead = (places - places.unsqueeze(1) - 1) % len(labels)  # the item itself comes last
    positives = ahead.masked_fill(~same, len(labels)).argmin(dim=1)
    own = angles.gather(1, positives.unsqueeze(1)).squeeze(1)
    nearest = angles.masked_fill(same, torch.inf).amin(dim=1)
    return (own - nearest + margin).clamp_min(0).mean()


def _unfollowed(objective: Objective, embeddings: Tensor, labels: Tensor) -> Tensor:
    """The loss of raw embeddings (B, d) that nothing should follow or count."""
    loss, miner = objective.loss, objective.miner
    if isinstance(loss, Following):
        return loss.unfollowed(embeddings, labels)
    with in_eval_mode(loss, *([] if miner is None else [miner])):
        return compared(loss, miner, embeddings, labels)
