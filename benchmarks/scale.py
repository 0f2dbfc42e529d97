"""Beyond one batch, one process and Python: gradient caching, two processes, ONNX Runtime, smaller numbers.

    python benchmarks/scale.py            the tables (some ten minutes); writes benchmarks/scale.json
    python benchmarks/scale.py --check    exit code 0 only if every bar that was checked holds
    python benchmarks/scale.py --quick    under a minute; bars that do not fit are printed as not checked

What is compared takes turns in one run and counts by its median; memory is measured in processes of their own. The
parts are in scale_training.py, scale_onnx.py and scale_gallery.py. What smaller numbers cost is measured on
CUB-200-2011, where NEARKIN_DATA has it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import scale_gallery
import scale_onnx
from bars import Bars, tell, write
from scale_training import LARGE, PART, SMALL, measure_caching, measure_processes

from nearkin.allocator import tune_allocator

RESULT = Path(__file__).with_suffix(".json")
BARS: Bars = {
    "caching memory": (
        f"peak memory above idle, ResNet-20: batch {LARGE:,} in parts of {PART} / batch {SMALL}, whole",
        "<=",
        1.3,
    ),
    "caching time": (f"time a sample, ResNet-20: batch {LARGE:,} in parts of {PART} / batch {SMALL}, whole", "<=", 2.0),
    **scale_onnx.BARS,
}


def show(name: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the rows of a part; the same rows, with its name."""
    print(f"\n{name}")
    for row in rows:
        print(
            "  "
            + ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items())
        )
    return [{"part": name, **row} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar that was checked holds")
    parser.add_argument("--quick", action="store_true", help="under a minute; nothing is written")
    arguments = parser.parse_args()
    tune_allocator()
    size = "quick" if arguments.quick else "full"
    table: list[dict[str, Any]] = []
    figures, rows = scale_onnx.measure_float32(size)
    table += show("ONNX Runtime", rows)
    rows, more = measure_processes(arguments.quick)
    figures |= more
    table += show("two processes", rows)
    if not arguments.quick:
        rows, more = measure_caching()
        figures |= more
        table += show("gradient caching", rows)
        more, rows = scale_onnx.measure_int8(size)
        figures |= more
        table += show("int8 model", rows)
        if os.environ.get("NEARKIN_DATA"):
            table += show("smaller galleries", scale_gallery.measure())
    print()
    holds = tell(BARS, figures)
    if not arguments.quick:
        write(RESULT, BARS, figures, table)
    print(headline(figures))
    return 1 if arguments.check and not holds else 0


def headline(figures: dict[str, float]) -> str:
    """The figures in a line."""
    told = [
        f"ONNX Runtime encodes {figures['onnx encode']:.2f} x as fast as tuned eager",
        f"2 processes step {figures['processes']:.2f} x as fast as one with both cores",
    ]
    if "caching memory" in figures:
        told.append(
            f"a batch of {LARGE:,} needs {figures['caching memory']:.2f} x the memory of {SMALL} and "
            f"{figures['caching time']:.2f} x the time a sample"
        )
    return "; ".join(told)


if __name__ == "__main__":
    sys.exit(main())
