"""What is in a data set, in a few lines; and a data set with its split written down."""

from __future__ import annotations

from typing import get_args

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.section import DataSection
from nearkin.data.splits import class_folds, resolve_split
from nearkin.errors import DataError, suggestion


def summary_lines(dataset: Dataset) -> list[str]:
    """Classes, items, sizes of classes, and the values of the columns people split by."""
    labels = dataset.labels
    _, counts = np.unique(labels.astype(str), return_counts=True)
    lines = [
        f"name: {dataset.name}",
        f"kind: {dataset.kind}",
        f"items: {len(dataset)}",
        f"classes: {len(counts)}",
        f"items a class: {counts.min()} to {counts.max()}, median {int(np.median(counts))}",
    ]
    for column in ("split", "fold", "domain"):
        if dataset.manifest.has(column):
            lines.append(f"{column}: {_shares(labels, dataset.manifest.column(column))}")
    return lines


def with_split(dataset: Dataset, *, by: str, test: float, val: float, folds: int, seed: int) -> Dataset:
    """The data set with a `split` column of train, val and test, and a `fold` column if folds are asked for."""
    ways = get_args(DataSection.model_fields["split"].annotation)
    if by not in ways:
        raise DataError(f"There is no way to split by '{by}'.{suggestion(by, ways)}")
    if by == "domains":
        raise DataError(
            "A split by domains takes the names of the domains to hold out from a recipe: train with "
            "data.split=domains and data.test_domains instead."
        )
    of = "items" if by == "items" else "classes"
    if folds and by == "items":
        raise DataError("Folds divide classes, and a split by items leaves all of them together: leave out --folds.")
    section = DataSection.model_validate({"split": by, f"test_{of}": test, f"val_{of}": val})
    split = resolve_split(dataset.manifest, section, seed)
    column = np.full(len(dataset), "", dtype=object)
    for name in ("train", "val", "test"):
        column[getattr(split, name)] = name
    manifest = dataset.manifest.with_column("split", column)
    if folds:
        # Folds divide all classes that are not held out, validation classes included: each serves once.
        inside = np.concatenate([split.train, split.val])
        numbers = np.full(len(dataset), "", dtype=object)
        for number, fold in enumerate(class_folds(dataset.labels[inside], folds, seed)):
            numbers[inside[fold.val]] = str(number)
        manifest = manifest.with_column("fold", numbers)
    return Dataset(manifest, dataset.store, dataset.kind, dataset.name)


def _shares(labels: np.ndarray, column: np.ndarray) -> str:
    parts = []
    for value in sorted(set(column)):
        inside = column == value
        parts.append(f"{value or '(none)'} {int(inside.sum())} items of {len(set(labels[inside]))} classes")
    return ", ".join(parts)
