"""What 8 bits cost: a quantised model against the one in float32, on classes that neither has seen.

Both encode the same items; the differences of their queries' MAP@R are resampled by classes. Calibration never sees the
classes that are measured.
"""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.audits.subject import draw_rows, leave_classes_out, unseen_items
from nearkin.data.audio import HOP
from nearkin.data.dataset import SAMPLE_RATE, Dataset
from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap, retrieval_metrics
from nearkin.models import Embedder
from nearkin.models.card import Card
from nearkin.models.items import open_items
from nearkin.models.onnx import OnnxEncoder
from nearkin.models.recordings import by_length

CALIBRATION_ITEMS = 128
"""Of training classes, drawn by a seed; more changed nothing that could be measured."""

METRIC = "MAP@R"

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm", "sve")
_BATCH = 32
_ROUNDS = 5


@dataclass(frozen=True)
class Int8Division:
    """Which items calibrate and which measure: rows of a data set, and what to say about the choice."""

    calibration: np.ndarray
    measured: np.ndarray
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class QuantisedResult:
    """How a model in 8 bits compares with the one in float32.

    Attributes:
        float32: MAP@R of the model in float32.
        int8: MAP@R in 8 bits.
        difference: int8 minus float32, in pairs; below zero is a loss.
        low: lower end of its 95 % interval over classes.
        high: upper end.
        classes: how many were measured.
        items: how many were measured.
        calibration_items: how many calibrated.
        speed: how many times as fast ONNX Runtime runs the model in 8 bits as in float32.
        float32_bytes: size of the file.
        int8_bytes: size of the file.
        processor: what it was timed on, with the flags that matter to 8 bits.
        notes: what a reader must know.
    """

    float32: float
    int8: float
    difference: float
    low: float
    high: float
    classes: int
    items: int
    calibration_items: int
    speed: float
    float32_bytes: int
    int8_bytes: int
    processor: dict[str, Any]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-safe values."""
        return asdict(self)


def divide_for_int8(dataset: Dataset, card: Card, seed: int = 0) -> Int8Division:
    """Items of training classes to calibrate with, and of unseen classes to measure on.

    Where the card names no training classes, a random half of the classes calibrates and the other is measured.

    Raises:
        DataError: the data has no items of training classes, or nothing else.
    """
    trained = card.classes.train
    if trained:
        measured, notes = unseen_items(dataset, card)
        known = np.flatnonzero(np.isin(dataset.labels, trained))
    else:
        every = np.arange(len(dataset))
        half = leave_classes_out(dataset.labels, every, seed)
        known, measured = every[half], every[~half]
        notes = ["The model does not say which classes trained it: a random half of the data's calibrated."]
    if not len(known):
        raise DataError(
            "The data has no items of the model's training classes to calibrate on, and calibrating on the measured "
            "items would flatter the result: use data that has both."
        )
    drawn = draw_rows(known, CALIBRATION_ITEMS, seed)
    measured = np.setdiff1d(measured, drawn)
    if not len(measured):
        raise DataError("No items are left to measure the 8-bit model on: add items of untrained classes.")
    return Int8Division(drawn, measured, list(notes))


def calibration_batches(
    dataset: Dataset, division: Int8Division, embedder: Embedder, batch_size: int = 8
) -> list[Tensor]:
    """The samples (B, C, H, W) that calibrate, as loaded; recordings of one length together."""
    given = open_items(dataset.select(division.calibration), embedder.spec).batches(batch_size, 2)
    if embedder.spec.kind == "audio":
        return [part for batch in given for _, part in by_length(batch)]
    return list(given)


def compare_quantised(
    embedder: Embedder,
    contents: tuple[bytes, bytes],
    dataset: Dataset,
    division: Int8Division,
    *,
    progress: bool = True,
) -> QuantisedResult:
    """Measure what 8 bits cost.

    Args:
        embedder: the model, which says how vectors are compared.
        contents: of the file in float32 and of the one in 8 bits.
        dataset: the data that was divided.
        division: what `divide_for_int8` gave.
        progress: show bars.
    """
    encoders = [OnnxEncoder(content) for content in contents]
    part = dataset.select(division.measured)
    found = [
        retrieval_metrics(encoder.encode(part, progress=progress), part.labels, metrics=[METRIC], space=embedder.space)
        for encoder in encoders
    ]
    before, after = (result.per_query[METRIC].astype(np.float64) for result in found)
    low, high = class_bootstrap(after - before, found[0].labels)
    return QuantisedResult(
        float32=float(before.mean()),
        int8=float(after.mean()),
        difference=float((after - before).mean()),
        low=low,
        high=high,
        classes=len(np.unique(found[0].labels)),
        items=len(before),
        calibration_items=len(division.calibration),
        speed=_speed(encoders, embedder),
        float32_bytes=len(contents[0]),
        int8_bytes=len(contents[1]),
        processor=processor(),
        notes=division.notes,
    )


def processor() -> dict[str, Any]:
    """The processor's name, those of its flags that matter to 8 bits, and how many threads torch takes of it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", facts.get("Features", "")).split()
    return {
        "name": facts.get("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "threads": torch.get_num_threads(),
    }


def _speed(encoders: list[OnnxEncoder], embedder: Embedder) -> float:
    """How many times as fast the second encoder is as the first, on a batch of noise; they take turns."""
    spec = embedder.spec
    width = spec.size if spec.kind == "image" else spec.frames or SAMPLE_RATE // HOP
    batch = torch.rand(_BATCH, spec.channels, spec.size, width, generator=torch.Generator().manual_seed(0))
    times: list[list[float]] = [[], []]
    for _ in range(_ROUNDS + 1):
        for taken, encoder in zip(times, encoders, strict=True):
            began = time.perf_counter()
            encoder(batch)
            taken.append(time.perf_counter() - began)
    return median(times[0][1:]) / median(times[1][1:])  # the first round warms up
