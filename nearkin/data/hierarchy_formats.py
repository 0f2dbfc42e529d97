"""How class trees are written: nested, as paths, as parents or in Newick, and the checks that each is a tree.

Newick is the format in which biology writes trees: `((shark:1,trout:1)fish:2,'live oak':3);`. Names may stand in single
quotes, a quote in them doubled; text in [] is a comment. Underscores stay as they are, since class names have them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from nearkin.errors import DataError

Nodes = tuple[tuple[int, ...], tuple[str, ...]]
"""The parent of each node, -1 for the root, and its name."""
_EMPTY = "The class tree is empty: it needs at least two classes."


def from_nested(nested: Mapping[Any, Any] | Sequence[Any]) -> Nodes:
    """The nodes of nested mappings and lists, as `Hierarchy.from_nested` describes them."""
    if not _is_group(nested):
        raise DataError(f"A class tree must be a mapping or a list of groups and classes, not {nested!r}.")
    parents: list[int] = []
    names: list[str] = []
    waiting: list[tuple[int, Any]] = []  # groups whose content is still to be read
    groups: dict[int, int] = {}  # id of a container to its node

    def add(name: str, parent: int, content: Any) -> None:
        """Add a node; content is a group, a single class or None for a class."""
        node = len(parents)
        parents.append(parent)
        names.append(name)
        if content is None:
            return
        # A group must not be inside itself; one that is merely shared repeats its classes, which is said later.
        known = groups.setdefault(id(content), node) if _is_group(content) else node
        while known != node and parent >= 0:
            if parent == known:
                raise DataError(
                    f"The tree has a cycle: the group '{names[known]}' is inside itself; a group can only hold what is "
                    "below it."
                )
            parent = parents[parent]
        waiting.append((node, content if _is_group(content) else [content]))

    (name, content), *more = _items(nested, "the tree")
    if isinstance(nested, Mapping) and not more and (_is_group(content) or isinstance(content, str)):
        add(name, -1, content)
    else:
        add("", -1, nested)
    while waiting:
        node, group = waiting.pop()
        for name, content in _items(group, f"the group '{names[node]}'" if names[node] else "a group"):
            add(name, node, content)
    return tuple(parents), tuple(names)


def _items(group: Any, where: str) -> list[tuple[str, Any]]:
    """The named content of a mapping or list: (name, group or None) for each child; groups in lists have no name."""
    found: list[tuple[str, Any]] = []
    for entry in [group] if isinstance(group, Mapping) else group:
        if isinstance(entry, Mapping):
            found += [(read_name(name, where), content) for name, content in entry.items()]
        else:
            found.append(("", entry) if _is_group(entry) else (read_name(entry, where), None))
    if not found:
        raise DataError(f"There is nothing in {where}: a class tree needs at least two classes and no empty groups.")
    return found


def _is_group(value: Any) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes)


def from_paths(paths: Mapping[Any, Sequence[Any]]) -> Nodes:
    """The nodes of classes and their groups, outermost first."""
    if not isinstance(paths, Mapping):
        raise DataError(f"Paths must be a mapping of classes to lists of groups, not {type(paths).__name__}.")
    ways: dict[str, tuple[str, ...]] = {}
    for key, groups in paths.items():
        name = read_name(key, "the classes")
        if isinstance(groups, str) or not isinstance(groups, Sequence):
            raise DataError(f"The path of the class '{name}' must be a list of groups, not {groups!r}.")
        if name in ways:
            raise DataError(f"The class '{name}' is in the tree twice: a class has one place.")
        ways[name] = tuple(read_name(group, f"the path of the class '{name}'") for group in groups)
    if not ways:
        raise DataError(_EMPTY)
    # Refuses names that are above one another in both directions, a name twice on one path included.
    _refuse_cycle((above, below) for way in ways.values() for above, below in pairwise(way))
    outermost = {way[:1] for way in ways.values()}
    # A group around everything is the root; a second one above it would only stretch the heights.
    root = outermost.pop() if len(outermost) == 1 else ()
    nodes: dict[tuple[str, ...], int] = {root: 0}
    parents, names = [-1], ["".join(root)]
    for name, way in ways.items():
        above = 0
        for end in range(len(root) + 1, len(way) + 1):
            node = nodes.setdefault(way[:end], len(parents))
            if node == len(parents):
                parents.append(above)
                names.append(way[end - 1])
            above = node
        parents.append(above)
        names.append(name)
    return tuple(parents), tuple(names)


def from_parents(parents: Mapping[Any, Any]) -> Nodes:
    """The nodes of children and their parents."""
    if not isinstance(parents, Mapping):
        raise DataError(f"Parents must be a mapping of children to parents, not {type(parents).__name__}.")
    above: dict[str, str | None] = {}
    for key, value in parents.items():
        child = read_name(key, "the children")
        if child in above:
            raise DataError(f"'{child}' is in the tree twice: a class or group has one parent.")
        above[child] = None if _is_blank(value) else read_name(value, f"the parent of '{child}'")
    names = list(above)
    names += [name for name in dict.fromkeys(above.values()) if name is not None and name not in above]
    place = {name: node for node, name in enumerate(names)}
    found = [place[up] if (up := above.get(name)) is not None else -1 for name in names]
    if found.count(-1) <= 1:
        return tuple(found), tuple(names)
    return (-1, *(node + 1 for node in found)), ("", *names)


def to_nested(parents: Sequence[int], names: Sequence[str]) -> Any:
    """Nodes in preorder as mappings and lists."""
    children = _children(parents)
    forms: list[Any] = [None] * len(parents)
    for node in range(len(parents) - 1, -1, -1):
        below: list[Any] = [forms[child] if children[child] else names[child] for child in children[node]]
        groups = [names[child] for child in children[node] if children[child]]
        distinct = len(set(groups)) == len(groups) == len(below) and all(groups)
        # Among others in a list, and at the top, a mapping of one group would be read as something else.
        if distinct and (names[node] or (node == 0 and len(groups) > 1)):
            content: Any = {name: inside for form in below for name, inside in form.items()}
        else:
            content = below
        forms[node] = {names[node]: content} if names[node] else content
    return forms[0]


def _children(parents: Sequence[int]) -> list[list[int]]:
    """The children of each node of a tree in preorder."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    return children


