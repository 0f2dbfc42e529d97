"""The picture of the book: every comparison of every claim, and on which side of the claim's bound it lies."""

from __future__ import annotations

import io
import math

from book_pages import Book
from claims import Compared

COLOURS = {"shown": "#1b7a43", "not shown": "#8a8a8a", "the opposite is shown": "#b3261e"}
FARTHEST = 6.0
"""Half widths; what lies farther is drawn there."""


def place(compared: Compared) -> tuple[float, float, float]:
    """Figure and interval from the bound that is nearest, in half widths of the interval; above 0 as claimed.

    The lower end is above 0 if, and only if, the claim is shown; the upper end below 0 if the opposite is.
    """
    sides = []
    if compared.above is not None:
        sides.append(tuple(each - compared.above for each in (compared.value, compared.low, compared.high)))
    if compared.below is not None:
        sides.append(tuple(compared.below - each for each in (compared.value, compared.high, compared.low)))
    value, low, high = min(sides, key=lambda side: side[1])
    half = (high - low) / 2
    if half == 0:
        return (math.copysign(FARTHEST, value) if value else 0.0,) * 3
    value, low, high = (max(-FARTHEST, min(FARTHEST, each / half)) for each in (value, low, high))
    return value, low, high


def draw(book: Book) -> bytes:
    """A band for each document, its comparisons from the farthest against to the farthest for; PNG bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bands = {
        slug: sorted((*place(each), each.state) for one in found if one.evidence for each in one.evidence.compared)
        for slug, (_, found) in book.items()
    }
    bands = {slug: rows for slug, rows in bands.items() if rows}
    heights = [max(0.8, 0.045 * len(rows)) for rows in bands.values()]
    figure, axes = pyplot.subplots(
        len(bands),
        1,
        figsize=(8, sum(heights) + 1.2),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axis, (slug, rows) in zip(axes[:, 0], bands.items(), strict=True):
        for state, colour in COLOURS.items():
            some = [(height, *row[:3]) for height, row in enumerate(rows) if row[3] == state]
            if some:
                ys, values, lows, highs = zip(*some, strict=True)
                axis.hlines(ys, lows, highs, color=colour, linewidth=1)
                axis.plot(values, ys, ".", color=colour, markersize=4, label=f"{state}: {len(some)}")
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set(yticks=[], ylabel=slug, xlim=(-FARTHEST - 0.2, FARTHEST + 0.2))
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.legend(loc="lower right", frameon=False, fontsize=8)
    axes[-1, 0].set_xlabel("from the claim's bound, in half widths of the 95 % interval; right: as claimed")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return buffer.getvalue()
