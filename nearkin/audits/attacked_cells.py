"""SAA and VAA of a model on its own data: how it holds in balls, and in balls inside the items' Voronoi cells."""

from __future__ import annotations

import numpy as np
import torch

from nearkin.attacks.norms import as_norm
from nearkin.attacks.voronoi import RobustnessCurves, adversarial_accuracy
from nearkin.audits.attacking import Scene
from nearkin.audits.calibration import OURS
from nearkin.audits.subject import Subject
from nearkin.recipe import AuditSection

_NUMBERS = 2**25
"""Of all items together, at the most: 256 MB in float64."""
_SHARES = (0.25, 0.5, 1.0)
"""Of the median distance to the nearest other item, as further epsilons: where cells begin to matter."""
_BATCH = 32


def attack_cells(subject: Subject, scene: Scene, section: AuditSection) -> RobustnessCurves | None:
    """Attack NED on the attacked queries, among the cells of these and of other queries; None if not asked for."""
    if section.voronoi_items < 2:
        return None
    assert subject.pixels is not None
    size = scene.pixels[0].numel()
    room = max(len(scene.rows), min(section.voronoi_items, _NUMBERS // size))
    more = np.random.default_rng(section.seed).permutation(scene.others)[: room - len(scene.rows)]
    numbers = scene.unit.of_pixels(scene.pixels)
    if len(more):
        numbers = torch.cat([numbers, scene.unit.of_pixels(subject.pixels(more))])
    labels = np.concatenate([scene.truth, subject.labels[more]])
    attacked = np.arange(len(scene.rows))
    epsilons = [*section.attack_epsilons, *(share * _typical_gap(numbers, section) for share in _SHARES)]
    return adversarial_accuracy(
        scene.unit.taken_by(scene.targets[OURS]),
        numbers,
        labels,
        epsilons,
        classes=scene.targets[OURS].classes,
        norm=section.attack_norm,
        attacked=attacked,
        steps=section.attack_steps,
        bounds=scene.unit.bounds,
        seed=section.seed,
        batch_size=_BATCH,
        progress=subject.progress,
    )


def _typical_gap(numbers: torch.Tensor, section: AuditSection) -> float:
    """The median distance of an item to the nearest other one that differs from it."""
    flat = numbers.flatten(1)
    distances = as_norm(section.attack_norm).distances(flat, flat)
    nearest = distances.masked_fill(distances == 0, torch.inf).amin(dim=1)
    return float(nearest.median())
