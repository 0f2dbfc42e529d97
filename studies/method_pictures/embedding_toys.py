"""Pictures of methods around a loss: memories, regularisers, options of proxies, and what is done to embeddings."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from nearkin.metrics import geometry_metrics
from nearkin.models.start import fit_start
from nearkin.objectives import ObjectiveSection, make_objective
from nearkin.recipe import CrossBatchMemorySection
from nearkin.report.canvas import BLUE, FAINT, HUES, INK, MUTED, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.search import AverageQueryExpansion, KReciprocal, exact
from nearkin.spaces import PoincareBall, PrincipalReweighting
from nearkin.training.strategies import CrossBatchMemory
from studies.method_pictures.loss_pictures import draw_arrows, draw_points
from studies.method_pictures.loss_toy import CLASSES, TREE, Pull, pull, recipe_of
from studies.places import located

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 258
_SMALL = 9.5
"""Points of a panel's title."""


def cross_batch_memory() -> bytes:
    """First moves of a small batch alone, and with a memory of earlier batches."""
    section, space = recipe_of("contrastive-cosine")
    objective = make_objective(section, dimension=2, classes=len(CLASSES), space=space)
    draw = torch.Generator().manual_seed(3)
    centres = torch.arange(len(CLASSES)) * 2 * torch.pi / len(CLASSES) + torch.pi / 2

    def batch(classes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.tensor(classes).repeat_interleave(2)
        angles = centres[labels] + 0.5 * torch.randn(len(labels), generator=draw)
        return torch.stack([torch.cos(angles), torch.sin(angles)], dim=1), labels

    memory = CrossBatchMemory(CrossBatchMemorySection(batches=5, warmup_steps=0), batch_size=4, dimension=2)
    for classes in ([0, 1], [2, 3], [4, 0], [1, 2], [3, 4]):
        memory(objective, *batch(classes))
    points, labels = batch([0, 2])
    points.requires_grad_()
    old, old_labels = memory.memory.clone().numpy(), memory.memory_labels.clone().numpy()
    none = np.zeros((len(CLASSES), 0, 2))
    with drawing(WIDTH, HEIGHT) as figure:
        for axes, title, schedule in zip(
            figure.subplots(1, 2), ("the batch alone", "with the last five batches"), (None, memory), strict=True
        ):
            value = objective(points, labels) if schedule is None else schedule(objective, points, labels)
            (gradient,) = torch.autograd.grad(value, [points])
            start = points.detach().numpy()
            found = Pull("sphere", labels.numpy(), np.zeros(4, bool), start, -gradient.numpy(), start, none, none)
            draw_points(axes, found, start, none, title)
            if schedule is not None:
                for place, label in zip(old, old_labels, strict=True):
                    axes.scatter(*(0.93 * place), s=16, color="none", edgecolors=HUES[label], linewidths=0.9)
            draw_arrows(axes, found)
            axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
        return to_png(figure)


def rho_regularisation() -> bytes:
    """The toy after training by pairs, without and with switched negatives, and how wide classes are."""
    with drawing(WIDTH, HEIGHT) as figure:
        start, *panels = figure.subplots(1, 3)
        for axes, share in zip(panels, (0.0, 0.2), strict=True):
            found = pull("contrastive", ObjectiveSection(loss="contrastive", switch=share))
            draw_points(axes, found, found.end, found.proxies_end, f"switch {share:g}: {_width(found.end):.0f}°")
        draw_points(start, found, found.start, found.proxies, f"start: {_width(found.start):.0f}°")
        for axes in (start, *panels):
            axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
        return to_png(figure)


def _width(points: np.ndarray) -> float:
    """Mean angle, in degrees, between two points of a class; points (n, 2) of the circle come class by class."""
    groups = points.reshape(len(CLASSES), -1, 2)
    angles = np.degrees(np.arccos(np.clip(np.einsum("cid,cjd->cij", groups, groups), -1, 1)))
    items = groups.shape[1]
    return float(angles.sum() / (len(CLASSES) * items * (items - 1)))


def proxy_options() -> bytes:
    """The toy after training by NormFace with each kind of proxies."""
    options = {"learned": {}, "ema": {"ema_rate": 0.05}, "mds": {}}
    with drawing(WIDTH, HEIGHT) as figure:
        for axes, (kind, more) in zip(figure.subplots(1, 3), options.items(), strict=True):
            section = ObjectiveSection(loss="normface", parameters={"proxies": kind, **more})
            found = pull("normface", section)
            draw_points(axes, found, found.end, found.proxies_end, f"proxies: {kind}")
            axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
        return to_png(figure)


def distortion() -> bytes:
    """Distances of proxies against those of the tree, after training without and with the regulariser."""
    wanted = TREE.distances(CLASSES, "path")
    first, second = np.triu_indices(len(CLASSES), k=1)
    with drawing(WIDTH, HEIGHT) as figure:
        for axes, weight in zip(figure.subplots(1, 2, sharey=True), (0.0, 5.0), strict=True):
            terms = [{"name": "distortion", "weight": weight}] if weight else []
            found = pull("sd-softmax", ObjectiveSection(loss="sd-softmax", regularisers=terms))
            proxies = found.proxies_end[:, 0]
            lengths = np.linalg.norm(proxies[first] - proxies[second], axis=1)
            tree = wanted[first, second]
            axes.scatter(tree, lengths, s=26, color=BLUE, linewidths=0, alpha=0.8)
            ratio = lengths / tree
            slope = (ratio**2).sum() / ratio.sum()
            axes.plot([0, tree.max()], [0, slope * tree.max()], color=FAINT, linewidth=1.2)
            term = float(((ratio / slope - 1) ** 2).mean())
            name = f"weight {weight:g}" if weight else "without it"
            axes.set_title(f"{name}: distortion {term:.2f}", fontsize=_SMALL)
            axes.set(xlabel="edges between two classes", xlim=(0, None), ylim=(0, None))
        figure.axes[0].set_ylabel("distance of their proxies")
        return to_png(figure)


def geometry() -> bytes:
    """Three embeddings of the same classes and what the measures say of them."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 30)
    cases = {"spread out": (0.25, 1.0), "classes wider": (0.6, 1.0), "one direction weak": (0.25, 0.3)}
    with drawing(WIDTH, HEIGHT + 30) as figure:
        for axes, (title, (noise, weak)) in zip(figure.subplots(1, 3), cases.items(), strict=True):
            angles = labels * 2 * np.pi / 5
            points = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
            points = (points + noise * rng.normal(size=(150, 3))) * [1, weak, 1]
            points /= np.linalg.norm(points, axis=1, keepdims=True)
            told = geometry_metrics(points, labels)
            axes.scatter(points[:, 0], points[:, 1], s=12, c=[HUES[label] for label in labels], alpha=0.7, linewidths=0)
            axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=[], yticks=[], aspect="equal")
            numbers = f"phi {told['phi']:.1f}, R2 {told['R2']:.2f}\nrho {told['rho']:.2f}, d_DoV {told['d_DoV']:.0f}"
            axes.set_title(title, fontsize=_SMALL)
            axes.set_xlabel(numbers, fontsize=8.5)
        return to_png(figure)


def principal_reweighting() -> bytes:
    """A stretched cloud of two classes, whose difference lies in the weak direction, at three powers."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 60)
    points = np.stack([2.0 * rng.normal(size=120), 0.25 * rng.normal(size=120) + np.where(labels, 0.6, -0.6)], axis=1)
    with drawing(WIDTH, HEIGHT + 14) as figure:
        for axes, power in zip(figure.subplots(1, 3), (0.0, 0.5, 1.0), strict=True):
            moved = PrincipalReweighting(power=power).fit(points).transform(points)
            axes.scatter(*np.asarray(moved).T, s=14, c=[HUES[label] for label in labels], alpha=0.7, linewidths=0)
            axes.set(xlim=(-5, 5), ylim=(-5, 5), xticks=[], yticks=[], aspect="equal")
            axes.spines[:].set_visible(True)
            axes.set_title(f"power {power:g}", fontsize=_SMALL)
        return to_png(figure)


def poincare_ball() -> bytes:
    """Circles of one radius and straight lines in the Poincaré disc, and a tree whose branches are equally long."""
    ball, turn = PoincareBall(), np.linspace(0, 2 * np.pi, 120)
    unit = np.tanh(0.5) * np.stack([np.cos(turn), np.sin(turn)], axis=1)  # at distance 1 from the centre

    def moved(points: np.ndarray, to: np.ndarray) -> np.ndarray:
        return ball.add(torch.from_numpy(to), torch.from_numpy(points)).numpy()

    with drawing(WIDTH, HEIGHT + 40) as figure:
        circles, tree = figure.subplots(1, 2)
        for place, share in enumerate((0.0, 0.45, 0.75, 0.9, 0.965)):
            centre = share * np.array([np.cos(0.6), np.sin(0.6)])
            circles.fill(*moved(unit, centre).T, color=HUES[place], alpha=0.35, linewidth=0)
            circles.scatter(*centre, s=10, color=INK, zorder=4)
        for start, end in ((1.9, 3.0), (2.2, 4.6), (3.4, 5.6), (4.2, 5.2)):
            first, last = (0.999 * np.array([np.cos(angle), np.sin(angle)]) for angle in (start, end))
            way = moved(last, -first)  # seen from the first point the line is straight
            along = np.tanh(np.linspace(0, 1, 400)[:, None] * np.arctanh(min(np.linalg.norm(way), 1 - 1e-9)))
            circles.plot(*moved(along * way / np.linalg.norm(way), first).T, color=MUTED, linewidth=1)
        _grow(tree, moved, np.zeros(2), 0.0, 2 * np.pi, 0)
        for axes, title in (
            (circles, "circles of radius 1, straight lines"),
            (tree, "a tree with branches of length 1"),
        ):
            axes.plot(np.cos(turn), np.sin(turn), color=INK, linewidth=1)
            axes.spines[:].set_visible(False)
            axes.set(xlim=(-1.04, 1.04), ylim=(-1.04, 1.04), xticks=[], yticks=[], aspect="equal")
            axes.set_title(title, fontsize=_SMALL)
        return to_png(figure)


def _grow(axes: Axes, moved: Callable[..., np.ndarray], node: np.ndarray, low: float, high: float, depth: int) -> None:
    """Draw a node's children, a hyperbolic step of 1 away, between two angles as seen from it."""
    children = 4 if depth == 0 else 3
    edges = np.linspace(low, high, children + 1)
    for left, right in pairwise(edges):
        angle = (left + right) / 2
        step = np.tanh(np.linspace(0, 0.5, 12))[:, None] * np.array([np.cos(angle), np.sin(angle)])
        way = moved(step, node)
        axes.plot(*way.T, color=HUES[depth], linewidth=1.6 - 0.3 * depth)
        if depth < 3:
            # What lies ahead: as wide as keeps the branches of a node apart.
            out = np.arctan2(*(way[-1] - way[-2])[::-1])
            _grow(axes, moved, way[-1], out - 1.1, out + 1.1, depth + 1)


def re_ranking() -> bytes:
    """The first neighbours of a query at the end of one moon, by distance and re-ranked."""
    rng = np.random.default_rng(2)
    angles = np.linspace(0, np.pi, 40)
    upper = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lower = np.stack([1 - np.cos(angles), 0.68 - np.sin(angles)], axis=1)
    gallery = np.concatenate([upper, lower]) + 0.04 * rng.normal(size=(80, 2))
    query, labels = np.array([[0.99, 0.12]]), np.repeat([0, 1], 40)
    ways = {
        "by distance": None,
        "query expansion": AverageQueryExpansion(neighbours=5),
        "k-reciprocal": KReciprocal(k1=12, k2=4, weight=0.1),
    }
    with drawing(WIDTH, 205) as figure:
        for axes, (title, way) in zip(figure.subplots(1, 3), ways.items(), strict=True):
            found = np.asarray(exact(query, gallery, 16, space="euclidean", rerank=way)[1])[0]
            axes.scatter(*gallery.T, s=14, c=[HUES[label] for label in labels], alpha=0.35, linewidths=0)
            axes.scatter(*gallery[found].T, s=34, color="none", edgecolors=INK, linewidths=0.9)
            axes.scatter(*query.T, s=90, color=HUES[0], marker="*", edgecolors=INK, linewidths=0.8, zorder=5)
            right = int((labels[found] == 0).sum())
            axes.set_title(f"{title}: {right} of 16", fontsize=_SMALL)
            axes.set(xticks=[], yticks=[], aspect="equal")
            axes.spines[:].set_visible(True)
        return to_png(figure)


def search() -> bytes:
    """The sieve: a threshold from a sample, and what of all scores reaches it."""
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(20_000, 32)).astype(np.float32)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    scores = gallery[1:] @ gallery[0]
    depth, sampled = 200, 1024
    share = sampled / len(scores)
    place = int(share * depth + 2.5 * np.sqrt(share * depth * (1 - share)))
    threshold = np.sort(rng.choice(scores, sampled, replace=False))[::-1][place]
    needed = np.sort(scores)[::-1][depth - 1]
    with drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        _, edges, bars = axes.hist(scores, bins=120, color=FAINT)
        for bar, left in zip(bars, edges, strict=False):
            bar.set_facecolor(BLUE if left >= threshold else FAINT)
        axes.axvline(threshold, color=BLUE, linewidth=1.2)
        axes.axvline(needed, color=VERMILION, linewidth=1.2, linestyle="--")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
        axes.set(xlabel="score of a query to each of 19,999 items", ylabel="items")
        kept = int((scores >= threshold).sum())
        axes.set_title(
            f"threshold of a sample of {sampled:,}: {kept} candidates for {depth} neighbours", fontsize=_SMALL
        )
        axes.text(needed, axes.get_ylim()[1], " the last one needed", fontsize=8, color=VERMILION, va="top")
        return to_png(figure)


