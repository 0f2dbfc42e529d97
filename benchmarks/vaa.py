"""What looking only at near neighbours saves in Voronoi-epsilon attacks: 2,000 points of 784 numbers, PGD of 40 steps.

    python benchmarks/vaa.py            the table (several minutes); writes benchmarks/vaa.json
    python benchmarks/vaa.py --check    exit code 0 only if all bars hold
    python benchmarks/vaa.py --quick    under a minute: fewer points attacked and fewer steps, nothing is written
    python benchmarks/vaa.py --json F   writes the result to F instead

The points are Fashion-MNIST images, or where that is not to be had blobs. Epsilon is 0.55 times the median distance to
the nearest other point, and once more 1.0 times. The bar is about one thing: the textbook projection, Dykstra's sweeps
through half-spaces, ball and box at every step, with the half-spaces of all other points against those of points within
twice epsilon. Beside it stands what the package does, which looks first which half-spaces are crossed at all, with
neighbours within twice epsilon and, as a second peer without a bar, with all points. Who is slow attacks fewer points,
and times are by point. With and without pruning the same must be found: the same points wrong, with the same margins;
and points that are pushed out of their cells, towards their neighbours, must be projected to the same places.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch
from bars import kept, tell, write
from torch import Tensor, nn

from nearkin.attacks.cells import CellRegion, VoronoiCells, merge_duplicates, portions
from nearkin.attacks.norms import L2
from nearkin.attacks.pgd import AscentResult, Misclassify, ascend, usual_step
from nearkin.attacks.region import PIXELS
from nearkin.data.sources import open_data
from nearkin.errors import NearkinError

SEED, POINTS, SIDE = 0, 2000, 28
SHARES = (0.55, 1.0)
STEPS = {"full": 40, "quick": 10}
SWEEPS, TOLERANCE, BISECTIONS = 100, 1e-6, 45
PROJECTED, NEAREST = 8, 4
"""Points of the most neighbours whose projections are compared, and how many neighbours they are pushed towards."""
AGREEMENT = 1e-3
"""By how much margins may differ: projections on the way stop within a tolerance."""
OURS, CROSSED_ALL = "crossed half-spaces, pruned (ours)", "crossed half-spaces, all points"
PRUNED, ALL = "textbook, pruned", "textbook, all half-spaces"
BAR, OWN = "pruning", "pruning, of the package's own projection"
BARS: dict[str, tuple[str, str, float]] = {
    BAR: ("all half-spaces / those within twice epsilon, 0.55 x median", ">=", 10.0),
}
RESULT = kept("vaa.json")


def images() -> tuple[Tensor, np.ndarray, str]:
    """Points (n, 784) in [0, 1], their classes, and where they come from."""
    rng = np.random.default_rng(SEED)
    try:
        dataset = open_data("fashion-mnist", progress=False)
    except NearkinError:
        centres = rng.random((10, SIDE * SIDE))
        codes = rng.integers(10, size=POINTS)
        blobs = (centres[codes] + 0.2 * rng.normal(size=(POINTS, SIDE * SIDE))).clip(0, 1)
        return torch.from_numpy(blobs.astype(np.float32)), codes, "blobs"
    rows = rng.choice(len(dataset), POINTS, replace=False)
    pixels = [np.asarray(dataset.image(int(row)).convert("L"), np.float32).ravel() / 255 for row in rows]
    return torch.from_numpy(np.stack(pixels)), dataset.labels[rows], "Fashion-MNIST"


def network(points: Tensor, codes: Tensor) -> nn.Module:
    """A small classifier of the points, trained on them."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(200):
        loss = nn.functional.cross_entropy(model(points), codes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.requires_grad_(False)


def dykstra(targets: Tensor, centres: Tensor, others: Tensor, present: Tensor, radius: float) -> Tensor:
    """The textbook projection of targets (b, D): one half-space after the other, then ball and box."""
    normals = others - centres.unsqueeze(1)
    lengths = torch.linalg.vector_norm(normals, dim=2).clamp_min(1e-300)
    normals = (normals / lengths.unsqueeze(2)).transpose(0, 1).contiguous()
    limits = torch.where(present, lengths / 2, torch.inf).T.contiguous()
    v, correction, multipliers = targets - centres, torch.zeros_like(targets), torch.zeros_like(limits)
    for _ in range(SWEEPS):
        before = v
        for j, normal in enumerate(normals):
            change = torch.maximum((v * normal).sum(dim=1) - limits[j], -multipliers[j])
            multipliers[j] += change
            v = v - change.unsqueeze(1) * normal
        y = v + correction
        v = ball_and_box(y, PIXELS[0] - centres, PIXELS[1] - centres, radius)
        correction = y - v
        if float((v - before).abs().max()) <= TOLERANCE * radius:
            break
    return centres + v


def ball_and_box(y: Tensor, low: Tensor, high: Tensor, radius: float) -> Tensor:
    """The nearest points (b, D) of ball and box, both around zero: clamp(y / (1 + m)) with the least m that fits."""
    found = torch.minimum(torch.maximum(y, low), high)
    out = torch.nonzero(torch.linalg.vector_norm(found, dim=1) > radius).squeeze(1)
    least = torch.zeros(len(out), 1, dtype=y.dtype)
    most = torch.linalg.vector_norm(y[out], dim=1, keepdim=True) / radius
    for _ in range(BISECTIONS if len(out) else 0):
        middle = (least + most) / 2
        tried = torch.minimum(torch.maximum(y[out] / (1 + middle), low[out]), high[out])
        far = torch.linalg.vector_norm(tried, dim=1, keepdim=True) > radius
        least, most = torch.where(far, middle, least), torch.where(far, most, middle)
        found[out] = tried
    return found


class Textbook(CellRegion):
    """A region whose every projection is Dykstra's, through the half-spaces of all neighbours it has."""

    @torch.no_grad()
    def project(self, points: Tensor) -> Tensor:
        wide, near, centres = points.double(), self.neighbours, self.centres
        found = centres + ball_and_box(wide - centres, PIXELS[0] - centres, PIXELS[1] - centres, self.radius)
        for some in portions(near, wide.shape[1]):
            places, present = near.select(some).table()
            others = self.cells.points[places]
            found[some] = dykstra(wide[some], centres[some], others, present, self.radius)
        return self._settled(found, centres)

    def select(self, rows: Tensor) -> Textbook:
        return Textbook(self.cells, self.rows[rows], self.radius, self.bounds, self.dtype, self.neighbours.select(rows))


class Unhurried:
    """A goal that is never reached, so that every contender does all its steps."""

    def __init__(self, goal: Misclassify) -> None:
        self.goal = goal

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, reached = self.goal(points, rows)
        return values, torch.zeros_like(reached)


def attacked(region: Callable[[], CellRegion], model: nn.Module, codes: Tensor, rows: Tensor, steps: int
) -> tuple[AscentResult, float]:  # fmt: skip
    """What an attack finds, and the seconds it took, with the search for neighbours."""
    began = time.perf_counter()
    where = region()
    goal = Unhurried(Misclassify(model, codes[rows], (SIDE * SIDE,), "margin"))
    start = where.centres.to(where.dtype)
    found = ascend(goal, start, where, steps=steps, step=usual_step(where.radius, steps))
    return found, time.perf_counter() - began


CONTENDERS: dict[str, tuple[type[CellRegion], bool, dict[str, int]]] = {
    OURS: (CellRegion, True, {"full": POINTS, "quick": 400}),
    CROSSED_ALL: (CellRegion, False, {"full": POINTS, "quick": 400}),
    PRUNED: (Textbook, True, {"full": 400, "quick": 100}),
    ALL: (Textbook, False, {"full": 16, "quick": 4}),
}
"""Name to the region, whether it is pruned, and how many points are attacked."""


def _region(kind: type[CellRegion], cells: VoronoiCells, rows: Tensor, eps: float, pruned: bool) -> CellRegion:
    return kind(cells, rows, eps, PIXELS, neighbours=cells.neighbours(rows, eps if pruned else torch.inf))


def measure(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    points, labels, source = images()
    items = merge_duplicates(points, labels)
    codes = torch.from_numpy(np.unique(items.labels, return_inverse=True)[1])
    model, cells = network(items.points, codes), VoronoiCells(items.points, L2())
    distances = torch.cdist(cells.points, cells.points).fill_diagonal_(torch.inf)
    median = float(distances.amin(dim=1).median())
    order = torch.from_numpy(np.random.default_rng(SEED + 1).permutation(len(cells)))
    steps = STEPS[mode]
    print(f"{len(cells)} points of {source}, median distance to the nearest {median:.3g}, {steps} steps")
    for share in SHARES:
        eps = share * median
        times, found = {}, {}
        attacked(partial(_region, CellRegion, cells, order[:8], eps, True), model, codes, order[:8], 2)  # to warm up
        for name, (kind, pruned, counts) in CONTENDERS.items():
            some = order[: counts[mode]]

            region = partial(_region, kind, cells, some, eps, pruned)
            found[name], seconds = attacked(region, model, codes, some, steps)
            times[name] = seconds / len(some)
            if not bool(cells.inside(found[name].points, some).all()):
                raise SystemExit(f"Points of '{name}' left their cells.")
        near = cells.neighbours(order, eps).counts.double()
        row: dict[str, Any] = {
            "epsilon": f"{share:g} x median",
            "neighbours within twice epsilon": f"{float(near.mean()):.1f} on average, {int(near.max())} at the most",
            **{f"{name}, ms a point": round(1000 * value, 3) for name, value in times.items()},
            "textbook: all / pruned": times[ALL] / times[PRUNED],
            "crossed only: all / pruned": times[CROSSED_ALL] / times[OURS],
            "all by the textbook / ours": times[ALL] / times[OURS],
            "textbook: largest difference of margins": _same(found, PRUNED, ALL),
            "crossed only: largest difference of margins": _same(found, OURS, CROSSED_ALL),
            **{f"{name}: largest difference of projections": gap for name, gap in _projections(cells, eps).items()},
        }
        table.append(row)
        for what, value in row.items():
            print(f"  {what:50} {value if isinstance(value, str) else f'{value:.4g}'}")
    figures[BAR] = table[0]["textbook: all / pruned"]
    figures[OWN] = table[0]["crossed only: all / pruned"]


def _same(found: dict[str, AscentResult], first: str, second: str) -> float:
    """The largest difference of the margins that two contenders found for the same points; refuse other answers."""
    count = min(len(found[name].values) for name in (first, second))
    ours, theirs = (found[name].values[:count] for name in (first, second))
    gap = float((ours - theirs).abs().max())
    if bool(((ours > 0) != (theirs > 0)).any()) or gap > AGREEMENT:
        raise SystemExit(f"'{first}' and '{second}' do not find the same: margins differ by {gap:.2g}.")
    return gap


def _projections(cells: VoronoiCells, eps: float) -> dict[str, float]:
    """What pruning changes in projections of points that left their cells: on the way to their neighbours, and on."""
    rows = cells.neighbours(torch.arange(len(cells)), eps).counts.argsort(descending=True)[:PROJECTED]
    gaps = cells.norm.distances(cells.points[rows], cells.points)
    gaps[torch.arange(len(rows)), rows] = torch.inf
    others = cells.points[gaps.topk(NEAREST, largest=False).indices].mean(dim=1)
    targets = cells.points[rows] + 1.5 * (others - cells.points[rows])
    found = {}
    for name, kind in (("textbook", Textbook), ("crossed only", CellRegion)):
        pruned, whole = (_region(kind, cells, rows, eps, prune).project(targets) for prune in (True, False))
        moved = (pruned.double() - targets).abs().max()
        found[name] = float((pruned - whole).abs().max())
        if not float(moved) > 0 or found[name] > AGREEMENT:
            raise SystemExit(f"Pruning changes projections ({name}) by {found[name]:.2g}.")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit code 0 only if all bars hold")
    parser.add_argument("--quick", action="store_true", help="under a minute, nothing is written")
    parser.add_argument("--json", type=Path, help="where to write the result")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    measure("quick" if arguments.quick else "full", figures, table)
    if not arguments.quick or arguments.json:
        write(arguments.json or RESULT, BARS, figures, table)
    holds = tell(BARS, figures)
    print(
        f"Headline: with the same answers, pruning is {figures[BAR]:.3g} times faster for the textbook's projection at "
        f"0.55 x the median distance, and {figures[OWN]:.3g} times for ours, which sweeps only what is crossed."
    )
    return 0 if holds or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
