"""A tree of plain values as pictures need it: who is below whom, and in which order leaves come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from nearkin.errors import DataError
from nearkin.report.formatting import shorten


class Tree:
    """A checked tree; nothing here recurses, as a tree may be as deep as it has leaves.

    Args:
        parents: (N,) the parent of each node, -1 of the one root.
        names: (N,) of the nodes; each leaf has one of its own.

    Attributes:
        children: (N,) the nodes below each, in order.
        leaves: the nodes with none below, in the order of a walk from the root.
        walk: all nodes, each after its parent.
    """

    def __init__(self, parents: Sequence[int], names: Sequence[str]) -> None:
        self.parents = [int(parent) for parent in parents]
        self.names = [str(name) for name in names]
        if len(self.parents) != len(self.names):
            raise DataError(
                f"A tree needs a name for each of its nodes, but got {len(self.names)} for {len(self.parents)}."
            )
        self.children: list[list[int]] = [[] for _ in self.parents]
        roots = [node for node, parent in enumerate(self.parents) if parent < 0]
        if len(roots) != 1:
            raise DataError(f"A tree needs one root, a node whose parent is -1, but got {len(roots)}.")
        for node, parent in enumerate(self.parents):
            if parent >= len(self.parents):
                raise DataError(f"Node {node} of a tree of {len(self.parents)} nodes has the parent {parent}.")
            if parent >= 0:
                self.children[parent].append(node)
        self.root = roots[0]
        self.walk = self._walk()
        if len(self.walk) < len(self.parents):
            raise DataError("Some nodes of the tree are not below its root: their parents go in a circle.")
        self.leaves = [node for node in self.walk if not self.children[node]]
        if len({self.names[leaf] for leaf in self.leaves}) < len(self.leaves):
            twice = Counter(self.names[leaf] for leaf in self.leaves).most_common(1)[0][0]
            raise DataError(f"Two leaves of the tree are called '{shorten(twice, 60)}': each needs a name of its own.")

    def _walk(self) -> list[int]:
        walk, waiting = [], [self.root]
        while waiting:
            node = waiting.pop()
            walk.append(node)
            waiting.extend(reversed(self.children[node]))
        return walk

    @property
    def leaf_names(self) -> list[str]:
        """Of the leaves, in their order."""
        return [self.names[leaf] for leaf in self.leaves]

    @cached_property
    def heights(self) -> np.ndarray:
        """The longest way from each node down to a leaf, in edges, (N,)."""
        heights = np.zeros(len(self.parents))
        for node in reversed(self.walk):
            if (parent := self.parents[node]) >= 0:
                heights[parent] = max(heights[parent], heights[node] + 1)
        return heights

    def from_root(self, lengths: Sequence[float]) -> np.ndarray:
        """How far each node is from the root, (N,), by the lengths (N,) of the branches above them."""
        found = np.zeros(len(self.parents))
        for node in self.walk[1:]:
            found[node] = found[self.parents[node]] + lengths[node]
        return found

    @cached_property
    def clades(self) -> list[frozenset[str]]:
        """The names of the leaves below each node, (N,); a leaf is below itself."""
        below: list[frozenset[str]] = [frozenset()] * len(self.parents)
        for node in reversed(self.walk):
            parts = [below[child] for child in self.children[node]]
            below[node] = frozenset().union(*parts) if parts else frozenset([self.names[node]])
        return below

    def turned(self, places: Mapping[str, int]) -> Tree:
        """The same tree, turned at its nodes so that leaves come nearly in the order of their `places`."""
        sums, counts = np.zeros(len(self.parents)), np.zeros(len(self.parents))
        for node in reversed(self.walk):
            if not self.children[node] and self.names[node] in places:
                sums[node], counts[node] = places[self.names[node]], 1
            if (parent := self.parents[node]) >= 0:
                sums[parent] += sums[node]
                counts[parent] += counts[node]
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
        turned = Tree(self.parents, self.names)
        turned.children = [sorted(children, key=lambda child: means[child]) for children in self.children]
        turned.walk = turned._walk()
        turned.leaves = [node for node in turned.walk if not turned.children[node]]
        return turned
