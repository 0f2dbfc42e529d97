"""The robustness suite: what attacks leave of accuracy, calibration and retrieval, and what is certain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from nearkin.attacks.classifier import Certified, certify
from nearkin.attacks.voronoi import RobustnessCurves
from nearkin.audits.attacks import (
    VOTES,
    AttackedClasses,
    AttackedNeighbours,
    Scene,
    accuracy_of,
    attack_cells,
    attack_classes,
    attack_neighbours,
    interval_of,
    make_scene,
)
from nearkin.audits.calibration import OURS
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap
from nearkin.progress import Progress
from nearkin.recipe import AuditSection
from nearkin.report import Figure
from nearkin.report.robustness import AttackStrip, draw_attacks, draw_robustness
from nearkin.search import exact

_STRIPS, _NEIGHBOURS = 5, 3
_THUMBNAIL = 112


def draw_strips(subject: Subject, scene: Scene, classes: AttackedClasses, section: AuditSection) -> Figure:
    """Some queries that the smallest attack changed the answer for, where there are any."""
    attack = section.attacks[-1]
    moved, codes = classes.pixels[OURS], scene.codes(OURS)
    before = _named(scene, scene.pixels) == codes
    fooled = {eps: before & (_named(scene, pixels) != codes) for eps, pixels in moved.items()}
    eps = next((eps for eps in moved if int(fooled[eps].sum()) >= _STRIPS), section.attack_epsilons[-1])
    chosen = torch.nonzero(fooled[eps]).squeeze(1)
    chosen = chosen if len(chosen) else torch.arange(len(codes))
    places = chosen[torch.linspace(0, len(chosen) - 1, min(_STRIPS, len(chosen))).long()].tolist()
    answered = ", whose answer it changed" if bool(fooled[eps].any()) else ""
    return Figure(
        "Attacked queries",
        f"Queries{answered}, before and after {attack} of size {eps:.3g} ({section.attack_norm}) on {OURS}: what "
        "was added is stretched to be seen, and what the attacked query is taken for stands below it. Neighbours of "
        "the query's class are framed green, others red.",
        draw_attacks([_strip(subject, scene, place, moved[eps]) for place in places]),
        "Rows of pictures: the query, the perturbation, the attacked query, neighbours before and after",
    )


@torch.no_grad()
def _named(scene: Scene, pixels: torch.Tensor) -> torch.Tensor:
    return torch.cat([scene.targets[OURS](part) for part in pixels.split(64)]).argmax(dim=1)


def _strip(subject: Subject, scene: Scene, place: int, pixels: torch.Tensor) -> AttackStrip:
    label = subject.labels[scene.rows[place]]
    both = torch.stack([scene.pixels[place], pixels[place]])
    count = min(_NEIGHBOURS, len(scene.support))
    _, near = exact(scene.embedded(both), subject.embeddings[scene.support], count, space=subject.space)
    sides = [
        [_neighbour(subject, int(scene.support[row]), label) for row in rows] for rows in near.cpu().numpy().tolist()
    ]
    clean, attacked = (one.permute(1, 2, 0).numpy() for one in both)
    taken = scene.targets[OURS].classes[int(_named(scene, both[1:])[0])]
    return AttackStrip(clean, attacked, str(label), str(taken), sides[0], sides[1])


def _neighbour(subject: Subject, row: int, label: object) -> tuple[Image.Image, str, bool]:
    return subject.thumbnail(row, _THUMBNAIL, square=True), str(subject.labels[row]), bool(subject.labels[row] == label)


def draw_under_attack(classes: AttackedClasses, section: AuditSection) -> Figure:
    """Accuracy against epsilon: every attack on NED, and the last one on every other inference."""
    sizes = np.array([0.0, *section.attack_epsilons])
    last = section.attacks[-1]
    curves = {}
    for name, attack in [
        *((OURS, attack) for attack in section.attacks[::-1]),
        *((name, last) for name in classes.tables if name != OURS),
    ]:
        clean = accuracy_of(classes.clean[name])
        held = [classes.accuracy(name, (attack, eps)) for eps in section.attack_epsilons]
        curves[f"{name}, {attack}"] = (sizes, np.array([clean, *held]))
    return Figure(
        "Accuracy under attack",
        f"The share of queries that are still named rightly, against the size of the perturbation "
        f"({section.attack_norm}, {_unit(section)}).",
        draw_robustness(curves, f"size of the perturbation, {section.attack_norm}, {_unit(section)}"),
        "Curves of accuracy against epsilon",
    )


def draw_regions(curves: RobustnessCurves, section: AuditSection) -> Figure:
    """SAA and VAA against epsilon."""
    sizes = np.array([0.0, *curves.epsilons])
    return Figure(
        "Balls and Voronoi cells",
        "SAA lets the adversary go anywhere in the ball; VAA only as far as its point is nearer to its own item than "
        f"to every other one of {curves.items:,}, so that no real item of another class counts as an attack. Until "
        "half of the smallest distance of an attacked item to any other, both are the same.",
        draw_robustness(
            {
                "SAA": (sizes, np.array([curves.accuracy, *curves.standard])),
                "VAA": (sizes, np.array([curves.accuracy, *curves.voronoi])),
            },
            f"epsilon, {curves.norm}, {_unit(section)}",
            marks={"half the smallest distance": curves.smallest_distance / 2},
        ),
        "Standard and Voronoi-epsilon adversarial accuracy against epsilon",
    )


def draw_certified(scene: Scene, certified: Mapping[str, Certified], section: AuditSection) -> Figure:
    """The share of queries that are right for certain, against the radius."""
    curves = {}
    for name, result in certified.items():
        truth = scene.codes(name)[scene.smoothed(section)].numpy()
        radii = np.linspace(0, max(result.radii.max() * 1.05, result.sigma), 100)
        curves[name] = (radii, result.certified_accuracy(truth, radii))
    return Figure(
        "Certified accuracy",
        "The share of queries that the smoothed classifier names rightly whatever happens within the radius (l2, "
        "pixels from 0 to 1).",
        draw_robustness(curves, "radius, l2, pixels", steps=True),
        "Certified accuracy against the radius",
    )


def _unit(section: AuditSection) -> str:
    return "pixels" if section.attack_unit == "pixels" else "normalised inputs"


_MASKED = 0.05
"""By how much another attack must find more for gradients to be suspected of being masked."""


@suites.register("robustness")
def robustness_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Accuracy and ECE under attack, of every inference; attacks on retrieval; SAA and VAA; certified accuracy.

    Half of each class is the support, a sample of the other half is attacked. NED, prototypes and the model's own
    classifiers are each attacked for themselves; votes, which have no gradient, meet what NED was attacked with.
    """
    scene = make_scene(subject, section)
    classes = attack_classes(scene, section, subject.progress)
    neighbours = attack_neighbours(subject, scene, section)
    cells, why_not = _attacked_cells(subject, scene, section, classes)
    certified = _certify(scene, section, subject.progress)
    last = (section.attacks[-1], section.attack_epsilons[0])
    found = SuiteResult({}, primary=f"accuracy, {_cell(*last)}, {OURS}")
    found.notes.extend([*_notes(subject, scene, section), *why_not])
    _add_classes(found, classes, section)
    _add_checks(found, classes)
    _add_neighbours(found, neighbours, scene, section)
    if cells is not None:
        _add_cells(found, cells, scene, section)
    for name, result in certified.items():
        _add_certified(found, name, result, scene, section)
    found.details["robustness"] = _details(classes, neighbours, cells, certified, scene, section)
    _add_drawings(found, subject, scene, classes, cells, certified, section)
    return replace(found, lower_is_better=_lower(found.values))


