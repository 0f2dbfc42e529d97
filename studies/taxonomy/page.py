"""Tables and pictures of run.py: accuracy, correlations with the tree, measures that know it, and curves.

The tables are written to `taxonomy/*.md`, where the docs take them from, the pictures to docs/images. What is not
finished is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.report import Bar, Column, draw_bars, draw_metric_curves
from studies.page_tables import p_text, table
from studies.paired_seeds import PairedTest, half_width, mean_interval
from studies.places import IMAGES, located
from studies.taxonomy.stats import Cells, cells_of, family, rank_correlation, seed_values

FOLDER = located("studies/taxonomy/tables")
TASKS = {"cifar": "CIFAR-100", "omniglot": "Omniglot"}
BATCHES = {"cifar": 32, "omniglot": 64}
"""Items a step (`data.classes_per_batch` of the tasks), to tell steps in epochs."""
MODELS = ("softmax", "NormFace", "ProxyDR", "CORR")
BOTH = MODELS[1:3]
OPTIONS = ("", "standard", "s =", "EMA", "dynamic", "EMA + dynamic", "MDS", "MDS + dynamic")
LOWER = {"AHD@1", "AHD@5", "severity"}
PLAIN = LOWER  # in edges of the tree
ACCURACY = ("top-1", "top-5")
INFORMED = ("AHD@1", "AHD@5", "HP@5", "HS@50", "HS@250", "AHS@250")
JUDGED = (*ACCURACY, "AHD@1", "AHD@5", "severity", "HP@5", "HS@50", "HS@250", "AHS@250")
CORRELATIONS = ("MC proxies", "MC prototypes")
WITH_DIAGONAL, LAST = (tuple(f"{name}, {how}" for name in CORRELATIONS) for how in ("with diagonal", "last step"))
FIGURES = {"accuracy": ACCURACY, "correlation": CORRELATIONS, "informed": INFORMED}
CURVES = {
    "val_accuracy": "Accuracy of validation items",
    "MC_proxies": "Mean correlation of proxies with the tree",
    "MC_prototypes": "Mean correlation of prototypes with the tree",
}
DRAWN = ("ProxyDR, standard", "ProxyDR, dynamic", "NormFace, standard", "NormFace, dynamic")
TREE_CONTRASTS = (
    *((f"{model}, MDS", f"{model}, standard") for model in BOTH),
    *((f"{model}, MDS + dynamic", f"{model}, MDS") for model in BOTH),
    ("ProxyDR, MDS", "NormFace, MDS"),
    ("CORR, MDS", "ProxyDR, MDS"),
    ("CORR, MDS", "softmax"),
)
"""What the tree brings, and to whom: prototypes only, as their proxies are placed rather than learned."""
TESTED = ("top-1", "top-5", "AHD@1", "AHD@5", "HP@5", "HS@50", "HS@250", "AHS@250")
"""Measures that are put to paired tests besides correlations."""
FEW_CONTRASTS = (
    *((f"ProxyDR, {option}", f"NormFace, {option}") for option in ("standard", "dynamic", "EMA", "EMA + dynamic")),
    *((f"{model}, {option}", f"{model}, standard") for option in ("dynamic", "MDS") for model in BOTH),
    ("CORR, MDS", "ProxyDR, MDS"),
    ("NormFace, standard", "softmax"),
)
"""Those that the article draws conclusions from in its other measures."""
ARTICLE_SPACES = {
    "input space": "0.341 ± 0.035",
    "normalised input space": "0.261 ± 0.042",
    "pretrained": "0.382 ± 0.012",
    "random": "0.284 ± 0.030",
}
"""Table 2 of the article, by how our names begin; its networks are ResNet-50."""
ARTICLE_RANKS = {
    "MC proxies": (None, 0.1675, -0.3364),
    "MC prototypes": (None, 0.1978, -0.3675),
    "top-1": (0.1675, None, 0.4398),
    "top-5": (-0.3364, 0.4398, None),
    "AHD@1": (-0.1821, -0.9507, -0.4245),
    "AHD@5": (-0.8856, -0.2877, 0.4561),
    "HP@5": (0.8955, 0.2439, -0.4902),
    "HS@50": (0.1878, 0.8967, 0.2515),
    "HS@250": (0.5514, 0.5535, 0.0955),
    "AHS@250": (0.3335, 0.8517, 0.3157),
}
"""CIFAR-100 in its tables S2 to S4: with the mean correlation of proxies, with top-1 and with top-5 accuracy."""


def write_pages(lines: Sequence[Mapping[str, Any]]) -> None:
    """Write every table and picture that the finished cells allow, and print the tables."""
    FOLDER.mkdir(exist_ok=True)
    tasks = {task: cells_of(lines, task) for task in TASKS}
    tables = {"runs": runs_table(tasks), "spaces": spaces_table(cells_of(lines, "spaces"))}
    tables |= options_tables(tasks["cifar"], cells_of(lines, "options"))
    for task, cells in tasks.items():
        tables |= {
            task: measures_table(cells, JUDGED),
            f"{task}_correlations": measures_table(cells, (*CORRELATIONS, *WITH_DIAGONAL, *LAST)),
            f"{task}_tests": tests_table(cells, contrasts(cells), CORRELATIONS),
            f"{task}_tests_last": tests_table(cells, contrasts(cells), LAST),
            f"{task}_tests_tree": tests_table(cells, TREE_CONTRASTS, CORRELATIONS[1:]),
            f"{task}_tests_informed": tests_table(cells, FEW_CONTRASTS, TESTED),
            f"{task}_ranks": ranks_table(cells, ARTICLE_RANKS if task == "cifar" else {}),
            f"{task}_scale": scale_table(cells),
        }
    for name, text in tables.items():
        (FOLDER / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        print(f"{name}\n{text}\n")
    for task, cells in tasks.items():
        pictures: dict[str, bytes] = {name: bars_picture(cells, shown) for name, shown in FIGURES.items()}
        pictures["curves"] = curves_picture(cells, task)
        for name, png in pictures.items():
            if png:
                (IMAGES / f"taxonomy-{task}-{name}.png").write_bytes(png)


def options_tables(usual: Cells, cells: Cells) -> dict[str, str]:
    """Other layouts, starts and scales of proxies, and each beside the usual one of the same seed."""
    both = usual | cells
    pairs = [
        (name, f"{model}, standard" if "prototypes" in option else f"{model}, {option.partition(', rate')[0]}")
        for name in cells
        for model, _, option in [name.partition(", ")]
        if "prototypes" in option or "rate" in option
    ]
    layouts = [name for name in cells if not any(word in name for word in ("prototypes", "rate"))]
    pairs += [(name, "CORR, MDS" if name.startswith(("CORR", "H-")) else "NormFace, MDS") for name in layouts]
    return {
        "options": measures_table(cells, (*ACCURACY, "AHD@1", "AHD@5", "HP@5", *CORRELATIONS)),
        "options_tests": tests_table(both, pairs, (*ACCURACY, "AHD@5", CORRELATIONS[1])),
        "options_scale": scale_table(cells),
    }


def runs_table(tasks: Mapping[str, Cells]) -> str:
    """What was trained: classes, items, steps and time."""
    rows = []
    for task, cells in tasks.items():
        runs = [line for seeds in cells.values() for line in seeds.values()]
        if runs:
            items, seconds = runs[-1]["items"], np.array([run["seconds"] for run in runs])
            last = max(row["step"] for row in runs[-1]["curves"])
            rows.append(
                [
                    TASKS[task],
                    f"{len(cells)}",
                    f"{max(map(len, cells.values()))}",
                    f"{runs[-1]['classes']}",
                    " / ".join(f"{items[part]:,}" for part in ("train", "val", "test")),
                    f"{last:,} of {BATCHES[task]}",
                    f"{last * BATCHES[task] / items['train']:.0f}",
                    f"{seconds.mean():.0f}",
                    f"{seconds.sum() / 60:.0f}",
                ]
            )
    head = ["", "models", "seeds", "classes", "training / validation / test items", "steps", "epochs"]
    return table([*head, "seconds a model", "minutes in all"], rows)


def measures_table(cells: Cells, measures: Sequence[str]) -> str:
    """Mean and 95 % interval over seeds of every cell."""
    told = [name for name in measures if any(len(seed_values(runs, name)) for runs in cells.values())]
    rows = [
        [name, str(len(cells[name])), *(_mean(seed_values(cells[name], measure), measure) for measure in told)]
        for name in sorted(cells, key=_order)
    ]
    return table(["model", "seeds", *(_heading(measure) for measure in told)], rows)


def tests_table(cells: Cells, pairs: Sequence[tuple[str, str]], measures: Sequence[str]) -> str:
    """Differences paired by seed: mean, 95 % interval, p and its correction over the whole table."""
    tests = family(cells, pairs, measures)
    rows = [
        [
            f"{first} − {second}",
            str(max(test.seeds for test in found.values())),
            *(_test(found.get(measure), measure) for measure in measures),
        ]
        for (first, second), found in tests.items()
    ]
    return table(["difference", "seeds", *(_heading(measure) for measure in measures)], rows)


def contrasts(cells: Cells) -> list[tuple[str, str]]:
    """The article's main questions and, where there are controls, what of a dynamic scale is its first value."""
    controls = {model: [name for name in cells if name.startswith(f"{model}, s =")] for model in BOTH}
    return [
        *((f"ProxyDR, {option}", f"NormFace, {option}") for option in ("standard", "dynamic", "EMA", "EMA + dynamic")),
        *zip(controls["ProxyDR"], controls["NormFace"], strict=False),
        *(("ProxyDR, standard", control) for control in controls["NormFace"]),
        *((f"{model}, dynamic", f"{model}, standard") for model in BOTH),
        *((f"{model}, dynamic", control) for model in BOTH for control in controls[model]),
        *((control, f"{model}, standard") for model in BOTH for control in controls[model]),
    ]


