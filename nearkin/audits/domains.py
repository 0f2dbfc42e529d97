"""The domains suite: is a class recognised where it looks as another domain shows it?

Items of one domain are searched for among those of all others. A model with held-out domains is asked items of these,
and besides items that chose its weights; what trained it is only ever found, never asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from nearkin.audits.domain_pool import (
    ACROSS,
    HELD_OUT,
    NOT_TRAINED,
    TRAINED,
    UNKNOWN,
    WITHIN,
    DomainAnswers,
    DomainPool,
    domain_interval,
)
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.recipe import AuditSection
from nearkin.report import Bar, Figure, draw_bars
from nearkin.report.heat import draw_domain_matrix
from nearkin.search import exact
from nearkin.spaces import Sphere

_KINDS = {"cross-domain": "in others", "in-domain": "in itself"}

Plain = Mapping[str, Any]
"""Queries, values and intervals of one kind of search, as the details keep them."""


def draw_domains(
    figures: Mapping[str, Mapping[str, Plain]], roles: Mapping[str, str], metrics: Sequence[str]
) -> Figure:
    """Each domain searched for in the others and in itself.

    Args:
        figures: domain to kind of search to what was found.
        roles: domain to what training had to do with it.
        metrics: one panel each.
    """
    bars = [
        Bar(
            model=told,
            values={metric: _value(figures[name][kind], metric) for metric in metrics},
            part=f"{name} ({roles[name]})",
            label=told,
        )
        for name in _ordered(figures, roles)
        for kind, told in _KINDS.items()
    ]
    return Figure(
        "Across domains and within",
        "Items of each domain are searched for among those of the other domains, and among the others of its own. Bars "
        "are means, lines 95 % intervals over classes and items; in brackets, what training had to do with the domain.",
        draw_bars(bars, list(metrics)),
        "Bars of retrieval metrics for each domain, across domains and within",
    )


def draw_matrix(matrix: np.ndarray, names: Sequence[str], roles: Mapping[str, str], metric: str) -> Figure:
    """A metric (D, D) of each domain's queries in each domain's gallery, in the order of the bars."""
    order = _ordered(roles, roles)
    places = [list(names).index(name) for name in order]
    return Figure(
        "Each domain in each",
        f"{metric} of the items of a domain (row) when items of a single domain (column) are searched; on the diagonal "
        "its own, without the item itself.",
        draw_domain_matrix(
            matrix[np.ix_(places, places)], [f"{name} ({roles[name]})" for name in order], order, metric
        ),
        f"Heat map of {metric} by the domain of the queries and of the gallery",
    )


def draw_accuracies(own: Mapping[str, Mapping[str, Plain]], roles: Mapping[str, str]) -> Figure:
    """How often the model's own classes are right, domain by domain.

    Args:
        own: classifier to domain to what was found.
        roles: domain to what training had to do with it.
    """
    domains = {name: None for found in own.values() for name in found}
    bars = [
        Bar(
            model=roles[name],
            values={f"accuracy {by}": _value(found.get(name, {}), "accuracy") for by, found in own.items()},
            part=roles[name],
            label=f"{name} ({_items(own, name)})",
        )
        for name in _ordered(domains, roles)
    ]
    return Figure(
        "The model's own classes, held out and trained on",
        "How often the model names an item rightly by what stood for the classes in training: of held-out domains all "
        "items, of those that it was trained on the validation items; in brackets, how many. Lines: 95 % intervals "
        "over classes and items, which say little of fewer than 20 items.",
        draw_bars(bars, [f"accuracy {by}" for by in own]),
        "Bars of accuracy for held-out domains and for those that were trained on",
    )


def _items(own: Mapping[str, Mapping[str, Plain]], name: str) -> str:
    count = max(found[name]["queries"] for found in own.values() if name in found)
    return f"{count:,} item{'' if count == 1 else 's'}"


def _ordered(names: Mapping[str, Any], roles: Mapping[str, str]) -> list[str]:
    """Held-out domains first, then the others by what training had to do with them."""
    return sorted(names, key=lambda name: (roles[name], name))


def _value(found: Plain, metric: str) -> tuple[float, float, float]:
    if metric not in found.get("values", {}):
        return (math.nan,) * 3
    low, high = found["intervals"][metric]
    return found["values"][metric], low, high


_PARTS = (HELD_OUT, TRAINED, NOT_TRAINED)
NEAREST = "P@1"
GAP = "gap"
_PER_DOMAIN = (NEAREST, "MAP@R")
"""What the table has of every single domain; the details have all."""

AnswersByDomain = Mapping[str, Mapping[str, DomainAnswers]]
"""Domain to "cross-domain", "in-domain" and "gap", to the answers of its queries."""
Own = Mapping[str, Mapping[str, DomainAnswers]]
"""Classifier to domain to the answers of its queries."""


@suites.register("domains")
def domains_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """P@1, MAP@R, R-precision and accuracies across domains and within them, and the gap between the two.

    Of a model with held-out domains: theirs beside those of the trained domains, and the accuracy of its own classes.
    """
    pool = DomainPool.of(subject)
    roles = _roles(subject, pool.names)
    held_out = HELD_OUT in roles.values()
    found = _search(pool, pool.embeddings, subject.space, section)
    own = _own_answers(subject, pool) if held_out else {}
    result = SuiteResult({})
    for name, metric, answers in [*_own_means(own, roles), *_means(found, roles)]:
        values, labels = [one.values[metric] for one in answers], [one.labels for one in answers]
        result.values[name] = _mean(metric, answers)
        result.intervals[name] = domain_interval(values, labels, resamples=section.resamples, seed=section.seed)
        result.per_class[name] = _by_class(np.concatenate(values), np.concatenate(labels))
    if pool.baseline is not None:
        untrained = _search(pool, pool.baseline, Sphere(), section)
        result.baseline.update({name: _mean(metric, answers) for name, metric, answers in _means(untrained, roles)})
    matrix = pool.matrix(subject.space, NEAREST)
    details = _details(pool, roles, found, own, matrix, section)
    result.details["domains"] = details
    result.notes.extend(_notes(subject, pool, roles, section))
    if held_out:
        result.notes.extend(_classifier_notes(subject, own))
    result.drawings.append(partial(draw_domains, details["figures"], roles, _PER_DOMAIN))
    result.drawings.append(partial(draw_matrix, matrix, pool.names, roles, NEAREST))
    if own:
        result.drawings.append(partial(draw_accuracies, details["own classes"], roles))
    # A gap is no aim: a model that is bad in its own domain as well has a small one.
    return replace(result, primary=_primary(result.values, held_out))


def _roles(subject: Subject, names: list[str]) -> dict[str, str]:
    """What training had to do with each domain."""
    known = subject.trained_domains
    return {name: UNKNOWN if known is None else known.role(name) for name in names}


def _search(pool: DomainPool, features: np.ndarray, space: Any, section: AuditSection) -> AnswersByDomain:
    """Answers of every domain's queries, in its own gallery and in the others', and how far these are apart."""
    found = {}
    for name in pool.names:
        across = pool.retrieve(features, space, name, ACROSS)
        within = pool.retrieve(features, space, name, WITHIN)
        named = across.joined(pool.classify(features, space, name, section.classification_k))
        found[name] = {ACROSS: named, WITHIN: within, GAP: within.minus(across)}
    return found


def _means(found: AnswersByDomain, roles: Mapping[str, str]) -> Iterator[tuple[str, str, list[DomainAnswers]]]:
    """What the table tells: name, metric, and the answers of the domains that the mean is over.

    With held-out domains: theirs, and those of the other ones. Otherwise: of all domains, and of each.
    """
    if HELD_OUT in roles.values():
        groups = {f"{title}, ": [name for name in found if roles[name] == title] for title in _PARTS}
    else:
        groups = {"": list(found)} | {f"{name}, ": [name] for name in found}
    for before, names in groups.items():
        alone = not before or HELD_OUT in roles.values()
        for kind in (ACROSS, WITHIN, GAP):
            answers = [found[name][kind] for name in names if len(found[name][kind].labels)]
            for metric in answers[0].values if answers else ():
                if metric == NEAREST or (kind != GAP and (alone or metric in _PER_DOMAIN)):
                    yield f"{metric}, {before}{kind}", metric, answers


def _own_means(own: Own, roles: Mapping[str, str]) -> Iterator[tuple[str, str, list[DomainAnswers]]]:
    """Likewise of the model's own classes."""
    for by, found in own.items():
        for title in _PARTS:
            answers = [one for name, one in found.items() if roles[name] == title]
            if answers:
                yield f"accuracy {by}, {title}", "accuracy", answers


