"""The page of `run.py`: what its ledger says, as tables, sentences and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.metrics import class_bootstrap
from nearkin.report.curves import draw_sizes
from nearkin.storage import replacing
from studies.page_tables import table
from studies.places import DOCS

WAYS = {
    "PCA": ("plain", "PCA"),
    "first dimensions": ("plain", "first"),
    "trained prefixes": ("prefixes", "first"),
    "PCA of a model with trained prefixes": ("prefixes", "PCA"),
    "a model of that size": ("at", "first"),
}
_DRAWN = ("PCA", "first dimensions", "trained prefixes")
Values = dict[tuple[str, str, int], np.ndarray]
"""(loss, way, size) to MAP@R of each test class, averaged over seeds."""


def summarise(cells: list[dict[str, Any]]) -> Values:
    """What all seeds found, class by class."""
    found: dict[tuple[str, str, int], list[np.ndarray]] = {}
    for cell in cells:
        for way, (training, cut) in WAYS.items():
            if cell["training"].split()[0] != training:
                continue
            for size, of_classes in cell[cut].items():
                values = np.array(of_classes)
                found.setdefault((cell["loss"], way, int(size)), []).append(values)
                if training == "plain" and cut == "first" and int(size) == max(map(int, cell["first"])):
                    # The whole is a model of that size, too.
                    found.setdefault((cell["loss"], "a model of that size", int(size)), []).append(values)
    return {key: np.mean(values, axis=0) for key, values in found.items()}


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean of the values of classes (c,), and its 95 % interval with classes drawn anew."""
    low, high = class_bootstrap(values, np.arange(len(values)))
    return float(values.mean()), low, high


def points(value: float, low: float, high: float) -> str:
    """A difference of shares, in points, with its interval."""
    return f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def table_rows(values: Values) -> list[list[str]]:
    """A row for each loss and way: MAP@R in percent at each size."""
    sizes = sorted({size for _, _, size in values})
    return [
        [loss, way, *(_percent(values.get((loss, way, size))) for size in sizes)]
        for loss in dict.fromkeys(loss for loss, _, _ in values)
        for way in WAYS
    ]


def difference_rows(values: Values) -> list[list[str]]:
    """A row for each loss and pair of ways: how far the first is ahead at each size."""
    sizes = sorted({size for _, _, size in values})
    pairs = [
        ("trained prefixes", "first dimensions"),
        ("PCA", "first dimensions"),
        ("PCA", "trained prefixes"),
        ("PCA", "a model of that size"),
        ("trained prefixes", "a model of that size"),
    ]
    rows = []
    for loss in dict.fromkeys(loss for loss, _, _ in values):
        for one, other in pairs:
            gaps = [values[loss, one, size] - values[loss, other, size] for size in sizes]
            rows.append([loss, f"{one} − {other}", *(points(*interval(gap)) for gap in gaps)])
    return rows


