"""The page of `run.py`: what its ledger says, as tables and a verdict on each figure that was aimed at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearkin.storage import replacing
from studies.page_tables import table
from studies.places import DOCS

TASKS = {"all": "all pairs", "same digit": "same digit", "other digit": "other digit"} | dict.fromkeys(
    ["three against three"], "three against three"
)
AIMS = {"all": 0.15, "same digit": 0.08, "three against three": 0.06}
"""Equal error rates that issue 32 asked of the shipped recipe."""
SCORES = ("SIM", "cosine", "cosine+SIM", "distance")
NORM = ", as-norm"
CONDITIONS = {
    "8 kHz": "the asking side at 8 kHz",
    "clipped": "clipped at 30 % of its peak",
    "noise, 10 dB": "with white noise, 10 dB",
}
Cells = Sequence[dict[str, Any]]


def write_page(cells: Cells) -> None:
    """Write `docs/results/voices.md`."""
    with replacing(DOCS / "results" / "voices.md") as temporary:
        temporary.write_text(page_text(cells), encoding="utf-8")


def page_text(cells: Cells) -> str:
    """The page in Markdown."""
    main = [cell for cell in cells if cell["cell"] == "learned similarity"]
    return _PAGE.format(
        verdict=verdict(main),
        rates=table(["model", "seeds", "score", *TASKS.values()], rate_rows(cells, SCORES)),
        normalised=table(["model", "seeds", "score", *TASKS.values()], rate_rows(cells, SCORES, NORM)),
        conditions=table(["all pairs", *SCORES[:3]], condition_rows(main)),
        cost=table(["model", "steps", "best step", "seconds of one core"], cost_rows(cells)),
    )


def rate(cells: Cells, key: str) -> tuple[float, float, float] | None:
    """The mean over seeds of an EER, and of the ends of its interval; None where it was not measured."""
    found = [cell["EER"][key] for cell in cells if key in cell["EER"]]
    return None if not found else tuple(np.mean(found, axis=0).tolist())  # type: ignore[return-value]


def rate_text(found: tuple[float, float, float] | None) -> str:
    """`15.2 (12.1 to 18.0)`, in percent."""
    if found is None:
        return "–"
    middle, low, high = (100 * value for value in found)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def rate_rows(cells: Cells, scores: Sequence[str], norm: str = "") -> list[list[str]]:
    """A row for each model and score: the EER of each task."""
    rows = []
    for name in dict.fromkeys(cell["cell"] for cell in cells):
        mine = [cell for cell in cells if cell["cell"] == name]
        for score in scores:
            found = [rate(mine, f"{task}|{score}{norm}") for task in TASKS]
            if any(found):
                rows.append([name, str(len(mine)), score, *map(rate_text, found)])
    return rows


def condition_rows(cells: Cells) -> list[list[str]]:
    """A row for each condition of the asking side: the EER by each score."""
    rows = [["both sides as they are", *(rate_text(rate(cells, f"all|{score}")) for score in SCORES[:3])]]
    for name, told in CONDITIONS.items():
        found = [rate(cells, f"{name}|{score}") for score in SCORES[:3]]
        if any(found):
            rows.append([told, *map(rate_text, found)])
    return rows


def cost_rows(cells: Cells) -> list[list[str]]:
    """A row for each model: how long its trainings and measurements took, by the mean of its seeds."""
    rows = []
    for name in dict.fromkeys(cell["cell"] for cell in cells):
        mine = [cell for cell in cells if cell["cell"] == name]
        best = ", ".join(f"{cell['best_step']:,}" for cell in mine)
        seconds = np.mean([cell["processor_seconds"] for cell in mine])
        rows.append([name, f"{mine[0]['steps']:,}", best, f"{seconds:.0f}"])
    return rows


def verdict(cells: Cells) -> str:
    """Which aims the shipped recipe reaches, by its best score."""
    if not cells:
        return "Not measured yet."
    told = []
    for task, aim in AIMS.items():
        found = {score: rate(cells, f"{task}|{score}") for score in SCORES[:3]}
        score, best = min(((name, one) for name, one in found.items() if one), key=lambda pair: pair[1][0])
        word = "reached" if best[0] <= aim else "missed"
        told.append(f"- {TASKS[task]}: {rate_text(best)} % by {score}; aim {100 * aim:g} %: **{word}**.")
    return "\n".join(told)


_PAGE = """# Who speaks, of people never heard?

Equal error rates, in percent, of pairs of recordings of 20 speakers of AudioMNIST (41 to 60; 600 recordings of one
digit, about 0.6 s each) after training on speakers 1 to 40, six of whom only choose the weights.
`python studies/voices/run.py` measures all of this and writes this page; means over seeds, in brackets the mean of the
seeds' 95 % intervals over speakers.

The figures that the recipe `speaker-verification` was to reach:

{verdict}

## Models and scores

"Three against three" compares means of three recordings of one person, drawn without repeats. "Softmax" is the same
network with the same data under a softmax loss; "old features" are those of before 0.2.0 (each band of a crop centred,
the middle of a recording in use, no augmentation), on the same network and steps; LDA takes mean and deviation of each
mel band, without a network, and trains on all forty speakers.

{rates}

## With normalised scores

As-norm, by the 200 recordings of training speakers that are most like each side.

{normalised}

## When the two sides differ

{conditions}

A recording at 8 kHz has nothing above 4 kHz: enrol and ask over one channel, or train with such recordings.

## What it cost

{cost}

Processor time of decoding in other processes is not counted; half as long on two cores, if nothing else runs.
"""
