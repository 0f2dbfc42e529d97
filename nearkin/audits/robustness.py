"""The robustness suite: what attacks leave of accuracy, calibration and retrieval, and what is certain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image

from nearkin.attacks.classifier import Certified, certify
from nearkin.attacks.voronoi import RobustnessCurves
from nearkin.audits.attacks import (
    VOTES,
    AttackedClasses,
    Scene,
    accuracy_of,
    attack_cells,
    attack_classes,
    attack_neighbours,
    attack_towards,
    interval_of,
)
from nearkin.audits.calibration import OURS
from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap
from nearkin.progress import Progress
from nearkin.recipe import AuditSection
from nearkin.report import Figure
from nearkin.report.curves import draw_robustness
from nearkin.report.grid import AttackStrip, draw_attacks
from nearkin.search import exact

_STRIPS, _NEIGHBOURS = 5, 3
_THUMBNAIL = 112
_MASKED = 0.05
"""By how much another attack must find more for gradients to be suspected of being masked."""


@suites.register("robustness")
def robustness_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Accuracy and ECE under attack, of every inference; attacks on retrieval; SAA and VAA; certified accuracy.

    Half of each class is the support, a sample of the other half is attacked. NED, prototypes and the model's own
    classifiers are each attacked for themselves; votes, which have no gradient, meet what NED was attacked with.
    """
    scene = Scene(subject, section)
    classes = attack_classes(scene)
    right, pushed, pulled = attack_neighbours(scene)
    towards = attack_towards(scene)
    found = SuiteResult(primary=f"accuracy, {_cell(section.attacks[-1], section.attack_epsilons[0])}, {OURS}")
    found.notes.extend(_notes(scene))
    cells = None
    try:
        cells = attack_cells(scene, list(classes.pixels[OURS].values()))
    except DataError as error:  # items may have no cells, and all else is worth telling
        found.notes.append(f"SAA and VAA are not measured. {error}")
    certified = _certify(scene)
    _add_classes(found, classes, section)
    _add_checks(found, classes)
    shares = {"P@1, unattacked": right}
    shares |= {f"P@1, pushed away {eps:.3g}": hits for eps, hits in pushed.items()}
    shares |= {f"pulled to a chosen item {eps:.3g}": hits for eps, hits in pulled.items()}
    shares |= {f"named as a chosen class {eps:.3g}": hits for eps, hits in towards.items()}
    for name, hits in shares.items():
        _add_share(found, name, hits, scene.truth, section)
    found.drawings.append(lambda: draw_strips(scene, classes))
    _show_under_attack(found, classes, section)
    if cells is not None:
        _add_cells(found, cells, scene)
    if certified:
        _add_certified(found, certified, scene)

    def told(table: np.ndarray) -> dict[str, float]:
        return {metric: value for metric, (value, _) in interval_of(table, section).items()}

    found.details["robustness"] = {
        "norm": section.attack_norm,
        "unit": section.attack_unit,
        "queries": len(scene.rows),
        "unattacked": {name: told(table) for name, table in classes.clean.items()},
        "attacked": {
            name: {_cell(*cell): told(table) for cell, table in tables.items()}
            for name, tables in classes.tables.items()
        },
        "checks": {"eps": classes.checked_eps, "accuracy": classes.checks},
        "pulled": {f"{eps:.3g}": float(hits.mean()) for eps, hits in pulled.items()},
        "pushed": {f"{eps:.3g}": float(hits.mean()) for eps, hits in pushed.items()},
        "towards": {f"{eps:.3g}": float(hits.mean()) for eps, hits in towards.items()},
        "cells": None if cells is None else cells.to_dict(),
        "certified": {
            name: {"radii": result.radii.tolist(), "codes": result.codes.tolist(), "sigma": result.sigma}
            for name, result in certified.items()
        },
    }
    found.lower_is_better = tuple(name for name in found.values if name.startswith(("ECE", "pulled", "named as")))
    return found


def draw_strips(scene: Scene, classes: AttackedClasses) -> Figure:
    """Some queries that the smallest attack changed the answer for, where there are any."""
    section, attack = scene.section, scene.section.attacks[-1]
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
        draw_attacks([_strip(scene, place, moved[eps]) for place in places]),
        "Rows of pictures: the query, the perturbation, the attacked query, neighbours before and after",
    )


@torch.no_grad()
def _named(scene: Scene, pixels: torch.Tensor) -> torch.Tensor:
    return torch.cat([scene.targets[OURS](part) for part in pixels.split(64)]).argmax(dim=1)


def _strip(scene: Scene, place: int, pixels: torch.Tensor) -> AttackStrip:
    subject, label = scene.subject, scene.truth[place]
    both = torch.stack([scene.pixels[place], pixels[place]])
    count = min(_NEIGHBOURS, len(scene.support))
    _, near = exact(scene.embedded(both), subject.embeddings[scene.support], count, space=subject.space)

    def neighbour(row: int) -> tuple[Image.Image, str, bool]:
        other = subject.labels[row]
        return subject.thumbnail(row, _THUMBNAIL, square=True), str(other), bool(other == label)

    sides = [[neighbour(int(scene.support[row])) for row in rows] for rows in near.cpu().numpy().tolist()]
    clean, attacked = (one.permute(1, 2, 0).numpy() for one in both)
    taken = scene.targets[OURS].classes[int(_named(scene, both[1:])[0])]
    return AttackStrip(clean, attacked, str(label), str(taken), sides[0], sides[1])