def spaces_table(cells: Cells) -> str:
    """Mean correlations of prototypes where nothing was trained, beside the article's."""
    rows = []
    for name, runs in cells.items():
        printed = next((value for start, value in ARTICLE_SPACES.items() if name.startswith(start)), "")
        measured = (_mean(seed_values(runs, measure), measure) for measure in ("MC prototypes", WITH_DIAGONAL[1]))
        rows.append([name, str(len(runs)), *measured, printed])
    return table(["space", "seeds", "MC prototypes", "with diagonal", "article (ResNet-50)"], rows)


def ranks_table(cells: Cells, printed: Mapping[str, tuple[float | None, ...]]) -> str:
    """Which measures go together over runs: Spearman, without softmax and the controls, as in the article."""
    runs = [
        line for name, seeds in cells.items() if name != "softmax" and ", s =" not in name for line in seeds.values()
    ]
    against = ("MC proxies", *ACCURACY)
    rows = []
    for measure in (*CORRELATIONS, *JUDGED) if len(runs) > 2 else ():
        row = [_heading(measure)]
        for place, other in enumerate(against):
            row.append("" if measure == other else _rank(*rank_correlation(runs, measure, other)))
            if printed:
                value = printed.get(measure, (None,) * len(against))[place]
                row.append("" if value is None else f"{value:+.2f}")
        rows.append(row)
    head = [part for other in against for part in ([f"with {other}", "article"] if printed else [f"with {other}"])]
    return table([f"{len(runs)} runs", *head], rows)


