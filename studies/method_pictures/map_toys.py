"""Pictures of what makes a vector of a feature map: poolings, attention, and what averaging does."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.metrics import pcc_embedding, prototype_histogram
from nearkin.models import make_pooling
from nearkin.models.attention import StageAttention
from nearkin.models.pooling import list_poolings
from nearkin.report.canvas import FAINT, HUES, INK, WIDTH, drawing, to_png
from nearkin.spaces import kcenter

_SMALL = 9.5
_SIDE, _CHANNELS = 8, 6
_THINGS = ((0, (1, 3), (1, 4)), (1, (5, 7), (4, 7)))
"""Channel, rows and columns of the two things on the toy map."""


def toy_map(things: tuple = _THINGS, seed: int = 0) -> Tensor:
    """A map (1, C, 8, 8): weak background everywhere, and things that are strong in a channel of their own."""
    draw = torch.Generator().manual_seed(seed)
    features = 0.15 * torch.rand(1, _CHANNELS, _SIDE, _SIDE, generator=draw)
    features[:, 2] += 0.5  # what all positions share
    for channel, rows, columns in things:
        features[:, channel, slice(*rows), slice(*columns)] += 1.0
    return features


def poolings() -> bytes:
    """The map, and the weights of its positions by every pooling that has some: as they start, before training."""
    features = toy_map()
    known = toy_map(((0, (0, _SIDE), (0, 4)), (1, (0, _SIDE), (4, _SIDE))))  # of nothing but the two things
    shown = {"the map": features[0, :2].sum(0)}
    for name in list_poolings():
        torch.manual_seed(0)
        pooling = make_pooling(name, _CHANNELS)
        pooling.set_map_size(_SIDE, _SIDE)
        pooling.init_from(known)
        with torch.no_grad():
            weights = pooling.eval().weights(features)
        if weights is not None:
            shown[name] = weights[0]
    return _maps({name: values.numpy() for name, values in shown.items()})


def _maps(shown: dict[str, np.ndarray], rows: int = 1) -> bytes:
    """Small maps beside each other, darker is more; each on a scale from 0 to its own largest value."""
    columns = -(-len(shown) // rows)
    with drawing(WIDTH, rows * (WIDTH / columns + 26)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (name, values) in zip(grid.flat, shown.items(), strict=False):
            axes.imshow(values, cmap="Blues", vmin=0, vmax=float(values.max()) or 1.0)
            axes.set_title(name, fontsize=8)
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            axes.spines[:].set_visible(True)
        for axes in grid.flat[len(shown) :]:
            axes.remove()
        return to_png(figure)


def average_pooling() -> bytes:
    """Local features of three images, the prototypes that cover them, and GAP beside PCC."""
    rng = np.random.default_rng(3)
    things = np.array([[-1.0, -0.6], [1.0, -0.5], [0.0, 1.0], [0.1, 0.0]])
    shares = np.array([[6, 0, 3, 3], [0, 6, 3, 3], [4, 4, 0, 4]])
    features = np.stack([np.repeat(things, share, axis=0) for share in shares]) + 0.13 * rng.normal(size=(3, 12, 2))
    points = torch.from_numpy(features.reshape(1, -1, 2))
    prototypes = points[0][kcenter(points, 5)[0]]
    histogram = prototype_histogram(torch.from_numpy(features), prototypes)
    pcc = np.asarray(pcc_embedding(histogram, prototypes))
    reach = float(torch.cdist(points[0], prototypes).min(dim=1).values.max())
    from matplotlib.patches import Circle

    with drawing(WIDTH, 270) as figure:
        axes = figure.subplots()
        for centre in prototypes.numpy():
            axes.add_patch(Circle(centre, reach, facecolor="#f2f5f8", edgecolor=FAINT, linewidth=0.8, zorder=1))
        for image in range(3):
            axes.scatter(*features[image].T, s=14, color=HUES[image], alpha=0.55, linewidths=0, zorder=2)
            average = features[image].mean(axis=0)
            axes.plot(*np.stack([average, pcc[image]]).T, color=HUES[image], linewidth=1.2, zorder=3)
            axes.scatter(*average, s=60, color=HUES[image], edgecolors=INK, linewidths=0.9, zorder=4, marker="o")
            axes.scatter(*pcc[image], s=60, color=HUES[image], edgecolors=INK, linewidths=0.9, zorder=4, marker="D")
        axes.scatter(*prototypes.numpy().T, s=44, color="white", marker="s", edgecolors=INK, linewidths=1.0, zorder=3)
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.set_title(f"every feature is within {reach:.2f} of a prototype", fontsize=_SMALL)
        return to_png(figure)


def attention() -> bytes:
    """Weights over a map, of attention that has learned to tell which of two things is on it."""
    shown: dict[str, np.ndarray] = {}
    places = [(0, (1, 3), (1, 4)), (1, (5, 7), (4, 7))]
    for score in ("average", "multiplicative", "additive", "multi-dimensional"):
        torch.manual_seed(0)
        module = StageAttention({"stage": _CHANNELS}, _CHANNELS, score=score, append=False)
        head = nn.Linear(_CHANNELS, 2)
        optimiser = torch.optim.Adam([*module.parameters(), *head.parameters()], lr=0.02)
        for step in range(150):
            maps, labels = _noisy_maps(16, step)
            u = maps.mean((2, 3))
            loss = nn.functional.cross_entropy(head(module({"stage": maps}, u)), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        for kind, place in enumerate(places):
            maps = toy_map((place,))
            with torch.no_grad():
                weights = module.weights({"stage": maps}, maps.mean((2, 3)))["stage"][0]
            shown[f"{score}, {'ab'[kind]}"] = weights.numpy()
    order = [
        f"{score}, {kind}" for kind in "ab" for score in ("average", "multiplicative", "additive", "multi-dimensional")
    ]
    pictures = {}
    for kind, place in zip("ab", places, strict=True):
        pictures[f"map {kind}"] = toy_map((place,))[0, :2].sum(0).numpy()
        pictures |= {name: shown[name] for name in order if name.endswith(kind)}
    return _maps(pictures, rows=2)


def _noisy_maps(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Maps (B, C, 8, 8) with one of two things at a random place, and which it is."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    corners = rng.integers(0, _SIDE - 2, (count, 2))
    maps = [
        toy_map(((int(label), (row, row + 2), (column, column + 3)),), seed=int(rng.integers(1 << 30)))
        for label, (row, column) in zip(labels, corners, strict=True)
    ]
    return torch.cat(maps), torch.from_numpy(labels)


PICTURES = {"poolings": poolings, "average-pooling": average_pooling, "attention": attention}
