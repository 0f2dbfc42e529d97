"""Attacks on retrieval: queries pushed away from their class, and pulled to an item that was chosen for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks import Goal, PullTo, PushAway, attack
from nearkin.audits.attacking import Scene
from nearkin.audits.subject import Subject
from nearkin.metrics.labels import label_codes
from nearkin.progress import Progress
from nearkin.recipe import AuditSection

_BATCH = 32


@dataclass(frozen=True, eq=False)
class AttackedNeighbours:
    """What attacks on retrieval did, by epsilon.

    Attributes:
        right: whether the nearest neighbour of a query is of its class (q,), unattacked.
        pushed: the same once it was pushed away from its class.
        pulled: whether the chosen item became the nearest (q,).
    """

    right: np.ndarray
    pushed: dict[float, np.ndarray]
    pulled: dict[float, np.ndarray]


def attack_neighbours(subject: Subject, scene: Scene, section: AuditSection) -> AttackedNeighbours:
    """Push each query away from its class, and pull it to a random support item of another class."""
    gallery = torch.from_numpy(np.ascontiguousarray(subject.embeddings[scene.support]))
    codes, own = (torch.from_numpy(part) for part in label_codes(subject.labels[scene.support], scene.truth))
    shape = tuple(scene.pixels.shape[1:])
    norm = scene.unit.measured(section.attack_norm, shape)
    push = PushAway(scene.embed, gallery, codes, own, subject.space, shape)
    pull = PullTo(scene.embed, gallery, _strangers(codes, own, section.seed), subject.space, shape)
    right = ~attack(push, scene.pixels, 0.0, norm=norm, steps=1, batch_size=_BATCH).reached
    pushed, pulled = {}, {}
    reached: dict[Goal, Tensor] = {goal: torch.zeros(len(scene.rows), dtype=torch.bool) for goal in (push, pull)}
    with Progress("Attacking neighbours", 2 * len(section.attack_epsilons), subject.progress) as bar:
        for eps in section.attack_epsilons:
            for goal in (push, pull):
                found = attack(
                    goal,
                    scene.pixels,
                    eps,
                    norm=norm,
                    steps=section.attack_steps,
                    seed=section.seed,
                    batch_size=_BATCH,
                )
                reached[goal] = reached[goal] | found.reached  # what a smaller ball holds, a larger one does
                bar.advance()
            pushed[eps], pulled[eps] = ~reached[push].numpy(), reached[pull].numpy()
    return AttackedNeighbours(right.numpy(), pushed, pulled)


def _strangers(codes: Tensor, own: Tensor, seed: int) -> Tensor:
    """A random gallery item of another class for each query (q,)."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(len(own), len(codes), generator=generator)
    return draws.masked_fill(own.unsqueeze(1) == codes, -1.0).argmax(dim=1)
