"""Tables and pictures of run.py: what the runs say of each claim, and every part by itself.

The tables are written to `unified/*.md`, where the docs take them from, the pictures to docs/images. What is not
finished is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.report import Bar, Column, draw_bars, draw_det
from studies.page_tables import p_text, table
from studies.paired_seeds import PairedTest, half_width, mean_interval, paired_differences
from studies.places import IMAGES, located
from studies.unified.claims import CLAIMS, DOL, FURTHER, OWN, SIM
from studies.unified.measures import FALSE_RATES, SCORES, SETTINGS
from studies.unified.parts import ABLATIONS, ANCHOR, DOMAINS, LEARNED, PARTS, SOFTMAX, UNTRAINED, Cell
from studies.unified.run import chosen_rates
from studies.unified.stats import (
    Cells,
    Finding,
    Side,
    cells_of,
    findings,
    of_differences,
    run_values,
    seed_means,
    unit_differences,
)

FOLDER = located("studies/unified/tables")
FEWSHOT = located("studies/fewshot/ledger.jsonl")
TITLES = {
    "fashion": "Fashion-MNIST",
    "cifar": "CIFAR-100",
    "pacs": "PACS",
    "speakers": "AudioMNIST",
    "cub": "CUB-200-2011",
    "omniglot": "Omniglot",
}


def write_pages(lines: Sequence[Mapping[str, Any]]) -> None:
    """Write every table and picture that the finished cells allow, and print the tables."""
    FOLDER.mkdir(exist_ok=True)
    parts = {part: cells_of(lines, part) for part in PARTS}
    tables = {
        "claims": claims_table(findings(lines, CLAIMS)),
        "further": claims_table(findings(lines, FURTHER)),
        "runs": runs_table(parts),
        "rates": rates_table(lines),
        "parameters": parameters_table(parts),
        "pacs": domains_table(parts["pacs"]),
        "pacs_differences": domain_differences(parts["pacs"]),
        "omniglot": episodes_table(parts["omniglot"]),
    }
    tables |= {part: measures_table(parts[part]) for part in ("fashion", "cifar", "speakers", "cub")}
    for name, text in tables.items():
        (FOLDER / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        print(f"{name}\n{text}\n")
    pictures = {
        "classes": classes_picture(parts),
        "pacs": domains_picture(parts["pacs"]),
        "det": det_picture(parts["speakers"]),
    }
    for name, png in pictures.items():
        if png:
            (IMAGES / f"unified-{name}.png").write_bytes(png)


def claims_table(found: Sequence[Finding]) -> str:
    """Every claim with its difference, how sure that is, and the verdict."""
    rows = [
        [
            one.claim.words,
            TITLES[one.claim.part],
            _difference(one.test),
            _counted(one.test.seeds, "domain" if one.claim.part == "pacs" else "seed"),
            "–" if one.items is None else f"{_points(one.items[0])} to {_points(one.items[1])}",
            "–" if np.isnan(one.p) else f"{p_text(one.p)} ({p_text(one.corrected)})",
            f"**{one.verdict}**",
        ]
        for one in found
    ]
    return table(["claim", "data", "difference (points)", "units", "over test items", "p (corrected)", ""], rows)


def runs_table(parts: Mapping[str, Cells]) -> str:
    """What was trained: seeds, classes, items, steps and time."""
    rows = []
    for part, cells in parts.items():
        runs = [line for name, places in cells.items() if name != UNTRAINED for line in places.values()]
        if runs:
            recipe = Cell(part, SOFTMAX, 0, PARTS[part].cases[0]).recipe()
            seconds = np.array([run["seconds"] for run in runs])
            items = [
                " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
                for counts in ([run["items"][kind] for run in runs] for kind in ("train", "val", "test"))
            ]
            rows.append(
                [
                    TITLES[part],
                    str(len(runs)),
                    _seeds(cells),
                    str(runs[-1]["classes"]),
                    " / ".join(items),
                    f"{recipe.training.max_steps:,} of {recipe.data.classes_per_batch} x {recipe.data.per_class}",
                    f"{seconds.mean():.0f}",
                    f"{seconds.sum() / 60:.0f}",
                ]
            )
    head = ["", "models", "seeds", "training classes", "training / validation / test items", "steps", "seconds a model"]
    return table([*head, "minutes in all"], rows)


def rates_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Validation accuracy by learning rate, the chosen one in bold."""
    rows = []
    for part, about in PARTS.items():
        cells, chosen = cells_of(lines, part, tuned=True), chosen_rates(part, lines)
        for cell in (SOFTMAX, LEARNED) if cells else ():
            row = []
            for rate in about.rates:
                values = [line["values"]["validation accuracy"] for line in cells.get(f"{cell}, {rate:g}", {}).values()]
                told = "–" if not values else f"{100 * values[-1]:.1f}"
                row.append(f"**{told}**" if chosen and chosen[cell] == rate else told)
            rows.append([TITLES[part], cell, *row])
    rates = next(part.rates for part in PARTS.values() if part.rates)
    return table(["", "", *(f"{rate:g}" for rate in rates)], rows)


