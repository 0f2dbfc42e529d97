"""The tables of similarity_forms/run.py, from its ledger: means over seeds with Student's intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.page_tables import table
from studies.paired_seeds import half_width, paired_t
from studies.places import located
from studies.similarity_forms.run import DIFFERENCE, IMAGENET, PAPER, PARTS, SOFTMAX, WAYS

TABLES = located("studies/similarity_forms/tables")
UNSEEN = ("MAP@R", "Recall@1", "EER")
NAMES = {"cosine": "cosine", "sim": "SIM", "cosine+sim": "cosine + SIM", "raw-sum": "raw sum"}

Line = Mapping[str, Any]


def write_tables(lines: Sequence[Line]) -> None:
    """A table for every part and trunk that has lines, and one of what the forms differ by."""
    TABLES.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        for trunk in sorted({IMAGENET, *(line["trunk"] for line in lines if line["part"] == part)}):
            own = [line for line in lines if (line["part"], line["trunk"]) == (part, trunk)]
            name = part if trunk == IMAGENET else f"{part}_{trunk}"
            unseen = part not in ("cifar", "pacs")
            text = _unseen(own) if unseen else _known(own)
            (TABLES / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    (TABLES / "differences.md").write_text(_differences(lines) + "\n", encoding="utf-8")


def _by_seed(lines: Sequence[Line], cell: str, measure: str) -> dict[int, float]:
    """Seed to value, the mean over cases where there are several."""
    found: dict[int, list[float]] = {}
    for line in lines:
        if line["cell"] == cell and measure in line["values"]:
            found.setdefault(line["seed"], []).append(line["values"][measure])
    cases = max((len(values) for values in found.values()), default=0)
    return {seed: float(np.mean(values)) for seed, values in sorted(found.items()) if len(values) == cases}


def _told(values: Mapping[int, float]) -> str:
    if not values:
        return ""
    points = 100 * np.array(list(values.values()))
    half = half_width(points)
    return f"{points.mean():.1f}" if np.isnan(half) else f"{points.mean():.1f} ± {half:.1f}"


def _cells(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line["cell"] for line in lines))


def _unseen(lines: Sequence[Line]) -> str:
    rows = []
    for cell in _cells(lines):
        for way in WAYS:
            found = [_by_seed(lines, cell, f"{measure}, {way}") for measure in UNSEEN]
            if found[0]:
                rows.append([cell, NAMES[way], str(len(found[0])), *map(_told, found)])
    return table(["", "by", "seeds", "MAP@R (%)", "Recall@1 (%)", "EER (%) ↓"], rows)


def _known(lines: Sequence[Line]) -> str:
    rows = []
    for cell in _cells(lines):
        for way in ("softmax", "SIM", "DOL"):
            found = _by_seed(lines, cell, f"accuracy, {way}")
            if found:
                rows.append([cell, way, str(len(found)), _told(found)])
    return table(["", "by", "seeds", "accuracy (%)"], rows)


def _differences(lines: Sequence[Line]) -> str:
    """Differences in points, paired by seed, with 95 % intervals where there are seeds enough."""
    asked = [
        (part, what, (first, measure), (second, other))
        for part in PARTS
        for what, first, measure, second, other in _QUESTIONS
    ]
    rows = []
    for part, what, first, second in asked:
        own = [line for line in lines if line["part"] == part and line["trunk"] == IMAGENET]
        pair = _by_seed(own, *first), _by_seed(own, *second)
        shared = sorted(pair[0].keys() & pair[1].keys())
        if not shared:
            continue
        test = paired_t(*pair)
        mean = 100 * float(np.mean([pair[0][seed] - pair[1][seed] for seed in shared]))
        told = f"{mean:+.1f}" + ("" if test is None else f" ({100 * test.low:+.1f} to {100 * test.high:+.1f})")
        rows.append([part, what, told, str(len(shared))])
    return table(["data", "what", "difference (points)", "seeds"], rows)


_QUESTIONS = (
    ("MAP@R, SIM: difference - concatenation", DIFFERENCE, "MAP@R, sim", PAPER, "MAP@R, sim"),
    ("Recall@1, SIM: difference - concatenation", DIFFERENCE, "Recall@1, sim", PAPER, "Recall@1, sim"),
    ("EER, SIM: difference - concatenation", DIFFERENCE, "EER, sim", PAPER, "EER, sim"),
    ("MAP@R of the difference: SIM - cosine", DIFFERENCE, "MAP@R, sim", DIFFERENCE, "MAP@R, cosine"),
    ("MAP@R of the difference: cosine + SIM - cosine", DIFFERENCE, "MAP@R, cosine+sim", DIFFERENCE, "MAP@R, cosine"),
    ("EER of the difference: SIM - cosine", DIFFERENCE, "EER, sim", DIFFERENCE, "EER, cosine"),
    ("accuracy: concatenation, SIM - softmax", PAPER, "accuracy, SIM", SOFTMAX, "accuracy, softmax"),
    ("accuracy: concatenation, DOL - softmax", PAPER, "accuracy, DOL", SOFTMAX, "accuracy, softmax"),
    ("accuracy: difference, SIM - softmax", DIFFERENCE, "accuracy, SIM", SOFTMAX, "accuracy, softmax"),
)
"""What is asked, and the cell and measure of both sides."""
