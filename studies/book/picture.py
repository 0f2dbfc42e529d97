"""The picture of the book: every comparison of every claim, and on which side of the claim's bound it lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.lines import Line2D

from nearkin.report.canvas import BLUE, INK, MUTED, VERMILION, WIDTH, drawing, to_png
from studies.book.pages import PICTURE, Book, Found, picture_of
from studies.claims.claim import Compared

COLOURS = {"shown": BLUE, "not shown": MUTED, "the opposite is shown": VERMILION}
_HEIGHT = 420
_ROW, _MARGIN = 15, 70
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


def pictures(book: Book) -> dict[str, bytes]:
    """File name in `docs/images` to the PNG bytes of the whole book, and of each document that has tested claims."""
    drawn = {picture_of(slug): draw_document(found) for slug, (_, found) in book.items()}
    return {PICTURE: draw(book)} | {name: picture for name, picture in drawn.items() if picture}


def draw(book: Book) -> bytes:
    """A panel for each document, its comparisons from the farthest against to the farthest for; PNG bytes."""
    found = {
        slug: sorted((*place(each), each.state) for one in claims if one.evidence for each in one.evidence.compared)
        for slug, (_, claims) in book.items()
    }
    panels = {slug: rows for slug, rows in found.items() if rows}
    with drawing(WIDTH, _HEIGHT) as figure:
        for axes, (slug, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for state, colour in COLOURS.items():
                some = [(height, *row[:3]) for height, row in enumerate(rows) if row[3] == state]
                if some:
                    ys, values, lows, highs = zip(*some, strict=True)
                    axes.hlines(ys, lows, highs, color=colour, linewidth=0.8, alpha=0.35)
                    axes.plot(values, ys, ".", color=colour, markersize=2.5)
            axes.axvline(0, color=INK, linewidth=0.8)
            axes.set(yticks=[], title=slug, xlim=(-FARTHEST - 0.3, FARTHEST + 0.3))
            axes.grid(visible=False)
            counts = [sum(row[3] == state for row in rows) for state in COLOURS]
            axes.set_xlabel(" / ".join(map(str, counts)))
        handles = [Line2D([], [], color=colour, marker=".", label=state) for state, colour in COLOURS.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        return to_png(figure)


def draw_document(found: Sequence[Found]) -> bytes:
    """A row for each claim of a document that was tested, with all its comparisons; PNG bytes, or none."""
    tested = [(each.claim.key, each.evidence) for each in found if each.evidence is not None]
    if not tested:
        return b""
    with drawing(WIDTH, _ROW * len(tested) + _MARGIN) as figure:
        axes = figure.subplots()
        for row, (_, evidence) in enumerate(tested):
            for compared in evidence.compared:
                value, low, high = place(compared)
                colour = COLOURS[compared.state]
                axes.plot([low, high], [row, row], color=colour, linewidth=1.6, alpha=0.35, solid_capstyle="butt")
                axes.plot(value, row, ".", color=colour, markersize=5)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(tested)), [key for key, _ in tested], fontsize=7)
        axes.set(xlim=(-FARTHEST - 0.3, FARTHEST + 0.3), ylim=(len(tested) - 0.4, -0.6))
        axes.set_xlabel("from the claim's bound, in half widths of the interval; right: as claimed")
        return to_png(figure)
