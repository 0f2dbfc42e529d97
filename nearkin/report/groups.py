"""Groups of classes as a tree has them, few enough to tell apart by colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nearkin.report._plane import HUES
from nearkin.report._tree import Tree

MOST_GROUPS = len(HUES)
"""Groups that have a colour."""


def leaf_groups(parents: Sequence[int], names: Sequence[str]) -> dict[str, str]:
    """Which group each leaf of a tree belongs to, by name, in the order of the leaves.

    Groups are the inner nodes below the root, and the inner nodes below these as long as there are no more than ten
    and no leaf loses its group. A leaf that hangs on the root is in none. Groups without a name are numbered.
    """
    tree = Tree(parents, names)
    groups = [node for node in tree.children[tree.root] if tree.children[node]]
    while groups:
        finer = [
            below
            for group in groups
            for below in (tree.children[group] if len(groups) == 1 or _all_inner(tree, group) else [group])
            if tree.children[below]
        ]
        if finer in ([], groups) or (len(finer) > MOST_GROUPS and len(groups) > 1):
            break
        groups = finer
    told = _distinct([tree.names[node] for node in groups])
    owner = {name: told[place] for place, node in enumerate(groups) for name in tree.clades[node]}
    return {name: owner[name] for name in tree.leaf_names if name in owner}


def _all_inner(tree: Tree, node: int) -> bool:
    return all(tree.children[child] for child in tree.children[node])


def _distinct(names: Sequence[str]) -> list[str]:
    """Names that differ: those that are missing, or there twice, have a number."""
    counts = Counter(names)
    return [
        name if name and counts[name] == 1 else f"{name or 'group'} {place + 1}" for place, name in enumerate(names)
    ]


def group_colours(groups: Mapping[str, str]) -> dict[str, str]:
    """A colour for each of the groups of leaves, in order; of more than ten, for the ten largest."""
    sizes = Counter(groups.values())
    chosen = {name for name, _ in sizes.most_common(MOST_GROUPS)}
    return dict(zip([name for name in sizes if name in chosen], HUES, strict=False))
