"""Audit suites: each takes a subject and gives numbers, with intervals where queries can be resampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from nearkin.audits.learned_similarity import COSINE, FUSED, RAW, SIM, ScoredTrials, score_trials
from nearkin.audits.result import AuditResult, SuiteResult, gap_text, resampling
from nearkin.audits.subject import Subject, asked_and_searched, check_labels, shown
from nearkin.errors import DataError
from nearkin.metrics import (
    RetrievalResult,
    VerificationResult,
    ViolationResult,
    class_bootstrap,
    clustering_metrics,
    mean_class_radius,
    pair_violations,
    retrieval_metrics,
    verification_metrics,
)
from nearkin.metrics.pair_constraints import VIOLATION
from nearkin.metrics.retrieval import over_classes
from nearkin.objectives import ObjectiveSection
from nearkin.objectives.section import pair_margins
from nearkin.recipe import AuditSection
from nearkin.registry import Registry
from nearkin.report import draw_det
from nearkin.spaces import Space, Sphere

Suite = Callable[[Subject, AuditSection], SuiteResult]

_MODULES = {
    "calibration": "calibration",
    "chance-constraints": "suites",
    "classification": "classification",
    "clustering": "suites",
    "corruption": "corruption",
    "domains": "domains",
    "fewshot": "fewshot",
    "geometry": "geometry",
    "hierarchy": "hierarchy",
    "inputs": "inputs",
    "pooling": "pooling_suite",
    "residuals": "residuals",
    "retrieval": "suites",
    "robustness": "robustness",
    "size": "sizes",
    "verification": "suites",
}
"""The module of each suite, imported when the suite is used."""


suites: Registry[Suite] = Registry(
    "audit suite", {name: f"nearkin.audits.{module}" for name, module in _MODULES.items()}
)


_PRIMARY = ("MAP@R", "EER", "5-way 1-shot", "macro F1, centroid", "ECE, NED", "accuracy, corrupted, NED")
"""What to judge by: the first of these that was measured, or what a suite names itself."""


def run_suites(subject: Subject, section: AuditSection, names: Sequence[str] | None = None) -> AuditResult:
    """Run suites on a subject and gather what they find.

    Args:
        subject: the embeddings under audit.
        section: the recipe's audit section.
        names: suites to run; None takes the section's.
    """
    chosen = [suites.get(name) for name in dict.fromkeys(names or section.suites)]
    check_labels(subject.embeddings, subject.labels)
    if section.rerank is not None:
        subject.facts["re-ranking"] = section.rerank
    found = [suite(subject, section) for suite in chosen]
    of_input = [] if subject.model is None else [subject.model.spec.note]
    result = AuditResult(subject=subject, notes=[*filter(None, of_input), *subject.notes])
    for part in found:
        result.include(part)
    named = [name for name in _PRIMARY if name in result.values] + [part.primary for part in found if part.primary]
    result.primary = named[0] if named else _PRIMARY[0]
    return result


_PER_CLASS_METRICS = ("MAP@R", "P@1", "R-precision")
_CLASS_MEANS = ("MAP@R", "P@1")
_TRIAL_METRICS = ("ROC-AUC", "EER", "minDCF")
"""What is told of the scores beside the learned similarity."""
_PAIRS = 2_000_000
"""Genuine pairs, and impostor pairs, that the verification suite compares at the most."""


@suites.register("retrieval")
def retrieval_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """P@1, R-precision, MAP@R, MAP@k, MRR, Recall@k and kNN-Acc, with intervals over classes and queries.

    With re-ranking, these are of the re-ranked order, and the main ones of the plain order stand beside them. Of a
    learned similarity, those of the cosine of the same embeddings do.
    """
    options = resampling(section)
    result = _retrieval(subject, subject.embeddings, subject.space, section, section.rerank)
    found = SuiteResult(
        dict(result.values),
        class_bootstrap(result.per_query, result.labels, **options),
        per_class={name: result.per_class(name) for name in _PER_CLASS_METRICS},
    )
    # Papers report the mean over classes beside that over queries, which the plain names stand for.
    for name in _CLASS_MEANS:
        means = found.per_class[name]
        found.add(over_classes(name), _mean(means), class_bootstrap(list(means.values()), list(means), **options))
    if subject.baseline is not None:
        untrained = _retrieval(subject, subject.baseline, Sphere(), section, section.rerank)
        found.baseline.update(untrained.values)
        found.baseline.update({over_classes(name): _mean(untrained.per_class(name)) for name in _CLASS_MEANS})
    if result.dropped:
        found.notes.append(f"{result.dropped} queries have no other item of their class and were left out.")
    plain = result
    if section.rerank is not None:
        plain = _retrieval(subject, subject.embeddings, subject.space, section, None)
        _add_beside(found, plain, "not re-ranked", section)
        if subject.baseline is not None:
            values = _retrieval(subject, subject.baseline, Sphere(), section, None).values
            found.baseline.update({f"{name}, not re-ranked": values[name] for name in _PER_CLASS_METRICS})
        found.notes.append(
            f"Retrieval of model and baseline is measured on the order that {section.rerank} re-ranked, except where a "
            "metric says: not re-ranked."
        )
    if subject.learned is not None:
        _add_cosine(found, plain, _retrieval(subject, subject.embeddings, Sphere(), section, None), section)
    return found


def _mean(of_classes: dict[str, float]) -> float:
    return math.fsum(of_classes.values()) / len(of_classes)


def _add_beside(found: SuiteResult, result: RetrievalResult, what: str, section: AuditSection) -> None:
    """The main metrics of another way to search, under names that say which."""
    main = {name: result.per_query[name] for name in _PER_CLASS_METRICS}
    for name, interval in class_bootstrap(main, result.labels, **resampling(section)).items():
        found.add(f"{name}, {what}", result.values[name], interval)


def _add_cosine(found: SuiteResult, ours: RetrievalResult, theirs: RetrievalResult, section: AuditSection) -> None:
    """The main metrics by the cosine of the same embeddings, and how far the learned similarity is ahead of it."""
    _add_beside(found, theirs, COSINE, section)
    found.per_class.update({f"{name}, {COSINE}": theirs.per_class(name) for name in _PER_CLASS_METRICS})
    gaps = {name: ours.per_query[name] - theirs.per_query[name] for name in _PER_CLASS_METRICS}
    ahead = {
        name: [ours.values[name] - theirs.values[name], *interval]
        for name, interval in class_bootstrap(gaps, ours.labels, **resampling(section)).items()
    }
    found.details["retrieval"] = {"above cosine": ahead}
    found.notes.append(
        "Retrieval is by the learned similarity, except where a metric says cosine: that of the same embeddings. "
        f"In MAP@R the learned similarity is ahead by {gap_text(*ahead['MAP@R'])}, with classes and queries drawn anew."
    )


@suites.register("clustering")
def clustering_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """NMI, AMI and F1 of k-means with as many clusters as classes.

    k-means goes by the distance of embeddings, however else they are compared.
    """
    found = SuiteResult(clustering_metrics(subject.embeddings, subject.labels, seed=section.seed))
    if subject.baseline is not None:
        untrained = Sphere().project(torch.from_numpy(subject.baseline)).numpy()
        found.baseline.update(clustering_metrics(untrained, subject.labels, seed=section.seed))
    if subject.compared_by == "similarity":
        found.notes.append(
            "Clustering is by the distance of the embeddings, not by the learned similarity, to which k-means has no "
            "centres."
        )
    return found


@suites.register("verification")
def verification_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """ROC-AUC, EER, TPR at small FPRs and minDCF of pairs: all of them, or two million of each kind.

    Of a model with a learned similarity, by that; the cosine and the fusion of both decide the same pairs beside it.
    """
    if subject.learned is not None:
        return _by_scores(score_trials(subject, subject.learned, section, _PAIRS))
    results = {"this model": _verification(subject, subject.embeddings, subject.space, section)}
    if subject.baseline is not None:
        name = subject.baseline_name or "baseline"
        results[name] = _verification(subject, subject.baseline, Sphere(), section)
    result, *others = results.values()
    threshold = shown(subject.space, result.threshold)
    note = (
        f"Verification compares {result.genuine:,} genuine and {result.impostors:,} impostor pairs; "
        f"both errors are equal at the {subject.compared_by} {threshold:.3g}."
    )
    found = SuiteResult(
        result.values,
        baseline=others[0].values if others else {},
        notes=[note, *result.notes],
        lower_is_better=result.lower_is_better,
    )
    _show_errors(found, results, subject.compared_by, threshold)
    return found


def _by_scores(trials: ScoredTrials) -> SuiteResult:
    """What the learned similarity decides as plain metrics, and what the other scores do as metrics that name them."""
    first = trials.results[SIM]
    gaps = "; ".join(f"{name} {gap_text(*ahead, digits=2)}" for name, ahead in trials.ahead.items())
    notes = [
        f"Verification compares {first.genuine:,} genuine and {first.impostors:,} impostor pairs by the learned "
        f"similarity ({SIM}), by the cosine, by the mean of sigmoid({SIM}) and (1 + cosine) / 2 ({FUSED}), and by "
        f"{SIM} plus the cosine ({RAW}, as in the paper). One item of a pair is enrolled and the other asks: that of "
        "the gallery is enrolled, and without a gallery a coin says which. Both errors of "
        f"{SIM} are equal at the similarity {first.threshold:.3g}.",
        "Intervals of the EER draw classes anew, the same for all scores. Below zero a score makes fewer errors than "
        f"the cosine: {gaps}.",
    ]
    found = SuiteResult(
        dict(first.values),
        {"EER": trials.intervals[SIM]},
        baseline=dict(trials.results[trials.baseline].values) if trials.baseline else {},
        notes=[*notes, *trials.trials.notes, *first.notes],
        lower_is_better=first.lower_is_better,
        details={"verification": trials.to_dict()},
    )
    for name in (COSINE, FUSED, RAW):
        for metric in _TRIAL_METRICS:
            found.add(f"{metric}, {name}", trials.results[name].values[metric])
        found.intervals[f"EER, {name}"] = trials.intervals[name]
        found.lower_is_better += tuple(f"{metric}, {name}" for metric in first.lower_is_better)
    _show_errors(found, trials.results, "similarity", first.threshold)
    return found


def _show_errors(found: SuiteResult, results: dict[str, VerificationResult], what: str, threshold: float) -> None:
    """Both errors of verification against each other, of the model, which comes first, and what it is compared with."""
    name, first = next(iter(results.items()))
    found.show(
        "Errors of verification",
        f"For every threshold on the {what}, how many of {first.impostors:,} impostor pairs it accepts and how many "
        f"of {first.genuine:,} genuine pairs it refuses: the nearer to the lower left corner, the better. The marks "
        f"are where both errors are equal, for {name} at the {what} {threshold:.3g}.",
        "DET curve: false negative rate against false positive rate on normal-deviate axes",
        draw_det,
        {name: result.det for name, result in results.items()},
        equal_errors={name: result.values["EER"] for name, result in results.items()},
    )


def _verification(subject: Subject, embeddings: np.ndarray, space: Space, section: AuditSection) -> VerificationResult:
    sides = asked_and_searched(embeddings, subject.labels, subject.gallery)
    return verification_metrics(**sides, space=space, pairs=_PAIRS, seed=section.seed)


_RADIUS = "covering radius"


@suites.register("chance-constraints")
def chance_constraints_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """How many pairs are violated, Markov's bound on it from the mean loss, and the covering radius of the classes.

    The margins that say which pairs are violated are `audit.pair_margins`, else those of the loss that trained the
    model, else 0 and twice the distance at which both errors of verification are equal.
    """
    margins, told = _pair_margins(subject, section)
    result = _violations(subject, subject.embeddings, subject.space, margins, section)
    found = SuiteResult(dict(result.values), lower_is_better=(*result.values, _RADIUS), primary=VIOLATION)
    found.add(_RADIUS, mean_class_radius(subject.embeddings, subject.labels))
    if subject.baseline is not None:
        points = Sphere().project(torch.from_numpy(subject.baseline)).numpy()
        found.baseline.update(_violations(subject, points, Sphere(), margins, section).values)
        found.baseline[_RADIUS] = mean_class_radius(points, subject.labels)
    found.numbers = (_RADIUS,)
    found.notes = [
        f"Chance constraints: of {result.genuine:,} pairs of a class those at least {result.beta:.3g} apart are "
        f"violated, of {result.impostors:,} pairs of two classes those at most as far; the loss wants a gap of "
        f"{result.alpha:.3g} on both sides, and its mean over that gap is the bound. {told}",
        *result.notes,
    ]
    found.details["chance-constraints"] = result.to_dict()
    return found


def _pair_margins(subject: Subject, section: AuditSection) -> tuple[tuple[float, float], str]:
    """m+ and m-, and where they are from, in a sentence."""
    if section.pair_margins is not None:
        return section.pair_margins, "The margins are those of audit.pair_margins."
    objective = ObjectiveSection.model_validate(subject.card.recipe.get("objective", {}))
    margins = pair_margins(objective, subject.space) if subject.card.recipe else None
    if margins is not None and 0 <= margins[0] < margins[1]:
        return margins, f"The margins are those of the loss '{objective.loss}'."
    equal = _verification(subject, subject.embeddings, subject.space, section).threshold
    if equal <= 0:
        raise DataError("The chance-constraints suite needs margins above 0: set audit.pair_margins, such as [0, 1].")
    return (0.0, 2 * equal), (
        "The loss has no margins on distances, so pairs are parted where as many of a class as of two are violated: "
        "set audit.pair_margins to compare models."
    )


def _violations(
    subject: Subject, embeddings: np.ndarray, space: Space, margins: tuple[float, float], section: AuditSection
) -> ViolationResult:
    sides = asked_and_searched(embeddings, subject.labels, subject.gallery)
    least, most = margins
    return pair_violations(**sides, pos_margin=least, neg_margin=most, space=space, pairs=_PAIRS, seed=section.seed)


def _retrieval(
    subject: Subject, embeddings: np.ndarray, space: Space, section: AuditSection, rerank: str | None
) -> RetrievalResult:
    return retrieval_metrics(
        **asked_and_searched(embeddings, subject.labels, subject.gallery),
        recall_at=tuple(section.recall_at),
        map_at=tuple(section.map_at),
        knn=section.knn,
        space=space,
        rerank=rerank,
    )