def preorder(parents: Sequence[int], names: Sequence[str]) -> list[int]:
    """The nodes, each before what hangs below it; what is no tree is refused."""
    if not len(parents):
        raise DataError(_EMPTY)
    children: list[list[int]] = [[] for _ in parents]
    roots: list[int] = []
    for node, parent in enumerate(parents):
        if not isinstance(parent, Integral) or not -1 <= parent < len(parents):
            raise DataError(f"The parent of node {node} must be a node from -1 to {len(parents) - 1}, not {parent!r}.")
        (children[parent] if parent >= 0 else roots).append(node)
    if len(roots) > 1:
        raise DataError(f"A tree needs one root, a node whose parent is -1, not {len(roots)}.")
    order, waiting = [], roots
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += reversed(children[node])
    if len(order) < len(parents):
        _refuse_cycle(((parents[node], node) for node in range(len(parents))), names)
    return order


def _refuse_cycle(pairs: Iterable[tuple[Any, Any]], names: Sequence[str] | None = None) -> None:
    """Refuse pairs of above and below, names or nodes with these names, that go round."""
    sorter: TopologicalSorter[Any] = TopologicalSorter()
    for above, below in pairs:
        sorter.add(below, above)
    try:
        sorter.prepare()
    except CycleError as error:
        shown = " above ".join(f"'{name if names is None else names[name]}'" for name in error.args[1])
        raise DataError(f"The tree has a cycle, {shown}: a name can only be above what is below it.") from None


def check_leaves(names: Sequence[str], leaves: Sequence[int]) -> None:
    """Refuse leaves that are no classes: fewer than two, without a name, twice, or named like a group."""
    found: set[str] = set()
    for leaf in leaves:
        name = names[leaf]
        if not name.strip():
            raise DataError("A class of the tree has a blank name: every leaf needs a name.")
        if name in found:
            raise DataError(f"The class '{name}' is in the tree twice: a class has one place.")
        found.add(name)
    if len(found) < 2:
        raise DataError(f"The tree has a single class, '{next(iter(found))}': it needs at least two.")
    chosen = set(leaves)
    both = next((name for node, name in enumerate(names) if node not in chosen and name in found), None)
    if both is not None:
        raise DataError(f"'{both}' is a class and also a group of the tree, and a class must be a leaf: rename one.")


def read_name(value: Any, where: str) -> str:
    """A name as text; numbers become text, what cannot be a name is refused."""
    if isinstance(value, str) and value.strip():
        return str(value)
    if _is_blank(value):
        raise DataError(f"A name in {where} is blank: give every class and group a name.")
    if isinstance(value, bool):
        raise DataError(f"A name in {where} is the boolean {value}: put it in quotes (in YAML also yes, no, on, off).")
    if isinstance(value, Real):
        return str(value)
    raise DataError(f"A name in {where} must be text, not {value!r}.")


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


