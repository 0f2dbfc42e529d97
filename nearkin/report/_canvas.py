"""The look all pictures share, and how a matplotlib figure becomes PNG bytes that depend on nothing else."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#616e7c"
FAINT = "#c3cad2"
GRID = "#e8ebef"

# Okabe and Ito's palette, told apart with any kind of colour vision; its yellow is too pale for a white card.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#000000",
)
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v")  # 5 and 7 share no divisor: 35 different pairs of colour and marker
DASHES = ("-", "--", "-.", ":")

WIDTH = 720  # on the page; the PNG has twice as many pixels, for screens that have them
_DPI = 200
_PIXELS_PER_INCH = 100

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$5"
    "axes.edgecolor": FAINT,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure of a size in CSS pixels, drawn in our style whatever the user's matplotlibrc says."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        size = (width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH)
        figure = Figure(figsize=size, dpi=_DPI, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        yield figure


def to_png(figure: Figure) -> bytes:
    """The figure's pixels; no date and no version inside, so that equal pictures are equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def percent_axis(axes: Axes, which: str) -> None:
    """Write the ticks of one axis ("x" or "y") of shares as percent, with the digits they need."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")
