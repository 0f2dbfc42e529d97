"""The tables of a report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from nearkin.report.comparison import Column, ComparisonRow, Contrast, all_columns, best_rows
from nearkin.report.values import (
    LOWER,
    MISSING,
    MetricRow,
    change_text,
    clean,
    interval_text,
    level_text,
    shorten,
    value_text,
)

_HEADING = 22  # letters of a heading before it goes on in the next line


def metric_table(
    rows: Sequence[MetricRow], *, title: str = "", baseline_name: str = "baseline", level: float = 0.95
) -> Table:
    """The metric table, with only those columns that some row fills."""
    table = _table(title)
    if any(row.lower_is_better for row in rows):
        table.caption, table.caption_justify = f"{LOWER} lower is better", "left"
    intervals = [interval_text(row.low, row.high, row.percent) for row in rows]
    baselines = [MISSING if row.baseline is None else value_text(row.baseline, row.percent) for row in rows]
    changes = [change_text(row.value, row.baseline, row.percent) for row in rows]
    names = [f"{row.name} {LOWER}" if row.lower_is_better else row.name for row in rows]
    with_baseline = any(row.baseline is not None for row in rows)
    number: dict[str, Any] = {"justify": "right"}
    columns = [
        ("metric", names, True, {"style": "bold"}),
        ("value", [value_text(row.value, row.percent) for row in rows], True, number),
        (level_text(level), intervals, any(text != MISSING for text in intervals), {**number, "style": "dim"}),
        (baseline_name, baselines, with_baseline, number),
        ("change", changes, with_baseline, number),
        ("note", [row.note for row in rows], any(row.note for row in rows), {"style": "dim"}),
    ]
    shown = [(heading, texts, look) for heading, texts, filled, look in columns if filled]
    for heading, _, look in shown:
        table.add_column(_text(heading), **look)
    for cells in zip(*(texts for _, texts, _ in shown), strict=True):
        table.add_row(*map(_text, cells))
    return table


def comparison_table(
    rows: Sequence[ComparisonRow],
    columns: Sequence[Column] | None = None,
    *,
    title: str = "",
    contrast: Contrast | None = None,
) -> Table:
    """One line a run, value above interval; the best of each column is bold and starred.

    Beside the metric of the contrast stands how far each run is from the reference: difference, interval, p-value.
    """
    table = _table(title)
    table.add_column("run", style="bold", overflow="fold")
    table.add_column("recipe", overflow="fold")
    chosen = all_columns(rows) if columns is None else columns
    best = [best_rows(rows, column) for column in chosen]
    if any(column.lower_is_better for column in chosen):
        table.caption, table.caption_justify = f"{LOWER} lower is better", "left"
    for column in chosen:
        name = f"{column.metric} {LOWER}" if column.lower_is_better else column.metric
        table.add_column(_text(name), justify="right", no_wrap=True)
        if contrast is not None and contrast.metric == column.metric:
            table.add_column(Text(f"difference\nto {shorten(contrast.heading, 16)}"), justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        cells = [_text(row.run), _text(row.recipe)]
        for column, winners in zip(chosen, best, strict=True):
            value, low, high = row.value(column.metric)
            wins = place in winners
            cell = Text(("★ " if wins else "") + value_text(value, column.percent), style="bold green" if wins else "")
            interval = interval_text(low, high, column.percent)
            if interval != MISSING:
                cell.append(f"\n{interval}", style="not bold dim default")
            cells.append(cell)
            if contrast is not None and contrast.metric == column.metric:
                cells.append(Text("\n".join(contrast.cell(place, column.percent))))
        table.add_row(*cells)
    return table


def text_table(headings: Sequence[str], rows: Sequence[Sequence[Sequence[str]]], *, title: str = "") -> Table:
    """A table of texts: for every row its cells, each with its lines; the first cell names the row."""
    table = _table(title)
    for place, heading in enumerate(headings):
        folded = Text("\n".join(wrap(clean(heading), _HEADING)))
        if place:
            table.add_column(folded, justify="right", no_wrap=True)
        else:
            table.add_column(folded, style="bold", overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(map(clean, cell))) for cell in row))
    return table


def _table(title: str) -> Table:
    return Table(title=_text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _text(text: str) -> Text:
    """Text as it is: names in [brackets] are not markup."""
    return Text(clean(text))
