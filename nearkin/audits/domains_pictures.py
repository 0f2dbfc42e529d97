"""The pictures of domains: figures across and within domains, each domain against each, and held-out accuracies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.report import Bar, Figure, draw_bars
from nearkin.report.domains import draw_domain_matrix

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
