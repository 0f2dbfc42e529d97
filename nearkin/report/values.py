"""What a report shows: plain values, so that anything able to fill them can be reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MetricRow:
    """One line of the metric table.

    Args:
        name: the metric, as in the literature: "MAP@R".
        value: its value; NaN is shown as an en dash.
        low: lower end of its interval.
        high: upper end of its interval.
        note: a few words beside it.
        percent: whether the value is a share of 1, shown in percent.
        baseline: the same metric of what this is compared with, if anything.
        lower_is_better: the direction; such a metric is marked with an arrow.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    note: str = ""
    percent: bool = True
    baseline: float | None = None
    lower_is_better: bool = False


@dataclass(frozen=True)
class Figure:
    """A picture with its words; a figure without bytes is left out of the page.

    Args:
        title: heading above the picture.
        caption: how to read it, below the picture.
        png: the picture, twice as many pixels as it shall measure on the page.
        alt: what it shows, for those who cannot see it.
    """

    title: str
    caption: str
    png: bytes
    alt: str


@dataclass(frozen=True)
class TextTable:
    """A table of texts under a heading.

    Args:
        title: the heading.
        headings: the columns.
        rows: for every row its cells, each with its lines of text; the first cell names the row.
        notes: what its reader must know.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Sequence[str]]]
    notes: Sequence[str] = ()


@dataclass
class Report:
    """Everything on the page of one run; empty parts are left out.

    Args:
        title: the name of the run or audit.
        verdict: the one sentence to take away.
        metrics: lines of the metric table.
        sections: pictures, in order.
        recipe_yaml: the resolved recipe.
        notes: what the reader must know: dropped queries, skipped files, where the data came from.
        facts: short pairs: data, classes, items, seconds, versions.
        next_steps: what to try next; `backticks` mark commands.
        baseline_name: heading of the baseline column.
        level: level of the intervals.
    """

    title: str
    verdict: str = ""
    metrics: list[MetricRow] = field(default_factory=list)
    sections: list[Figure] = field(default_factory=list)
    recipe_yaml: str = ""
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    next_steps: list[str] = field(default_factory=list)
    baseline_name: str = "baseline"
    level: float = 0.95
