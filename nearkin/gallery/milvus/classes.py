"""Classes and their codes, remembered on this side; labels nobody here knows yet are looked up."""

from __future__ import annotations

import numpy as np

from nearkin.errors import StorageError
from nearkin.gallery.milvus.documents import Documents
from nearkin.gallery.store import ABSENT, UNLABELLED


class Classes:
    """The classes of a gallery by code.

    Args:
        documents: where they are kept.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._codes: dict[str, int] = {}

    def names(self) -> list[str]:
        """Names by code."""
        names = self._documents.classes()
        self._codes = {name: code for code, name in enumerate(names)}
        return names

    def codes(self, labels: np.ndarray, *, present: np.ndarray) -> np.ndarray:
        """Codes int32 of labels, objects of any shape; `UNLABELLED` for None, `ABSENT` where nothing is present."""
        wanted = set(labels.ravel().tolist()) - {None}
        if not wanted <= self._codes.keys():
            self.names()
        unknown = next(iter(wanted - self._codes.keys()), None)
        if unknown is not None:
            raise StorageError(f"The class '{unknown}' of an item is not in the gallery's table: write the item again.")
        found = [UNLABELLED if label is None else self._codes[label] for label in labels.ravel()]
        codes = np.array(found, np.int32).reshape(labels.shape)
        return np.where(present, codes, np.int32(ABSENT))
