"""Class hierarchies: a tree whose leaves are the classes, how far apart it puts them, and the files it is read from.

Path: edges between two leaves. LCS: `height(lowest common subsumer) / height(root)`, the height of a node being its
longest way down to a leaf. Length: the branch lengths on the path.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml

from nearkin.data import hierarchy_formats
from nearkin.data.hierarchy_formats import read_name
from nearkin.errors import DataError, UnknownNameError, suggestion

TreeDistance = Literal["path", "lcs", "length"]
_SHOWN = 5
"""How many names a message lists before it only counts."""


@dataclass(frozen=True)
class Hierarchy:
    """A tree over class names.

    Nodes are kept in preorder, a node before what hangs below it and the root first, whatever the order given: two
    trees are equal when they hang the same names in the same order. Branches may end at any depth, and a node may
    have a single child.

    Reference: Kim 2023, chapter 4 and article IV.

    Args:
        parents: the parent of each node, -1 for the one root.
        names: the name of each node; leaves need one of their own, inner nodes may go without ("").
        lengths: the length of the branch above each node, or None.
    """

    parents: tuple[int, ...]
    names: tuple[str, ...]
    lengths: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.parents)
        if len(self.names) != count or (self.lengths is not None and len(self.lengths) != count):
            raise DataError(f"A tree of {count} parents needs as many names, and as many lengths or none.")
        order = hierarchy_formats.preorder(self.parents, self.names)
        place = {node: index for index, node in enumerate(order)}
        object.__setattr__(self, "parents", tuple(place.get(int(self.parents[node]), -1) for node in order))
        object.__setattr__(self, "names", tuple(str(self.names[node]) for node in order))
        if self.lengths is not None:
            lengths = tuple(float(self.lengths[node]) for node in order)
            if not np.isfinite(lengths).all():
                raise DataError("The branch lengths of a tree must be finite numbers.")
            object.__setattr__(self, "lengths", lengths)
        hierarchy_formats.check_leaves(self.names, [int(leaf) for leaf in self._leaves])

    @classmethod
    def from_nested(cls, nested: Mapping[Any, Any] | Sequence[Any]) -> Hierarchy:
        """Read nested mappings and lists: `{"animals": {"fish": ["shark", "trout"]}, "plants": ["oak"]}`.

        A mapping names groups (or classes, with None as the value); a list holds classes, mappings, and further lists
        as groups without a name. A mapping with a single group at the top names the root.
        """
        return cls(*hierarchy_formats.from_nested(nested))

    @classmethod
    def from_paths(cls, paths: Mapping[Any, Sequence[Any]]) -> Hierarchy:
        """Read each class's groups, outermost first: `{"shark": ["animals", "fish"], "oak": ["plants"]}`.

        Groups are told apart by their whole path; a class without groups hangs at the root. A group around everything
        is the root.
        """
        return cls(*hierarchy_formats.from_paths(paths))

    @classmethod
    def from_parents(cls, parents: Mapping[Any, Any]) -> Hierarchy:
        """Read each node's parent: `{"shark": "fish", "trout": "fish", "fish": "animals"}`.

        Names that are nobody's child, or whose parent is None, are at the top; several share a root without a name.
        """
        return cls(*hierarchy_formats.from_parents(parents))

    @classmethod
    def from_newick(cls, text: str) -> Hierarchy:
        """Read a Newick tree: `((shark:1,trout:1)fish:2,oak:3);`, names in quotes where they need them."""
        return cls(*hierarchy_formats.parse_newick(text))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The leaves, in the order of the tree."""
        return tuple(self.names[leaf] for leaf in self._leaves)

    def distances(self, classes: Iterable[str] | None = None, how: TreeDistance = "path") -> np.ndarray:
        """Distances (C, C) between classes, float64, in the order asked for.

        Args:
            classes: names of leaves; all of the tree in its order when None.
            how: "path", "lcs" (from 0 to 1) or "length" (needs branch lengths).
        """
        if how not in get_args(TreeDistance):
            raise DataError(f"A tree has no distance '{how}'.{suggestion(str(how), get_args(TreeDistance))}")
        common = self.common_ancestors(classes)
        if how == "lcs":
            heights = self.heights()
            return heights[common] / heights[0]
        below = self._below_root(how)
        own = below[common.diagonal()]
        return own[:, None] + own[None, :] - 2 * below[common]

    def common_ancestors(self, classes: Iterable[str] | None = None) -> np.ndarray:
        """The lowest node (C, C) above each two classes; on the diagonal the class's own leaf."""
        places = np.arange(len(self._leaves)) if classes is None else self._places(classes)
        return self._common[np.ix_(places, places)]

    def ancestors(self, name: str) -> list[int]:
        """The nodes from a class's leaf, first, up to the root, last."""
        node = int(self._leaves[self._places([name])[0]])
        found = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found

    def heights(self) -> np.ndarray:
        """The number of edges (nodes,) on the longest way down to a leaf, int64."""
        heights = np.zeros(len(self.parents), dtype=np.int64)
        for node in range(len(heights) - 1, 0, -1):
            above = self.parents[node]
            heights[above] = max(heights[above], heights[node] + 1)
        return heights

    def depths(self) -> np.ndarray:
        """The number of edges (nodes,) up to the root, int64."""
        return self._below_root("path").astype(np.int64)

    def check(self, classes: Iterable[str]) -> None:
        """Refuse classes that are no leaves of the tree; leaves that are not among the classes are fine."""
        self._places(classes)

    def restricted(self, classes: Iterable[str]) -> Hierarchy:
        """The tree of these classes only, in the tree's order.

        The groups above them stay as they are, also those left with a single child, so path and length distances do
        not change. LCS distances may: the heights are those of what is left.
        """
        kept = np.zeros(len(self.parents), dtype=bool)
        kept[self._leaves[self._places(classes)]] = True
        for node in range(len(kept) - 1, 0, -1):
            kept[self.parents[node]] |= kept[node]
        nodes = np.flatnonzero(kept)
        place = np.cumsum(kept) - 1
        return Hierarchy(
            tuple(-1 if node == 0 else int(place[self.parents[node]]) for node in nodes),
            tuple(self.names[node] for node in nodes),
            None if self.lengths is None else tuple(self.lengths[node] for node in nodes),
        )

    def clades(self) -> set[frozenset[str]]:
        """The sets of classes below inner nodes, without those of one class and that of all."""
        total, place = len(self.classes), {int(leaf): place for place, leaf in enumerate(self._leaves)}
        # The first leaf below each node and the one after its last: places among the classes.
        first = [place.get(node, total) for node in range(len(self.parents))]
        stop = [place.get(node, -1) + 1 for node in range(len(self.parents))]
        for node in range(len(first) - 1, 0, -1):
            above = self.parents[node]
            first[above] = min(first[above], first[node])
            stop[above] = max(stop[above], stop[node])
        spans = {(low, high) for low, high in zip(first, stop, strict=True) if 1 < high - low < total}
        return {frozenset(self.classes[low:high]) for low, high in spans}

    def to_newick(self) -> str:
        """The tree as Newick, which `from_newick` reads back to an equal tree."""
        return hierarchy_formats.write_newick(self.parents, self.names, self.lengths)

    def to_nested(self) -> Any:
        """The tree as nested mappings and lists, which `from_nested` reads back to the same tree without lengths."""
        return hierarchy_formats.to_nested(self.parents, self.names)

    def _places(self, classes: Iterable[str]) -> np.ndarray:
        """Where (C,) among the tree's classes the given ones are."""
        if isinstance(classes, str):
            raise DataError(f"The classes must be a list of names, not the text '{classes}'.")
        asked = [str(name) for name in classes]
        missing = list(dict.fromkeys(name for name in asked if name not in self._place))
        if missing:
            group = next((name for name in missing if name in self.names), None)
            if group is not None:
                raise DataError(f"'{group}' is a group of the tree, and a class must be a leaf: rename the group.")
            shown = ", ".join(f"'{name}'" for name in missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
            close = get_close_matches(missing[0], self.classes, n=1, cutoff=0.6)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise DataError(
                f"The tree lacks {len(missing):,} of the {len(set(asked)):,} classes ({shown}): add them to the tree, "
                f"or write them as it does.{hint}"
            )
        return np.array([self._place[name] for name in asked], dtype=np.int64)

    def _below_root(self, how: Literal["path", "length"]) -> np.ndarray:
        """How far (nodes,) each node is below the root, float64."""
        if how == "length" and self.lengths is None:
            raise DataError("This tree has no branch lengths: use the distance 'path' or 'lcs'.")
        steps = np.ones(len(self.parents)) if how == "path" or self.lengths is None else np.array(self.lengths)
        below = np.zeros(len(self.parents))
        for node in range(1, len(below)):
            below[node] = below[self.parents[node]] + steps[node]
        return below

    @cached_property
    def _leaves(self) -> np.ndarray:
        """The nodes (C,) without children, in preorder."""
        inner = np.zeros(len(self.parents), dtype=bool)
        inner[[parent for parent in self.parents if parent >= 0]] = True
        return np.flatnonzero(~inner)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.classes)}

    @cached_property
    def _common(self) -> np.ndarray:
        """The lowest common ancestor (C, C) of all leaves.

        In preorder the node after a leaf hangs from the ancestor that this leaf shares with the next one, and of those
        ancestors between two leaves the lowest common one is above all others, hence has the smallest number.
        """
        leaves = self._leaves
        between = np.array(self.parents, dtype=np.int64)[leaves[:-1] + 1]  # (C - 1,)
        steps = np.broadcast_to(np.append(len(self.parents), between), (len(leaves), len(leaves)))
        below_diagonal = np.tri(len(leaves), dtype=bool)
        upper = np.minimum.accumulate(np.where(below_diagonal, len(self.parents), steps), axis=1)
        common = np.where(below_diagonal, upper.T, upper)
        np.fill_diagonal(common, leaves)
        return common


