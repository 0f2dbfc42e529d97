"""Whether two audits measured a metric of the hierarchy suite in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.hierarchical_result import SEVERITY

_OF_PROTOTYPES = ("MC, ", "top-", "AHD@", "HP@", SEVERITY)
_BY_TREE = ("MC, ", "AHD@", "HP@", "HS@", "AHS@", SEVERITY)


def judged_unlike(first: Mapping[str, Any], second: Mapping[str, Any], metric: str) -> str:
    """Why a metric of two audits cannot be compared, in words; empty if it can, or if it is of another suite.

    Args:
        first: the details of an audit's hierarchy suite; empty if it did not run.
        second: those of the other.
        metric: its name.
    """
    if not first or not second:
        return ""
    if metric.startswith(_BY_TREE):
        if not _same_tree(first.get("tree", ""), second.get("tree", "")):
            return f"the trees differ ({_named(first)}; {_named(second)})"
        if first.get("tree distance") != second.get("tree distance"):
            return f"the tree distances differ ({first.get('tree distance')}; {second.get('tree distance')})"
    if metric.startswith("MC, ") and first.get("diagonal") != second.get("diagonal"):
        return "only one counts the diagonal (audit.diagonal)"
    if metric.startswith(_OF_PROTOTYPES) and first.get("references") != second.get("references"):
        return f"the references differ ({first.get('references')}; {second.get('references')})"
    return ""


def _named(judged: Mapping[str, Any]) -> str:
    return str(judged.get("tree name") or "without a name")


def _same_tree(first: str, second: str) -> bool:
    """Whether two trees, as Newick, put the classes that both have equally far apart; their order is no matter."""
    if first == second:
        return True
    try:
        trees = [Hierarchy.from_newick(text) for text in (first, second)]
        shared = sorted(set(trees[0].classes) & set(trees[1].classes))
        one, other = (tree.restricted(shared) for tree in trees)
    except DataError:
        return False
    # Edges do not tell where the root is, heights do.
    return all(np.allclose(one.distances(shared, how), other.distances(shared, how)) for how in ("path", "lcs"))
