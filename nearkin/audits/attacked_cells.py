"""SAA and VAA of a model on its own data: how it holds in balls, and in balls inside the items' Voronoi cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from nearkin.attacks.norms import Norm
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


def attack_cells(
    subject: Subject, scene: Scene, section: AuditSection, known: Sequence[torch.Tensor] = ()
) -> RobustnessCurves | None:
    """Attack NED on the attacked queries, among the cells of these and of other items; None if not asked for."""
    if section.voronoi_items < 2:
        return None
    assert subject.pixels is not None
    size = scene.pixels[0].numel()
    room = max(len(scene.rows), min(section.voronoi_items, _NUMBERS // size))
    more = np.random.default_rng(section.seed).permutation(scene.others)[: room - len(scene.rows)]
    pixels = torch.cat([scene.pixels, subject.pixels(more)]) if len(more) else scene.pixels
    # In pixels, measured by the unit: what is checked is then what the model sees.
    norm = scene.unit.measured(section.attack_norm, tuple(pixels.shape[1:]))
    gap = _typical_gap(pixels, norm)
    return adversarial_accuracy(
        scene.targets[OURS],
        pixels,
        np.concatenate([scene.truth, subject.labels[more]]),
        [*section.attack_epsilons, *(share * gap for share in _SHARES if gap < torch.inf)],
        norm=norm,
        attacked=np.arange(len(scene.rows)),
        candidates=known,
        steps=section.attack_steps,
        seed=section.seed,
        batch_size=_BATCH,
        progress=subject.progress,
    )


def _typical_gap(pixels: torch.Tensor, norm: Norm) -> float:
    """The median distance of an item to the nearest other one that differs from it; inf if all are the same."""
    flat = pixels.flatten(1)
    distances = norm.distances(flat, flat)
    nearest = distances.masked_fill(distances == 0, torch.inf).amin(dim=1)
    return float(nearest.median())
