"""`nearkin geometry` and `correlate`: the embedding geometry of runs, and which of their measures go together."""

from __future__ import annotations

import json as files
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nearkin.cli.output import check_ending, directory_names, show_table, write_page_or_picture
from nearkin.errors import DataError, RunError, suggestion
from nearkin.metrics.geometry import GEOMETRY
from nearkin.metrics.paired import CorrelationTable, MeasureCorrelation, geometry_correlations, rank_correlations
from nearkin.report import Figure
from nearkin.report.geometry import draw_measures
from nearkin.report.page import render_table
from nearkin.report.values import MISSING, TextTable, change_text, p_text, value_text
from nearkin.storage import write_json, write_text
from nearkin.training import Run

_FEWEST = 3
_INPUTS = ("MC, input l2", "MC, input linf")
_RERANKED = "re-ranking"


@dataclass(frozen=True)
class AuditedRun:
    """A run and its audits on one data set.

    Args:
        name: of the run.
        data: the data set.
        values: metric to value.
        numbers: the metrics that are plain numbers, not shares.
    """

    name: str
    data: str
    values: dict[str, float]
    numbers: frozenset[str]


def geometry_command(paths: Sequence[Path], against: str, out: Path | None, json: Path | None) -> None:
    """Print the geometry of audited runs and its correlation with a metric; write files if requested."""
    check_ending(out)
    if len(paths) < _FEWEST:
        raise DataError(f"A correlation requires at least {_FEWEST} runs, not {len(paths)}: give more.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise DataError("The same run is given twice: give each run once.")
    runs = [_read(path, name, against) for path, name in zip(paths, directory_names(paths), strict=True)]
    measures = [name for name in (*GEOMETRY, *_INPUTS) if name != against and all(name in run.values for run in runs)]
    found = geometry_correlations([run.values for run in runs], measures, against)
    headings = ["run", against, *measures]
    values = [[[run.name], *([_value(run.values[metric], metric, run)] for metric in headings[1:])] for run in runs]
    columns = ["measure", "runs", "Pearson r", "p", "Holm p", "Spearman r", "p (ranks)", "Holm p (ranks)"]
    correlations = [[[cell] for cell in _correlation_cells(one)] for one in found.measures.values()]
    tables = [
        TextTable("Geometry of runs", headings, values),
        TextTable(f"Correlation with {against} over runs", columns, correlations),
    ]
    notes = _notes(runs, found)
    for table in tables:
        rows = [[" ".join(cell) for cell in row] for row in table.rows]
        show_table(table.headings, rows, numbers=table.headings[1:], title=table.title)
        print()
    for note in notes:
        print(note)
    if json is not None:
        told = [
            {"run": str(path), "name": run.name, "data": run.data, "values": run.values}
            for path, run in zip(paths, runs, strict=True)
        ]
        write_json(json, {"runs": told, **found.to_dict(), "notes": notes})
        print(f"Numbers: {json}")
    if out is not None:
        _write(out, runs, found, tables, notes)


def correlate_command(paths: Sequence[Path], measures: Sequence[str], out: Path | None, json: Path | None) -> None:
    """Print Spearman's correlation of every two measures over audited runs; write files if requested."""
    if out is not None and out.suffix.lower() != ".html":
        raise DataError(f"Unknown file type {out}: --out must end in .html.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise DataError("The same run is given twice: give each run once.")
    runs = [_audited(path) for path in paths]
    for path, values in zip(paths, runs, strict=True):
        for measure in measures:
            if measure not in values:
                raise RunError(
                    f"No audit of {path} has '{measure}': audit it with a suite that measures it, or choose another "
                    f"with --measure.{suggestion(measure, values)}"
                )
    found = rank_correlations(runs, measures)
    names = list(dict.fromkeys(measures))
    rows = [
        [[row], *([_rank_cell(found, row, column)] for column in names[: place + 1])] for place, row in enumerate(names)
    ]
    table = TextTable(
        f"Spearman's correlation over {len(runs)} runs",
        ["measure", *names],
        [row + [[""]] * (len(names) + 1 - len(row)) for row in rows],
    )
    notes = [
        "In brackets p, corrected by Holm for all pairs of the table, and exact for up to 8 runs.",
        "Correlation is not causation: recipes that differ in several ways differ in all of these.",
    ]
    show_table(table.headings, [[" ".join(cell) for cell in row] for row in table.rows], title=table.title)
    for note in notes:
        print(note)
    if json is not None:
        pairs = [{"of": list(pair), **_plain(one)} for pair, one in found.items()]
        write_json(json, {"runs": list(map(str, paths)), "measures": names, "pairs": pairs, "notes": notes})
        print(f"Numbers: {json}")
    if out is not None:
        write_text(out, render_table(table.title, table.headings, table.rows, figures=[], notes=notes))
        print(f"Page: {out}")


def _audited(path: Path) -> dict[str, float]:
    """Every metric of a run's audits on the data of the first of them."""
    audits = list(_audits(path))
    if not audits:
        raise RunError(f"{path} has no audit: run `nearkin audit {path}` first.")
    data = audits[0]["facts"].get("data", "")
    values: dict[str, float] = {}
    for audit in audits:
        if audit["facts"].get("data", "") == data:
            values = {name: float(value) for name, value in audit["values"].items()} | values
    return values


def _rank_cell(found: Mapping[tuple[str, str], MeasureCorrelation], row: str, column: str) -> str:
    """Spearman's r and its p of two measures, or what is constant; 1 of a measure with itself."""
    if row == column:
        return "1"
    one = found[column, row]
    if one.constant or math.isnan(one.spearman):
        return f"constant {one.constant}" if one.constant else MISSING
    p = "< 0.001" if one.spearman_holm < 0.001 else p_text(one.spearman_holm)
    return f"{change_text(one.spearman, 0.0, False)} ({p})"


def _plain(one: MeasureCorrelation) -> dict[str, Any]:
    """A correlation as JSON can hold it."""
    told = {name: value for name, value in asdict(one).items() if name != "measure"}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in told.items()}


def _read(path: Path, name: str, against: str) -> AuditedRun:
    """The geometry of a run, with the metric from an audit on the same data."""
    audits = list(_audits(path))
    shaped = next((audit for audit in audits if all(measure in audit["values"] for measure in GEOMETRY)), None)
    if shaped is None:
        for audit in audits:
            if "rho" in audit["values"]:
                lost = ", ".join(measure for measure in GEOMETRY if measure not in audit["values"])
                raise RunError(f"The geometry of {path} has no finite {lost}: drop this run.")
        raise RunError(f"{path} has no geometry audit: run `nearkin audit {path} --suite geometry` first.")
    data = shaped["facts"].get("data", "")
    same = [shaped, *(audit for audit in audits if audit is not shaped and audit["facts"].get("data", "") == data)]
    holder = next((audit for audit in same if against in audit["values"]), None)
    if holder is None:
        known = {metric for audit in same for metric in audit["values"]}
        raise RunError(
            f"No audit of {path} on the data of its geometry ({data or 'without a name'}) has '{against}': audit it "
            f"with a suite that measures it, or choose another with --against.{suggestion(against, known)}"
        )
    wanted = (*GEOMETRY, *_INPUTS)
    values = {metric: float(value) for metric, value in shaped["values"].items() if metric in wanted}
    values[against] = float(holder["values"][against])
    return AuditedRun(name, data, values, frozenset(holder.get("numbers", [])))


def _audits(path: Path) -> Iterator[dict[str, Any]]:
    """The audits of a run: its own, then those beside it that were not re-ranked, first those named after geometry."""
    if not path.exists():
        raise RunError(f"No such run: {path}. Check the path.")
    own = Run(path).audit_file
    beside = sorted(path.glob("audit-*.json"), key=lambda file: ("geometry" not in file.name, file.name))
    for file in (own, *beside):
        if not file.exists():
            continue
        try:
            stored = files.loads(file.read_text(encoding="utf-8"))
            told = {"values": dict(stored["values"]), "facts": dict(stored["facts"])}
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} is damaged: run `nearkin audit {path}` again.") from error
        if _RERANKED not in told["facts"] or file == own:
            yield {**told, "numbers": stored.get("numbers", [])}


