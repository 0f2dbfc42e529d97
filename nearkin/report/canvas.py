"""The common look of pictures: colours, panels, notes, legends, parts placed by pixels, and reproducible PNG bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.report.values import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D
    from PIL import Image


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
_THINNEST = 2  # CSS pixels a letter takes at least; what could not fit anyhow is not even measured

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


def percent_axis(axes: Axes, *which: str) -> None:
    """Write the ticks of axes ("x" or "y") of shares as percent, with the digits they need."""
    for name in which:
        getattr(axes, f"{name}axis").set_major_formatter(lambda share, _: f"{100 * share:.4g} %")


def plain_axis(axes: Axes, *which: str) -> None:
    """Write the ticks of axes ("x" or "y") as plain numbers."""
    for name in which:
        getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: f"{value:.4g}")


def panel_grid(figure: Figure | SubFigure, count: int, columns: int, **options: Any) -> list[Axes]:
    """So many axes of one size, row by row; places that are left over stay empty."""
    grid = figure.subplots(-(-count // columns), columns, squeeze=False, **options)
    for axes in grid.flat[count:]:
        axes.remove()
    return list(grid.flat[:count])


def note(axes: Axes, words: str, at: Any, shift: tuple[float, float] = (0, 0), of: Any = "data", **look: Any) -> None:
    """Write words so many points beside a place, which is one of the data or of what else `of` says."""
    axes.annotate(words, at, xycoords=of, xytext=shift, textcoords="offset points", **look)


def heading(axes: Axes, title: str, below: str = "", *, size: float = 10, **look: Any) -> None:
    """The title of a panel and, on a line of its own, what was measured."""
    axes.set_title(title, fontsize=size, pad=18 if below else 6)
    if below:
        note(axes, below, (0, 1), (0, 5), "axes fraction", **{"fontsize": 9, **look})


def mark(label: str, **look: Any) -> Line2D:
    """A line or marker for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def draw_legend(
    figure: Figure | SubFigure, handles: Sequence[Any], columns: int, place: str = "outside upper left", **look: Any
) -> None:
    """A legend beside all panels."""
    options: Any = {"loc": place, "fontsize": 9, **look}
    figure.legend(handles=list(handles), ncols=columns, **options)


def name_rows(axes: Axes, names: Sequence[str], size: float, rim: tuple[float, float] = (0.4, 0.6)) -> None:
    """Names down the left of a panel whose rows lie at 0, 1, 2 …, from the top."""
    axes.set_yticks(range(len(names)), names, color=INK, fontsize=size)
    axes.set_ylim(len(names) - rim[0], -rim[1])
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def frame_axes(axes: Axes, colour: str = "", width: float = 0.8) -> None:
    """No grid, and all four sides in one colour; without a colour, none."""
    axes.grid(False)
    axes.spines[:].set_visible(bool(colour))
    if colour:
        axes.spines[:].set(color=colour, linewidth=width)


def on_white(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB, transparent parts white."""
    if image.has_transparency_data:
        from PIL import Image as images

        image = images.alpha_composite(images.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """An image in another size: large steps up show honest pixels, all else is a photograph to be resampled."""
    from PIL.Image import Resampling

    return image.resize(size, Resampling.NEAREST if size[0] >= 2.5 * image.width else Resampling.LANCZOS)


class Sheet:
    """A figure whose parts have exact places, in CSS pixels from the upper left corner."""

    def __init__(self, figure: Figure) -> None:
        figure.set_layout_engine("none")
        self.figure = figure
        self.width, self.height = (float(_PIXELS_PER_INCH * size) for size in figure.get_size_inches())

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Axes of a size."""
        return self.figure.add_axes(self._box(left, top, width, height), **options)

    def paste(self, image: Image.Image, left: int, top: int) -> None:
        """An image with two pixels for each of the page, pixel by pixel."""
        pixels = np.asarray(image.convert("RGB"))
        self.figure.figimage(pixels, 2 * left, round(2 * (self.height - top)) - len(pixels))

    def box(self, left: float, top: float, width: float, height: float, colour: str) -> None:
        """Fill a box."""
        from matplotlib.patches import Rectangle

        x, y, wide, high = self._box(left, top, width, height)
        self.figure.add_artist(Rectangle((x, y), wide, high, color=colour, linewidth=0))

    def rule(self, top: float, rim: float) -> None:
        """A thin line across, so far from both sides."""
        from matplotlib.lines import Line2D

        x, y = rim / self.width, 1 - top / self.height
        self.figure.add_artist(Line2D([x, 1 - x], [y, y], color=GRID, linewidth=1))

    def write(self, left: float, top: float, words: str, size: float, **look: Any) -> None:
        """Words whose middle line, unless `va` says else, is at a height."""
        look = {"va": "center", **look}
        self.figure.text(left / self.width, 1 - top / self.height, words, fontsize=size, **look)

    def _box(self, left: float, top: float, width: float, height: float) -> tuple[float, float, float, float]:
        return left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line of text in CSS pixels, at a size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    # All is said here: what is left out of a FontProperties comes from the user's settings.
    look: Any = {"style": "normal", "variant": "normal", "stretch": "normal", "math_fontfamily": "dejavusans"}
    font = FontProperties(family="DejaVu Sans", weight=weight, size=size, **look)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)Glyph .* missing from")
        return _PIXELS_PER_INCH / 72 * float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def fit_text(text: str, width: float, size: float, weight: str = "normal") -> str:
    """A clean line no wider than `width` CSS pixels, an ellipsis standing for the rest."""
    line = shorten(text, max(1, int(width // _THINNEST)))
    for limit in range(len(line), 0, -1):
        line = shorten(text, limit)
        if text_width(line, size, weight) <= width:
            break
    return line


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
