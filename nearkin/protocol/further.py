"""The second table of a book: the metrics that papers report besides, NMI, Recall@k and kNN-Acc."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nearkin.protocol.cells import UNTRAINED_TITLE
from nearkin.protocol.contents import Contents
from nearkin.protocol.measuring import CLUSTERED, COUNTED
from nearkin.protocol.summary import Summary
from nearkin.report.formatting import MISSING, interval_text, value_text
from nearkin.report.protocol import CONCATENATED, KINDS, SEPARATE, BenchmarkRow
from nearkin.report.values import TextTable

_SHARES = {"Recall@1": "P@1", **{metric: metric for metric in COUNTED}}
"""Columns that are shares of queries, and what the ledger calls them."""


def further_table(contents: Contents, summary: Summary) -> TextTable | None:
    """The table; None where no cell has these metrics, as in books that earlier versions made.

    In a fair book every recipe has two lines, one for single models and one for all folds together.
    """
    if not summary.further:
        return None
    fair = contents.protocol == "fair"
    mark = "" if fair else ", test-selected"
    headings = ["recipe", *(["embeddings"] if fair else []), *(f"{name}{mark}" for name in (CLUSTERED, *_SHARES))]
    lines = []
    for row in summary.rows:
        for kind in KINDS if fair else (SEPARATE,):
            lines.append([[row.name], *([[kind]] if fair else []), *_cells(row, kind)])
    if summary.untrained:
        row = BenchmarkRow(UNTRAINED_TITLE, {SEPARATE: summary.untrained})
        lines.append([[row.name], *([[MISSING]] if fair else []), *_cells(row, SEPARATE)])
    return TextTable("NMI, Recall@k and kNN-Acc", headings, lines, list(_notes(contents, summary)))


def further_numbers(row: BenchmarkRow, kind: str) -> dict[str, float]:
    """The same numbers of one recipe for a file: name of the column to number, NaN where there is none."""
    numbers = {f"{kind}_{CLUSTERED}": row.value(kind, CLUSTERED)[0]}
    for end, value in zip(("_min", "_max"), row.ranges.get(kind, (math.nan, math.nan)), strict=True):
        numbers[f"{kind}_{CLUSTERED}{end}"] = value
    for name, metric in _SHARES.items():
        # Recall@1 stands beside the others, and is empty where they are.
        values = row.value(kind, metric) if _has(row, kind) else (math.nan, math.nan, math.nan)
        for end, value in zip(("", "_low", "_high"), values, strict=True):
            numbers[f"{kind}_{name}{end}"] = value
    return numbers


def _cells(row: BenchmarkRow, kind: str) -> Iterator[list[str]]:
    """NMI above its range, then every share above its interval."""
    if not _has(row, kind):
        yield from ([MISSING] for _ in (CLUSTERED, *_SHARES))
        return
    spread = [f"range {interval_text(*row.ranges[kind], True)}"] if kind in row.ranges else []
    yield [value_text(row.value(kind, CLUSTERED)[0], True), *spread]
    for metric in _SHARES.values():
        yield row.texts(kind, metric)


def _has(row: BenchmarkRow, kind: str) -> bool:
    return CLUSTERED in row.values.get(kind, {})


def _notes(contents: Contents, summary: Summary) -> Iterator[str]:
    fair = contents.protocol == "fair"
    yield (
        "Recall@k: of the query's class is at least one of its k nearest (Recall@1 is P@1). kNN-Acc: at least 3 of the "
        f"5 nearest are. NMI: k-means with {len(contents.test_classes)} clusters, one for each test class, against the "
        "classes, normalised by the arithmetic mean of both entropies."
    )
    yield (
        "Below Recall@k and kNN-Acc the 95 % interval, as in the first table; below NMI the least and the greatest of "
        f"the single {f'folds and seeds, or of the seeds where folds are {CONCATENATED}' if fair else 'seeds'}: a "
        "clustering has no queries to resample, and models that share their test classes tell nothing of others."
    )
    rows = [*summary.rows, BenchmarkRow(UNTRAINED_TITLE, {SEPARATE: summary.untrained})]
    if any(values and not _has(row, kind) for row in rows for kind, values in row.values.items()):
        yield f"{MISSING} where MAP@R has a value: an earlier version measured some of these models without them."