_TOKEN = re.compile(r"(?P<skip>\s+|\[[^\]]*\])|'(?P<quoted>(?:[^']|'')*)'|(?P<mark>[(),:;])|(?P<word>[^\s()\[\]',:;]+)")
_PLAIN = re.compile(r"[^\s()\[\]',:;]+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def parse_newick(text: str) -> tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...] | None]:
    """Parents, names and branch lengths of the nodes of one tree; None for lengths where it has none."""
    if not isinstance(text, str):
        raise DataError(f"A Newick tree must be text, not {type(text).__name__}.")
    reading = _NewickReader(text)
    reading.read()
    if reading.after == "start" and len(reading.parents) == 1:
        raise DataError("The Newick text is empty: it needs a tree such as (a,(b,c));")
    if reading.after != "end":
        raise reading.refusal("the text ends before the tree does; it must end with ';'")
    own, *below = reading.lengths
    lengths = [length for length in below if length is not None]
    if lengths and len(lengths) < len(below):
        raise DataError(
            f"The Newick tree gives lengths for {len(lengths)} of its {len(below)} branches: "
            "give all of them a length, or none."
        )
    return tuple(reading.parents), tuple(reading.names), (own or 0.0, *lengths) if lengths else None


def write_newick(parents: Sequence[int], names: Sequence[str], lengths: Sequence[float] | None) -> str:
    """Nodes in preorder as one line of Newick."""
    children = _children(parents)

    def label(node: int) -> str:
        name = names[node]
        shown = name if not name or _PLAIN.fullmatch(name) else "'" + name.replace("'", "''") + "'"
        return shown if lengths is None or (node == 0 and not lengths[0]) else f"{shown}:{lengths[node]!r}"

    written: list[str] = []
    waiting: list[int | str] = [0]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            written.append(part)
        elif not children[part]:
            written.append(label(part))
        else:
            written.append("(")
            waiting.append(")" + label(part))
            for child in reversed(children[part]):
                waiting += [child, ","]
            waiting.pop()  # no comma before the first child
    return "".join(written) + ";"


class _NewickReader:
    """A Newick text, how far it is read, and the tree so far.

    Attributes:
        position: where the token begins that is being read.
        after: what was read last: "start" of a node, its "children", "name", ":" or "length", or the "end" of the tree.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.after = "start"
        self.parents = [-1]
        self.names = [""]
        self.lengths: list[float | None] = [None]
        self._node = 0

    def read(self) -> None:
        """Read to the end of the text."""
        while self.position < len(self.text):
            match = _TOKEN.match(self.text, self.position)
            if match is None:
                raise self.refusal("a quote ' or a comment [ is not closed, or a ] is not opened")
            if match.lastgroup != "skip":
                if self.after == "end":
                    raise self.refusal("there is more after the ';' that ends the tree")
                if match.lastgroup == "mark":
                    self._mark(match["mark"])
                elif match.lastgroup == "word" and self.after == ":":
                    self._length(match["word"])
                else:
                    self._name(match["word"] or match["quoted"].replace("''", "'"))
            self.position = match.end()

    def _mark(self, mark: str) -> None:
        above = self.parents[self._node]
        if self.after == ":":
            raise self.refusal(f"a branch length is missing before '{mark}'")
        if mark == "(" and self.after != "start":
            raise self.refusal("a '(' follows a name, a length or a ')' without a ','")
        if mark != "(" and self.after == "start":
            raise self.refusal(f"a name is missing before '{mark}'")
        if mark == ":" and self.after == "length":
            raise self.refusal("a branch has two lengths")
        if mark == ";" and above >= 0:
            raise self.refusal("a '(' is not closed before the ';'")
        if mark in ",)" and above < 0:
            raise self.refusal(f"the '{mark}' is outside every bracket")
        if mark in "(,":
            self.after = "start"
            self.parents.append(self._node if mark == "(" else above)
            self.names.append("")
            self.lengths.append(None)
            self._node = len(self.parents) - 1
        elif mark == ")":
            self.after, self._node = "children", above
        else:
            self.after = ":" if mark == ":" else "end"

    def _length(self, word: str) -> None:
        if not _NUMBER.fullmatch(word) or not math.isfinite(float(word)):
            raise self.refusal(f"'{word}' is not a branch length")
        self.lengths[self._node] = float(word)
        self.after = "length"

    def _name(self, name: str) -> None:
        if self.after not in ("start", "children"):
            reason = "put names with blanks in quotes" if self.after == "name" else "a name comes before its ':'"
            raise self.refusal(f"the name '{name}' is out of place; {reason}")
        if self.after == "start" and not name.strip():
            raise self.refusal("a class has a blank name")
        self.names[self._node] = name
        self.after = "name"

    def refusal(self, reason: str) -> DataError:
        """An error that says what is wrong and where."""
        before = self.text[: self.position]
        line, column = before.count("\n") + 1, self.position - (before.rfind("\n") + 1) + 1
        return DataError(f"The Newick text is not a tree: {reason} (line {line}, column {column}).")
