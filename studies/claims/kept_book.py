"""Evidence from kept books: what `nearkin benchmark` measured, a candidate against another, paired over classes.

    book = KeptBook("adversary-cub")
    book.compared("triplet + Soft-Adv", "triplet", metric="P@1")        a `Compared` in points, expected above 0
    book.told("triplet", metric="P@1")                                  "44.5 (40.9 to 48.2)", in percent

Recall@1 is called P@1 in books; Recall@2, @4, @8 and kNN-Acc are there in books that measured them.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np

from nearkin.metrics import PairedResult, class_bootstrap, paired_permutation
from nearkin.protocol import Book, Cell
from nearkin.protocol.ledger import Ledger
from studies.claims.claim import Compared
from studies.places import book_folder

UNTRAINED = "untrained"
"""The candidate whose features nothing was trained for."""


class KeptBook:
    """A finished book of a study, or of another directory.

    Args:
        name: of its directory.
        folder: of the book; default: that of its study.

    Attributes:
        classes: the test classes that have queries.
        candidates: all that were trained, in their order.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        book = Book(folder or book_folder(name))
        contents = book.read()
        if contents is None:
            raise FileNotFoundError(f"{book.path} holds no book: run the study that makes it, or correct the name.")
        self.name, self.classes, self.candidates = name, contents.classes, list(contents.recipes)
        self._codes = np.load(book.codes_file)
        self._table = _rows(book.path / "table.csv")
        self._ledger = Ledger(book.ledger_file, book.queries, contents, len(self._codes))

    def cells(self, candidate: str, kind: str = "separate") -> list[Cell]:
        """The finished models of a candidate, or its folds "concatenated"; the untrained features are of any kind."""
        found = [cell for cell in self._ledger.rows if cell.recipe == candidate and cell.kind in (kind, UNTRAINED)]
        if not found:
            raise KeyError(f"book {self.name!r} has no {kind} {candidate!r}; it has {', '.join(self.candidates)}")
        return found

    def per_class(self, candidate: str, metric: str = "MAP@R", kind: str = "separate") -> dict[str, float]:
        """Class to its mean, averaged over folds and seeds, as shares."""
        rows = [self._ledger.rows[cell] for cell in self.cells(candidate, kind)]
        if all(metric in row["per_class"] for row in rows):
            means = np.mean([row["per_class"][metric] for row in rows], axis=0)
        else:
            means = np.bincount(self._codes, self._per_query(candidate, metric, kind)) / np.bincount(self._codes)
        return dict(zip(self.classes, means.tolist(), strict=True))

    def value(self, candidate: str, metric: str = "MAP@R", kind: str = "separate") -> tuple[float, float, float]:
        """Mean over queries, folds and seeds, and the ends of its 95 % interval, classes resampled; in percent.

        The book's own table has them; without one they are computed, which takes some tenths of a second each.
        """
        column = f"{'separate' if candidate == UNTRAINED else kind}_{metric}"
        listed = self._table.get(candidate, {})
        if listed.get(f"{column}_low"):
            mean, low, high = (float(listed[column + end]) for end in ("", "_low", "_high"))
            return 100 * mean, 100 * low, 100 * high
        average = self.mean(candidate, metric, kind)
        low, high = class_bootstrap(self._per_query(candidate, metric, kind), self._codes)
        return 100 * average, 100 * low, 100 * high

    def told(self, candidate: str, metric: str = "MAP@R", kind: str = "separate") -> str:
        """The same in words."""
        mean, low, high = self.value(candidate, metric, kind)
        return f"{mean:.1f} ({low:.1f} to {high:.1f})"

    def mean(self, candidate: str, fact: str, kind: str = "separate") -> float:
        """Mean over models of a fact that has no queries, such as "NMI" or "validation_MAP@R", as it was written."""
        return float(np.mean([self._ledger.rows[cell][fact] for cell in self.cells(candidate, kind)]))

    def difference(self, first: str, second: str, metric: str = "MAP@R", kind: str = "separate") -> PairedResult:
        """The first minus the second, paired over classes, as shares."""
        return paired_permutation(self.per_class(first, metric, kind), self.per_class(second, metric, kind))

    def compared(
        self,
        first: str,
        second: str,
        *,
        metric: str = "MAP@R",
        kind: str = "separate",
        above: float | None = None,
        below: float | None = None,
        what: str = "",
        digits: int = 1,
    ) -> Compared:
        """The difference in points with its interval; without `above` and `below` it is expected above 0."""
        found = self.difference(first, second, metric, kind)
        points = [100 * each for each in (found.difference, found.low, found.high)]
        shown = "Recall@1" if metric == "P@1" else metric
        together = ", folds concatenated" if kind == "concatenated" else ""
        return Compared(
            what or f"{first} against {second}, {shown}{together}",
            *points,
            above=0.0 if above is below is None else above,
            below=below,
            digits=digits,
        )

    def _per_query(self, candidate: str, metric: str, kind: str) -> np.ndarray:
        """Values (n,) of the queries, averaged over folds and seeds."""
        return np.mean([self._ledger.per_query(cell)[metric] for cell in self.cells(candidate, kind)], axis=0)


def _rows(path: Path) -> dict[str, dict[str, str]]:
    """Candidate to its line of a table; none where there is no table."""
    if not path.exists():
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        return {row["recipe"]: row for row in csv.DictReader(file)}


@cache
def kept_book(name: str) -> KeptBook:
    """A book of a study, read once."""
    return KeptBook(name)
