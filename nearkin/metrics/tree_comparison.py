"""How alike two class trees are: the groups they share, and the distances they give.

A clade is the set of classes below an inner node; a split is the pair of sets that remain when a branch is cut,
whichever way up the tree hangs. Those of a single class, or of all, say nothing and do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.matrices import symmetric_distances

Clade = frozenset[str]


@dataclass(frozen=True)
class RobinsonFoulds:
    """How many groups only one of two trees has.

    Attributes:
        count: the clades that only one tree has.
        most: the clades of both trees together, which is the largest count there could be.
        share: `count / most`, from 0 (the same tree) to 1 (no clade in common); 0 where neither tree has any.
        split_count: the same of splits, which do not depend on where the root is.
        split_most: the splits of both trees together.
        split_share: `split_count / split_most`.
    """

    count: int
    most: int
    share: float
    split_count: int
    split_most: int
    split_share: float


def robinson_foulds(first: Hierarchy, second: Hierarchy) -> RobinsonFoulds:
    """The Robinson-Foulds distance of two trees over the same classes.

    A node may have any number of children, so the share is of the groups that the two trees have, not of the number
    that binary trees would have.

    Reference: Robinson and Foulds 1981.

    Args:
        first: a tree.
        second: another, over the same classes; `Hierarchy.restricted` leaves out those that only one has.
    """
    _check_same_classes(first, second)
    clades = _difference(first.clades(), second.clades())
    splits = _difference(_splits(first), _splits(second))
    return RobinsonFoulds(*clades, *splits)


@dataclass(frozen=True)
class RecoveredClades:
    """Which clades of a known tree another tree has too.

    Attributes:
        share: of the known clades that were found, from 0 to 1; NaN if the known tree has none.
        found: these clades.
        missed: the other ones.
    """

    share: float
    found: frozenset[Clade] = field(repr=False)
    missed: frozenset[Clade] = field(repr=False)


def recovered_clades(known: Hierarchy, inferred: Hierarchy) -> RecoveredClades:
    """The clades of a known tree that an inferred one over the same classes has too.

    Unlike `robinson_foulds` this does not count what an inferred tree, mostly binary, has beyond a known one.
    """
    _check_same_classes(known, inferred)
    clades, others = known.clades(), inferred.clades()
    found = frozenset(clades & others)
    return RecoveredClades(len(found) / len(clades) if clades else float("nan"), found, frozenset(clades - others))


def cophenetic_correlation(tree_distances: Any, learned_distances: Any) -> float:
    """Pearson's correlation, over pairs of classes, of tree distances and learned distances.

    NaN where one of them is the same for all pairs.

    Reference: Sokal and Rohlf 1962.

    Args:
        tree_distances: (C, C), such as `tree.distances(classes, how="length")` of an inferred tree.
        learned_distances: (C, C) between the same classes.
    """
    tree = symmetric_distances(tree_distances, "tree distances")
    learned = symmetric_distances(learned_distances, "learned distances", len(tree))
    pairs = np.triu_indices(len(tree), 1)
    first, second = tree[pairs], learned[pairs]
    if len(first) == 0 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1.0, 1.0))


def _check_same_classes(first: Hierarchy, second: Hierarchy) -> None:
    for place, tree in (("first", first), ("second", second)):
        if not isinstance(tree, Hierarchy):
            raise DataError(f"The {place} of the trees to compare is no Hierarchy but {tree!r}: give one.")
    here, there = set(first.classes), set(second.classes)
    if here != there:
        odd = sorted(here ^ there)
        raise DataError(
            f"Trees are compared over the same classes, and {len(odd)} are in only one of them ('{odd[0]}' in the "
            f"{'first' if odd[0] in here else 'second'}): leave these out with restricted()."
        )


def _splits(tree: Hierarchy) -> set[Clade]:
    """The side of each split that lacks the first class by name, two classes or more on either side."""
    everything = frozenset(tree.classes)
    fixed = min(everything)
    sides = (everything - clade if fixed in clade else clade for clade in tree.clades())
    return {side for side in sides if 1 < len(side) < len(everything) - 1}


def _difference(first: set[Clade], second: set[Clade]) -> tuple[int, int, float]:
    """How many groups one side alone has, how many both have together, and the share."""
    count, most = len(first ^ second), len(first) + len(second)
    return count, most, count / most if most else 0.0