def parameters_table(parts: Mapping[str, Cells]) -> str:
    """How many weights learn."""
    rows = []
    for part, cells in parts.items():
        counts = {name: next(iter(places.values()))["parameters"] for name, places in cells.items()}
        if {SOFTMAX, LEARNED} <= counts.keys():
            rows.append([TITLES[part], *(f"{counts[name]:,}" for name in (SOFTMAX, LEARNED))])
    return table(["", SOFTMAX, LEARNED], rows)


def measures_table(cells: Cells) -> str:
    """Mean and 95 % interval over seeds of every cell and every way to ask it."""
    named = list(dict.fromkeys(name for runs in cells.values() for line in runs.values() for name in line["values"]))
    measures = list(dict.fromkeys(name.partition(", ")[0] for name in named if not name.startswith("validation")))
    rows = []
    for cell in _ordered(cells):
        ways = [name.partition(", ")[2] for name in named if name.startswith(f"{measures[0]}, ")]
        for way in dict.fromkeys(ways):
            sides = [(cell, f"{measure}, {way}") for measure in measures]
            if any(len(seed_means(cells, side)) for side in sides):
                # Weights are chosen by SIM or softmax: what they validate at is not of the dense layer.
                validated = "" if way == "DOL" else _mean(seed_means(cells, (cell, "validation accuracy")))
                extra = [validated] if "validation accuracy" in named else []
                shown = [_mean(seed_means(cells, side), plain="DCF" in side[1]) for side in sides]
                rows.append([cell, way, str(len(seed_means(cells, sides[0]))), *shown, *extra])
    heads = [
        f"{name} ↓" if name == "minDCF" else f"{name} (%) ↓" if name == "EER" else f"{name} (%)" for name in measures
    ]
    extra = ["validation accuracy (%)"] if "validation accuracy" in named else []
    return table(["", "by", "seeds", *heads, *extra], rows)


def domains_table(cells: Cells) -> str:
    """Accuracy on each domain that was left out, their mean, and on validation items of the others."""
    rows = []
    for cell, measure in _asked(cells, (OWN, SIM, DOL)):
        shown = [_mean(seed_means(cells, (cell, measure), domain)) for domain in DOMAINS]
        seeds = seed_means(cells, (cell, measure))
        validated = _mean(seed_means(cells, (cell, "validation accuracy"))) if measure != DOL else ""
        rows.append([cell, measure.partition(", ")[2], str(len(seeds)), *shown, _mean(seeds), validated])
    return table(["", "by", "seeds", *map(_spaced, DOMAINS), "mean", "training domains"], rows)


def domain_differences(cells: Cells) -> str:
    """The differences to softmax of each domain by seed, with the domains as the units, and of all pairs at once."""
    base = run_values(cells, (SOFTMAX, OWN))
    rows = []
    for cell, measure in _asked(cells, (SIM, DOL)):
        own = run_values(cells, (cell, measure))
        shown = []
        for domain in DOMAINS:
            sides = [{place: value for place, value in one.items() if place[0] == domain} for one in (own, base)]
            shown.append(_difference(of_differences(paired_differences(*sides))))
        whole, pairs = of_differences(unit_differences(own, base)), of_differences(paired_differences(own, base))
        told = "–" if pairs is None else f"{_difference(pairs)}, {_counted(pairs.seeds, 'pair')}"
        rows.append([f"{cell}, {measure.partition(', ')[2]}", *shown, _difference(whole), told])
    return table(["minus softmax", *map(_spaced, DOMAINS), "domains as units", "all pairs, not independent"], rows)


