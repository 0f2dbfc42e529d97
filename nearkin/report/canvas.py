"""The common look of pictures: colours, the plane of points, axes in pixels, and reproducible PNG bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

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


def place_axes(figure: Figure, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
    """Axes at an exact place, in CSS pixels from the upper left corner; the layout is up to the caller from then on."""
    figure.set_layout_engine("none")
    wide, high = (_PIXELS_PER_INCH * size for size in figure.get_size_inches())
    return figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high), **options)


def percent_axis(axes: Axes, which: str) -> None:
    """Write the ticks of one axis ("x" or "y") of shares as percent, with the digits they need."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")


# Ten classes want ten hues, as a small mark does not tell its shape; black is the edge of marks and so none of them.
HUES = (*(colour for colour in SERIES if colour != BLACK), "#8f9a1f", "#8c5a2b", "#8a939e", "#5b3fa8")


class Plane:
    """Where vectors (…, d) lie in the plane: as they are if they fit, else along the two main directions of `points`.

    Args:
        points: (n, d) with n > 0.
    """

    def __init__(self, points: np.ndarray) -> None:
        dimension = points.shape[1]
        self.centre, self.directions = np.zeros(dimension), np.eye(dimension, 2)
        if dimension > 2:
            self.centre = points.mean(axis=0, dtype=np.float64)
            _, vectors = np.linalg.eigh(np.cov(points.T, bias=True))
            self.directions = vectors[:, :-3:-1]
            # An eigenvector has no sign of its own: one rule, one picture.
            largest = np.abs(self.directions).argmax(axis=0)
            self.directions = self.directions * np.where(self.directions[largest, [0, 1]] < 0, -1.0, 1.0)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Coordinates (…, 2) of vectors (…, d)."""
        # Neither a copy less the centre nor one in double precision: the local features of a network are many.
        directions = self.directions.astype(np.float32) if vectors.dtype == np.float32 else self.directions
        return vectors @ directions - self.centre @ self.directions
