"""Tables of the pages of methods: what a loss costs, and what came of it."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from generators.kept import BENCHMARKS, DOCS, ledger, measured
from generators.markdown import table


def _cost_of_loss(loss: str) -> str:
    """What the last full run of the benchmark of losses measured of one of them."""
    if not (BENCHMARKS / "losses.json").exists():
        return "Not measured yet: `python benchmarks/losses.py` does."
    result = measured("losses")
    machine = result["machine"]
    rows = [
        (row["setting"], f"{row['milliseconds']:.3g} ms", f"{row['ratio']:.3g}")
        for row in result["table"]
        if row["loss"] == loss
    ]
    if not rows:
        return "Not timed yet: `python benchmarks/losses.py` times all losses, in about a minute."
    caption = (
        f"`python benchmarks/losses.py`, torch {machine['torch']}, one thread: the loss of a batch and its gradient, "
        "without a network, in embeddings of 128 dimensions. The ratio is to "
        "[`normalized-softmax`](normalized-softmax.md), which took turns with it."
    )
    return f"{table(('', 'time', 'ratio'), rows)}\n\n{caption}"


def _result_of_loss(loss: str) -> str:
    """One loss on the unseen birds of CUB, beside the default loss, a plain softmax and raw features."""
    from nearkin.metrics import class_bootstrap

    cells = ledger("cub_frozen")
    classes = sorted(cells[0]["gain per class"])

    def gains(of: str) -> np.ndarray:
        """Gain in MAP@R over raw features of each class, averaged over seeds."""
        return np.mean([[cell["gain per class"][one] for one in classes] for cell in cells if cell["loss"] == of], 0)

    def interval(values: np.ndarray) -> str:
        low, high = class_bootstrap(values, np.array(classes))
        return f"{100 * values.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    def row(of: str) -> tuple[str, ...]:
        mine = [cell for cell in cells if cell["loss"] == of]
        means = [f"{100 * sum(cell[key] for cell in mine) / len(mine):.1f}" for key in ("MAP@R", "P@1")]
        beside = "" if of == _BASELINE else interval(gains(of) - gains(_BASELINE))
        return (f"`{of}`", means[0], interval(gains(of)), beside, means[1])

    shown = dict.fromkeys((loss, "proxy-anchor", _BASELINE))
    raw = (
        "raw features, 1280 values",
        f"{100 * cells[0]['raw MAP@R']:.1f}",
        "",
        "",
        f"{100 * cells[0]['raw P@1']:.1f}",
    )
    header = ("", "MAP@R", "gain over raw features", f"over `{_BASELINE}`", "P@1")
    caption = (
        "`python studies/cub_frozen/run.py`: the 100 unseen classes of CUB-200-2011, a head of 128 dimensions on "
        "cached features of a frozen EfficientNet-Lite0, the recipe's settings, not tuned; means over three seeds, in "
        "percent, with 95 % intervals over classes."
    )
    return f"{caption}\n\n{table(header, [*map(row, shown), raw])}"


_BASELINE = "normalized-softmax"


def _quoted(page: str, heading: str) -> str:
    """The first table below a heading of a page of results."""
    text = (DOCS / "results" / f"{page}.md").read_text(encoding="utf-8")
    part = text.partition(f"## {heading}\n")[2]
    return re.search(r"(?:^\|.*\n)+", part, flags=re.MULTILINE)[0].strip()


def _slug(loss: str) -> str:
    """A loss's name as a mark can have it."""
    return re.sub(r"\W", "_", loss)


TABLES = {
    **{f"cost_of_{_slug(page.stem)}": partial(_cost_of_loss, page.stem) for page in (DOCS / "methods").glob("*.md")},
    **{f"result_of_{_slug(cell['loss'])}": partial(_result_of_loss, cell["loss"]) for cell in ledger("cub_frozen")},
    "sizes_differences": partial(_quoted, "sizes", "Differences, in points of MAP@R"),
    "confidence_clean": partial(_quoted, "confidence", "Clean queries"),
}