def zero_shot() -> bytes:
    """How well attributes transfer to unseen classes with and without the loss: the ledger of gsp_attributes/run.py."""
    lines = located("studies/gsp_attributes/ledger.jsonl").read_text(encoding="utf-8").splitlines()
    cells = [json.loads(line) for line in lines]
    with drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        for number, count in enumerate(sorted({cell["prototypes"] for cell in cells})):
            _draw_transfer(axes, [cell for cell in cells if cell["prototypes"] == count], number, count)
        axes.axhline(0.02, color=MUTED, linewidth=1, linestyle=":")
        axes.text(axes.get_xlim()[1], 0.02, "chance ", ha="right", va="bottom", fontsize=8, color=MUTED)
        percent_axis(axes, "y")
        axes.set(xlabel="weight of the zero-shot loss", ylabel="classes found", ylim=(0, None))
        axes.legend(fontsize=8.5)
        return to_png(figure)


def _draw_transfer(axes: Axes, cells: list[dict], number: int, count: int) -> None:
    """Mean and range over seeds against the weight."""
    weights = sorted({cell["mixture"] for cell in cells})
    values = [[cell["l2"] for cell in cells if cell["mixture"] == weight] for weight in weights]
    means = np.array([np.mean(some) for some in values])
    ends = np.abs(np.array([(min(some), max(some)) for some in values]).T - means)
    axes.errorbar(weights, means, ends, color=HUES[number], marker="o", capsize=3, label=f"{count} prototypes")


