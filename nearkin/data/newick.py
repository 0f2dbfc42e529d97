"""Newick, the format in which biology writes trees: `((shark:1,trout:1)fish:2,'live oak':3);`.

Names may stand in single quotes, a quote in them doubled; text in [] is a comment. Underscores stay as they are, since
class names have them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from nearkin.errors import DataError

_TOKEN = re.compile(r"(?P<skip>\s+|\[[^\]]*\])|'(?P<quoted>(?:[^']|'')*)'|(?P<mark>[(),:;])|(?P<word>[^\s()\[\]',:;]+)")
_PLAIN = re.compile(r"[^\s()\[\]',:;]+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def parse_newick(text: str) -> tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...] | None]:
    """Parents, names and branch lengths of the nodes of one tree; None for lengths where it has none."""
    if not isinstance(text, str):
        raise DataError(f"A Newick tree must be text, not {type(text).__name__}.")
    reading = _Reading(text)
    while reading.position < len(text):
        match = _TOKEN.match(text, reading.position)
        if match is None:
            raise reading.refusal("a quote ' or a comment [ is not closed, or a ] is not opened")
        if match.lastgroup == "mark":
            reading.mark(match["mark"])
        elif match.lastgroup == "word":
            reading.word(match["word"])
        elif match.lastgroup == "quoted":
            reading.name(match["quoted"].replace("''", "'"))
        reading.position = match.end()
    return reading.tree()


def write_newick(parents: Sequence[int], names: Sequence[str], lengths: Sequence[float] | None) -> str:
    """Nodes in preorder as one line of Newick."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)

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


class _Reading:
    """A Newick text, how far it is read, and the tree so far.

    Attributes:
        position: where the token begins that is being read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._parents = [-1]
        self._names = [""]
        self._lengths: list[float | None] = [None]
        self._node = 0
        # What was read last: "start" of a node, its "children", "name", ":" or "length", or the "end" of the tree.
        self._after = "start"

    def mark(self, mark: str) -> None:
        """Take one of ( ) , : and ;."""
        if self._after == ":":
            raise self.refusal(f"a branch length is missing before '{mark}'")
        if self._after == "end":
            raise self.refusal("there is more after the ';' that ends the tree")
        if mark == "(":
            if self._after != "start":
                raise self.refusal("a '(' follows a name, a length or a ')' without a ','")
            self._add(self._node)
            return
        if self._after == "start":
            raise self.refusal(f"a name is missing before '{mark}'")
        if mark == ":":
            if self._after == "length":
                raise self.refusal("a branch has two lengths")
            self._after = ":"
            return
        above = self._parents[self._node]
        if mark == ";":
            if above >= 0:
                raise self.refusal("a '(' is not closed before the ';'")
            self._after = "end"
        elif above < 0:
            raise self.refusal(f"the '{mark}' is outside every bracket")
        elif mark == ",":
            self._add(above)
        else:
            self._node = above
            self._after = "children"

    def word(self, word: str) -> None:
        """Take a name without quotes, or a length."""
        if self._after != ":":
            self.name(word)
            return
        if not _NUMBER.fullmatch(word) or not math.isfinite(float(word)):
            raise self.refusal(f"'{word}' is not a branch length")
        self._lengths[self._node] = float(word)
        self._after = "length"

    def name(self, name: str) -> None:
        """Take a name."""
        if self._after == "end":
            raise self.refusal("there is more after the ';' that ends the tree")
        if self._after not in ("start", "children"):
            reason = "put names with blanks in quotes" if self._after == "name" else "a name comes before its ':'"
            raise self.refusal(f"the name '{name}' is out of place; {reason}")
        if self._after == "start" and not name.strip():
            raise self.refusal("a class has a blank name")
        self._names[self._node] = name
        self._after = "name"

    def tree(self) -> tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...] | None]:
        """What was read, if the tree is whole."""
        if len(self._parents) == 1 and self._after == "start":
            raise DataError("The Newick text is empty: it needs a tree such as (a,(b,c));")
        if self._after != "end":
            raise self.refusal("the text ends before the tree does; it must end with ';'")
        lengths = [length for length in self._lengths[1:] if length is not None]
        if not lengths:
            return tuple(self._parents), tuple(self._names), None
        if len(lengths) < len(self._lengths) - 1:
            raise DataError(
                f"The Newick tree gives lengths for {len(lengths)} of its {len(self._lengths) - 1} branches: "
                "give all of them one, or none."
            )
        return tuple(self._parents), tuple(self._names), (self._lengths[0] or 0.0, *lengths)

    def refusal(self, reason: str) -> DataError:
        """An error that says what is wrong and where."""
        before = self.text[: self.position]
        line, column = before.count("\n") + 1, self.position - (before.rfind("\n") + 1) + 1
        return DataError(f"The Newick text is not a tree: {reason} (line {line}, column {column}).")

    def _add(self, parent: int) -> None:
        self._node = len(self._parents)
        self._parents.append(parent)
        self._names.append("")
        self._lengths.append(None)
        self._after = "start"
