"""Chance-constrained programming: a series of proxy problems, each started from new, well-spread samples.

One instance minimises ell(batch, proxies) + w ell(batch, batch) + lambda/2 |theta - theta_previous|^2 until validation
stops gaining; then the proxies are drawn again where the old ones left the classes uncovered.
Derivation: docs/methods/chance-constrained.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.errors import CheckpointError
from nearkin.models.embedder import Features, to_device, write_tensors
from nearkin.objectives import Objective
from nearkin.objectives.registry import Given
from nearkin.recipe import ChanceConstrainedSection
from nearkin.spaces import kcenter
from nearkin.training.batches import TrainingPool
from nearkin.training.ranks import Ranks
from nearkin.training.run import load_state, save_state
from nearkin.training.strategies.base import SELECTION_METRIC, Schedule, Weights


def proximal(weights: list[Tensor], centre: list[Tensor], strength: float) -> Tensor:
    """strength/2 |theta - centre|^2 over all weights, a scalar whose gradient is strength (theta - centre).

    Args:
        weights: the weights theta, any shapes.
        centre: where they should stay near, of the same shapes; constant.
        strength: lambda.
    """
    value: Tensor = _Proximal.apply(strength, centre, *weights)
    return value


class _Proximal(torch.autograd.Function):
    """Both passes as a few operations over all weights at once: a graph of one node a weight would cost more."""

    @staticmethod
    def forward(ctx: Any, strength: float, centre: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.strength, ctx.centre = strength, centre
        ctx.save_for_backward(*weights)
        norms = torch.stack(torch._foreach_norm(torch._foreach_sub(weights, centre)))
        return 0.5 * strength * norms.square().sum()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        gradients = torch._foreach_sub(ctx.saved_tensors, ctx.centre)
        torch._foreach_mul_(gradients, outer[0] * ctx.strength)
        return (None, None, *gradients)


class ProxyAnchors(nn.Module):
    """Free vectors that start where samples lie and are trained along with the network.

    Args:
        classes: C.
        count: K, of each class.
        dimension: d.
    """

    def __init__(self, classes: int, count: int, dimension: int) -> None:
        super().__init__()
        self.count = count
        self.proxies = nn.Parameter(torch.zeros(classes * count, dimension))

    @torch.no_grad()
    def place(self, positions: np.ndarray, embeddings: Tensor) -> None:
        """Move the proxies to embeddings (C, K, d); the optimiser's averages of their gradients stay."""
        self.proxies.copy_(embeddings.flatten(0, 1))

    def vectors(self) -> Tensor:
        """The proxies (C K, d)."""
        return self.proxies

    def values(self) -> Tensor:
        """The proxies (C, K, d) without gradients."""
        return self.proxies.detach().unflatten(0, (-1, self.count))


class SampleAnchors(nn.Module):
    """The samples themselves, embedded again in every step: exact, and as costly as a batch of all of them.

    Args:
        pool: where the samples come from.
        count: K, of each class.
    """

    positions: Tensor

    def __init__(self, pool: TrainingPool, count: int) -> None:
        super().__init__()
        self.register_buffer("positions", torch.zeros(pool.classes, count, dtype=torch.int64))
        self._pool = pool
        self._held: tuple[Tensor, Features] | None = None

    def place(self, positions: np.ndarray, embeddings: Tensor) -> None:
        """Take the items at positions (C, K); where they lie now does not matter."""
        self.positions.copy_(torch.from_numpy(positions))

    def vectors(self) -> Tensor:
        """The samples' embeddings (C K, d), with gradients to the network."""
        return self._pool.embedder(self._inputs(), start=self._pool.batches.start).float()

    def values(self) -> Tensor:
        """The samples' embeddings (C, K, d) in eval mode."""
        return self._pool.embed(self.positions.cpu().numpy())

    def _inputs(self) -> Features:
        """The samples as the network takes them, fetched once an instance."""
        if self._held is None or not torch.equal(self._held[0], self.positions):
            inputs = to_device(self._pool.inputs(self.positions.flatten().cpu().numpy()), self.positions.device)
            self._held = (self.positions.clone(), inputs)
        return self._held[1]


Anchors = ProxyAnchors | SampleAnchors
"""K vectors for each of C classes."""

_CLASSES = 10
_ITEMS = 50


