"""A self-contained HTML file: inline style, pictures as data, no requests."""

from __future__ import annotations

import base64
import math
import os
import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from nearkin.errors import DataError
from nearkin.report.comparison import (
    Column,
    ComparisonRow,
    Contrast,
    all_columns,
    best_rows,
    draw_comparison,
    p_statement,
)
from nearkin.report.values import (
    MISSING,
    Figure,
    MetricRow,
    Report,
    TextTable,
    change_text,
    interval_text,
    level_text,
    value_text,
)
from nearkin.storage import write_text

_PNG = b"\x89PNG\r\n\x1a\n"
_SHOWN = 0.05  # a p-value up to which a difference counts as shown
_WIDE = 760  # a picture wider than this has the whole width of the page to itself


def render_report(report: Report) -> str:
    """The page of one run; parts without content are left out."""
    return _render(
        "report.html.j2",
        report=report,
        figures=_pictures(report.sections),
        with_intervals=any(interval_text(row.low, row.high, row.percent) != MISSING for row in report.metrics),
        with_bars=any(_bar(row) for row in report.metrics),
        with_baseline=any(row.baseline is not None for row in report.metrics),
        with_notes=any(row.note for row in report.metrics),
    )


def write_report(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the page of one run atomically."""
    write_text(path, render_report(report))


def render_comparison(
    rows: Sequence[ComparisonRow],
    columns: Sequence[Column] | None = None,
    *,
    title: str = "Comparison",
    verdict: str = "",
    figures: Sequence[Figure] = (),
    notes: Sequence[str] = (),
    level: float = 0.95,
    contrast: Contrast | None = None,
) -> str:
    """A page that compares runs, with the best value of each column marked.

    Args:
        rows: the runs.
        columns: the metrics to show; by default all the rows have.
        title: heading of the page.
        verdict: the one sentence to take away.
        figures: pictures, such as `draw_comparison` makes.
        notes: what the reader must know.
        level: level of the intervals.
        contrast: how far the runs are from one of them, shown beside its metric.
    """
    chosen = all_columns(rows) if columns is None else list(columns)
    return _render(
        "comparison.html.j2",
        title=title,
        verdict=verdict,
        rows=rows,
        columns=[(column, best_rows(rows, column)) for column in chosen],
        figures=_pictures(figures),
        notes=notes,
        level=level,
        contrast=contrast,
    )


def render_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Sequence[str]]],
    *,
    figures: Sequence[Figure] = (),
    notes: Sequence[str] = (),
    further: Sequence[TextTable] = (),
) -> str:
    """A page with a table of texts, the first cell of a row naming it.

    Args:
        title: heading of the page.
        headings: the columns.
        rows: for every row its cells, each with its lines of text; the first line of a cell is the one that counts.
        figures: pictures below the table.
        notes: what the reader must know.
        further: tables below all that.
    """
    table = TextTable(title, headings, rows)
    return _render("table.html.j2", table=table, figures=_pictures(figures), notes=notes, further=further)


def write_comparison(
    rows: Sequence[ComparisonRow],
    metric: Column | str,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[Column] | None = None,
    notes: Sequence[str] = (),
    contrast: Contrast | None = None,
    figures: Sequence[Figure] = (),
) -> None:
    """Write the comparison of runs, with one metric drawn and its best run named.

    Args:
        rows: the runs.
        metric: what to draw and judge by; a name stands for a share of which more is better.
        path: where to write the page.
        columns: the metrics of the table; by default all the rows have, this one first.
        notes: what the reader must know.
        contrast: how far the runs are from one of them in this metric.
        figures: more pictures, below the one of the metric.
    """
    column = Column(metric) if isinstance(metric, str) else metric
    figure = Figure(
        column.metric,
        "Dots are values, lines their intervals; the diamond is the best. An interval is about one run on other "
        "classes; whether two runs differ is told by their paired difference, even where intervals overlap.",
        draw_comparison(rows, column),
        f"{column.metric} of {len(rows)} runs with intervals, best on top",
    )
    if columns is None:
        columns = [column, *(other for other in all_columns(rows) if other.metric != column.metric)]
    verdict, figures = _verdict(rows, column, contrast), [figure, *figures]
    page = render_comparison(rows, columns, verdict=verdict, figures=figures, notes=notes, contrast=contrast)
    write_text(path, page)


def _verdict(rows: Sequence[ComparisonRow], column: Column, contrast: Contrast | None) -> str:
    """Which run is best, and whether it is shown to be better than the one it leads by least."""
    best = sorted(best_rows(rows, column))
    if not best:
        return ""
    value = value_text(rows[best[0]].value(column.metric)[0], column.percent)
    verdict = f"Best {column.metric}: {value}, {' and '.join(rows[place].run for place in best)}"
    if contrast is None or best != [contrast.reference] or not contrast.differences:
        return f"{verdict}."
    sign = -1 if column.lower_is_better else 1
    next_best = max(contrast.differences, key=lambda place: sign * rows[place].value(column.metric)[0])
    difference, name = contrast.differences[next_best], rows[next_best].run
    if not difference.p_value <= _SHOWN or sign * difference.mean >= 0:
        return f"{verdict}; not shown to be better than {name} ({p_statement(difference.p_value)})."
    lead = change_text(abs(difference.mean), 0.0, column.percent)[1:] + (" points" if column.percent else "")
    return f"{verdict}; ahead of {name} by {lead} ({p_statement(difference.p_value)})."


def _pictures(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Figures as the templates want them: with a data address and their size in CSS pixels."""
    pictures = []
    for figure in figures:
        if not figure.png:
            continue
        if not figure.png.startswith(_PNG):
            raise DataError(f"The figure '{figure.title}' is not a PNG: pass the bytes of a PNG file.")
        width, height = (math.ceil(size / 2) for size in struct.unpack(">II", figure.png[16:24]))
        source = "data:image/png;base64," + base64.b64encode(figure.png).decode("ascii")
        pictures.append({**vars(figure), "source": source, "width": width, "height": height, "wide": width > _WIDE})
    return pictures


def _bar(row: MetricRow) -> dict[str, float]:
    """Where value, interval and baseline of a share lie between 0 and 100; empty if there is nothing to draw."""
    if not row.percent or not math.isfinite(row.value):
        return {}
    marks = {"value": row.value, "low": row.low, "high": row.high}
    if row.baseline is not None:
        marks["baseline"] = row.baseline
    return {name: round(100 * min(max(at, 0.0), 1.0), 1) for name, at in marks.items() if math.isfinite(at)}


def _render(template: str, **values: Any) -> str:
    page = _templates().get_template(template).render(values)
    # File names may hold bytes that are no Unicode; a page must still be writable.
    return page.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("nearkin.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A line is escaped first, then its `backticked` parts are shown as code.
    code = re.compile(r"`([^`]+)`")
    environment.filters["inline_code"] = lambda text: Markup(code.sub(r"<code>\1</code>", str(escape(text))))
    texts = {text.__name__: text for text in (value_text, interval_text, change_text, level_text)}
    environment.globals.update(texts, bar=_bar, MISSING=MISSING)
    return environment
