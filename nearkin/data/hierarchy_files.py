"""Reading class hierarchies from files: nested YAML or JSON, a CSV of paths or parents, Newick."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nearkin.data.hierarchy import Hierarchy
from nearkin.data.hierarchy_forms import read_name
from nearkin.errors import DataError, UnknownNameError, suggestion

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
    if not os.path.exists(path):
        close = suggestion(path.stem if reader else name, shipped)
        raise UnknownNameError(
            f"There is no class tree '{name}': give a {_endings()} file that exists or a tree of the package "
            f"({', '.join(shipped)}).{close if close.startswith(' Did') else ''}"
        )
    if reader is None:
        raise DataError(f"The class tree {path} has an unknown ending: give it as a {_endings()} file.")
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


def _endings() -> str:
    *first, last = _READERS
    return f"{', '.join(first)} or {last}"


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
    waiting: list[yaml.Node] = [root]

    def value(node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if node not in made:
            made[node] = {} if isinstance(node, yaml.MappingNode) else []
            waiting.append(node)
        return made[node]

    plain = made[root] = {} if isinstance(root, yaml.MappingNode) else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            made[node] += [value(entry) for entry in node.value]
            continue
        for key, content in node.value:
            name = _key(key)
            if name in made[node]:
                raise DataError(f"'{name}' is in the tree twice, again in line {_line(key)}: join or rename them.")
            made[node][name] = value(content)
    return plain


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
        raise DataError(
            f"YAML reads '{node.value}' in line {_line(node)} as a truth value, not as a name: put it in quotes."
        )
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
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise DataError(f"'{name}' is in the tree twice, in one group: join or rename them.")
        found[name] = value
    return found


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
        raise DataError(
            f"The columns in line {lines[0][0]} need names that differ, not {', '.join(map(repr, header))}."
        )
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
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".json": _read_json,
    ".csv": _read_csv,
    ".nwk": Hierarchy.from_newick,
    ".newick": Hierarchy.from_newick,
    ".tree": Hierarchy.from_newick,
}