class Snapshots:
    """A file an instance, with the same few items of the same few classes each time.

    Args:
        folder: where the files go.
        pool: the training items and the network.
    """

    def __init__(self, folder: Path, pool: TrainingPool) -> None:
        self.folder = folder
        self._pool = pool
        self._classes = np.unique(np.linspace(0, pool.classes - 1, _CLASSES).round().astype(np.int64))
        self._items = np.unique(pool.draw(0, min(_ITEMS, int(pool.counts.max())))[self._classes])

    def take(self, instance: int, weights: Mapping[str, Tensor], converged: Tensor, following: np.ndarray) -> None:
        """Write where the items lie, the proxies that converged and those that follow, all raw and of one moment.

        Args:
            instance: its number.
            weights: the network's, for which the proxies converged.
            converged: proxies (C, K, d).
            following: positions (C, K) of the items that the next proxies start from.
        """
        with _having(self._pool.embedder, weights):
            tensors = {
                "points": self._pool.embed(self._items),
                "labels": torch.from_numpy(self._pool.class_ids[self._items]),
                "classes": torch.from_numpy(self._classes),
                "converged": converged[self._classes],
                "next": self._pool.embed(following[self._classes]),
            }
        write_tensors(self.folder / f"{instance:04d}.safetensors", tensors)


