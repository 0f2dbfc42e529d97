"""Principal components of a model's embeddings, by the items that it was trained on and no others."""

from __future__ import annotations

from pathlib import Path

from nearkin.audits.subject import embed_items
from nearkin.audits.training_items import training_rows
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.models import Embedder, principal_components
from nearkin.models.shorten import check_shorter
from nearkin.spaces.rotation import check_turnable


def components_of_training(
    embedder: Embedder, dataset: Dataset, dimension: int, *, cache_directory: Path, progress: bool = True
) -> Embedder:
    """A copy of a model that gives the principal components of its embeddings of training items.

    Args:
        embedder: the model; its card says which classes trained it.
        dataset: data with items of these classes; others are not looked at, so that they stay unseen.
        dimension: how many dimensions are left.
        cache_directory: where the features of a frozen backbone are kept.
        progress: whether to show bars.
    """
    check_shorter(embedder, dimension)  # before anything is encoded
    check_turnable(embedder.space)
    rows = training_rows(dataset, embedder.card)
    if len(rows) == 0:
        raise DataError(
            f"None of the {len(dataset.classes)} classes of the data is one that the model's card says it was trained "
            "on: give the data that it was trained on, or take its first dimensions (method prefix)."
        )
    part = dataset.select(rows)
    points = embed_items(embedder, part, cache_directory, progress)
    words = f"items of {len(part.classes)} training classes of {dataset.name}"
    return principal_components(embedder, points, dimension, fitted_on=words)
