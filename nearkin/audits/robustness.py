"""The robustness suite: what attacks leave of accuracy, calibration and retrieval, and what is certain."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nearkin.attacks.smoothing import Certified, certify
from nearkin.attacks.voronoi import RobustnessCurves
from nearkin.audits.attacked_cells import attack_cells
from nearkin.audits.attacked_classes import VOTES, AttackedClasses, attack_classes, interval_of
from nearkin.audits.attacked_neighbours import AttackedNeighbours, attack_neighbours
from nearkin.audits.attacking import Scene, make_scene
from nearkin.audits.calibration import OURS
from nearkin.audits.robustness_pictures import draw_certified, draw_regions, draw_strips, draw_under_attack
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap
from nearkin.progress import Progress
from nearkin.recipe import AuditSection

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
        found.values[name] = float(hits.mean())
        found.intervals[name] = class_bootstrap(
            hits.astype(np.float64), scene.truth, resamples=section.resamples, seed=section.seed
        )


def _add_cells(found: SuiteResult, curves: RobustnessCurves, scene: Scene, section: AuditSection) -> None:
    for eps in curves.epsilons:
        for name, radii in (("SAA", curves.standard_radii), ("VAA", curves.voronoi_radii)):
            # Two epsilons that look the same are told once.
            if f"{name} {eps:.3g}" not in found.values:
                hits = (radii > eps).astype(np.float64)
                found.values[f"{name} {eps:.3g}"] = float(hits.mean())
                found.intervals[f"{name} {eps:.3g}"] = class_bootstrap(
                    hits, scene.truth[curves.rows], resamples=section.resamples, seed=section.seed
                )
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
        metric, hits = f"certified accuracy, l2 {radius:.3g}, {name}", right & (result.radii >= radius)
        found.values[metric] = float(hits.mean())
        found.intervals[metric] = class_bootstrap(
            hits.astype(np.float64), scene.truth[places], resamples=section.resamples, seed=section.seed
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
