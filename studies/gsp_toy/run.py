"""Generalized sum pooling made visible: a map of 10 x 10 colours, two prototypes, and a budget that is too small.

    python studies/gsp_toy/run.py               print the table, draw the picture
    python studies/gsp_toy/run.py --check       exit code 0 only if the bars hold; nothing is drawn

A 5 x 5 reddish and a 5 x 5 bluish region lie in a green map (Gürbüz 2022, figure 5.2), so half of the positions matter.
The prototypes are pure red and pure blue; each channel of a position is up to 0.3 off its pure colour, at random. With
a budget of 0.2 the linear program has to leave three fifths of the coloured positions out. The smoothed problem, which
is what the pooling "gsp" solves, keeps them all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from nearkin.models.pooling.gsp import soft_minimum, spend
from nearkin.report.canvas import INK, WIDTH, drawing, to_png
from nearkin.spaces import LipschitzBall
from nearkin.storage import replacing
from studies.places import IMAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

SIDE, HALF = 10, 5
BUDGET = 0.2
SHARPNESSES = (1.0, 5.0, 20.0, 100.0)
SHOWN = 5.0  # the default of the pooling
OFF_COLOUR = 0.3
PROTOTYPES = np.eye(3)[[0, 2]]
LINEAR = "linear program"

PICTURE = IMAGES / "gsp-toy.png"
_COLOURED, _LEAST, _RATIO = 0.95, 0.5, 5.0  # bars at SHOWN


def make_map(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A map (10, 10, 3) of RGB values, and which positions (10, 10) are reddish or bluish."""
    pure = np.zeros((SIDE, SIDE, 3))
    pure[..., 1] = 1.0
    pure[:HALF, :HALF], pure[HALF:, HALF:] = PROTOTYPES
    coloured = pure[..., 1] == 0
    return np.abs(pure - np.random.default_rng(seed).uniform(0, OFF_COLOUR, pure.shape)), coloured


def costs_of(features: np.ndarray) -> torch.Tensor:
    """Distances (n, 2) of the positions of a map (h, w, 3) to the prototypes, both inside the unit ball."""
    ball = LipschitzBall()
    points = torch.from_numpy(features).reshape(-1, features.shape[-1])
    return torch.cdist(ball.project(points), ball.project(torch.from_numpy(PROTOTYPES)))


def linear_weights(costs: torch.Tensor, budget: float) -> np.ndarray:
    """Pooling weights (n,) by the linear program P1 for costs (n, m), solved by scipy.

    The unknowns are the mass moved from each position to each prototype, (n, m), and the mass each leaves behind, (n,).
    """
    n, m = costs.shape
    each = hstack([kron(eye_array(n), np.ones((1, m))), eye_array(n)])
    moved = csr_array(np.concatenate([np.ones(n * m), np.zeros(n)])[None])
    objective = np.concatenate([costs.numpy().ravel(), np.zeros(n)])
    solved = linprog(objective, A_eq=vstack([each, moved]), b_eq=np.append(np.full(n, 1 / n), budget), method="highs")
    return (1 / n - solved.x[n * m :]) / budget


def smooth_weights(costs: torch.Tensor, budget: float, sharpness: float) -> np.ndarray:
    """Pooling weights (n,) of the smoothed problem P2 for costs (n, m)."""
    return spend(soft_minimum(costs[None], sharpness), budget)[0].numpy()


def solve(features: np.ndarray, budget: float = BUDGET) -> dict[str, np.ndarray]:
    """Weights (h, w) by the linear program and by the smoothed problem at each sharpness."""
    costs = costs_of(features)
    found = {LINEAR: linear_weights(costs, budget)}
    found |= {f"sharpness {sharpness:g}": smooth_weights(costs, budget, sharpness) for sharpness in SHARPNESSES}
    return {name: weights.reshape(features.shape[:2]) for name, weights in found.items()}