def whitened_start() -> bytes:
    """Classes that differ within more than between, the same whitened, and one direction kept of each."""
    draw = np.random.default_rng(5)
    along = np.array([1.0, 0.35]) / np.hypot(1.0, 0.35)
    across = np.array([-along[1], along[0]])
    places = np.array([-1.6, -0.8, 0.0, 0.8, 1.6])
    labels = np.repeat(np.arange(len(places)), 24)
    x = places[labels, None] * across + draw.normal(size=(len(labels), 1)) * 2.2 * along
    x = x + 0.22 * draw.normal(size=x.shape)
    features, ids, rows = torch.from_numpy(x).float(), labels, np.arange(len(labels))
    starts = {
        kind: fit_start([(features, rows)], ids, kind=kind, dimension=2, ridge=0.1) for kind in ("pca", "whitened")
    }
    with drawing(WIDTH, HEIGHT) as figure:
        left, middle, right = figure.subplots(1, 3)
        for axes, title, points in (
            (left, "features", x - x.mean(axis=0)),
            (middle, "whitened", (features @ starts["whitened"].weight.T + starts["whitened"].bias).numpy()),
        ):
            axes.scatter(*points.T, s=9, color=[HUES[label] for label in labels])
            axes.set(title=title, aspect="equal", xticks=[], yticks=[])
        for height, kind in ((1, "pca"), (0, "whitened")):
            kept = (features @ starts[kind].weight[:1].T).numpy()[:, 0]
            kept = (kept - kept.mean()) / kept.std()
            spread = height + 0.25 * draw.uniform(-1, 1, len(kept))
            right.scatter(kept, spread, s=9, color=[HUES[label] for label in labels])
        right.set(title="one direction kept", xticks=[], yticks=[0, 1], yticklabels=["whitened", "pca"])
        for axes in (left, middle, right):
            axes.title.set_fontsize(_SMALL)
        return to_png(figure)


PICTURES = {
    "start": whitened_start,
    "cross-batch-memory": cross_batch_memory,
    "rho-regularisation": rho_regularisation,
    "proxy-options": proxy_options,
    "distortion": distortion,
    "geometry": geometry,
    "poincare-ball": poincare_ball,
    "principal-reweighting": principal_reweighting,
    "re-ranking": re_ranking,
    "search": search,
    "zero-shot": zero_shot,
}