_LABELS = ("label", "class")
_SHIPPED = resources.files("nearkin.data") / "hierarchies"


def load_hierarchy(path_or_name: str | os.PathLike[str]) -> Hierarchy:
    """Read a class tree from a file, or take one that comes with the package.

    Args:
        path_or_name: a .yaml, .yml or .json file of nested groups; a .csv file with a column `label` (or `class`) and
            one column a level, outermost first, or with the columns `child` and `parent`; a .nwk, .newick or .tree
            file; or a name of `list_hierarchies`.
    """
    if not isinstance(path_or_name, str | os.PathLike):
        raise DataError(f"A class tree is given by a file or a name, not {path_or_name!r}.")
    path, name = Path(path_or_name), str(path_or_name)
    shipped = list_hierarchies()
    if name in shipped:
        return _read(name, (_SHIPPED / f"{name}.csv").read_text(encoding="utf-8"), _read_csv)
    reader = _READERS.get(path.suffix.lower())
    *first, last = _READERS
    endings = f"{', '.join(first)} or {last}"
    if not os.path.exists(path):
        close = suggestion(path.stem if reader else name, shipped)
        raise UnknownNameError(
            f"There is no class tree '{name}': give a {endings} file that exists or a tree of the package "
            f"({', '.join(shipped)}).{close if close.startswith(' Did') else ''}"
        )
    if reader is None:
        raise DataError(f"The class tree {path} has an unknown suffix: use a {endings} file.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The class tree {path} could not be read: {error}.") from error
    return _read(str(path), text, reader)


