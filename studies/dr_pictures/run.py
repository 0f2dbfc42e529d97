"""The distance-ratio formulation made visible: p(red | x) over the plane and over the sphere, and where it peaks.

    python studies/dr_pictures/run.py               draw the pictures, write studies/dr_pictures/result.json
    python studies/dr_pictures/run.py --check       exit code 0 only if what is written there still holds

Three classes with one representative each, after Kim, Parviainen, Malde 2022 (Kim 2023, article II): figure 1 in the
plane, once more with everything twice as large; figure 7, models that use cosines, with scale 2 and margins of 2, 0.25
and 0.25; figure 8, models that use angles.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.report.probability import ProbabilityPanel, draw_globes, draw_planes, globe_points
from nearkin.spaces import Euclidean, Space, Sphere, distance_ratio_scores, sd_softmax_scores
from nearkin.spaces.extremes import where_largest
from nearkin.spaces.scores import (
    arcface_probabilities,
    cosface_probabilities,
    normface_probabilities,
    sphereface_probabilities,
)
from nearkin.storage import replacing, write_json
from studies.places import IMAGES, located

CLASSES = ("red", "green", "blue")
PLANE = torch.tensor([[0.0, 0.6], [-0.6, -0.3], [0.6, -0.3]], dtype=torch.float64)
SPHERE = torch.eye(3, dtype=torch.float64).flip(0)  # red (0, 0, 1), green (0, 1, 0), blue (1, 0, 0)
FRAME = 1.5
SCALE, FACTOR, MARGIN = 2.0, 2, 0.25
TABLE = ((1.0, 2.0), (2.0, 4.0))

_PIXELS = 400
_STARTS = 9  # an axis
_FRONT = (1.0, 1.0, math.sqrt(2) * math.tan(math.radians(73)))  # 73 degrees north: the representatives and all peaks
VIEWS = (_FRONT, tuple(-part for part in _FRONT))
FOUND = located("studies/dr_pictures/result.json")

Scores = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Model:
    """A model of p(class | x).

    Attributes:
        name: what it is called.
        space: where points lie.
        representatives: (C, d), the first that of the class in question.
        log_odds: points (n, d) to ln p(red | x) - ln(1 - p(red | x)) (n,), which does not round to 1 near a peak.
        half: points lie between -half and half in each coordinate.
    """

    name: str
    space: Space
    representatives: Tensor
    log_odds: Callable[[Tensor], Tensor]
    half: float = 1.0

    def of_red(self, points: np.ndarray) -> np.ndarray:
        """p(red | x) (...) at points (..., d)."""
        flat = torch.from_numpy(points.reshape(-1, points.shape[-1]))
        return self.log_odds(flat).sigmoid().numpy().reshape(points.shape[:-1])

    def extreme(self, sign: int) -> np.ndarray:
        """Where (m, d) p(red | x) is largest (sign 1) or smallest (sign -1), sorted by coordinates."""
        dimension = self.representatives.shape[1]
        line = torch.linspace(-self.half, self.half, _STARTS, dtype=torch.float64)
        points, _ = where_largest(
            lambda x: sign * self.log_odds(x),
            torch.cartesian_prod(*[line] * dimension),
            space=self.space,
            step=2 * self.half / (_STARTS - 1),
            bounds=(-self.half, self.half),
        )
        rounded = points.numpy().round(3) + 0.0
        return rounded[np.lexsort(rounded.T[::-1])]


def by_distance(name: str, space: Space, representatives: Tensor, scores: Scores, half: float = 1.0) -> Model:
    """A model that scores distances to the representatives."""

    def log_odds(points: Tensor) -> Tensor:
        own, *others = scores(space.distance(points, representatives)).unbind(dim=1)
        return own - torch.stack(others).logsumexp(dim=0)

    return Model(name, space, representatives, log_odds, half)


def by_cosine(name: str, probabilities: Callable[[Tensor], Tensor]) -> Model:
    """A model on the sphere that gives probabilities from cosines."""
    return Model(name, Sphere(), SPHERE, lambda x: probabilities(normalize(x) @ SPHERE.T)[:, 0].logit())


def ratio(rho: float) -> Scores:
    """Scores of the distance-ratio formulation."""
    return lambda distances: distance_ratio_scores(distances, rho)


def plane_models() -> list[Model]:
    """Figure 1, and below it the same with all points and the frame twice as large."""
    kinds = {"SD-softmax": sd_softmax_scores, "DR, rho 2": ratio(2.0), "DR, rho 8": ratio(8.0)}
    return [
        by_distance(name + words, Euclidean(), scale * PLANE, scores, scale * FRAME)
        for scale, words in ((1, ""), (2, ", doubled"))
        for name, scores in kinds.items()
    ]


def cosine_models() -> list[Model]:
    """Figure 7."""
    return [
        by_cosine("NormFace", lambda cosines: normface_probabilities(cosines, SCALE)),
        by_cosine("SphereFace, k = 0", lambda cosines: sphereface_probabilities(cosines, SCALE, FACTOR, segments=1)),
        by_cosine("CosFace", lambda cosines: cosface_probabilities(cosines, SCALE, MARGIN)),
        by_cosine("ArcFace", lambda cosines: arcface_probabilities(cosines, SCALE, MARGIN)),
    ]


def published_sphereface() -> Model:
    """SphereFace as published, with both segments; in the table only."""
    return by_cosine("SphereFace", lambda cosines: sphereface_probabilities(cosines, SCALE, FACTOR))


def angle_models() -> list[Model]:
    """Figure 8, and the distance-ratio formulation by chords."""
    return [
        by_distance("softmax, angle", Sphere("angle"), SPHERE, sd_softmax_scores),
        by_distance("DR, angle, rho 2", Sphere("angle"), SPHERE, ratio(2.0)),
        by_distance("DR, chord, rho 2", Sphere("chord"), SPHERE, ratio(2.0)),
    ]


def toy_table() -> list[dict[str, float]]:
    """Table 1: two classes at two distances, the own one first; probability and loss of both formulations."""
    rows = []
    for distances in TABLE:
        row = {"own": distances[0], "other": distances[1]}
        given = torch.tensor(distances, dtype=torch.float64)
        for name, scores in (("softmax", sd_softmax_scores(given)), ("dr", distance_ratio_scores(given, 2.0))):
            log_p = float(scores.log_softmax(dim=0)[0])
            row |= {f"{name}_p": math.exp(log_p), f"{name}_loss": -log_p}
        rows.append(row)
    return rows


def measure(model: Model) -> dict[str, Any]:
    """Where p(red | x) is largest and smallest, what it is there, and at the representatives of red and green."""
    found: dict[str, Any] = {}
    for name, sign in (("largest", 1), ("smallest", -1)):
        points = model.extreme(sign)
        at_edge = isinstance(model.space, Euclidean) and bool((np.abs(points) > 0.999 * model.half).any())
        found[name] = {"points": points.tolist(), "p": _short(model.of_red(points).mean()), "beyond": at_edge}
    own, other = model.of_red(model.representatives.numpy())[:2]
    return found | {"own": _short(own), "other": _short(other)}


def _short(p: float) -> float:
    """Four digits: what is told is told alike on every machine."""
    return float(f"{p:.4g}")


def panel(model: Model, found: dict[str, Any]) -> ProbabilityPanel:
    """What the picture of a model shows."""
    if isinstance(model.space, Sphere):
        points = np.stack([globe_points(view, _PIXELS) for view in VIEWS])
    else:
        line = ((np.arange(_PIXELS) + 0.5) / _PIXELS * 2 - 1) * model.half
        points = np.stack(np.meshgrid(line, line), axis=-1)
    return ProbabilityPanel(
        model.name,
        model.of_red(points),
        model.representatives.numpy(),
        np.array(found["largest"]["points"]),
        np.array(found["smallest"]["points"]),
        model.half,
        f"at red {found['own']:.2f}, most {found['largest']['p']:.2f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the file still holds; write nothing")
    arguments = parser.parse_args()
    groups = {"plane": plane_models(), "sphere-cosine": cosine_models(), "sphere-angle": angle_models()}
    models = [model for group in groups.values() for model in group]
    found = {model.name: measure(model) for model in [*models, published_sphereface()]}
    result = {"table": toy_table(), "models": found}
    if arguments.check:
        return 0 if json.loads(FOUND.read_text(encoding="utf-8")) == result else 1
    for name, group in groups.items():
        panels = [panel(model, found[model.name]) for model in group]
        flat = name == "plane"
        picture = draw_planes(panels, CLASSES) if flat else draw_globes(panels, CLASSES, VIEWS, ("front", "back"))
        with replacing(IMAGES / f"dr-{name}.png") as part:
            part.write_bytes(picture)
    write_json(FOUND, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
