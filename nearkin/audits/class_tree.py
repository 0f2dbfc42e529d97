"""The class tree that an embedding implies, inferred from the means of reference items, beside a known tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nearkin.audits.subject import Subject, divide
from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.class_tree import (
    LinkageMethod,
    confusion_counts,
    confusion_distances,
    cophenetic_correlation,
    infer_tree,
    recovered_clades,
    robinson_foulds,
)
from nearkin.metrics.hierarchy import class_distance_matrix, class_prototypes, mean_correlation
from nearkin.report import Figure
from nearkin.report.dendrogram import Dendrogram, draw_dendrograms, leaf_groups
from nearkin.report.heat import draw_class_distances
from nearkin.report.values import value_text
from nearkin.search import as_vectors, exact
from nearkin.spaces import Space


@dataclass(frozen=True, eq=False)
class References:
    """Which items stand for the classes, and which are asked.

    Attributes:
        names: of the C classes that have references, sorted.
        embeddings: (m, d) of the items that references are among.
        rows: of the references among these, (r,).
        codes: their classes, as places among the names, (r,).
        asked: rows of the subject's items that are asked, (q,); those of classes without references are not.
        truth: their classes, as places among the names, (q,).
        dropped: how many items are not asked for want of references.
        told: which items the references are, in words.
    """

    names: tuple[str, ...]
    embeddings: np.ndarray = field(repr=False)
    rows: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    asked: np.ndarray = field(repr=False)
    truth: np.ndarray = field(repr=False)
    dropped: int
    told: str

    def prototypes(self, features: np.ndarray, space: Space) -> np.ndarray:
        """The mean (C, F) of each class's references, by features (m, F) of the items that these are among."""
        return class_prototypes(features[self.rows], self.codes, space).vectors

    def drawn(self, most: int, seed: int) -> list[np.ndarray]:
        """At most so many references of each class, drawn by a seed: C arrays of rows, ascending."""
        shuffled = np.random.default_rng(seed).permutation(len(self.rows))
        return [np.sort(self.rows[shuffled[self.codes[shuffled] == code][:most]]) for code in range(len(self.names))]


def references(subject: Subject, seed: int) -> References:
    """The training items of a model of seen classes, else the published gallery, else half of each class by a seed.

    Raises:
        DataError: if the subject is compared in a way that has no means, or not every embedding is finite.
    """
    if not isinstance(subject.space, Space):
        raise DataError(
            f"Classes are compared by the means of their items, but {type(subject.space).__name__} has no mean: use "
            "space='sphere' or 'euclidean'."
        )
    # Here a row is still that of the item; in a half it would be another.
    as_vectors(subject.embeddings)
    if subject.known is not None:
        embeddings, labels = subject.known()
        rows, asked, told = np.arange(len(labels)), np.arange(len(subject.labels)), "the items that were trained on"
    else:
        embeddings, labels = subject.embeddings, subject.labels
        rows, asked = divide(subject, seed)
        told = "half of each class, drawn by the seed" if subject.gallery is None else "the published gallery"
    names, codes = np.unique(_spelt(labels[rows]), return_inverse=True)
    wanted = _spelt(subject.labels[asked])
    has = np.isin(wanted, names)
    if not has.any():
        raise DataError("No audited item is of a class that has references: audit data of the same classes.")
    return References(
        tuple(names.tolist()),
        embeddings,
        rows,
        codes,
        asked[has],
        np.searchsorted(names, wanted[has]),
        int((~has).sum()),
        told,
    )


def _spelt(labels: np.ndarray) -> np.ndarray:
    """Labels (n,) as a tree writes its classes."""
    return np.array([str(label) for label in labels.tolist()])


def draw_distances(
    known: Hierarchy,
    distances: np.ndarray,
    names: Sequence[str],
    learned: Mapping[str, np.ndarray],
    told: Mapping[str, str],
) -> Figure:
    """Distances between classes: the tree's, and those of what stands for the classes.

    Args:
        known: the tree of these classes alone, which decides their order and groups.
        distances: the tree's (C, C).
        names: (C,) of their rows.
        learned: what stands for the classes to distances (C, C).
        told: the same to what its heading adds.
    """
    places = {name: place for place, name in enumerate(names)}
    order = [places[name] for name in known.classes]
    titled = {f"{name.capitalize()}: {told[name]}": matrix for name, matrix in learned.items()}
    matrices = {"Known tree": distances, **titled}
    return Figure(
        "Distances between classes",
        "Each row and column is a class, in the order of the known tree, its groups along the edges; the darker, the "
        "nearer two classes are among all pairs. MC is the mean correlation of a class's distances with the tree's.",
        draw_class_distances(
            {title: matrix[np.ix_(order, order)] for title, matrix in matrices.items()},
            known.classes,
            leaf_groups(known.parents, known.names),
        ),
        "Heat maps of distances between classes: of the known tree and of the embedding",
    )


def draw_trees(known: Hierarchy, names: Sequence[str], learned: Mapping[str, np.ndarray]) -> Figure:
    """The known tree beside one inferred from the first of learned distances (C, C) by average linkage."""
    source, distances = next(iter(learned.items()))
    inferred = InferredTree.of(ClassDistances(tuple(names), distances, source, ""), "average", known)
    return Figure(
        "Known tree and inferred tree",
        f"The inferred tree joins the classes whose {source} are nearest, then groups by the mean distance of their "
        "classes; branches are as long as the distances say. Colours are groups of the known tree: a branch of one "
        "colour holds one group only.",
        inferred.picture(),
        "Dendrograms of the known and of the inferred class tree, side by side",
    )


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
    source: str
    told: str


def distances_of_proxies(names: tuple[str, ...], vectors: np.ndarray, space: Space) -> ClassDistances:
    """Between the proxies (C, d) of training classes."""
    distances = class_distance_matrix(vectors, space)
    return ClassDistances(names, distances, "proxies", "those of the weights that were chosen")


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
        raise DataError("Confusions need items of two classes beside the references: add items to each class.")
    # What is taken for a class without items to ask still counts, but there is no row to compare.
    empty = np.setdiff1d(np.arange(len(counts)), asked)
    counts[empty, empty] = 1
    shares = confusion_distances(counts)[np.ix_(asked, asked)]
    told = f"what {len(known.asked):,} items are taken for by the nearest of {len(known.names):,} prototypes"
    return ClassDistances(tuple(known.names[code] for code in asked), shares, "confusions", told)


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
        note, known, trees = f"of {self.distances.source}", self.known, []
        if known is not None:
            groups = len(known.clades())
            if groups:
                note += f": {len(recovered_clades(known, self.tree).found):,} of {groups:,} groups recovered"
            told = f"{len(known.classes):,} classes, {groups:,} group{'' if groups == 1 else 's'}"
            # Its own branch lengths, where it has some, are not comparable and are not drawn.
            trees.append(Dendrogram(known.parents, known.names, title="Known tree", note=told))
        tree = self.tree
        return draw_dendrograms(
            [*trees, Dendrogram(tree.parents, tree.names, tree.lengths, title="Inferred tree", note=note)]
        )