def _value(value: float, metric: str, run: AuditedRun) -> str:
    if metric == "d_DoV":
        return f"{value:.0f}"
    plain = metric in (*GEOMETRY, *_INPUTS) or metric in run.numbers
    return value_text(value, not plain)


def _correlation_cells(one: MeasureCorrelation) -> list[str]:
    if one.constant:
        return [one.measure, str(one.runs), f"constant {one.constant}", *[MISSING] * 5]
    signed = [change_text(value, 0.0, False) for value in (one.pearson, one.spearman)]
    p = [
        MISSING if math.isnan(value) else "< 0.001" if value < 0.001 else p_text(value)
        for value in (one.pearson_p, one.pearson_holm, one.spearman_p, one.spearman_holm)
    ]
    return [one.measure, str(one.runs), signed[0], *p[:2], signed[1], *p[2:]]


def _notes(runs: Sequence[AuditedRun], found: CorrelationTable) -> list[str]:
    notes = [
        f"Each of the {len(runs)} runs is one point. Holm's p is corrected for all p-values of the table, and that of "
        "ranks is exact for up to 8 runs.",
        "Correlation is not causation: recipes that differ in several ways also differ in geometry.",
    ]
    if {"phi", "R2"} <= found.measures.keys():
        notes.append("phi and R2 rank runs alike: for a given number of classes, one follows from the other.")
    names = list(dict.fromkeys(run.data for run in runs))
    if len(names) > 1:
        told = ", ".join(name or "without a name" for name in names)
        notes.append(f"The runs were audited on different data ({told}), which alone changes every measure.")
    return notes


def _write(
    out: Path, runs: Sequence[AuditedRun], found: CorrelationTable, tables: Sequence[TextTable], notes: Sequence[str]
) -> None:
    """Write the page, or the picture alone."""
    percent = not any(found.against in run.numbers for run in runs)
    titles = {
        name: name if math.isnan(one.pearson) else f"{name}: r {change_text(one.pearson, 0.0, False)}"
        for name, one in found.measures.items()
    }
    values, names = [run.values for run in runs], [run.name for run in runs]
    picture = draw_measures(values, names, titles, found.against, percent=percent)
    figure = Figure(
        f"Measures and {found.against}",
        "Each point is a run; r is Pearson's correlation.",
        picture,
        f"{found.against} of runs against each measure of their geometry",
    )
    first, *further = tables
    write_page_or_picture(
        out,
        picture,
        lambda: render_table(first.title, first.headings, first.rows, figures=[figure], notes=notes, further=further),
        "no run has finite values of both",
    )
