"""`nearkin trials`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.options import DataRoot, JsonFile, Quiet, SkipBad
from nearkin.cli.output import percent, show_notes, show_table
from nearkin.errors import DataError, RunError

if TYPE_CHECKING:
    from nearkin.audits.trials import ScoredList
    from nearkin.data.dataset import Dataset
    from nearkin.models import Embedder

_NORMS = ("none", "s", "as")


def trials(
    run: Annotated[Path, typer.Argument(help="A run directory, or with --data a model file.")],
    pairs: Annotated[
        Path | None,
        typer.Argument(
            metavar="LIST",
            help="Trials, one a line, such as VoxCeleb's veri_test.txt: 1 or 0 and two recordings; default: all pairs "
            "of classes that did not train.",
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="The recordings, if they are not the run's own data.")] = None,
    enrol: Annotated[
        int, typer.Option(min=1, help="Without LIST: recordings on each side of a trial, of which the mean counts.")
    ] = 1,
    content: Annotated[
        str | None, typer.Option(help="A column that says what is said: report same and other content apart.")
    ] = None,
    norm: Annotated[
        str, typer.Option(help="Normalise scores by a cohort of strangers: none, s, or as (those most like each side).")
    ] = "none",
    cohort: Annotated[
        str | None, typer.Option(help="The strangers: data, as for --data; default: the run's training classes.")
    ] = None,
    top: Annotated[int, typer.Option(min=2, help="Number of strangers that --norm as takes.")] = 200,
    json: JsonFile = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Score a list of verification trials, or all pairs of unseen classes, and print equal error rates."""
    if norm not in _NORMS:
        raise typer.BadParameter(f"Choose {', '.join(_NORMS)}, not '{norm}'.", param_hint="--norm")
    if pairs is not None and enrol > 1:
        raise typer.BadParameter("A list says what is enrolled: join recordings by commas there.", param_hint="--enrol")
    if cohort is not None and norm == "none":
        raise typer.BadParameter("Only normalised scores need a cohort: add --norm s or as.", param_hint="--cohort")
    from nearkin import api
    from nearkin.audits.trials import list_pairs, score_list
    from nearkin.metrics.trials import read_trials

    wanted = None if pairs is None else read_trials(pairs)
    model = api.load(run)
    whole = _opened(run, model, data, skip_bad, data_root, not quiet)
    asked = whole if wanted is not None else _unseen(whole, model)
    found = score_list(
        model,
        asked,
        list_pairs(asked, enrol=enrol) if wanted is None else wanted,
        content=content,
        norm=norm,
        cohort=_cohort(run, model, cohort, skip_bad, data_root, not quiet) if norm != "none" else None,
        top=top,
        progress=not quiet,
    )
    if json is not None:
        from nearkin.storage import write_json

        write_json(json, found.to_dict())
    _show(found, [*filter(None, [model.spec.note]), *found.notes])


def _opened(
    run: Path, model: Embedder, data: str | None, skip_bad: bool, data_root: Path | None, progress: bool
) -> Dataset:
    """The data that was named, else the run's own."""
    from nearkin.cli.audit import data_of
    from nearkin.data.dataset import drop_bad
    from nearkin.data.sources import open_data

    if data is None and not run.is_dir():
        raise RunError(f"{run} is a model file without a run: name the data with --data.")
    source, skip_bad = data_of(run, model.card, data, skip_bad)
    return drop_bad(open_data(source, data_root=data_root, progress=progress), skip_bad, progress)[0]


def _unseen(dataset: Dataset, model: Embedder) -> Dataset:
    """The items of classes that played no part in training."""
    from nearkin.audits import unseen_items

    return dataset.select(unseen_items(dataset, model.card)[0])


def _cohort(
    run: Path, model: Embedder, cohort: str | None, skip_bad: bool, data_root: Path | None, progress: bool
) -> Dataset:
    """The strangers: the items of the run's training classes, or all of other data."""
    import numpy as np

    dataset = _opened(run, model, cohort, skip_bad, data_root, progress)
    if cohort is not None:
        return dataset
    chosen = np.isin(dataset.labels, model.card.classes.train)
    if not chosen.any():
        raise DataError("The run's data no longer has its training classes: name other people with --cohort.")
    return dataset.select(chosen)


def _show(found: ScoredList, notes: list[str]) -> None:
    rows = []
    for (part, score), result in found.results.items():
        low, high = found.intervals[part, score]
        between = f"{100 * low:.1f} to {100 * high:.1f} %"
        counts = f"{result.genuine:,}", f"{result.impostors:,}"
        rows.append((part, score, percent(result.values["EER"]), between, f"{result.values['minDCF']:.3f}", *counts))
    columns = ("trials", "score", "EER", "95 % interval", "minDCF", "genuine", "impostors")
    show_table(columns, rows, numbers=columns[2:])
    show_notes(notes)
