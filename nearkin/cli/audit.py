"""`nearkin audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin import api
from nearkin.audits import AuditResult
from nearkin.data.catalogue import catalogue
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, RunError
from nearkin.recipe import AuditSection, Recipe
from nearkin.report import metric_table
from nearkin.training import Run
from nearkin.training.start import gain_facts


def audit_command(
    path: Path,
    data: str | None,
    names: list[str] | None,
    out: Path | None,
    *,
    rerank: str | None,
    tree: str | None = None,
    overrides: Sequence[str],
    baseline: bool,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> None:
    """Audit a run; print and write the results."""
    api.audit_section(AuditSection(), overrides=overrides, suites=names, rerank=rerank)  # fails early
    options: dict[str, Any] = {
        "rerank": rerank,
        "tree": tree,
        "overrides": overrides,
        "baseline": baseline,
        "skip_bad": skip_bad,
        "data_root": data_root,
        "progress": progress,
    }
    if path.is_file():
        _audit_file(path, data, out, suites=names, **options)
        return
    run = Run(path)
    result = audit_run(run, data, names, **options)
    own = run.recipe().audit
    section = api.audit_section(own, overrides=overrides, suites=names, rerank=rerank)
    foreign = data is not None and not result.subject.own_data
    marks = [
        *([result.subject.facts["data"] or "data"] if foreign else []),
        *_marks(section, own, reranked=rerank is not None),
    ]
    report, numbers = run.report_file, run.audit_file
    if marks:
        stem = "-".join(marks)
        report, numbers = run.path / f"report-{stem}.html", run.path / f"audit-{stem}.json"
    if out is not None:
        report, numbers = out, out.with_suffix(".json")
    write_audit(run, result, report, numbers)
    show_audit(result, Console(highlight=False, markup=False))
    print(f"Report: {report}")


def _audit_file(path: Path, data: str | None, out: Path | None, **options: Any) -> None:
    """Audit a model file, such as a shortened one, which has no run beside it."""
    if path.suffix == ".onnx":
        raise RunError(f"{path} is an ONNX export: audit the run or model file it was exported from.")
    if data is None:
        raise RunError(f"{path} is a model file without a run: give the data to audit on with --data.")
    result = api.audit(path, data, **options)
    report = path.with_name(f"{path.stem}-report.html") if out is None else out
    result.report(report, title=path.stem)
    result.save(report.with_suffix(".json"))
    show_audit(result, Console(highlight=False, markup=False))
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
    rerank: str | None = None,
    tree: str | None = None,
    overrides: Sequence[str] = (),
    baseline: bool = True,
    skip_bad: bool = False,
    data_root: Path | None = None,
    progress: bool = True,
) -> AuditResult:
    """Audit a run's model on the run's own data, or on other data."""
    model = run.model()
    trained_on = model.card.data
    if data is None:
        # What training left out, the audit leaves out too.
        skip_bad = skip_bad or bool(trained_on.notes)
    source = data or trained_on.source
    if not source:
        raise RunError(f"{run.path} does not record its training data: give data with --data.")
    try:
        result = api.audit(
            run.path,
            source,
            suites=names,
            rerank=rerank,
            tree=tree,
            overrides=overrides,
            baseline=baseline,
            skip_bad=skip_bad,
            data_root=data_root,
            progress=progress,
        )
    except DataError as error:
        if data is not None or Path(str(source)).exists() or str(source) in catalogue:
            raise
        raise RunError(f"The data of {run.path} is no longer at {source}: give its path with --data.") from error
    if data is None and not result.subject.own_data and not skip_bad:
        result.notes.append("The data has changed since training.")
    return result


def write_audit(
    run: Run, result: AuditResult, report: Path, numbers: Path, title: str = "", next_steps: tuple[str, ...] = ()
) -> None:
    """Write the report as HTML and the numbers as JSON: both or neither."""
    recipe, model, history = run.recipe(), run.model(), run.history()
    card = model.card
    pictures, told = [], {}
    if _is_watched(recipe):
        from nearkin.audits.training_pictures import draw_training
        from nearkin.report.adversary import adversary_facts

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


def show_audit(result: AuditResult, console: Console) -> None:
    """Print the metric table and its notes."""
    subject = result.subject
    classes, items = subject.facts["classes"], subject.facts["items"]
    title = f"{subject.facts.get('data', '')}: {classes} classes, {items} items"
    console.print(metric_table(result.rows(), title=title, baseline_name=subject.baseline_name))
    for note in result.notes:
        console.print(f"Note: {note}")
