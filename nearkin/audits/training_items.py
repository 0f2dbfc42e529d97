"""Which items of a data set a model was trained on: what may be learned from before anything is measured on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.section import DataSection
from nearkin.data.splits import Split, resolve_split


def item_split(dataset: Dataset, card: dict[str, Any]) -> Split | None:
    """How the items of a model of seen classes were divided; None for other models and for other data."""
    recipe = card.get("recipe", {})
    section = DataSection.model_validate(recipe.get("data", {}))
    if not section.classes_are_seen or dataset.fingerprint() != card.get("data", {}).get("fingerprint"):
        return None
    return resolve_split(dataset.manifest, section, int(recipe["training"]["seed"]))


def training_rows(dataset: Dataset, card: dict[str, Any]) -> np.ndarray:
    """Rows of the items that trained: by the division of the items if there was one, else all of training classes."""
    divided = item_split(dataset, card)
    if divided is not None:
        return divided.train
    return np.flatnonzero(np.isin(dataset.labels, card.get("classes", {}).get("train", [])))


def trained_embeddings(
    dataset: Dataset, card: dict[str, Any], audited: np.ndarray, embed: Callable[[Dataset], np.ndarray]
) -> Callable[[], np.ndarray] | None:
    """What gives the embeddings (m, d) of the items that trained and are not audited; None where there are none.

    Args:
        dataset: all the data.
        card: the model's.
        audited: rows of the items that are measured.
        embed: from items to their embeddings.
    """
    rows = np.setdiff1d(training_rows(dataset, card), audited)
    return (lambda: embed(dataset.select(rows))) if len(rows) else None
