"""`nearkin embed`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearkin import api
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.models.engines import check_engine, make_encoder
from nearkin.models.onnx import OnnxEncoder
from nearkin.storage import replacing

_SUFFIXES = (".parquet", ".npz", ".npy")


def embed_command(
    run: Path,
    data: str,
    out: Path,
    batch_size: int,
    engine: str,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> None:
    """Encode data and write the vectors."""
    if out.suffix not in _SUFFIXES:
        raise DataError(f"{out} has an unknown ending: write to a {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} file.")
    check_engine(engine)
    encoder = OnnxEncoder(run) if run.suffix == ".onnx" else make_encoder(api.load(run), engine)
    dataset, notes = api.open_readable(data, skip_bad=skip_bad, data_root=data_root, progress=progress)
    embeddings = encoder.encode(dataset, batch_size=batch_size, progress=progress)
    write_embeddings(embeddings, dataset, out)
    for note in notes:
        print(f"Note: {note}")
    print(f"Wrote {len(embeddings)} embeddings of {embeddings.shape[1]} dimensions: {out}")


def write_embeddings(embeddings: np.ndarray, dataset: Dataset, out: Path) -> None:
    """Write vectors (n, d): Parquet and NPZ with path and label, NPY alone."""
    paths, labels = dataset.manifest.paths.astype(str), dataset.labels.astype(str)
    with replacing(out) as temporary:
        if out.suffix == ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1])
            table = pa.table({"path": pa.array(paths), "label": pa.array(labels), "embedding": vectors})
            parquet.write_table(table, temporary)
            return
        with open(temporary, "wb") as handle:
            if out.suffix == ".npz":
                np.savez(handle, embeddings=embeddings, labels=labels, paths=paths)
            else:
                np.save(handle, embeddings)
