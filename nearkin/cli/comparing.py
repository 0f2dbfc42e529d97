"""`nearkin compare`."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from nearkin.errors import UnknownNameError, suggestion
from nearkin.report import Column, ComparisonRow, comparison_table, write_comparison
from nearkin.training import Run

_MAIN_METRICS = ("MAP@R", "R-precision", "P@1", "NMI")
"""What fits a terminal; the page has every metric."""


def compare_command(paths: list[Path], metric: str, out: Path | None) -> None:
    """Print the audits of runs side by side, and draw them when asked."""
    rows = [_row(Run(path)) for path in paths]
    metrics = dict.fromkeys(name for row in rows for name in row.values)
    if metric not in metrics:
        raise UnknownNameError(f"No audit of these runs has the metric '{metric}'.{suggestion(metric, metrics)}")
    data = {Run(path).audit()["facts"].get("data", "") for path in paths}
    shown = [name for name in dict.fromkeys((metric, *_MAIN_METRICS)) if name in metrics]
    Console(highlight=False, markup=False).print(comparison_table(rows, [Column(name) for name in shown]))
    if len(data) > 1:
        print(f"Note: these audits are of different data ({', '.join(sorted(data))}).")
    if out is not None:
        write_comparison(rows, metric, out)
        print(f"Report: {out}")


def _row(run: Run) -> ComparisonRow:
    audit = run.audit()
    missing = (math.nan, math.nan)
    values = {name: (value, *audit["intervals"].get(name, missing)) for name, value in audit["values"].items()}
    return ComparisonRow(run.path.name, run.recipe().name, values)
