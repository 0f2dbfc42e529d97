"""Class trees side by side: leaves in one order, coloured by group, so that the eye sees where trees agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nearkin.data.hierarchy_formats import preorder
from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import FAINT, HUES, INK, MUTED, WIDTH
from nearkin.report.values import plain_numbers, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        self.root = preorder(self.parents, self.names)[0]  # which refuses what is no tree
        self.children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                self.children[parent].append(node)
        self._order()
        if len({self.names[leaf] for leaf in self.leaves}) < len(self.leaves):
            twice = Counter(self.names[leaf] for leaf in self.leaves).most_common(1)[0][0]
            raise DataError(f"Two leaves of the tree are called '{shorten(twice, 60)}': names must be unique.")

    def _order(self) -> None:
        self.walk, waiting = [], [self.root]
        while waiting:
            self.walk.append(waiting.pop())
            waiting.extend(reversed(self.children[self.walk[-1]]))
        self.leaves = [node for node in self.walk if not self.children[node]]

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
        turned._order()
        return turned


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
            for below in (
                tree.children[group]
                if len(groups) == 1 or all(tree.children[child] for child in tree.children[group])
                else [group]
            )
            if tree.children[below]
        ]
        if finer in ([], groups) or (len(finer) > MOST_GROUPS and len(groups) > 1):
            break
        groups = finer
    told = _distinct([tree.names[node] for node in groups])
    owner = {name: told[place] for place, node in enumerate(groups) for name in tree.clades[node]}
    return {name: owner[name] for name in tree.leaf_names if name in owner}


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


# In CSS pixels, except for type, which is in points.
_KEY_EDGE, _KEY_ROW, _KEY_TEXT = 12, 19, 8.5
_BOX, _SPACE = 10, 16
_WIDEST = 220


def key_height(colours: Mapping[str, str], notes: Sequence[str]) -> float:
    """What key and notes add to a picture's height, in CSS pixels."""
    return _KEY_ROW * (len(_key_lines(colours)) + len(notes)) + (10 if colours or notes else 0)


def write_key(sheet: canvas.Sheet, colours: Mapping[str, str], notes: Sequence[str]) -> None:
    """Write groups and notes at the foot of a sheet."""
    lines = _key_lines(colours)
    middle = sheet.height - _KEY_EDGE / 2 - _KEY_ROW * (len(lines) + len(notes) - 0.5)
    for line in lines:
        for left, name in line:
            sheet.box(left, middle - _BOX / 2, _BOX, _BOX, colours[name])
            sheet.write(left + _BOX + 5, middle, canvas.fit_text(name, _WIDEST, _KEY_TEXT), _KEY_TEXT)
        middle += _KEY_ROW
    for words in notes:
        sheet.write(_KEY_EDGE, middle, words, _KEY_TEXT, color=MUTED)
        middle += _KEY_ROW


def _key_lines(colours: Mapping[str, str]) -> list[list[tuple[float, str]]]:
    """Groups with where they begin, line by line."""
    lines: list[list[tuple[float, str]]] = []
    left = float(WIDTH)
    for name in colours:
        wide = _BOX + 5 + canvas.text_width(canvas.fit_text(name, _WIDEST, _KEY_TEXT), _KEY_TEXT) + _SPACE
        if left + wide > WIDTH - _KEY_EDGE:
            lines.append([])
            left = _KEY_EDGE
        lines[-1].append((left, name))
        left += wide
    return lines


MOST_NAMED = 200
"""Leaves whose names are written."""

# In CSS pixels, except for type, which is in points.
_MARGIN, _GAP = 12, 14
_HEAD = 44
_ROOMS: tuple[tuple[float, float], ...] = ((16, 9), (11.5, 7))  # height of a leaf's row and its type
_ROOMY_LEAVES = 40  # up to which the first of these is taken
_UNNAMED_HEIGHT = 1000
_NAME_SHARE = 0.45
"""Of a panel's width, what names may take."""