def scale_table(cells: Cells) -> str:
    """How far a dynamic scale went: mean and range over seeds."""
    rows = []
    for name in sorted(cells, key=_order):
        logged = [[row for row in line["curves"] if "scale" in row] for line in cells[name].values()]
        logged = [log for log in logged if log]
        if logged:
            first, last = logged[0][0]["step"], logged[0][-1]["step"]
            ends = [np.array([log[place]["scale"] for log in logged]) for place in (0, -1)]
            rows.append(
                [
                    name,
                    f"{_span(ends[0])} at step {first:,}",
                    f"{_span(ends[1])} at step {last:,}",
                ]
            )
    return table(["model", "scale at first", "at the end"], rows)


def bars_picture(cells: Cells, measures: Sequence[str]) -> bytes:
    """Figures 3, 5 and 7 of the article."""
    bars = []
    for name in sorted(cells, key=_order):
        model, _, option = name.partition(", ")
        runs = {measure: seed_values(cells[name], measure) for measure in measures}
        bars.append(
            Bar(
                model,
                _kind(option),
                values={measure: mean_interval(values) for measure, values in runs.items()},
                runs=runs,
                part="with the tree" if "MDS" in option else "without the tree",
                label=name,
            )
        )
    columns = [Column(name, percent=not _is_plain(name), lower_is_better=name in LOWER) for name in measures]
    return draw_bars(bars, columns)


