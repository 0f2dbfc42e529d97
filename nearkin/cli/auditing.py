"""`nearkin audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin import api
from nearkin.audits import AuditResult
from nearkin.audits.adversary import draw_contest
from nearkin.audits.hierarchy_pictures import draw_correlations
from nearkin.audits.instances import absent_snapshots, draw_geometry
from nearkin.audits.training_pictures import draw_episodes, draw_watched_clusters
from nearkin.data.catalogue import catalogue
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, RunError
from nearkin.recipe import AuditSection
from nearkin.report import metric_table
from nearkin.report.adversary import adversary_facts
from nearkin.training import Run
from nearkin.training.clusters import Clusters
from nearkin.training.gain import gain_facts


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
    """Audit a run and write what was found."""
    api.audit_section(AuditSection(), overrides=overrides, suites=names, rerank=rerank)  # told before a run is read
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
        raise RunError(
            f"{path} is a translation of a model: audit the run, or the model file, that it was exported from."
        )
    if data is None:
        raise RunError(f"{path} is a model without a run: name the data to audit it on with --data.")
    result = api.audit(path, data, **options)
    report = path.with_name(f"{path.stem}-report.html") if out is None else out
    result.report(report, title=path.stem)
    result.save(report.with_suffix(".json"))
    show_audit(result, Console(highlight=False, markup=False))
    print(f"Report: {report}")


def _marks(section: AuditSection, own: AuditSection, *, reranked: bool) -> list[str]:
    """What the files of an audit on the run's data are called by, if it is not the run's own audit.

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
    trained_on = model.card.get("data", {})
    if data is None:
        # What training left out, the audit leaves out too.
        skip_bad = skip_bad or bool(trained_on.get("notes"))
    source = data or trained_on.get("source")
    if not source:
        raise RunError(f"{run.path} does not say which data it was trained on: name some with --data.")
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
        raise RunError(f"The data of {run.path} is no longer at {source}: say where it is with --data.") from error
    if data is None and not result.subject.own_data and not skip_bad:
        result.notes.append("The data has changed since the model was trained on it.")
    return result


def write_audit(
    run: Run, result: AuditResult, report: Path, numbers: Path, title: str = "", next_steps: tuple[str, ...] = ()
) -> None:
    """Write the report as HTML and the numbers as JSON; neither unless everything could be drawn."""
    recipe = run.recipe()
    model, history, snapshots = run.model(), run.history(), run.instances()
    card = model.card
    if absent := absent_snapshots(snapshots, history):
        result.notes.append(
            f"The picture of the proxies leaves out {_instances(absent)}: missing or damaged in "
            f"{run.instances_folder.name}/."
        )
    clusters = _clusters_noting_damage(run, result)
    facts = {
        "recipe": recipe.name,
        "training": f"{card['steps']} steps in {card['seconds']:.0f} s, best at step {card['best_step']}",
        **gain_facts(card),
        **adversary_facts(history),
        **card["versions"],
    }
    result.report(
        report,
        title=title or f"{run.path.name}: {recipe.name}",
        recipe_yaml=recipe.to_yaml(),
        history=history,
        training_pictures=[
            draw_contest(history, recipe.objective),
            draw_geometry(snapshots, history, model.space, card["classes"]["train"]),
            *(draw_episodes(history, run.path.name) if recipe.training.schedule == "episodic" else []),
            draw_correlations(history),
            *draw_watched_clusters(clusters, recipe.objective),
        ],
        facts=facts,
        next_steps=next_steps,
    )
    result.save(numbers)


def _clusters_noting_damage(run: Run, result: AuditResult) -> Clusters | None:
    """What the run saw of its classes; nothing but a note where that cannot be read, for the audit is done."""
    try:
        return run.clusters()
    except RunError:
        result.notes.append("The picture of clusters during training is left out: the run's clusters.npz is damaged.")
        return None


def _instances(numbers: Sequence[int]) -> str:
    """Which instances, in words; of many only how many they are."""
    if len(numbers) > 5:
        return f"{len(numbers)} instances"
    return f"instance{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def show_audit(result: AuditResult, console: Console) -> None:
    """Print the metric table and its notes."""
    subject = result.subject
    classes, items = subject.facts["classes"], subject.facts["items"]
    title = f"{subject.facts.get('data', '')}: {classes} classes, {items} items"
    console.print(metric_table(result.rows(), title=title, baseline_name=subject.baseline_name))
    for note in result.notes:
        console.print(f"Note: {note}")
