"""The domains suite: are classes recognised across domains?

Items of one domain are searched for among those of all others. A model with held-out domains is asked items of these,
and besides items that chose its weights; what trained it is only ever found, never asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
    Answers,
    DomainPool,
    domain_interval,
)
from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.recipe import AuditSection
from nearkin.report import Bar, Figure, draw_bars
from nearkin.report.heat import draw_domain_matrix
from nearkin.search import exact
from nearkin.spaces import Sphere

_KINDS = {ACROSS: "in others", WITHIN: "in itself"}
_PARTS = (HELD_OUT, TRAINED, NOT_TRAINED)
NEAREST = "P@1"
GAP = "gap"
_PER_DOMAIN = (NEAREST, "MAP@R")
"""What the table has of every single domain; the details have all."""

Plain = Mapping[str, Any]
"""Queries, values and intervals of one kind of search, as the details keep them."""
AnswersByDomain = Mapping[str, Mapping[str, Answers]]
"""Domain to "cross-domain", "in-domain" and "gap", to the answers of its queries."""
Own = Mapping[str, Mapping[str, Answers]]
"""Classifier to domain to the answers of its queries."""


@suites.register("domains")
def domains_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """P@1, MAP@R, R-precision and accuracies across domains and within them, and the gap between the two.

    Of a model with held-out domains: theirs beside those of the trained domains, and the accuracy of its own classes.
    """
    pool, trained = DomainPool.of(subject), subject.trained_domains
    roles = {name: UNKNOWN if trained is None else trained.role(name) for name in pool.names}
    held_out = HELD_OUT in roles.values()
    found = _search(pool, pool.embeddings, subject.space, section)
    own = _own_answers(subject, pool) if held_out else {}
    result = SuiteResult()
    for name, columns in [*_own_means(own, roles), *_means(found, roles)]:
        values, labels = zip(*(pool.asked_only(column) for column in columns), strict=True)
        interval = domain_interval(values, labels, **resampling(section))
        every, names = np.concatenate(values), np.concatenate(labels).astype(str)
        per_class = {label: float(every[names == label].mean()) for label in np.unique(names).tolist()}
        result.add(name, _mean(pool, columns), interval, per_class)
    if pool.baseline is not None:
        untrained = _search(pool, pool.baseline, Sphere(), section)
        result.baseline = {name: _mean(pool, columns) for name, columns in _means(untrained, roles)}
    matrix = pool.matrix(subject.space, NEAREST)

    def plain(by_name: Mapping[str, Answers]) -> dict[str, Plain]:
        return {name: pool.told(answers, **resampling(section)) for name, answers in by_name.items()}

    figures = {name: plain(kinds) for name, kinds in found.items()}
    own_classes = {by: plain(answers) for by, answers in own.items()}
    result.details["domains"] = {
        "roles": roles,
        "queries": {name: len(pool.queries(name)) for name in pool.names},
        "gallery": {name: len(pool.gallery(name, WITHIN)) for name in pool.names},
        "figures": figures,
        "own classes": own_classes,
        NEAREST: {
            "domains": pool.names,
            "matrix": [[None if np.isnan(value) else value for value in row] for row in matrix.tolist()],
        },
    }
    result.notes.extend(_notes(subject, pool, roles, section))
    if held_out and not own:
        result.notes.append(
            "Domains: there is no accuracy of the model's own classes, because no proxies of them were saved: audit "
            "the run of a loss that classifies."
        )
    elif held_out and subject.learned is None:
        result.notes.append(
            "Domains: accuracies are by the nearest proxy, which is not how a linear classifier (softmax) decides."
        )
    _show_domains(result, figures, roles)
    _show_matrix(result, matrix, pool.names, roles)
    if own:
        result.drawings.append(partial(draw_accuracies, own_classes, roles))
    # The held-out accuracy of the model's own classes, else the nearest neighbour across domains. A gap is no aim: a
    # model that is bad in its own domain as well has a small one.
    best = [f"accuracy {by}, {HELD_OUT}" for by in own]
    best.append(f"{NEAREST}, {HELD_OUT}, {ACROSS}" if held_out else f"{NEAREST}, {ACROSS}")
    result.primary = next((name for name in best if name in result.values), "")
    return result


def _show_domains(result: SuiteResult, figures: Mapping[str, Mapping[str, Plain]], roles: Mapping[str, str]) -> None:
    """Each domain searched for in the others and in itself."""
    bars = [
        Bar(
            model=told,
            values={metric: _value(figures[name][kind], metric) for metric in _PER_DOMAIN},
            part=f"{name} ({roles[name]})",
            label=told,
        )
        for name in _ordered(figures, roles)
        for kind, told in _KINDS.items()
    ]
    result.show(
        "Across domains and within",
        "Items of each domain are searched for among those of the other domains, and among the others of its own. Bars "
        "are means, lines 95 % intervals over classes and items; in brackets, what training had to do with the domain.",
        "Bars of retrieval metrics for each domain, across domains and within",
        draw_bars,
        bars,
        list(_PER_DOMAIN),
    )


def _show_matrix(result: SuiteResult, matrix: np.ndarray, names: list[str], roles: Mapping[str, str]) -> None:
    """P@1 (D, D) of each domain's queries in each domain's gallery, in the order of the bars."""
    order = _ordered(roles, roles)
    places = [names.index(name) for name in order]
    result.show(
        "Each domain in each",
        f"{NEAREST} of the items of a domain (row) when items of a single domain (column) are searched; on the "
        "diagonal its own, without the item itself.",
        f"Heat map of {NEAREST} by the domain of the queries and of the gallery",
        draw_domain_matrix,
        matrix[np.ix_(places, places)],
        [f"{name} ({roles[name]})" for name in order],
        order,
        NEAREST,
    )


def draw_accuracies(own: Mapping[str, Mapping[str, Plain]], roles: Mapping[str, str]) -> Figure:
    """How often the model's own classes are right, domain by domain.

    Args:
        own: classifier to domain to what was found.
        roles: domain to what training had to do with it.
    """
    queries = {name: found[name]["queries"] for found in own.values() for name in found}
    bars = [
        Bar(
            model=roles[name],
            values={f"accuracy {by}": _value(found.get(name, {}), "accuracy") for by, found in own.items()},
            part=roles[name],
            label=f"{name} ({queries[name]:,} item{'' if queries[name] == 1 else 's'})",
        )
        for name in _ordered(queries, roles)
    ]
    return Figure(
        "The model's own classes, held out and trained on",
        "How often the model names an item rightly by what stood for the classes in training: of held-out domains all "
        "items, of those that it was trained on the validation items; in brackets, how many. Lines: 95 % intervals "
        "over classes and items, which say little of fewer than 20 items.",
        draw_bars(bars, [f"accuracy {by}" for by in own]),
        "Bars of accuracy for held-out domains and for those that were trained on",
    )


def _ordered(names: Mapping[str, Any], roles: Mapping[str, str]) -> list[str]:
    """Held-out domains first, then the others by what training had to do with them."""
    return sorted(names, key=lambda name: (roles[name], name))


def _value(found: Plain, metric: str) -> tuple[float, float, float]:
    if metric not in found.get("values", {}):
        return (math.nan,) * 3
    low, high = found["intervals"][metric]
    return found["values"][metric], low, high


def _search(pool: DomainPool, features: np.ndarray, space: Any, section: AuditSection) -> AnswersByDomain:
    """Answers of every domain's queries, in its own gallery and in the others', and how far these are apart."""
    found = {}
    for name in pool.names:
        asked, others = pool.queries(name), pool.gallery(name, ACROSS)
        across = pool.retrieve(features, space, asked, others)
        within = pool.retrieve(features, space, asked, pool.gallery(name, WITHIN))
        accuracies = pool.classify(features, space, asked, others, section.classification_k)
        gap = {metric: within[metric] - across[metric] for metric in within}
        found[name] = {ACROSS: across | accuracies, WITHIN: within, GAP: gap}
    return found


def _means(found: AnswersByDomain, roles: Mapping[str, str]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """What the table tells: name, and the answers of the domains that the mean is over.

    With held-out domains: theirs, and those of the other ones. Otherwise: of all domains, and of each.
    """
    if HELD_OUT in roles.values():
        groups = {f"{title}, ": [name for name in found if roles[name] == title] for title in _PARTS}
    else:
        groups = {"": list(found)} | {f"{name}, ": [name] for name in found}
    for before, names in groups.items():
        alone = not before or HELD_OUT in roles.values()
        for kind in (ACROSS, WITHIN, GAP):
            answers = [found[name][kind] for name in names if not np.isnan(found[name][kind][NEAREST]).all()]
            for metric in answers[0] if answers else ():
                if metric == NEAREST or (kind != GAP and (alone or metric in _PER_DOMAIN)):
                    yield f"{metric}, {before}{kind}", [one[metric] for one in answers]


def _own_means(own: Own, roles: Mapping[str, str]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Likewise of the model's own classes."""
    for by, found in own.items():
        for title in _PARTS:
            columns = [one["accuracy"] for name, one in found.items() if roles[name] == title]
            if columns:
                yield f"accuracy {by}, {title}", columns


def _mean(pool: DomainPool, columns: list[np.ndarray]) -> float:
    return float(np.mean([pool.asked_only(column)[0].mean() for column in columns]))


def _own_answers(subject: Subject, pool: DomainPool) -> Own:
    """Whether the model's own classes are right, by classifier and domain."""
    found: dict[str, dict[str, Answers]] = {}
    for by, chosen in _predicted(subject, pool.embeddings[pool.asked]).items():
        right = np.full(len(pool.labels), np.nan)
        right[pool.asked] = chosen == pool.labels[pool.asked]
        names = [name for name in pool.names if len(pool.queries(name))]
        found[by] = {name: {"accuracy": np.where(pool.domains == name, right, np.nan)} for name in names}
    return found


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
        notes.append("Domains: the model was trained on domains of these names, possibly on some of these items.")
    if pool.dropped:
        notes.append(f"Domains: {pool.dropped:,} items without a domain are left out.")
    if section.rerank is not None:
        notes.append("Domains: neighbours are not re-ranked here.")
    notes.append(
        "Domains: a mean over domains gives each the same weight; galleries of one domain are smaller than those of "
        f"all others, so compare {NEAREST} across and within domains rather than MAP@R."
    )
    return notes
