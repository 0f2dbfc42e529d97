"""A data set in a few lines, with its split written down, and written out as a manifest or one zip."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import get_args

import numpy as np
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest, manifest_bytes, write_manifest
from nearkin.data.section import DataSection
from nearkin.data.splits import class_folds, resolve_split
from nearkin.data.stores import FolderStore
from nearkin.data.url_store import UrlStore
from nearkin.errors import DataError, suggestion
from nearkin.progress import track
from nearkin.storage import replacing


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
    for name in ("split", "fold", "domain"):
        if dataset.manifest.has(name):
            column = dataset.manifest.column(name)
            parts = [(value or "(none)", column == value) for value in sorted(set(column))]
            shares = (f"{part} {inside.sum()} items of {len(set(labels[inside]))} classes" for part, inside in parts)
            lines.append(f"{name}: {', '.join(shares)}")
    return lines


def with_split(dataset: Dataset, *, by: str, test: float, val: float, folds: int, seed: int) -> Dataset:
    """The data set with a `split` column of train, val and test, and a `fold` column if folds are asked for."""
    ways = get_args(DataSection.model_fields["split"].annotation)
    if by not in ways:
        raise DataError(f"Unknown split '{by}'.{suggestion(by, ways)}")
    if by == "domains":
        raise DataError(
            "A split by domains needs a recipe that names the domains to hold out: train with "
            "data.split=domains and data.test_domains instead."
        )
    of = "items" if by == "items" else "classes"
    if folds and by == "items":
        raise DataError("Folds divide classes, but a split by items trains on all of them: remove --folds.")
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


def export_dataset(dataset: Dataset, out: str | Path, progress: bool = True) -> None:
    """Write a data set so that `open_data(out)` gives it back.

    Args:
        dataset: what to write.
        out: a .zip for a copy of everything, or a .csv or .parquet manifest inside the folder that holds the files; of
            items behind URLs, anywhere.
        progress: whether to show a bar.
    """
    out = Path(out)
    if out.exists():
        raise DataError(f"{out} already exists: choose another name or remove it.")
    if out.suffix == ".zip":
        _write_zip(dataset, out, progress)
    elif out.suffix in (".csv", ".parquet"):
        write_manifest(_relative_to(dataset, out.parent), out)
    else:
        raise DataError(f"{out} has an unknown ending: write to a .zip, .csv or .parquet file.")


def _write_zip(dataset: Dataset, out: Path, progress: bool) -> None:
    manifest = dataset.manifest
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        names = []
        for path in track(manifest.paths, f"writing {out.name}", len(manifest), progress):
            raw = dataset.store.read(path)
            if not isinstance(raw, bytes):
                buffer = io.BytesIO()
                Image.fromarray(raw).save(buffer, format="PNG")
                path, raw = f"{path}.png", buffer.getvalue()
            archive.writestr(path, raw)
            names.append(path)
        archive.writestr("manifest.csv", manifest_bytes(manifest.with_column("path", names)))


def _relative_to(dataset: Dataset, folder: Path) -> Manifest:
    if isinstance(dataset.store, UrlStore):
        return dataset.manifest.with_column("path", [dataset.store.url(path) for path in dataset.manifest.paths])
    if not isinstance(dataset.store, FolderStore):
        raise DataError("Only data in loose files or behind URLs can have a manifest beside it: write a .zip instead.")
    root = dataset.store.root.resolve()
    prefix = os.path.relpath(root, folder.resolve())
    if prefix.startswith(".."):
        raise DataError(f"A manifest must lie in {root} or above it, so that its paths stay inside: write it there.")
    if prefix == ".":
        return dataset.manifest
    return dataset.manifest.with_column(
        "path", [f"{Path(prefix).as_posix()}/{path}" for path in dataset.manifest.paths]
    )
