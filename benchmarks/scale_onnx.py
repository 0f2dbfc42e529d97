"""Encoding by ONNX Runtime against tuned PyTorch, and what 8 bits give and cost.

    python benchmarks/scale_onnx.py            the table (some minutes)
    python benchmarks/scale_onnx.py --check    exit code 0 only if every bar holds
    python benchmarks/scale_onnx.py --quick    about a minute; fewer rounds and items

Everyone starts from the same batches of uint8 images in memory and ends with embeddings; contenders take turns in one
run and count by their medians. What 8 bits cost is measured on classes of CUB-200-2011 that calibrated nothing, where
NEARKIN_DATA has it. `benchmarks/scale.py` runs this file with the others and keeps the result.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bars import in_turns, tell
from torch import Tensor

from nearkin.allocator import tune_allocator
from nearkin.audits.quantisation import calibration_batches, compare_quantised, divide_for_int8, processor
from nearkin.data import open_data
from nearkin.models import Encoder, ModelSection, build_embedder
from nearkin.models.onnx import OnnxEncoder
from nearkin.models.onnx.file import check_parity, quantise, serialised

SEED = 0
BATCH = 32
SIZE = 224
ROUNDS = {"full": 15, "quick": 5}
WARM = 2
MODEL = ModelSection(backbone="efficientnet-lite0", pretrained=True, pooling="gap", dimension=None)
DATA = "cub200"
TRAINED = 100
"""Classes of CUB-200-2011, the first by name, that are for training and so calibrate; the others are measured."""
PER_CLASS = {"full": 58, "quick": 8}
"""Items of a class that are taken at most."""

BARS: dict[str, tuple[str, str, float]] = {
    "onnx encode": ("ONNX Runtime / tuned eager, EfficientNet-Lite0 at 224 px, batch 32", ">=", 1.2),
}


def measure_float32(size: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Figures and rows of encoding in float32; each round encodes one batch."""
    embedder = build_embedder(MODEL, seed=SEED)
    content, _ = serialised(embedder)
    difference = check_parity(embedder, content)
    return _timed(size, {"tuned eager": Encoder(embedder), "ONNX Runtime, float32": OnnxEncoder(content)}, difference)


def measure_int8(size: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Figures and rows of 8 bits: speed, and MAP@R on held-out classes; nothing where the data is not at hand."""
    root = os.environ.get("NEARKIN_DATA")
    if not root or not (Path(root) / f"{DATA}.zip").exists():
        print(f"8 bits are not measured: NEARKIN_DATA has no {DATA}.zip")
        return {}, []
    embedder = build_embedder(MODEL, seed=SEED)
    dataset = open_data(DATA, progress=False)
    dataset = dataset.select(_some_of_each_class(dataset.labels, PER_CLASS[size]))
    classes = sorted(set(dataset.labels))
    embedder.card = {"classes": {"train": classes[:TRAINED], "val": [], "test": classes[TRAINED:]}}
    division = divide_for_int8(dataset, embedder.card, SEED)
    content, description = serialised(embedder)
    small, _ = quantise(content, description, calibration_batches(dataset, division, embedder))
    found = compare_quantised(embedder, (content, small), dataset, division)
    contenders = {
        "tuned eager": Encoder(embedder),
        "ONNX Runtime, float32": OnnxEncoder(content),
        "ONNX Runtime, int8": OnnxEncoder(small),
    }
    figures, rows = _timed(size, contenders, None)
    rows[-1] |= {
        "MAP@R float32": found.float32,
        "MAP@R int8": found.int8,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "classes": found.classes,
        "items": found.items,
        "MB float32": found.float32_bytes / 1e6,
        "MB int8": found.int8_bytes / 1e6,
        "flags": " ".join(found.processor["flags"]),
    }
    return {"int8 encode": figures["ONNX Runtime, int8"], "int8 MAP@R difference": found.difference}, rows[-1:]


def _timed(size: str, contenders: dict[str, Any], difference: float | None) -> tuple[dict[str, float], list[Any]]:
    """Speeds as multiples of the first contender's, by name, and a row for each."""
    batch = images()
    turns = {name: (lambda encoder=encoder: encoder(batch)) for name, encoder in contenders.items()}
    seconds = {name: median(times) for name, times in in_turns(turns, ROUNDS[size], WARM).items()}
    first = next(iter(seconds.values()))
    figures = {name: first / value for name, value in seconds.items()}
    if "ONNX Runtime, int8" not in figures:
        figures = {"onnx encode": figures["ONNX Runtime, float32"], "onnx difference": difference or 0.0}
    rows = [{"engine": name, "images/s": BATCH / value, "x eager": first / value} for name, value in seconds.items()]
    return figures, rows


def images() -> Tensor:
    """A batch of noise, uint8 (B, 3, H, W), its channels innermost in memory as decoded images have them."""
    pixels = np.random.default_rng(SEED).integers(0, 256, (BATCH, SIZE, SIZE, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def _some_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([np.flatnonzero(labels == name)[:count] for name in sorted(set(labels))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and items")
    arguments = parser.parse_args()
    tune_allocator()
    size = "quick" if arguments.quick else "full"
    figures, rows = measure_float32(size)
    more, others = measure_int8(size)
    figures |= more
    for row in (*rows, *others):
        cells = [f"{name} {value:.4g}" if isinstance(value, float) else str(value) for name, value in row.items()]
        print(", ".join(cells))
    told = processor()
    print(f"{told['name']}, {told['threads']} threads, {' '.join(told['flags'])}")
    holds = tell(BARS, figures)
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
