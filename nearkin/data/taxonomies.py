"""Trees for the classes of a data set out of larger ones: a table of species, or WordNet's list of what is a what.

A table, such as the eBird/Clements checklist, has a row a species with its ranks and its common name, and names are
matched loosely: `023.Brandt_Cormorant` is Brandt's Cormorant. A list has a line "parent child" a pair, as ImageNet's
`wordnet.is_a.txt` has, and where a node has several parents the one nearest to the top counts.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, suggestion

LEVELS = ("order", "family", "genus")
_COMMON = ("label", "class", "common_name", "primary_com_name", "english_name", "vernacularname", "name")
_SCIENTIFIC = ("sci_name", "scientific_name", "scientificname")
_SHOWN = 5


def read_taxonomy(
    path: str | os.PathLike[str],
    classes: Iterable[str],
    *,
    names: str | None = None,
    levels: Sequence[str] = LEVELS,
) -> Hierarchy:
    """The tree of some classes by a table of species with their ranks.

    Args:
        path: a .csv file, or .tsv or .txt with tabs, with a header; upper and lower case, blanks and hyphens of column
            names do not count.
        classes: names, matched without numbers in front, case, underscores, hyphens and 's.
        names: the column of the names that classes have; None: the first of the usual ones.
        levels: columns of the ranks, outermost first; a genus without a column is the first word of the scientific
            name.
    """
    header, rows = _table(Path(path))
    column = _column(header, (_key(names),) if names is not None else _COMMON, "names of the classes (names=)")
    places = [_level(header, level) for level in levels]
    known: dict[str, list[str]] = {}
    for row in rows:
        known.setdefault(plain_name(row[column]), [_rank(row, place) for place in places])
    paths = {}
    lost = []
    for name in dict.fromkeys(classes):
        found = known.get(plain_name(name))
        if found is None:
            lost.append(name)
        else:
            paths[name] = [rank for rank in found if rank]
    if lost:
        raise _missing(lost, len(paths) + len(lost), known, path)
    return Hierarchy.from_paths(paths)


def read_is_a(
    path: str | os.PathLike[str], classes: Iterable[str], *, words: str | os.PathLike[str] | None = None
) -> Hierarchy:
    """The tree of some classes by a list of "parent child" lines; groups with a single child are left out.

    Args:
        path: the list, two identifiers a line.
        classes: identifiers, or with `words` also names, matched as those of `read_taxonomy`.
        words: a file with an identifier, a tab and one or more names, separated by commas, a line; groups are then
            called by the first name.
    """
    parents: dict[str, list[str]] = {}
    for number, line in enumerate(_lines(Path(path)), start=1):
        parts = line.split()
        if len(parts) != 2:
            raise DataError(f"{path}: line {number} must be a parent and a child, two words, not {line!r}.")
        parents.setdefault(parts[0], [])
        parents.setdefault(parts[1], []).append(parts[0])
    called = {} if words is None else dict(_word(line, words) for line in _lines(Path(words)))
    above = _nearest_to_the_top(parents)
    by_name: dict[str, list[str]] = {}
    for node, all_names in called.items():
        for name in all_names:
            by_name.setdefault(plain_name(name), []).append(node)
    ways: dict[str, list[str]] = {}
    lost = []
    for name in dict.fromkeys(classes):
        nodes = [name] if name in above else [node for node in by_name.get(plain_name(name), []) if node in above]
        if len(nodes) > 1:
            raise DataError(f"{path}: '{name}' is the name of {', '.join(nodes)}: use the identifiers as classes.")
        if nodes:
            ways[name] = _way(nodes[0], above)
        else:
            lost.append(name)
    if lost:
        raise _missing(lost, len(ways) + len(lost), by_name, path)
    return Hierarchy.from_paths(_without_single_children(ways, called))


def plain_name(name: str) -> str:
    """A name without a number in front, case, underscores, hyphens and 's: what two spellings have in common."""
    text = re.sub(r"^\d+[.\-_ ]+", "", name.strip()).lower()
    return " ".join(re.sub(r"[^\w]|_", " ", re.sub(r"['\u2019](s\b)?", "", text)).split())


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    """The column names, plain, and the rows of a table."""
    lines = list(csv.reader(_lines(path), delimiter="," if path.suffix.lower() == ".csv" else "\t"))
    rows = [row for row in lines if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise DataError(f"{path} has no rows: a taxonomy needs a header and a row a species.")
    header = [_key(cell) for cell in rows[0]]
    return header, [row + [""] * (len(header) - len(row)) for row in rows[1:]]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The file {path} could not be read: {error}.") from error


def _key(column: str) -> str:
    return re.sub(r"[\s\-]+", "_", column.strip().lower())


def _column(header: Sequence[str], wanted: Sequence[str], what: str) -> int:
    for name in wanted:
        if name in header:
            return header.index(name)
    raise DataError(
        f"The table has no column for the {what}: it has {', '.join(header)}.{suggestion(wanted[0], header)}"
    )


def _level(header: Sequence[str], level: str) -> tuple[int, bool]:
    """Where a rank is, and whether it is the first word there."""
    if _key(level) == "genus" and "genus" not in header:
        return _column(header, _SCIENTIFIC, "genus, or for scientific names"), True
    return _column(header, (_key(level),), f"level '{level}' (levels=)"), False


def _rank(row: Sequence[str], place: tuple[int, bool]) -> str:
    column, first = place
    cell = row[column].strip()
    return cell.partition(" ")[0] if first else cell


def _word(line: str, path: str | os.PathLike[str]) -> tuple[str, list[str]]:
    node, tab, names = line.partition("\t")
    if not tab or not names.strip():
        raise DataError(f"{path}: a line must be an identifier, a tab and its names, not {line!r}.")
    return node.strip(), [name.strip() for name in names.split(",")]


def _nearest_to_the_top(parents: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Of each node the parent that is fewest steps below the top, the first of equals; "" at the top."""
    children: dict[str, list[str]] = {}
    for node, several in parents.items():
        for parent in several:
            children.setdefault(parent, []).append(node)
    above = {node: "" for node, several in parents.items() if not several}
    level = list(above)
    while level:
        following: dict[str, str] = {}
        for node in level:
            for child in children.get(node, []):
                if child not in above:
                    following.setdefault(child, node)
        above |= following
        level = list(following)
    return above  # nodes of a cycle that no top reaches are not in it


def _way(node: str, above: Mapping[str, str]) -> list[str]:
    """The nodes above a node, outermost first."""
    found: list[str] = []
    while node := above[node]:
        found.append(node)
    return found[::-1]


def _without_single_children(
    ways: Mapping[str, Sequence[str]], called: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """The ways without nodes that have one child among these classes; nodes by their first name."""
    children: dict[str, set[str]] = {}
    for name, way in ways.items():
        for node, child in zip(way, [*way[1:], f"class {name}"], strict=True):
            children.setdefault(node, set()).add(child)
    return {
        name: [called.get(node, [node])[0] for node in way if len(children[node]) > 1] for name, way in ways.items()
    }


def _missing(lost: Sequence[str], total: int, known: Iterable[str], path: str | os.PathLike[str]) -> DataError:
    shown = ", ".join(f"'{name}'" for name in lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
    close = get_close_matches(plain_name(lost[0]), list(known), n=1, cutoff=0.6)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return DataError(
        f"{path} lacks {len(lost):,} of the {total:,} classes ({shown}): rename them, or add rows for them.{hint}"
    )
