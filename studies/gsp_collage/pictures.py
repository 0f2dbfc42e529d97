"""The pictures of `studies/gsp_collage/run.py`: MAP@R of the poolings, and where two of them look."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.models import Embedder
from nearkin.models.explanations import contributions, position_weights
from nearkin.protocol import Summary
from nearkin.report.canvas import BLUE, FAINT, INK, MUTED, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report.comparison import SEPARATE, BenchmarkRow
from nearkin.report.overlay import OverlayPanel, ShareScale, SignedScale, draw_overlays
from nearkin.report.values import value_text

_SHOWN = 3  # collages of each role
_BATCH = 100


def draw_bars(summary: Summary, base: str, ours: Sequence[str], bound: str, losses: Mapping[str, str]) -> bytes:
    """MAP@R with intervals, the best on top, one panel a loss; lines for the baseline and the bound.

    Args:
        summary: what the book says.
        base: name of the baseline.
        ours: names to be told by their colour.
        bound: name of what is possible.
        losses: loss to what it adds to names.
    """
    rows = {row.name: row for row in summary.rows if row.finished}
    endings = {
        loss: [name for name in rows if (name.endswith(end) if end else ", " not in name)]
        for loss, end in losses.items()
    }
    panels = {loss: names for loss, names in endings.items() if names}
    longest = max(map(len, panels.values()))
    with drawing(WIDTH, 110 + 24 * longest) as figure:
        for axes, (loss, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            end = losses[loss]
            ordered = sorted(names, key=lambda name: -_map_at_r(rows[name])[0])
            for height, name in enumerate(ordered):
                value, low, high = _map_at_r(rows[name])
                plain = name.removesuffix(end)
                colour = VERMILION if plain in ours else MUTED if plain == bound else BLUE if plain == base else FAINT
                axes.barh(height, value, color=colour, height=0.7)
                if math.isfinite(low) and math.isfinite(high):
                    axes.plot([low, high], [height, height], color=INK, linewidth=1.2)
                axes.annotate(
                    value_text(value, True),
                    (high if math.isfinite(high) else value, height),
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
            if base + end in rows:
                axes.axvline(_map_at_r(rows[base + end])[0], color=BLUE, linewidth=1, linestyle="--", zorder=1)
            axes.set_yticks(range(len(ordered)), [name.removesuffix(end) for name in ordered], color=INK, fontsize=9)
            axes.set_ylim(len(ordered) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.set_title(f"CIFAR collages, {loss} loss")
            axes.set_xlabel("MAP@R on unseen classes, with 95 % intervals")
            axes.margins(x=0.12)
            percent_axis(axes, "x")
        return to_png(figure)


def draw_looks(ours: Embedder, theirs: Embedder, parts: Mapping[str, Dataset]) -> bytes:
    """Collages with the pooling weights of one model, and below the same with the contributions to the other.

    Args:
        ours: a model whose pooling has weights.
        theirs: a model with average pooling, whose weights are all the same.
        parts: role to its collages.
    """
    shown = [(role, items.select(_spread(items))) for role, items in parts.items()]
    images = [(role, str(label), items.image(row)) for role, items in shown for row, label in enumerate(items.labels)]
    batch = torch.cat([_inputs(ours, items, range(len(items))) for _, items in shown])
    weights, parts_of = position_weights(ours, batch).numpy(), contributions(theirs, batch).numpy()
    names = [[f"{how}, {role}: {label}" for role, label, _ in images] for how in ("GSP", "GAP")]
    upper, lower = (
        [OverlayPanel(image, value, name) for (_, _, image), value, name in zip(images, values, captions, strict=True)]
        for values, captions in zip((weights, parts_of), names, strict=True)
    )
    return _stacked(
        [
            draw_overlays(upper, ShareScale.over(list(weights))),
            draw_overlays(lower, SignedScale.over(list(parts_of))),
        ]
    )


def foreground_share(model: Embedder, items: Dataset) -> float | None:
    """The mean share of the pooling weights on the image that matters; None where positions have no weights."""
    places = items.manifest.column("place").astype(int)
    with torch.no_grad():
        if model.pooling.weights(model.local_features(_inputs(model, items, range(1)))) is None:
            return None
    shares = []
    for first in range(0, len(items), _BATCH):
        rows = range(first, min(first + _BATCH, len(items)))
        shares.append(_in_tile(position_weights(model, _inputs(model, items, rows)).numpy(), places[rows]))
    return float(np.concatenate(shares).mean())


def _in_tile(weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """How much (B,) of weights (B, h, w), h and w even, is in the given quarters (B,)."""
    count, height, width = weights.shape
    quarters = weights.reshape(count, 2, height // 2, 2, width // 2).sum((2, 4)).reshape(count, 4)
    return quarters[np.arange(count), places]


def _inputs(model: Embedder, items: Dataset, rows: range) -> Tensor:
    """Normalised inputs (B, 3, H, W)."""
    pixels = np.stack([np.asarray(items.image(row)) for row in rows])
    return model.normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2))


def _spread(items: Dataset) -> list[int]:
    """The first collage of a few classes, far apart in the order of their names."""
    names = np.array(items.classes)[np.linspace(0, len(items.classes) - 1, _SHOWN).astype(int)]
    return [int(np.flatnonzero(items.labels == name)[0]) for name in names]


def _map_at_r(row: BenchmarkRow) -> tuple[float, float, float]:
    return row.value(SEPARATE, "MAP@R")


def _stacked(pictures: Sequence[bytes]) -> bytes:
    """PNG pictures one below the other, as one PNG."""
    opened = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    sheet = Image.new("RGB", (max(one.width for one in opened), sum(one.height for one in opened)), "white")
    top = 0
    for one in opened:
        sheet.paste(one, (0, top))
        top += one.height
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()