@dataclass(frozen=True)
class Dendrogram:
    """A tree to draw.

    Args:
        parents: (N,) the parent of each node, -1 of the root.
        names: (N,) of the nodes; those of the leaves are written.
        lengths: (N,) of the branch above each node; None draws all leaves at one depth, and nodes by their height. A
            length below zero, as neighbour joining may give, is drawn as zero.
        title: the heading.
        note: a line below it.
    """

    parents: Sequence[int]
    names: Sequence[str]
    lengths: Sequence[float] | None = None
    title: str = ""
    note: str = ""


def draw_dendrograms(trees: Sequence[Dendrogram], groups: Mapping[str, str] | None = None) -> bytes:
    """Draw trees of the same leaves side by side, the first as it is, the others turned to its order.

    Names and branches of a group have its colour; a branch that holds leaves of several groups is grey. A dot marks
    a node of a tree whose leaves are those of a node of the first, and the other way round. Of more than 200 leaves
    the names are left out.

    Args:
        trees: one to four; the first is what the others are compared with.
        groups: leaf to group; None takes those of the first tree, see `leaf_groups`.

    Returns:
        PNG bytes, or none when there is no tree.
    """
    if not trees:
        return b""
    if len(trees) > 4:
        raise DataError(f"At most 4 trees fit side by side, not {len(trees)}: draw the others separately.")
    first = Tree(trees[0].parents, trees[0].names)
    places = {name: place for place, name in enumerate(first.leaf_names)}
    drawn = [first, *(Tree(tree.parents, tree.names).turned(places) for tree in trees[1:])]
    depths = [_depths(tree, given.lengths) for tree, given in zip(drawn, trees, strict=True)]
    kinds = leaf_groups(trees[0].parents, trees[0].names) if groups is None else dict(groups)
    colours = group_colours(kinds)
    most = max(len(tree.leaves) for tree in drawn)
    row, size = _ROOMS[0] if most <= _ROOMY_LEAVES else _ROOMS[1]
    if most > MOST_NAMED:
        row, size = _UNNAMED_HEIGHT / most, 0
    shared = _shared(drawn)
    notes = _notes(kinds, colours, len(drawn) if any(shared) else 0, most)
    key = key_height(colours, notes)
    height = _HEAD + row * most + key + _MARGIN
    with canvas.drawing(WIDTH, height) as figure:
        sheet, width = canvas.Sheet(figure), (WIDTH - 2 * _MARGIN - _GAP * (len(drawn) - 1)) / len(drawn)
        for place, (tree, given) in enumerate(zip(drawn, trees, strict=True)):
            left = _MARGIN + place * (width + _GAP)
            axes = sheet.axes(left, _HEAD, width, row * len(tree.leaves), frameon=False)
            _draw_tree(axes, tree, depths[place], _leaf_colours(tree, kinds, colours), width, size)
            at, rows = shared[place], _rows(tree)
            dot = 14 if len(tree.leaves) <= MOST_NAMED else 4
            axes.scatter(depths[place][at], rows[at], s=dot, color=INK, linewidths=0, zorder=5)
            for text, size_of, weight, down in ((given.title, 11, "bold", 0.38), (given.note, 8.5, "normal", 0.8)):
                told = canvas.fit_text(text, width, size_of, weight)
                sheet.write(left, down * _HEAD, told, size_of, fontweight=weight)
        write_key(sheet, colours, notes)
        return canvas.to_png(figure)


def _depths(tree: Tree, lengths: Sequence[float] | None) -> np.ndarray:
    """Where nodes are drawn (N,), from the root at 0 to the farthest leaf at 1."""
    if lengths is None:
        depths = tree.heights[tree.root] - tree.heights
    else:
        given = plain_numbers(lengths, "lengths of a tree's branches")
        known = given[[node for node in range(len(given)) if node != tree.root]] if given.ndim == 1 else given
        if given.shape != (len(tree.parents),) or not np.isfinite(known).all():
            raise DataError(
                f"A tree of {len(tree.parents)} nodes needs as many finite lengths of branches, but got shape "
                f"{given.shape} or other values."
            )
        depths = tree.from_root(np.maximum(given, 0.0).tolist())
    return depths / (depths.max(initial=0.0) or 1.0)


