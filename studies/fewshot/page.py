"""Tables and pictures of run.py: accuracy of unseen classes, speed of learning, and training dynamics.

The tables are written to `fewshot/*.md`, where the docs take them from, the pictures to docs/images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearkin.metrics import compare_dynamics
from nearkin.report import draw_accuracies, draw_dynamics
from studies.places import IMAGES, located

FOLDER, EPISODES = located("studies/fewshot/tables"), located("studies/fewshot/episodes")
TASKS = {"omniglot": "Omniglot", "cub": "CUB"}
NAMES = {"protonet": "ProtoNet", "1nn": "1-NN"}
SHOTS = (1, 5)
PAIRS = tuple(
    (task, f"{task}-{kind}-s-{shot}shot", f"{task}-{kind}-dr-{shot}shot")
    for task in TASKS
    for shot, kind in ((1, "protonet"), (5, "protonet"), (5, "1nn"))
)
"""Task, the cell with softmax and the cell with distance ratios."""
CONTROLS = tuple((task, f"{task}-scaled-protonet-s-1shot", f"{task}-protonet-dr-1shot") for task in TASKS)
"""Likewise, the softmax as sharp as distance ratios at first."""
LONG = "omniglot-long-protonet-dr-1shot"
EARLY = 0.25
"""The first part of a training, whose mean validation accuracy says how fast it learns."""

Cells = Mapping[str, dict[str, Any]]
Pairs = tuple[tuple[str, str, str], ...]


def write_pages(cells: Cells) -> None:
    """Write every table and picture that the finished cells allow, and print the tables."""
    FOLDER.mkdir(exist_ok=True)
    tables = {
        "accuracy": _accuracy_table(cells, PAIRS),
        "scaled": _accuracy_table(cells, CONTROLS),
        "speed": _speed_table(cells),
        "dynamics": _dynamics_table(cells, PAIRS),
        "scaled-dynamics": _dynamics_table(cells, CONTROLS),
        "long": _long_table(cells),
    }
    for name, table in tables.items():
        (FOLDER / f"{name}.md").write_text(table + "\n", encoding="utf-8")
        print(f"{table}\n")
    for task in TASKS:
        for shot in SHOTS:
            logs = {_name(cell): _rows(cell) for cell in cells.values() if (cell["task"], cell["shot"]) == (task, shot)}
            if len(logs) < 2:
                continue
            (IMAGES / f"fewshot-{task}-{shot}shot.png").write_bytes(draw_accuracies(logs))
            (IMAGES / f"fewshot-{task}-{shot}shot-dynamics.png").write_bytes(
                draw_dynamics(logs, measures=("norm_ratio", "con_alpha", "div_alpha"))
            )
    minutes = sum(cell["seconds"] for cell in cells.values()) / 60
    print(f"{len(cells)} models, {minutes:.0f} minutes of training: {_headline(cells)}")


def _accuracy_table(cells: Cells, pairs: Pairs) -> str:
    """Accuracy of the test classes: softmax beside distance ratios, with the paired difference."""
    rows = []
    for task, softmax, ratio in _finished(cells, pairs):
        stands = "nearest" if softmax["loss"].startswith("1nn") else "mean"
        for name in softmax["test"]:
            setting, _, representation = name.rpartition(" ")
            # Tested as trained: with the shots and the representation of its episodes.
            if f"{softmax['shot']}-shot" in setting and representation == stands:
                first, second = _episodes(softmax, name), _episodes(ratio, name)
                rows.append(
                    [
                        f"{TASKS[task]}, {setting}",
                        NAMES[softmax["loss"].partition("-")[0]],
                        _mean(first),
                        _mean(second),
                        _mean(second - first, sign="+"),
                    ]
                )
    return _table(["test", "class", "softmax, S (%)", "distance ratio, DR (%)", "DR - S, paired"], rows)


def _speed_table(cells: Cells) -> str:
    """How soon each model learned: validation accuracy early in training, at its best, and what it took."""
    rows = []
    names = [name for _, *both in PAIRS for name in both]
    for name in (*names, *(softmax for _, softmax, _ in CONTROLS), LONG):
        if (cell := cells.get(name)) is not None:
            curve = np.array(cell["curves"]["val_accuracy"])
            steps, values = curve.T
            early = values[steps <= EARLY * steps[-1]]
            rows.append(
                [
                    f"{_title(cell)}, {cell['shot']}-shot",
                    _name(cell),
                    f"{100 * values[0]:.1f}",
                    f"{100 * early.mean():.1f}",
                    f"{100 * values.max():.1f}",
                    f"{cell['best_step']}",
                    f"{steps[-1]:.0f}",
                    f"{cell['seconds'] / 60:.1f}",
                ]
            )
    head = ["", "", "after 100 episodes", "mean of the first quarter", "best", "at episode", "of", "minutes"]
    return _table(head, rows)


def _dynamics_table(cells: Cells, pairs: Pairs) -> str:
    """The comparison of the dynamics of both formulations, a block for each task."""
    blocks = []
    for task, softmax, ratio in _finished(cells, pairs):
        names = (_name(softmax), _name(ratio))
        compared = compare_dynamics(_rows(softmax), _rows(ratio), names=names)
        checkpoints = compared.measures["norm_ratio"].checkpoints
        counted = " and ".join(str(count) for count in dict.fromkeys(checkpoints))
        table = [line for line in compared.to_markdown().splitlines() if line.startswith("|")]
        blocks.append("\n".join([f"**{TASKS[task]}, {softmax['shot']}-shot** ({counted} checkpoints)", "", *table]))
    return "\n\n".join(blocks)


def _long_table(cells: Cells) -> str:
    """Every test of the model that was trained longer."""
    if LONG not in cells:
        return ""
    tests = cells[LONG]["test"]
    return _table(list(tests), [[_mean(_episodes(cells[LONG], name)) for name in tests]])


def _headline(cells: Cells) -> str:
    """The differences in accuracy, in one line."""
    said = []
    for task, softmax, ratio in _finished(cells, PAIRS):
        kind = "nearest" if softmax["loss"].startswith("1nn") else "mean"
        name = f"5-way {softmax['shot']}-shot {kind}"
        gap = _mean(_episodes(ratio, name) - _episodes(softmax, name), sign="+")
        said.append(f"{TASKS[task]} 5-way {softmax['shot']}-shot {_name(ratio)} - {_name(softmax)} {gap}")
    return "; ".join(said)


def _finished(cells: Cells, pairs: Pairs) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The pairs of which both cells are finished."""
    return [(task, cells[first], cells[second]) for task, first, second in pairs if {first, second} <= cells.keys()]


def _episodes(cell: dict[str, Any], name: str) -> np.ndarray:
    """Share of right answers (episodes,) in every test episode of a cell."""
    with np.load(EPISODES / f"{cell['name']}.npz") as kept:
        return kept[name].astype(np.float64)


def _rows(cell: dict[str, Any]) -> list[dict[str, float]]:
    """The log of a cell, as `Run.history` gives it."""
    rows: dict[int, dict[str, float]] = {}
    for key, curve in cell["curves"].items():
        for step, value in curve:
            rows.setdefault(step, {"step": step})[key] = value
    return [rows[step] for step in sorted(rows)]


def _name(cell: dict[str, Any]) -> str:
    kind, _, form = cell["loss"].partition("-")
    return f"{NAMES[kind]}_{form.upper()}"


def _title(cell: dict[str, Any]) -> str:
    """Omniglot; Omniglot, scaled."""
    task, _, variant = cell["task"].partition("-")
    return TASKS[task] + (f", {variant}" if variant else "")


def _mean(values: np.ndarray, sign: str = "") -> str:
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return f"{100 * values.mean():{sign}.2f} ± {100 * half:.2f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))