def _mean(metric: str, answers: list[DomainAnswers]) -> float:
    return float(np.mean([one.values[metric].mean() for one in answers]))


def _by_class(values: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    names = np.array([str(label) for label in labels])
    return {name: float(values[names == name].mean()) for name in np.unique(names).tolist()}


def _own_answers(subject: Subject, pool: DomainPool) -> Own:
    """Whether the model's own classes are right, by classifier and domain."""
    points, labels, domains = pool.embeddings[pool.asked], pool.labels[pool.asked], pool.domains[pool.asked]
    return {
        by: {
            name: DomainAnswers(
                labels[domains == name], {"accuracy": (chosen == labels)[domains == name].astype(float)}
            )
            for name in pool.names
            if (domains == name).any()
        }
        for by, chosen in _predicted(subject, points).items()
    }


def _predicted(subject: Subject, points: np.ndarray) -> dict[str, np.ndarray]:
    """Classifier to the class (q,) that it gives to embeddings (q, d)."""
    if subject.learned is not None:
        model, named = subject.learned, {}
        classifiers: tuple[Literal["sim", "dol"], ...] = ("sim",) if model.dense is None else ("sim", "dol")
        for by in classifiers:
            with torch.no_grad():
                best = model.class_scores(torch.from_numpy(points), by=by).argmax(dim=1).cpu().numpy()
            named[by.upper()] = np.array(model.classes, dtype=object)[best]
        return named
    if subject.proxies is not None:
        names, proxies = subject.proxies
        _, near = exact(points, proxies, 1, space=subject.space)
        return {"nearest proxy": np.array(names, dtype=object)[near[:, 0].cpu().numpy()]}
    return {}


def _primary(values: Mapping[str, float], held_out: bool) -> str:
    """The held-out accuracy of the model's own classes, else the nearest neighbour across domains."""
    accuracies = [name for name in values if name.startswith("accuracy ") and name.endswith(f" {HELD_OUT}")]
    across = f"{NEAREST}, {HELD_OUT}, {ACROSS}" if held_out else f"{NEAREST}, {ACROSS}"
    return next((name for name in [*accuracies, across] if name in values), "")


def _details(
    pool: DomainPool,
    roles: Mapping[str, str],
    found: AnswersByDomain,
    own: Own,
    matrix: np.ndarray,
    section: AuditSection,
) -> dict[str, Any]:
    def plain(by_name: Mapping[str, DomainAnswers]) -> dict[str, Any]:
        return {name: one.to_dict(section.resamples, section.seed) for name, one in by_name.items()}

    return {
        "roles": dict(roles),
        "queries": {name: len(pool.queries(name)) for name in pool.names},
        "gallery": {name: len(pool.gallery(name, WITHIN)) for name in pool.names},
        "figures": {name: plain(kinds) for name, kinds in found.items()},
        "own classes": {by: plain(answers) for by, answers in own.items()},
        NEAREST: {
            "domains": list(pool.names),
            "matrix": [[None if np.isnan(value) else value for value in row] for row in matrix.tolist()],
        },
    }


def _notes(subject: Subject, pool: DomainPool, roles: Mapping[str, str], section: AuditSection) -> list[str]:
    told = "; ".join(
        f"{role}: {', '.join(name for name in pool.names if roles[name] == role)}"
        for role in dict.fromkeys(roles.values())
    )
    if UNKNOWN in roles.values():
        told = "it is not known which of them the model was trained on"
    notes = [f"Domains: {told}."]
    held_out = [name for name in pool.names if roles[name] == HELD_OUT]
    if held_out:
        notes.append(
            f"Domains: held-out figures ask all {sum(len(pool.queries(name)) for name in held_out):,} items of "
            f"{', '.join(held_out)}; those of the other domains ask the validation items. What is searched across "
            "domains are the training items, and these are never asked."
        )
    elif TRAINED in roles.values() and not subject.own_data:
        notes.append(
            "Domains: domains of these names trained the model, and nobody knows whether some of these items did."
        )
    if pool.dropped:
        notes.append(f"Domains: {pool.dropped:,} items without a domain are left out.")
    if section.rerank is not None:
        notes.append("Domains: neighbours are not re-ranked here.")
    notes.append(
        "Domains: a mean over domains gives each the same weight; galleries of one domain are smaller than those of "
        f"all others, so compare {NEAREST} across and within domains rather than MAP@R."
    )
    return notes


def _classifier_notes(subject: Subject, own: Own) -> list[str]:
    if not own:
        return [
            "Domains: there is no accuracy of the model's own classes, as nothing that stands for them was kept: audit "
            "the run of a loss that classifies."
        ]
    if subject.learned is None:
        return ["Domains: accuracies are by the nearest proxy, which is not how a linear classifier (softmax) decides."]
    return []
