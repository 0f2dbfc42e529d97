"""`nearkin compare` and `nearkin dynamics`: audited runs compared class by class, and how two runs learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nearkin.cli.output import check_ending, directory_names, write_page_or_picture
from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RunError, UnknownNameError, suggestion
from nearkin.metrics import PairedResult, class_bootstrap, holm, paired_permutation
from nearkin.metrics.dynamics import DYNAMICS, compare_dynamics
from nearkin.metrics.hierarchy import SEVERITY
from nearkin.metrics.retrieval import OVER_CLASSES, over_classes
from nearkin.report import Column, ComparisonRow, Figure, comparison_table, write_comparison
from nearkin.report.bars import draw_class_differences
from nearkin.report.comparison import Contrast, PairedDifference
from nearkin.report.dynamics import draw_accuracies, draw_dynamics
from nearkin.report.page import render_table
from nearkin.report.terminal import text_table
from nearkin.storage import write_json
from nearkin.training import Run

_OF_PROTOTYPES = ("MC, ", "top-", "AHD@", "HP@", SEVERITY)
_BY_TREE = ("MC, ", "AHD@", "HP@", "HS@", "AHS@", SEVERITY)


def incomparable_reason(first: Mapping[str, Any], second: Mapping[str, Any], metric: str) -> str:
    """Why a metric of two audits cannot be compared; empty if it can, or if it belongs to another suite.

    Args:
        first: the details of an audit's hierarchy suite; empty if it did not run.
        second: those of the other.
        metric: its name.
    """
    if not first or not second:
        return ""
    if metric.startswith(_BY_TREE):
        if not _same_tree(first.get("tree", ""), second.get("tree", "")):
            names = "; ".join(str(judged.get("tree name") or "without a name") for judged in (first, second))
            return f"the trees differ ({names})"
        if first.get("tree distance") != second.get("tree distance"):
            return f"the tree distances differ ({first.get('tree distance')}; {second.get('tree distance')})"
    if metric.startswith("MC, ") and first.get("diagonal") != second.get("diagonal"):
        return "only one counts the diagonal (audit.diagonal)"
    if metric.startswith(_OF_PROTOTYPES) and first.get("references") != second.get("references"):
        return f"the references differ ({first.get('references')}; {second.get('references')})"
    return ""


def _same_tree(first: str, second: str) -> bool:
    """Whether two Newick trees have the same distances between their shared classes, in any order."""
    if first == second:
        return True
    try:
        trees = [Hierarchy.from_newick(text) for text in (first, second)]
        shared = sorted(set(trees[0].classes) & set(trees[1].classes))
        one, other = (tree.restricted(shared) for tree in trees)
    except DataError:
        return False
    # Path lengths do not determine the root, heights do.
    return all(np.allclose(one.distances(shared, how), other.distances(shared, how)) for how in ("path", "lcs"))


_SHOWN = 0.05
_SAME_DATA = ("data", "classes", "items")
"""The facts that two audits must share: a class's value depends on all items of the search."""


@dataclass(frozen=True)
class Audited:
    """A run and its audit.

    Args:
        row: its line in the table.
        per_class: metric to the mean of each class; empty in old audits.
        facts: what was audited.
        lower_is_better: the metrics where lower is better.
        numbers: the metrics that are plain numbers, not shares.
        judged: details of the hierarchy suite; empty if it did not run.
    """

    row: ComparisonRow
    per_class: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, str]
    lower_is_better: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    judged: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """What was audited, in words."""
        name, classes, items = (self.facts.get(key, "?") for key in _SAME_DATA)
        return f"{name} with {classes} classes and {items} items"


def by_merit(runs: Sequence[Audited], column: Column) -> list[int]:
    """Indices of the runs that have the metric, best first."""
    values = {place: run.row.value(column.metric)[0] for place, run in enumerate(runs)}
    known = [place for place, value in values.items() if not math.isnan(value)]
    return sorted(known, key=lambda place: values[place] if column.lower_is_better else -values[place])


def contrast_with(runs: Sequence[Audited], column: Column, against: int | None) -> tuple[Contrast | None, list[str]]:
    """Paired differences of all runs from one of them, with notes.

    Args:
        runs: the runs.
        column: the metric to compare.
        against: index of the baseline run; None: the best.
    """
    metric = column.metric
    reference = next(iter(by_merit(runs, column)), 0) if against is None else against
    found = {place: _pair(run, runs[reference], metric) for place, run in enumerate(runs) if place != reference}
    tested = {place: result for place, result in found.items() if isinstance(result, PairedResult)}
    untested: dict[str, list[str]] = {}
    for place, reason in found.items():
        if isinstance(reason, str):
            untested.setdefault(reason, []).append(runs[place].row.run)
    name = runs[reference].row.run
    notes = [f"No paired test of {', '.join(those)} against {name}: {reason}." for reason, those in untested.items()]
    for fact, did in (
        ("re-ranking", "re-ranked its neighbours"),
        ("audit settings", "has other settings than its recipe"),
    ):
        notes += [f"The audit of {run.row.run} {did} ({run.facts[fact]})." for run in runs if fact in run.facts]
    if not tested:
        return None, notes
    corrected = holm([result.p_value for result in tested.values()])
    differences = {
        place: PairedDifference(result.difference, result.low, result.high, p_value)
        for (place, result), p_value in zip(tested.items(), corrected, strict=True)
    }
    contrast = Contrast(metric, reference, "best" if against is None else name, differences)
    explanation = _explanation(runs, contrast, tested)
    if against is None and len(tested) > 1:
        explanation.append(
            "The baseline is the best by these same numbers, which flatters it: to test a choice made beforehand, "
            "give it with --against."
        )
    return contrast, [*explanation, *notes]


