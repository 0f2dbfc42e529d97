"""Class trees: inferred by average linkage or neighbour joining, and compared by their groups and distances.

A class tree from distances between classes, by average linkage or neighbour joining.
Average linkage (UPGMA) joins the two nearest groups, the distance of groups being the mean over their pairs; all
classes end at the same depth. Neighbour joining joins the pair with the smallest `d(i, j) - u_i - u_j`, u_i being the
sum of i's distances over n - 2 for n groups; it finds every tree whose path lengths are the distances, even or not.

How alike two class trees are: the groups they share, and the distances they give.
A clade is the set of classes below an inner node; a split is the pair of sets that remain when a branch is cut,
whichever way up the tree hangs. Those of a single class, or of all, say nothing and do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, suggestion
from nearkin.metrics.checks import class_ids, square_matrix, symmetric_distances

LinkageMethod = Literal["average", "neighbour-joining"]
_ROUNDING = 1e-9
"""Share of the largest distance up to which an inner branch has no length."""


def infer_tree(distances: Any, class_names: Sequence[str], method: LinkageMethod = "average") -> Hierarchy:
    """The tree, with branch lengths, that distances between classes speak for.

    Inner branches without length are left out, so groups that the distances do not tell apart hang side by side, in
    whatever order the classes come. With neighbour joining a negative length becomes 0 and its neighbour takes the
    difference (Kuhner and Felsenstein 1994), and the root is put in the middle of the longest path, since the method
    itself knows no root. Average linkage may depend on the order of classes where several pairs are equally near.

    Reference: Sokal and Michener 1958 (average linkage); Saitou and Nei 1987 (neighbour joining).

    Example:
        >>> from nearkin.metrics.class_tree import infer_tree
        >>> infer_tree([[0, 2, 6], [2, 0, 6], [6, 6, 0]], ["cat", "dog", "oak"]).to_newick()
        '(oak:3.0,(cat:1.0,dog:1.0):2.0);'

    Args:
        distances: between classes (C, C), such as `class_distance_matrix` gives of proxies or prototypes.
        class_names: the classes (C,), each once.
        method: "average" or "neighbour-joining".
    """
    if method not in get_args(LinkageMethod):
        raise DataError(f"There is no tree inference '{method}'.{suggestion(str(method), get_args(LinkageMethod))}")
    matrix = symmetric_distances(distances, "distances between classes")
    if not isinstance(class_names, Iterable):
        raise DataError(f"The class names must be one for each class, not {class_names!r}: give a list of them.")
    names = [str(name) for name in class_names]
    if len(names) != len(matrix) or len(set(names)) != len(names):
        raise DataError(
            f"There are {len(set(names))} different class names for {len(matrix)} classes: pass one per class."
        )
    if len(matrix) < 2:
        raise DataError("A tree needs at least two classes, but there is only one.")
    parents, lengths = _average_linkage(matrix) if method == "average" else _neighbour_joining(matrix)
    tree = Hierarchy(tuple(parents), (*names, *[""] * (len(parents) - len(names))), tuple(lengths))
    if method == "neighbour-joining":
        tree = _rooted_in_the_middle(tree)
    return _without_empty_branches(tree, _ROUNDING * float(matrix.max()))


def confusion_counts(truth: Any, predicted: Any, classes: int) -> np.ndarray:
    """How often items of each class (row) were taken for each (column), int64 (C, C), of class numbers, each (n,)."""
    columns = class_ids(predicted, len(predicted), classes, None, "items")
    rows = class_ids(truth, len(columns), classes, None, "predictions")
    return np.bincount(rows * classes + columns, minlength=classes * classes).reshape(classes, classes)


def confusion_distances(confusion: Any) -> np.ndarray:
    """Distances (C, C) between classes by what their items are taken for.

    Each row is divided by its sum, and rows are compared by their Euclidean distance: 0 for classes that are confused
    alike, sqrt(2) for two that are never taken for anything in common.

    Reference: Godbole 2002 (Kim 2023, chapter 4).

    Args:
        confusion: counts (C, C), the true class of items in rows and the predicted one in columns.
    """
    from scipy.spatial.distance import pdist, squareform

    counts = square_matrix(confusion, "confusion counts")
    if counts.min() < 0:
        raise DataError(f"Confusion counts cannot be negative, as {counts.min():g} is.")
    totals = counts.sum(axis=1, keepdims=True)
    if not totals.all():
        empty = np.flatnonzero(totals[:, 0] == 0)
        raise DataError(
            f"{len(empty)} classes have no items in the confusion counts, first row {empty[0]}: remove these classes."
        )
    return np.asarray(squareform(pdist(counts / totals)))


def _average_linkage(matrix: np.ndarray) -> tuple[list[int], list[float]]:
    """The parent of each node, the classes first, and the branch above it."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    merges = linkage(squareform(matrix, checks=False), "average")
    count = len(matrix)
    heights = np.concatenate([np.zeros(count), merges[:, 2] / 2])
    parents = np.full(len(heights), -1)
    parents[merges[:, :2].astype(np.int64)] = np.arange(count, len(heights))[:, None]
    lengths = np.where(parents < 0, 0.0, heights[parents] - heights)
    return parents.tolist(), lengths.tolist()


