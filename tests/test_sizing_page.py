"""The tables of docs/guide/sizing.md must be those that benchmarks/sizing.py computes, and the sums must be right."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest

pytest.importorskip("pymilvus", exc_type=ImportError)

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def sizing():
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("sizing")
    sys.path.remove(str(BENCHMARKS))


def test_the_page_has_the_tables_as_they_are(sizing):
    page = sizing.PAGE.read_text(encoding="utf-8")
    assert sizing.written_into(page) == page


def test_a_page_without_a_place_is_told(sizing):
    with pytest.raises(SystemExit, match="assumptions"):
        sizing.written_into("# Nothing")


@pytest.mark.parametrize(
    ("index", "dtype", "expected"),
    [
        ("exact", "float32", 512),
        ("exact", "float16", 256),
        ("hnsw", "float32", 512 + 4 * (64 + 32 / 31)),
        ("hnsw", "int8", 128 + 4 * (64 + 32 / 31)),
        ("hnsw-sq8", "float32", 128 + 4 * (64 + 32 / 31)),
        ("ivf-flat", "float32", 520),
        ("ivf-sq8", "float32", 136),
        ("ivf-pq", "float32", 40),
        ("diskann", "float32", 115.2),
    ],
)
def test_an_item_in_an_index(sizing, index, dtype, expected):
    assert sizing.index_bytes(index, 128, dtype) == pytest.approx(expected)
    memory = sizing.memory_bytes(index, 128, dtype)
    assert memory == pytest.approx(1.3 * (expected + sizing.scalar_bytes()))
    assert sizing.nodes(10**9 * memory) == math.ceil(10**9 * memory / (64 * 2**30 * 0.8))


def test_nodes_of_a_graph_on_disk_do_not_straddle_sectors(sizing):
    facts = sizing.scalar_bytes()
    # Of 128 float32 and 57 links five fit into 4,096 bytes; of 512 one does.
    assert sizing.disk_bytes("diskann", 128, "float32") == pytest.approx(1.5 * (512 + facts + 4096 / 5))
    assert sizing.disk_bytes("diskann", 512, "float32") == pytest.approx(1.5 * (2048 + facts + 4096))


def test_sizes_in_words(sizing):
    assert [sizing.size(n) for n in (12, 1234, 5.6e9, 3.2e12)] == ["12 B", "1.23 kB", "5.6 GB", "3.2 TB"]
    assert sizing.rounded_down(53_999_999) == "53 M"
