"""The few-shot suite: how well unseen classes are told apart when only a handful of items of each is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.audits.learned_similarity import SIM
from nearkin.audits.result import gap_text
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics.fewshot import REPRESENTATIONS, FewShotRepresentation, FewShotResult, Similarity, fewshot_accuracy
from nearkin.metrics.labels import label_codes
from nearkin.models.similarity import LearnedSpace
from nearkin.recipe import AuditSection
from nearkin.report import draw_sweep
from nearkin.spaces import Space, Sphere

_PLAIN: FewShotRepresentation = "mean"
"""The representation that metrics are named without."""

FewShotTask = tuple[int, int]
"""Ways and shots."""
TaskResults = Mapping[FewShotTask, Mapping[str, FewShotResult]]
"""What was found by task and representation."""


@suites.register("fewshot")
def fewshot_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Accuracy over episodes for each number of ways and shots and each class representation, with intervals.

    With one shot all representations are that one item, and there is one accuracy. By a learned similarity the mean of
    the known items takes the place of the class's prototype, and the distance to that mean is asked the same episodes.
    The baseline is asked the same episodes. What the data has too few classes or items for is left out with a note.
    """
    tasks, notes = _possible(subject.labels, section)
    chosen: tuple[FewShotRepresentation, ...] = REPRESENTATIONS
    if not isinstance(subject.space, Space):
        chosen = ("nearest",)
        notes.append("Few-shot: only the nearest known item stands for a class, as these similarities have no mean.")
    elif isinstance(subject.space, LearnedSpace):
        chosen = (_PLAIN,)
    results = _measure(subject.embeddings, subject.labels, subject.space, tasks, chosen, section)
    found = SuiteResult(notes=[_note(results, section), *notes], primary=metric_name(next(iter(results)), chosen[0]))
    details = found.details["fewshot"] = {}
    for task, by_name in results.items():
        for name, result in by_name.items():
            metric = metric_name(task, name)
            found.add(metric, result.accuracy, result.interval, result.per_class())
            details[metric] = result.to_dict(per_episode=False)
    beside: dict[str, TaskResults] = {}
    if isinstance(subject.space, LearnedSpace):
        base = subject.space.base
        by_distance = _measure(subject.embeddings, subject.labels, base, tasks, (_PLAIN,), section)
        _add_distance(found, results, by_distance, base.name)
        beside[f"{_PLAIN}, {base.name} distance"] = by_distance
    if subject.baseline is not None:
        untrained = _measure(subject.baseline, subject.labels, Sphere(), tasks, chosen, section)
        beside[f"{_PLAIN}, {subject.baseline_name or 'baseline'}"] = untrained
        for task, by_name in untrained.items():
            for name, result in by_name.items():
                metric = metric_name(task, name)
                found.baseline[metric] = result.accuracy
                ahead = results[task][name].minus(result)
                details[metric]["above baseline"] = [ahead.difference, *ahead.interval]
    if len({shot for _, shot in results}) > 1:
        _show_tasks(found, results, beside, learned=isinstance(subject.space, LearnedSpace))
    return found


def metric_name(task: FewShotTask, representation: str) -> str:
    """What a metric is called: `5-way 5-shot` for means, `5-way 5-shot, nearest` for the others where they differ."""
    way, shot = task
    plain = f"{way}-way {shot}-shot"
    return plain if shot == 1 or representation == _PLAIN else f"{plain}, {representation}"


def _show_tasks(found: SuiteResult, results: TaskResults, beside: Mapping[str, TaskResults], *, learned: bool) -> None:
    """Accuracy against shots, one panel for each number of ways; `beside` are more lines by their names, of means."""
    lines = [(f"{name}, {SIM}" if learned else name, name, results) for name in map(str, REPRESENTATIONS)]
    lines += [(name, _PLAIN, others) for name, others in beside.items()]
    series: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for way in sorted({way for way, _ in results}):
        panel = f"{way}-way accuracy"
        for line, name, measured in lines:
            points = _along_shots(measured, way, name)
            if any(shot > 1 for shot in points):
                series.setdefault(panel, {})[line] = (list(points), [one.accuracy for one in points.values()])
                intervals.setdefault(panel, {})[line] = tuple(
                    zip(*(one.interval for one in points.values()), strict=True)
                )
    by = "these items, by the nearest of them, or by the votes of all (distance-ratio)"
    if learned:
        by = f"these items: by the learned similarity to it ({SIM}), or by the distance"
    found.show(
        "Few shots",
        "How often a query is given to its class, of which as many items are known as there are shots, by the mean of "
        f"{by}. Bars: 95 % interval over episodes of these classes.",
        "Few-shot accuracy against the number of shots",
        draw_sweep,
        series,
        intervals=intervals,
        of="unseen classes",
        across="shots",
        best_at=lambda shots: f"with {shots:g} shot{'' if shots == 1 else 's'}",
    )


