"""`nearkin audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.options import DataRoot, Quiet, SkipBad
from nearkin.errors import DataError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from nearkin.audits import AuditResult
    from nearkin.data.dataset import Dataset
    from nearkin.models.card import Card
    from nearkin.recipe import AuditSection, Recipe
    from nearkin.training import Run


def audit(
    run: Annotated[
        Path, typer.Argument(help="A run directory written by `nearkin train`; or, with --data, a model file.")
    ],
    data: Annotated[str | None, typer.Option(help="Audit on this data instead of the run's.")] = None,
    suite: Annotated[str | None, typer.Option(help="Suites, comma-separated; default: the recipe's.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Report file; default: in the run directory.", dir_okay=False)
    ] = None,
    rerank: Annotated[
        str | None, typer.Option(help="Re-rank neighbours with average-query-expansion or k-reciprocal.")
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option(help="Class tree for the hierarchy suite: a file or `cifar100`; default: the run's tree."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting of the audit, e.g. audit.severities=[5]; repeatable."),
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Also measure untrained features, for comparison.")] = True,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Measure a run's model on classes it has not seen; print a table, write the numbers and a report."""
    from nearkin import api
    from nearkin.recipe import AuditSection
    from nearkin.training import Run

    names = [name.strip() for name in suite.split(",")] if suite else None
    changes: dict[str, Any] = {"overrides": overrides or [], "rerank": rerank}
    api.audit_section(AuditSection(), suites=names, **changes)  # fails early
    options: dict[str, Any] = {
        **changes,
        "tree": tree,
        "baseline": baseline,
        "skip_bad": skip_bad,
        "data_root": data_root,
        "progress": not quiet,
    }
    if run.is_file():
        _audit_file(run, data, out, suites=names, **options)
        return
    trained = Run(run)
    result = audit_run(trained, data, names, **options)
    own = trained.recipe().audit
    marks = _marks(api.audit_section(own, suites=names, **changes), own, reranked=rerank is not None)
    if data is not None and not result.subject.own_data:
        marks.insert(0, result.subject.facts["data"] or "data")
    report, numbers = trained.report_file, trained.audit_file
    if marks:
        stem = "-".join(marks)
        report, numbers = run / f"report-{stem}.html", run / f"audit-{stem}.json"
    if out is not None:
        report, numbers = out, out.with_suffix(".json")
    write_audit(trained, result, report, numbers)
    show_audit(result)
    print(f"Report: {report}")


def _audit_file(path: Path, data: str | None, out: Path | None, **options: Any) -> None:
    """Audit a model file, such as a shortened one, which has no run beside it."""
    if path.suffix == ".onnx":
        raise RunError(f"{path} is an ONNX export: audit the run or model file it was exported from.")
    if data is None:
        raise RunError(f"{path} is a model file without a run: give the data to audit on with --data.")
    from nearkin import api

    result = api.audit(path, data, **options)
    report = path.with_name(f"{path.stem}-report.html") if out is None else out
    result.report(report, title=path.stem)
    result.save(report.with_suffix(".json"))
    show_audit(result)
    print(f"Report: {report}")


def _marks(section: AuditSection, own: AuditSection, *, reranked: bool) -> list[str]:
    """What distinguishes the files of this audit from the run's own audit.

    That one is what `compare` reads: a re-ranked audit, and one without retrieval where the recipe asks for it, go
    beside it, as do those of other data.

    Args:
        section: the settings of the audit.
        own: those of the run's recipe.
        reranked: whether re-ranking was asked for, be it the recipe's too.
    """
    marks = [section.rerank] if section.rerank and (reranked or section.rerank != own.rerank) else []
    partial = "retrieval" in own.suites and "retrieval" not in section.suites
    return [*marks, *(section.suites if partial else [])]


def audit_run(
    run: Run,
    data: str | Dataset | None = None,
    names: list[str] | None = None,
    *,
    skip_bad: bool = False,
    **options: Any,
) -> AuditResult:
    """Audit a run's model on the run's own data, or on other data; `options` are those of `nearkin.audit`."""
    from nearkin import api
    from nearkin.data.catalogue import catalogue

    source, skip_bad = data_of(run.path, run.model().card, data, skip_bad)
    try:
        result = api.audit(run.path, source, suites=names, skip_bad=skip_bad, **options)
    except DataError as error:
        if data is not None or Path(str(source)).exists() or str(source) in catalogue:
            raise
        raise RunError(f"The data of {run.path} is no longer at {source}: give its path with --data.") from error
    if data is None and not result.subject.own_data and not skip_bad:
        result.notes.append("The data has changed since training.")
    return result


def data_of(run: Path, card: Card, data: str | Dataset | None, skip_bad: bool) -> tuple[str | Dataset, bool]:
    """The data given, else the run's own, of which what training left out is left out again."""
    if data is not None:
        return data, skip_bad
    if not card.data.source:
        raise RunError(f"{run} does not record its training data: give data with --data.")
    return str(card.data.source), skip_bad or bool(card.data.notes)


def write_audit(
    run: Run, result: AuditResult, report: Path, numbers: Path, title: str = "", next_steps: tuple[str, ...] = ()
) -> None:
    """Write the report as HTML and the numbers as JSON: both or neither."""
    from nearkin.training.start import gain_facts

    recipe, model, history = run.recipe(), run.model(), run.history()
    card = model.card
    pictures, told = [], {}
    if _is_watched(recipe):
        from nearkin.audits.training_pictures import draw_training
        from nearkin.report.dynamics import adversary_facts

        pictures, told = draw_training(run, model, result.notes), adversary_facts(history)
    facts = {
        "recipe": recipe.name,
        "training": f"{card.steps} steps in {card.seconds:.0f} s, best at step {card.best_step}",
        **gain_facts(card),
        **told,
        **card.versions,
    }
    result.report(
        report,
        title=title or f"{run.path.name}: {recipe.name}",
        recipe_yaml=recipe.to_yaml(),
        history=history,
        training_pictures=pictures,
        facts=facts,
        next_steps=next_steps,
    )
    result.save(numbers)


def _is_watched(recipe: Recipe) -> bool:
    """Whether training by this recipe records more than losses and validation metrics."""
    training = recipe.training
    special = training.schedule in ("chance-constrained", "episodic") or training.cluster_items is not None
    return special or bool(recipe.objective.regularisers) or recipe.data.hierarchy is not None


def show_audit(result: AuditResult, console: Console | None = None) -> None:
    """Print the metric table and its notes."""
    from rich.console import Console

    from nearkin.report import metric_table

    console = console or Console(highlight=False, markup=False)
    subject = result.subject
    classes, items = subject.facts["classes"], subject.facts["items"]
    title = f"{subject.facts.get('data', '')}: {classes} classes, {items} items"
    console.print(metric_table(result.rows(), title=title, baseline_name=subject.baseline_name))
    for note in result.notes:
        console.print(f"Note: {note}")
