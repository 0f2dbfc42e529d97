"""Classes as the means of reference items, and the items that are asked for their class."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nearkin.audits.division import divide
from nearkin.audits.subject import Subject
from nearkin.errors import DataError
from nearkin.metrics.hierarchy import class_prototypes
from nearkin.search import as_vectors
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
            f"Classes are compared by the means of their items, and {type(subject.space).__name__} has none: give "
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
