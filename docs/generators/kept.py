"""Reads what benchmarks have kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
BENCHMARKS = DOCS.parent / "benchmarks"


def measured(name: str) -> dict[str, Any]:
    """What the last full run of a benchmark measured."""
    return json.loads((BENCHMARKS / f"{name}.json").read_text())


def ledger(name: str) -> list[dict[str, Any]]:
    """The lines of a benchmark's ledger."""
    path = BENCHMARKS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