def _attacked_cells(
    subject: Subject, scene: Scene, section: AuditSection, classes: AttackedClasses
) -> tuple[RobustnessCurves | None, list[str]]:
    """SAA and VAA, or why they were not measured: items may have no cells, and all else is worth telling."""
    try:
        return attack_cells(subject, scene, section, list(classes.pixels[OURS].values())), []
    except DataError as error:
        return None, [f"SAA and VAA are not measured. {error}"]


def _certify(scene: Scene, section: AuditSection, progress: bool) -> dict[str, Certified]:
    """Smoothed nearest prototype and NED on the first of the queries."""
    if not section.smoothed_queries:
        return {}
    some = scene.pixels[scene.smoothed(section)]
    names = [name for name in scene.targets if name in scene.fitted]
    with Progress("Smoothing", len(names) * len(some), progress) as bar:
        return {
            name: certify(
                scene.targets[name],
                some,
                sigma=section.smoothing_sigma,
                samples=section.smoothing_samples,
                guesses=max(10, section.smoothing_samples // 10),
                seed=section.seed,
                advance=bar.advance,
            )
            for name in names
        }


def _cell(attack: str, eps: float) -> str:
    return f"{attack} {eps:.3g}"


def _add_classes(found: SuiteResult, classes: AttackedClasses, section: AuditSection) -> None:
    """Accuracy and ECE of NED under every attack; of the others accuracy, and of votes only under the last attack."""
    for name in sorted(classes.clean, key=lambda name: name != OURS):
        cells: dict[str, np.ndarray] = {"unattacked": classes.clean[name]}
        shown = section.attacks[-1:] if name in VOTES else section.attacks
        cells |= {_cell(*cell): table for cell, table in classes.tables[name].items() if cell[0] in shown}
        for what, table in cells.items():
            for metric, (value, interval) in interval_of(table, section).items():
                if name == OURS or metric == "accuracy":
                    found.values[f"{metric}, {what}, {name}"] = value
                    found.intervals[f"{metric}, {what}, {name}"] = interval


def _add_checks(found: SuiteResult, classes: AttackedClasses) -> None:
    """Whether attacks that need no good gradient find more than those that follow it."""
    first, *others = classes.checks.items()
    told = ", ".join(f"{name} {100 * value:.0f} %" for name, value in classes.checks.items())
    stronger = [name for name, value in others if value < first[1] - _MASKED]
    verdict = (
        f"{' and '.join(stronger)} find{'s' if len(stronger) == 1 else ''} more, so the accuracies above are too good "
        "to be believed"
        if stronger
        else "none finds much more, so nothing speaks for masked gradients"
    )
    found.notes.append(f"Are gradients masked? Accuracy of {OURS} at {classes.checked_eps:.3g}: {told}; {verdict}.")


def _add_neighbours(found: SuiteResult, result: AttackedNeighbours, scene: Scene, section: AuditSection) -> None:
    shares = {"P@1, unattacked": result.right}
    shares |= {f"P@1, pushed away {eps:.3g}": right for eps, right in result.pushed.items()}
    shares |= {f"pulled to a chosen item {eps:.3g}": there for eps, there in result.pulled.items()}
    for name, hits in shares.items():
        _add_share(found, name, hits, scene.truth, section)


def _add_cells(found: SuiteResult, curves: RobustnessCurves, scene: Scene, section: AuditSection) -> None:
    for eps in curves.epsilons:
        for name, radii in (("SAA", curves.standard_radii), ("VAA", curves.voronoi_radii)):
            # Two epsilons that look the same are told once.
            if f"{name} {eps:.3g}" not in found.values:
                _add_share(found, f"{name} {eps:.3g}", radii > eps, scene.truth[curves.rows], section)
    found.notes.append(
        f"SAA is the accuracy of {OURS} against the worst point found in the ball, VAA against the worst that is also "
        f"nearer to its own item than to every other one of {curves.items:,}; the attack raises the margin and "
        "restarts once."
    )
    found.notes.extend(curves.notes)


def _add_certified(found: SuiteResult, name: str, result: Certified, scene: Scene, section: AuditSection) -> None:
    places = scene.smoothed(section)
    right = result.codes == scene.codes(name)[places].numpy()
    for radius in (0.0, result.sigma):
        hits = right & (result.radii >= radius)
        _add_share(found, f"certified accuracy, l2 {radius:.3g}, {name}", hits, scene.truth[places], section)


def _add_share(found: SuiteResult, name: str, hits: np.ndarray, truth: np.ndarray, section: AuditSection) -> None:
    """The share of hits (n,), with its interval over the classes (n,)."""
    found.values[name] = float(hits.mean())
    found.intervals[name] = class_bootstrap(
        hits.astype(np.float64), truth, resamples=section.resamples, seed=section.seed
    )


def _lower(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(name for name in values if name.startswith(("ECE", "pulled")))


def _notes(subject: Subject, scene: Scene, section: AuditSection) -> list[str]:
    unit = "pixels from 0 to 1" if section.attack_unit == "pixels" else "inputs as the model normalises them"
    notes = [
        f"Robustness: {len(scene.rows)} queries are attacked, in {section.attack_norm}; sizes of perturbations are in "
        f"{unit}. {', '.join(scene.targets)} are attacked for themselves, and the votes meet what {OURS} was attacked "
        "with. Accuracies under attack are upper bounds: a stronger attack may find more. An ECE of so few answers is "
        "large by chance alone: compare it with that of the unattacked queries, not with zero."
    ]
    if section.smoothed_queries:
        notes.append(
            f"Smoothing: {min(section.smoothed_queries, len(scene.rows))} queries, noise of "
            f"{section.smoothing_sigma:g} in pixels, {section.smoothing_samples} samples each; a certificate is wrong "
            "with a chance of 0.1 % at the most."
        )
    return notes


def _details(
    classes: AttackedClasses,
    neighbours: AttackedNeighbours,
    cells: RobustnessCurves | None,
    certified: dict[str, Certified],
    scene: Scene,
    section: AuditSection,
) -> dict[str, Any]:
    """All numbers, as JSON can hold them."""

    def told(table: np.ndarray) -> dict[str, float]:
        return {metric: value for metric, (value, _) in interval_of(table, section).items()}

    return {
        "norm": section.attack_norm,
        "unit": section.attack_unit,
        "queries": len(scene.rows),
        "unattacked": {name: told(table) for name, table in classes.clean.items()},
        "attacked": {
            name: {_cell(*cell): told(table) for cell, table in tables.items()}
            for name, tables in classes.tables.items()
        },
        "checks": {"eps": classes.checked_eps, "accuracy": classes.checks},
        "pulled": {f"{eps:.3g}": float(hits.mean()) for eps, hits in neighbours.pulled.items()},
        "pushed": {f"{eps:.3g}": float(hits.mean()) for eps, hits in neighbours.pushed.items()},
        "cells": None if cells is None else cells.to_dict(),
        "certified": {
            name: {"radii": result.radii.tolist(), "codes": result.codes.tolist(), "sigma": result.sigma}
            for name, result in certified.items()
        },
    }


def _add_drawings(
    found: SuiteResult,
    subject: Subject,
    scene: Scene,
    classes: AttackedClasses,
    cells: RobustnessCurves | None,
    certified: dict[str, Certified],
    section: AuditSection,
) -> None:
    found.drawings.append(partial(draw_strips, subject, scene, classes, section))
    found.drawings.append(partial(draw_under_attack, classes, section))
    if cells is not None:
        found.drawings.append(partial(draw_regions, cells, section))
    if certified:
        found.drawings.append(partial(draw_certified, scene, certified, section))
