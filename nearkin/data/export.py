"""Writing a data set out: a manifest beside its files, or one zip that holds everything."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest, manifest_bytes, write_manifest
from nearkin.data.stores import FolderStore
from nearkin.data.url_store import UrlStore
from nearkin.errors import DataError
from nearkin.progress import track
from nearkin.storage import replacing


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
            name = path if isinstance(raw, bytes) else f"{path}.png"
            archive.writestr(name, raw if isinstance(raw, bytes) else _png(raw))
            names.append(name)
        archive.writestr("manifest.csv", manifest_bytes(manifest.with_column("path", names)))


def _relative_to(dataset: Dataset, folder: Path) -> Manifest:
    if isinstance(dataset.store, UrlStore):
        return dataset.manifest.with_column("path", [dataset.store.url(path) for path in dataset.manifest.paths])
    if not isinstance(dataset.store, FolderStore):
        raise DataError(
            "Only data in loose files or behind URLs can have a manifest beside them: write to a .zip file instead."
        )
    root = dataset.store.root.resolve()
    prefix = os.path.relpath(root, folder.resolve())
    if prefix.startswith(".."):
        raise DataError(f"A manifest must lie in {root} or above it, so that its paths stay inside: write it there.")
    if prefix == ".":
        return dataset.manifest
    return dataset.manifest.with_column(
        "path", [f"{Path(prefix).as_posix()}/{path}" for path in dataset.manifest.paths]
    )


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