@contextmanager
def _having(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the block the module has other weights."""
    own = module.state_dict()
    before = {name: own[name].clone() for name in weights}
    module.load_state_dict(weights, strict=False)
    try:
        yield
    finally:
        module.load_state_dict(before, strict=False)


RADIUS = "val_covering_radius"
_REACHED = ("covering_radius", "violation", "violation_bound")
"""What is told of the validation at which an instance was best, besides its MAP@R."""
_PREVIOUS = "previous/"


class ChanceConstrained(Schedule):
    """Alternate proxy problems; works with any pair loss that can compare a batch with references.

    Reference: Gürbüz 2022, chapter 3 (algorithms 1 and 2).

    Only what every step needs is held in memory: the anchors, and the previous instance's weights. The best weights
    and anchors of the current instance wait in a file for its end.

    Args:
        section: the recipe's settings.
        pool: the training items and the network.
        kept: file for the best weights and anchors of the current instance.
        snapshots: takes pictures of the geometry at the end of each instance; None takes none.
        ranks: the processes that train together: all take the anchors that the first one draws, and only it writes.
    """

    anchor_labels: Tensor

    def __init__(
        self,
        section: ChanceConstrainedSection,
        pool: TrainingPool,
        kept: Path,
        snapshots: Snapshots | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.section = section
        self.instance = 0  # none yet: plain steps
        self.began = 0
        self.best = -math.inf
        self.stale = 0
        self.reached: dict[str, float] = {}
        self.anchors: Anchors = (
            ProxyAnchors(pool.classes, section.proxies, pool.embedder.dimension)
            if section.anchors == "proxies"
            else SampleAnchors(pool, section.proxies)
        )
        self.register_buffer("anchor_labels", torch.arange(pool.classes).repeat_interleave(section.proxies))
        self.previous: list[Tensor] | None = None
        self._pool = pool
        self._kept = kept
        self._snapshots = snapshots
        self._ranks = Ranks() if ranks is None else ranks
        self._weights = {name: p for name, p in pool.embedder.named_parameters() if p.requires_grad}

    def forward(
        self, objective: Objective, embeddings: Tensor, labels: Tensor, attributes: Given = None, features: Given = None
    ) -> Tensor:
        """The value to minimise, a scalar; see `Schedule.forward`."""
        if self.instance == 0:
            return objective(embeddings, labels, attributes, features)
        loss = objective.against(embeddings, labels, self.anchors.vectors(), self.anchor_labels)
        terms = objective.parts(embeddings, labels, attributes, features)
        loss = loss + self.section.batch_weight * terms.pop("loss")
        for term in terms.values():
            loss = loss + term
        if self.previous is not None:
            loss = loss + proximal(list(self._weights.values()), self.previous, self.section.proximal)
        return loss

    def begin(self) -> None:
        """Begin with the first instance, unless plain steps come before it."""
        if self.section.warmup_steps == 0:
            self._first_instance(0)

    def validated(self, step: int, values: Mapping[str, float], weights: Weights) -> dict[str, float]:
        """Continue the instance, or end it and begin the next; see `Schedule.validated`."""
        if self.instance == 0:
            if step >= self.section.warmup_steps:
                self._first_instance(step)
            return {}
        value = values[SELECTION_METRIC]
        if self.best == -math.inf or value > self.best + self.section.min_gain:
            self.best, self.stale = value, 0
            self.reached = {name: values[f"val_{name}"] for name in _REACHED if f"val_{name}" in values}
            if self._ranks.is_first:
                kept = {"weights": weights(), "anchors": {"values": self.anchors.values()}}
                save_state(self._kept, kept, {"identity": {}, "state": {"instance": self.instance, "best": self.best}})
        else:
            self.stale += 1
        if self.stale < self.section.patience or self.instance == self.section.instances:
            return {}
        return self._next_instance(step)

    def finished(self, step: int) -> dict[str, float]:
        """Report the instance that training ended in, if what it kept is still there."""
        if self.best == -math.inf:
            return {}
        try:
            weights, converged = self._converged()
        except CheckpointError:
            return {}  # a report is not worth the run
        if self._snapshots is not None:
            self._snapshots.take(self.instance, weights, converged, np.empty((self._pool.classes, 0), dtype=np.int64))
        return self._report(step, converged)

    def _first_instance(self, step: int) -> None:
        """Draw the first anchors, as far as possible from the origin and from each other."""
        self.instance, self.began = 1, step
        shape = (self._pool.classes, self.section.proxies, self._pool.embedder.dimension)
        self._draw(torch.zeros(shape, device=self.anchor_labels.device))

    def _next_instance(self, step: int) -> dict[str, float]:
        weights, converged = self._converged()
        self.previous = self._like_weights(weights)
        report = self._report(step, converged)
        self.instance += 1
        self.began, self.best, self.stale, self.reached = step, -math.inf, 0, {}
        following = self._draw(converged)
        if self._snapshots is not None:
            self._snapshots.take(self.instance - 1, weights, converged, following)
        return report

    def _like_weights(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """A copy of values by name, laid out in memory as the weights are."""
        return [torch.empty_like(weight).copy_(values[name]).detach() for name, weight in self._weights.items()]

    def _converged(self) -> tuple[dict[str, Tensor], Tensor]:
        """The weights that validated best in this instance, and their anchors (C, K, d)."""
        # Sent, not read by each: another machine may not see yet what the first process wrote.
        tensors, facts = self._ranks.broadcast_object(self._read_kept() if self._ranks.is_first else ({}, {}))
        self._check_ours(facts)
        return tensors["weights"], tensors["anchors"]["values"].to(self.anchor_labels.device)

    def _read_kept(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """What is kept, with its instance and value; empty if it cannot be read."""
        try:
            tensors, facts = load_state(self._kept)
        except CheckpointError:
            return {}, {}
        return tensors, facts["state"]

    def _report(self, step: int, converged: Tensor) -> dict[str, float]:
        return {
            "instance": self.instance,
            "instance_steps": step - self.began,
            "instance_MAP@R": self.best,
            **{f"instance_{name}": value for name, value in self.reached.items()},
            "instance_spread": self._spread(converged),
        }

    def _draw(self, seeds: Tensor) -> np.ndarray:
        """Pick new anchors from a fresh pool, far from seeds (C, K, d) and from each other; their positions (C, K)."""
        positions = torch.from_numpy(self._pool.draw(self.instance, self.section.pool, least=self.section.proxies))
        points = self._pool.embed(positions.numpy())
        picks = self._ranks.broadcast(kcenter(points, self.section.proxies, seeds=seeds))
        chosen = self._ranks.broadcast(points.gather(1, picks.unsqueeze(2).expand(-1, -1, points.shape[2])))
        picked = positions.gather(1, picks.cpu()).numpy()
        self.anchors.place(picked, chosen)
        return picked

    def _spread(self, anchors: Tensor) -> float:
        """Mean distance between two anchors (C, K, d) of one class, in the model's space; 0 for single ones."""
        count = anchors.shape[1]
        if count == 1:
            return 0.0
        space = self._pool.embedder.space
        points = space.project(anchors)
        return float(space.distance(points, points).sum(dim=(1, 2)).mean() / (count * (count - 1)))

    def tensors(self) -> dict[str, Tensor]:
        """Anchors, and the previous instance's weights where there was one."""
        previous = dict(zip(self._weights, self.previous or [], strict=False))
        return super().tensors() | {f"{_PREVIOUS}{name}": weight for name, weight in previous.items()}

    def facts(self) -> dict[str, Any]:
        """Where the current instance stands."""
        best = self.best if math.isfinite(self.best) else None
        place = {"instance": self.instance, "began": self.began, "stale": self.stale}
        return {**place, "best": best, "reached": self.reached}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `facts` gave."""
        own = {name: value for name, value in tensors.items() if not name.startswith(_PREVIOUS)}
        super().restore(own, facts)
        if len(own) < len(tensors):
            self.previous = self._like_weights({name: tensors[f"{_PREVIOUS}{name}"] for name in self._weights})
        self.instance, self.began, self.stale = facts["instance"], facts["began"], facts["stale"]
        self.best = -math.inf if facts["best"] is None else facts["best"]
        # A checkpoint of 0.1.0 has the radius alone.
        before = {} if facts.get("radius") is None else {"covering_radius": facts["radius"]}
        self.reached = dict(facts.get("reached", before))
        if self.best > -math.inf and self._ranks.is_first:
            self._check_ours(self._read_kept()[1])  # the end of the instance will need it

    def _check_ours(self, facts: Mapping[str, Any]) -> None:
        """Refuse what is kept unless it is of this instance and at least as good as its best.

        It may be better: the file of a run that was killed between writing it and the checkpoint is one validation
        ahead.
        """
        if facts.get("instance") != self.instance or facts["best"] < self.best:
            raise CheckpointError(
                f"{self._kept} is missing, damaged or of another run, and the current instance needs it: put it back, "
                "or start a new run."
            )
