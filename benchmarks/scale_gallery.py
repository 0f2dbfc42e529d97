"""What smaller galleries cost and save: recall, MAP@R, bytes and speed of float16 and int8 on real embeddings.

    python benchmarks/scale_gallery.py            the table (some minutes); writes benchmarks/scale_gallery.json
    python benchmarks/scale_gallery.py --quick    every tenth image, a tenth of the items; nothing is written

Embeddings are those of the 100 test classes of CUB-200-2011 by a pretrained EfficientNet-Lite0 that was trained on
none of them. Size and speed are of a local gallery of such vectors, repeated with a little noise up to 10^5 items.
Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the repository, to import studies

import numpy as np
from bars import in_turns, machine

from nearkin.data import open_data
from nearkin.gallery import Gallery
from nearkin.gallery.model import pretrained
from nearkin.gallery.places import size_of
from nearkin.gallery.precision import precision_loss
from studies.page_tables import table

DTYPES = ("float32", "float16", "int8")
ITEMS = 100_000
NOISE = 0.02
"""Standard deviation of what is added to a repeated vector, over the mean size of its numbers."""
ROUNDS = 15
K = 10
RESULT = Path(__file__).with_suffix(".json")


def embeddings(data_root: Path | None, every: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors float32 (n, d) and labels (n,) of the test classes of CUB-200."""
    dataset = open_data("cub200", data_root=data_root)
    classes = np.unique(dataset.labels)
    test = np.flatnonzero(np.isin(dataset.labels, classes[len(classes) // 2 :]))[::every]
    chosen = dataset.select(test)
    return pretrained("efficientnet-lite0").encode(chosen, progress=True), chosen.labels.astype(str)


def losses(vectors: np.ndarray, labels: np.ndarray) -> list[dict[str, Any]]:
    """A row for each form of the vectors: recall, MAP@R and P@1 with their changes, bytes; all items are queries."""
    found = precision_loss(vectors, labels.tolist(), dtypes=DTYPES[1:], queries=len(vectors))
    return [
        {
            "dtype": one.dtype,
            "bytes": one.bytes,
            **{f"recall@{k}": share for k, share in one.recall.items()},
            **{name: change.value for name, change in one.metrics.items()},
            **{
                f"change of {name}": [change.difference, change.low, change.high]
                for name, change in one.metrics.items()
            },
        }
        for one in found
    ]


def costs(vectors: np.ndarray, items: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each form: disk and memory of a local gallery, and milliseconds of an exact search for one query."""
    rng = np.random.default_rng(0)
    many = np.resize(np.arange(len(vectors)), items)
    size = NOISE * float(np.abs(vectors).mean())
    rows = vectors[many] + size * rng.standard_normal((items, vectors.shape[1]), dtype=np.float32)
    asked = vectors[rng.integers(len(vectors), size=rounds)]
    with tempfile.TemporaryDirectory() as folder:
        opened = {}
        for dtype in DTYPES:
            path = Path(folder) / dtype
            gallery = Gallery.create(path, dimension=rows.shape[1], name="scale", dtype=dtype, index="exact")
            for start in range(0, items, 20_000):
                gallery.add(rows[start : start + 20_000])
            opened[dtype] = gallery
        number = iter(range(10**9))
        times = in_turns(
            {
                dtype: lambda one=gallery: (time.sleep(0.02), one.store.search(asked[next(number) % rounds][None], K))
                for dtype, gallery in opened.items()
            },
            rounds,
            2,
        )
        found = []
        for dtype, gallery in opened.items():
            held = gallery.store._current().index.snapshot.vectors  # type: ignore[attr-defined]
            array = held if isinstance(held, np.ndarray) else held.rows
            gallery.close()
            found.append(
                {
                    "dtype": dtype,
                    "items": items,
                    "disk MB": size_of(Path(gallery.path)) / 1e6,
                    "memory MB": array[:items].nbytes / 1e6,
                    "search ms": 1e3 * (statistics.median(times[dtype]) - 0.02),
                }
            )
    return found


def measure(data_root: Path | None = None, *, quick: bool = False) -> list[dict[str, Any]]:
    """A row for each form of the vectors with all of this."""
    vectors, labels = embeddings(data_root, 10 if quick else 1)
    saved = costs(vectors, ITEMS // 10 if quick else ITEMS, ROUNDS)
    return [{**lost, **cost} for lost, cost in zip(losses(vectors, labels), saved, strict=True)]


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    head = ["stored as", "bytes an item", "recall@1", "recall@10", "MAP@R (change, 95 %)", "P@1 (change, 95 %)"]
    head += [f"disk of {rows[0]['items']:,}", "memory of the vectors", "exact search, one query"]
    return table(
        head,
        [
            [
                row["dtype"],
                f"{row['bytes']:,}",
                f"{row['recall@1']:.4f}",
                f"{row['recall@10']:.4f}",
                *(f"{row[name]:.4f} ({_interval(row[f'change of {name}'])})" for name in ("MAP@R", "P@1")),
                f"{row['disk MB']:,.0f} MB",
                f"{row['memory MB']:,.0f} MB",
                f"{row['search ms']:.1f} ms",
            ]
            for row in rows
        ],
    )


def _interval(change: list[float]) -> str:
    return f"{change[0]:+.4f}, {change[1]:+.4f} to {change[2]:+.4f}"


def main() -> None:
    """Measure, and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every tenth image; nothing is written")
    parser.add_argument("--data-root", type=Path, help="where cub200.zip is; default: NEARKIN_DATA")
    chosen = parser.parse_args()
    if chosen.data_root is None and "NEARKIN_DATA" not in os.environ:
        parser.error("say where the data is: NEARKIN_DATA or --data-root")
    rows = measure(chosen.data_root, quick=chosen.quick)
    print(shown(rows))
    if not chosen.quick:
        RESULT.write_text(json.dumps({"machine": machine(), "table": rows, "page": shown(rows)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
