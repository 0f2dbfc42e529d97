"""Article III of Kim 2023: where adversaries may go in its toy example, and 1-NN on the toy and on real images."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks.classifier import NearestPoint
from nearkin.attacks.norms import L2
from nearkin.attacks.voronoi import adversarial_accuracy
from nearkin.data.sources import open_data
from studies.places import IMAGES

CLASS_A = ((-1, -1), (-2, 1), (2, -2), (1, 1), (2, -1))
CLASS_B = ((0, 0), (2, 1), (1, -1))
TOY_EPSILONS = (0.25, 0.49, 0.51, 0.75, 1.0, 2.0, 3.5)
SHARES = (0.25, 0.45, 0.55, 0.75, 1.0, 2.0)
"""Epsilons of real images, as shares of the median distance to the nearest other one."""
ITEMS, STEPS, SEED = 300, 20, 0
PANELS = ((0.5, False), (1.0, False), (0.5, True), (1.0, True), (3.5, True))
"""Epsilon, and whether cells bound the adversary: figures 1b, 1c and 2a to 2c."""
COLOURS = {"A": (0.90, 0.45, 0.75), "B": (0.35, 0.75, 0.90), "both": (0.55, 0.35, 0.75)}
IMAGE = IMAGES / "voronoi-toy.png"
TOYS = ("1-NN, toy", "1-NN, Fashion-MNIST")


def toy() -> tuple[Tensor, np.ndarray]:
    """The points (8, 2) and their classes."""
    points = torch.tensor([*CLASS_A, *CLASS_B], dtype=torch.float64)
    return points, np.array(["A"] * len(CLASS_A) + ["B"] * len(CLASS_B))


def run_toy(
    data_root: Path | None,
    lines: Sequence[Mapping[str, Any]],
    keep: Callable[[dict[str, Any]], None],
    only: Sequence[str] = (),
) -> None:
    """Measure 1-NN on the toy and on images in both norms where that is missing, and draw the regions.

    Args:
        data_root: where the data is.
        lines: what is finished.
        keep: called with each new line.
        only: of `TOYS`; none for all, and the picture.
    """
    done = {(line["cell"], line["norm"]) for line in lines if line["part"] == "toy"}
    missing = [(cell, norm) for cell in only or TOYS for norm in ("l2", "linf") if (cell, norm) not in done]
    for cell, norm in missing:
        began = time.perf_counter()
        found = _on_toy(norm) if cell == TOYS[0] else _on_images(norm, data_root)
        seconds = round(time.perf_counter() - began, 1)
        keep({"part": "toy", "cell": cell, "seed": SEED, **found, "seconds": seconds})
        print(cell, norm, found["SAA"], found["VAA"], flush=True)
    if not only:
        draw(IMAGE)


def _on_toy(norm: str) -> dict[str, Any]:
    points, labels = toy()
    model = NearestPoint(points, labels, norm)
    return adversarial_accuracy(model, points, labels, TOY_EPSILONS, norm=norm, bounds=None, whole_cells=True).to_dict()


def _on_images(norm: str, data_root: Path | None) -> dict[str, Any]:
    dataset = open_data("fashion-mnist", data_root=data_root, progress=False)
    rows = np.random.default_rng(SEED).choice(len(dataset), ITEMS, replace=False)
    pixels = torch.stack(
        [torch.from_numpy(np.asarray(dataset.image(int(row)).convert("L"), np.float32).ravel() / 255) for row in rows]
    )
    model = NearestPoint(pixels, dataset.labels[rows], norm)
    gaps = model.norm.distances(model.points, model.points).fill_diagonal_(torch.inf)
    median = float(gaps.amin(dim=1).median())
    epsilons = [share * median for share in SHARES]
    found = adversarial_accuracy(
        model, pixels, dataset.labels[rows], epsilons, norm=norm, steps=STEPS, whole_cells=True
    )
    return {**found.to_dict(), "median distance": median}


def draw(path: Path) -> None:
    """The article's figures 1 and 2 as one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points, labels = toy()
    side = torch.linspace(-3.4, 3.4, 681, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1).reshape(-1, 2)
    distances = L2().distances(grid, points)
    nearest = distances.argmin(dim=1)
    figure, axes = pyplot.subplots(1, 1 + len(PANELS), figsize=(15, 3.1), constrained_layout=True)
    for place, axis in enumerate(axes):
        if place:
            eps, cells = PANELS[place - 1]
            picture = _regions(distances, nearest, labels, eps, cells).reshape(len(side), len(side), 3)
            axis.imshow(picture, origin="lower", extent=(-3.4, 3.4, -3.4, 3.4))
            axis.set_title(f"{'VAA' if cells else 'SAA'}, ε = {eps:g}", fontsize=10)
        else:
            axis.set_title("the data", fontsize=10)
        own = torch.from_numpy((labels[nearest.numpy()] == "A").astype(float)).reshape(len(side), len(side))
        axis.contour(side, side, own, levels=[0.5], colors="black", linestyles="dashed", linewidths=1)
        for name, colour in (("A", "#c8232c"), ("B", "#0b4f9e")):
            some = points[torch.from_numpy(labels == name)]
            axis.scatter(some[:, 0], some[:, 1], color=colour, s=22, zorder=3, edgecolor="white", linewidth=0.6)
        axis.set_xlim(-3.4, 3.4)
        axis.set_ylim(-3.4, 3.4)
        axis.set_aspect("equal")
        axis.set_xticks([-2, 0, 2])
        axis.set_yticks([-2, 0, 2])
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"Picture: {path.name}")


def _regions(distances: Tensor, nearest: Tensor, labels: np.ndarray, eps: float, in_cells: bool) -> np.ndarray:
    """Colours (g, 3) of grid points by whose region they are in."""
    inside = distances <= eps
    if in_cells:
        own = torch.zeros_like(inside).scatter(1, nearest.unsqueeze(1), True)
        inside = inside & own
    of = {name: inside[:, torch.from_numpy(labels == name)].any(dim=1).numpy() for name in ("A", "B")}
    colours = np.ones((len(distances), 3))
    colours[of["A"]], colours[of["B"]] = COLOURS["A"], COLOURS["B"]
    colours[of["A"] & of["B"]] = COLOURS["both"]
    return colours
