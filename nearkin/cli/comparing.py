"""`nearkin compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nearkin.cli.pairing import Audited, by_merit, class_differences, contrast_with
from nearkin.errors import UnknownNameError, suggestion
from nearkin.report import Column, ComparisonRow, Figure, comparison_table, write_comparison
from nearkin.report.comparison import Contrast
from nearkin.report.differences import draw_class_differences
from nearkin.training import Run

_MAIN_METRICS = ("MAP@R", "P@1", "NMI", "R-precision")
"""What to show on a terminal, as far as it is wide enough; the page has every metric."""


def compare_command(paths: list[Path], metric: str, against: Path | None, out: Path | None) -> None:
    """Print the audits of runs side by side with paired differences, and draw them when asked."""
    chosen = None
    if against is not None:
        if against.resolve() not in [path.resolve() for path in paths]:
            paths = [against, *paths]
        chosen = [path.resolve() for path in paths].index(against.resolve())
    runs = [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    rows = [run.row for run in runs]
    metrics = dict.fromkeys(name for row in rows for name in row.values)
    if metric not in metrics:
        raise UnknownNameError(f"No audit of these runs has the metric '{metric}'.{suggestion(metric, metrics)}")
    column = _column(runs, metric)
    contrast, notes = contrast_with(runs, column, chosen)
    console = Console(highlight=False, markup=False)
    shown = [name for name in dict.fromkeys((metric, *_MAIN_METRICS)) if name in metrics]
    console.print(_fitting_table(console, rows, [_column(runs, name) for name in shown], contrast))
    for note in notes:
        console.print(note)
    if out is not None:
        columns = [column, *(_column(runs, name) for name in metrics if name != metric)]
        figures = _class_figures(runs, column)
        write_comparison(rows, column, out, columns=columns, notes=notes, contrast=contrast, figures=figures)
        print(f"Report: {out}")


def _fitting_table(
    console: Console, rows: Sequence[ComparisonRow], columns: Sequence[Column], contrast: Contrast | None
) -> Table:
    """The table with as many metrics as the terminal has room for, the first always."""
    unbounded = console.options.update(max_width=10_000)
    for count in range(len(columns), 1, -1):
        table = comparison_table(rows, columns[:count], contrast=contrast)
        if console.measure(table, options=unbounded).maximum <= console.width:
            return table
    return comparison_table(rows, columns[:1], contrast=contrast)


def _column(runs: Sequence[Audited], metric: str) -> Column:
    return Column(
        metric,
        percent=not any(metric in run.numbers for run in runs),
        lower_is_better=any(metric in run.lower_is_better for run in runs),
    )


def _read(path: Path, name: str) -> Audited:
    run = Run(path)
    audit = run.audit()
    missing = (math.nan, math.nan)
    values = {metric: (value, *audit["intervals"].get(metric, missing)) for metric, value in audit["values"].items()}
    return Audited(
        ComparisonRow(name, run.recipe().name, values),
        audit["per_class"],
        audit["facts"],
        tuple(audit["lower_is_better"]),
        tuple(audit["numbers"]),
        audit["details"].get("hierarchy", {}),
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """The directories' names, or the whole paths where names are not enough to tell them apart."""
    names = [path.name or path.resolve().name for path in paths]
    return [str(path) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]


def _class_figures(runs: Sequence[Audited], column: Column) -> list[Figure]:
    """The picture of the best run against the runner-up, where they can be paired."""
    places, metric = by_merit(runs, column), column.metric
    differences = class_differences(runs[places[0]], runs[places[1]], metric) if len(places) > 1 else {}
    if not differences:
        return []
    first, second = (runs[place].row.run for place in places[:2])
    return [
        Figure(
            f"{first} against {second}, class by class",
            f"Each bar is a class: its {metric} with {first} minus that with {second}. Blue: {first} is ahead. A lead "
            "that few classes carry is less sure than one most of them share.",
            draw_class_differences(differences, first, second, metric, percent=column.percent),
            f"Sorted differences in {metric} of {len(differences)} classes between {first} and {second}",
        )
    ]