def class_differences(run: Audited, other: Audited, metric: str) -> dict[str, float]:
    """Class to the difference of two runs; empty if they cannot be paired."""
    result = _pair(run, other, metric)
    return result.differences if isinstance(result, PairedResult) else {}


def _pair(run: Audited, reference: Audited, metric: str) -> PairedResult | str:
    """The comparison of two runs, or why there is none."""
    if any(run.facts.get(key) != reference.facts.get(key) for key in _SAME_DATA):
        return f"the audits are on different data ({run.data}; {reference.data})"
    unlike = incomparable_reason(run.judged, reference.judged, metric)
    if unlike:
        return f"{metric} is measured differently, as {unlike}"
    metric = metric.removesuffix(OVER_CLASSES)
    for one in (run, reference):
        if not one.per_class:
            return f"the audit of {one.row.run} has no values per class; audit it again"
        if metric not in one.per_class:
            return f"{metric} has no values per class; use --metric with one of {', '.join(one.per_class)}"
    a, b = run.per_class[metric], reference.per_class[metric]
    shared = sum(name in b for name in a)
    if shared < 2:
        return f"the audits have {shared or 'no'} class{'' if shared == 1 else 'es'} in common, and need at least two"
    return paired_permutation(a, b)


def _explanation(runs: Sequence[Audited], contrast: Contrast, tested: Mapping[int, PairedResult]) -> list[str]:
    """What was tested, on how many classes, and its limits."""
    metric, reference = contrast.metric, runs[contrast.reference]
    counts = sorted({result.classes for result in tested.values()})
    classes = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    several = f", corrected for {len(tested)} comparisons by Holm's method" if len(tested) > 1 else ""
    notes = [
        f"Difference: a run's {metric} minus that of {reference.row.run}, averaged over the {classes} classes both "
        "have; below it the 95 % interval, for other classes of the same kind.",
        f"p: the probability of a difference this large by chance if both were equally good (two-sided sign-flip "
        f"permutation test over classes{several}). At most {_SHOWN} usually counts as significant; above, a difference "
        "may still exist.",
    ]
    # Runs that agree in every class have p = 1.
    smallest = min(result.smallest_p for result in tested.values())
    if smallest < 1 and len(tested) * smallest > _SHOWN:
        least = min(1.0, len(tested) * smallest)
        notes.append(f"With {classes} classes p cannot be less than {least:.3g}: audit more classes.")
    means = metric.removesuffix(OVER_CLASSES)
    partly = [
        runs[place].row.run
        for place in tested
        if runs[place].per_class[means].keys() != reference.per_class[means].keys()
    ]
    if partly:
        notes.append(
            f"{', '.join(partly)} and {reference.row.run} were audited on partly different classes, each searched "
            "among its own: audit them on the same data (--data) for a fair comparison."
        )
    value = reference.row.value(metric)[0]
    # Where the paired difference visibly differs from that of the values in the table.
    if any(abs(runs[i].row.value(metric)[0] - value - contrast.differences[i].mean) > 0.0005 for i in tested):
        over = "is not a plain mean over classes" if metric.startswith("MC") else "is a mean over queries"
        notes.append(f"{metric} itself {over}; differences weight all classes equally.")
    return notes


_CLASS_MEANS = ("MAP@R", "P@1")
"""Metrics that audits also tell as means over classes; those of earlier versions have the classes, not their mean."""

_MAIN_METRICS = ("MAP@R", over_classes("MAP@R"), "P@1", "NMI", "R-precision")
"""Metrics to print, as far as they fit; the page has all."""