def curves_picture(cells: Cells, task: str) -> bytes:
    """Figure 9 of the article: means over seeds, bands from the lowest to the highest."""
    models = list(dict.fromkeys(name.partition(", ")[0] for name in sorted(cells, key=_order)))  # as bars have them
    colours = {name: models.index(model) for name in DRAWN if (model := name.partition(", ")[0]) in models}
    series: dict[str, dict[str, Any]] = {title: {} for title in CURVES.values()}
    bands: dict[str, dict[str, Any]] = {title: {} for title in CURVES.values()}
    for name in DRAWN:
        for key, title in CURVES.items():
            rows = [
                {row["step"] * BATCHES[task] / line["items"]["train"]: row[key] for row in line["curves"] if key in row}
                for line in cells.get(name, {}).values()
            ]
            epochs = sorted(set.intersection(*map(set, rows))) if rows else []
            if epochs:
                values = np.array([[row[epoch] for epoch in epochs] for row in rows])
                series[title][name] = (epochs, values.mean(axis=0))
                bands[title][name] = (values.min(axis=0), values.max(axis=0))
    plain = list(CURVES.values())[1:]
    return draw_metric_curves(series, intervals=bands, of=TASKS[task], plain=plain, alike=colours)


def _order(name: str) -> tuple[bool, int, int, str]:
    """Without the tree before with it, then by model, then by option."""
    model, _, option = name.partition(", ")
    return "MDS" in option, _place(MODELS, model), _place(OPTIONS, _kind(option)), name


def _kind(option: str) -> str:
    """The option; that of the controls, whose fixed scale differs by model, is one."""
    return "s =" if option.startswith("s =") else option


def _place(known: Sequence[str], one: str) -> int:
    return known.index(one) if one in known else len(known)


def _is_plain(measure: str) -> bool:
    """Whether a measure is no share of 1, told in percent."""
    return measure in PLAIN or measure.startswith("MC ")


def _heading(measure: str) -> str:
    return measure + (" ↓" if measure in LOWER else "") + ("" if _is_plain(measure) else " (%)")


def _digits(measure: str) -> tuple[float, int]:
    """By what a value is multiplied, and its decimals."""
    return (1, 3) if _is_plain(measure) else (100, 1)


def _mean(values: np.ndarray, measure: str) -> str:
    if not len(values):
        return "–"
    scale, digits = _digits(measure)
    told = f"{scale * values.mean():.{digits}f}"
    return told if len(values) < 2 else f"{told} ± {scale * half_width(values):.{digits}f}"


def _test(test: PairedTest | None, measure: str) -> str:
    if test is None:
        return ""
    scale, digits = _digits(measure)
    mean, low, high = (f"{scale * value:+.{digits}f}" for value in (test.mean, test.low, test.high))
    told = f"{mean} ({low} to {high}), p {p_text(test.p)} ({p_text(test.corrected)})"
    return f"**{told}**" if test.corrected < 0.05 else told


def _rank(coefficient: float, p: float) -> str:
    if not np.isfinite(coefficient):
        return "–"
    return f"**{coefficient:+.2f}**" if p < 0.01 else f"{coefficient:+.2f}"


def _span(values: np.ndarray) -> str:
    return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"
