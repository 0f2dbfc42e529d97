"""What run.py's runs say: tables in Markdown with intervals over seeds, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.metrics import holm
from nearkin.metrics.paired import geometry_correlations
from nearkin.report.curves import draw_robustness
from studies.page_tables import p_text, table
from studies.paired_seeds import half_width, paired_t
from studies.places import IMAGES, located
from studies.robustness.cub import ATTACKS, EPSILONS, ESTIMATORS, SMALL
from studies.robustness.measures import EPSILONS as ATTACK_EPSILONS
from studies.robustness.measures import SQUARE, STRONG, WORST
from studies.robustness.parts import (
    CELLS,
    LEARNED,
    LEARNED_AT,
    SOFTMAX,
    SOFTMAX_AT,
    STANDARD,
    TRADES_CE,
    TRADES_KL,
)

FOLDER = located("studies/robustness/tables")
Lines = Sequence[Mapping[str, Any]]
WAYS = (
    (SOFTMAX, "softmax"), (LEARNED, "DOL"), (LEARNED, "SIM"), (SOFTMAX_AT, "softmax"), (LEARNED_AT, "DOL"),
    (LEARNED_AT, "SIM"),
)  # fmt: skip
"""Cells and how they name classes, in the order of tables."""
GEOMETRY = ("MC, l2", "MC, linf", "D_inter", "D_intra", "phi", "R2", "pi_ratio", "d_DoV", "rho")
CLAIMED = {"MC, l2": 1, "D_inter": -1, "D_intra": 1, "phi": -1, "R2": -1, "d_DoV": 1}
"""Whether the thesis saw a measure rise (1) or fall (-1) by adversarial training."""
MOST = "AT, l2 1.0"
"""The training that is compared with the standard one: the largest budget of table 5.4."""


def write_pages(lines: Lines) -> None:
    """Write every table and picture that the finished lines allow, and print the tables."""
    FOLDER.mkdir(exist_ok=True)
    tables = {
        "toy": toy_table(lines),
        "fashion": fashion_table(lines),
        "masking": masking_table(lines),
        "claims": claims_table(lines),
        "trades": trades_table(lines),
        "cifar": cifar_table(lines),
        "changes": changes_table(lines),
        "correlations": correlations_table(lines),
        "cub": cub_table(lines),
        "runs": runs_table(lines),
    }
    for name, text in tables.items():
        (FOLDER / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        print(f"{name}\n{text}\n")
    if png := nearest_picture(lines):
        (IMAGES / "robustness-nearest.png").write_bytes(png)


def _of(lines: Lines, part: str, cell: str) -> dict[int, Mapping[str, Any]]:
    """Seed to the line of a cell."""
    return {line["seed"]: line for line in lines if line["part"] == part and line["cell"] == cell}


def _values(lines: Lines, part: str, cell: str, name: str) -> dict[int, float]:
    found = _of(lines, part, cell)
    return {seed: line["values"][name] for seed, line in found.items() if name in line["values"]}


def _percent(values: Mapping[int, float]) -> str:
    """Mean and half of its interval over seeds, in per cent."""
    if not values:
        return "–"
    numbers = 100 * np.array(list(values.values()))
    half = half_width(numbers)
    return f"{numbers.mean():.1f}" + ("" if np.isnan(half) else f" ± {half:.1f}")


def _name(cell: str, way: str) -> str:
    defended = " + AT" if cell.endswith("AT") else ""
    return f"{way}{defended}"


def toy_table(lines: Lines) -> str:
    rows = []
    for line in lines:
        if line["part"] == "toy":
            data = line["cell"].partition(", ")[2]
            for kind in ("SAA", "VAA"):
                cells = [
                    f"{eps:.3g}: {100 * value:.0f}" for eps, value in zip(line["epsilons"], line[kind], strict=True)
                ]
                rows.append([data, line["norm"], kind, ", ".join(cells)])
            rows[-1][3] += f"; without a ball {100 * line['global Voronoi robustness']:.0f}"
    return table(["data", "norm", "of 1-NN", "epsilon: accuracy in %"], rows)


def fashion_table(lines: Lines) -> str:
    names = ["FGSM (1)", "PGD (40)", "PGD (100)", WORST]
    head = ["inference", "clean", *(f"{name}, {eps:g}" for eps in ATTACK_EPSILONS for name in names)]
    rows = []
    for cell, way in WAYS:
        if _of(lines, "fashion", cell):
            keys = [f"{way}, clean", *(f"{way}, {name} {eps:g}" for eps in ATTACK_EPSILONS for name in names)]
            rows.append([_name(cell, way), *(_percent(_values(lines, "fashion", cell, key)) for key in keys)])
    return table(head, rows)


def masking_table(lines: Lines) -> str:
    rows = []
    for cell, way in WAYS:
        other = {"SIM": "DOL", "DOL": "SIM"}.get(way)
        for eps in ATTACK_EPSILONS:
            found = {
                name: _percent(_values(lines, "fashion", cell, f"{way}, {key} {eps:g}"))
                for name, key in (
                    ("PGD (100)", "PGD (100)"),
                    ("strong", STRONG),
                    ("square", SQUARE),
                    ("transfer", f"transferred from {other}"),
                    ("worst", WORST),
                )
            }
            if _of(lines, "fashion", cell):
                rows.append([_name(cell, way), f"{eps:g}", *found.values()])
    return table(
        ["inference", "epsilon", "PGD (100)", STRONG, SQUARE, "PGD (100) on the model's other inference", WORST], rows
    )


def claims_table(lines: Lines) -> str:
    """Differences in points, paired by seed, corrected together."""
    asked = [
        (f"SIM above DOL, undefended, {key}", (LEARNED, f"SIM, {key}"), (LEARNED, f"DOL, {key}"))
        for key in ("FGSM (1) 0.3", "PGD (40) 0.3", f"{WORST} 0.3", "FGSM (1) 0.1", "PGD (40) 0.1", f"{WORST} 0.1")
    ]
    asked += [
        (f"SIM + AT above softmax + AT, {key}", (LEARNED_AT, f"SIM, {key}"), (SOFTMAX_AT, f"softmax, {key}"))
        for key in ("clean", "PGD (40) 0.3", f"{WORST} 0.3", f"{WORST} 0.1")
    ]
    asked += [
        ("AT costs clean accuracy, softmax", (SOFTMAX_AT, "softmax, clean"), (SOFTMAX, "softmax, clean")),
        ("AT costs clean accuracy, SIM", (LEARNED_AT, "SIM, clean"), (LEARNED, "SIM, clean")),
    ]
    found = [
        (words, paired_t(_values(lines, "fashion", *first), _values(lines, "fashion", *second)))
        for words, first, second in asked
    ]
    tests = [(words, test) for words, test in found if test is not None]
    corrected = holm([test.p for _, test in tests]) if tests else []
    rows = [
        [
            words,
            f"{100 * test.mean:+.1f} ({100 * test.low:+.1f} to {100 * test.high:+.1f})",
            str(test.seeds),
            f"{p_text(test.p)} ({p_text(float(p))})",
        ]
        for (words, test), p in zip(tests, corrected, strict=True)
    ]
    return table(["first minus second", "points, 95 % interval over seeds", "seeds", "p (corrected)"], rows)


def trades_table(lines: Lines) -> str:
    keys = ["softmax, clean", "softmax, PGD (100) 0.1", f"softmax, {WORST} 0.1"]
    rows = [
        [cell, *(_percent(_values(lines, "trades", cell, key)) for key in keys)]
        for cell in (TRADES_KL, TRADES_CE)
        if _of(lines, "trades", cell)
    ]
    return table(["term", "clean", "PGD (100), 0.1", f"{WORST}, 0.1"], rows)


def cifar_table(lines: Lines) -> str:
    cells = [cell for cell in CELLS["cifar"] if _of(lines, "cifar", cell)]
    rows = []
    for name in ("accuracy", "accuracy, l2 0.5", "accuracy, linf 0.0314"):
        rows.append([name + " (%)", *(_percent(_values(lines, "cifar", cell, name)) for cell in cells)])
    for name in GEOMETRY:
        rows.append([name, *(_number(_values(lines, "cifar", cell, name)) for cell in cells)])
    return table(["", *cells], rows if cells else [])


def _number(values: Mapping[int, float]) -> str:
    numbers = np.array(list(values.values()))
    half = half_width(numbers)
    return f"{numbers.mean():.3g}" + ("" if np.isnan(half) else f" ± {half:.2g}")


def changes_table(lines: Lines) -> str:
    """What the largest budget changed, paired by seed, beside what the thesis saw."""
    tests = {
        name: paired_t(_values(lines, "cifar", MOST, name), _values(lines, "cifar", STANDARD, name))
        for name in GEOMETRY
    }
    there = {name: test for name, test in tests.items() if test is not None}
    corrected = holm([test.p for test in there.values()]) if there else []
    rows = []
    for (name, test), p in zip(there.items(), corrected, strict=True):
        seen = {1: "rises", -1: "falls"}.get(CLAIMED.get(name, 0), "–")
        here = "not shown" if p > 0.05 else "rises" if test.mean > 0 else "falls"
        rows.append(
            [name, f"{test.mean:+.3g} ({test.low:+.3g} to {test.high:+.3g})", f"{p_text(test.p)} ({p_text(float(p))})",
             seen, here]
        )  # fmt: skip
    return table(["measure", f"{MOST} minus ST, 95 % interval", "p (corrected)", "in the thesis", "here"], rows)


def correlations_table(lines: Lines) -> str:
    """Table 5.6: over the means of the five trainings, as runs of one training are no independent points."""
    rows = []
    for cell in CELLS["cifar"]:
        found = _of(lines, "cifar", cell)
        if found:
            rows.append({name: float(np.mean([line["values"][name] for line in found.values()])) for name in GEOMETRY})
    if len(rows) < 3:
        return table([], [])
    told = geometry_correlations(rows, ["phi", "R2", "d_DoV", "rho"], "MC, l2")
    cells = [
        [
            name,
            f"{one.pearson:+.2f}",
            f"{p_text(one.pearson_p)} ({p_text(one.pearson_holm)})",
            f"{one.spearman:+.2f}",
            f"{p_text(one.spearman_p)} ({p_text(one.spearman_holm)})",
        ]
        for name, one in told.measures.items()
    ]
    return table(["against MC, l2", "Pearson", "p (corrected)", "Spearman", "p (corrected)"], cells)


def cub_table(lines: Lines) -> str:
    line = next((line for line in lines if line["part"] == "cub"), None)
    if line is None:
        return table([], [])
    cells = ["unattacked", *(f"{name} {eps:g}" for eps in (*SMALL, *EPSILONS) for name in ATTACKS)]
    rows = []
    for cell in cells:
        found = line["unattacked"] if cell == "unattacked" else line["attacked"][cell]
        rows.append([cell, *(_both(found[name]) for name in ESTIMATORS)])
    return table(["accuracy (ECE) in %", *ESTIMATORS], rows)


def _both(found: Mapping[str, Sequence[float]]) -> str:
    value, low, high = (100 * number for number in found["accuracy"])
    return f"{value:.0f} [{low:.0f}, {high:.0f}] ({100 * found['ECE'][0]:.0f})"


def runs_table(lines: Lines) -> str:
    """What was trained and how long it took."""
    rows = []
    for part in CELLS:
        own = [line for line in lines if line["part"] == part]
        if own:
            minutes = [sum(line[key] for line in own) / 60 for key in ("seconds", "measuring_seconds")]
            items = own[0]["items"]
            rows.append(
                [part, str(len(own)), f"{items['train']:,} / {items['val']:,} / {items['test']:,}",
                 *(f"{value:.0f}" for value in minutes)]
            )  # fmt: skip
    return table(["part", "models", "items: train / val / test", "minutes of training", "minutes of attacks"], rows)


def nearest_picture(lines: Lines) -> bytes:
    """SAA and VAA of 1-NN on images, over epsilon."""
    line = next((line for line in lines if line["cell"] == "1-NN, Fashion-MNIST" and line["norm"] == "l2"), None)
    if line is None:
        return b""
    sizes = np.array([0.0, *line["epsilons"]])
    curves = {kind: (sizes, np.array([line["accuracy"], *line[kind]])) for kind in ("SAA", "VAA")}
    return draw_robustness(
        curves, "epsilon, l2, pixels", marks={"half the smallest distance": line["smallest distance"] / 2}
    )
