"""Two small examples of Kim 2023 that need no data: figure 2 of article IV, and appendix A's ball and hull.

    python studies/distance_examples/run.py           compute, write studies/distance_examples/result.json
    python studies/distance_examples/run.py --check   exit code 0 only if what is written there still holds

On the unit circle with the proxies (0, 1) and (1, 0): where p(class 1 | x) of NormFace with scale 2 and of distance
ratios with several exponents is largest. In appendix A: the convex hull of an l1 ball of radius eps1 and an linf ball
of radius eps_inf against the ball of the combined distance. The gauge of a set is the factor by which it has to grow to
reach a point; that of the hull is the least `|u|_1 / eps1 + |x - u|_inf / eps_inf`, which has its minimum where `x - u`
is x clipped at 0 or at one of its own entries. One set lies in the other where its gauge is nowhere smaller.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
import torch

from nearkin.spaces import distance_ratio_scores
from nearkin.spaces.scores import normface_probabilities
from nearkin.storage import write_json
from studies.places import located

RESULT = located("studies/distance_examples/result.json")
PROXIES = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
POINTS_ON_CIRCLE = 7200
SCALE, EXPONENTS = 2.0, (0.5, 2.0, 10.0)
DIMENSIONS, RADII = (2, 3, 10, 784), (0.25, 0.5, 0.75)
"""Radii of the l1 ball between eps_inf (0) and d times eps_inf (1)."""
SAMPLES, SEED = 5000, 0


def circle() -> dict[str, Any]:
    """Where on the circle the first class is likeliest, in degrees, and what its probability is there."""
    angles = torch.arange(POINTS_ON_CIRCLE, dtype=torch.float64) * (360 / POINTS_ON_CIRCLE)
    points = torch.stack([torch.cos(torch.deg2rad(angles)), torch.sin(torch.deg2rad(angles))], dim=1)
    cosines, distances = points @ PROXIES.T, torch.cdist(points, PROXIES)
    scores = {"NormFace, s = 2": normface_probabilities(cosines, SCALE).log()}
    scores |= {f"DR, s = {exponent:g}": distance_ratio_scores(distances, exponent) for exponent in EXPONENTS}
    found = {}
    for name, each in scores.items():
        odds = each[:, 0] - each[:, 1]  # does not round to 1 near the peak, as the probability does
        best = int(odds.argmax())
        found[name] = {"degrees": round(float(angles[best]), 4), "p": float(f"{float(odds[best].sigmoid()):.4g}")}
    return found


def hull_gauge(points: np.ndarray, eps1: float, eps_inf: float) -> np.ndarray:
    """Gauge (n,) of the convex hull of both balls at points (n, d)."""
    sizes = -np.sort(-np.abs(points), axis=1)
    above = np.cumsum(sizes, axis=1) - sizes * np.arange(1, sizes.shape[1] + 1)  # what clipping at each entry leaves
    return np.minimum(sizes.sum(axis=1) / eps1, (above / eps1 + sizes / eps_inf).min(axis=1))


def combined_gauge(points: np.ndarray, eps1: float, eps_inf: float) -> np.ndarray:
    """Gauge (n,) of the ball of the combined distance at points (n, d)."""
    sizes = np.abs(points)
    beta = (eps1 - eps_inf) / (eps_inf * (points.shape[1] - 1))
    return (beta * sizes.sum(axis=1) + (1 - beta) * sizes.max(axis=1)) / eps1


def balls() -> list[dict[str, Any]]:
    """Gauge of the hull over that of the combined ball: smallest and largest over points, and at the proof's point."""
    rng = np.random.default_rng(SEED)
    rows = []
    for d in DIMENSIONS:
        for share in RADII:
            eps_inf, eps1 = 1.0, 1.0 + share * (d - 1)
            points = rng.normal(size=(SAMPLES, d)) * rng.random((SAMPLES, d)) ** 3
            ratio = hull_gauge(points, eps1, eps_inf) / combined_gauge(points, eps1, eps_inf)
            row = {"d": d, "eps1": eps1, "smallest": float(ratio.min()), "largest": float(ratio.max())}
            special = np.zeros((1, d))
            special[0, :2] = (d - 1) * eps1 * eps_inf / (eps1 + (d - 2) * eps_inf)
            row["hull at x*"] = float(hull_gauge(special, eps1, eps_inf)[0])
            row["ball at x*"] = float(combined_gauge(special, eps1, eps_inf)[0])
            rows.append({name: value if name == "d" else round(value, 6) for name, value in row.items()})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the file still holds; write nothing")
    arguments = parser.parse_args()
    result = {"circle": circle(), "balls": balls()}
    if arguments.check:
        return 0 if json.loads(RESULT.read_text(encoding="utf-8")) == result else 1
    write_json(RESULT, result)
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