def episodes_table(cells: Cells) -> str:
    """Few-shot accuracy, with what episodic training reached, as fewshot/run.py kept it."""
    settings = [f"{way}-way {shot}-shot" for way, shot in SETTINGS]
    rows = []
    for cell in _ordered(cells):
        for way in ("SIM", "cosine", "distance"):
            found = [seed_means(cells, (cell, f"{setting}, {way}")) for setting in settings]
            if len(found[0]):
                rows.append([cell, way, str(len(found[0])), *map(_mean, found)])
    if rows and FEWSHOT.exists():
        for line in map(json.loads, FEWSHOT.read_text(encoding="utf-8").splitlines()):
            if line["name"] in ("omniglot-protonet-s-1shot", "omniglot-protonet-dr-1shot"):
                told = [f"{100 * line['test'][f'{setting} mean']:.1f}" for setting in settings]
                name = "ProtoNet, " + ("softmax" if "-s-" in line["name"] else "distance ratios")
                rows.append([f"{name}, {line['curves']['accuracy'][-1][0]:,} episodes", "distance", "1", *told])
    return table(["", "by", "seeds", *(f"{setting} (%)" for setting in settings)], rows)


def classes_picture(parts: Mapping[str, Cells]) -> bytes:
    """Accuracy on known classes, a panel for each data set."""
    shown = [part for part in ("fashion", "cifar") if parts[part]]
    bars = []
    for cell, measure in dict.fromkeys(side for part in shown for side in _asked(parts[part], (OWN, SIM, DOL))):
        bars.append(_bar(cell, measure, {TITLES[part]: seed_means(parts[part], (cell, measure)) for part in shown}))
    return draw_bars(bars, [Column(TITLES[part]) for part in shown]) if bars else b""


def domains_picture(cells: Cells) -> bytes:
    """Accuracy on the domain that was left out, a panel for each."""
    bars = []
    for cell, measure in _asked(cells, (OWN, SIM, DOL)):
        runs = {_left(domain): seed_means(cells, (cell, measure), domain) for domain in DOMAINS}
        bars.append(_bar(cell, measure, runs))
    return draw_bars(bars, [Column(_left(domain)) for domain in DOMAINS]) if bars else b""


def det_picture(cells: Cells) -> bytes:
    """DET curves of the learned model's three scores, and of softmax by cosine: means over seeds at each rate."""
    curves, errors = {}, {}
    for cell, score in [*((LEARNED, score) for score in reversed(SCORES)), (SOFTMAX, SCORES[0])]:
        rows = [line["det"][score] for line in cells.get(cell, {}).values() if score in line.get("det", {})]
        if rows:
            name = f"{cell}, {score}"
            name += f" ({_counted(len(rows), 'seed')})" if len(rows) < max(map(len, cells.values())) else ""
            curves[name] = (FALSE_RATES, np.mean(rows, axis=0))
            errors[name] = float(seed_means(cells, (cell, f"EER, {score}")).mean())
    return draw_det(curves, equal_errors=errors)


def _bar(cell: str, measure: str, runs: Mapping[str, np.ndarray]) -> Bar:
    way = measure.partition(", ")[2]
    values = {name: mean_interval(found) for name, found in runs.items()}
    label = cell if way == "softmax" else f"{way}, {cell}"
    return Bar(cell, "" if way == "softmax" else way, values=values, runs=dict(runs), label=label)


def _asked(cells: Cells, measures: Sequence[str]) -> list[Side]:
    """The cells with the measures that they have, softmax first."""
    return [
        (cell, measure) for cell in _ordered(cells) for measure in measures if len(run_values(cells, (cell, measure)))
    ]


def _ordered(cells: Cells) -> list[str]:
    return [name for name in (SOFTMAX, LEARNED, *ABLATIONS, ANCHOR, UNTRAINED) if name in cells]


def _left(domain: str) -> str:
    return f"without {_spaced(domain)}"


def _spaced(domain: str) -> str:
    return domain.replace("_", " ")


def _seeds(cells: Cells) -> str:
    """How many seeds the cells have, with names where they differ."""
    counts = {cell: len({seed for _, seed in cells[cell]}) for cell in _ordered(cells) if cell != UNTRAINED}
    most = max(counts.values())
    named = ((count, "ablations" if cell in ABLATIONS else cell) for cell, count in counts.items())
    fewer = dict.fromkeys(f"{name} {count}" for count, name in named if count < most)
    return f"{most} ({', '.join(fewer)})" if fewer else str(most)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _difference(test: PairedTest | None) -> str:
    if test is None:
        return "–"
    mean, low, high = map(_points, (test.mean, test.low, test.high))
    return mean if test.seeds < 2 else f"{mean} ({low} to {high})"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _mean(values: np.ndarray, plain: bool = False) -> str:
    if not len(values):
        return "–"
    scale, digits = (1, 3) if plain else (100, 1)
    told = f"{scale * values.mean():.{digits}f}"
    return told if len(values) < 2 else f"{told} ± {scale * half_width(values):.{digits}f}"