def _neighbour_joining(matrix: np.ndarray) -> tuple[list[int], list[float]]:
    """As `_average_linkage`; the last node joined, of three branches, is the root."""
    size = len(matrix)
    if size == 2:
        return [2, 2, -1], [matrix[0, 1] / 2, matrix[0, 1] / 2, 0.0]
    parents, lengths = np.full(2 * size - 2, -1), np.zeros(2 * size - 2)
    distances, nodes, room = matrix.copy(), np.arange(size), np.empty(size * size)
    for new in range(size, 2 * size - 3):
        left = distances[: len(nodes), : len(nodes)]
        spread = left.sum(axis=1) / (len(nodes) - 2)
        # Contiguous, or argmin would copy it.
        costs = np.subtract(left, spread[:, None], out=room[: left.size].reshape(left.shape))
        costs -= spread
        np.fill_diagonal(costs, np.inf)
        i, j = sorted(divmod(int(costs.argmin()), len(nodes)))
        apart = max(float(left[i, j]), 0.0)
        branch = min(max((apart + float(spread[i] - spread[j])) / 2, 0.0), apart)
        parents[nodes[[i, j]]] = new
        lengths[nodes[[i, j]]] = branch, apart - branch
        # The new node takes the place of i, and the last that of j.
        joined = (left[i] + left[j] - left[i, j]) / 2
        joined[i] = 0.0
        left[i] = left[:, i] = joined
        left[j], left[:, j] = left[-1], left[:, -1]
        left[j, j] = 0.0
        nodes[i], nodes[j] = new, nodes[-1]
        nodes = nodes[:-1]
    a, b, c = distances[0, 1], distances[0, 2], distances[1, 2]
    parents[nodes] = len(parents) - 1
    lengths[nodes] = np.maximum([a + b - c, a + c - b, b + c - a], 0) / 2
    return parents.tolist(), lengths.tolist()


def _rooted_in_the_middle(tree: Hierarchy) -> Hierarchy:
    """The same tree, unrooted, with a new root halfway between the two classes that are farthest apart."""
    apart = tree.distances(how="length")
    pair = [tree.classes[place] for place in np.unravel_index(int(apart.argmax()), apart.shape)]
    lengths = np.array(tree.lengths)
    # The way up to the root is longer from the one of the two above which the middle lies.
    way = max((tree.ancestors(name) for name in pair), key=lambda nodes: lengths[nodes].sum())
    reached = np.cumsum(lengths[way[:-1]])
    edge = min(int(np.searchsorted(reached, apart.max() / 2)), len(way) - 2)
    rest = min(max(reached[edge] - apart.max() / 2, 0.0), lengths[way[edge]])
    parents, root = list(tree.parents), len(tree.parents)
    branches = lengths.tolist()
    for lower, upper in zip(way[edge + 1 :], way[edge + 2 :], strict=False):  # what was above now hangs below
        parents[upper], branches[upper] = lower, float(lengths[lower])
    parents[way[edge]], branches[way[edge]] = root, float(lengths[way[edge]] - rest)
    parents[way[edge + 1]], branches[way[edge + 1]] = root, float(rest)
    return Hierarchy((*parents, -1), (*tree.names, ""), (*branches, 0.0))


def _without_empty_branches(tree: Hierarchy, least: float) -> Hierarchy:
    """The tree without inner nodes that hang no further than `least` below their parent."""
    lengths = list(tree.lengths or ())
    inner = {parent for parent in tree.parents if parent >= 0}
    place, kept = {0: 0}, [0]  # in preorder a parent's place is known before its children's
    parents = [-1]
    for node in range(1, len(tree.parents)):
        above = tree.parents[node]
        if node in inner and lengths[node] <= least:
            place[node] = place[above]
            continue
        place[node] = len(kept)
        kept.append(node)
        parents.append(place[above])
    return Hierarchy(tuple(parents), tuple(tree.names[node] for node in kept), tuple(lengths[node] for node in kept))


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
    found: list[Any] = []
    for here, there in ((first.clades(), second.clades()), (_splits(first), _splits(second))):
        count, most = len(here ^ there), len(here) + len(there)
        found += [count, most, count / most if most else 0.0]
    return RobinsonFoulds(*found)


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
            raise DataError(f"The {place} of the trees to compare must be a Hierarchy, not {tree!r}.")
    here, there = set(first.classes), set(second.classes)
    if here != there:
        odd = sorted(here ^ there)
        raise DataError(
            f"Trees are compared over the same classes, and {len(odd)} are in only one of them ('{odd[0]}' in the "
            f"{'first' if odd[0] in here else 'second'}): remove them with restricted()."
        )


def _splits(tree: Hierarchy) -> set[Clade]:
    """The side of each split that lacks the first class by name, two classes or more on either side."""
    everything = frozenset(tree.classes)
    fixed = min(everything)
    sides = (everything - clade if fixed in clade else clade for clade in tree.clades())
    return {side for side in sides if 1 < len(side) < len(everything) - 1}
