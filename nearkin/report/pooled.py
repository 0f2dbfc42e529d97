"""What pooling makes of single images: their local features, the prototypes these fall to, and both means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from nearkin.errors import DataError
from nearkin.report._canvas import BLUE, FAINT, INK, MUTED, ORANGE, SKY, VERMILION, WIDTH, drawing, to_png
from nearkin.report._lines import fit_text
from nearkin.report.formatting import value_text
from nearkin.report.local_features import LocalView, dots, frame, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MOST_IMAGES = 4
_PANEL, _LEGEND = 262, 34  # heights in CSS pixels
_THUMB, _PLOT = 110, 240  # widths in CSS pixels
_ROOM = 0.06  # around all features, as a share of their extent: a circle that is larger is cut
_LARGEST = 160.0  # area of the mark of a prototype with all the mass, in square points


def draw_pooled(
    view: LocalView, images: Sequence[int], names: Sequence[str], thumbs: Sequence[Image.Image | None]
) -> bytes:
    """Draw up to four images: local features, their prototypes by mass, GAP, PCC, and around GAP the covering radius.

    The radius is that over the local features of the image itself.

    Args:
        view: local features and prototypes.
        images: which of the view's images to draw.
        names: the heading of each.
        thumbs: the picture of each, or None where there is nothing to look at.

    Returns:
        PNG bytes, or none when there are no images.
    """
    if not len(images) == len(names) == len(thumbs):
        raise DataError(f"{len(images)} images need a name and a picture each, not {len(names)} and {len(thumbs)}.")
    if unknown := [image for image in images if not 0 <= image < len(view.points)]:
        raise DataError(f"There are {len(view.points)} images and none has the place {unknown[0]}.")
    shown = list(zip(images, names, thumbs, strict=True))[:MOST_IMAGES]
    if not shown:
        return b""
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    with drawing(columns * WIDTH // 2, _PANEL * rows + _LEGEND) as figure:
        legend, body = figure.subfigures(2, 1, height_ratios=[_LEGEND, _PANEL * rows], squeeze=False).flat
        parts = body.subfigures(rows, columns, squeeze=False)
        for part, (image, name, thumb) in zip(parts.flat, shown, strict=False):
            heading = fit_text(name, WIDTH // 2 - 24, 10, "bold")
            part.suptitle(heading, x=0.015, ha="left", fontsize=10, fontweight="bold")
            words = [
                f"|PCC − GAP| {value_text(float(view.errors[image]), False)}",
                f"radius {value_text(float(view.radii[image]), False)}",
            ]
            if thumb is None:
                axes = part.subplots()
                axes.set_anchor("W")
                axes.set_xlabel(", ".join(words), fontsize=8, loc="left")
            else:
                beside, axes = part.subplots(1, 2, width_ratios=[_THUMB, _PLOT])
                _draw_thumb(beside, thumb, words)
            _draw_image(axes, view, image)
        _write_legend(legend)
        return to_png(figure)


def _draw_thumb(axes: Axes, thumb: Image.Image, words: Sequence[str]) -> None:
    """The picture, below it what was measured."""
    axes.set_axis_off()
    axes.set_anchor("N")
    axes.imshow(np.asarray(thumb.convert("RGB")), interpolation="lanczos")
    axes.text(0, -0.06, "\n".join(words), transform=axes.transAxes, fontsize=8, color=MUTED, va="top", linespacing=1.5)


def _draw_image(axes: Axes, view: LocalView, image: int) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle

    points, nearest = view.points[image], view.nearest[image]
    prototypes, mass = view.prototypes, np.bincount(nearest, minlength=len(view.prototypes)) / len(nearest)
    dots(axes, thinned(view.points.reshape(-1, 2), 6000), 1, color=FAINT, alpha=0.5, zorder=1)
    ways = np.stack([points, prototypes[nearest]], axis=1)
    axes.add_collection(LineCollection(list(ways), colors=SKY, linewidths=0.5, alpha=0.7, zorder=2), autolim=False)
    dots(axes, points, 6, color=BLUE, zorder=3)
    used = mass > 0
    dots(
        axes, prototypes[used], _LARGEST * mass[used], color=ORANGE, marker="s", alpha=0.75, edgecolors=INK,
        linewidths=0.7, zorder=4,
    )  # fmt: skip
    gap, pcc = view.gap[image], view.pcc[image]
    axes.add_patch(
        Circle(tuple(gap), view.radii[image], fill=False, edgecolor=VERMILION, linewidth=1.1, linestyle="--", zorder=5)
    )
    dots(axes, gap[None], 90, color=VERMILION, marker="*", edgecolors="white", linewidths=0.7, zorder=7)
    dots(axes, pcc[None], 34, color="white", marker="D", edgecolors=VERMILION, linewidths=1.5, zorder=6)
    frame(axes, view.points, prototypes, room=_ROOM)


def _write_legend(figure: Figure | SubFigure) -> None:
    from matplotlib.lines import Line2D

    def mark(label: str, **look: object) -> Line2D:
        return Line2D([], [], label=label, **{"linestyle": "", **look})  # type: ignore[arg-type]

    handles = [
        mark("local features", marker="o", markersize=3.5, color=BLUE),
        mark("prototypes, by mass", marker="s", markersize=7, color=ORANGE, markeredgecolor=INK, markeredgewidth=0.7),
        mark("GAP", marker="*", markersize=10, color=VERMILION, markeredgecolor="white"),
        mark("PCC", marker="D", markersize=6, color="white", markeredgecolor=VERMILION, markeredgewidth=1.5),
        mark("covering radius", linestyle="--", color=VERMILION, linewidth=1.1),
    ]
    figure.legend(
        handles=handles, loc="center left", ncols=5, fontsize=9, handlelength=1.4, handletextpad=0.4, columnspacing=1.1
    )
