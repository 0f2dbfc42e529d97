"""The residuals suite: what varies inside classes, whether all classes vary alike, and what that looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.data.domain_splits import COLUMN
from nearkin.errors import DataError
from nearkin.metrics import ResidualResult, residual_metrics
from nearkin.recipe import AuditSection
from nearkin.report import NeighbourRow, Thumb, draw_neighbours
from nearkin.report.curves import draw_metric_curves
from nearkin.spaces import Sphere

_SHOWN = 6
"""Items, and clusters, that are drawn."""
_BESIDE = 5
_SIDE = 112


@suites.register("residuals")
def residuals_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """How much varies inside classes, in which directions that all share, and what nearest residuals have in common.

    A residual is an embedding minus the mean of its class. Where the data has a column that says what varies inside
    classes (`audit.residual_column`, or `domain`), nearest residuals and clusters are compared with it.
    """
    column, attributes = _attributes(subject, section)
    options: dict[str, Any] = {"attributes": attributes, "clusters": section.residual_clusters, "seed": section.seed}
    result = residual_metrics(subject.embeddings, subject.labels, neighbours=_BESIDE, **options)
    found = SuiteResult({_named(name, column): value for name, value in result.values.items()})
    if subject.baseline is not None:
        points = Sphere().project(torch.from_numpy(subject.baseline))
        theirs = residual_metrics(points, subject.labels, **options)
        found.baseline = {_named(name, column): value for name, value in theirs.values.items()}
    found.numbers = tuple(name for name in found.values if name.startswith("nearest"))
    found.primary = "shared directions"
    size = int(result.sizes[min(9, len(result.sizes) - 1)])
    found.notes.append(
        f"Residuals: embeddings minus the mean of their class. Shared directions compares what the {size} leading "
        f"directions of other classes explain ({_percent(result, 'of other classes', size)} of the variance) with "
        f"these classes' own ({_percent(result, 'their own', size)}) and with chance "
        f"({_percent(result, 'at random', size)}); nearest residuals are by cosine, in other classes, of "
        f"{len(result.rows):,} items; by chance is with the directions of each class shuffled."
    )
    found.details["residuals"] = {
        "sizes": result.sizes.tolist(),
        "explained": {name: shares.tolist() for name, shares in result.explained.items()},
        "column": column,
    }
    found.show(
        "Directions that classes share",
        "The share of the variance inside classes that so many directions explain: the leading directions of *other* "
        "classes, the classes' own, and random ones. Where the first two lines meet, all classes vary alike.",
        "Variance of residuals explained against the number of directions",
        draw_metric_curves,
        {
            "Variance inside classes explained": {
                name: (result.sizes, shares) for name, shares in result.explained.items()
            }
        },
        of="the audited classes",
        across="directions",
    )
    if subject.picture is not None:
        _draw_examples(found, subject, result, column, attributes)
    return found


def _attributes(subject: Subject, section: AuditSection) -> tuple[str, np.ndarray | None]:
    """The column that says what varies inside classes, and its values (n,); neither where there is none."""
    manifest = None if subject.items is None else subject.items.manifest
    asked = section.residual_column
    if asked is None:
        return (COLUMN, subject.domains) if subject.domains is not None else ("", None)
    if manifest is None or not manifest.has(asked):
        raise DataError(f"The data has no column '{asked}': set audit.residual_column to one it has, or to null.")
    return asked, manifest.column(asked)


def _named(name: str, column: str) -> str:
    """A metric's name with the column's name in the place of "attribute"."""
    return name.replace("attributes", column).replace("attribute", column)


def _percent(result: ResidualResult, name: str, size: int) -> str:
    return f"{100 * float(result.explained[name][int(np.searchsorted(result.sizes, size))]):.0f} %"


def _draw_examples(
    found: SuiteResult, subject: Subject, result: ResidualResult, column: str, attributes: np.ndarray | None
) -> None:
    """Items with the nearest residuals of other classes, and items at the centres of clusters."""

    def thumb(item: int) -> Thumb:
        kind = "" if attributes is None else f" · {attributes[item]}"
        return Thumb(subject.thumbnail(item, _SIDE), f"{subject.labels[item]}{kind}")

    def row(items: Sequence[int], numbers: Sequence[float]) -> NeighbourRow:
        first, *others = items
        alike = [attributes is None or bool(attributes[item] == attributes[first]) for item in others]
        told = zip(others, numbers, alike, strict=True)
        return NeighbourRow(thumb(first), [(thumb(item), float(number), same) for item, number, same in told])

    kinds = None if attributes is None else (f"same {column}", f"other {column}")
    order = np.argsort(-result.cosines[:, 0], kind="stable")
    places = order[np.linspace(0, len(order) - 1, _SHOWN).astype(int)]
    found.show(
        "Nearest residuals in other classes",
        "Items and the items of other classes that differ from their own class most alike, from the pair that is most "
        "alike to the least: what they have in common is what this model keeps besides the class.",
        "Grid of items with the items of other classes whose residuals are nearest",
        lambda: draw_neighbours(
            [row([result.rows[place], *result.nearest[place]], result.cosines[place]) for place in places],
            number="cosine",
            kinds=kinds,
        ),
    )
    members = [_central(result, subject.labels, cluster) for cluster in np.argsort(-np.bincount(_clustered(result)))]
    rows = [row(items, result.distances[items[1:]].tolist()) for items in members[:_SHOWN] if len(items) > 1]
    found.show(
        "Clusters of residuals",
        "One row a cluster, the largest first: the items nearest to its centre, each of another class.",
        "Grid of the items at the centres of clusters of residuals",
        lambda: draw_neighbours(rows, number="distance to the centre", kinds=kinds),
    )


def _clustered(result: ResidualResult) -> np.ndarray:
    return result.clusters[result.clusters >= 0]


def _central(result: ResidualResult, labels: np.ndarray, cluster: int) -> list[int]:
    """The items nearest to the centre of a cluster, each of another class, nearest first."""
    chosen: dict[object, int] = {}
    members = np.flatnonzero(result.clusters == cluster)
    for item in members[np.argsort(result.distances[members], kind="stable")]:
        chosen.setdefault(labels[item], int(item))
        if len(chosen) > _BESIDE:
            break
    return list(chosen.values())