def _show_under_attack(found: SuiteResult, classes: AttackedClasses, section: AuditSection) -> None:
    """Accuracy against epsilon: every attack on NED, and the last one on every other inference."""
    sizes = np.array([0.0, *section.attack_epsilons])
    shown = [(OURS, attack) for attack in section.attacks[::-1]]
    shown += [(name, section.attacks[-1]) for name in classes.tables if name != OURS]
    curves = {}
    for name, attack in shown:
        held = [classes.accuracy(name, (attack, eps)) for eps in section.attack_epsilons]
        curves[f"{name}, {attack}"] = (sizes, np.array([accuracy_of(classes.clean[name]), *held]))
    measure = f"{section.attack_norm}, {_unit(section)}"
    found.show(
        "Accuracy under attack",
        f"The share of queries that are still named rightly, against the size of the perturbation ({measure}).",
        "Curves of accuracy against epsilon",
        draw_robustness,
        curves,
        f"size of the perturbation, {measure}",
    )


def _unit(section: AuditSection) -> str:
    return "pixels" if section.attack_unit == "pixels" else "normalised inputs"


def _certify(scene: Scene) -> dict[str, Certified]:
    """Smoothed nearest prototype and NED on the first of the queries."""
    section = scene.section
    if not section.smoothed_queries:
        return {}
    some = scene.pixels[scene.smoothed]
    names = [name for name in scene.targets if name in scene.fitted]
    with Progress("Smoothing", len(names) * len(some), scene.subject.progress) as bar:
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
                    found.add(f"{metric}, {what}, {name}", value, interval)


def _add_checks(found: SuiteResult, classes: AttackedClasses) -> None:
    """Whether attacks that need no good gradient find more than those that follow it."""
    first, *others = classes.checks.items()
    told = ", ".join(f"{name} {100 * value:.0f} %" for name, value in classes.checks.items())
    stronger = [name for name, value in others if value < first[1] - _MASKED]
    verdict = (
        f"{' and '.join(stronger)} find{'s' if len(stronger) == 1 else ''} more, so the accuracies above are too good "
        "to be believed"
        if stronger
        else "none finds much more, so there is no sign of masked gradients"
    )
    found.notes.append(f"Are gradients masked? Accuracy of {OURS} at {classes.checked_eps:.3g}: {told}; {verdict}.")


def _add_cells(found: SuiteResult, curves: RobustnessCurves, scene: Scene) -> None:
    """SAA and VAA, and a picture of them against epsilon."""
    section = scene.section
    for eps in curves.epsilons:
        for name, radii in (("SAA", curves.standard_radii), ("VAA", curves.voronoi_radii)):
            # Two epsilons that look the same are told once.
            if f"{name} {eps:.3g}" not in found.values:
                _add_share(found, f"{name} {eps:.3g}", radii > eps, scene.truth[curves.rows], section)
    if section.voronoi_whole_cells:
        _add_share(found, "VAA, whole cells", np.isinf(curves.voronoi_radii), scene.truth[curves.rows], section)
        found.notes.append(
            "VAA, whole cells, is the global Voronoi robustness, without a ball: the nearest-neighbour classifier in "
            f"pixels has 100 % among these {curves.items:,} items."
        )
    found.notes.append(
        f"SAA is the accuracy of {OURS} against the worst point found in the ball, VAA against the worst that is also "
        f"nearer to its own item than to every other one of {curves.items:,}; the attack raises the margin and "
        "restarts once."
    )
    found.notes.extend(curves.notes)
    sizes = np.array([0.0, *curves.epsilons])
    found.show(
        "Balls and Voronoi cells",
        "SAA lets the adversary go anywhere in the ball; VAA only as far as its point is nearer to its own item than "
        f"to every other one of {curves.items:,}, so that no real item of another class counts as an attack. Until "
        "half of the smallest distance of an attacked item to any other, both are the same.",
        "Standard and Voronoi-epsilon adversarial accuracy against epsilon",
        draw_robustness,
        {
            "SAA": (sizes, np.array([curves.accuracy, *curves.standard])),
            "VAA": (sizes, np.array([curves.accuracy, *curves.voronoi])),
        },
        f"epsilon, {curves.norm}, {_unit(section)}",
        marks={"half the smallest distance": curves.smallest_distance / 2},
    )


def _add_certified(found: SuiteResult, certified: Mapping[str, Certified], scene: Scene) -> None:
    """The share of queries that are right for certain, at two radii and in a picture."""
    places, curves = scene.smoothed, {}
    for name, result in certified.items():
        truth = scene.codes(name)[places].numpy()
        for radius in (0.0, result.sigma):
            hits = (result.codes == truth) & (result.radii >= radius)
            metric = f"certified accuracy, l2 {radius:.3g}, {name}"
            _add_share(found, metric, hits, scene.truth[places], scene.section)
        radii = np.linspace(0, max(result.radii.max() * 1.05, result.sigma), 100)
        curves[name] = (radii, result.certified_accuracy(truth, radii))
    found.show(
        "Certified accuracy",
        "The share of queries that the smoothed classifier names rightly whatever happens within the radius (l2, "
        "pixels from 0 to 1).",
        "Certified accuracy against the radius",
        draw_robustness,
        curves,
        "radius, l2, pixels",
        steps=True,
    )


def _add_share(found: SuiteResult, name: str, hits: np.ndarray, truth: np.ndarray, section: AuditSection) -> None:
    """The share of hits (n,), with its interval over the classes (n,)."""
    found.add(name, float(hits.mean()), class_bootstrap(hits.astype(np.float64), truth, **resampling(section)))


def _notes(scene: Scene) -> list[str]:
    section = scene.section
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
