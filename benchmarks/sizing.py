"""What galleries of 10^6 to 10^9 items need: memory, disk, nodes. Computed from the assumptions below.

python benchmarks/sizing.py             the tables
python benchmarks/sizing.py --page      writes them into docs/guide/sizing.md
python benchmarks/sizing.py --measure   measures a local gallery of 10^5 items first; writes sizing.json
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the repository, to import studies

import numpy as np

from nearkin.gallery.dtypes import row_bytes
from nearkin.gallery.layout import layout_of
from nearkin.gallery.milvus.items import to_row
from nearkin.gallery.store import Record
from studies.page_tables import table

ITEMS = (10**6, 10**7, 10**8, 10**9)
DIMENSIONS = (128, 512)
DTYPES = ("float32", "float16", "int8")

# Milvus.
LINK = 4
"""Bytes of a link of a graph."""
ROW_NUMBER = 8
"""Bytes that an inverted list keeps beside each vector."""
DISKANN_MEMORY = 0.125 + 0.10
"""Share of the raw vectors that DiskANN holds in memory: compressed codes and a cache, the defaults of Milvus."""
DISKANN_DEGREE = 56
"""Links of a node on disk, the default of Milvus."""
SECTOR = 4096
"""Bytes that DiskANN reads at once; a node does not straddle two."""
OVERHEAD = 1.3
"""Memory in use over what is loaded: segments that still grow, deletions, questions under way."""
NODE = 64 * 2**30
"""Memory of a query node."""
USABLE = 0.8
"""Share of it that may be filled."""
COPIES = 1.5
"""Object storage over what lives there: segments are merged by writing them anew."""
THUMBNAIL = 5_000
"""Bytes of a thumbnail as JPEG; Milvus keeps it as text, which is a third more."""

# A local gallery.
MACHINE = 64 * 2**30
"""Memory of the machine."""
ITEM_MEMORY = 8
"""Bytes of an item in memory beside its vector: code and length."""
RESULT = Path(__file__).with_suffix(".json")
SEARCHED = Path(__file__).with_name("gallery.json")
"""Where `benchmarks/gallery.py` keeps how long an exact search of 10^6 vectors of 128 dimensions takes."""
PAGE = Path(__file__).parents[1] / "docs" / "guide" / "sizing.md"
MEASURED_ITEMS = 100_000
MEASURED_DIMENSION = 128

EXAMPLE = Record(
    id="0123456789abcdef01234567",
    label="class 1234",
    metadata={"shop": "shop 12", "price": 19.9, "colour": "blue"},
    source="s3://catalogue/2024/07/0123456789.jpg",
    added="2024-07-01T12:00:00.000Z",
)
"""An item as the tables assume it: an id, a label, three facts, a path."""


def scalar_bytes() -> int:
    """Bytes of what Milvus keeps of the example beside its vector."""
    row = to_row(EXAMPLE, np.empty(0, np.float32))
    kept = (value for name, value in row.items() if name != "vector" and value is not None)
    texts = (json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value) for value in kept)
    return sum(len(text.encode()) for text in texts)


def links(neighbours: int) -> float:
    """Bytes of the links of a node of HNSW: twice M on the ground level, M on each of the levels above, 1/M as full."""
    return LINK * (2 * neighbours + neighbours / (neighbours - 1))


def index_bytes(index: str, dimension: int, dtype: str) -> float:
    """Bytes of an item in the index, in memory."""
    raw = server_bytes(dtype, dimension)
    graph = links(layout_of(index).value("M")) if index.startswith("hnsw") else 0
    known: dict[str, float] = {
        "exact": raw,
        "hnsw": raw + graph,
        "hnsw-sq8": dimension + graph,
        "ivf-flat": raw + ROW_NUMBER,
        "ivf-sq8": dimension + ROW_NUMBER,
        "ivf-pq": dimension / 4 + ROW_NUMBER,
        "diskann": DISKANN_MEMORY * raw,
    }
    return known[index]


def server_bytes(dtype: str, dimension: int) -> int:
    """Bytes of a vector in Milvus; of int8 there is no scale."""
    return dimension if dtype == "int8" else row_bytes(dtype, dimension)


def disk_bytes(index: str, dimension: int, dtype: str) -> float:
    """Bytes of an item in object storage: vector, facts and index."""
    raw = server_bytes(dtype, dimension)
    own = index_bytes(index, dimension, dtype)
    if index == "diskann":
        node = raw + LINK * (1 + DISKANN_DEGREE)
        own = SECTOR / (SECTOR // node) if node <= SECTOR else SECTOR * math.ceil(node / SECTOR)
    return COPIES * (raw + scalar_bytes() + own)


def memory_bytes(index: str, dimension: int, dtype: str) -> float:
    """Bytes of an item on the query nodes."""
    return OVERHEAD * (index_bytes(index, dimension, dtype) + scalar_bytes())


def nodes(memory: float) -> int:
    """Query nodes that hold so many bytes."""
    return max(1, math.ceil(memory / (NODE * USABLE)))


CHOICES = (
    ("float32", "exact"),
    ("float32", "hnsw"),
    ("float32", "hnsw-sq8"),
    ("float32", "ivf-flat"),
    ("float32", "ivf-sq8"),
    ("float32", "ivf-pq"),
    ("float32", "diskann"),
    ("float16", "hnsw"),
    ("float16", "diskann"),
    ("int8", "hnsw"),
)
"""What the tables compare."""


def milvus_table(dimension: int) -> str:
    """Memory, nodes and disk of galleries in Milvus."""
    rows = []
    for dtype, index in CHOICES:
        memory, disk = memory_bytes(index, dimension, dtype), disk_bytes(index, dimension, dtype)
        cells = [f"{size(n * memory)}, {nodes(n * memory):,} | {size(n * disk)}" for n in ITEMS]
        rows.append([dtype, f"`{index}`", f"{memory:,.0f}", *(cell for both in cells for cell in both.split(" | "))])
    head = ["vectors", "index", "bytes an item"]
    head += [title for n in ITEMS for title in (f"{power(n)}: memory, nodes", "disk")]
    return table(head, rows)


def local_table() -> str:
    """Memory, disk and time of a search of local galleries."""
    measured = json.loads(RESULT.read_text())
    searched = json.loads(SEARCHED.read_text())["figures"]["search ms"]
    rows = []
    for dimension in DIMENSIONS:
        for dtype in DTYPES:
            held = row_bytes("int8" if dtype == "int8" else "float32", dimension) + ITEM_MEMORY
            kept = row_bytes(dtype, dimension) + measured["disk beside the vector"]
            graph = 2 * dimension + links(layout_of("hnsw").value("M"))
            most = MACHINE * USABLE
            rows.append(
                [
                    str(dimension),
                    dtype,
                    f"{held:,}",
                    f"{held + graph:,.0f}",
                    f"{kept:,.0f}",
                    *(f"{size(n * held)} / {size(n * (held + graph))}" for n in ITEMS[:2]),
                    f"{searched * dimension / MEASURED_DIMENSION:,.0f} ms" if dtype != "int8" else "see below",
                    f"{rounded_down(most / held)} / {rounded_down(most / (held + graph))}",
                ]
            )
    head = ["dimension", "stored as", "memory an item", "with a graph", "disk an item"]
    head += [f"{power(n)}: memory exact / graph" for n in ITEMS[:2]]
    return table([*head, "exact search of 10^6", "most items in 64 GiB: exact / graph"], rows)


def assumptions() -> str:
    """The constants, as they are."""
    rows = [
        ("an item's facts in Milvus (id, label, three facts, path)", f"{scalar_bytes():,} bytes"),
        (
            "a link of a graph",
            f"{LINK} bytes; M = {layout_of('hnsw').value('M')}: {links(layout_of('hnsw').value('M')):.0f} bytes a node",
        ),
        ("DiskANN in memory", f"{DISKANN_MEMORY:.1%} of the raw vectors"),
        ("DiskANN on disk", f"vector and {DISKANN_DEGREE} links, in sectors of {SECTOR:,} bytes"),
        ("memory in use over what is loaded", f"{OVERHEAD:g}"),
        ("a query node", f"{NODE / 2**30:.0f} GiB, filled to {USABLE:.0%}"),
        ("replicas", "1; each further one costs the memory and nodes once more"),
        ("object storage over what lives there", f"{COPIES:g}"),
        ("a thumbnail", f"not counted; {THUMBNAIL:,} bytes, in Milvus {4 * THUMBNAIL // 3:,} of memory and disk"),
    ]
    return table(["assumption", "value"], [list(row) for row in rows])


def measurements() -> str:
    """What was measured of a local gallery, beside what is assumed."""
    found = json.loads(RESULT.read_text())
    rows = [
        ["disk of an item beside its vector", f"{found['disk beside the vector']:.0f} bytes", "taken as measured"],
        [
            "graph of an item beside its half-precision vector",
            f"{found['graph beside the vector']:.0f} bytes",
            f"{links(layout_of('hnsw').value('M')):.0f} bytes",
        ],
        [
            "memory of an int8 item",
            f"{found['int8 in memory']:.0f} bytes",
            f"{row_bytes('int8', MEASURED_DIMENSION)} bytes",
        ],
    ]
    return table([f"{MEASURED_ITEMS:,} items of {MEASURED_DIMENSION} dimensions", "measured", "assumed"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "assumptions": assumptions,
    "measurements": measurements,
    "milvus-128": lambda: milvus_table(128),
    "milvus-512": lambda: milvus_table(512),
    "local": local_table,
}


def written_into(page: str) -> str:
    """A page with all tables as they are now."""
    for name, make in TABLES.items():
        begin, end = f"<!-- sizing: {name} -->", f"<!-- end: {name} -->"
        if begin not in page or end not in page:
            raise SystemExit(f"The page has no place for '{name}': write {begin} and {end}.")
        page = re.sub(f"{begin}.*?{end}", lambda _, b=begin, e=end, m=make: f"{b}\n{m()}\n{e}", page, flags=re.DOTALL)
    return page


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def power(n: int) -> str:
    """10^6 for a million."""
    return f"10^{round(math.log10(n))}"


def rounded_down(n: float) -> str:
    """A count to two digits, in millions."""
    step = 10 ** (math.floor(math.log10(n)) - 1)
    return f"{math.floor(n / step) * step / 1e6:,.0f} M"


def measure() -> dict[str, Any]:
    """A local gallery of 10^5 items like the example."""
    from nearkin.gallery import Gallery

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((MEASURED_ITEMS, MEASURED_DIMENSION), dtype=np.float32)
    metadata = [{**EXAMPLE.metadata, "price": float(price)} for price in rng.integers(1, 999, MEASURED_ITEMS)]
    labels = [f"class {code}" for code in rng.integers(10_000, size=MEASURED_ITEMS)]
    raw = row_bytes("float32", MEASURED_DIMENSION)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "g.gallery"
        with Gallery.create(place, dimension=MEASURED_DIMENSION, name="measured", index="hnsw") as gallery:
            gallery.add(vectors, labels, metadata)
        graph = sum(file.stat().st_size for file in place.glob("hnsw-*"))
        database = sum(file.stat().st_size for file in place.iterdir()) - graph
        with Gallery.create(
            Path(folder) / "small.gallery", dimension=MEASURED_DIMENSION, name="measured", dtype="int8", index="exact"
        ) as small:
            small.add(vectors)
            rows = small.store._current().index.snapshot.vectors.rows  # type: ignore[attr-defined]
    return {
        "disk beside the vector": round(database / MEASURED_ITEMS - raw, 1),
        "graph beside the vector": round(graph / MEASURED_ITEMS - 2 * MEASURED_DIMENSION, 1),
        "int8 in memory": rows.nbytes / len(rows),
    }


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the tables into the page")
    parser.add_argument("--measure", action="store_true", help="measure a local gallery first")
    chosen = parser.parse_args()
    if chosen.measure:
        RESULT.write_text(json.dumps(measure(), indent=2) + "\n")
    if chosen.page:
        PAGE.write_text(written_into(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for name, make in TABLES.items():
        print(f"{name}\n\n{make()}\n")


if __name__ == "__main__":
    main()