def measure(weights: np.ndarray, coloured: np.ndarray) -> dict[str, float]:
    """What weights (h, w) do with the coloured positions (h, w).

    Returns:
        "coloured": their share of the weight; "kept": how many have at least a tenth of an equal share;
        "least": the smallest of their weights, relative to an equal share; "ratio": that weight over the largest one
        of a green position, infinite if green positions have none.
    """
    equal = 1 / coloured.sum()
    least, green = float(weights[coloured].min()), float(weights[~coloured].max())
    return {
        "coloured": float(weights[coloured].sum()),
        "kept": int((weights[coloured] >= 0.1 * equal).sum()),
        "least": least / equal,
        "ratio": least / green if green > 0 else float("inf" if least > 0 else "nan"),
    }


def draw(features: np.ndarray, coloured: np.ndarray, found: Mapping[str, np.ndarray]) -> bytes:
    """The map, and the weights of each solution in one scale: the darker, the higher."""
    with drawing(WIDTH, 500) as figure:
        grid = figure.subplots(2, 3)
        for axes in grid.flat:
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            axes.spines[:].set_visible(True)
        grid.flat[0].imshow(features)
        _write_title(grid.flat[0], "map", f"{coloured.sum()} of {coloured.size} positions matter")
        for axes, (name, weights) in zip(grid.flat[1:], found.items(), strict=True):
            shades = axes.imshow(weights * weights.size, cmap="Greys", vmin=0, vmax=1 / BUDGET)
            for corner in (0, HALF):
                axes.add_patch(_outline(corner))
            told = measure(weights, coloured)
            _write_title(
                axes, name, f"{told['kept']} of {coloured.sum()} kept, green has {100 - 100 * told['coloured']:.1f} %"
            )
        bar = figure.colorbar(shades, ax=grid, shrink=0.6, aspect=30, pad=0.02)
        bar.set_label("weight, as a multiple of average pooling's")
        bar.outline.set_visible(False)
        return to_png(figure)


def _outline(corner: int) -> Rectangle:
    """The edge of a coloured region, as its colour is gone in a picture of weights."""
    from matplotlib.patches import Rectangle

    colour = tuple(0.85 * PROTOTYPES[corner // HALF])
    look = {"fill": False, "edgecolor": colour, "linewidth": 1.6, "clip_on": False, "zorder": 5}
    return Rectangle((corner - 0.5, corner - 0.5), HALF, HALF, **look)


def _write_title(axes: Axes, title: str, words: str) -> None:
    axes.set_title(title, pad=18)
    axes.annotate(
        words, (0, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", fontsize=9, color=INK
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the bars hold; draw nothing")
    arguments = parser.parse_args()
    features, coloured = make_map()
    found = solve(features, BUDGET)
    told = {name: measure(weights, coloured) for name, weights in found.items()}
    print(f"| budget {BUDGET} | coloured positions kept | weight on them | smallest of them | against largest green |")
    print("|---" * 5 + "|")
    for name, values in told.items():
        ratio = f"{values['ratio']:.3g} x" if np.isfinite(values["ratio"]) else "–"
        shares = f"{values['coloured']:.1%} | {values['least']:.3f} of an equal share"
        print(f"| {name} | {values['kept']} of {coloured.sum()} | {shares} | {ratio} |")
    linear, smooth = told[LINEAR], told[f"sharpness {SHOWN:g}"]
    print(
        f"\nWith a budget of {BUDGET} where {coloured.mean():g} would be right, the linear program drops "
        f"{coloured.sum() - linear['kept']} of {coloured.sum()} coloured positions; the smoothed solution (sharpness "
        f"{SHOWN:g}) keeps all, each with {smooth['least']:.2f} of an equal share or more and {smooth['ratio']:.1f} "
        f"times the weight of any green one, and leaves the green {1 - smooth['coloured']:.1%} in all"
    )
    if arguments.check:
        dropped = coloured.sum() - linear["kept"] > coloured.sum() / 2
        kept = smooth["coloured"] >= _COLOURED and smooth["least"] >= _LEAST and smooth["ratio"] >= _RATIO
        return 0 if dropped and kept else 1
    with replacing(PICTURE) as part:
        part.write_bytes(draw(features, coloured, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