def compare_command(paths: list[Path], metric: str, against: Path | None, out: Path | None) -> None:
    """Print a comparison of audited runs, and optionally write a page."""
    chosen = None
    if against is not None:
        if against.resolve() not in [path.resolve() for path in paths]:
            paths = [against, *paths]
        chosen = [path.resolve() for path in paths].index(against.resolve())
    runs = [_read(path, name) for path, name in zip(paths, directory_names(paths), strict=True)]
    rows = [run.row for run in runs]
    metrics = dict.fromkeys(name for row in rows for name in row.values)
    if metric not in metrics:
        raise UnknownNameError(f"No audit of these runs has the metric '{metric}'.{suggestion(metric, metrics)}")
    column = _column(runs, metric)
    contrast, notes = contrast_with(runs, column, chosen)
    console = Console(highlight=False, markup=False)
    shown = [name for name in dict.fromkeys((metric, *_MAIN_METRICS)) if name in metrics]
    console.print(_fitting_table(console, rows, [_column(runs, name) for name in shown], contrast))
    if any(name.endswith(OVER_CLASSES) for name in shown):
        notes.append(f"Metrics are means over queries, as in papers; those with{OVER_CLASSES} are means over classes.")
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
    """The table with as many metrics as fit, at least the first."""
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
    for metric in _CLASS_MEANS:
        if (means := audit["per_class"].get(metric)) and over_classes(metric) not in values:
            classes = class_bootstrap(list(means.values()), list(means))
            values[over_classes(metric)] = (math.fsum(means.values()) / len(means), *classes)
    return Audited(
        ComparisonRow(name, run.recipe().name, values),
        audit["per_class"],
        audit["facts"],
        tuple(audit["lower_is_better"]),
        tuple(audit["numbers"]),
        audit["details"].get("hierarchy", {}),
    )


def _class_figures(runs: Sequence[Audited], column: Column) -> list[Figure]:
    """The picture of the best run against the runner-up, if they can be paired."""
    places, metric = by_merit(runs, column), column.metric
    differences = class_differences(runs[places[0]], runs[places[1]], metric) if len(places) > 1 else {}
    if not differences:
        return []
    first, second = (runs[place].row.run for place in places[:2])
    return [
        Figure(
            f"{first} against {second}, class by class",
            f"Each bar is a class: its {metric} with {first} minus that with {second}. Blue: {first} is ahead. A lead "
            "from a few classes is less certain than one from most of them.",
            draw_class_differences(differences, first, second, metric, percent=column.percent),
            f"Sorted differences in {metric} of {len(differences)} classes between {first} and {second}",
        )
    ]


def dynamics_command(
    first: Path, second: Path, out: Path | None, json: Path | None, steps: tuple[int | None, int | None]
) -> None:
    """Print the training dynamics of two runs, and optionally write a page, a picture or the numbers."""
    check_ending(out)
    same = first.resolve() == second.resolve()
    a, b = directory_names([first] if same else [first, second]) * (2 if same else 1)
    names = (a, f"{b} (again)") if same else (a, b)
    logs = {name: _dynamics_log(path) for name, path in zip(names, (first, second), strict=True)}
    comparison = compare_dynamics(*logs.values(), names=names, steps=steps)
    notes = comparison.notes()
    if same:
        notes.insert(0, f"{first} is compared with itself, so nothing differs.")
    console = Console(highlight=False, markup=False)
    console.print(text_table(comparison.headings(), comparison.rows()))
    for note in notes:
        console.print(note)
    if json is not None:
        write_json(json, comparison.to_dict() | {"runs": [str(first), str(second)], "notes": notes})
        print(f"Numbers: {json}")
    if out is not None:
        first_step, last_step = (0 if steps[0] is None else steps[0]), (math.inf if steps[1] is None else steps[1])
        within = {name: [row for row in log if first_step <= row["step"] <= last_step] for name, log in logs.items()}
        title = f"Training dynamics of {names[0]} and {names[1]}"
        figures = _dynamics_figures(within, title)
        write_page_or_picture(
            out,
            figures[0].png,
            lambda: render_table(title, comparison.headings(), comparison.rows(), figures=figures, notes=notes),
            "these training dynamics have no finite value",
        )


def _dynamics_log(path: Path) -> list[dict[str, Any]]:
    """The log of a run that has training dynamics."""
    if not path.exists():
        raise RunError(f"No such run: {path}. Check the path.")
    run = Run(path)
    training = run.recipe().training
    log = run.history()
    if any(key in row for row in log for key in DYNAMICS):
        return log
    if training.schedule != "episodic":
        raise RunError(
            f"{path} was not trained by episodes: set training.schedule to episodic and "
            "training.episodic.record_every, and train again."
        )
    every = training.episodic.record_every
    raise RunError(
        f"{path} has no training dynamics in its log (training.episodic.record_every is "
        f"{'null' if every is None else every}): set it below the number of episodes, and train again."
    )


def _dynamics_figures(logs: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> list[Figure]:
    noisy = "Points are single values of the log; where there are ten or more, the line is their running median."
    return [
        Figure(
            "What updates did to their episodes",
            f"{noisy} The few most extreme points may lie beyond a panel.",
            draw_dynamics(logs),
            f"{title}: norm ratio, con-alpha, div-alpha and con-div ratio against training episodes",
        ),
        Figure(
            "Accuracy",
            f"{noisy} Above: episodes that are trained on. Below: episodes of classes that are not.",
            draw_accuracies(logs),
            "Accuracy of both runs on training and validation episodes against training episodes",
        ),
    ]
