"""Reads what benchmarks and studies have kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
BENCHMARKS = DOCS.parent / "benchmarks"
STUDIES = DOCS.parent / "studies"


def measured(name: str) -> dict[str, Any]:
    """What the last full run of a benchmark measured."""
    return json.loads((BENCHMARKS / f"{name}.json").read_text())


def result(study: str) -> dict[str, Any]:
    """What a study that has no ledger found."""
    return json.loads((STUDIES / study / "result.json").read_text(encoding="utf-8"))


def ledger(name: str) -> list[dict[str, Any]]:
    """The lines of a study's ledger."""
    path = STUDIES / name / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