def centre_rows(cells: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each loss and way to take principal components: MAP@R of the validation classes by size."""
    rows = []
    plain = [cell for cell in cells if "validation" in cell]
    for loss in dict.fromkeys(cell["loss"] for cell in plain):
        mine = [cell["validation"] for cell in plain if cell["loss"] == loss]
        for way in mine[0]:
            means = [np.mean([found[way][size] for found in mine]) for size in mine[0][way]]
            rows.append([loss, way, *(f"{100 * mean:.1f}" for mean in means)])
    return rows


def write_page(cells: list[dict[str, Any]]) -> None:
    """Write `docs/results/sizes.md` and its picture."""
    values = summarise(cells)
    losses, sizes = _losses_and_sizes(values)
    series: dict[str, Any] = {}
    ends: dict[str, Any] = {}
    for loss in losses:
        found = {way: [interval(values[loss, way, size]) for size in sizes] for way in _DRAWN}
        series[f"MAP@R, {loss},"] = {way: (sizes, [row[0] for row in rows]) for way, rows in found.items()}
        ends[f"MAP@R, {loss},"] = {way: tuple(zip(*rows, strict=True))[1:] for way, rows in found.items()}
    with replacing(DOCS / "images" / "sizes.png") as temporary:
        temporary.write_bytes(draw_sizes(series, intervals=ends, of="unseen birds"))
    with replacing(DOCS / "results" / "sizes.md") as temporary:
        temporary.write_text(page_text(cells), encoding="utf-8")


def page_text(cells: list[dict[str, Any]]) -> str:
    """The page in Markdown."""
    values = summarise(cells)
    losses, sizes = _losses_and_sizes(values)
    head = ["loss", "way", *map(str, sizes)]
    return _PAGE.format(
        seeds=len({cell["seed"] for cell in cells}),
        whole=sizes[-1],
        values=table(head, table_rows(values)),
        differences=table(head, difference_rows(values)),
        centres=table(head, centre_rows(cells)),
        verdict=_verdict(values, losses, sizes),
        cost=_cost(values, losses, sizes[-1]),
        seconds=_seconds(cells, losses),
        shorter="\n".join(f"- {_smallest(values, loss, way, sizes)}" for loss in losses for way in _DRAWN),
    )


def _losses_and_sizes(values: Values) -> tuple[list[str], list[int]]:
    return list(dict.fromkeys(loss for loss, _, _ in values)), sorted({size for _, _, size in values})


def _percent(values: np.ndarray | None) -> str:
    return "–" if values is None else f"{100 * float(values.mean()):.1f}"


def _verdict(values: Values, losses: list[str], sizes: list[int]) -> str:
    """Where PCA is ahead of trained prefixes by its interval, where behind, and where neither can be said."""
    told = []
    for loss in losses:
        where: dict[str, list[str]] = {"ahead of": [], "behind": [], "not surely apart from": []}
        for size in sizes[:-1]:
            _, low, high = interval(values[loss, "PCA", size] - values[loss, "trained prefixes", size])
            where["ahead of" if low > 0 else "behind" if high < 0 else "not surely apart from"].append(str(size))
        words = [f"{how} trained prefixes at {', '.join(found)}" for how, found in where.items() if found]
        told.append(f"with {loss}, PCA is {' and '.join(words)}")
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}."


def _cost(values: Values, losses: list[str], whole: int) -> str:
    gaps = {loss: values[loss, "trained prefixes", whole] - values[loss, "first dimensions", whole] for loss in losses}
    return "; ".join(f"{loss} {points(*interval(gap))}" for loss, gap in gaps.items())


def _seconds(cells: list[dict[str, Any]], losses: list[str]) -> str:
    def milliseconds(loss: str, training: str) -> float:
        mine = [cell for cell in cells if (cell["loss"], cell["training"]) == (loss, training)]
        # The fastest: others may have been at work on the same machine.
        return min(1000 * cell["seconds"] / cell["steps"] for cell in mine)

    return "; ".join(
        f"{loss} {milliseconds(loss, 'prefixes'):.0f} ms a step instead of {milliseconds(loss, 'plain'):.0f}"
        for loss in losses
    )


def _smallest(values: Values, loss: str, way: str, sizes: list[int]) -> str:
    """The smallest size that loses at most a point against the whole plain model, by the interval's upper end."""
    whole = values[loss, "first dimensions", sizes[-1]]
    chosen, told = sizes[-1], ""
    for size in reversed(sizes[:-1]):
        mean, low, high = interval(whole - values[loss, way, size])
        if high > 0.01:
            break
        chosen, told = size, f", which lose {100 * mean:.1f} points ({100 * low:.1f} to {100 * high:.1f})"
    if not told:
        return f"{loss}, {way}: none of these sizes."
    return f"{loss}, {way}: {chosen} dimensions{told}."


_PAGE = """# How short may embeddings be?

What is left of retrieval when embeddings of {whole} dimensions are cut short, on the 100 classes of CUB-200-2011 that
no model has seen. Models are linear heads on the cached features of a frozen EfficientNet-Lite0; classes 1-100 train,
20 of them choose the weights. `python studies/sizes/run.py --pages` measures all of this and writes this page; means
of {seeds} seeds.

![MAP@R against the number of dimensions](../images/sizes.png)

Bands: 95 % intervals with the test classes drawn anew. They are mostly about which classes were drawn, which is the
same for all ways: differences are told below, where it cancels.

## MAP@R of unseen classes, in percent

{values}

- **First dimensions**: of a model that was trained as usual, which has no reason to put anything there.
- **PCA**: principal components of the same model, fitted on the classes that trained it. `nearkin shorten --method
  pca`
- **Trained prefixes**: the first dimensions of a model that was trained with `objective.prefixes: [8, 16, 32, 64]`.
  `nearkin shorten --method prefix`
- **A model of that size**: trained for itself, with that `model.dimension`.

## Differences, in points of MAP@R

Paired by class, with 95 % intervals over classes.

{differences}

## What to take from it

The smallest size that loses at most one point against the whole plain model, by the upper end of the interval:

{shorter}

{verdict} With a linear head on frozen features, a prefix can only learn to tell the training classes
apart, and PCA keeps whatever varies among them, which seems to serve unseen classes better.

Prefixes that were trained are far ahead of those that were not. At full size they neither cost nor gain much; trained
prefixes minus plain at {whole} dimensions: {cost}.
Whether models gain more from prefixes if their backbone trains along, this page does not measure.

Training prefixes takes time for each of them: {seconds}, features being cached. Where the backbone is trained, its
time is most of a step.

## How principal components are taken on the sphere

MAP@R of the validation classes, in percent, of the plain models: three ways that a linear head can hold. The first is
the one that `PrincipalRotation` takes, chosen by this table.

{centres}

Directions around zero spend the first on the mean of all embeddings, which tells no class from another. Taking the
mean off changes every angle, also at full size. Directions around the mean, with nothing taken off, do neither.
"""