def _shared(trees: Sequence[Tree]) -> list[list[int]]:
    """Of every tree, the nodes between root and leaves whose leaves are those of a node of the first, or another."""
    inner = [
        {tree.clades[node]: node for node in tree.walk[1:] if len(tree.clades[node]) > 1 and tree.children[node]}
        for tree in trees
    ]
    others = set().union(*inner[1:])
    against = [others, *([inner[0].keys()] * (len(trees) - 1))]
    return [[mine[clade] for clade in mine if clade in theirs] for mine, theirs in zip(inner, against, strict=True)]


def _leaf_colours(tree: Tree, groups: Mapping[str, str], colours: Mapping[str, str]) -> list[str]:
    """Colours (N,): of a leaf that of its group, of a node that of all its leaves if they agree, else grey."""
    found: list[str | None] = [None] * len(tree.parents)
    for node in reversed(tree.walk):
        if tree.children[node]:
            below = {found[child] for child in tree.children[node]}
            found[node] = below.pop() if len(below) == 1 else MUTED
        else:
            found[node] = colours.get(groups.get(tree.names[node], ""), INK)
    return [colour or INK for colour in found]


def _draw_tree(axes: Axes, tree: Tree, depths: np.ndarray, colours: Sequence[str], width: float, size: float) -> None:
    """Branches, names where `size` is not 0, and dots from a leaf to its name where leaves differ in depth."""
    from matplotlib.collections import LineCollection

    rows = _rows(tree)
    lines, looks, guides = [], [], []
    for node in tree.walk:
        if children := tree.children[node]:
            ends = [rows[child] for child in children]
            lines.append([(depths[node], min(ends)), (depths[node], max(ends))])
            looks.append(colours[node])
        elif depths[node] < 1:
            guides.append([(depths[node], rows[node]), (1.0, rows[node])])
        if node != tree.root:
            lines.append([(depths[tree.parents[node]], rows[node]), (depths[node], rows[node])])
            looks.append(colours[node])
    thick = 1.1 if len(tree.leaves) <= MOST_NAMED else 0.5
    axes.add_collection(LineCollection(lines, colors=looks, linewidths=thick, capstyle="projecting"))
    if size:
        axes.add_collection(LineCollection(guides, colors=FAINT, linewidths=0.5, linestyles=(0, (1, 2)), zorder=0))
        room = _NAME_SHARE * width
        names = {leaf: canvas.fit_text(tree.names[leaf], room, size) for leaf in tree.leaves}
        room = max(canvas.text_width(name, size) for name in names.values()) + 6
        for leaf, name in names.items():
            canvas.note(axes, name, (1, rows[leaf]), (3, 0), va="center_baseline", fontsize=size, color=colours[leaf])
    else:
        room = 2.0
    axes.set(xlim=(-0.01, width / max(width - room, 1.0)), ylim=(len(tree.leaves) - 0.5, -0.5), xticks=[], yticks=[])
    axes.grid(False)


def _rows(tree: Tree) -> np.ndarray:
    """Where nodes are drawn (N,): leaves one below the other, a node amid its first and its last child."""
    rows = np.zeros(len(tree.parents))
    rows[tree.leaves] = np.arange(len(tree.leaves))
    for node in reversed(tree.walk):
        if children := tree.children[node]:
            rows[node] = (rows[children[0]] + rows[children[-1]]) / 2
    return rows


def _notes(groups: Mapping[str, str], colours: Mapping[str, str], sharing: int, leaves: int) -> list[str]:
    """What to say below the trees, of which `sharing` have nodes in common."""
    notes = []
    if sharing:
        where = "both trees" if sharing == 2 else "the first tree and in another"
        notes.append(f"Dots: nodes with the same leaves in {where}.")
    if more := len(set(groups.values())) - len(colours):
        notes.append(f"{more:,} more groups have no colour.")
    if leaves > MOST_NAMED:
        notes.append(f"The names of the {leaves:,} leaves are left out, as they would not be readable.")
    return notes
