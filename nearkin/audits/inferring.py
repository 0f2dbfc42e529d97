"""A class tree that an embedding speaks for, and how much of a known tree it recovers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nearkin.audits.hierarchy_pictures import inferred_dendrogram, known_dendrogram
from nearkin.audits.references import references
from nearkin.audits.subject import Subject
from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.hierarchy import class_distance_matrix, mean_correlation
from nearkin.metrics.tree_comparison import cophenetic_correlation, recovered_clades, robinson_foulds
from nearkin.metrics.tree_inference import LinkageMethod, confusion_counts, confusion_distances, infer_tree
from nearkin.report.dendrogram import draw_dendrograms
from nearkin.report.formatting import value_text
from nearkin.search import exact
from nearkin.spaces import Space

TreeSource = Literal["prototypes", "proxies", "confusions"]
"""What distances between classes are taken of."""


@dataclass(frozen=True, eq=False)
class ClassDistances:
    """Distances between classes, and what they are of.

    Attributes:
        names: of the classes (C,).
        values: (C, C).
        source: what they are of, in a word.
        told: what that is here, in words.
    """

    names: tuple[str, ...]
    values: np.ndarray = field(repr=False)
    source: TreeSource
    told: str


def distances_of_proxies(names: tuple[str, ...], vectors: np.ndarray, space: Space) -> ClassDistances:
    """Between the proxies (C, d) of training classes."""
    return ClassDistances(
        names, class_distance_matrix(vectors, space), "proxies", "those of the weights that were chosen"
    )


def distances_of_items(subject: Subject, source: TreeSource, seed: int = 0) -> ClassDistances:
    """Between the classes of a subject by its items, as the suite `hierarchy` divides them.

    Args:
        subject: the embeddings.
        source: "prototypes": the means of the references; "confusions": what the other items are taken for, each given
            to the nearest prototype.
        seed: of the division.
    """
    known = references(subject, seed)
    vectors = known.prototypes(known.embeddings, subject.space)
    if source == "prototypes":
        told = f"the means of {len(known.rows):,} items ({known.told})"
        return ClassDistances(known.names, class_distance_matrix(vectors, subject.space), source, told)
    _, nearest = exact(subject.embeddings[known.asked], vectors, 1, space=subject.space)
    counts = confusion_counts(known.truth, nearest[:, 0].numpy(), len(known.names))
    asked = np.flatnonzero(counts.sum(axis=1))
    if len(asked) < 2:
        raise DataError("Confusions need items of two classes or more beside the references: give more items a class.")
    # What is taken for a class without items to ask still counts, but there is no row to compare.
    told = f"what {len(known.asked):,} items are taken for by the nearest of {len(known.names):,} prototypes"
    shares = _between_rows(counts, asked)
    return ClassDistances(tuple(known.names[code] for code in asked), shares, "confusions", told)


def _between_rows(counts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Distances (r, r) between some rows of confusion counts (C, C), over all columns."""
    filled = counts.copy()
    empty = np.setdiff1d(np.arange(len(counts)), rows)
    filled[empty, empty] = 1
    return confusion_distances(filled)[np.ix_(rows, rows)]


@dataclass(frozen=True, eq=False)
class InferredTree:
    """A tree from distances, beside the known one if there is any.

    Attributes:
        tree: the inferred one, with branch lengths.
        distances: what it was inferred from.
        method: how.
        known: the known tree of the same classes alone, or None.
    """

    tree: Hierarchy
    distances: ClassDistances
    method: LinkageMethod
    known: Hierarchy | None = None

    @classmethod
    def of(cls, distances: ClassDistances, method: LinkageMethod, known: Hierarchy | None) -> InferredTree:
        """Infer a tree; a known tree must have all of the classes and may have more."""
        restricted = None if known is None else known.restricted(distances.names)
        return cls(infer_tree(distances.values, distances.names, method), distances, method, restricted)

    def facts(self) -> dict[str, str]:
        """What to tell of it: how true it is to the distances, and, where a tree is known, how like that."""
        names, learned = self.distances.names, self.distances.values
        own = self.tree.distances(names, "length")
        facts = {
            "classes": f"{len(names):,}",
            "inferred from": f"{self.distances.source}, {self.distances.told}",
            "method": self.method,
            "cophenetic correlation with these distances": value_text(cophenetic_correlation(own, learned), False),
        }
        if self.known is None:
            return facts
        path = self.known.distances(names)
        apart, recovered = robinson_foulds(self.known, self.tree), recovered_clades(self.known, self.tree)
        return facts | {
            "cophenetic correlation with the known tree": value_text(cophenetic_correlation(path, own), False),
            "mean correlation of the distances with the known tree": value_text(
                mean_correlation(path, learned).value, False
            ),
            "Robinson-Foulds": f"{apart.count:,} of {apart.most:,} groups are in one tree only "
            f"({value_text(apart.share, True)})",
            "recovered groups": f"{len(recovered.found):,} of {len(recovered.found) + len(recovered.missed):,} "
            f"({value_text(recovered.share, True)})",
        }

    def picture(self) -> bytes:
        """PNG bytes: the tree, beside the known one if there is any."""
        inferred = inferred_dendrogram(self.tree, self.distances.source, self.known)
        return draw_dendrograms([inferred] if self.known is None else [known_dendrogram(self.known), inferred])
