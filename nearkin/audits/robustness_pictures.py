"""The pictures of robustness: attack strips, accuracy against epsilon, SAA and VAA, certified accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image

from nearkin.attacks.smoothing import Certified
from nearkin.attacks.voronoi import RobustnessCurves
from nearkin.audits.attacked_classes import AttackedClasses, accuracy_of
from nearkin.audits.attacking import Scene
from nearkin.audits.calibration import OURS
from nearkin.audits.subject import Subject
from nearkin.recipe import AuditSection
from nearkin.report import Figure
from nearkin.report.attack_strips import AttackStrip, draw_attacks
from nearkin.report.robustness import draw_robustness
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
    assert subject.picture is not None
    image = subject.picture(row).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    square.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.LANCZOS)
    return square, str(subject.labels[row]), bool(subject.labels[row] == label)


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