def list_hierarchies() -> list[str]:
    """The names of the class trees that come with the package."""
    return sorted(entry.name.removesuffix(".csv") for entry in _SHIPPED.iterdir() if entry.name.endswith(".csv"))


def _read(source: str, text: str, reader: Callable[[str], Hierarchy]) -> Hierarchy:
    try:
        return reader(text)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    except RecursionError as error:
        raise DataError(
            f"{source}: The tree is nested deeper than this format can be read: use a CSV with the columns "
            "child,parent or Newick."
        ) from error


def _read_yaml(text: str) -> Hierarchy:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise DataError(f"This is not valid YAML{where}: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise DataError(f"This is not valid YAML: {' '.join(str(error).split())}.") from error
    return Hierarchy.from_nested(_plain(root))


def _plain(root: yaml.Node | None) -> Any:
    """A YAML document as nested mappings and lists, its names as they are written; aliases stay the same object."""
    if not isinstance(root, yaml.CollectionNode):
        raise DataError("There is no tree in it: it needs groups and classes, such as 'animals: [cat, dog]'.")
    made: dict[yaml.Node, Any] = {}

    def plain(node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if node not in made and isinstance(node, yaml.SequenceNode):
            made[node] = []
            made[node].extend(plain(entry) for entry in node.value)
        elif node not in made:
            made[node] = {}
            for key, content in node.value:
                name = _key(key)
                if name in made[node]:
                    raise DataError(f"'{name}' is in the tree twice, again in line {_line(key)}: join or rename them.")
                made[node][name] = plain(content)
        return made[node]

    return plain(root)


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise DataError(f"The name in line {_line(node)} must be text, not a list or a mapping.")
    return read_name(_scalar(node), f"line {_line(node)}")


def _scalar(node: yaml.ScalarNode) -> str | bool | None:
    """The text of a scalar as it is written; None for null."""
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        raise DataError(f"YAML reads '{node.value}' in line {_line(node)} as a boolean, not a name: put it in quotes.")
    if kind not in ("str", "int", "float", "timestamp"):
        raise DataError(f"'{node.value}' in line {_line(node)} cannot be a name: put it in quotes.")
    return str(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _read_json(text: str) -> Hierarchy:
    try:
        # Numbers stay as they are written.
        nested = json.loads(text, object_pairs_hook=_distinct, parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        raise DataError(f"This is not valid JSON in line {error.lineno}, column {error.colno}: {error.msg}.") from error
    return Hierarchy.from_nested(nested)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    for name, count in counts.items():
        if count > 1:
            raise DataError(f"'{name}' is in the tree twice, in one group: join or rename them.")
    return dict(pairs)


def _read_csv(text: str) -> Hierarchy:
    header, rows = _table(text)
    if {"child", "parent"} <= set(header):
        pairs = _once(rows, header.index("child"))
        parent = header.index("parent")
        return Hierarchy.from_parents({name: cells[parent] for name, (_, cells) in pairs.items()})
    label = next((header.index(name) for name in _LABELS if name in header), None)
    if label is None or len(header) < 2:
        raise DataError(
            "The table needs a column 'label' (or 'class') and columns for the levels, outermost first, or the columns "
            f"'child' and 'parent'; it has {', '.join(header)}."
        )
    return Hierarchy.from_paths({name: _path(line, cells, label) for name, (line, cells) in _once(rows, label).items()})


def _table(text: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns in lower case, and each row's line and cells; white space around cells goes."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise DataError(f"This is not a valid CSV in line {reader.line_num}: {error}.") from error
    if not lines:
        raise DataError("The table is empty: it needs a header such as 'label,level0,level1' and a row a class.")
    header = [name.lower() for name in lines[0][1]]
    if not all(header) or len(set(header)) < len(header):
        raise DataError(f"The columns in line {lines[0][0]} need distinct names, not {', '.join(map(repr, header))}.")
    for line, cells in lines[1:]:
        if len(cells) != len(header):
            raise DataError(f"The table has {len(cells)} cells in line {line} and {len(header)} columns.")
    return header, lines[1:]


def _once(rows: list[tuple[int, list[str]]], column: int) -> dict[str, tuple[int, list[str]]]:
    """The rows by the name in one of their columns."""
    found: dict[str, tuple[int, list[str]]] = {}
    for line, cells in rows:
        name = read_name(cells[column], f"line {line}")
        if name in found:
            raise DataError(f"'{name}' is in the tree twice, in line {found[name][0]} and in line {line}: keep one.")
        found[name] = line, cells
    return found


def _path(line: int, cells: list[str], label: int) -> list[str]:
    """The groups of a row; a class higher up leaves its last levels blank."""
    levels = cells[:label] + cells[label + 1 :]
    while levels and not levels[-1]:
        levels.pop()
    if not all(levels):
        raise DataError(f"A level in line {line} is blank between others: only the last ones may be.")
    return levels


_READERS: dict[str, Callable[[str], Hierarchy]] = {
    **dict.fromkeys((".yaml", ".yml"), _read_yaml),
    ".json": _read_json,
    ".csv": _read_csv,
    **dict.fromkeys((".nwk", ".newick", ".tree"), Hierarchy.from_newick),
}
