"""Published attacks on every inference, what they leave of accuracy and calibration, and whether to trust them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks import attack_classifier
from nearkin.attacks.library import SQUARE, published_attack
from nearkin.audits.attacking import Scene
from nearkin.audits.calibration import OURS
from nearkin.audits.tables import tables_of
from nearkin.metrics.binned import accuracy_and_ece, class_table, mean_intervals
from nearkin.metrics.labels import label_codes
from nearkin.progress import Progress
from nearkin.recipe import AuditSection

_RESTARTS, _QUERIES, _MORE = 3, 300, 4
"""Of the checks: random starts, questions of Square, and how many times more steps."""
_BATCH = 32

VOTES = ("1NN", "kNN", "WkNN (Dudani)", "WkNN (Gou)")
"""What NED is compared with: they meet what it was attacked with."""
Cell = tuple[str, float]
"""An attack and an epsilon."""


@dataclass(eq=False)
class AttackedClasses:
    """What attacks left.

    Attributes:
        clean: name to its class table (C, bins, 3) on the queries as they are.
        tables: name to the tables under each attack and epsilon; those of votes are of what NED was attacked with.
        pixels: what each target was attacked with (q, C, H, W), under the last attack at each epsilon.
        checks: accuracy of NED under the strongest attack listed, first, and under attacks that would get through
            masked gradients, at one epsilon.
        checked_eps: that epsilon.
    """

    clean: dict[str, np.ndarray]
    tables: dict[str, dict[Cell, np.ndarray]] = field(default_factory=dict)
    pixels: dict[str, dict[float, Tensor]] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    checked_eps: float = 0.0

    def accuracy(self, name: str, cell: Cell) -> float:
        """The share of queries that are still named rightly."""
        return accuracy_of(self.tables[name][cell])


def attack_classes(scene: Scene, section: AuditSection, progress: bool) -> AttackedClasses:
    """Attack every target by every attack at every epsilon, and NED by some more at one epsilon."""
    votes = {name: scene.fitted[name] for name in VOTES if name in scene.fitted}
    found = AttackedClasses(_tables(scene, scene.pixels, votes))
    cells = [(attack, eps) for attack in section.attacks for eps in section.attack_epsilons]
    found.tables = {name: {} for name in (*scene.targets, *votes)}
    with Progress("Attacking", len(cells) * len(scene.targets) * len(scene.rows), progress) as bar:
        for name in scene.targets:
            found.pixels[name] = {}
            for attack, eps in cells:
                pixels = _published(scene, name, attack, eps, section, bar.advance)
                found.tables[name][attack, eps] = _table(scene, name, pixels)
                if attack == section.attacks[-1]:
                    found.pixels[name][eps] = pixels
                if name == OURS:
                    for vote, table in tables_of(votes, scene.embedded(pixels), scene.truth).items():
                        found.tables[vote][attack, eps] = table
    with Progress("Checking for masked gradients", 1, progress) as bar:
        _check(found, scene, section)
        bar.advance()
    return found


def accuracy_of(table: np.ndarray) -> float:
    """The share of right answers in a class table (C, bins, 3)."""
    return float(accuracy_and_ece(table.sum(axis=0))[0])


def _published(
    scene: Scene, name: str, attack: str, eps: float, section: AuditSection, advance: Callable[[int], None]
) -> Tensor:
    """What an attack makes of the queries (q, C, H, W)."""
    steps = section.attack_steps if attack == "pgd" else None
    return published_attack(
        attack,
        scene.targets[name],
        scene.pixels,
        scene.codes(name),
        eps,
        norm=section.attack_norm,
        unit=scene.unit,
        steps=steps,
        seed=section.seed,
        batch_size=_BATCH,
        advance=advance,
    ).pixels


def _check(found: AttackedClasses, scene: Scene, section: AuditSection) -> None:
    """Look for what gradients may have hidden: another loss, restarts, more steps, no gradient, another's points."""

    def strongest(eps: float) -> str:
        return min(section.attacks, key=lambda attack: found.accuracy(OURS, (attack, eps)))

    # The smallest epsilon may break everything already; where something holds, there is something to check.
    held = [eps for eps in section.attack_epsilons if found.accuracy(OURS, (strongest(eps), eps)) > 0]
    eps = held[-1] if held else section.attack_epsilons[0]
    target, codes = scene.targets[OURS], scene.codes(OURS)
    ours = partial(
        attack_classifier,
        target,
        scene.pixels,
        codes,
        eps,
        norm=scene.unit.measured(section.attack_norm, tuple(scene.pixels.shape[1:])),
        seed=section.seed,
        batch_size=_BATCH,
    )
    steps, last = section.attack_steps, section.attacks[-1]
    found.checked_eps = eps
    found.checks[f"{strongest(eps)}, as above"] = found.accuracy(OURS, (strongest(eps), eps))
    found.checks[f"PGD on the margin, {_RESTARTS} restarts"] = _held(
        ours(raised="margin", steps=steps, restarts=_RESTARTS).reached
    )
    found.checks[f"PGD, {_MORE} times the steps"] = _held(ours(steps=_MORE * steps).reached)
    if section.attack_norm == "linf":
        square = published_attack(
            SQUARE, target, scene.pixels, codes, eps, unit=scene.unit, steps=_QUERIES, seed=section.seed
        )
        found.checks[f"Square, {_QUERIES} queries, no gradient"] = _held(square.wrong)
    for name, pixels in found.pixels.items():
        if name != OURS:
            found.checks[f"{last} on {name}, transferred"] = accuracy_of(_table(scene, OURS, pixels[eps]))


def _held(wrong: Tensor) -> float:
    return float((~wrong).double().mean())


def _tables(scene: Scene, pixels: Tensor, votes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    own = {name: _table(scene, name, pixels) for name in scene.targets}
    return own | tables_of(votes, scene.embedded(pixels), scene.truth)


@torch.no_grad()
def _table(scene: Scene, name: str, pixels: Tensor) -> np.ndarray:
    """How sure and how right a target is of pixels (q, C, H, W), as a class table (C, bins, 3)."""
    target = scene.targets[name]
    best = torch.cat([target(part) for part in pixels.split(_BATCH)]).max(dim=1)
    (codes,) = label_codes(scene.truth)
    return class_table(best.values.exp().float().numpy(), (best.indices == scene.codes(name)).numpy(), codes)


def interval_of(table: np.ndarray, section: AuditSection) -> dict[str, tuple[float, tuple[float, float]]]:
    """Accuracy and ECE of a class table, each with its interval over classes."""
    return mean_intervals(table[None], resamples=section.resamples, seed=section.seed)
