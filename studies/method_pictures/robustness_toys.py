"""Pictures of attacks: the balls they stay in, what training against them does, and what smoothing makes certain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import norm as normal
from torch import Tensor, nn

from nearkin.attacks import Combined
from nearkin.attacks.classifier import share_bound
from nearkin.attacks.norms import as_norm
from nearkin.report.canvas import FAINT, HUES, INK, WIDTH, drawing, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALL, _PIXELS, _EPS = 9.5, 90, 0.11


def robustness() -> bytes:
    """The unit balls of the norms in the plane, and the combined one that holds two of them."""
    line = torch.linspace(-1.6, 1.6, 161)
    places = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).reshape(-1, 2)
    balls = {
        "L2, radius 1": [(as_norm("l2"), 1.0)],
        "L-inf, radius 1": [(as_norm("linf"), 1.0)],
        "combined: eps1 1.4, epsinf 1": [(Combined.of_balls(1.4, 1.0, 2), 1.4), (as_norm("linf"), 1.0)],
    }
    with drawing(WIDTH, 272) as figure:
        for axes, (title, shown) in zip(figure.subplots(1, 3), balls.items(), strict=True):
            for number, (norm, radius) in enumerate(shown):
                lengths = norm.length(places).reshape(161, 161).numpy()
                if number == 0:
                    axes.contourf(line, line, lengths, levels=[0, radius], colors=["#cfe3f1"])
                axes.contour(line, line, lengths, levels=[radius], colors=[HUES[number]], linewidths=1.4)
            if len(shown) > 1:
                diamond = np.array([[1.4, 0], [0, 1.4], [-1.4, 0], [0, -1.4], [1.4, 0]])
                axes.plot(*diamond.T, color=HUES[2], linewidth=1.2, linestyle="--")
            axes.set(xticks=[], yticks=[], aspect="equal")
            axes.set_title(title, fontsize=_SMALL)
        return to_png(figure)


def adversarial_training() -> bytes:
    """Regions of a small network on two classes in the plane, trained plainly and on the worst points of balls."""
    draw = torch.Generator().manual_seed(1)
    points = 0.1 + 0.8 * torch.rand(60, 2, generator=draw)
    border = 0.5 + 0.22 * torch.sin(6 * points[:, 0])
    labels = (points[:, 1] > border).long()
    apart = (points[:, 1] - border).abs() > 0.06
    points, labels = points[apart], labels[apart]
    with drawing(WIDTH, 300) as figure:
        for axes, title, eps in zip(figure.subplots(1, 2), ("plain", "adversarial"), (None, _EPS), strict=True):
            network = _trained(points, labels, eps)
            worst = _worst(network, points, labels)
            kept = float((network(worst).argmax(1) == labels).float().mean())
            _draw_regions(axes, network, points, labels, worst)
            clean = float((network(points).argmax(1) == labels).float().mean())
            axes.set_title(f"{title}: {clean:.0%} right, {kept:.0%} attacked", fontsize=_SMALL)
        return to_png(figure)


def _trained(points: Tensor, labels: Tensor, eps: float | None) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(200):
        seen = points if eps is None else _worst(network, points, labels, steps=5)
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(seen), labels).backward()
        optimiser.step()
    return network


def _worst(network: nn.Module, points: Tensor, labels: Tensor, steps: int = 20) -> Tensor:
    """The worst points that PGD finds in the L-inf balls around the points."""
    found = points.clone()
    for _ in range(steps):
        found.requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(network(found), labels), [found])
        stepped = found.detach() + 2.5 * _EPS / steps * gradient.sign()
        found = (points + (stepped - points).clamp(-_EPS, _EPS)).clamp(0, 1)
    return found


def _draw_regions(axes: Axes, network: nn.Module, points: Tensor, labels: Tensor, worst: Tensor) -> None:
    from matplotlib.patches import Rectangle

    line = torch.linspace(0, 1, _PIXELS)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).reshape(-1, 2)
    with torch.no_grad():
        taken = network(grid).argmax(1).reshape(_PIXELS, _PIXELS).numpy()
    axes.contourf(line, line, taken, levels=[-0.5, 0.5, 1.5], colors=["#d6e6f2", "#f6ddcd"])
    for point, bad, label in zip(points.numpy(), worst.numpy(), labels.tolist(), strict=True):
        axes.add_patch(Rectangle(point - _EPS, 2 * _EPS, 2 * _EPS, fill=False, edgecolor=FAINT, linewidth=0.5))
        axes.plot(*np.stack([point, bad]).T, color=HUES[label], linewidth=0.8)
        axes.scatter(*point, s=16, color=HUES[label], edgecolors=INK, linewidths=0.4, zorder=3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
    axes.grid(False)


def smoothing() -> bytes:
    """The radius that is certain, against the share of noisy copies that have the class."""
    with drawing(WIDTH, 250) as figure:
        axes = figure.subplots()
        for number, samples in enumerate((100, 1000, 10_000)):
            counts = np.unique(np.linspace(samples // 2, samples, 60).astype(int))
            bounds = np.array([share_bound(int(count), samples, 0.001) for count in counts])
            radii = np.where(bounds > 0.5, normal.ppf(np.clip(bounds, 0.5, None)), 0.0)
            axes.plot(counts / samples, radii, color=HUES[number], linewidth=1.6, label=f"{samples:,} copies")
        shares = np.linspace(0.5, 0.9999, 200)
        axes.plot(shares, normal.ppf(shares), color=INK, linewidth=1, linestyle=":", label="share known exactly")
        axes.set(xlabel="share of the copies that have the class", ylabel="certain radius, in sigma", ylim=(0, 3.9))
        axes.legend(fontsize=8.5)
        return to_png(figure)


PICTURES = {"robustness": robustness, "adversarial-training": adversarial_training, "smoothing": smoothing}
