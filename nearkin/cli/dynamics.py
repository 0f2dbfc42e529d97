"""`nearkin dynamics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.errors import DataError, RunError
from nearkin.metrics.dynamics import DYNAMICS
from nearkin.metrics.dynamics_comparison import DynamicsComparison, compare_dynamics
from nearkin.report import Figure
from nearkin.report.dynamics import draw_accuracies, draw_dynamics
from nearkin.report.page import render_table
from nearkin.report.terminal import text_table
from nearkin.storage import replacing, write_json, write_text
from nearkin.training import Run

_PAGES, _PICTURES = (".html", ".htm"), (".png",)


def dynamics_command(
    first: Path, second: Path, out: Path | None, json: Path | None, steps: tuple[int | None, int | None]
) -> None:
    """Print the training dynamics of two runs side by side, and write page, picture or numbers when asked."""
    if out is not None and out.suffix.lower() not in (*_PAGES, *_PICTURES):
        raise DataError(f"--out {out} is neither a page nor a picture: end its name in .html or .png.")
    names = _names(first, second)
    logs = {name: _log(path) for name, path in zip(names, (first, second), strict=True)}
    comparison = compare_dynamics(*logs.values(), names=names, steps=steps)
    notes = comparison.notes()
    if first.resolve() == second.resolve():
        notes.insert(0, f"{first} is compared with itself: nothing can differ.")
    console = Console(highlight=False, markup=False)
    console.print(text_table(comparison.headings(), comparison.rows()))
    for note in notes:
        console.print(note)
    if json is not None:
        write_json(json, comparison.to_dict() | {"runs": [str(first), str(second)], "notes": notes})
        print(f"Numbers: {json}")
    if out is not None:
        _write(out, comparison, {name: _between(log, *steps) for name, log in logs.items()}, notes)


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The directories' names, or the whole paths where names are not enough to tell them apart."""
    paths = first.resolve(), second.resolve()
    if paths[0] == paths[1]:
        return paths[0].name, f"{paths[0].name} (again)"
    return (str(first), str(second)) if paths[0].name == paths[1].name else (paths[0].name, paths[1].name)


def _log(path: Path) -> list[dict[str, Any]]:
    """The log of a run that has training dynamics."""
    if not path.exists():
        raise RunError(f"There is no run {path}: check the path.")
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
        f"{'null' if every is None else every}): set that to fewer episodes than it trains, and train again."
    )


def _between(log: Sequence[Mapping[str, Any]], first: int | None, last: int | None) -> list[Mapping[str, Any]]:
    """The rows of these steps."""
    return [row for row in log if (first is None or row["step"] >= first) and (last is None or row["step"] <= last)]


def _write(
    out: Path, comparison: DynamicsComparison, logs: Mapping[str, Sequence[Mapping[str, Any]]], notes: Sequence[str]
) -> None:
    """Write the page, or the picture of the measures alone."""
    if out.suffix.lower() in _PICTURES:
        picture = draw_dynamics(logs)
        if not picture:
            raise DataError("No value of these training dynamics is finite: there is nothing to draw.")
        with replacing(out) as temporary:
            temporary.write_bytes(picture)
        print(f"Picture: {out}")
        return
    title = "Training dynamics of {} and {}".format(*comparison.names)
    figures = _figures(logs, title)
    write_text(out, render_table(title, comparison.headings(), comparison.rows(), figures=figures, notes=notes))
    print(f"Report: {out}")


def _figures(logs: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> list[Figure]:
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