def _along_shots(results: TaskResults, way: int, representation: str) -> dict[int, FewShotResult]:
    """Shots to what was found with a representation; with one shot, whichever was measured is all of them."""
    return {
        shot: next(iter(by_name.values())) if shot == 1 else by_name[representation]
        for (ways, shot), by_name in results.items()
        if ways == way and (shot == 1 or representation in by_name)
    }


def _possible(labels: np.ndarray, section: AuditSection) -> tuple[list[FewShotTask], list[str]]:
    """The tasks that the data can offer, and what to say of the others."""
    sizes = np.bincount(label_codes(labels)[0])
    asked = [(way, shot) for way in section.fewshot_ways for shot in section.fewshot_shots]
    offered = {shot: int((sizes >= shot + section.fewshot_queries).sum()) for shot in section.fewshot_shots}
    tasks = [(way, shot) for way, shot in asked if offered[shot] >= way]
    missing = [(way, shot) for way, shot in asked if offered[shot] < way]
    if not missing:
        return tasks, []
    told = ", ".join(metric_name(task, _PLAIN) for task in missing)
    why = ", ".join(
        f"{offered[shot]} classes have the {shot + section.fewshot_queries} items that {shot}-shot takes"
        for shot in sorted({shot for _, shot in missing})
    )
    advice = "lower audit.fewshot_ways, audit.fewshot_shots or audit.fewshot_queries"
    if not tasks:
        raise DataError(
            f"No few-shot episode can be drawn with {section.fewshot_queries} queries a class ({why}): {advice}."
        )
    return tasks, [f"Few-shot: {told} left out, as {why}; {advice} to have them."]


def _measure(
    embeddings: np.ndarray,
    labels: np.ndarray,
    space: Space,
    tasks: list[FewShotTask],
    representations: tuple[FewShotRepresentation, ...],
    section: AuditSection,
) -> dict[FewShotTask, dict[str, FewShotResult]]:
    return {
        (way, shot): {
            name: fewshot_accuracy(
                embeddings,
                labels,
                way=way,
                shot=shot,
                query=section.fewshot_queries,
                episodes=section.fewshot_episodes,
                representation=_similarity_to_mean(space) if isinstance(space, LearnedSpace) else name,
                space=space,
                seed=section.seed,
            )
            for name in (representations[:1] if shot == 1 else representations)
        }
        for way, shot in tasks
    }


def _similarity_to_mean(space: LearnedSpace) -> Similarity:
    """What scores classes by the similarity of a query to the mean of their known items."""

    def similarity_to_mean(support: Tensor, query: Tensor) -> Tensor:  # (E, C, K, d) and (E, Q, d) to (E, Q, C)
        return -space.distance(query, space.mean(support))

    return similarity_to_mean


def _add_distance(found: SuiteResult, results: TaskResults, by_distance: TaskResults, space: str) -> None:
    """What the distance of the same embeddings gives, and how far the learned similarity is ahead of it."""
    told = []
    for task, by_name in by_distance.items():
        metric, result = metric_name(task, _PLAIN), by_name[_PLAIN]
        found.add(f"{metric}, {space} distance", result.accuracy, result.interval, result.per_class())
        ahead = results[task][_PLAIN].minus(result)
        found.details["fewshot"][metric][f"above {space} distance"] = [ahead.difference, *ahead.interval]
        told.append(f"{metric} {gap_text(ahead.difference, *ahead.interval)}")
    found.notes.append(
        "Few-shot is by the learned similarity, the mean of the known items in the place of a prototype. It is ahead "
        f"of the {space} distance to that mean, on the same episodes, by: {'; '.join(told)}."
    )


def _note(results: TaskResults, section: AuditSection) -> str:
    first = next(iter(next(iter(results.values())).values()))
    return (
        f"Few-shot: {section.fewshot_episodes:,} episodes of each kind with {section.fewshot_queries} queries a class, "
        f"the same for model and baseline, drawn from up to {first.classes:,} classes. Intervals are over episodes of "
        "these classes and do not say how other classes would do. Metrics without a representation are by the mean of "
        "the known items, of which there is no choice with 1 shot."
    )
